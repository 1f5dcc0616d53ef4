//! Tensors that are passed from device to device.

use super::{Storage, Tensor};
use crate::memory::Link;
use crate::{Error, Result};

impl Tensor {
    /// Queues a copy of this tensor's values to a contiguous one of the same type and shape at the other end of a link, which
    /// nothing else refers to. Both devices go on meanwhile.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Layout`] if the tensors do not fit each other, [`Error::SharedOutput`], or as
    /// [`Link::send`].
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
        for (tensor, argument) in [(self, "source"), (&*target, "target")] {
            if !tensor.is_contiguous() || argument == "target" && tensor.layout.offset > 0 {
                return Err(Error::Layout { op: "send", argument, needed: "contiguous" });
            }
        }
        let (size, elements) = (self.dtype().size(), self.shape().elements());
        let at = if elements == 0 { 0 } else { self.layout.offset * size };
        let Some(into) = std::sync::Arc::get_mut(&mut target.storage) else {
            return Err(Error::SharedOutput { op: "send" });
        };
        match (&*self.storage, into) {
            (Storage::Cuda(from), Storage::Cuda(to)) => link.send(from, at, elements * size, to),
            _ => Err(Error::Unsupported {
                op: "send",
                argument: "tensor",
                value: "on the CPU".into(),
                reason: "a link is between two GPUs; `to_device` copies in all other cases".into(),
            }),
        }
    }
}
