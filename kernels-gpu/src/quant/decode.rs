//! Quantised rows to numbers: y[r, :] = w[ids[r], :], or w[r, :] without ids.   y: [rows, cols], w: [n, k] as the layouts say.
//!
//! Bound by memory: a thread makes four values.

use super::blocks::BLOCK;
use super::weights::{I8, Matrix, Q4_0, Q4K, Q8_0, Weights};
use crate::device::int8::nibbles;
use crate::device::math::fma;
use crate::device::{Element, F16};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block.
pub const THREADS: u32 = 256;

/// By format, [f32, f16]. grid = [ceil(rows · ceil(cols / 4) / THREADS)]
pub const DECODE: [[KernelSpec; 2]; 4] = [
    [KernelSpec::new("quant_decode_i8_f32", THREADS), KernelSpec::new("quant_decode_i8_f16", THREADS)],
    [KernelSpec::new("quant_decode_q8_0_f32", THREADS), KernelSpec::new("quant_decode_q8_0_f16", THREADS)],
    [KernelSpec::new("quant_decode_q4_0_f32", THREADS), KernelSpec::new("quant_decode_q4_0_f16", THREADS)],
    [KernelSpec::new("quant_decode_q4_k_f32", THREADS), KernelSpec::new("quant_decode_q4_k_f16", THREADS)],
];

/// The word of a row's quants that holds columns 4·`group` to 4·`group` + 3, and whether in its high halves.
#[inline(always)]
const fn place(bits: u32, high: u32, group: u32) -> (u32, bool) {
    if bits == 8 {
        return (group, false);
    }
    // `2 · high` runs of 16 values share `high` runs of 16 bytes
    let (span, run) = (8 * high, 4 * high);
    let (index, within) = (group / span, group % span);
    (index * run + within % run, within >= run)
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn decode<W: Weights, T: Element>(
    y: *mut T,
    w: Matrix,
    ids: *const u32,
    rows: u32,
    cols: u32,
    n: u32,
) {
    let groups = cols.div_ceil(4).max(1); // never 0 where there is an element; said so, no panic is compiled in
    let index = thread::index_1d();
    let (row, group) = (index / groups, index % groups);
    if row >= rows {
        return;
    }
    // SAFETY: only rows below n of w are read and only columns below `cols` of y are written.
    unsafe {
        let from = if ids.is_null() { row } else { *ids.add(row as usize) };
        let mut values = [f32::NAN; 4];
        if from < n {
            let (word, high) = place(W::BITS, W::HIGH, group);
            let words = w.quants.cast::<u32>().add(from as usize * (w.k / 32 * W::BITS) as usize);
            let word = *words.add(word as usize);
            let block = group / (BLOCK as u32 / 4);
            let (step, min) = W::step_min(W::packed(w, from, block), block);
            let step = step * W::row_scale(w, from);
            let bytes = if W::BITS == 8 {
                word
            } else if high {
                nibbles(word).1
            } else {
                nibbles(word).0
            };
            let mut i = 0;
            while i < 4 {
                let quant = (bytes >> (8 * i)) as u8 as i8 as i32 - W::OFFSET;
                values[i] = fma(step, quant as f32, -min);
                i += 1;
            }
        }
        let to = y.add(row as usize * cols as usize + (group * 4) as usize);
        if cols.is_multiple_of(4) {
            T::store4(to, values);
        } else {
            let mut i = 0;
            while i < 4 {
                if group * 4 + (i as u32) < cols {
                    *to.add(i) = T::from_f32(values[i]);
                }
                i += 1;
            }
        }
    }
}

macro_rules! decoders {
    ($($name:ident: $weights:ident, $element:ident;)*) => {$(
        /// An index that is no row gives a row of NaN.
        ///
        /// # Safety
        /// `y`: [rows, cols], `w`: [n, k] quants with their scales, `ids`: [rows] or null (and then rows ≤ n), fewer
        /// than 2³¹ values each, valid on the launching stream, disjoint, 16-byte aligned; cols ≤ k; launched as
        /// [`DECODE`] says.
        #[kernel(launch_bounds(THREADS))]
        pub unsafe fn $name(
            y: *mut $element,
            w: *const u8,
            w_scales: *const u8,
            ids: *const u32,
            rows: u32,
            cols: u32,
            n: u32,
            k: u32,
        ) {
            // SAFETY: this kernel's contract is the body's.
            unsafe {
                decode::<$weights, $element>(y, Matrix { quants: w, scales: w_scales, k }, ids, rows, cols, n)
            }
        }
    )*};
}

decoders! {
    quant_decode_i8_f32: I8, f32;
    quant_decode_i8_f16: I8, F16;
    quant_decode_q8_0_f32: Q8_0, f32;
    quant_decode_q8_0_f16: Q8_0, F16;
    quant_decode_q4_0_f32: Q4_0, f32;
    quant_decode_q4_0_f16: Q4_0, F16;
    quant_decode_q4_k_f32: Q4K, f32;
    quant_decode_q4_k_f16: Q4K, F16;
}
