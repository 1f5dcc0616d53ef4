//! Quantising and dequantising. The arithmetic of a block is shared with the kernels.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod product;

pub(crate) use product::matmul;

use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::parallel::InTasks;
use crate::quant::{Format, QuantRows, QuantTensor};
use crate::simd::vectorized;
use crate::{Result, Tensor, TensorMut};
use half::f16;
use kernels_gpu::quant::blocks::{
    BLOCK, BLOCKS_PER_SUPER, Half, RANGE_I8, RANGE_Q4_0, SUPER_BLOCK, ScalesQ4K, abs_max, inverse, pack_i8,
    pack_q4_0, quant_i8, quant_q4_0, scale_i8, scale_q4_0, steps, stored_scale,
};
use kernels_gpu::quant::scaled::scale_of;
use kernels_gpu::quant::{iq4, q4_k, q5_k, q6_k, search};
use rayon::prelude::*;

/// The 32 values of a block.
fn block(values: &[f32]) -> [f32; BLOCK] {
    std::array::from_fn(|i| values[i])
}

/// `x` quantised with this scale and dequantised.
pub(crate) fn reconstruct(format: Format, x: f32, scale: f32) -> f32 {
    let stored = if format == Format::I8 { scale } else { Half::from_f32(scale).to_f32() };
    match format {
        Format::Q4_0 => stored * (quant_q4_0(steps(x, inverse(scale), RANGE_Q4_0), 1.0) as i32 - 8) as f32,
        _ => stored * quant_i8(steps(x, inverse(scale), RANGE_I8), 1.0) as f32,
    }
}

/// A scale and 1/scale.
fn with_inverse(scale: f32) -> (f32, f32) {
    (scale, inverse(scale))
}

/// The scales of a row as the format stores them.
enum RowScales {
    I8(f32),
    Half(Vec<f16>),
    Words(Vec<u32>),
}

/// Encodes a row of `k` values (padded) as words and scales. If `scales` is given, it is used unchanged.
fn encode(format: Format, row: &[f32], scales: Option<&[f32]>) -> (Vec<u32>, RowScales) {
    let eights = |values: &[f32], inverse: f32| -> Vec<u32> {
        values.chunks_exact(4).map(|four| pack_i8([four[0], four[1], four[2], four[3]], inverse)).collect()
    };
    let range = if format == Format::Q4_0 { RANGE_Q4_0 } else { RANGE_I8 };
    match format {
        Format::I8 => match scales {
            None => {
                let scale = scale_i8(abs_max(row));
                (eights(row, inverse(scale)), RowScales::I8(scale))
            }
            Some(scales) => {
                let row: Vec<f32> = row.iter().map(|&x| steps(x, inverse(scales[0]), range)).collect();
                (eights(&row, 1.0), RowScales::I8(scales[0]))
            }
        },
        Format::Q8_0 | Format::Q4_0 => {
            let (mut words, mut halves) = (Vec::new(), Vec::new());
            for (b, values) in row.chunks_exact(BLOCK).enumerate() {
                let mut values = block(values);
                let (scale, inverse) = match (scales, format) {
                    (Some(scales), _) => {
                        let scale = scale_of(&values, scales[b]);
                        values = values.map(|x| steps(x, inverse(scale), range));
                        (scale, 1.0)
                    }
                    (None, Format::Q4_0) => with_inverse(scale_q4_0(&values)),
                    (None, _) => with_inverse(scale_i8(abs_max(&values))),
                };
                match format {
                    Format::Q4_0 => words.extend(pack_q4_0(&values, inverse)),
                    _ => words.extend(eights(&values, inverse)),
                }
                halves.push(f16::from_bits(stored_scale(scale).0));
            }
            (words, RowScales::Half(halves))
        }
        Format::Iq4Nl => {
            let (mut words, mut halves) = (Vec::new(), Vec::new());
            for values in row.chunks_exact(BLOCK).map(block) {
                let scale = stored_scale(iq4::fit(&values));
                words.extend(iq4::pack(&values, inverse(scale.to_f32())));
                halves.push(f16::from_bits(scale.0));
            }
            (words, RowScales::Half(halves))
        }
        Format::Q4K | Format::Q5K | Format::Q6K | Format::Iq4Xs => {
            let (mut words, mut scales) = (Vec::new(), Vec::new());
            for values in row.chunks_exact(SUPER_BLOCK) {
                let blocks = std::array::from_fn(|j| block(&values[j * BLOCK..]));
                match format {
                    Format::Q5K => encode_q5_k(&blocks, &mut words, &mut scales),
                    Format::Q6K => encode_q6_k(&blocks, &mut words, &mut scales),
                    Format::Iq4Xs => encode_iq4_xs(&blocks, &mut words, &mut scales),
                    _ => encode_q4_k(&blocks, &mut words, &mut scales),
                }
            }
            (words, RowScales::Words(scales))
        }
    }
}

/// The blocks of a super-block.
type SuperBlock = [[f32; BLOCK]; BLOCKS_PER_SUPER];
/// A block's quants, a byte each.
type Quants = [u32; BLOCK / 4];

/// A super-block's quants, each at most MAX. Appends its scales to `scale_words`.
fn with_minima<const MAX: i32>(
    blocks: &SuperBlock,
    scale_words: &mut Vec<u32>,
) -> [Quants; BLOCKS_PER_SUPER] {
    let scales = q4_k::scales(&blocks.map(|block| q4_k::fit::<MAX>(&block)));
    scale_words.push(u32::from(scales.d.0) | u32::from(scales.d_min.0) << 16);
    scale_words.extend(scales.packed);
    std::array::from_fn(|j| {
        let (scale, min) = ScalesQ4K::get(scales.packed, j as u32);
        let (step, min) = q4_k::step_min(scales.d.to_f32(), scales.d_min.to_f32(), scale, min);
        let quant = |i: usize| q4_k::quant::<MAX>(blocks[j][i], inverse(step), min) as u8;
        std::array::from_fn(|word| u32::from_le_bytes(std::array::from_fn(|b| quant(4 * word + b))))
    })
}

/// Packs the low nibbles of a super-block's quants: two blocks share each byte.
fn pair_nibbles(quants: &[Quants; BLOCKS_PER_SUPER]) -> impl Iterator<Item = u32> {
    let low = |word: u32| word & 0x0f0f_0f0f;
    quants
        .chunks_exact(2)
        .flat_map(move |pair| (0..BLOCK / 4).map(move |i| low(pair[0][i]) | low(pair[1][i]) << 4))
}

fn encode_q4_k(blocks: &SuperBlock, words: &mut Vec<u32>, scales: &mut Vec<u32>) {
    words.extend(pair_nibbles(&with_minima::<15>(blocks, scales)));
}

fn encode_q5_k(blocks: &SuperBlock, words: &mut Vec<u32>, scales: &mut Vec<u32>) {
    let quants = with_minima::<31>(blocks, scales);
    words.extend(pair_nibbles(&quants));
    for pair in quants.chunks_exact(2) {
        let (first, second) = (q5_k::fifth_bits(pair[0]), q5_k::fifth_bits(pair[1]));
        words.extend(first.iter().zip(second).map(|(first, second)| first | second << 4));
    }
}

fn encode_q6_k(blocks: &SuperBlock, words: &mut Vec<u32>, scale_words: &mut Vec<u32>) {
    let fits = blocks.map(|block| q6_k::fit(&block));
    let (largest, positive) = search::largest(fits.as_flattened());
    let d = q6_k::super_scale(largest, positive);
    let scales = fits.map(|fits| fits.map(|scale| q6_k::relative(scale, d.to_f32())));
    let quants: [Quants; BLOCKS_PER_SUPER] = std::array::from_fn(|j| {
        let inverses = scales[j].map(|scale| inverse(d.to_f32() * f32::from(scale)));
        let four = |word: usize| std::array::from_fn(|b| blocks[j][4 * word + b]);
        std::array::from_fn(|word| q6_k::quants(four(word), inverses[word / 4]))
    });
    words.extend(pair_nibbles(&quants));
    for pair in quants.chunks_exact(2) {
        let (first, second) = (q6_k::upper_bits(pair[0]), q6_k::upper_bits(pair[1]));
        words.extend(first.iter().zip(second).map(|(first, second)| first | second << 4));
    }
    let bytes = scales.as_flattened().chunks_exact(4);
    scale_words
        .extend(bytes.map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]].map(|s| s as u8))));
    scale_words.push(u32::from(d.0));
}

fn encode_iq4_xs(blocks: &SuperBlock, words: &mut Vec<u32>, scale_words: &mut Vec<u32>) {
    let fits = blocks.map(|block| iq4::fit(&block));
    let (largest, positive) = search::largest(&fits);
    let d = iq4::super_scale(largest, positive);
    let (mut high, mut low) = (0, 0);
    for (j, (values, fit)) in blocks.iter().zip(fits).enumerate() {
        let scale = iq4::relative(fit, d.to_f32());
        let [own_high, own_low] = iq4::bits(j as u32, scale);
        (high, low) = (high | own_high, low | own_low);
        words.extend(iq4::pack(values, inverse(d.to_f32() * scale as f32)));
    }
    scale_words.extend([u32::from(d.0) | high << 16, low]);
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
        RowScales::Words(words) => {
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

/// A row's quants less their offset (for table formats, the values they index), and the factors of every block.
pub(crate) struct DecodedRow {
    pub quants: Vec<i8>,
    pub steps: Vec<Step>,
}

/// The factors that turn a block's quants into values.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// A step and a minimum.
    Whole(f32, f32),
    /// A step for each half.
    Halves([f32; 2]),
}

impl Step {
    /// The step and the minimum for value `i` of the block.
    fn at(self, i: usize) -> (f32, f32) {
        match self {
            Self::Whole(step, min) => (step, min),
            Self::Halves(steps) => (steps[i / (BLOCK / 2)], 0.0),
        }
    }
}

/// DecodedRow `r` of a tensor on the CPU.
pub(crate) fn read_row(w: &QuantTensor, r: usize) -> Result<DecodedRow> {
    let k = w.k;
    let mut quants = vec![0i8; k];
    let words = slice::<u32>(&w.quants)?;
    let row_words = k / 32 * crate::quant::bits(w.format());
    let words = &words[r * row_words..][..row_words];
    let bytes: &[u8] = bytemuck::cast_slice(words);
    match w.format() {
        Format::I8 | Format::Q8_0 => quants.copy_from_slice(bytemuck::cast_slice(bytes)),
        Format::Q4_0 => split_nibbles(&mut quants, bytes, BLOCK / 2, 8),
        Format::Q4K => split_nibbles(&mut quants, bytes, BLOCK, 0),
        Format::Q5K => read_sections(&mut quants, words, |chunk, upper| q5_k::widen(chunk, upper[0])),
        Format::Q6K => {
            read_sections(&mut quants, words, |chunk, upper| q6_k::widen(chunk, [upper[0], upper[1]]))
        }
        Format::Iq4Nl | Format::Iq4Xs => {
            for (quants, words) in quants.chunks_exact_mut(BLOCK).zip(words.chunks_exact(4)) {
                let (first, second) = quants.split_at_mut(BLOCK / 2);
                let targets = first.chunks_exact_mut(4).zip(second.chunks_exact_mut(4));
                for ((first, second), &word) in targets.zip(words) {
                    let [low, high] = iq4::levels(word);
                    first.copy_from_slice(&signed(low));
                    second.copy_from_slice(&signed(high));
                }
            }
        }
    }
    let blocks = k / BLOCK;
    // `words` words for each super-block
    let of_super = |words: usize, steps: fn(&[u32], usize) -> Step| -> Result<Vec<Step>> {
        let count = blocks / BLOCKS_PER_SUPER * words;
        let scales = slice::<u32>(&w.scales)?[r * count..][..count].chunks_exact(words);
        Ok(scales.flat_map(|scales| (0..BLOCKS_PER_SUPER).map(move |j| steps(scales, j))).collect())
    };
    let steps = match w.format() {
        Format::I8 => vec![Step::Whole(slice::<f32>(&w.scales)?[r], 0.0); blocks],
        Format::Q8_0 | Format::Q4_0 | Format::Iq4Nl => {
            let scales = &slice::<f16>(&w.scales)?[r * blocks..][..blocks];
            scales.iter().map(|d| Step::Whole(d.to_f32(), 0.0)).collect()
        }
        Format::Q4K | Format::Q5K => of_super(4, |scales, j| {
            let (d, d_min) = (low_half(scales[0]), low_half(scales[0] >> 16));
            let (scale, min) = ScalesQ4K::get([scales[1], scales[2], scales[3]], j as u32);
            let (step, min) = q4_k::step_min(d, d_min, scale, min);
            Step::Whole(step, min)
        })?,
        Format::Q6K => of_super(5, |scales, j| {
            let two = signed(scales[j / 2]);
            let d = low_half(scales[4]);
            Step::Halves([two[j % 2 * 2], two[j % 2 * 2 + 1]].map(|scale| q6_k::step(d, scale)))
        })?,
        Format::Iq4Xs => of_super(2, |scales, j| {
            Step::Whole(iq4::step(low_half(scales[0]), scales[0] >> 16, scales[1], j as u32), 0.0)
        })?,
    };
    Ok(DecodedRow { quants, steps })
}

/// The bytes of a word, signed.
fn signed(word: u32) -> [i8; 4] {
    word.to_le_bytes().map(|byte| byte as i8)
}

/// Unpacks super-blocks of low nibbles and upper bits. `widen` combines a chunk of nibbles with its upper bits to bytes.
fn read_sections(quants: &mut [i8], words: &[u32], widen: impl Fn([u32; 4], &[u32]) -> [[u32; 4]; 2]) {
    let super_words = words.len() / (quants.len() / SUPER_BLOCK).max(1);
    for (quants, words) in quants.chunks_exact_mut(SUPER_BLOCK).zip(words.chunks_exact(super_words)) {
        let (low, upper) = words.split_at(SUPER_BLOCK / 8);
        let upper = upper.chunks_exact(upper.len() / 8);
        for (c, (chunk, upper)) in low.chunks_exact(4).zip(upper).enumerate() {
            let runs = widen([chunk[0], chunk[1], chunk[2], chunk[3]], upper);
            for (half, run) in runs.iter().enumerate() {
                let to = &mut quants[c / 2 * 2 * BLOCK + half * BLOCK + c % 2 * 16..][..16];
                to.copy_from_slice(run.map(signed).as_flattened());
            }
        }
    }
}

/// The f16 in the low half of a word.
fn low_half(word: u32) -> f32 {
    f16::from_bits(word as u16).to_f32()
}

/// For each `run` bytes: the low nibbles first, then the high nibbles.
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
                let (step, min) = row.steps[i / BLOCK].at(i % BLOCK);
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
