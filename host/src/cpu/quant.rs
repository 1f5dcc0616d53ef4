//! Quantising, reading back and multiplying quantised matrices. The arithmetic of a block is the kernels' own code.

use super::{activate, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::problem::activate::Epilogue;
use crate::quant::{Format, QuantRows, QuantTensor};
use crate::{Result, Tensor, TensorMut};
use half::f16;
use kernels_gpu::quant::blocks::{
    BLOCK, Half, SUPER_BLOCK, ScalesQ4K, abs_max, inverse, pack_i8, pack_q4_0, quant_i8, quant_q4_0,
    scale_i8, scale_q4_0, stored_scale,
};
use kernels_gpu::quant::q4_k;
use rayon::prelude::*;

/// The 32 values of a block.
fn block(values: &[f32]) -> [f32; BLOCK] {
    std::array::from_fn(|i| values[i])
}

/// `x` quantised with this scale and dequantised.
pub(crate) fn reconstruct(format: Format, x: f32, scale: f32) -> f32 {
    let stored = if format == Format::I8 { scale } else { Half::from_f32(scale).to_f32() };
    match format {
        Format::Q4_0 => stored * (quant_q4_0(x, inverse(scale)) as i32 - 8) as f32,
        _ => stored * quant_i8(x, inverse(scale)) as f32,
    }
}

/// The scales of a row as the format stores them.
enum RowScales {
    I8(f32),
    Half(Vec<f16>),
    Q4K(Vec<u32>),
}

/// A row of `k` values (padded) to words and scales; with `scales`, those are taken as they are.
fn encode(format: Format, row: &[f32], scales: Option<&[f32]>) -> (Vec<u32>, RowScales) {
    let eights = |values: &[f32], inverse: f32| -> Vec<u32> {
        values.chunks_exact(4).map(|four| pack_i8([four[0], four[1], four[2], four[3]], inverse)).collect()
    };
    match format {
        Format::I8 => {
            let scale = scales.map_or_else(|| scale_i8(abs_max(row)), |scales| scales[0]);
            (eights(row, inverse(scale)), RowScales::I8(scale))
        }
        Format::Q8_0 | Format::Q4_0 => {
            let (mut words, mut halves) = (Vec::new(), Vec::new());
            for (b, values) in row.chunks_exact(BLOCK).enumerate() {
                let values = block(values);
                let scale = match (scales, format) {
                    (Some(scales), _) => scales[b],
                    (None, Format::Q4_0) => scale_q4_0(&values),
                    (None, _) => scale_i8(abs_max(&values)),
                };
                match format {
                    Format::Q4_0 => words.extend(pack_q4_0(&values, inverse(scale))),
                    _ => words.extend(eights(&values, inverse(scale))),
                }
                halves.push(f16::from_bits(stored_scale(scale).0));
            }
            (words, RowScales::Half(halves))
        }
        Format::Q4K => {
            let (mut words, mut packed) = (Vec::new(), Vec::new());
            for values in row.chunks_exact(SUPER_BLOCK) {
                let fits = std::array::from_fn(|j| q4_k::fit(&block(&values[j * BLOCK..])));
                let scales = q4_k::scales(&fits);
                let quant = |j: usize, i: usize| {
                    let (scale, min) = ScalesQ4K::get(scales.packed, j as u32);
                    let (step, min) = q4_k::step_min(scales.d.to_f32(), scales.d_min.to_f32(), scale, min);
                    q4_k::quant(values[j * BLOCK + i], inverse(step), min)
                };
                for pair in 0..SUPER_BLOCK / BLOCK / 2 {
                    for word in 0..BLOCK / 4 {
                        let byte = |b| quant(2 * pair, 4 * word + b) | quant(2 * pair + 1, 4 * word + b) << 4;
                        words.push(byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24);
                    }
                }
                packed.push(u32::from(scales.d.0) | u32::from(scales.d_min.0) << 16);
                packed.extend(scales.packed);
            }
            (words, RowScales::Q4K(packed))
        }
    }
}

/// Writes row `r` of a tensor on the CPU.
pub(crate) fn encode_row(w: &mut QuantTensor, r: usize, row: &[f32], scales: Option<&[f32]>) -> Result<()> {
    let (words, scales) = encode(w.format(), row, scales);
    store_row(w, r, &words, &scales)
}

fn store_row(w: &mut QuantTensor, r: usize, words: &[u32], scales: &RowScales) -> Result<()> {
    let mut quants = w.quants.view_mut()?;
    slice_mut::<u32>(&mut quants)?[r * words.len()..][..words.len()].copy_from_slice(words);
    let mut target = w.scales.view_mut()?;
    match scales {
        RowScales::I8(scale) => slice_mut::<f32>(&mut target)?[r] = *scale,
        RowScales::Half(halves) => {
            slice_mut::<f16>(&mut target)?[r * halves.len()..][..halves.len()].copy_from_slice(halves)
        }
        RowScales::Q4K(words) => {
            slice_mut::<u32>(&mut target)?[r * words.len()..][..words.len()].copy_from_slice(words)
        }
    }
    Ok(())
}

pub(crate) fn quantize(w: &mut QuantTensor, x: &Tensor) -> Result<()> {
    let (format, cols, k) = (w.format(), w.cols(), w.k);
    let x = slice::<f32>(x)?;
    let rows: Vec<_> = x[..w.rows() * cols]
        .par_chunks_exact(cols)
        .map(|x| {
            let mut row = vec![0.0; k];
            row[..cols].copy_from_slice(x);
            encode(format, &row, None)
        })
        .collect();
    for (r, (words, scales)) in rows.iter().enumerate() {
        store_row(w, r, words, scales)?;
    }
    Ok(())
}

pub(crate) fn quantize_rows(rows: &mut QuantRows, x: &Tensor) -> Result<()> {
    let (m, cols) = x.shape().rows_cols();
    let k = rows.k;
    if m == 0 || k == 0 {
        return Ok(());
    }
    let (mut quants, mut scales) = (rows.quants.view_mut()?, rows.scales.view_mut()?);
    let (quants, scales) = (slice_mut::<u32>(&mut quants)?, slice_mut::<u32>(&mut scales)?);
    with_float!(x.dtype(), T => {
        let x = slice::<T>(x)?;
        let targets = quants.par_chunks_exact_mut(k / 4).zip(scales.par_chunks_exact_mut(k / BLOCK * 2));
        targets.zip(x.par_chunks_exact(cols)).for_each(|((quants, scales), x)| {
            let value = |i: usize| x.get(i).map_or(0.0, |x| x.to_f32());
            let targets = quants.chunks_exact_mut(BLOCK / 4).zip(scales.chunks_exact_mut(2));
            for (b, (quants, scales)) in targets.enumerate() {
                let values: [f32; BLOCK] = std::array::from_fn(|i| value(b * BLOCK + i));
                let scale = scale_i8(abs_max(&values));
                let mut sum = 0;
                for (word, four) in quants.iter_mut().zip(values.chunks_exact(4)) {
                    *word = pack_i8([four[0], four[1], four[2], four[3]], inverse(scale));
                    sum += word.to_le_bytes().map(|byte| i32::from(byte as i8)).iter().sum::<i32>();
                }
                (scales[0], scales[1]) = (scale.to_bits(), sum as u32);
            }
        });
    });
    Ok(())
}

/// A row's quants less their offset, and every block's step and minimum.
pub(crate) struct Row {
    pub quants: Vec<i8>,
    pub steps: Vec<(f32, f32)>,
}

/// Row `r` of a tensor on the CPU.
pub(crate) fn read_row(w: &QuantTensor, r: usize) -> Result<Row> {
    let k = w.k;
    let mut quants = vec![0i8; k];
    let words = slice::<u32>(&w.quants)?;
    let row_words = k / 32 * crate::quant::bits(w.format());
    let bytes: &[u8] = bytemuck::cast_slice(&words[r * row_words..][..row_words]);
    match w.format() {
        Format::I8 | Format::Q8_0 => quants.copy_from_slice(bytemuck::cast_slice(bytes)),
        Format::Q4_0 => split_nibbles(&mut quants, bytes, BLOCK / 2, 8),
        Format::Q4K => split_nibbles(&mut quants, bytes, BLOCK, 0),
    }
    let blocks = k / BLOCK;
    let steps = match w.format() {
        Format::I8 => vec![(slice::<f32>(&w.scales)?[r], 0.0); blocks],
        Format::Q8_0 | Format::Q4_0 => {
            slice::<f16>(&w.scales)?[r * blocks..][..blocks].iter().map(|d| (d.to_f32(), 0.0)).collect()
        }
        Format::Q4K => {
            let words = &slice::<u32>(&w.scales)?[r * (blocks / 8) * 4..][..blocks / 8 * 4];
            let mut steps = Vec::with_capacity(blocks);
            for scales in words.chunks_exact(4) {
                let (d, d_min) = (low_half(scales[0]), low_half(scales[0] >> 16));
                for j in 0..8 {
                    let (scale, min) = ScalesQ4K::get([scales[1], scales[2], scales[3]], j);
                    steps.push(q4_k::step_min(d, d_min, scale, min));
                }
            }
            steps
        }
    };
    Ok(Row { quants, steps })
}

/// A half in the low bits of a word.
fn low_half(word: u32) -> f32 {
    f16::from_bits(word as u16).to_f32()
}

/// Runs of `run` bytes: their low halves first, then their high halves.
fn split_nibbles(quants: &mut [i8], bytes: &[u8], run: usize, offset: i8) {
    for (quants, bytes) in quants.chunks_exact_mut(2 * run).zip(bytes.chunks_exact(run)) {
        let (low, high) = quants.split_at_mut(run);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = (byte & 15) as i8 - offset;
            *high = (byte >> 4) as i8 - offset;
        }
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
                let (step, min) = row.steps[i / BLOCK];
                *y = T::from_f32(step.mul_add(f32::from(row.quants[i]), -min));
            }
        }
    });
    Ok(())
}

/// Σ products of a row of x and a row of w: integer sums within blocks, f32 over them.
fn dot(x: &[i8], scales: &[u32], w: &Row) -> f32 {
    let blocks = x.chunks_exact(BLOCK).zip(scales.chunks_exact(2));
    blocks.zip(w.quants.chunks_exact(BLOCK).zip(&w.steps)).fold(0.0, |acc, ((x, scale), (w, (step, min)))| {
        let sum: i32 = x.iter().zip(w).map(|(&x, &w)| i32::from(x) * i32::from(w)).sum();
        acc + f32::from_bits(scale[0]) * (sum as f32 * step - scale[1] as i32 as f32 * min)
    })
}

pub(crate) fn matmul(mut y: TensorMut, x: &QuantRows, w: &QuantTensor, epilogue: &Epilogue) -> Result<()> {
    let (m, n) = (x.shape.rows_cols().0, w.rows());
    if m == 0 || n == 0 {
        return Ok(());
    }
    let quants: &[i8] = bytemuck::cast_slice(slice::<u32>(&x.quants)?);
    let scales = slice::<u32>(&x.scales)?;
    let columns = (0..n)
        .into_par_iter()
        .map(|column| {
            let w = read_row(w, column)?;
            let rows = quants.chunks_exact(x.k).zip(scales.chunks_exact(x.k / BLOCK * 2));
            Ok(rows.map(|(quants, scales)| dot(quants, scales, &w)).collect::<Vec<f32>>())
        })
        .collect::<Result<Vec<_>>>()?;
    let bias = epilogue.bias.map(slice::<f32>).transpose()?;
    let residual = epilogue.residual.map(slice::<f32>).transpose()?;
    for (row, y) in slice_mut::<f32>(&mut y)?[..m * n].chunks_exact_mut(n).enumerate() {
        for (column, y) in y.iter_mut().enumerate() {
            let biased = columns[column][row] + bias.map_or(0.0, |bias| bias[column]);
            let value = activate::value(biased, epilogue.activation);
            *y = value + residual.map_or(0.0, |residual| residual[row * n + column]);
        }
    }
    Ok(())
}

pub(crate) fn straight_through(mut dx: TensorMut, dy: &Tensor, x: &Tensor, limit: f32) -> Result<()> {
    let (dx, inputs) = (slice_mut::<f32>(&mut dx)?, slice::<f32>(dy)?.iter().zip(slice::<f32>(x)?));
    for (dx, (dy, x)) in dx.iter_mut().zip(inputs) {
        *dx = if x.abs() <= limit { *dy } else { 0.0 };
    }
    Ok(())
}
