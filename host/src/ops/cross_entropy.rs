//! Cross-entropy, alone and fused with the output matrix.

use super::check::Check;
use super::matmul;
use super::matmul::matmul_into;
use crate::problem::matmul::Matmul;
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("cross_entropy");

/// The label of a row to ignore: its loss and its gradient are 0.
pub const IGNORED: u32 = u32::MAX;

/// The most bytes of logits that [`linear_cross_entropy`] holds at a time; at least one row.
pub const CROSS_ENTROPY_BYTES: usize = 96 << 20;
/// A chunk of as many rows or more has a multiple of them, so that the tiles of its products are full.
const TILE_ROWS: usize = 64;

/// The cross-entropy of rows of logits. The gradient overwrites the logits:
/// `loss[r] = ln Σ exp(x[r, ·]) − x[r, labels[r]]`, and then `x[r, c] = scale · (softmax(x[r, ·])[c] − (c = labels[r]))`.
///
/// `loss`: \[rows\] f32; `x`: [rows, cols] f32; `labels`: \[rows\] u32, all contiguous. A label that is not a column, such
/// as [`IGNORED`], gives 0 for both.
///
/// ```
/// use pascaline::{DType, Device, Tensor, ops};
/// let mut x = Tensor::zeros([1, 2], DType::F32, &Device::Cpu)?;
/// let mut loss = Tensor::zeros([1], DType::F32, &Device::Cpu)?;
/// let labels = Tensor::from_slice(&[1u32], [1], &Device::Cpu)?;
/// ops::cross_entropy_into(loss.view_mut()?, x.view_mut()?, &labels, 1.0)?;
/// assert!((loss.to_vec::<f32>()?[0] - 2f32.ln()).abs() < 1e-6);
/// assert_eq!(x.to_vec::<f32>()?, [0.5, -0.5]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn cross_entropy_into(loss: TensorMut, x: TensorMut, labels: &Tensor, scale: f32) -> Result<()> {
    let &[rows, _] = x.dims() else { return Err(CHECK.bad_shape("x", &x, "[rows, cols]")) };
    CHECK.dtype("x", &x, DType::F32)?;
    CHECK.dtype("loss", &loss, DType::F32)?;
    CHECK.dtype("labels", labels, DType::U32)?;
    CHECK.shape("loss", &loss, &[rows], "[rows]")?;
    CHECK.shape("labels", labels, &[rows], "[rows]")?;
    CHECK.contiguous("x", &x)?;
    CHECK.contiguous("loss", &loss)?;
    CHECK.contiguous("labels", labels)?;
    let device = CHECK.device(&x, &[("labels", labels)])?;
    if !loss.device().same(&device) {
        return Err(CHECK.elsewhere("loss", &loss.device(), &device));
    }
    match device {
        Device::Cpu => cpu::cross_entropy::cross_entropy(loss, x, labels, scale),
        Device::Cuda(device) => gpu::cross_entropy::cross_entropy(&device, loss, x, labels, scale),
    }
}

/// The result of [`linear_cross_entropy`].
#[derive(Clone, Debug)]
pub struct LinearCrossEntropy {
    /// The loss of each row, without the factor `scale`: \[rows\] f32.
    pub loss: Tensor,
    /// The gradient with respect to the input: [rows, hidden] f32.
    pub dx: Tensor,
    /// The gradient with respect to the matrix, if requested: [vocab, hidden] f32.
    pub dw: Option<Tensor>,
}

/// [`cross_entropy_into`] of the logits x·wᵀ, with the gradients of x and, if `with_dw`, of w. The logits are computed and
/// used in chunks of rows, so that never all are in memory.
///
/// `x`: [rows, hidden] f32; `w`: [vocab, hidden] f32 or f16; `labels`: \[rows\] u32; all contiguous.
///
/// ```
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::ones([1, 1], DType::F32, &Device::Cpu)?;
/// let w = Tensor::from_slice(&[0.0f32, 0.0], [2, 1], &Device::Cpu)?;
/// let labels = Tensor::from_slice(&[0u32], [1], &Device::Cpu)?;
/// let found = ops::linear_cross_entropy(&x, &w, &labels, 1.0, true)?;
/// assert_eq!(found.dw.map(|dw| dw.to_vec::<f32>()).transpose()?, Some(vec![-0.5, 0.5]));
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn linear_cross_entropy(
    x: &Tensor,
    w: &Tensor,
    labels: &Tensor,
    scale: f32,
    with_dw: bool,
) -> Result<LinearCrossEntropy> {
    let check = Check("linear_cross_entropy");
    check.dtype("x", x, DType::F32)?;
    check.float("w", w)?;
    check.contiguous("x", x)?;
    check.contiguous("w", w)?;
    let &[rows, hidden] = x.dims() else { return Err(check.bad_shape("x", x, "[rows, hidden]")) };
    let &[vocab, _] = w.dims() else { return Err(check.bad_shape("w", w, "[vocab, hidden]")) };
    check.shape("w", w, &[vocab, hidden], "[vocab, hidden], as wide as x")?;
    check.shape("labels", labels, &[rows], "[rows]")?;
    let device = x.device();
    if !w.device().same(&device) {
        return Err(check.elsewhere("w", &w.device(), &device));
    }
    let mut loss = Tensor::zeros([rows], DType::F32, &device)?;
    let mut dx = Tensor::zeros(x.shape(), DType::F32, &device)?;
    let mut dw = if with_dw { Some(Tensor::zeros([vocab, hidden], DType::F32, &device)?) } else { None };
    let chunk = match CROSS_ENTROPY_BYTES / (vocab * DType::F32.size()).max(1) {
        rows @ ..TILE_ROWS => rows.max(1),
        rows => rows / TILE_ROWS * TILE_ROWS,
    };
    for first in (0..rows).step_by(chunk) {
        let len = chunk.min(rows - first);
        let part = x.narrow(0, first, len)?;
        let mut logits = matmul(&part, &w.swap_dims(0, 1)?)?;
        let labels = labels.narrow(0, first, len)?;
        cross_entropy_into(loss.view_mut()?.narrow(0, first, len)?, logits.view_mut()?, &labels, scale)?;
        matmul_into(dx.view_mut()?.narrow(0, first, len)?, &logits, w, &Matmul::default())?;
        if let Some(dw) = &mut dw {
            let added = Matmul { beta: 1.0, ..Matmul::default() };
            matmul_into(dw.view_mut()?, &logits.swap_dims(0, 1)?, &part, &added)?;
        }
    }
    Ok(LinearCrossEntropy { loss, dx, dw })
}
