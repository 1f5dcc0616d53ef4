//! Conversion between f32 and the 16-bit formats of [`float16`](crate::float16).

use super::check::Check;
use super::copy::aligned;
use super::matmul::matmul_into;
use crate::float16::{EXPONENT_BITS, Float16Tensor, Overflow};
use crate::problem::matmul::Matmul;
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};

/// Exponent bits of IEEE half precision.
const F16_EXPONENT_BITS: u32 = 5;

/// Converts `x`, contiguous f32, to the format with `exponent_bits` (2 to 8) exponent bits: nearest, ties to even. The codes
/// are the same on every device.
///
/// ```
/// use pascaline::float16::Overflow;
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 1e6], [2], &Device::Cpu)?;
/// let bfloat16 = ops::float16_encode(&x, 8, Overflow::Infinity)?;
/// assert_eq!(bfloat16.to_codes()?[0], 0x3f80); // the upper half of 1.0's bits in f32
/// let half = ops::float16_encode(&x, 5, Overflow::Saturate)?;
/// assert_eq!(ops::float16_decode(&half)?.to_vec::<f32>()?, [1.0, 65504.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for any other number of bits.
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

/// y = x·wᵀ with `w` in a 16-bit format, arithmetic in f32.
///
/// `x`: [.., k] f32, contiguous, `w`: [n, k], `y`: [.., n] f32. On a GPU, kernels convert formats with 4, 5 and 8 exponent
/// bits as they load them. The others, and all where k or n is no multiple of 4, are first converted to f32 in scratch
/// memory.
///
/// ```
/// use pascaline::float16::Overflow;
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2], &Device::Cpu)?;
/// let w = Tensor::from_slice(&[0.5f32, 1.0, 2.0, 4.0], [2, 2], &Device::Cpu)?;
/// let w = ops::float16_encode(&w, 8, Overflow::Infinity)?; // powers of two are exact
/// assert_eq!(ops::float16_matmul(&x, &w)?.to_vec::<f32>()?, [2.5, 10.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType), [`Error::Layout`](crate::Error::Layout),
/// [`Error::TooLarge`](crate::Error::TooLarge), [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), or a device error.
pub fn float16_matmul(x: &Tensor, w: &Float16Tensor) -> Result<Tensor> {
    const CHECK: Check = Check("float16_matmul");
    let (Some((cols, outer)), &[n, k]) = (x.dims().split_last(), w.shape().dims()) else {
        return Err(CHECK.bad_shape("x", x, "[.., k], and w [n, k]"));
    };
    if *cols != k {
        return Err(CHECK.bad_shape("x", x, format!("[.., {k}], w's columns")));
    }
    CHECK.dtype("x", x, DType::F32)?;
    CHECK.contiguous("x", x)?;
    let mut y = Tensor::uninitialized([outer, &[n]].concat(), DType::F32, &x.device())?;
    let (m, device) = (outer.iter().product(), CHECK.device(&y.view_mut()?, &[("x", x), ("w", &w.codes)])?);
    let (rows, to) = (x.reshape([m, k])?, y.view_mut()?.reshape([m, n])?);
    if w.exponent_bits == F16_EXPONENT_BITS {
        matmul_into(to, &rows, &w.codes.swap_dims(0, 1)?, &Matmul::default())?;
        return Ok(y);
    }
    if let Device::Cuda(device) = &device
        && gpu::matmul::coded(device, to, &rows, &w.codes, w.exponent_bits)?
    {
        return Ok(y);
    }
    let values = float16_decode(w)?;
    matmul_into(y.view_mut()?.reshape([m, n])?, &rows, &values.swap_dims(0, 1)?, &Matmul::default())?;
    Ok(y)
}

/// The values of `x` in f32, exactly.
///
/// ```
/// use pascaline::float16::Overflow;
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[0.1f32, -3.0], [2], &Device::Cpu)?;
/// let y = ops::float16_decode(&ops::float16_encode(&x, 4, Overflow::Infinity)?)?.to_vec::<f32>()?;
/// assert!((y[0] - 0.1).abs() < 0.1 / 2048.0 && y[1] == -3.0); // 11 bits of mantissa
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn float16_decode(x: &Float16Tensor) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), DType::F32, &x.device())?;
    float16_decode_into(y.view_mut()?, x)?;
    Ok(y)
}

/// [`float16_decode`] into `y`, f32 of `x`'s shape, 16-byte aligned.
pub fn float16_decode_into(y: TensorMut, x: &Float16Tensor) -> Result<()> {
    const CHECK: Check = Check("float16_decode");
    CHECK.dtype("y", &y, DType::F32)?;
    CHECK.shape("y", &y, x.shape().dims(), "x's shape")?;
    CHECK.contiguous("y", &y)?;
    CHECK.aligned("y", &y, 16)?;
    match CHECK.device(&y, &[("x", &x.codes)])? {
        Device::Cpu => cpu::float16::decode(y, x),
        Device::Cuda(device) => gpu::float16::decode(&device, y, x),
    }
}
