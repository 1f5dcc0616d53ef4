//! Quantising with given scales, and its gradients. The arithmetic of a value is the kernels' own code; a block is summed in f64.

use super::quant::encode_row;
use super::{slice, slice_mut};
use crate::parallel::InTasks;
use crate::quant::{Format, QuantTensor};
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::quant::blocks::{BLOCK, inverse};
use kernels_gpu::quant::scaled::derivative;
use rayon::prelude::*;

pub(crate) fn quantize(w: &mut QuantTensor, x: &Tensor, scales: &Tensor) -> Result<()> {
    let (rows, cols, k) = (w.rows(), w.cols(), w.k);
    let (x, scales) = (&slice::<f32>(x)?[..rows * cols], slice::<f32>(scales)?);
    let mut row = vec![0.0; k];
    for (r, (x, scales)) in x.chunks_exact(cols).zip(scales.chunks_exact(k / BLOCK)).enumerate() {
        row[..cols].copy_from_slice(x);
        encode_row(w, r, &row, scales)?;
    }
    Ok(())
}

pub(crate) fn backward(
    mut dx: TensorMut,
    mut dscales: TensorMut,
    dy: &Tensor,
    x: &Tensor,
    scales: &Tensor,
    format: Format,
) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let blocks = cols.div_ceil(BLOCK);
    if rows == 0 {
        return Ok(());
    }
    let derivative = if format == Format::Q4_0 { derivative::<true> } else { derivative::<false> };
    let dx = slice_mut::<f32>(&mut dx)?[..rows * cols].par_chunks_exact_mut(cols);
    let dscales = slice_mut::<f32>(&mut dscales)?[..rows * blocks].par_chunks_exact_mut(blocks);
    let inputs = slice::<f32>(dy)?.par_chunks_exact(cols).zip(slice::<f32>(x)?.par_chunks_exact(cols));
    let scales = slice::<f32>(scales)?.par_chunks_exact(blocks);
    dx.zip(dscales).zip(inputs).zip(scales).in_tasks(|(((dx, dscales), (dy, x)), scales)| {
        let values = dx.chunks_mut(BLOCK).zip(dy.chunks(BLOCK)).zip(x.chunks(BLOCK));
        for (((dx, dy), x), (dscale, &scale)) in values.zip(dscales.iter_mut().zip(scales)) {
            let (inverse, mut sum) = (inverse(scale), 0.0);
            for ((dx, &dy), &x) in dx.iter_mut().zip(dy).zip(x) {
                let (by_scale, within) = derivative(x, inverse);
                *dx = if within { dy } else { 0.0 };
                sum += f64::from(dy) * f64::from(by_scale);
            }
            *dscale = sum as f32;
        }
    });
    Ok(())
}
