//! Shared by the tests: the CUDA device to run on.

pub mod extent;
pub mod process;
pub mod refused;
pub mod several;
pub mod small_model;

use pascaline::Device;
use std::env;
use std::io::{self, Write};
use std::sync::OnceLock;

/// The CUDA device of this process: the first real one, or else the virtual GPU, and says which.
///
/// With `REQUIRE_GPU=1` in the environment a missing real one is a failure; `PASCALINE_DEVICE=virtual` asks for the
/// virtual GPU where there is one.
pub fn cuda_device() -> Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(choose).clone()
}

fn choose() -> Device {
    let wanted = |variable: &str, value: &str| env::var_os(variable).is_some_and(|found| found == value);
    let real = match pascaline_driver::real_devices() {
        Ok(0) => Err("the driver sees no device".to_owned()),
        Ok(_) => Ok(()),
        Err(code) => Err(pascaline_driver::code_text(code).to_owned()),
    };
    if wanted("REQUIRE_GPU", "1") {
        real.as_ref().expect("REQUIRE_GPU=1 asks for a real GPU");
    }
    let device = match real {
        Ok(()) if !wanted("PASCALINE_DEVICE", "virtual") => Device::cuda(0),
        _ => Device::virtual_gpu(),
    };
    let device = device.expect("a CUDA device, real or virtual");
    say(&format!("CUDA tests run on {device}"));
    device
}

/// Prints past the test harness, which shows nothing of tests that pass.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
