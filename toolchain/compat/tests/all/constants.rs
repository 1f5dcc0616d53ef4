//! Constant memory: the kernels of `gpu/src/constants.rs`, in the PTX and on the virtual GPU, filled as a host program of Rust-CUDA does: by cust.

use crate::common::{PLAIN, Result, load_plain};
use cuda_builder::ptx;
use cust::memory::DeviceCopy;
use cust::prelude::*;
use std::ffi::CString;

/// The loads are of the constant state space, and a warp's index into the taps is in the instruction: no addresses are computed.
#[test]
fn taps_are_loaded_from_constant_memory_by_offsets() -> Result<()> {
    let Some(text) = PLAIN.text() else { return Ok(()) };
    let entries = ptx::entries(text)?;
    let body = &entries.iter().find(|entry| entry.name == "filtered").expect("a kernel of this name").body;
    assert_eq!(body.matches("ld.const.b32").count(), 5, "one load a tap");
    assert!(text.contains(".visible .const .align 16 .b8 TAPS[20];"));
    Ok(())
}

fn set<T: DeviceCopy>(module: &Module, name: &str, value: &T) -> Result<()> {
    module.get_global::<T>(&CString::new(name)?)?.copy_from(value)?;
    Ok(())
}

#[test]
fn a_constant_is_zero_until_the_host_sets_it() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let x: Vec<f32> = (0..100).map(|i| (i * 37 % 65) as f32 / 8.0).collect();
    let (device_x, device_y) = (DeviceBuffer::from_slice(&x)?, DeviceBuffer::from_slice(&[f32::NAN; 100])?);
    for taps in [[0.0f32; 5], [1.0, -2.0, 0.5, 4.0, 0.25]] {
        // the first are the zeros that it begins with
        if taps[0] != 0.0 {
            set(module, "TAPS", &taps)?;
        }
        // SAFETY: a slice is a pointer and a length; `y` has as many elements as `x`.
        unsafe {
            launch!(module.filtered<<<1, 128, 0, stream>>>(
                device_x.as_device_ptr(), x.len(), device_y.as_device_ptr()
            ))?;
        }
        stream.synchronize()?;
        // sums of few small multiples of 1/32 are exact
        let at = |i: usize| (0..5).map(|j| taps[j] * x.get(i + j).copied().unwrap_or(0.0)).sum::<f32>();
        assert_eq!(device_y.as_host_vec()?, (0..100).map(at).collect::<Vec<f32>>(), "{taps:?}");
    }
    Ok(())
}

#[test]
fn constants_of_each_width_are_read() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let halves = [[1u16, 2, 3], [4, 5, 6], [7, 8, 9], [0, 1, 65535]];
    set(module, "BYTES", &[3u8, 1, 4, 1, 5, 9, 255])?;
    set(module, "HALVES", &halves)?;
    set(module, "LONGS", &[1u64 << 40, 7, u64::MAX - 1])?;
    let sums = DeviceBuffer::from_slice(&[0u64; 24])?;
    // SAFETY: three elements for each of 8 threads.
    unsafe { launch!(module.widths<<<1, 8, 0, stream>>>(sums.as_device_ptr()))? };
    stream.synchronize()?;
    let none = u64::MAX;
    #[rustfmt::skip]
    let wanted = [
        3, 321, 1 << 40,    1, 654, 7,    4, 987, u64::MAX - 1,    1, 6_553_510, none,
        5, none, none,    9, none, none,    255, none, none,    none, none, none,
    ];
    assert_eq!(sums.as_host_vec()?, wanted);
    Ok(())
}
