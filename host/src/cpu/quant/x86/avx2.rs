//! The tiles of a quantised product by AVX2.
//!
//! A single row of x uses the blocks untransposed; see [`tile_of_one`]. Its sums are the same integers.
//!
//! flow: w [8 rows, 32] → bytes → transposed [8 words][8 columns] · x word → i32 [8 columns] → f32 · factors → acc [8 columns]
//!
//! | quants                          | products                                        |
//! |---------------------------------|-------------------------------------------------|
//! | of 6 bits or fewer, unsigned    | `vpmaddubsw`, some added in 16 bits             |
//! | signed bytes                    | widened to 16 bits, `vpmaddwd`, exact for −128  |
//!
//! How blocks are unpacked is in the formats' files ([`Avx2`]).

use super::{Panel, WORDS, WeightBytes, group_bytes, panels, store};
use crate::cpu::quant::tile::{Activations, Factors, ROWS};
use crate::quant::Format;
use crate::simd;
use kernels_gpu::quant::blocks::{BLOCK, BLOCKS_PER_SUPER};
use kernels_gpu::quant::formats;
use kernels_gpu::quant::formats::avx2::{Avx2, Steps, load, transposed};
use std::arch::x86_64::*;

pub(in crate::cpu::quant) use kernels_gpu::quant::formats::avx2::ROWS as TILE;

type Tile<'a, const G: usize> = super::Tile<'a, TILE, G>;

macro_rules! kinds {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// [`tiles_of`] for the format of the weights.
        #[target_feature(enable = "avx2,fma,f16c")]
        fn tiles_of_any(y: &mut [&mut [f32]], x: &PreparedRows, w: &WeightBytes, first: usize) {
            match w.format {
                $(Format::$format => {
                    tiles_of::<formats::$file::$format, { group_bytes(Format::$format) }>(y, x, w, first)
                })*
            }
        }

        /// Whether a format's quants are signed bytes.
        fn is_signed(format: Format) -> bool {
            match format {
                $(Format::$format => formats::$file::$format::SIGNED,)*
            }
        }
    };
}

kernels_gpu::for_each_format!(kinds);

/// The rows of x in the form that a tile multiplies.
pub(in crate::cpu::quant) enum PreparedRows<'a> {
    /// A single row: its quants in order, and the blocks' factors.
    One(&'a [i8], Vec<Factors>),
    Panels(Vec<Panel>),
}

impl<'a> PreparedRows<'a> {
    /// Prepares rows for weights of this format.
    pub fn new(x: Activations<'a>, format: Format) -> Self {
        if x.rows() > 1 {
            return Self::Panels(panels(x, is_signed(format)));
        }
        Self::One(x.row(0).0, x.factors(0))
    }
}

/// Computes the columns from number `first` on, for all rows.
pub(in crate::cpu::quant) fn tiles(
    _: simd::Avx2,
    y: &mut [&mut [f32]],
    x: &PreparedRows,
    w: &WeightBytes,
    first: usize,
) {
    // SAFETY: the processor has these features: the first argument proves it.
    unsafe { tiles_of_any(y, x, w, first) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn tiles_of<F: Avx2, const G: usize>(y: &mut [&mut [f32]], x: &PreparedRows, w: &WeightBytes, first: usize) {
    let (mut acc, mut rest) = ([[0.0; TILE]; ROWS], [[0; G]; TILE]);
    let columns = y.first().map_or(0, |y| y.len());
    w.prefetch::<TILE>(first);
    match x {
        PreparedRows::One(quants, factors) => {
            for start in (0..columns).step_by(TILE) {
                tile_of_one::<F, G>(
                    &mut acc[0],
                    quants,
                    factors,
                    &Tile::new(w, first + start, first + columns, &mut rest),
                );
                store(&mut y[0][start..], &acc[0]);
            }
        }
        PreparedRows::Panels(panels) => {
            for (panel, y) in panels.iter().zip(y.chunks_mut(ROWS)) {
                for start in (0..columns).step_by(TILE) {
                    let acc = &mut acc[..panel.rows];
                    tile::<F, G>(acc, panel, &Tile::new(w, first + start, first + columns, &mut rest));
                    for (y, acc) in y.iter_mut().zip(acc) {
                        store(&mut y[start..], acc);
                    }
                }
            }
        }
    }
}

/// The steps and minima of one block.
#[inline]
fn of_block(steps: &Steps, j: usize) -> [__m256; 4] {
    [steps[0][j], steps[1][j], steps[2][j], steps[3][j]]
}

/// acc [rows] = x·wᵀ of a panel and eight rows of w.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<F: Avx2, const G: usize>(acc: &mut [[f32; TILE]], panel: &Panel, w: &Tile<G>) {
    let signed = F::SIGNED;
    let per_block = panel.rows * if signed { 2 * WORDS } else { WORDS };
    acc.fill([0.0; TILE]);
    let mut steps: Steps = [[_mm256_setzero_ps(); BLOCKS_PER_SUPER]; 4];
    for group in 0..w.groups {
        // SAFETY: this function has the features.
        unsafe { F::steps_of_rows(&w.scales, group, &mut steps) };
        let w = w.group(group);
        for j in 0..BLOCKS_PER_SUPER {
            let (b, steps) = (group * BLOCKS_PER_SUPER + j, of_block(&steps, j));
            let mut quants = [_mm256_setzero_si256(); TILE];
            for (quants, row) in quants.iter_mut().zip(w) {
                // SAFETY: this function has the features.
                *quants = unsafe { F::block(row, j) };
            }
            let quants = transposed(quants);
            let words = &panel.words[b * per_block..][..per_block];
            let rows = acc.iter_mut().zip(&panel.factors[b * panel.rows..][..panel.rows]);
            if signed {
                let mut wide = [[_mm256_setzero_si256(); 2]; WORDS];
                for (wide, bytes) in wide.iter_mut().zip(quants) {
                    *wide = widened(bytes);
                }
                for ((acc, factors), words) in rows.zip(words.as_chunks::<{ 2 * WORDS }>().0) {
                    let sums = [signed_sum(&wide, words), _mm256_setzero_si256()];
                    store_f32(acc, add(load_f32(acc), factors, scaled::<F>(sums, factors.sums, steps)));
                }
            } else {
                for ((acc, factors), words) in rows.zip(words.as_chunks::<WORDS>().0) {
                    let sums = unsigned_sums::<F>(&quants, words);
                    store_f32(acc, add(load_f32(acc), factors, scaled::<F>(sums, factors.sums, steps)));
                }
            }
        }
    }
}

/// acc = x·wᵀ of one row and eight rows of w. For one row of x, transposing a block would cost more than summing its
/// products: a tree of additions of neighbours, whose last level has the eight columns side by side.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_of_one<F: Avx2, const G: usize>(to: &mut [f32; TILE], x: &[i8], factors: &[Factors], w: &Tile<G>) {
    let mut acc = _mm256_setzero_ps();
    let mut steps: Steps = [[_mm256_setzero_ps(); BLOCKS_PER_SUPER]; 4];
    let groups = x.as_chunks::<{ BLOCKS_PER_SUPER * BLOCK }>().0.iter();
    let groups = groups.zip(factors.as_chunks::<BLOCKS_PER_SUPER>().0).take(w.groups).enumerate();
    for (group, (x, factors)) in groups {
        // SAFETY: this function has the features.
        unsafe { F::steps_of_rows(&w.scales, group, &mut steps) };
        let w = w.group(group);
        let x: &[u8; BLOCKS_PER_SUPER * BLOCK] = bytemuck::cast_ref(x);
        for pair in 0..BLOCKS_PER_SUPER / 2 {
            let blocks = [load(x, 2 * pair), load(x, 2 * pair + 1)];
            // SAFETY: this function has the features.
            let sums = unsafe { F::sums_of_pair(&w, pair, blocks) };
            for i in 0..2 {
                let (j, sums) = (2 * pair + i, sums[i]);
                let product = scaled::<F>(sums, factors[j].sums, of_block(&steps, j));
                acc = add(acc, &factors[j], product);
            }
        }
    }
    store_f32(to, acc);
}

/// Whether a format's blocks have minima.
const fn has_minima<F: Avx2>() -> bool {
    F::FORMAT.descriptor().minimum
}

/// Whether the halves of its blocks have different steps.
const fn has_halves<F: Avx2>() -> bool {
    F::FORMAT.descriptor().halves
}

/// acc + scale · product
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(acc: __m256, factors: &Factors, product: __m256) -> __m256 {
    _mm256_fmadd_ps(_mm256_set1_ps(factors.scale), product, acc)
}

/// The product of one block of x and eight columns, from the sums of the halves, or the whole block's sum in the first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scaled<F: Avx2>(sums: [__m256i; 2], of_x: [i32; 2], steps: [__m256; 4]) -> __m256 {
    let without_offset = |sum, of_x: i32| {
        let sum = if F::ADDED == 0 { sum } else { _mm256_sub_epi32(sum, _mm256_set1_epi32(F::ADDED * of_x)) };
        _mm256_cvtepi32_ps(sum)
    };
    let of_both = of_x[0] + of_x[1];
    if has_halves::<F>() {
        let (first, second) = (without_offset(sums[0], of_x[0]), without_offset(sums[1], of_x[1]));
        let product = _mm256_fmadd_ps(first, steps[0], _mm256_mul_ps(second, steps[1]));
        if !has_minima::<F>() {
            return product;
        }
        let product = _mm256_fnmadd_ps(_mm256_set1_ps(of_x[0] as f32), steps[2], product);
        _mm256_fnmadd_ps(_mm256_set1_ps(of_x[1] as f32), steps[3], product)
    } else if has_minima::<F>() {
        let minima = _mm256_mul_ps(_mm256_set1_ps(of_both as f32), steps[1]);
        _mm256_fmsub_ps(without_offset(sums[0], of_both), steps[0], minima)
    } else {
        _mm256_mul_ps(without_offset(sums[0], of_both), steps[0])
    }
}

/// Σ q·x of each column, for unsigned quants: per half of the block, or the whole block's in the first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unsigned_sums<F: Avx2>(quants: &[__m256i; WORDS], words: &[u32; WORDS]) -> [__m256i; 2] {
    let (halves, most) = (has_halves::<F>(), F::IN_16_BITS);
    let mut sums = [_mm256_setzero_si256(); 2];
    let mut short = _mm256_setzero_si256();
    for g in 0..WORDS {
        let products = _mm256_maddubs_epi16(quants[g], _mm256_set1_epi32(words[g] as i32));
        short = if g % most == 0 { products } else { _mm256_add_epi16(short, products) };
        if (g + 1) % most == 0 {
            let sum = &mut sums[if halves { g / (WORDS / 2) } else { 0 }];
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(short, _mm256_set1_epi16(1)));
        }
    }
    sums
}

/// Σ q·x of each column, for signed quants.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed_sum(quants: &[[__m256i; 2]; WORDS], words: &[u32; 2 * WORDS]) -> __m256i {
    let mut sums = [_mm256_setzero_si256(); 2];
    for g in 0..WORDS {
        for i in 0..2 {
            let product = _mm256_madd_epi16(quants[g][i], _mm256_set1_epi32(words[2 * g + i] as i32));
            sums[i] = _mm256_add_epi32(sums[i], product);
        }
    }
    _mm256_add_epi32(sums[0], sums[1])
}

/// The even bytes widened to 16 bits, and the odd ones.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn widened(bytes: __m256i) -> [__m256i; 2] {
    [_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), _mm256_srai_epi16(bytes, 8)]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn store_f32(to: &mut [f32; TILE], x: __m256) {
    // SAFETY: `to` holds eight f32 by its type, and the store needs no alignment.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), x) };
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_f32(x: &[f32; TILE]) -> __m256 {
    // SAFETY: `x` holds eight f32 by its type, and the load needs no alignment.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}
