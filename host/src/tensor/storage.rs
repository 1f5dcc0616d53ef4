//! What tensors share: elements in host memory or on a device.

use crate::memory::DeviceBuffer;
use crate::{DType, Device, Element, Error, Result};
use std::any::Any;
use std::ptr::NonNull;

pub(crate) enum Storage {
    Cpu(CpuBuffer),
    Cuda(DeviceBuffer),
}

/// Elements in host memory.
pub(crate) enum CpuBuffer {
    F32(Vec<f32>),
    F16(Vec<half::f16>),
    U32(Vec<u32>),
    Foreign(ForeignBytes),
}

impl CpuBuffer {
    pub(super) fn zeros(dtype: DType, elements: usize) -> Result<Self> {
        // Allocation failure is an error; `vec![0; elements]` would abort the process.
        fn zeros<T: Element>(elements: usize) -> Result<Vec<T>> {
            let zeros = bytemuck::try_zeroed_slice_box(elements).map(Vec::from);
            zeros.map_err(|()| {
                let (free, total) = crate::memory::of_the_host();
                let requested = elements.saturating_mul(size_of::<T>());
                Error::OutOfMemory { device: "the CPU".into(), requested, free, total }
            })
        }
        Ok(match dtype {
            DType::F32 => Self::F32(zeros(elements)?),
            DType::F16 => Self::F16(zeros(elements)?),
            DType::U32 => Self::U32(zeros(elements)?),
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice(values),
            Self::F16(values) => bytemuck::cast_slice(values),
            Self::U32(values) => bytemuck::cast_slice(values),
            Self::Foreign(memory) => memory.bytes(),
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(values) => bytemuck::cast_slice_mut(values),
            Self::F16(values) => bytemuck::cast_slice_mut(values),
            Self::U32(values) => bytemuck::cast_slice_mut(values),
            Self::Foreign(memory) => memory.bytes_mut(),
        }
    }
}

impl Storage {
    #[track_caller]
    pub(super) fn uninitialized(device: &Device, dtype: DType, elements: usize) -> Result<Self> {
        match device {
            Device::Cpu => CpuBuffer::zeros(dtype, elements).map(Self::Cpu),
            Device::Cuda(device) => {
                DeviceBuffer::uninitialized(device, elements * dtype.size()).map(Self::Cuda)
            }
        }
    }

    pub(super) fn device(&self) -> Device {
        match self {
            Self::Cpu(_) => Device::Cpu,
            Self::Cuda(buffer) => Device::Cuda(buffer.device().clone()),
        }
    }
}

/// Host memory of another library.
pub(crate) struct ForeignBytes {
    start: NonNull<u8>,
    len: usize,
    /// The memory is valid until this is dropped.
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: it is plain memory without thread affinity, and its owner is `Send`.
unsafe impl Send for ForeignBytes {}
// SAFETY: shared references only read.
unsafe impl Sync for ForeignBytes {}

impl ForeignBytes {
    /// # Safety
    /// The memory of `len` bytes is initialised and valid until `owner` is dropped. Nobody writes it while it is read, and nobody
    /// else uses it while it is written through this.
    pub unsafe fn new(start: NonNull<u8>, len: usize, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { start, len, _owner: owner }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is valid and nobody writes it: the contract of `new`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the memory is valid until the owner is dropped, and nobody else uses it while the tensor is written: the contract
        // of `new`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}
