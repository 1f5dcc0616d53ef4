//! The loss of one of two devices that share each layer: what runs on both ends with an error, what runs on the other goes on. One is
//! lost while a pass is launched, another between replays of a captured one.

use crate::common::process::in_own_process;
use crate::common::several::{answer, load};
use pascaline::{Device, Error};
use pascaline_driver::faults;
use pascaline_virtual_gpu::{Config, GTX1080, MX330, configure, take_findings};
use qwen3_vl::Placement;

#[test]
fn the_loss_of_a_part_ends_the_answer() {
    in_own_process!();
    let config = Config {
        card: &MX330,
        others: vec![(&GTX1080, None), (&GTX1080, None)],
        ..Config::from_env().unwrap()
    };
    configure(config).unwrap();
    let devices = [0, 1, 2].map(|ordinal| Device::virtual_gpu_number(ordinal).unwrap());
    let alone = load(&Placement::one(&devices[0], 3));
    let [shared, captured] = [1, 2].map(|other| {
        let both = [devices[0].clone(), devices[other].clone()];
        load(&Placement::rows(&both, 3, 0).unwrap())
    });
    let expected = answer(&alone).unwrap();
    assert_eq!(answer(&shared), Ok(expected.clone()));
    assert_eq!(answer(&captured), Ok(expected.clone()));

    faults::script("cuLaunchKernel#1:60=700!sticky").unwrap();
    let lost = |result| matches!(result, Err(Error::DeviceLost { code: 700, .. }));
    assert!(lost(answer(&shared)), "in the middle of an answer");
    assert_eq!(answer(&alone), Ok(expected.clone()), "beside it");
    assert!(lost(answer(&shared)), "and ever after");
    let is_lost = |device: &Device| matches!(device, Device::Cuda(device) if device.is_lost());
    assert_eq!(devices.each_ref().map(is_lost), [false, true, false]);
    drop(shared);
    assert_eq!(answer(&captured), Ok(expected.clone()), "with another one");

    // its stream is waited for after the prompt, three times before the capture and after each of the five replays
    faults::script("cuStreamSynchronize#2:7=700!sticky").unwrap();
    faults::count_calls(true);
    assert!(lost(answer(&captured)), "between two replays");
    assert!((2..5).contains(&faults::calls("cuGraphLaunch")), "{}", faults::calls("cuGraphLaunch"));
    assert!(lost(answer(&captured)), "and ever after");
    assert_eq!(devices.each_ref().map(is_lost), [false, true, true]);
    drop(captured);
    assert_eq!(answer(&alone), Ok(expected), "with memory of the lost one given back or left");
    assert_eq!(take_findings(), []);
}
