//! Tensors: shape, strides, element type, and shared storage on a device.

mod construct;
mod foreign;
mod layout;
mod send;
mod storage;

pub(crate) use layout::Layout;

use crate::cuda::{DevicePtr, DevicePtrMut};
use crate::memory::{DeviceBuffer, Download};
use crate::{DType, Device, Element, Error, Result, Shape};
use std::fmt;
use std::sync::Arc;
use storage::Storage;

/// The most elements of a tensor in an op: kernels index with 32 bits.
pub const MAX_ELEMENTS: usize = i32::MAX as usize;

/// An array on a device. Clones and views share storage; a tensor that shares its storage can't be written.
///
/// ```
/// use pascaline::{Device, Tensor};
/// let mut x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], &Device::Cpu)?;
/// let column = x.narrow(1, 2, 1)?; // a view: nothing is copied
/// assert_eq!((column.dims(), column.strides()), (&[2, 1][..], &[3, 1][..]));
/// assert_eq!(column.to_vec::<f32>()?, [3.0, 6.0]);
/// assert!(x.view_mut().is_err()); // the view shares the storage
/// drop(column);
/// x.view_mut()?.narrow(0, 0, 1)?.write(&[7.0f32, 8.0, 9.0])?;
/// assert_eq!(x.swap_dims(0, 1)?.to_vec::<f32>()?, [7.0, 4.0, 8.0, 5.0, 9.0, 6.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    layout: Layout,
}

impl Tensor {
    /// A tensor with undefined contents (zeros on the CPU), for an op to write.
    ///
    /// # Errors
    /// [`Error::TooLarge`] if the size in bytes overflows, [`Error::OutOfMemory`].
    #[track_caller]
    pub fn uninitialized(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Self> {
        let layout = Layout::contiguous(dtype, shape.into())?;
        let storage = Storage::uninitialized(device, dtype, layout.shape.elements())?;
        Ok(Self { storage: Arc::new(storage), layout })
    }

    /// A tensor of zeros.
    ///
    /// # Errors
    /// As [`uninitialized`](Self::uninitialized).
    #[track_caller]
    pub fn zeros(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Self> {
        let layout = Layout::contiguous(dtype, shape.into())?;
        let mut storage = Storage::uninitialized(device, dtype, layout.shape.elements())?;
        if let Storage::Cuda(buffer) = &mut storage {
            buffer.fill(0)?;
        }
        Ok(Self { storage: Arc::new(storage), layout })
    }

    /// A tensor with these elements in row-major order.
    ///
    /// # Errors
    /// [`Error::Shape`] if their number is not the shape's, and as [`uninitialized`](Self::uninitialized).
    #[track_caller]
    pub fn from_slice<T: Element>(values: &[T], shape: impl Into<Shape>, device: &Device) -> Result<Self> {
        let layout = Layout::contiguous(T::DTYPE, shape.into())?;
        if layout.shape.elements() != values.len() {
            let expected = format!("{} elements", values.len());
            return Err(Error::Shape { op: "from_slice", argument: "shape", expected, found: layout.shape });
        }
        let mut storage = Storage::uninitialized(device, T::DTYPE, values.len())?;
        match &mut storage {
            Storage::Cpu(buffer) => buffer.bytes_mut().copy_from_slice(bytemuck::cast_slice(values)),
            Storage::Cuda(buffer) => buffer.upload(0, bytemuck::cast_slice(values))?,
        }
        Ok(Self { storage: Arc::new(storage), layout })
    }

    /// The elements in row-major order. On a GPU this waits for the work queued so far, and reports its errors.
    ///
    /// # Errors
    /// [`Error::DType`] if the elements are not of type `T`, [`Error::DeviceLost`] if a kernel faulted.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if self.layout.dtype != T::DTYPE {
            let expected = T::DTYPE.to_string();
            return Err(Error::DType {
                op: "to_vec",
                argument: "tensor",
                expected,
                found: self.layout.dtype,
            });
        }
        if !self.is_contiguous() {
            return self.contiguous()?.to_vec();
        }
        let (offset, elements) = (self.layout.offset, self.shape().elements());
        match &*self.storage {
            Storage::Cpu(buffer) => {
                Ok(bytemuck::cast_slice::<u8, T>(buffer.bytes())[offset..offset + elements].to_vec())
            }
            Storage::Cuda(_) => {
                let mut values = vec![T::zeroed(); elements];
                self.read_bytes(bytemuck::cast_slice_mut(&mut values))?;
                Ok(values)
            }
        }
    }

    /// Copies the elements' bytes in row-major order to `target`, which has their length. For contiguous tensors.
    pub(crate) fn read_bytes(&self, target: &mut [u8]) -> Result<()> {
        let offset = self.layout.offset * self.layout.dtype.size();
        match &*self.storage {
            Storage::Cpu(buffer) => target.copy_from_slice(&buffer.bytes()[offset..offset + target.len()]),
            Storage::Cuda(buffer) => buffer.download(offset, target)?,
        }
        Ok(())
    }

    /// Queues a copy of its bytes to pinned memory; `None` if it is not on a GPU. It is contiguous.
    pub(crate) fn download_async(&self) -> Result<Option<Download>> {
        let Storage::Cuda(buffer) = &*self.storage else { return Ok(None) };
        let size = self.dtype().size();
        buffer.download_async(self.layout.offset * size, self.shape().elements() * size).map(Some)
    }

    /// Tensors of one stream in host memory, after one wait for the work that it has.
    pub(crate) fn to_cpu(tensors: &[&Self]) -> Result<Vec<Self>> {
        let tensors: Vec<Self> = tensors.iter().map(|tensor| tensor.contiguous()).collect::<Result<_>>()?;
        let downloads: Vec<_> =
            tensors.iter().map(|tensor| tensor.download_async()).collect::<Result<_>>()?;
        if let Some(Device::Cuda(device)) = tensors.first().map(|tensor| tensor.device()) {
            device.synchronize()?; // a fault is reported before a byte is used
        }
        let copied = |(tensor, download): (Self, Option<Download>)| {
            let Some(download) = download else { return Ok(tensor) };
            let mut copy = Self::uninitialized(tensor.shape().clone(), tensor.dtype(), &Device::Cpu)?;
            let bytes = download.wait()?;
            if let Some(Storage::Cpu(buffer)) = Arc::get_mut(&mut copy.storage) {
                buffer.bytes_mut().copy_from_slice(&bytes);
            }
            Ok(copy)
        };
        tensors.into_iter().zip(downloads).map(copied).collect()
    }

    /// A tensor of all of a buffer, as u32.
    pub(crate) fn of_buffer(buffer: DeviceBuffer) -> Result<Self> {
        let layout = Layout::contiguous(DType::U32, [buffer.bytes() / DType::U32.size()].into())?;
        Ok(Self { storage: Arc::new(Storage::Cuda(buffer)), layout })
    }

    /// A tensor of any type in this tensor's storage, `at` bytes after its first element; `None` if it exceeds the storage.
    pub(crate) fn within(&self, at: usize, dtype: DType, shape: &Shape) -> Option<Self> {
        let size = self.layout.dtype.size();
        let layout = Layout::contiguous(dtype, shape.clone()).ok()?;
        let end = at.checked_add(layout.shape.elements() * dtype.size())?;
        let start = at + self.layout.offset * size;
        let fits = end <= self.shape().elements() * size && start.is_multiple_of(dtype.size());
        fits.then(|| Self {
            storage: Arc::clone(&self.storage),
            layout: Layout { offset: start / dtype.size(), ..layout },
        })
    }

    /// The shape: the sizes of its dimensions.
    pub fn shape(&self) -> &Shape {
        &self.layout.shape
    }

    /// The sizes of the dimensions as a slice.
    pub fn dims(&self) -> &[usize] {
        self.layout.shape.dims()
    }

    /// The stride of each dimension: the distance between neighbours along it, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.layout.strides
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// The device that it is on, with the stream.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// Whether the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// A view of `len` entries of dimension `dim`, from `start` on.
    ///
    /// # Errors
    /// [`Error::Shape`] if the range exceeds the dimension.
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        Ok(Self { storage: Arc::clone(&self.storage), layout: self.layout.narrow(dim, start, len)? })
    }

    /// A view with two dimensions swapped; nothing is copied.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are no such dimensions.
    pub fn swap_dims(&self, a: usize, b: usize) -> Result<Self> {
        Ok(Self { storage: Arc::clone(&self.storage), layout: self.layout.swap_dims(a, b)? })
    }

    /// The same elements under another shape; the tensor must be contiguous.
    ///
    /// # Errors
    /// [`Error::Shape`] if the counts differ, [`Error::Layout`] if it is not contiguous.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        Ok(Self { storage: Arc::clone(&self.storage), layout: self.layout.reshape(shape.into())? })
    }

    /// A view with a dimension of size 1 inserted before `dim`, which is at most the rank.
    pub(crate) fn unsqueeze(&self, dim: usize) -> Self {
        Self { storage: Arc::clone(&self.storage), layout: self.layout.unsqueeze(dim) }
    }

    /// This tensor on another device or stream; a clone if it is there already.
    ///
    /// Between two streams of one device the copy waits for the work queued on this tensor's stream so far, and this
    /// tensor's memory is not reused before the copy is done.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or a driver error.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        if self.device().same(device) {
            return Ok(self.clone());
        }
        let source = self.contiguous()?;
        let elements = source.shape().elements();
        let size = source.dtype().size();
        let (at, bytes) = (source.layout.offset * size, elements * size);
        let mut storage = Storage::uninitialized(device, source.dtype(), elements)?;
        match (&*source.storage, &mut storage) {
            (Storage::Cpu(from), Storage::Cpu(to)) => {
                to.bytes_mut().copy_from_slice(&from.bytes()[at..at + bytes])
            }
            (Storage::Cpu(from), Storage::Cuda(to)) => to.upload(0, &from.bytes()[at..at + bytes])?,
            (Storage::Cuda(from), Storage::Cpu(to)) => from.download(at, to.bytes_mut())?,
            (Storage::Cuda(from), Storage::Cuda(to)) => to.copy_across(from, at, bytes)?,
        }
        let layout = Layout::contiguous(source.dtype(), source.shape().clone())?;
        Ok(Self { storage: Arc::new(storage), layout })
    }

    /// The tensor for writing. Having it proves that nothing else refers to the storage.
    ///
    /// # Errors
    /// [`Error::SharedOutput`] if a clone or view of this tensor is alive.
    pub fn view_mut(&mut self) -> Result<TensorMut<'_>> {
        match Arc::get_mut(&mut self.storage) {
            Some(storage) => Ok(TensorMut { storage, layout: self.layout.clone() }),
            None => Err(Error::SharedOutput { op: "view_mut" }),
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The elements in host memory from the view's first to its last, with those between; `None` on a GPU or for another type.
    pub(crate) fn cpu<T: Element>(&self) -> Option<&[T]> {
        match &*self.storage {
            Storage::Cpu(buffer) if self.layout.dtype == T::DTYPE => {
                let elements = bytemuck::cast_slice(buffer.bytes());
                elements.get(self.layout.offset..)?.get(..self.layout.span())
            }
            _ => None,
        }
    }

    /// The device address of the view's first element, for work of an op; 0 on the CPU and for views without elements.
    pub(crate) fn address(&self) -> u64 {
        address(&self.storage, &self.layout, DeviceBuffer::address_to_queue)
    }

    /// The device address of the first element, for a kernel of your own that reads the tensor; 0 if it has no elements.
    /// The elements are contiguous. [`PtxModule`](crate::cuda::PtxModule) has an example.
    ///
    /// It is valid for work that is queued on the stream of [`device`](Self::device) while the tensor, or another that
    /// shares its storage, lives, and for replays of a graph in which such work was captured. Kernels write through [`TensorMut::device_address`] only.
    ///
    /// # Errors
    /// [`Error::DType`] if the elements are not of type `T`, [`Error::Layout`] if the tensor is not contiguous,
    /// [`Error::Unsupported`] on the CPU.
    pub fn device_address<T: Element>(&self) -> Result<u64> {
        device_address::<T>(&self.storage, &self.layout)
    }

    /// The elements, for a kernel of your own that reads them: a field of its parameters. They are contiguous.
    /// [`PtxModule::launch`](crate::cuda::PtxModule::launch) says more.
    ///
    /// # Errors
    /// As [`device_address`](Self::device_address).
    pub fn device_ptr<T: Element>(&self) -> Result<DevicePtr<'_, T>> {
        let address = self.device_address::<T>()?;
        // SAFETY: the elements are of this type and the tensor is borrowed. Their memory is reused after the work that the stream
        // has, and a launch on another one is refused.
        Ok(unsafe { DevicePtr::from_address(address) })
    }

    /// As [`device_ptr`](Self::device_ptr), for a kernel that writes the elements.
    ///
    /// # Errors
    /// As there and as [`view_mut`](Self::view_mut).
    pub fn device_ptr_mut<T: Element>(&mut self) -> Result<DevicePtrMut<'_, T>> {
        let address = self.view_mut()?.device_address::<T>()?;
        // SAFETY: the elements are of this type. The tensor is borrowed exclusively and `view_mut` has found its storage unshared.
        // Its memory is reused after the work that the stream has, and a launch on another one is refused.
        Ok(unsafe { DevicePtrMut::from_address(address) })
    }
}

fn device_address<T: Element>(storage: &Storage, layout: &Layout) -> Result<u64> {
    let (op, argument) = ("device_address", "tensor");
    if layout.dtype != T::DTYPE {
        return Err(Error::DType { op, argument, expected: T::DTYPE.to_string(), found: layout.dtype });
    }
    if !layout.is_contiguous() {
        return Err(Error::Layout { op, argument, needed: "contiguous" });
    }
    if let Storage::Cpu(_) = storage {
        let reason = "it is in host memory; `to_device` copies it to a GPU".into();
        return Err(Error::Unsupported { op, argument, value: "on the CPU".into(), reason });
    }
    Ok(address(storage, layout, DeviceBuffer::address))
}

fn address(storage: &Storage, layout: &Layout, of: fn(&DeviceBuffer) -> u64) -> u64 {
    match storage {
        Storage::Cuda(buffer) if layout.shape.elements() > 0 => {
            of(buffer) + (layout.offset * layout.dtype.size()) as u64
        }
        _ => 0,
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor {} {} on {}", self.dtype(), self.shape(), self.device())
    }
}

impl fmt::Debug for TensorMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorMut {} {} on {}", self.dtype(), self.shape(), self.device())
    }
}

/// A tensor, or a part of one, for writing: [`Tensor::view_mut`]. While it exists nothing else refers to the storage.
pub struct TensorMut<'a> {
    storage: &'a mut Storage,
    layout: Layout,
}

impl TensorMut<'_> {
    /// The same view with a shorter lifetime, so that it can be used more than once.
    pub fn reborrow(&mut self) -> TensorMut<'_> {
        TensorMut { storage: self.storage, layout: self.layout.clone() }
    }

    /// The shape: the sizes of its dimensions.
    pub fn shape(&self) -> &Shape {
        &self.layout.shape
    }

    /// The sizes of the dimensions as a slice.
    pub fn dims(&self) -> &[usize] {
        self.layout.shape.dims()
    }

    /// The stride of each dimension: the distance between neighbours along it, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.layout.strides
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.layout.dtype
    }

    /// The device that it is on, with the stream.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// Whether the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// `len` entries of dimension `dim`, from `start` on.
    ///
    /// # Errors
    /// [`Error::Shape`] if the range exceeds the dimension.
    pub fn narrow(self, dim: usize, start: usize, len: usize) -> Result<Self> {
        let layout = self.layout.narrow(dim, start, len)?;
        Ok(Self { storage: self.storage, layout })
    }

    /// The same elements with two dimensions swapped; nothing is copied.
    ///
    /// # Errors
    /// [`Error::Shape`] if there are no such dimensions.
    pub fn swap_dims(self, a: usize, b: usize) -> Result<Self> {
        let layout = self.layout.swap_dims(a, b)?;
        Ok(Self { storage: self.storage, layout })
    }

    /// The same elements under another shape; they must be contiguous.
    ///
    /// # Errors
    /// [`Error::Shape`] if the counts differ, [`Error::Layout`] if they are not contiguous.
    pub fn reshape(self, shape: impl Into<Shape>) -> Result<Self> {
        let layout = self.layout.reshape(shape.into())?;
        Ok(Self { storage: self.storage, layout })
    }

    /// Overwrites all elements, in row-major order. On a GPU the copy is queued after the work so far; `values` may be
    /// changed after the return. This is how a captured [`Graph`](crate::cuda::Graph) gets its inputs.
    ///
    /// # Errors
    /// [`Error::DType`] if the elements are not of type `T`, [`Error::Shape`] for another number of values,
    /// [`Error::Layout`] if they are not contiguous, or a driver error.
    pub fn write<T: Element>(self, values: &[T]) -> Result<()> {
        let (op, argument) = ("write", "tensor");
        if self.layout.dtype != T::DTYPE {
            let expected = T::DTYPE.to_string();
            return Err(Error::DType { op, argument, expected, found: self.layout.dtype });
        }
        if !self.is_contiguous() {
            return Err(Error::Layout { op, argument, needed: "contiguous" });
        }
        if values.len() != self.shape().elements() {
            let expected = format!("{} elements", values.len());
            return Err(Error::Shape { op, argument, expected, found: self.layout.shape });
        }
        let (bytes, offset) = (bytemuck::cast_slice(values), self.layout.offset * self.layout.dtype.size());
        match self.storage {
            _ if values.is_empty() => Ok(()),
            Storage::Cpu(buffer) => {
                buffer.bytes_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
                Ok(())
            }
            Storage::Cuda(buffer) => buffer.upload(offset, bytes),
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// As [`Tensor::cpu`], for writing.
    pub(crate) fn cpu<T: Element>(&mut self) -> Option<&mut [T]> {
        match self.storage {
            Storage::Cpu(buffer) if self.layout.dtype == T::DTYPE => {
                let elements = bytemuck::cast_slice_mut(buffer.bytes_mut());
                elements.get_mut(self.layout.offset..)?.get_mut(..self.layout.span())
            }
            _ => None,
        }
    }

    /// As [`Tensor::address`], for writing.
    pub(crate) fn address(&self) -> u64 {
        address(self.storage, &self.layout, DeviceBuffer::address_to_queue)
    }

    /// As [`Tensor::device_address`], for a kernel of your own that writes the elements; nothing else refers to them.
    ///
    /// # Errors
    /// As there.
    pub fn device_address<T: Element>(&self) -> Result<u64> {
        device_address::<T>(self.storage, &self.layout)
    }

    /// As [`Tensor::device_ptr_mut`], of this part.
    ///
    /// # Errors
    /// As there.
    pub fn device_ptr_mut<T: Element>(&mut self) -> Result<DevicePtrMut<'_, T>> {
        let address = self.device_address::<T>()?;
        // SAFETY: the elements are of this type, the view is borrowed exclusively, and nothing else refers to them.
        Ok(unsafe { DevicePtrMut::from_address(address) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_share_and_shared_tensors_are_not_written() {
        let mut x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3], &Device::Cpu).unwrap();
        let column = x.narrow(1, 1, 1).unwrap();
        assert_eq!(column.cpu::<f32>().unwrap()[0], 2.0);
        assert_eq!(column.strides(), [3, 1]);
        assert_eq!(x.view_mut().err(), Some(Error::SharedOutput { op: "view_mut" }));
        drop(column);
        assert!(x.view_mut().is_ok());
    }

    #[test]
    fn a_part_is_overwritten_and_nothing_else() {
        let mut x = Tensor::zeros([3, 2], DType::F32, &Device::Cpu).unwrap();
        x.view_mut().unwrap().narrow(0, 1, 1).unwrap().write(&[1.0f32, 2.0]).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);
        assert!(matches!(x.view_mut().unwrap().write(&[1.0f32]), Err(Error::Shape { .. })));
        assert!(matches!(x.view_mut().unwrap().write(&[1u32; 6]), Err(Error::DType { .. })));
        let column = x.view_mut().unwrap().narrow(1, 0, 1).unwrap().write(&[1.0f32; 3]);
        assert!(matches!(column, Err(Error::Layout { .. })));
    }

    #[test]
    fn impossible_shapes_are_typed_errors() {
        let huge = Tensor::zeros([usize::MAX, 2], DType::F32, &Device::Cpu);
        assert!(matches!(huge, Err(Error::TooLarge { op: "tensor", .. })), "{huge:?}");
        let wrong = Tensor::from_slice(&[1.0f32], [2], &Device::Cpu);
        assert!(matches!(wrong, Err(Error::Shape { .. })));
        let x = Tensor::zeros([2, 3], DType::F32, &Device::Cpu).unwrap();
        assert!(
            x.narrow(0, 1, 2).is_err() && x.narrow(2, 0, 1).is_err() && x.narrow(0, usize::MAX, 2).is_err()
        );
        assert!(x.reshape([7]).is_err() && x.swap_dims(0, 2).is_err());
        assert!(matches!(x.to_vec::<u32>(), Err(Error::DType { .. })));
    }
}
