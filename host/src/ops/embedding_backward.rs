//! The gradient of an embedding.

use super::check::Check;
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("embedding_backward");

/// The gradient of [`embedding`](super::embedding()) with respect to a table of `rows` rows: row r is the sum of the `dy[i, :]` with
/// `ids[i] = r`, in the order of i.
///
/// `dy`: [n, cols] f32, `ids`: `[n]` u32, both contiguous. An id beyond the table is ignored.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let dy = Tensor::from_slice(&[1.0f32, 2.0, 4.0], [3, 1], &Device::Cpu)?;
/// let ids = Tensor::from_slice(&[1u32, 0, 1], [3], &Device::Cpu)?;
/// assert_eq!(ops::embedding_backward(&dy, &ids, 3)?.to_vec::<f32>()?, [2.0, 5.0, 0.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn embedding_backward(dy: &Tensor, ids: &Tensor, rows: usize) -> Result<Tensor> {
    let cols = dy.dims().last().copied().unwrap_or(0);
    let mut dtable = Tensor::uninitialized([rows, cols], DType::F32, &dy.device())?;
    embedding_backward_into(dtable.view_mut()?, dy, ids)?;
    Ok(dtable)
}

/// [`embedding_backward`] into `dtable`, [rows, cols] f32.
pub fn embedding_backward_into(dtable: TensorMut, dy: &Tensor, ids: &Tensor) -> Result<()> {
    run(dtable, dy, ids, false)
}

/// Adds [`embedding_backward`] to `dtable`, [rows, cols] f32, for tables that are used several times.
///
/// ```
/// use pascaline::{DType, Device, Tensor, ops};
/// let mut dtable = Tensor::ones([2, 1], DType::F32, &Device::Cpu)?;
/// let (dy, ids) = (Tensor::ones([1, 1], DType::F32, &Device::Cpu)?, Tensor::zeros([1], DType::U32, &Device::Cpu)?);
/// ops::embedding_backward_add(dtable.view_mut()?, &dy, &ids)?;
/// assert_eq!(dtable.to_vec::<f32>()?, [2.0, 1.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn embedding_backward_add(dtable: TensorMut, dy: &Tensor, ids: &Tensor) -> Result<()> {
    run(dtable, dy, ids, true)
}

fn run(dtable: TensorMut, dy: &Tensor, ids: &Tensor, add: bool) -> Result<()> {
    CHECK.dtype("dtable", &dtable, DType::F32)?;
    CHECK.dtype("dy", dy, DType::F32)?;
    CHECK.dtype("ids", ids, DType::U32)?;
    let &[_, cols] = dtable.dims() else { return Err(CHECK.bad_shape("dtable", &dtable, "[rows, cols]")) };
    let &[n] = ids.dims() else { return Err(CHECK.bad_shape("ids", ids, "[n]")) };
    CHECK.shape("dy", dy, &[n, cols], "[n, cols]")?;
    CHECK.contiguous("dtable", &dtable)?;
    CHECK.contiguous("dy", dy)?;
    CHECK.contiguous("ids", ids)?;
    match CHECK.device(&dtable, &[("dy", dy), ("ids", ids)])? {
        Device::Cpu => cpu::embedding_backward::embedding_backward(dtable, dy, ids, add),
        Device::Cuda(device) => gpu::embedding_backward::embedding_backward(&device, dtable, dy, ids, add),
    }
}
