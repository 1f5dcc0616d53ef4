//! Counters by which kernels find the last of several blocks to finish.

use super::context::bind_ordinal;
use super::current::current;
use super::fault::check;
use crate::Result;
use cust::sys;

/// Words of device memory that are zero whenever a kernel on their stream begins. A kernel that uses a counter resets it,
/// and the kernels of one stream run one after another, captured ones included.
#[derive(Debug)]
pub(super) struct Counters {
    address: sys::CUdeviceptr,
    /// The device's ordinal.
    ordinal: Option<u32>,
}

impl Counters {
    /// Number of counters. Code that splits work over blocks to fill a device makes fewer groups than the device has block
    /// slots.
    pub const LEN: usize = 1024;

    /// Allocates counters in the current context; they are zero for work that is queued on `stream` from now on.
    pub fn new(stream: sys::CUstream) -> Result<Self> {
        let mut address = 0;
        // SAFETY: the caller has made a context current; `address` is written before it is used.
        let result = unsafe { sys::cuMemAlloc_v2(&mut address, Self::LEN * size_of::<u32>()) };
        check("cuMemAlloc", result)?;
        let counters = Self { address, ordinal: current() };
        // SAFETY: the memory holds LEN words; the stream belongs to the same context.
        check("cuMemsetD32Async", unsafe { sys::cuMemsetD32Async(address, 0, Self::LEN, stream) })?;
        Ok(counters)
    }

    /// The device address of the first counter.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        if bind_ordinal(self.ordinal).is_ok() {
            // SAFETY: allocated by `new` and freed once, after all work: the driver waits for the kernels that use it.
            // An error can't be reported from a drop; a fault of the device is remembered by `check`.
            let _ = check("cuMemFree", unsafe { sys::cuMemFree_v2(self.address) });
        }
    }
}
