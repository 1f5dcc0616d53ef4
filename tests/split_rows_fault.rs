//! The loss of one of two devices that share each layer: what runs on both ends with an error, what runs on the other goes on.

#![cfg(feature = "virtual-gpu")]

#[path = "common/lost_device.rs"]
mod lost_device;

use lost_device::{answer, load};
use pascaline::{Device, Error};
use pascaline_driver::faults;
use pascaline_virtual_gpu::{Config, GTX1080, MX330, configure, take_findings};
use qwen3_vl::Placement;

#[test]
fn the_loss_of_a_part_ends_the_answer() {
    let config = Config { card: &MX330, others: vec![(&GTX1080, None)], ..Config::from_env().unwrap() };
    configure(config).unwrap();
    let devices = [0, 1].map(|ordinal| Device::virtual_gpu_number(ordinal).unwrap());
    let alone = load(&Placement::one(&devices[0], 3));
    let shared = load(&Placement::rows(&devices, 3, 0).unwrap());
    let expected = answer(&alone).unwrap();
    assert_eq!(answer(&shared), Ok(expected.clone()));

    faults::script("cuLaunchKernel#1:60=700!sticky").unwrap();
    let lost = |result| matches!(result, Err(Error::DeviceLost { code: 700, .. }));
    assert!(lost(answer(&shared)), "in the middle of an answer");
    assert_eq!(answer(&alone), Ok(expected.clone()), "beside it");
    assert!(lost(answer(&shared)), "and ever after");
    let is_lost = |device: &Device| matches!(device, Device::Cuda(device) if device.is_lost());
    assert_eq!(devices.each_ref().map(is_lost), [false, true]);
    drop(shared);
    assert_eq!(answer(&alone), Ok(expected), "with memory of the lost one given back or left");
    assert_eq!(take_findings(), []);
}
