//! The checks that ops share.

use crate::tensor::{Layout, MAX_ELEMENTS};
use crate::{DType, Device, Error, Result, Shape, Tensor, TensorMut};

/// A tensor argument, input or output.
pub(crate) trait Argument {
    fn layout(&self) -> &Layout;
    /// The device address of the first element; 0 on the CPU and for views without elements.
    fn address(&self) -> u64;
}

impl Argument for Tensor {
    fn layout(&self) -> &Layout {
        self.layout()
    }

    fn address(&self) -> u64 {
        self.address()
    }
}

impl Argument for TensorMut<'_> {
    fn layout(&self) -> &Layout {
        self.layout()
    }

    fn address(&self) -> u64 {
        self.address()
    }
}

/// One op's checks, with a method per rule. Errors name the op and the argument.
#[derive(Clone, Copy)]
pub(crate) struct Check(pub &'static str);

impl Check {
    /// Requires this shape; `expected` describes it in the letters of the op's documentation.
    pub fn shape(
        self,
        argument: &'static str,
        x: &impl Argument,
        shape: &[usize],
        expected: impl Into<String>,
    ) -> Result<()> {
        match x.layout().shape.dims() == shape {
            true => Ok(()),
            false => Err(self.bad_shape(argument, x, expected)),
        }
    }

    /// The error for an invalid shape.
    pub fn bad_shape(self, argument: &'static str, x: &impl Argument, expected: impl Into<String>) -> Error {
        let found: Shape = x.layout().shape.clone();
        Error::Shape { op: self.0, argument, expected: expected.into(), found }
    }

    /// Requires f32 or f16.
    pub fn float(self, argument: &'static str, x: &impl Argument) -> Result<DType> {
        let dtype = x.layout().dtype;
        match dtype.is_float() {
            true => Ok(dtype),
            false => Err(Error::DType { op: self.0, argument, expected: "f32 or f16".into(), found: dtype }),
        }
    }

    /// Requires this element type.
    pub fn dtype(self, argument: &'static str, x: &impl Argument, expected: DType) -> Result<()> {
        let found = x.layout().dtype;
        match found == expected {
            true => Ok(()),
            false => Err(Error::DType { op: self.0, argument, expected: expected.to_string(), found }),
        }
    }

    /// Requires a row-major contiguous layout, small enough for 32-bit indices.
    pub fn contiguous(self, argument: &'static str, x: &impl Argument) -> Result<()> {
        self.size(argument, x)?;
        match x.layout().is_contiguous() {
            true => Ok(()),
            false => Err(Error::Layout { op: self.0, argument, needed: "contiguous" }),
        }
    }

    /// Requires a first element at a multiple of `bytes` bytes, a power of two, from the start of the storage, which is aligned;
    /// on a GPU also in memory, as a storage of another library may begin anywhere. So the verdict is the same on every device.
    pub fn aligned(self, argument: &'static str, x: &impl Argument, bytes: usize) -> Result<()> {
        let Layout { dtype, shape, offset, .. } = x.layout();
        let is_aligned =
            (offset * dtype.size()).is_multiple_of(bytes) && x.address().is_multiple_of(bytes as u64);
        match is_aligned || shape.elements() == 0 {
            true => Ok(()),
            false => Err(Error::Layout {
                op: self.0,
                argument,
                needed: "aligned: a view that begins at a multiple of 16 bytes",
            }),
        }
    }

    /// Requires a size within 32-bit indices, including the gaps between elements.
    pub fn size(self, argument: &'static str, x: &impl Argument) -> Result<()> {
        let elements = x.layout().span();
        match elements <= MAX_ELEMENTS {
            true => Ok(()),
            false => Err(Error::TooLarge {
                op: self.0,
                argument,
                elements: elements as u128,
                limit: MAX_ELEMENTS as u128,
            }),
        }
    }

    /// Requires all inputs on the output's device and stream; returns the device.
    pub fn device(self, output: &TensorMut, inputs: &[(&'static str, &Tensor)]) -> Result<Device> {
        let device = output.device();
        for (argument, input) in inputs {
            if !input.device().same(&device) {
                return Err(self.elsewhere(argument, &input.device(), &device));
            }
        }
        Ok(device)
    }

    /// The error for an argument that is on `found` and not on `expected`.
    pub fn elsewhere(self, argument: &'static str, found: &Device, expected: &Device) -> Error {
        let (expected, found) = (describe(expected), describe(found));
        Error::DeviceMismatch { op: self.0, argument, expected, found }
    }

    /// The error for a value that is out of range.
    pub fn unsupported(
        self,
        argument: &'static str,
        value: impl ToString,
        reason: impl Into<String>,
    ) -> Error {
        Error::Unsupported { op: self.0, argument, value: value.to_string(), reason: reason.into() }
    }
}

fn describe(device: &Device) -> String {
    match device {
        Device::Cpu => "the CPU".into(),
        Device::Cuda(cuda) => format!("{} (stream {:p})", device, cuda.stream().raw()),
    }
}
