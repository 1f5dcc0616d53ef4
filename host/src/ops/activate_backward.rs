//! The gradients of activations, of one tensor and of a gate beside what it gates.

use super::check::Check;
use crate::problem::activate::Activation;
use crate::{Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("activate_backward");

/// The gradient of [`activate`](super::activate()) with respect to its input: dx[.., c] = dy[.., c] · act′(x[.., c]). For
/// [`Activation::SwiGlu`], whose row is (g, u), it is (dy · u · silu′(g), dy · silu(g)).
///
/// `x`: [.., n] f32 or f16, the activation's input with the bias added already; `dy`: [.., n] of the same type, or [.., n/2]
/// for `SwiGlu`; both contiguous.
///
/// ```
/// use pascaline::ops::{self, Activation};
/// use pascaline::{Device, Tensor};
/// let x = Tensor::from_slice(&[0.0f32, 3.0], [1, 2], &Device::Cpu)?; // gate and up
/// let dy = Tensor::from_slice(&[1.0f32], [1, 1], &Device::Cpu)?;
/// let dx = ops::activate_backward(&dy, &x, Activation::SwiGlu)?;
/// assert_eq!(dx.to_vec::<f32>()?, [1.5, 0.0]); // silu′(0) = 1/2
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn activate_backward(dy: &Tensor, x: &Tensor, activation: Activation) -> Result<Tensor> {
    let mut dx = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    activate_backward_into(dx.view_mut()?, dy, x, activation)?;
    Ok(dx)
}

/// [`activate_backward`] into `dx`, of `x`'s shape and type.
pub fn activate_backward_into(dx: TensorMut, dy: &Tensor, x: &Tensor, activation: Activation) -> Result<()> {
    let dtype = CHECK.float("x", x)?;
    CHECK.dtype("dy", dy, dtype)?;
    CHECK.dtype("dx", &dx, dtype)?;
    CHECK.contiguous("x", x)?;
    CHECK.contiguous("dy", dy)?;
    CHECK.contiguous("dx", &dx)?;
    CHECK.shape("dx", &dx, x.dims(), "x's shape")?;
    let Some((&cols, outer)) = x.dims().split_last() else {
        return Err(CHECK.bad_shape("x", x, "[.., n]"));
    };
    let Some(cols) = activation.columns(cols) else {
        return Err(CHECK.bad_shape("x", x, "an even number of columns"));
    };
    CHECK.shape("dy", dy, &[outer, &[cols]].concat(), "the activation's output shape")?;
    match CHECK.device(&dx, &[("dy", dy), ("x", x)])? {
        Device::Cpu => cpu::activate_backward::activate_backward(dx, dy, x, activation),
        Device::Cuda(device) => gpu::activate_backward::activate_backward(&device, dx, dy, x, activation),
    }
}

/// The gradients of [`silu_mul`](super::silu_mul()) with respect to `gate` and `up`: dy · up · silu′(gate) and dy · silu(gate), in one pass.
///
/// `dy`, `gate`, `up`: the same shape, f32 or f16, contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let [dy, gate, up] = [1.0f32, 0.0, 3.0].map(|x| Tensor::from_slice(&[x], [1], &Device::Cpu));
/// let [dgate, dup] = ops::silu_mul_backward(&dy?, &gate?, &up?)?;
/// assert_eq!(dgate.to_vec::<f32>()?, [1.5]); // silu′(0) = 1/2
/// assert_eq!(dup.to_vec::<f32>()?, [0.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn silu_mul_backward(dy: &Tensor, gate: &Tensor, up: &Tensor) -> Result<[Tensor; 2]> {
    let new = || Tensor::uninitialized(dy.shape(), dy.dtype(), &dy.device());
    let (mut dgate, mut dup) = (new()?, new()?);
    silu_mul_backward_into([dgate.view_mut()?, dup.view_mut()?], dy, gate, up)?;
    Ok([dgate, dup])
}

/// [`silu_mul_backward`] into two tensors of `dy`'s shape and type.
pub fn silu_mul_backward_into(
    [dgate, dup]: [TensorMut; 2],
    dy: &Tensor,
    gate: &Tensor,
    up: &Tensor,
) -> Result<()> {
    let check = Check("silu_mul_backward");
    let dtype = check.float("dy", dy)?;
    check.contiguous("dy", dy)?;
    for (name, x) in [("gate", gate), ("up", up)] {
        check.dtype(name, x, dtype)?;
        check.contiguous(name, x)?;
        check.shape(name, x, dy.dims(), "dy's shape")?;
    }
    for (name, out) in [("dgate", &dgate), ("dup", &dup)] {
        check.dtype(name, out, dtype)?;
        check.contiguous(name, out)?;
        check.shape(name, out, dy.dims(), "dy's shape")?;
    }
    let inputs = [("dy", dy), ("gate", gate), ("up", up)];
    check.device(&dup, &inputs)?;
    match check.device(&dgate, &inputs)? {
        Device::Cpu => cpu::activate_backward::silu_mul_backward([dgate, dup], dy, [gate, up]),
        Device::Cuda(device) => {
            gpu::activate_backward::silu_mul_backward(&device, [dgate, dup], dy, [gate, up])
        }
    }
}
