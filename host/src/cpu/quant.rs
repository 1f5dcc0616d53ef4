//! Quantising and dequantising, as the formats say; they share the arithmetic of a block with the kernels.

mod portable;
mod product;
mod row;
mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use product::{GROUP_COLUMNS, Group, grouped, matmul};
pub(crate) use row::read_row;

use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::quant::{Format, QuantRows, QuantTensor, bits, bytes_mut};
use crate::simd::vectorized;
use crate::{Result, Tensor, TensorMut};
use half::f16;
use kernels_gpu::quant::blocks::{
    BLOCK, Half, RANGE_I8, abs_max, inverse, pack_row_i8, quant_i8, scale_i8, steps, stored_scale,
};
use kernels_gpu::quant::formats::q4_0;
use kernels_gpu::quant::scaled::scale_of;
use rayon::prelude::*;

/// The 32 values of a block.
fn block(values: &[f32]) -> [f32; BLOCK] {
    std::array::from_fn(|i| values[i])
}

/// `x` quantised with this scale and dequantised.
pub(crate) fn reconstruct(format: Format, x: f32, scale: f32) -> f32 {
    let stored = if format == Format::I8 { scale } else { Half::from_f32(scale).to_f32() };
    match format {
        Format::Q4_0 => stored * (q4_0::quant(steps(x, inverse(scale), q4_0::RANGE), 1.0) as i32 - 8) as f32,
        _ => stored * quant_i8(steps(x, inverse(scale), RANGE_I8), 1.0) as f32,
    }
}

/// Encodes row `r` of a tensor on the CPU with scales that are used unchanged: one for a row of I8, one for a block of Q8_0 and Q4_0.
pub(crate) fn encode_row(w: &mut QuantTensor, r: usize, row: &[f32], scales: &[f32]) -> Result<()> {
    let (format, per_row) = (w.format(), w.k / 32 * bits(w.format()));
    let range = if format == Format::Q4_0 { q4_0::RANGE } else { RANGE_I8 };
    let clipped = |values: &[f32], scale: f32| -> [f32; BLOCK] {
        let inverse = inverse(scale);
        block(values).map(|x| steps(x, inverse, range))
    };
    let mut quants = w.quants.view_mut()?;
    let words = slice_mut::<u32>(&mut quants)?[r * per_row..][..per_row].chunks_exact_mut(bits(format));
    let mut stored = w.scales.view_mut()?;
    if format == Format::I8 {
        slice_mut::<f32>(&mut stored)?[r] = scales[0];
        for (words, values) in words.zip(row.chunks_exact(BLOCK)) {
            fill(words, pack_row_i8(&clipped(values, scales[0]), 1.0));
        }
        return Ok(());
    }
    let stored = &mut slice_mut::<f16>(&mut stored)?[r * scales.len()..];
    for ((words, values), (stored, scale)) in
        words.zip(row.chunks_exact(BLOCK)).zip(stored.iter_mut().zip(scales))
    {
        let scale = scale_of(&block(values), *scale);
        let values = clipped(values, scale);
        match format {
            Format::Q4_0 => fill(words, q4_0::pack(&values, 1.0)),
            _ => fill(words, pack_row_i8(&values, 1.0)),
        }
        *stored = f16::from_bits(stored_scale(scale).0);
    }
    Ok(())
}

fn fill(to: &mut [u32], words: impl IntoIterator<Item = u32>) {
    to.iter_mut().zip(words).for_each(|(to, word)| *to = word);
}

pub(crate) fn quantize(w: &mut QuantTensor, x: &Tensor) -> Result<()> {
    let (about, cols, k) = (w.format().descriptor(), w.cols(), w.k);
    let (of_quants, of_scales) = (k / 8 * about.bits, about.scales.row_bytes(k));
    let x = &slice::<f32>(x)?[..w.rows() * cols];
    let (mut quants, mut scales) = (w.quants.view_mut()?, w.scales.view_mut()?);
    let quants = bytes_mut(&mut quants).par_chunks_exact_mut(of_quants);
    let scales = bytes_mut(&mut scales).par_chunks_exact_mut(of_scales);
    quants.zip(scales).zip(x.par_chunks_exact(cols)).for_each(|((quants, scales), x)| {
        let mut row = vec![0.0; k];
        row[..cols].copy_from_slice(x);
        (about.encode)(&row, quants, scales);
    });
    Ok(())
}

pub(crate) fn quantize_rows(rows: &mut QuantRows, x: &Tensor) -> Result<()> {
    let (m, cols) = x.shape().rows_cols();
    let k = rows.k;
    if k == 0 {
        return Ok(());
    }
    let (mut quants, mut scales) = (rows.quants.view_mut()?, rows.scales.view_mut()?);
    let (quants, scales) = (slice_mut::<u32>(&mut quants)?, slice_mut::<u32>(&mut scales)?);
    with_float!(x.dtype(), T => {
        let x = &slice::<T>(x)?[..m * cols];
        let rows = quants.par_chunks_exact_mut(k / 4).zip(scales.par_chunks_exact_mut(k / BLOCK * 2));
        let rows = rows.zip(x.par_chunks_exact(cols));
        rows.with_min_len(ELEMENTS_PER_TASK.div_ceil(k)).in_tasks(|((quants, scales), x)| {
            vectorized!(quantize_row(bytemuck::cast_slice_mut(quants), scales, x));
        });
    });
    Ok(())
}

/// The quants of a row, padded with zeros, and each block's scale and sum.
#[inline(always)]
fn quantize_row<T: Float>(quants: &mut [i8], scales: &mut [u32], x: &[T]) {
    let targets = quants.chunks_exact_mut(BLOCK).zip(scales.chunks_exact_mut(2));
    for (b, (quants, scales)) in targets.enumerate() {
        let mut values = [0.0; BLOCK];
        let x = &x[(b * BLOCK).min(x.len())..];
        let len = x.len().min(BLOCK);
        T::read(&x[..len], &mut values[..len]);
        let scale = scale_i8(abs_max(&values));
        let inverse = inverse(scale);
        for (quant, value) in quants.iter_mut().zip(values) {
            *quant = quant_i8(value, inverse) as i8;
        }
        let sum: i32 = quants.iter().map(|&quant| i32::from(quant)).sum();
        (scales[0], scales[1]) = (scale.to_bits(), sum as u32);
    }
}

pub(crate) fn dequantize(mut y: TensorMut, w: &QuantTensor, ids: Option<&Tensor>) -> Result<()> {
    let (rows, cols) = y.shape().rows_cols();
    let ids = ids.map(slice::<u32>).transpose()?;
    with_float!(y.dtype(), T => {
        let y = slice_mut::<T>(&mut y)?;
        for (r, y) in y[..rows * cols].chunks_exact_mut(cols).enumerate() {
            let from = ids.map_or(r, |ids| ids[r] as usize);
            if from >= w.rows() {
                y.fill(T::from_f32(f32::NAN));
                continue;
            }
            let row = read_row(w, from)?;
            for (i, y) in y.iter_mut().enumerate() {
                let (step, min) = row.steps[i / BLOCK][i % BLOCK / (BLOCK / 2)];
                *y = T::from_f32(step.mul_add(f32::from(row.quants[i]), -min));
            }
        }
    });
    Ok(())
}

pub(crate) fn straight_through(mut dx: TensorMut, dy: &Tensor, x: &Tensor, limit: f32) -> Result<()> {
    let (dx, inputs) = (slice_mut::<f32>(&mut dx)?, slice::<f32>(dy)?.iter().zip(slice::<f32>(x)?));
    for (dx, (dy, x)) in dx.iter_mut().zip(inputs) {
        *dx = if x.abs() <= limit { *dy } else { 0.0 };
    }
    Ok(())
}
