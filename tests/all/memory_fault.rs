//! After a device fault nothing is asked of the driver any more, by the pool least of all. In a process of its own,
//! because a fault is permanent.

use crate::common::process::in_own_process;
use pascaline::memory::{self, DeviceBuffer, PinnedBuffer};
use pascaline::{Device, Error};
use pascaline_driver::faults;

#[test]
fn after_a_fault_no_driver_call_is_made() {
    in_own_process!();
    let Device::Cuda(device) = Device::virtual_gpu().unwrap() else { unreachable!("the virtual GPU") };
    let other = device.with_new_stream().unwrap();
    let buffer = DeviceBuffer::uninitialized(&device, 1 << 20).unwrap();
    let shared = DeviceBuffer::uninitialized(&other, 1 << 20).unwrap();
    let pinned = PinnedBuffer::new(&device, 1000).unwrap();
    shared.used_on(&device).unwrap();
    faults::script("cuStreamSynchronize:1=700").unwrap();
    assert!(matches!(device.synchronize(), Err(Error::DeviceLost { code: 700, .. })));
    faults::clear();
    faults::count_calls(true);
    let pool = memory::pool(&device).unwrap();
    assert!(matches!(DeviceBuffer::uninitialized(&device, 1 << 20), Err(Error::DeviceLost { .. })));
    assert!(matches!(pool.trim(), Err(Error::DeviceLost { .. })));
    drop((buffer, shared, pinned, other));
    assert_eq!(pool.statistics().live, 0);
    for call in [
        "cuMemAlloc",
        "cuMemFree",
        "cuMemAllocFromPoolAsync",
        "cuMemFreeAsync",
        "cuMemFreeHost",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventDestroy",
        "cuStreamWaitEvent",
        "cuStreamSynchronize",
        "cuStreamDestroy",
        "cuMemPoolTrimTo",
        "cuCtxSetCurrent",
        "cuMemGetInfo",
    ] {
        assert_eq!(faults::calls(call), 0, "{call}");
    }
}
