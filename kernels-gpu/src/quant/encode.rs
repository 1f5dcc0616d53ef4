//! Quantises f32.   x: [rows, cols], quants and scales: [rows, k] in the format's layout, k = cols padded to whole blocks.
//!
//! The arithmetic of a block is in [`blocks`](super::blocks); the host runs it too, so the bits are the same. Only maxima and
//! integer sums are reduced across lanes, and their order does not matter.
//!
//! | kernel               | a block of 32 is encoded by                                     |
//! |----------------------|-----------------------------------------------------------------|
//! | quant_encode_rows_‹t› | 8 lanes (activations)                                          |
//! | quant_encode_‹f›     | 1 lane, 8 of them for a super-block; of I8 8, a row by one block |
//!
//! The formats' kernels are in their files; here is what they have in common.

use super::blocks::{BLOCK, RowScale, abs_max, inverse, pack_i8, scale_i8};
use super::weights::BLOCK_VALUES;
use crate::device::int8::dp4a;
use crate::device::unroll::unroll;
use crate::device::{Element, F16};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};

/// Threads in a block of every kernel.
pub const THREADS: u32 = 256;
pub(super) const WARPS: u32 = THREADS / 32;
/// Lanes that encode a block of activations together.
pub(super) const LANES: u32 = BLOCK_VALUES / 4;

/// The parameters of the kernels for rows of activations.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct EncodeRows<T> {
    /// [rows, k] i8, 16-byte aligned
    pub quants: *mut u32,
    /// [rows, k / 32], 16-byte aligned, disjoint from the quants
    pub scales: *mut RowScale,
    /// [rows, cols], 16-byte aligned, disjoint from both
    pub x: *const T,
    pub rows: u32,
    /// Not more than k.
    pub cols: u32,
    /// A multiple of 256.
    pub k: u32,
}

/// The parameters of the kernels for weights: quants and scales as the format has them, of fewer than 2³¹ values.
/// grid = [ceil(rows · k / 32 / [`THREADS`])]; for formats with one scale for a row, [rows].
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Encode {
    /// [rows, k] values, 16-byte aligned
    pub quants: *mut u8,
    /// 16-byte aligned, disjoint from the quants
    pub scales: *mut u8,
    /// [rows, cols], 16-byte aligned, disjoint from both
    pub x: *const f32,
    pub rows: u32,
    /// Not more than k.
    pub cols: u32,
    /// A multiple of the format's block.
    pub k: u32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[quant_encode_rows_f32.info(), quant_encode_rows_f16.info()];

/// Sixteen bytes that are stored at once.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Words(pub [u32; 4]);

/// Four values of a row of `cols`, zeros past its end.
///
/// # Safety
/// `x` is a row of `cols` values; with `cols` a multiple of 4 it is aligned to four.
#[inline(always)]
pub(super) unsafe fn four<T: Element>(x: *const T, column: u32, cols: u32) -> [f32; 4] {
    // SAFETY: only columns below `cols` are read.
    unsafe {
        if cols.is_multiple_of(4) {
            return if column < cols { T::load4(x.add(column as usize)) } else { [0.0; 4] };
        }
        let mut values = [0.0; 4];
        let mut i = 0;
        while i < 4 {
            if column + (i as u32) < cols {
                values[i] = T::load(x.add(column as usize + i));
            }
            i += 1;
        }
        values
    }
}

/// As [`four`], of the row that begins `first` values after `x`. Where registers are few, that takes one where an address takes two.
///
/// # Safety
/// As there; `first` is 0 unless `cols` is a multiple of 4.
#[inline(always)]
pub(super) unsafe fn four_of<T: Element>(x: *const T, first: u32, column: u32, cols: u32) -> [f32; 4] {
    // SAFETY: only columns below `cols` are read, and rows that are not multiples begin at `x`.
    unsafe {
        match cols.is_multiple_of(4) {
            true if column < cols => T::load4(x.add((first + column) as usize)),
            true => [0.0; 4],
            false => four(x, column, cols),
        }
    }
}

/// The 32 values of a block, zeros past the row's end.
///
/// # Safety
/// As [`four`].
#[inline(always)]
pub(super) unsafe fn block(x: *const f32, column: u32, cols: u32) -> [f32; BLOCK] {
    let mut values = [0.0; BLOCK];
    // SAFETY: `x` is a row as `four` asks for: this function's contract.
    unroll!(I < 8 => [values[4 * I], values[4 * I + 1], values[4 * I + 2], values[4 * I + 3]] =
        unsafe { four(x, column + 4 * I as u32, cols) });
    values
}

/// The block that this thread encodes and its values; `None` for threads past the last row.
///
/// # Safety
/// `x`, `rows`, `cols` and `k` are as [`Encode`] says.
#[inline(always)]
pub(super) unsafe fn own_block(x: *const f32, rows: u32, cols: u32, k: u32) -> Option<(u32, [f32; BLOCK])> {
    let (index, blocks) = (thread::index_1d(), (k / BLOCK_VALUES).max(1));
    let row = index / blocks;
    if row >= rows {
        return None;
    }
    // SAFETY: the row exists: this function's contract.
    Some((index, unsafe { block(x.add(row as usize * cols as usize), index % blocks * BLOCK_VALUES, cols) }))
}

/// The block that this thread encodes, whether it exists, and its values. Eight neighbouring lanes encode a super-block.
/// Lanes without a block have the last row's values, so that all lanes can shuffle.
///
/// # Safety
/// As [`own_block`], with at least one row.
#[inline(always)]
pub(super) unsafe fn own_of_super_block(
    x: *const f32,
    rows: u32,
    cols: u32,
    k: u32,
) -> (u32, bool, [f32; BLOCK]) {
    let (index, blocks) = (thread::index_1d(), (k / BLOCK_VALUES).max(1));
    let row = (index / blocks).min(rows - 1);
    // SAFETY: the row exists: this function's contract.
    let values = unsafe { block(x.add(row as usize * cols as usize), index % blocks * BLOCK_VALUES, cols) };
    (index, index / blocks < rows, values)
}

/// Quantises four activations; also the scale and sum of their block, which is that of eight neighbouring lanes.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub(super) unsafe fn activations(values: [f32; 4]) -> (u32, RowScale) {
    // SAFETY: all 32 lanes are here: this function's contract.
    unsafe {
        let largest = f32::from_bits(Max.over::<LANES>(abs_max(&values).to_bits()));
        let scale = scale_i8(largest);
        let packed = pack_i8(values, inverse(scale));
        let sum = Sum.over::<LANES>(dp4a(packed, 0x0101_0101, 0));
        (packed, RowScale { scale, sum })
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn encode_rows<T: Element>(EncodeRows { quants, scales, x, rows, cols, k }: EncodeRows<T>) {
    // Rows are multiples of 256 values, so a warp has whole blocks and all its lanes return together.
    let word = thread::index_1d();
    let words = (k / 4).max(1); // never 0 if there is a row; stated so that no panic is compiled in
    let row = word / words;
    if row >= rows {
        return;
    }
    // SAFETY: the word is inside quants and its block inside scales; all lanes of the warp are at the shuffles.
    unsafe {
        let values = four(x.add(row as usize * cols as usize), word % words * 4, cols);
        let (packed, scale) = activations(values);
        *quants.add(word as usize) = packed;
        if word.is_multiple_of(LANES) {
            *scales.add((word / LANES) as usize) = scale;
        }
    }
}

/// grid = [ceil(rows · k / 4 / [`THREADS`])]
///
/// # Safety
/// [`EncodeRows`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ values.
#[kernel(block = THREADS, min_blocks = 8, module = "quant_encode_rows", shuffles = 6)]
pub unsafe fn quant_encode_rows_f32(p: EncodeRows<f32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { encode_rows(p) }
}

/// As [`quant_encode_rows_f32`].
///
/// # Safety
/// As [`quant_encode_rows_f32`].
#[kernel(block = THREADS, min_blocks = 8, module = "quant_encode_rows", shuffles = 6)]
pub unsafe fn quant_encode_rows_f16(p: EncodeRows<F16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { encode_rows(p) }
}

/// A lane's chunk of the 32 bytes that the blocks of lanes 2c and 2c + 1 share: the first lane's quants are the low halves,
/// the second lane's the high halves. The first lane gets 16 of the bytes and the second the other 16. `j`: the lane, modulo
/// 8; `words`: its block's quants, a byte each.
///
/// # Safety
/// All 32 lanes call it together.
#[inline(always)]
pub(super) unsafe fn pair_nibbles(words: [u32; 8], j: u32) -> [u32; 4] {
    let mut shared = [[0; 4]; 2];
    unroll!(I < 8 => {
        let word = words[I] & 0x0f0f_0f0f;
        // SAFETY: all 32 lanes are here: this function's contract.
        let (other, _) = unsafe { warp_shuffle_xor(FULL_MASK, word, 1, 32) };
        shared[I / 4][I % 4] = if j.is_multiple_of(2) { word | other << 4 } else { other | word << 4 };
    });
    if j.is_multiple_of(2) { shared[0] } else { shared[1] }
}
