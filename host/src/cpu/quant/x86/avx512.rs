//! The tiles of a quantised product by AVX-512 with VNNI.
//!
//! flow: w [16 rows, 64] → words transposed → bytes [2 blocks][8 words][16 columns] · x word → i32 [16 columns] → f32 · factors → acc
//!
//! `vpdpbusd` multiplies bytes without a sign by signed ones. So quants that have a sign have 128 added, and a block's sum begins with
//! −128 · Σ x. A single row of x is AVX2's in most formats. How blocks are unpacked is in the formats' files ([`Avx512`]).

use super::{Panel, WORDS, WeightBytes, group_bytes, panels, store};
use crate::cpu::quant::tile::{Activations, ROWS};
use crate::quant::Format;
use crate::simd;
use kernels_gpu::quant::blocks::BLOCKS_PER_SUPER;
use kernels_gpu::quant::formats;
use kernels_gpu::quant::formats::avx512::{Avx512, Quants, Steps};
use std::arch::x86_64::*;

pub(in crate::cpu::quant) use kernels_gpu::quant::formats::avx512::ROWS as TILE;

type Tile<'a, const G: usize> = super::Tile<'a, TILE, G>;

macro_rules! kinds {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// [`tiles_of`] for the format of the weights.
        #[target_feature(enable = "avx512bw,avx512vnni")]
        fn tiles_of_any(y: &mut [&mut [f32]], x: &[Panel], w: &WeightBytes, first: usize) {
            match w.format {
                $(Format::$format => {
                    tiles_of::<formats::$file::$format, { group_bytes(Format::$format) }>(y, x, w, first)
                })*
            }
        }
    };
}

kernels_gpu::for_each_format!(kinds);

/// The rows of x in the form that a tile multiplies.
pub(in crate::cpu::quant) fn prepared(x: Activations) -> Vec<Panel> {
    panels(x, false)
}

/// Computes the columns from number `first` on, for all rows.
pub(in crate::cpu::quant) fn tiles(
    _: simd::Avx512,
    y: &mut [&mut [f32]],
    x: &[Panel],
    w: &WeightBytes,
    first: usize,
) {
    // SAFETY: the processor has these features: the first argument proves it.
    unsafe { tiles_of_any(y, x, w, first) }
}

#[target_feature(enable = "avx512bw,avx512vnni")]
fn tiles_of<F: Avx512, const G: usize>(y: &mut [&mut [f32]], x: &[Panel], w: &WeightBytes, first: usize) {
    let (mut acc, mut rest) = ([[0.0; TILE]; ROWS], [[0; G]; TILE]);
    let columns = y.first().map_or(0, |y| y.len());
    w.prefetch::<TILE>(first);
    for (panel, y) in x.iter().zip(y.chunks_mut(ROWS)) {
        for start in (0..columns).step_by(TILE) {
            let acc = &mut acc[..panel.rows];
            tile::<F, G>(acc, panel, &Tile::new(w, first + start, first + columns, &mut rest));
            for (y, acc) in y.iter_mut().zip(acc) {
                store(&mut y[start..], acc);
            }
        }
    }
}

/// acc [rows] = x·wᵀ of a panel and sixteen rows of w.
#[target_feature(enable = "avx512bw,avx512vnni")]
fn tile<F: Avx512, const G: usize>(acc: &mut [[f32; TILE]], panel: &Panel, w: &Tile<G>) {
    acc.fill([0.0; TILE]);
    let mut steps: Steps = [[_mm512_setzero_ps(); BLOCKS_PER_SUPER]; 4];
    for group in 0..w.groups {
        // SAFETY: this function has the features.
        unsafe { <F as Avx512>::steps_of_rows(&w.scales, group, &mut steps) };
        let w = w.group(group);
        for pair in 0..BLOCKS_PER_SUPER / 2 {
            // SAFETY: this function has the features, and a group has so many pairs.
            let quants = unsafe { F::pair(&w, pair) };
            for (i, quants) in quants.iter().enumerate() {
                let j = 2 * pair + i;
                let steps = [steps[0][j], steps[1][j], steps[2][j], steps[3][j]];
                let at = (group * BLOCKS_PER_SUPER + j) * panel.rows;
                let words = &panel.words[at * WORDS..][..panel.rows * WORDS];
                let rows = acc.iter_mut().zip(&panel.factors[at..][..panel.rows]);
                for ((acc, factors), words) in rows.zip(words.as_chunks::<WORDS>().0) {
                    let product = product::<F>(quants, words, factors.sums, steps);
                    let sum = _mm512_fmadd_ps(_mm512_set1_ps(factors.scale), product, load_f32(acc));
                    store_f32(acc, sum);
                }
            }
        }
    }
}

/// The product of one block of x and sixteen columns.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
fn product<F: Avx512>(quants: &Quants, words: &[u32; WORDS], of_x: [i32; 2], steps: [__m512; 4]) -> __m512 {
    let about = const { F::FORMAT.descriptor() };
    let start = |of_x: i32| match F::OFFSET {
        0 => _mm512_setzero_si512(),
        offset => _mm512_set1_epi32(-offset * of_x),
    };
    let of_both = of_x[0] + of_x[1];
    if about.halves {
        let first = sum(start(of_x[0]), quants, words, 0, WORDS / 2);
        let second = sum(start(of_x[1]), quants, words, WORDS / 2, WORDS);
        let product = _mm512_fmadd_ps(first, steps[0], _mm512_mul_ps(second, steps[1]));
        if !about.minimum {
            return product;
        }
        let product = _mm512_fnmadd_ps(_mm512_set1_ps(of_x[0] as f32), steps[2], product);
        return _mm512_fnmadd_ps(_mm512_set1_ps(of_x[1] as f32), steps[3], product);
    }
    let whole = sum(start(of_both), quants, words, 0, WORDS);
    if about.minimum {
        let minima = _mm512_mul_ps(_mm512_set1_ps(of_both as f32), steps[1]);
        return _mm512_fmsub_ps(whole, steps[0], minima);
    }
    _mm512_mul_ps(whole, steps[0])
}

/// `start` + Σ q·x over some words, in f32.
#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
fn sum(start: __m512i, quants: &Quants, words: &[u32; WORDS], from: usize, to: usize) -> __m512 {
    let mut sum = start;
    for g in from..to {
        sum = _mm512_dpbusd_epi32(sum, quants[g], _mm512_set1_epi32(words[g] as i32));
    }
    _mm512_cvtepi32_ps(sum)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
fn store_f32(to: &mut [f32; TILE], x: __m512) {
    // SAFETY: `to` holds sixteen f32 by its type, and the store needs no alignment.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), x) };
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vnni")]
fn load_f32(x: &[f32; TILE]) -> __m512 {
    // SAFETY: `x` holds sixteen f32 by its type, and the load needs no alignment.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}
