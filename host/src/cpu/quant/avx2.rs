//! The tiles of a quantised product by AVX2.
//!
//! Idea: a register's eight lanes are eight columns of y. A block of 32 values of eight rows of w is unpacked to bytes and
//! transposed by words of four values, once for up to [`ROWS`] rows of x. Each word of x is then broadcast, multiplied and
//! added. So a block needs no horizontal additions, and its factors apply to eight columns at once.
//!
//! The rows of a tile are eight short streams, which the hardware prefetcher does not follow. While a tile is computed, the
//! next tile, which follows it in memory, is prefetched.
//!
//! A closure passed to a function of the standard library is not inlined, because that function is compiled without these
//! target features. So there are loops here where other files have iterators.
//!
//! A single row of x uses the blocks untransposed; see [`tile_of_one`]. Its sums are the same integers.
//!
//! flow: w [8 rows, 32] → bytes → transposed [8 words][8 columns] · x word → i32 [8 columns] → f32 · factors → acc [8 columns]
//!
//! | quants                          | products                                        | formats              |
//! |---------------------------------|-------------------------------------------------|----------------------|
//! | of 4 to 6 bits, unsigned        | `vpmaddubsw`, some added in 16 bits             | Q4_0, Q4_K, Q5_K, Q6_K |
//! | signed bytes                    | widened to 16 bits, `vpmaddwd`, exact for −128  | I8, Q8_0, IQ4_NL, IQ4_XS |

use super::product::{Activations, ROWS, TILE};
use crate::cpu::slice;
use crate::quant::{Format, QuantTensor, bits, layout};
use crate::simd::Avx2;
use crate::{DType, Result, Tensor};
use half::f16;
use kernels_gpu::quant::blocks::{BLOCK, BLOCKS_PER_SUPER};
use kernels_gpu::quant::iq4::LEVELS;
use rayon::prelude::*;
use std::arch::x86_64::*;

/// Words of four quants of a block.
const WORDS: usize = BLOCK / 4;

/// A format at compile time.
trait Kind {
    const FORMAT: Format;
}

macro_rules! kinds {
    ($($format:ident),*) => {
        $(
            struct $format;
            impl Kind for $format {
                const FORMAT: Format = Format::$format;
            }
        )*
        /// [`tiles_of`] for the format of the weights.
        #[target_feature(enable = "avx2,fma,f16c")]
        fn tiles_of_any(y: &mut [&mut [f32]], x: &PreparedRows, w: &WeightBytes, first: usize) {
            match w.format {
                $(Format::$format => tiles_of::<$format, { group_bytes(Format::$format) }>(y, x, w, first),)*
            }
        }
    };
}

kinds!(I8, Q8_0, Q4_0, Q4K, Q5K, Q6K, Iq4Nl, Iq4Xs);

/// Bytes of the quants of eight blocks of a row.
const fn group_bytes(format: Format) -> usize {
    BLOCKS_PER_SUPER * BLOCK / 8 * bits(format)
}

/// Whether a format's quants are signed bytes.
const fn is_signed(format: Format) -> bool {
    matches!(format, Format::I8 | Format::Q8_0 | Format::Iq4Nl | Format::Iq4Xs)
}

/// Added to the quants of a format, so that they are unsigned.
const fn offset(format: Format) -> i32 {
    match format {
        Format::Q4_0 => 8,
        Format::Q6K => 32,
        _ => 0,
    }
}

/// How many products of two pairs, each up to 2 · 127 · the largest quant, can be summed in 16 bits.
const fn in_16_bits(format: Format) -> usize {
    match format {
        Format::Q6K => 2,
        Format::Q5K => 4,
        _ => 8,
    }
}

/// The memory of a weight tensor.
pub(super) struct WeightBytes<'a> {
    format: Format,
    rows: usize,
    blocks: usize,
    quants: &'a [u8],
    scales: &'a [u8],
}

impl<'a> WeightBytes<'a> {
    pub fn new(w: &'a QuantTensor) -> Result<Self> {
        fn bytes<T: crate::Element>(x: &Tensor) -> Result<&[u8]> {
            Ok(bytemuck::cast_slice(slice::<T>(x)?))
        }
        let scales = match w.scales.dtype() {
            DType::F32 => bytes::<f32>(&w.scales)?,
            DType::F16 => bytes::<f16>(&w.scales)?,
            DType::U32 => bytes::<u32>(&w.scales)?,
        };
        let (rows, blocks) = (w.rows(), w.k / BLOCK);
        Ok(Self { format: w.format(), rows, blocks, quants: bytes::<u32>(&w.quants)?, scales })
    }

    /// The first quants of the tile after this one; null if there is none.
    fn after(&self, tile: usize) -> *const u8 {
        let row = self.blocks * BLOCK / 8 * bits(self.format);
        self.quants.as_ptr().wrapping_add((tile + 1) * TILE * row)
    }

    /// Quants and scales of the rows of a tile. Past the last row, the last row is repeated.
    fn tile(&self, tile: usize) -> [(&'a [u8], &'a [u8]); TILE] {
        let quants = self.blocks * BLOCK / 8 * bits(self.format);
        let scales = layout(self.format).scales.row_bytes(self.blocks * BLOCK);
        std::array::from_fn(|i| {
            let row = (tile * TILE + i).min(self.rows - 1);
            (&self.quants[row * quants..][..quants], &self.scales[row * scales..][..scales])
        })
    }
}

/// Up to [`ROWS`] rows of x, grouped by block.
pub(super) struct Panel {
    rows: usize,
    /// [blocks, rows, words]: 8 words of four bytes, or 16 words of two 16-bit numbers (the even ones of four, then the odd
    /// ones).
    words: Vec<u32>,
    /// [blocks, rows]
    factors: Vec<Factors>,
}

/// The factors of one block of a row of x.
#[derive(Clone, Copy, Default)]
pub(super) struct Factors {
    scale: f32,
    /// The sum of the quants of each half.
    sums: [i32; 2],
}

/// The rows of x in the form that a tile multiplies.
pub(super) enum PreparedRows<'a> {
    /// A single row: its quants in order, and the blocks' factors.
    One(&'a [i8], Vec<Factors>),
    Panels(Vec<Panel>),
}

impl<'a> PreparedRows<'a> {
    /// Prepares rows for weights of this format.
    pub fn new(x: Activations<'a>, format: Format) -> Self {
        if x.rows() > 1 {
            return Self::Panels(panels(x, format));
        }
        let (quants, scales) = x.row(0);
        let blocks = quants.chunks_exact(BLOCK).zip(scales.chunks_exact(2));
        Self::One(quants, blocks.map(|(quants, scales)| Factors::new(quants, scales)).collect())
    }
}

impl Factors {
    /// From a block's quants, its scale's bits and the sum of its quants.
    fn new(quants: &[i8], scales: &[u32]) -> Self {
        let first_half = quants[..BLOCK / 2].iter().map(|&x| i32::from(x)).sum();
        Self { scale: f32::from_bits(scales[0]), sums: [first_half, scales[1] as i32 - first_half] }
    }
}

fn panels(x: Activations, format: Format) -> Vec<Panel> {
    let signed = is_signed(format);
    let panel = |first: usize| {
        let rows = ROWS.min(x.rows() - first);
        let (blocks, per_block) = (x.k / BLOCK, if signed { 2 * WORDS } else { WORDS });
        let mut words = vec![0; blocks * rows * per_block];
        let mut factors = vec![Factors::default(); blocks * rows];
        for row in 0..rows {
            let (quants, scales) = x.row(first + row);
            for (b, (quants, scales)) in quants.chunks_exact(BLOCK).zip(scales.chunks_exact(2)).enumerate() {
                let words = &mut words[(b * rows + row) * per_block..][..per_block];
                let fours = quants.chunks_exact(4);
                if signed {
                    for (words, four) in words.chunks_exact_mut(2).zip(fours) {
                        let pair = |low: i8, high: i8| low as i16 as u16 as u32 | (high as i16 as u32) << 16;
                        (words[0], words[1]) = (pair(four[0], four[2]), pair(four[1], four[3]));
                    }
                } else {
                    for (word, four) in words.iter_mut().zip(fours) {
                        *word = u32::from_le_bytes([four[0], four[1], four[2], four[3]].map(|x| x as u8));
                    }
                }
                factors[b * rows + row] = Factors::new(quants, scales);
            }
        }
        Panel { rows, words, factors }
    };
    match x.rows() {
        ..=ROWS => vec![panel(0)],
        rows => (0..rows.div_ceil(ROWS)).into_par_iter().map(|i| panel(i * ROWS)).collect(),
    }
}

/// Computes the tiles from number `first` on, for all rows.
pub(super) fn tiles(_: Avx2, y: &mut [&mut [f32]], x: &PreparedRows, w: &WeightBytes, first: usize) {
    // SAFETY: the processor has these features: the first argument proves it.
    unsafe { tiles_of_any(y, x, w, first) }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn tiles_of<K: Kind, const G: usize>(y: &mut [&mut [f32]], x: &PreparedRows, w: &WeightBytes, first: usize) {
    let (mut acc, mut rest) = ([[0.0; TILE]; ROWS], [[0; G]; TILE]);
    let columns = y.first().map_or(0, |y| y.len());
    match x {
        PreparedRows::One(quants, factors) => {
            for start in (0..columns).step_by(TILE) {
                tile_of_one::<K, G>(
                    &mut acc[0],
                    quants,
                    factors,
                    &Tile::new(w, first + start / TILE, &mut rest),
                );
                store(&mut y[0][start..], &acc[0]);
            }
        }
        PreparedRows::Panels(panels) => {
            for (panel, y) in panels.iter().zip(y.chunks_mut(ROWS)) {
                for start in (0..columns).step_by(TILE) {
                    let acc = &mut acc[..panel.rows];
                    tile::<K, G>(acc, panel, &Tile::new(w, first + start / TILE, &mut rest));
                    for (y, acc) in y.iter_mut().zip(acc) {
                        store(&mut y[start..], acc);
                    }
                }
            }
        }
    }
}

/// Stores the columns that exist.
fn store(y: &mut [f32], acc: &[f32; TILE]) {
    let len = y.len().min(TILE);
    y[..len].copy_from_slice(&acc[..len]);
}

/// Eight rows of w.
struct Tile<'a, const G: usize> {
    quants: [&'a [[u8; G]]; TILE],
    scales: [&'a [u8]; TILE],
    /// The quants of a last group of fewer than eight blocks, padded with zeros; the steps there are zero too.
    rest: &'a [[u8; G]; TILE],
    groups: usize,
    /// The first quants of the next tile; null if there is none.
    next: *const u8,
}

impl<'a, const G: usize> Tile<'a, G> {
    /// `rest` is zero, or comes from another tile of the same weights.
    #[inline]
    fn new(w: &WeightBytes<'a>, tile: usize, rest: &'a mut [[u8; G]; TILE]) -> Self {
        let (rows, groups) = (w.tile(tile), w.blocks.div_ceil(BLOCKS_PER_SUPER));
        let (mut quants, mut scales) = ([&[][..]; TILE], [&[][..]; TILE]);
        for (i, (row, of_row)) in rows.into_iter().enumerate() {
            let (whole, last) = row.as_chunks();
            (quants[i], scales[i]) = (whole, of_row);
            rest[i][..last.len()].copy_from_slice(last);
        }
        Self { quants, scales, rest, groups, next: w.after(tile) }
    }

    /// The quants of eight blocks of each row. Prefetches as much of the next tile.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn group(&self, group: usize) -> [&'a [u8; G]; TILE] {
        for line in (0..G * TILE).step_by(64) {
            _mm_prefetch::<_MM_HINT_T1>(self.next.wrapping_add(group * G * TILE + line).cast());
        }
        let mut rows = [&self.rest[0]; TILE];
        for (row, (quants, rest)) in rows.iter_mut().zip(self.quants.iter().zip(self.rest)) {
            *row = if group < quants.len() { &quants[group] } else { rest };
        }
        rows
    }

    /// The steps of eight blocks of each row, grouped by block, and their minima or second steps.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn steps<K: Kind>(&self, group: usize, to: &mut [[__m256; BLOCKS_PER_SUPER]; 2]) {
        let mut by_rows = [[_mm256_setzero_si256(); TILE]; 2];
        for (i, scales) in self.scales.iter().enumerate() {
            let of_row = steps::<K>(scales, group);
            by_rows[0][i] = _mm256_castps_si256(of_row[0]);
            by_rows[1][i] = _mm256_castps_si256(of_row[1]);
        }
        let planes =
            const { if matches!(K::FORMAT, Format::Q4K | Format::Q5K | Format::Q6K) { 2 } else { 1 } };
        for (to, by_rows) in to.iter_mut().zip(by_rows).take(planes) {
            let by_blocks = transposed(by_rows);
            for j in 0..BLOCKS_PER_SUPER {
                to[j] = _mm256_castsi256_ps(by_blocks[j]);
            }
        }
    }
}

/// acc [rows] = x·wᵀ of a panel and eight rows of w.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile<K: Kind, const G: usize>(acc: &mut [[f32; TILE]], panel: &Panel, w: &Tile<G>) {
    let signed = const { is_signed(K::FORMAT) };
    let per_block = panel.rows * if signed { 2 * WORDS } else { WORDS };
    acc.fill([0.0; TILE]);
    let mut steps = [[_mm256_setzero_ps(); BLOCKS_PER_SUPER]; 2];
    for group in 0..w.groups {
        w.steps::<K>(group, &mut steps);
        let w = w.group(group);
        for j in 0..BLOCKS_PER_SUPER {
            let (b, steps) = (group * BLOCKS_PER_SUPER + j, [steps[0][j], steps[1][j]]);
            let mut quants = [_mm256_setzero_si256(); TILE];
            for (quants, row) in quants.iter_mut().zip(w) {
                *quants = block::<K, G>(row, j);
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
                    store_f32(acc, add(load_f32(acc), factors, scaled::<K>(sums, factors.sums, steps)));
                }
            } else {
                for ((acc, factors), words) in rows.zip(words.as_chunks::<WORDS>().0) {
                    let sums = unsigned_sums::<K>(&quants, words);
                    store_f32(acc, add(load_f32(acc), factors, scaled::<K>(sums, factors.sums, steps)));
                }
            }
        }
    }
}

/// acc = x·wᵀ of one row and eight rows of w. For one row of x, transposing a block would cost more than summing its
/// products: a tree of additions of neighbours, whose last level has the eight columns side by side.
#[target_feature(enable = "avx2,fma,f16c")]
fn tile_of_one<K: Kind, const G: usize>(to: &mut [f32; TILE], x: &[i8], factors: &[Factors], w: &Tile<G>) {
    let mut acc = _mm256_setzero_ps();
    let mut steps = [[_mm256_setzero_ps(); BLOCKS_PER_SUPER]; 2];
    let groups = x.as_chunks::<{ BLOCKS_PER_SUPER * BLOCK }>().0.iter();
    let groups = groups.zip(factors.as_chunks::<BLOCKS_PER_SUPER>().0).take(w.groups).enumerate();
    for (group, (x, factors)) in groups {
        w.steps::<K>(group, &mut steps);
        let w = w.group(group);
        let x: &[u8; BLOCKS_PER_SUPER * BLOCK] = bytemuck::cast_ref(x);
        for pair in 0..BLOCKS_PER_SUPER / 2 {
            let blocks = [load(x, 2 * pair), load(x, 2 * pair + 1)];
            let sums = sums_of_pair::<K, G>(&w, pair, blocks);
            for i in 0..2 {
                let (j, sums) = (2 * pair + i, sums[i]);
                let product = scaled::<K>(sums, factors[j].sums, [steps[0][j], steps[1][j]]);
                acc = add(acc, &factors[j], product);
            }
        }
    }
    store_f32(to, acc);
}

/// The sums of two blocks of eight rows of w with those of x: per half, or the whole block's in the first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums_of_pair<K: Kind, const G: usize>(
    w: &[&[u8; G]; TILE],
    pair: usize,
    blocks: [__m256i; 2],
) -> [[__m256i; 2]; 2] {
    let none = _mm256_setzero_si256();
    let mut products = [none; TILE];
    if const { matches!(K::FORMAT, Format::I8 | Format::Q8_0 | Format::Q6K) } {
        let mut sums = [[none; 2]; 2];
        for i in 0..2 {
            for (products, row) in products.iter_mut().zip(w) {
                *products = product(is_signed(K::FORMAT), block::<K, G>(row, 2 * pair + i), blocks[i]);
            }
            sums[i] = sums_of_each::<K>(products);
        }
        return sums;
    }
    let x = match K::FORMAT {
        Format::Q4K | Format::Q5K => blocks,
        // both blocks' values from the low nibbles, and from the high nibbles
        Format::Q4_0 => of_halves(blocks[0], blocks[1]),
        _ => of_halves(nibble_order(blocks[0]), nibble_order(blocks[1])),
    };
    for (products, row) in products.iter_mut().zip(w) {
        *products = products_of_pair::<K, G>(row, pair, x);
    }
    let [a, b] = lanes::<K>(products);
    [[a, none], [b, none]]
}

/// The lower halves of two registers, and the upper halves.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn of_halves(a: __m256i, b: __m256i) -> [__m256i; 2] {
    [_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)]
}

/// Reorders a block of x for IQ4: the values that pair with the low nibbles first, then those of the high nibbles.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibble_order(x: __m256i) -> __m256i {
    let words = _mm256_permutevar8x32_epi32(x, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let even_odd = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    let bytes = _mm256_shuffle_epi8(words, _mm256_broadcastsi128_si256(even_odd));
    _mm256_permute4x64_epi64(bytes, 0b11_01_10_00)
}

/// The sums of two neighbouring products of quants and x. For signed quants the magnitude, up to 128, is the unsigned
/// operand, and the sign moves to x.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn product(signed: bool, quants: __m256i, x: __m256i) -> __m256i {
    match signed {
        true => _mm256_maddubs_epi16(_mm256_abs_epi8(quants), _mm256_sign_epi8(x, quants)),
        false => _mm256_maddubs_epi16(quants, x),
    }
}

/// The products of a pair of blocks of a row: the first block's in the lower half, the second's in the upper. For IQ4 in 32
/// bits, otherwise in 16 bits with four products in each.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn products_of_pair<K: Kind, const G: usize>(row: &[u8; G], pair: usize, x: [__m256i; 2]) -> __m256i {
    let bytes = load(row, pair);
    let low = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
    let high = _mm256_and_si256(_mm256_srli_epi16(bytes, 4), _mm256_set1_epi8(15));
    match K::FORMAT {
        Format::Q4_0 => _mm256_add_epi16(product(false, low, x[0]), product(false, high, x[1])),
        Format::Iq4Nl | Format::Iq4Xs => {
            let levels = _mm256_broadcastsi128_si256(load_half(bytemuck::cast_slice(&LEVELS), 0));
            let [low, high] = [_mm256_shuffle_epi8(levels, low), _mm256_shuffle_epi8(levels, high)];
            let ones = _mm256_set1_epi16(1);
            let low = _mm256_madd_epi16(product(true, low, x[0]), ones);
            _mm256_add_epi32(low, _mm256_madd_epi16(product(true, high, x[1]), ones))
        }
        _ => {
            let (mut low, mut high) = (low, high);
            if const { matches!(K::FORMAT, Format::Q5K) } {
                let words = _mm256_castsi128_si256(load_half(&row[128..], pair / 2));
                let at = pair as i32 % 2 * 2;
                let order = _mm256_setr_epi32(at, at, at, at, at + 1, at + 1, at + 1, at + 1);
                let words = _mm256_permutevar8x32_epi32(words, order);
                let bit = |from| {
                    let bits = _mm256_and_si256(_mm256_srlv_epi32(words, from), _mm256_set1_epi8(1));
                    _mm256_slli_epi16(bits, 4)
                };
                low = _mm256_or_si256(low, bit(_mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3)));
                high = _mm256_or_si256(high, bit(_mm256_setr_epi32(4, 5, 6, 7, 4, 5, 6, 7)));
            }
            let [low, high] = of_halves(product(false, low, x[0]), product(false, high, x[1]));
            _mm256_add_epi16(low, high)
        }
    }
}

/// Adds each register's lower half and upper half; one lane per register.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn lanes<K: Kind>(x: [__m256i; TILE]) -> [__m256i; 2] {
    let ones = _mm256_set1_epi16(1);
    let short = |i: usize| _mm256_hadd_epi16(x[i], x[i + 1]);
    let [a, b] = match K::FORMAT {
        Format::Iq4Nl | Format::Iq4Xs => {
            let two = |i: usize| _mm256_hadd_epi32(x[i], x[i + 1]);
            [_mm256_hadd_epi32(two(0), two(2)), _mm256_hadd_epi32(two(4), two(6))]
        }
        // 16 bits hold the sum of eight products of five bits, or sixteen of four
        Format::Q5K => {
            let two = |i: usize| _mm256_madd_epi16(short(i), ones);
            [_mm256_hadd_epi32(two(0), two(2)), _mm256_hadd_epi32(two(4), two(6))]
        }
        _ => {
            let four = |i: usize| _mm256_madd_epi16(_mm256_hadd_epi16(short(i), short(i + 2)), ones);
            [four(0), four(4)]
        }
    };
    of_halves(a, b)
}

/// The sums of each register's 16 products, one lane per register: per half, or all in the first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sums_of_each<K: Kind>(x: [__m256i; TILE]) -> [__m256i; 2] {
    let ones = _mm256_set1_epi16(1);
    let two = |i: usize| _mm256_hadd_epi32(_mm256_madd_epi16(x[i], ones), _mm256_madd_epi16(x[i + 1], ones));
    let (a, b) = (_mm256_hadd_epi32(two(0), two(2)), _mm256_hadd_epi32(two(4), two(6)));
    let halves = of_halves(a, b);
    match K::FORMAT {
        Format::Q6K => halves,
        _ => [_mm256_add_epi32(halves[0], halves[1]), _mm256_setzero_si256()],
    }
}

/// acc + scale · product
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(acc: __m256, factors: &Factors, product: __m256) -> __m256 {
    _mm256_fmadd_ps(_mm256_set1_ps(factors.scale), product, acc)
}

/// acc for one block of x and eight columns, from the sums of the halves, or the whole block's sum in the first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scaled<K: Kind>(sums: [__m256i; 2], of_x: [i32; 2], steps: [__m256; 2]) -> __m256 {
    let offset = const { offset(K::FORMAT) };
    let without_offset = |sum, of_x: i32| {
        let sum = if offset == 0 { sum } else { _mm256_sub_epi32(sum, _mm256_set1_epi32(offset * of_x)) };
        _mm256_cvtepi32_ps(sum)
    };
    let of_both = of_x[0] + of_x[1];
    match K::FORMAT {
        Format::Q6K => {
            let (first, second) = (without_offset(sums[0], of_x[0]), without_offset(sums[1], of_x[1]));
            _mm256_fmadd_ps(first, steps[0], _mm256_mul_ps(second, steps[1]))
        }
        Format::Q4K | Format::Q5K => {
            let minima = _mm256_mul_ps(_mm256_set1_ps(of_both as f32), steps[1]);
            _mm256_fmsub_ps(without_offset(sums[0], of_both), steps[0], minima)
        }
        _ => _mm256_mul_ps(without_offset(sums[0], of_both), steps[0]),
    }
}

/// Σ q·x of each column, for unsigned quants: per half of the block, or the whole block's in the first.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn unsigned_sums<K: Kind>(quants: &[__m256i; WORDS], words: &[u32; WORDS]) -> [__m256i; 2] {
    let (halves, most) = const { (matches!(K::FORMAT, Format::Q6K), in_16_bits(K::FORMAT)) };
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

/// Block `j` of a row's eight: 32 bytes in the order of the values, with the format's offset added.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn block<K: Kind, const G: usize>(row: &[u8; G], j: usize) -> __m256i {
    let nibbles = |bytes| _mm256_and_si256(bytes, _mm256_set1_epi8(15));
    // two blocks share bytes; the low nibbles are the first's
    let low =
        |bytes: &[u8]| nibbles(_mm256_srl_epi16(load(bytes, j / 2), _mm_cvtsi32_si128(j as i32 % 2 * 4)));
    // for each word the bits of `upper` from its position on, moved up by four
    let upper = |words, from: __m256i, bits| {
        let from = _mm256_add_epi32(from, _mm256_set1_epi32(j as i32 % 2 * 4));
        _mm256_slli_epi16(_mm256_and_si256(_mm256_srlv_epi32(words, from), _mm256_set1_epi8(bits)), 4)
    };
    match K::FORMAT {
        Format::I8 | Format::Q8_0 => load(row, j),
        Format::Q4_0 => {
            let bytes = load_half(row, j);
            nibbles(_mm256_set_m128i(_mm_srli_epi16(bytes, 4), bytes))
        }
        Format::Q4K => low(row),
        Format::Q5K => {
            let fifth = _mm256_castsi128_si256(load_half(&row[128..], j / 4));
            // for each 16 bytes of nibbles a word: those of the pair of blocks
            let pair = j as i32 / 2 % 2 * 2;
            let order = _mm256_setr_epi32(pair, pair, pair, pair, pair + 1, pair + 1, pair + 1, pair + 1);
            let fifth = _mm256_permutevar8x32_epi32(fifth, order);
            _mm256_or_si256(low(row), upper(fifth, _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3), 1))
        }
        Format::Q6K => {
            let words = _mm256_castsi128_si256(load_half(&row[128..], j / 2));
            let words = _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 1, 0, 1, 2, 3, 2, 3));
            let upper = upper(words, _mm256_setr_epi32(0, 0, 2, 2, 0, 0, 2, 2), 3);
            // in two's complement, q + 32 is q with its highest bit flipped
            _mm256_xor_si256(_mm256_or_si256(low(row), upper), _mm256_set1_epi8(32))
        }
        Format::Iq4Nl | Format::Iq4Xs => {
            let bytes = load_half(row, j);
            let low = _mm_and_si128(bytes, _mm_set1_epi8(15));
            let high = _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15));
            // interleaves: a word of the block's first half, then the word 16 values later
            let quants = _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high));
            let levels = _mm256_broadcastsi128_si256(load_half(bytemuck::cast_slice(&LEVELS), 0));
            let values = _mm256_shuffle_epi8(levels, quants);
            _mm256_permutevar8x32_epi32(values, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7))
        }
    }
}

/// The steps of a row's eight blocks from number 8 · `group` on, and their minima; for Q6_K, the steps of their second
/// halves. Blocks past the end have steps of zero.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn steps<K: Kind>(scales: &[u8], group: usize) -> [__m256; 2] {
    let word = |bytes: &[u8], i: usize| {
        u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
    };
    let half = |word: u32| _mm256_cvtph_ps(_mm_set1_epi16(word as i16));
    let none = _mm256_setzero_ps();
    match K::FORMAT {
        Format::I8 => [_mm256_set1_ps(f32::from_bits(word(scales, 0))), none],
        Format::Q8_0 | Format::Q4_0 | Format::Iq4Nl => {
            let scales = &scales[16 * group..];
            let halves = match scales.len() < 16 {
                false => load_half(scales, 0),
                true => {
                    let mut rest = [0; 16];
                    rest[..scales.len()].copy_from_slice(scales);
                    load_half(&rest, 0)
                }
            };
            [_mm256_cvtph_ps(halves), none]
        }
        Format::Q4K | Format::Q5K => {
            let scales = &scales[16 * group..][..16];
            let (d, low, high, rest) = (word(scales, 0), word(scales, 1), word(scales, 2), word(scales, 3));
            // a byte for each block: its lower six bits, or four of `rest` and the two uppermost
            let of = |own: u32, rest: u32, d| {
                let bytes = [own & 0x3f3f_3f3f, rest & 0x0f0f_0f0f | own >> 2 & 0x3030_3030];
                let bytes = _mm_set1_epi64x((u64::from(bytes[1]) << 32 | u64::from(bytes[0])) as i64);
                _mm256_mul_ps(half(d), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)))
            };
            [of(low, rest, d), of(high, rest >> 4, d >> 16)]
        }
        Format::Q6K => {
            let scales = &scales[20 * group..][..20];
            let d = half(word(scales, 4));
            let pairs = load_half(scales, 0);
            let of = |scales| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(scales)));
            [of(_mm_srai_epi16(_mm_slli_epi16(pairs, 8), 8)), of(_mm_srai_epi16(pairs, 8))]
        }
        Format::Iq4Xs => {
            let scales = &scales[8 * group..][..8];
            let (d, low) = (word(scales, 0), word(scales, 1));
            let field = |word: u32, from, bits| {
                let words = _mm256_srlv_epi32(_mm256_set1_epi32(word as i32), from);
                _mm256_and_si256(words, _mm256_set1_epi32(bits))
            };
            let low = field(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), 15);
            let high = field(d >> 16, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14), 3);
            let scale = _mm256_or_si256(low, _mm256_slli_epi32(high, 4));
            let scale = _mm256_cvtepi32_ps(_mm256_sub_epi32(scale, _mm256_set1_epi32(32)));
            [_mm256_mul_ps(half(d), scale), none]
        }
    }
}

/// Transposes eight registers of eight words.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn transposed(x: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = x;
    let pairs = |a, b, c, d| {
        let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(ab, cd),
            _mm256_unpackhi_epi64(ab, cd),
            _mm256_unpacklo_epi64(ab_high, cd_high),
            _mm256_unpackhi_epi64(ab_high, cd_high),
        ]
    };
    let (first, second) = (pairs(a, b, c, d), pairs(e, f, g, h));
    let low = |i: usize| _mm256_permute2x128_si256(first[i], second[i], 0x20);
    let high = |i: usize| _mm256_permute2x128_si256(first[i], second[i], 0x31);
    [low(0), low(1), low(2), low(3), high(0), high(1), high(2), high(3)]
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

/// Bytes 32·i to 32·i + 31.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load(bytes: &[u8], i: usize) -> __m256i {
    let bytes = &bytes[i * 32..][..32];
    // SAFETY: the slice is 32 bytes.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Bytes 16·i to 16·i + 15.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_half(bytes: &[u8], i: usize) -> __m128i {
    let bytes = &bytes[i * 16..][..16];
    // SAFETY: the slice is 16 bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}
