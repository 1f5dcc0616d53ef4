//! Tensors over memory that belongs to another library.

use super::Tensor;
use super::layout::Layout;
use super::storage::{CpuBuffer, ForeignBytes, Storage};
use crate::cuda::{CudaDevice, count_host_bytes};
use crate::memory::{DeviceBuffer, PinnedBuffer, SharedHost};
use crate::{DType, Device, Element, Error, Result, Shape};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

impl Tensor {
    /// A tensor over memory of another library; nothing is copied. `address` is that of the first element; strides are in
    /// elements. `owner` is dropped with the last tensor that shares the memory. On a GPU, work that was queued before may
    /// still be running then.
    ///
    /// ```
    /// use pascaline::{DType, Device, Tensor, ops};
    /// use std::sync::Arc;
    /// let values = Arc::new([1.0f32, 2.0, 3.0, 4.0]);
    /// let (address, owner) = (values.as_ptr() as u64, Box::new(Arc::clone(&values)));
    /// // SAFETY: four elements in host memory, which lives as long as the owner and which nobody writes.
    /// let x = unsafe { Tensor::from_foreign(address, [2, 2], &[1, 2], DType::F32, &Device::Cpu, owner) }?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
    /// assert_eq!(x.as_slice::<f32>().map(<[f32]>::as_ptr), Some(values.as_ptr()));
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::TooLarge`] if shape and strides exceed the address space; [`Error::Unsupported`] if the number of strides is
    /// not that of dimensions, or the address is 0 or not a multiple of the element's size.
    ///
    /// # Safety
    /// * Every element that shape and strides reach is initialised memory that is valid until `owner` is dropped: host memory for
    ///   [`Device::Cpu`]; otherwise memory of that device, valid in the order of its stream.
    /// * While an op reads the tensor nobody writes the memory. While an op writes it nobody else uses it, and no two of its
    ///   elements have the same address.
    pub unsafe fn from_foreign(
        address: u64,
        shape: impl Into<Shape>,
        strides: &[usize],
        dtype: DType,
        device: &Device,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        let layout = layout(address, shape.into(), strides, dtype)?;
        let bytes = layout.span() * dtype.size();
        let storage = match device {
            Device::Cpu => {
                // An empty slice is aligned too.
                let start = NonNull::new(address as *mut u8).filter(|_| bytes > 0);
                let start = start.unwrap_or(NonNull::<u64>::dangling().cast());
                // SAFETY: this function's contract, for as many bytes as the layout spans.
                Storage::Cpu(CpuBuffer::Foreign(unsafe { ForeignBytes::new(start, bytes, owner) }))
            }
            Device::Cuda(cuda) => {
                // SAFETY: this function's contract, for as many bytes as the layout spans.
                Storage::Cuda(unsafe { DeviceBuffer::foreign(cuda, address, bytes, owner) })
            }
        };
        Ok(Self { storage: Arc::new(storage), layout })
    }

    /// The same values in pinned host memory, where the kernels of its GPU read them over the bus: for tables of which few rows
    /// are read at a time. They take no memory of the GPU. On the CPU the tensor itself.
    ///
    /// ```
    /// # #[cfg(feature = "virtual-gpu")] {
    /// use pascaline::{Device, Tensor, ops};
    /// let gpu = Device::virtual_gpu()?;
    /// let table = Tensor::from_slice(&[0.0f32, 1.0, 10.0, 11.0], [2, 2], &gpu)?.in_host_memory()?;
    /// let ids = Tensor::from_slice(&[1u32], [1], &gpu)?;
    /// assert_eq!(ops::embedding(&table, &ids)?.to_vec::<f32>()?, [10.0, 11.0]);
    /// # }
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Layout`] if it is not contiguous, or a driver error.
    pub fn in_host_memory(&self) -> Result<Self> {
        let Storage::Cuda(buffer) = &*self.storage else { return Ok(self.clone()) };
        if !self.is_contiguous() {
            return Err(Error::Layout { op: "in_host_memory", argument: "x", needed: "contiguous" });
        }
        let (shape, dtype) = (self.shape().clone(), self.dtype());
        if buffer.device().is_planned() {
            return self.counted_in_host_memory(buffer.device());
        }
        let mut host = PinnedBuffer::new(buffer.device(), shape.elements() * dtype.size())?;
        self.read_bytes(&mut host)?;
        let storage = Storage::Cuda(DeviceBuffer::in_host_memory(buffer.device(), host));
        Ok(Self { storage: Arc::new(storage), layout: Layout::contiguous(dtype, shape)? })
    }

    /// The same in a plan: without memory.
    fn counted_in_host_memory(&self, device: &CudaDevice) -> Result<Self> {
        let bytes = self.shape().elements() * self.dtype().size();
        count_host_bytes(bytes);
        let owner = Box::new(());
        // SAFETY: a plan's device reads nothing at an address.
        let buffer = unsafe { DeviceBuffer::foreign(device, 256, bytes, owner) };
        let layout = Layout::contiguous(self.dtype(), self.shape().clone())?;
        Ok(Self { storage: Arc::new(Storage::Cuda(buffer)), layout })
    }

    /// All of shared host memory as u32, for the CPU or for kernels of one of its readers. Its size is a multiple of 4.
    pub(crate) fn of_shared(host: &SharedHost, device: &Device) -> Result<Self> {
        let layout = Layout::contiguous(DType::U32, [host.len() / DType::U32.size()].into())?;
        let storage = match device {
            Device::Cuda(device) => Storage::Cuda(host.seen_from(device)),
            Device::Cpu => {
                let start =
                    NonNull::new(host.address() as *mut u8).unwrap_or(NonNull::<u64>::dangling().cast());
                // SAFETY: the owner keeps the memory, which nobody writes; `bytes_mut` is for tensors without views, and `within` makes
                // views.
                let memory = unsafe { ForeignBytes::new(start, host.len(), Box::new(host.clone())) };
                Storage::Cpu(CpuBuffer::Foreign(memory))
            }
        };
        Ok(Self { storage: Arc::new(storage), layout })
    }

    /// Records that work queued so far on another stream of the device uses the tensor's memory, so that it is not reused
    /// before that work is done. On the CPU it does nothing.
    ///
    /// # Errors
    /// A driver error.
    pub fn used_on(&self, device: &CudaDevice) -> Result<()> {
        match &*self.storage {
            Storage::Cpu(_) => Ok(()),
            Storage::Cuda(buffer) => buffer.used_on(device),
        }
    }

    /// The elements in host memory from the first on, in storage order: element [i, j, …] is number i·strides\[0\] +
    /// j·strides\[1\] + …. `None` on a GPU, or if the elements are not of type `T`.
    ///
    /// ```
    /// use pascaline::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::Cpu)?;
    /// let transposed = x.swap_dims(0, 1)?; // a view
    /// assert_eq!(transposed.as_slice::<f32>(), Some(&[1.0, 2.0, 3.0, 4.0][..]));
    /// # Ok::<(), pascaline::Error>(())
    /// ```
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        self.cpu::<T>()
    }
}

/// The layout, if all elements are within the address space and aligned for kernels.
fn layout(address: u64, shape: Shape, strides: &[usize], dtype: DType) -> Result<Layout> {
    const OP: &str = "from_foreign";
    let unsupported =
        |argument, value: String, reason: String| Err(Error::Unsupported { op: OP, argument, value, reason });
    if strides.len() != shape.rank() {
        let reason = format!("the shape has {} dimensions", shape.rank());
        return unsupported("strides", format!("{strides:?}"), reason);
    }
    let mut layout = Layout::contiguous(dtype, shape)?;
    if layout.shape.elements() == 0 {
        return Ok(layout);
    }
    let last = layout.shape.dims().iter().zip(strides).try_fold(0usize, |last, (&size, &stride)| {
        (size - 1).checked_mul(stride).and_then(|reach| last.checked_add(reach))
    });
    let end = last.and_then(|last| last.checked_add(1)?.checked_mul(dtype.size()));
    let limit = (isize::MAX as usize).checked_sub(address as usize);
    if end.zip(limit).is_none_or(|(end, limit)| end > limit) {
        let limit = (isize::MAX as usize / dtype.size()) as u128;
        let elements = last.map_or(u128::MAX, |last| last as u128 + 1);
        return Err(Error::TooLarge { op: OP, argument: "strides", elements, limit });
    }
    if address == 0 || !address.is_multiple_of(dtype.size() as u64) {
        let reason = format!("elements of {dtype} are aligned to multiples of {} bytes", dtype.size());
        return unsupported("address", format!("{address:#x}"), reason);
    }
    layout.strides = strides.to_vec();
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::device_tests::{cuda_device, turn};
    use crate::ops;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts its drops.
    struct Owner(Arc<AtomicUsize>);

    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A tensor over the memory of `source`, and the number of drops of its owner.
    fn over(source: &Tensor, address: u64) -> (Tensor, Arc<AtomicUsize>) {
        let drops = Arc::new(AtomicUsize::new(0));
        let owner = Box::new((Owner(Arc::clone(&drops)), source.clone()));
        let (shape, device) = (source.shape(), source.device());
        // SAFETY: all elements of a tensor that lives as long as the owner, and that nobody writes.
        let x = unsafe { Tensor::from_foreign(address, shape, source.strides(), DType::F32, &device, owner) };
        (x.unwrap(), drops)
    }

    fn used_and_dropped_once(source: &Tensor, address: u64) {
        let (x, drops) = over(source, address);
        let view = x.narrow(0, 1, 1).unwrap();
        drop(x);
        assert_eq!(drops.load(Ordering::SeqCst), 0, "a view still uses it");
        assert_eq!(ops::scale(&view, 2.0).unwrap().to_vec::<f32>().unwrap(), [6.0, 8.0]);
        drop(view);
        assert_eq!(drops.load(Ordering::SeqCst), 1);
        assert_eq!(source.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0], "the memory stays its owner's");
    }

    #[test]
    fn host_memory_is_used_in_place() {
        let source = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::Cpu).unwrap();
        used_and_dropped_once(&source, source.as_slice::<f32>().unwrap().as_ptr() as u64);
    }

    #[test]
    fn device_memory_is_used_in_place() {
        let _turn = turn();
        let device = Device::Cuda(cuda_device());
        let source = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &device).unwrap();
        used_and_dropped_once(&source, source.address());

        let (mut x, _) = over(&Tensor::zeros([2, 2], DType::F32, &device).unwrap(), source.address());
        ops::scale_into(
            x.view_mut().unwrap(),
            &source.to_device(&Device::Cpu).unwrap().to_device(&device).unwrap(),
            3.0,
        )
        .unwrap();
        assert_eq!(source.to_vec::<f32>().unwrap(), [3.0, 6.0, 9.0, 12.0], "written through");
    }

    #[test]
    fn what_cannot_be_memory_is_refused() {
        let make = |address, shape: &[usize], strides: &[usize]| {
            // SAFETY: nothing is read; each call fails or has no elements.
            unsafe { Tensor::from_foreign(address, shape, strides, DType::F32, &Device::Cpu, Box::new(())) }
        };
        assert!(matches!(make(16, &[2], &[1, 1]), Err(Error::Unsupported { argument: "strides", .. })));
        assert!(matches!(make(0, &[2], &[1]), Err(Error::Unsupported { argument: "address", .. })));
        assert!(matches!(make(18, &[2], &[1]), Err(Error::Unsupported { argument: "address", .. })));
        for strides in [[usize::MAX, 1], [usize::MAX / 8, 1]] {
            assert!(matches!(make(16, &[3, 3], &strides), Err(Error::TooLarge { .. })));
        }
        let empty = make(0, &[0, 3], &[usize::MAX, 1]).unwrap();
        assert!(empty.to_vec::<f32>().unwrap().is_empty());
    }
}
