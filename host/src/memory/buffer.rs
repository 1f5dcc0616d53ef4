//! A block of device memory, allocated and freed in the order of a stream.

use crate::cuda::{CudaDevice, check, is_lost};
use crate::{Error, Result};
use cust::sys;
use std::ffi::c_void;

/// Device memory that belongs to one stream: it may be used by work queued on it from the allocation on, and is
/// freed behind all work queued before the drop. Zero bytes have no memory and address 0.
///
/// Where the device has memory pools this is `cuMemAllocAsync` and `cuMemFreeAsync`; else `cuMemAlloc` and
/// `cuMemFree`, which waits for the device.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: CudaDevice,
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    /// Memory with undefined contents, 256-byte aligned.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or another driver error.
    pub fn uninitialized(device: &CudaDevice, bytes: usize) -> Result<Self> {
        let mut buffer = Self { device: device.clone(), address: 0, bytes };
        if bytes == 0 {
            return Ok(buffer);
        }
        device.bind()?;
        let address = &mut buffer.address;
        // SAFETY: the context is current and the stream lives; `address` is written before it is used.
        let result = match device.properties().memory_pools {
            true => check("cuMemAllocAsync", unsafe {
                sys::cuMemAllocAsync(address, bytes, device.stream().raw())
            }),
            // SAFETY: as above.
            false => check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(address, bytes) }),
        };
        match result {
            Ok(()) => Ok(buffer),
            Err(error) => {
                buffer.address = 0; // nothing to free, whatever the failed call wrote
                let out_of_memory = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32;
                if !matches!(error, Error::Driver { code, .. } if code == out_of_memory) {
                    return Err(error);
                }
                let (free, total) = device.memory_info()?;
                let device = device.properties().name.clone();
                Err(Error::OutOfMemory { device, requested: bytes, free, total })
            }
        }
    }

    /// The device and stream it belongs to.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The device address of its first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies host bytes to `offset`; when it returns the source may be changed.
    ///
    /// # Errors
    /// A driver error, or [`Error::Unsupported`] if the range is outside.
    pub fn upload(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let address = self.range("upload", offset, source.len())?;
        if source.is_empty() {
            return Ok(());
        }
        self.device.bind()?;
        let from = source.as_ptr().cast::<c_void>();
        // SAFETY: the range is inside this buffer (checked above). The source is pageable memory, which the driver
        // has copied away when the call returns.
        let result =
            unsafe { sys::cuMemcpyHtoDAsync_v2(address, from, source.len(), self.device.stream().raw()) };
        check("cuMemcpyHtoDAsync", result)?;
        // A driver may still read the source when the call returns (large copies are staged), so wait for it.
        self.device.synchronize()
    }

    /// Waits for all work queued on the stream, then copies from `offset` to host memory.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if a kernel on the stream faulted, another driver error, or [`Error::Unsupported`] if
    /// the range is outside.
    pub fn download(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let address = self.range("download", offset, target.len())?;
        if target.is_empty() {
            return self.device.synchronize();
        }
        self.device.bind()?;
        let to = target.as_mut_ptr().cast::<c_void>();
        // SAFETY: the range is inside this buffer (checked above), and `target` is not touched before the
        // synchronisation below.
        let result =
            unsafe { sys::cuMemcpyDtoHAsync_v2(to, address, target.len(), self.device.stream().raw()) };
        check("cuMemcpyDtoHAsync", result)?;
        self.device.synchronize()
    }

    /// Queues a copy of `bytes` bytes of another buffer on this buffer's stream.
    ///
    /// The caller orders it behind the work that wrote the source, if that is on another stream.
    ///
    /// # Errors
    /// A driver error, or [`Error::Unsupported`] if a range is outside.
    pub fn copy_from(&mut self, offset: usize, source: &DeviceBuffer, at: usize, bytes: usize) -> Result<()> {
        let to = self.range("copy", offset, bytes)?;
        let from = source.range("copy", at, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: both ranges are inside their buffers (checked above); the buffers are different allocations, and
        // freeing either is ordered behind this copy on its stream.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.device.stream().raw()) };
        check("cuMemcpyDtoDAsync", result)
    }

    /// Queues setting every byte.
    ///
    /// # Errors
    /// A driver error.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        // SAFETY: the range is the whole buffer.
        let result =
            unsafe { sys::cuMemsetD8Async(self.address, byte, self.bytes, self.device.stream().raw()) };
        check("cuMemsetD8Async", result)
    }

    fn range(&self, op: &'static str, offset: usize, bytes: usize) -> Result<u64> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + offset as u64),
            _ => Err(Error::Unsupported {
                op,
                argument: "range",
                value: format!("{bytes} bytes at {offset}"),
                reason: format!("the buffer has {} bytes", self.bytes),
            }),
        }
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // After a fault no driver call is made; the memory goes with the process.
        if self.address == 0 || is_lost() || self.device.bind().is_err() {
            return;
        }
        // SAFETY: allocated by `uninitialized` by the same means and freed once. With pools the free is ordered
        // behind all work queued on the stream; without, the call waits for the device. An error can't be reported
        // from a drop; a sticky one is reported by the next call.
        unsafe {
            let _ = match self.device.properties().memory_pools {
                true => sys::cuMemFreeAsync(self.address, self.device.stream().raw()),
                false => sys::cuMemFree_v2(self.address),
            };
        }
    }
}
