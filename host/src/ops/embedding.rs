//! Looks up rows of a table.

use super::check::Check;
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("embedding");

/// `y[i, :] = table[ids[i], :]`, in f32.
///
/// `table`: [rows, cols] f32 or f16, `ids`: `[n]` u32, both contiguous. An id beyond the table gives a row of NaN.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let table = Tensor::from_slice(&[0.0f32, 0.5, 1.0, 1.5, 2.0, 2.5], [3, 2], &Device::Cpu)?;
/// let ids = Tensor::from_slice(&[2u32, 0], [2], &Device::Cpu)?;
/// assert_eq!(ops::embedding(&table, &ids)?.to_vec::<f32>()?, [2.0, 2.5, 0.0, 0.5]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let cols = table.dims().last().copied().unwrap_or(0);
    let mut y = Tensor::uninitialized([ids.shape().elements(), cols], DType::F32, &table.device())?;
    embedding_into(y.view_mut()?, table, ids)?;
    Ok(y)
}

/// [`embedding`] into `y`, [n, cols] f32.
pub fn embedding_into(y: TensorMut, table: &Tensor, ids: &Tensor) -> Result<()> {
    CHECK.float("table", table)?;
    CHECK.dtype("ids", ids, DType::U32)?;
    CHECK.dtype("y", &y, DType::F32)?;
    let &[_, cols] = table.dims() else { return Err(CHECK.bad_shape("table", table, "[rows, cols]")) };
    let &[n] = ids.dims() else { return Err(CHECK.bad_shape("ids", ids, "[n]")) };
    CHECK.shape("y", &y, &[n, cols], "[n, cols]")?;
    CHECK.contiguous("table", table)?;
    CHECK.contiguous("ids", ids)?;
    CHECK.contiguous("y", &y)?;
    match CHECK.device(&y, &[("table", table), ("ids", ids)])? {
        Device::Cpu => cpu::embedding::embedding(y, table, ids),
        Device::Cuda(device) => gpu::embedding::embedding(&device, y, table, ids),
    }
}
