//! Element by element.

use super::check::Check;
use crate::problem::elementwise::{Binary, Unary};
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

/// z = x + y.
///
/// `x`: [.., cols] f32 or f16, contiguous; `y`: `x`'s shape, or \[cols\] and added to every row (a bias).
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::Cpu)?;
/// let bias = Tensor::from_slice(&[10.0f32, 20.0], [2], &Device::Cpu)?;
/// assert_eq!(ops::add(&x, &bias)?.to_vec::<f32>()?, [11.0, 22.0, 13.0, 24.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    new_like(x, |z| add_into(z, x, y))
}

/// [`add`] into `z`, of `x`'s shape and type.
pub fn add_into(z: TensorMut, x: &Tensor, y: &Tensor) -> Result<()> {
    binary(Check("add"), Binary::Add, z, ("x", x), ("y", y))
}

/// z = x · y, element by element.
///
/// `x`: [.., cols] f32 or f16, contiguous; `y`: `x`'s shape, or \[cols\] for every row.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], &Device::Cpu)?;
/// assert_eq!(ops::mul(&x, &x)?.to_vec::<f32>()?, [1.0, 4.0, 9.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn mul(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    new_like(x, |z| mul_into(z, x, y))
}

/// [`mul`] into `z`, of `x`'s shape and type.
pub fn mul_into(z: TensorMut, x: &Tensor, y: &Tensor) -> Result<()> {
    binary(Check("mul"), Binary::Mul, z, ("x", x), ("y", y))
}

/// z = gate / (1 + e^−gate) · up, the gated unit of SwiGLU (Shazeer 2020, "GLU variants improve transformer").
///
/// `gate`, `up`: the same shape, f32 or f16, contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let gate = Tensor::from_slice(&[0.0f32, 100.0], [2], &Device::Cpu)?;
/// let up = Tensor::from_slice(&[5.0f32, 5.0], [2], &Device::Cpu)?;
/// assert_eq!(ops::silu_mul(&gate, &up)?.to_vec::<f32>()?, [0.0, 500.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    new_like(gate, |z| silu_mul_into(z, gate, up))
}

/// [`silu_mul`] into `z`, of `gate`'s shape and type.
pub fn silu_mul_into(z: TensorMut, gate: &Tensor, up: &Tensor) -> Result<()> {
    let check = Check("silu_mul");
    check.shape("up", up, gate.dims(), "gate's shape")?;
    binary(check, Binary::SiluMul, z, ("gate", gate), ("up", up))
}

/// y = x · factor.
///
/// `x`: f32 or f16, contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, -2.0], [2], &Device::Cpu)?;
/// assert_eq!(ops::scale(&x, 0.5)?.to_vec::<f32>()?, [0.5, -1.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn scale(x: &Tensor, factor: f32) -> Result<Tensor> {
    new_like(x, |y| scale_into(y, x, factor))
}

/// [`scale`] into `y`, of `x`'s shape and type.
pub fn scale_into(y: TensorMut, x: &Tensor, factor: f32) -> Result<()> {
    unary(Check("scale"), Unary::Scale(factor), y, x)
}

/// y = 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))) (Hendrycks & Gimpel 2016).
///
/// `x`: f32 or f16, contiguous. Small results for negative `x` keep their relative accuracy. −∞ gives NaN.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 0.0, -100.0], [3], &Device::Cpu)?;
/// let y = ops::gelu_tanh(&x)?.to_vec::<f32>()?;
/// assert!((y[0] - 0.841192).abs() < 1e-6 && y[1] == 0.0 && y[2] == 0.0);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    new_like(x, |y| gelu_tanh_into(y, x))
}

/// [`gelu_tanh`] into `y`, of `x`'s shape and type.
pub fn gelu_tanh_into(y: TensorMut, x: &Tensor) -> Result<()> {
    unary(Check("gelu_tanh"), Unary::GeluTanh, y, x)
}

/// y = 0.5·x·(1 + erf(x/√2)) (Hendrycks & Gimpel 2016).
///
/// `x`: f32 or f16, contiguous. Small results for negative `x` keep their relative accuracy. −∞ gives NaN.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 0.0, -100.0], [3], &Device::Cpu)?;
/// let y = ops::gelu_erf(&x)?.to_vec::<f32>()?;
/// assert!((y[0] - 0.8413447).abs() < 1e-6 && y[1] == 0.0 && y[2] == 0.0);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn gelu_erf(x: &Tensor) -> Result<Tensor> {
    new_like(x, |y| gelu_erf_into(y, x))
}

/// [`gelu_erf`] into `y`, of `x`'s shape and type.
pub fn gelu_erf_into(y: TensorMut, x: &Tensor) -> Result<()> {
    unary(Check("gelu_erf"), Unary::GeluErf, y, x)
}

fn new_like(x: &Tensor, run: impl FnOnce(TensorMut) -> Result<()>) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    run(y.view_mut()?)?;
    Ok(y)
}

fn binary(
    check: Check,
    op: Binary,
    z: TensorMut,
    (x_name, x): (&'static str, &Tensor),
    (y_name, y): (&'static str, &Tensor),
) -> Result<()> {
    let dtype = check.float(x_name, x)?;
    check.dtype(y_name, y, dtype)?;
    check.dtype("z", &z, dtype)?;
    check.contiguous(x_name, x)?;
    check.contiguous(y_name, y)?;
    check.contiguous("z", &z)?;
    check.shape("z", &z, x.dims(), format!("{x_name}'s shape"))?;
    let (_, cols) = x.shape().rows_cols();
    if y.dims() != x.dims() && y.dims() != [cols] {
        return Err(check.bad_shape(y_name, y, format!("{x_name}'s shape or [cols]")));
    }
    match check.device(&z, &[(x_name, x), (y_name, y)])? {
        Device::Cpu => cpu::elementwise::binary(op, z, x, y),
        Device::Cuda(device) => gpu::elementwise::binary(&device, op, z, x, y),
    }
}

fn unary(check: Check, op: Unary, y: TensorMut, x: &Tensor) -> Result<()> {
    let dtype = check.float("x", x)?;
    check.dtype("y", &y, dtype)?;
    check.contiguous("x", x)?;
    check.contiguous("y", &y)?;
    check.shape("y", &y, x.dims(), "x's shape")?;
    match check.device(&y, &[("x", x)])? {
        Device::Cpu => cpu::elementwise::unary(op, y, x),
        Device::Cuda(device) => gpu::elementwise::unary(&device, op, y, x),
    }
}
