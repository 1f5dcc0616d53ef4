//! The loss of one of two devices: what runs on it ends with an error, what runs on the other goes on.

use crate::common::process::in_own_process;
use crate::common::several::{answer, load};
use pascaline::{Device, Error};
use pascaline_driver::faults;
use pascaline_virtual_gpu::{Config, GTX1080, MX330, configure, take_findings};
use qwen3_vl::Placement;

#[test]
fn the_loss_of_a_device_is_its_own() {
    in_own_process!();
    let config = Config { card: &MX330, others: vec![(&GTX1080, None)], ..Config::from_env().unwrap() };
    configure(config).unwrap();
    let devices = [0, 1].map(|ordinal| Device::virtual_gpu_number(ordinal).unwrap());
    let alone = devices.each_ref().map(|device| load(&Placement::one(device, 3)));
    let split = load(&Placement::split(&devices, &[2, 1], 0).unwrap());
    let expected = answer(&alone[0]).unwrap();
    assert_eq!([answer(&alone[1]), answer(&split)], [Ok(expected.clone()), Ok(expected.clone())]);

    faults::script("cuGraphLaunch#1:2=700!sticky").unwrap();
    let lost = |result| matches!(result, Err(Error::DeviceLost { code: 700, .. }));
    assert!(lost(answer(&split)), "in the middle of an answer");
    assert_eq!(answer(&alone[0]), Ok(expected.clone()), "beside it");
    assert!(lost(answer(&alone[1])) && lost(answer(&split)), "and ever after");
    let is_lost = |device: &Device| matches!(device, Device::Cuda(device) if device.is_lost());
    assert_eq!(devices.each_ref().map(is_lost), [false, true]);
    assert!(lost(devices[1].synchronize().map(|()| vec![])));
    drop((split, alone[0].session().unwrap()));
    assert_eq!(answer(&alone[0]), Ok(expected), "with memory of the lost one given back or left");
    assert_eq!(take_findings(), []);
}
