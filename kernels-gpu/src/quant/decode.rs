//! Quantised rows to numbers: y[r, :] = w[ids[r], :], or w[r, :] without ids.   y: [rows, cols], w: [n, k] as the layouts say.
//!
//! Bound by memory: a thread makes four values.

use super::blocks::BLOCK;
use super::weights::{I8, Matrix, Q4_0, Q4K, Q8_0, Weights};
use crate::device::int8::nibbles;
use crate::device::math::fma;
use crate::device::{Element, F16};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Threads in a block.
pub const THREADS: u32 = 256;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Decode<T> {
    /// [rows, cols], 16-byte aligned, disjoint from all else
    pub y: *mut T,
    /// [n, k] quants, 16-byte aligned
    pub w: *const u8,
    /// Of w, 16-byte aligned.
    pub w_scales: *const u8,
    /// [rows], or null, and then rows ≤ n
    pub ids: *const u32,
    pub rows: u32,
    /// Not more than k.
    pub cols: u32,
    pub n: u32,
    pub k: u32,
}

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
    ($($f32:ident $f16:ident: $weights:ident;)*) => {
        $(
            /// grid = [ceil(rows · ceil(cols / 4) / [`THREADS`])]. An index that is no row gives a row of NaN.
            ///
            /// # Safety
            /// [`Decode`] says what holds of the pointers, which are valid on the launching stream for fewer than 2³¹ values.
            #[kernel(block = THREADS)]
            pub unsafe fn $f32(p: Decode<f32>) {
                let w = Matrix { quants: p.w, scales: p.w_scales, k: p.k };
                // SAFETY: this kernel's contract is the body's.
                unsafe { decode::<$weights, f32>(p.y, w, p.ids, p.rows, p.cols, p.n) }
            }

            /// As the kernel to f32.
            ///
            /// # Safety
            /// As the kernel to f32.
            #[kernel(block = THREADS)]
            pub unsafe fn $f16(p: Decode<F16>) {
                let w = Matrix { quants: p.w, scales: p.w_scales, k: p.k };
                // SAFETY: this kernel's contract is the body's.
                unsafe { decode::<$weights, F16>(p.y, w, p.ids, p.rows, p.cols, p.n) }
            }
        )*

        /// To f32, by format.
        pub const TO_F32: [KernelSpec<Decode<f32>>; 4] = [$($f32),*];
        /// To f16, by format.
        pub const TO_F16: [KernelSpec<Decode<F16>>; 4] = [$($f16),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($f32.info(), $f16.info(),)*];
    };
}

decoders! {
    quant_decode_i8_f32 quant_decode_i8_f16: I8;
    quant_decode_q8_0_f32 quant_decode_q8_0_f16: Q8_0;
    quant_decode_q4_0_f32 quant_decode_q4_0_f16: Q4_0;
    quant_decode_q4_k_f32 quant_decode_q4_k_f16: Q4K;
}
