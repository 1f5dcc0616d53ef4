//! Links between two virtual devices. A process has one set of devices, and a finding can't be cleared, so each case runs in
//! its own process.

use super::{DeviceBuffer, Link, Way};
use crate::cuda::CudaDevice;
use crate::mutation::{Wait, without};
use crate::{Device, Result};
use std::env;
use std::process::Command;

const BYTES: usize = 4096;
/// Passes the case's name to the process that runs it.
const CASE: &str = "PASCALINE_LINK_CASE";

fn device(ordinal: u32) -> CudaDevice {
    match Device::virtual_gpu_number(ordinal) {
        Ok(Device::Cuda(device)) => device,
        other => panic!("{other:?}"),
    }
}

/// Sends six values without waiting for any of them, and returns those that arrived.
fn six(way: Way) -> Result<Vec<u8>> {
    let [from, to] = [device(0), device(1)];
    let link = Link::new(&from, &to, Some(way))?;
    assert_eq!(link.way(), way);
    let mut source = DeviceBuffer::uninitialized(&from, BYTES)?;
    let mut targets = Vec::new();
    for value in 1..=6 {
        source.fill(value)?;
        let mut target = DeviceBuffer::uninitialized(&to, BYTES)?;
        link.send(&source, 0, BYTES, &mut target)?;
        targets.push(target);
    }
    let mut values = Vec::new();
    for target in targets {
        let mut bytes = vec![0; BYTES];
        target.download(0, &mut bytes)?;
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        values.push(bytes[0]);
    }
    from.synchronize()?;
    Ok(values)
}

fn run(case: &str) {
    let (way, left_out) = case.split_once(' ').unwrap();
    let way = if way == "peer" { Way::Peer } else { Way::Pinned };
    let left_out = match left_out {
        "filled" => Some(Wait::SlotFilled),
        "emptied" => Some(Wait::SlotEmptied),
        _ => None,
    };
    let values = without(left_out, || six(way));
    match left_out {
        None => assert_eq!(values, Ok(vec![1, 2, 3, 4, 5, 6])),
        Some(_) => assert!(matches!(values, Err(crate::Error::DeviceLost { .. })), "{values:?}"),
    }
}

#[test]
fn each_wait_of_a_link_is_needed() {
    if let Ok(case) = env::var(CASE) {
        return run(&case);
    }
    for case in ["peer none", "peer filled", "peer emptied", "pinned none", "pinned filled", "pinned emptied"]
    {
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", "memory::link_tests::each_wait_of_a_link_is_needed", "--nocapture"])
            .env(CASE, case)
            .env("PASCALINE_VIRTUAL_DEVICES", "mx330,gtx1080")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{case}: {text}");
        assert!(text.contains("1 passed"), "{case}: {text}");
        assert_eq!(text.contains("missing wait between devices"), !case.ends_with("none"), "{case}: {text}");
    }
}

#[test]
fn a_link_needs_two_devices() {
    let _turn = super::device_tests::turn();
    let device = super::device_tests::cuda_device();
    let error = Link::new(&device, &device.with_new_stream().unwrap(), None).unwrap_err();
    assert!(error.to_string().contains("between two devices"), "{error}");
}
