//! Rotary position embedding.

use super::check::{Argument, Check};
use crate::{DType, Device, Error, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("rope");

/// Rotates the pair of elements i and i + dim/2 of each head by the angle of (position, i) (Su et al. 2021, in the halves of GPT-NeoX):
/// `y[s, h, i] = x[s, h, i]·cos[s, i] − x[s, h, i + dim/2]·sin[s, i]`, and
/// `y[s, h, i + dim/2] = x[s, h, i + dim/2]·cos[s, i] + x[s, h, i]·sin[s, i]`.
///
/// `x`: [seq, heads, dim] f32 or f16, with stride 1 in its last dimension, so that heads of a fused projection are not
/// copied; `cos`, `sin`: [seq, dim/2] f32, contiguous.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 0.0], [1, 1, 2], &Device::Cpu)?; // one position, one head, one pair
/// let quarter = |value: f32| Tensor::from_slice(&[value], [1, 1], &Device::Cpu);
/// let y = ops::rope(&x, &quarter(0.0)?, &quarter(1.0)?)?; // cos and sin of a quarter turn
/// assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let mut y = Tensor::uninitialized(x.shape(), x.dtype(), &x.device())?;
    rope_into(y.view_mut()?, x, cos, sin)?;
    Ok(y)
}

/// [`rope`] into `y`, of `x`'s shape and type, with stride 1 in its last dimension too.
pub fn rope_into(y: TensorMut, x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<()> {
    let dtype = CHECK.float("x", x)?;
    CHECK.dtype("y", &y, dtype)?;
    let &[seq, _, dim] = x.dims() else { return Err(CHECK.bad_shape("x", x, "[seq, heads, dim]")) };
    if !dim.is_multiple_of(2) {
        return Err(CHECK.bad_shape("x", x, "an even dim"));
    }
    CHECK.shape("y", &y, x.dims(), "x's shape")?;
    for (argument, table) in [("cos", cos), ("sin", sin)] {
        CHECK.dtype(argument, table, DType::F32)?;
        CHECK.shape(argument, table, &[seq, dim / 2], "[seq, dim/2]")?;
        CHECK.contiguous(argument, table)?;
    }
    CHECK.size("x", x)?;
    CHECK.size("y", &y)?;
    dense("x", x)?;
    dense("y", &y)?;
    match CHECK.device(&y, &[("x", x), ("cos", cos), ("sin", sin)])? {
        Device::Cpu => cpu::rope::rope(y, x, cos, sin),
        Device::Cuda(device) => gpu::rope::rope(&device, y, x, cos, sin),
    }
}

/// The gradient of [`rope`] with respect to its input: the rotation by the negative angle.
///
/// `dy`: the gradient with respect to the result, under the conditions of `x` in [`rope`]; `cos` and `sin` are those of
/// [`rope`].
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 1, 2], &Device::Cpu)?;
/// let number = |value: f32| Tensor::from_slice(&[value], [1, 1], &Device::Cpu);
/// let (cos, sin) = (number(0.0)?, number(1.0)?); // a quarter turn
/// let there_and_back = ops::rope_backward(&ops::rope(&x, &cos, &sin)?, &cos, &sin)?;
/// assert_eq!(there_and_back.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn rope_backward(dy: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    rope(dy, cos, &super::elementwise::scale(sin, -1.0)?)
}

/// [`rope_backward`] into `dx`, under the conditions of `y` in [`rope_into`].
pub fn rope_backward_into(dx: TensorMut, dy: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<()> {
    rope_into(dx, dy, cos, &super::elementwise::scale(sin, -1.0)?)
}

/// Checks that the elements of a head are contiguous.
fn dense(argument: &'static str, x: &impl Argument) -> Result<()> {
    let layout = x.layout();
    match layout.strides[2] == 1 || layout.shape.dims()[2] == 0 {
        true => Ok(()),
        false => Err(Error::Layout { op: "rope", argument, needed: "contiguous in its last dimension" }),
    }
}
