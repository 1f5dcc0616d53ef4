//! Conversion between f32 and the 16-bit formats of [`float16`](crate::float16).

use super::check::{Check, aligned};
use crate::float16::{EXPONENT_BITS, Float16Tensor, Overflow};
use crate::{DType, Device, Result, Tensor, cpu, gpu};

/// `x` f32 in the format with `exponent_bits` (2 to 8) exponent bits: nearest, ties to even. The codes are the same on
/// every device.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for another number of bits, [`Error::DType`](crate::Error::DType),
/// [`Error::Layout`](crate::Error::Layout), [`Error::TooLarge`](crate::Error::TooLarge), or a device error.
pub fn float16_encode(x: &Tensor, exponent_bits: u32, overflow: Overflow) -> Result<Float16Tensor> {
    const CHECK: Check = Check("float16_encode");
    if !EXPONENT_BITS.contains(&exponent_bits) {
        return Err(CHECK.unsupported("exponent_bits", exponent_bits, "2 to 8"));
    }
    CHECK.dtype("x", x, DType::F32)?;
    CHECK.contiguous("x", x)?;
    let codes = Tensor::uninitialized(x.shape(), DType::F16, &x.device())?;
    let mut y = Float16Tensor { exponent_bits, codes };
    match x.device() {
        Device::Cpu => cpu::float16::encode(&mut y, x, overflow)?,
        Device::Cuda(device) => gpu::float16::encode(&device, &mut y, &aligned(x)?, overflow)?,
    }
    Ok(y)
}

/// The values of `x` in f32; exact.
///
/// # Errors
/// A device error.
pub fn float16_decode(x: &Float16Tensor) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), DType::F32, &x.device())?;
    match x.device() {
        Device::Cpu => cpu::float16::decode(y.view_mut()?, x)?,
        Device::Cuda(device) => gpu::float16::decode(&device, y.view_mut()?, x)?,
    }
    Ok(y)
}
