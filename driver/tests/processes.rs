//! cust over the seam in processes of their own: with the machine's driver or without one, on a driver library
//! compiled here, and with faults from the environment.
//!
//! Each test starts this binary again on a test whose name begins with `child`; alone, those do nothing.

use std::env;
use std::process::{Command, Output};

use cust::context::Context;
use cust::device::Device;
use cust::error::CudaError;
use cust::{CudaFlags, init};
use pascaline_driver::{Backend, Failure, backend, faults, last_failure, library, real_devices};

#[cfg(target_os = "linux")]
#[path = "../../tests/all/common/extent.rs"]
mod extent;

const CHILD: &str = "PASCALINE_DRIVER_TEST_CHILD";

fn is_child() -> bool {
    env::var_os(CHILD).is_some()
}

/// Runs the test `name` of this binary in a new process.
fn run(name: &str, variables: &[(&str, &str)]) -> Output {
    Command::new(env::current_exe().expect("the path of this test"))
        .args(["--exact", name, "--nocapture"])
        .env_remove("PASCALINE_DEVICE")
        .env_remove("PASCALINE_FAULTS")
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .output()
        .expect("this test, started again")
}

fn passes(name: &str, variables: &[(&str, &str)]) -> Output {
    let output = run(name, variables);
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{name}: {text}");
    output
}

#[test]
fn errors_print() {
    for error in [CudaError::NoDevice, CudaError::IllegalAddress, CudaError::UnknownError] {
        assert!(error.to_string().len() > 4, "{error:?} prints as {error}");
    }
}

#[test]
fn starts_and_answers_whether_there_is_a_driver_or_not() {
    passes("child_on_this_machine", &[]);
}

#[test]
fn child_on_this_machine() {
    if !is_child() {
        return;
    }
    assert_eq!(backend(), None, "nothing touched the driver before the first call");
    let result = init(CudaFlags::empty());
    assert_eq!(backend(), Some(Backend::Real), "the default is never the virtual GPU");
    let status = library();
    if let Some(path) = status.loaded() {
        println!("the driver-less half is skipped: this machine has {path}, which answers {result:?}");
        return;
    }
    assert_eq!(result, Err(CudaError::NoDevice));
    assert_eq!(last_failure(), Some(Failure { function: "cuInit", code: 100 }));
    assert_eq!(Device::num_devices(), Err(CudaError::NoDevice));
    assert_eq!(Device::get_device(0).err(), Some(CudaError::NoDevice));
    assert!(!status.attempts.is_empty());
    for attempt in &status.attempts {
        let reason = attempt.error.as_deref().unwrap_or_default();
        assert!(!reason.is_empty(), "{} gives no reason", attempt.path);
    }
}

#[test]
fn faults_come_from_the_environment() {
    passes("child_under_faults", &[("PASCALINE_FAULTS", "cuInit:2=46,cuInit:1=802")]);
    let output = passes("child_under_a_misspelt_script", &[("PASCALINE_FAULTS", "cuInnit:1=802")]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("PASCALINE_FAULTS: fault rule \"cuInnit:1=802\""), "{stderr}");
}

#[test]
fn child_under_faults() {
    if !is_child() {
        return;
    }
    assert_eq!(init(CudaFlags::empty()), Err(CudaError::UnknownError), "cust folds 802");
    assert_eq!(last_failure(), Some(Failure { function: "cuInit", code: 802 }));
    assert_eq!(init(CudaFlags::empty()), Err(CudaError::UnknownError));
    assert_eq!(last_failure(), Some(Failure { function: "cuInit", code: 46 }));
    faults::clear();
    let _ = init(CudaFlags::empty());
    assert!(last_failure().is_none_or(|failure| failure.code != 46) || library().loaded().is_some());
}

#[test]
fn child_under_a_misspelt_script() {
    if !is_child() {
        return;
    }
    assert_eq!(init(CudaFlags::empty()), Err(CudaError::InvalidValue));
    assert_eq!(init(CudaFlags::empty()), Err(CudaError::InvalidValue));
}

#[cfg(target_os = "linux")]
mod loaded {
    use std::io;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_driver_library_is_found_and_used() {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let built = Command::new("rustc")
            .args(["--edition=2024", "--crate-type=cdylib", "-o"])
            .arg(folder.join("libcuda.so.1"))
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/toy/libcuda.rs"))
            .status();
        if built.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return extent::skipped("the toy driver (no rustc on this machine to build it)");
        }
        assert!(built.is_ok_and(|status| status.success()), "rustc builds the toy driver");
        passes("loaded::child_on_the_toy_driver", &[("LD_LIBRARY_PATH", env!("CARGO_TARGET_TMPDIR"))]);
    }

    #[test]
    fn child_on_the_toy_driver() {
        if !is_child() {
            return;
        }
        assert_eq!(real_devices(), Ok(2));
        assert_eq!(backend(), None, "looking selects nothing");
        assert_eq!(init(CudaFlags::empty()), Ok(()));
        assert_eq!(library().loaded(), Some("libcuda.so.1"));
        assert_eq!(Device::num_devices(), Ok(2));
        let device = Device::get_device(1).expect("the toy driver's second device");
        assert_eq!(Context::new(device).err(), Some(CudaError::UnknownError));
        assert_eq!(last_failure(), Some(Failure { function: "cuDevicePrimaryCtxRetain", code: 46 }));
        assert_eq!(device.name().err(), Some(CudaError::NotSupported));
        assert_eq!(last_failure(), Some(Failure { function: "cuDeviceGetName", code: 801 }));
    }

    #[test]
    fn the_environment_can_ask_for_the_virtual_gpu() {
        passes("loaded::child_on_the_virtual_gpu", &[("PASCALINE_DEVICE", "virtual")]);
    }

    #[test]
    fn child_on_the_virtual_gpu() {
        if !is_child() {
            return;
        }
        let _ = init(CudaFlags::empty());
        assert_eq!(backend(), Some(Backend::Virtual));
    }
}
