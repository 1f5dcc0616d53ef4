//! Dequantises rows: y[r, :] = w[ids[r], :], or w[r, :] without ids.   y: [rows, cols], w: [n, k] in the format's layout.
//!
//! Bound by memory bandwidth: a thread writes four values.

use super::FORMATS;
use super::blocks::BLOCK;
use super::weights::{Matrix, Weights};
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
    let groups = cols.div_ceil(4).max(1); // never 0 if there is an element; stated so that no panic is compiled in
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
            let bytes = W::four(w, from, group);
            let block = group / (BLOCK as u32 / 4);
            let (step, min) = W::of_half(W::packed(w, from, block), block, group % 8 >= 4);
            let step = step * W::row_scale(w, from);
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
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// By format.
        mod kernels {
            $(pub mod $file {
                use super::super::*;
                use crate::quant::formats::$file::$format;

                /// grid = [ceil(rows · ceil(cols / 4) / [`THREADS`])]. An index that is no row gives a row of NaN.
                ///
                /// # Safety
                /// [`Decode`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ values.
                #[kernel(
                    name = concat!("quant_decode_", $name, "_f32"), block = THREADS, min_blocks = 8, module = concat!("quant_decode_", $name)
                )]
                pub unsafe fn to_f32(p: Decode<f32>) {
                    let w = Matrix { quants: p.w, scales: p.w_scales, k: p.k };
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { decode::<$format, f32>(p.y, w, p.ids, p.rows, p.cols, p.n) }
                }

                /// As the kernel to f32.
                ///
                /// # Safety
                /// As the kernel to f32.
                #[kernel(
                    name = concat!("quant_decode_", $name, "_f16"), block = THREADS, min_blocks = 8, module = concat!("quant_decode_", $name)
                )]
                pub unsafe fn to_f16(p: Decode<F16>) {
                    let w = Matrix { quants: p.w, scales: p.w_scales, k: p.k };
                    // SAFETY: this kernel's contract is the body's.
                    unsafe { decode::<$format, F16>(p.y, w, p.ids, p.rows, p.cols, p.n) }
                }
            })*
        }

        /// To f32, by format.
        pub const TO_F32: [KernelSpec<Decode<f32>>; FORMATS] = [$(kernels::$file::to_f32),*];
        /// To f16, by format.
        pub const TO_F16: [KernelSpec<Decode<F16>>; FORMATS] = [$(kernels::$file::to_f16),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$(kernels::$file::to_f32.info(), kernels::$file::to_f16.info(),)*];
    };
}

crate::for_each_format!(decoders);
