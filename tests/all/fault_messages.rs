//! Errors after faults of the driver: they name the call that failed and its code, and do not guess. In a process of its own,
//! as the last fault is permanent.

use crate::common::process::in_own_process;
use pascaline::cuda::CudaDevice;
use pascaline::memory::DeviceBuffer;
use pascaline::{Device, Error};
use pascaline_driver::faults;

const PTX: &str = ".version 6.4\n.target sm_61\n.address_size 64\n.visible .entry here() { ret; }\n";

#[test]
fn errors_name_the_fault() {
    in_own_process!();
    let Device::Cuda(device) = Device::virtual_gpu().unwrap() else { unreachable!("the virtual GPU") };
    // what a device is, asked again
    for call in 1..=4 {
        faults::script(&format!("cuDeviceGetAttribute:{call}=999")).unwrap();
        let error = CudaDevice::properties_of(0).unwrap_err().to_string();
        assert!(error.contains("cuDeviceGetAttribute failed") && error.contains("(999)"), "{call}: {error}");
    }
    faults::script("cuDeviceGetAttribute:1+=1").unwrap();
    assert!(CudaDevice::properties_of(0).is_ok(), "attributes that a driver does not know are 0");
    faults::clear();

    let module = device.load_ptx(PTX).unwrap();
    let missing = module.get_function("nowhere").map(drop);
    assert!(
        matches!(&missing, Err(Error::ModuleLoad { code: 500, log }) if log.contains("the PTX has no such kernel")),
        "{missing:?}"
    );
    for code in [2, 304, 999] {
        faults::script(&format!("cuModuleGetFunction:1={code}")).unwrap();
        match module.get_function("here").map(drop) {
            Err(Error::Driver { call: "cuModuleGetFunction", code: found, .. }) => assert_eq!(found, code),
            other => panic!("{code}: {other:?}"),
        }
    }
    faults::clear();
    module.get_function("here").unwrap();

    // the code of the fault itself, also from what is asked after it
    faults::script("cuMemGetInfo:1=700").unwrap();
    let first = device.memory_info();
    assert!(matches!(first, Err(Error::DeviceLost { call: "cuMemGetInfo", code: 700, .. })), "{first:?}");
    faults::clear();
    for later in [
        device.memory_info().map(drop),
        device.synchronize(),
        DeviceBuffer::uninitialized(&device, 1).map(drop),
    ] {
        assert!(matches!(later, Err(Error::DeviceLost { call: "cuMemGetInfo", code: 700, .. })), "{later:?}");
    }
    let sentence = device.synchronize().unwrap_err().to_string();
    assert!(sentence.contains("cuMemGetInfo") && sentence.contains("(700)"), "{sentence}");
}
