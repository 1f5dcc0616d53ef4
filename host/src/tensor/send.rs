//! Tensors that are sent from device to device.

use super::Tensor;
use super::storage::Storage;
use crate::cuda::CudaDevice;
use crate::memory::{InFlight, Link, Posted};
use crate::{Error, Result};
use std::sync::Arc;

impl Tensor {
    /// Queues a copy of this tensor's values to a contiguous tensor of the same type and shape at the other end of a link,
    /// whose storage is not shared. Both devices continue meanwhile.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Layout`] if the tensors do not match, [`Error::SharedOutput`], or as [`Link::send`].
    pub fn send(&self, link: &Link, target: &mut Tensor) -> Result<()> {
        if self.shape() != target.shape() || self.dtype() != target.dtype() {
            let expected = format!("{} {}, as the target", target.dtype(), target.shape());
            return Err(Error::Shape {
                op: "send",
                argument: "source",
                expected,
                found: self.shape().clone(),
            });
        }
        target.arrive(self.leave(link)?)
    }

    /// The first half of [`send`](Self::send), on this tensor's device.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn leave<'l>(&self, link: &'l Link) -> Result<InFlight<'l>> {
        if !self.is_contiguous() {
            return Err(Error::Layout { op: "send", argument: "source", needed: "contiguous" });
        }
        let (size, elements) = (self.dtype().size(), self.shape().elements());
        let at = self.layout.offset * size;
        match &*self.storage {
            Storage::Cuda(from) => link.leave(from, at, elements * size),
            Storage::Cpu(_) => Err(on_the_cpu()),
        }
    }

    /// The second half, into this tensor, which is of the same type and shape.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn arrive(&mut self, value: InFlight) -> Result<()> {
        if !self.is_contiguous() || self.layout.offset > 0 {
            return Err(Error::Layout { op: "send", argument: "target", needed: "contiguous" });
        }
        match Arc::get_mut(&mut self.storage) {
            Some(Storage::Cuda(to)) => value.arrive(to),
            Some(Storage::Cpu(_)) => Err(on_the_cpu()),
            None => Err(Error::SharedOutput { op: "send" }),
        }
    }
}

impl Tensor {
    /// The same memory as kernels of another device reach it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on the CPU.
    ///
    /// # Safety
    /// As [`DeviceBuffer::seen_from`](crate::memory::DeviceBuffer).
    pub(crate) unsafe fn seen_from(&self, device: &CudaDevice) -> Result<Self> {
        match &*self.storage {
            Storage::Cuda(buffer) => {
                // SAFETY: the caller's promise.
                let storage = Storage::Cuda(unsafe { buffer.seen_from(device) });
                Ok(Self { storage: Arc::new(storage), layout: self.layout.clone() })
            }
            Storage::Cpu(_) => Err(on_the_cpu()),
        }
    }

    /// Queues a copy of the elements, which are contiguous, to pinned memory; gives the tensor as a kernel of another device reads
    /// it there.
    ///
    /// # Errors
    /// As [`Posted::fill`].
    pub(crate) fn post(&self, place: &Arc<Posted>) -> Result<u64> {
        let (size, elements) = (self.dtype().size(), self.shape().elements());
        let at = self.layout.offset * size;
        match &*self.storage {
            Storage::Cuda(buffer) => place.fill(buffer, at, elements * size),
            Storage::Cpu(_) => Err(on_the_cpu()),
        }
    }
}

fn on_the_cpu() -> Error {
    Error::Unsupported {
        op: "send",
        argument: "tensor",
        value: "on the CPU".into(),
        reason: "a link is between two GPUs; `to_device` copies in all other cases".into(),
    }
}
