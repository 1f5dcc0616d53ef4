//! Quantising with given scales, and its gradients.   x, dx, dy: [rows, cols] f32, scales, dscales: [rows, k / 32] f32, k = cols in
//! whole blocks.
//!
//! y = s · q, q = round(x / s) clipped to the quants' range. Rounding is taken for the identity, so with the row's values of a block:
//! dx = dy where q was not clipped, else 0; ds = Σ dy · (q − x / s) over those values + Σ dy · q over the clipped ones.
//!
//! Source: Esser et al. 2020, "Learned step size quantization", equations 1 to 3. A value counts as clipped if its rounded quant
//! leaves the range, as in torch's learnable fake-quantisation; in the paper, if the value does. So a block's largest value, which its first
//! scale puts on the edge of the range, is not clipped by a rounding error.
//!
//! | kernel                      | a block of 32 is handled by |
//! |-----------------------------|-----------------------------|
//! | quant_encode_scaled_‹f›     | 1 lane                      |
//! | quant_scaled_backward_‹f›   | 8 lanes                     |

use super::blocks::{BLOCK, Half, RANGE_I8, abs_max, inverse, pack_i8, quant_i8, steps, stored_scale};
use super::encode::{LANES, Words, four, own_block};
use super::formats::q4_0;
use crate::device::Element;
use crate::device::unroll::unroll;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Threads in a block of every kernel.
pub const THREADS: u32 = 256;

/// The parameters of the kernels that quantise.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct EncodeScaled {
    /// [rows, k] values in the format, 16-byte aligned
    pub quants: *mut u8,
    /// [rows, k / 32], disjoint from the quants
    pub stored: *mut Half,
    /// [rows, cols], 16-byte aligned, disjoint from both
    pub x: *const f32,
    /// [rows, k / 32], disjoint from both
    pub scales: *const f32,
    pub rows: u32,
    /// Not more than k.
    pub cols: u32,
    /// A multiple of 32.
    pub k: u32,
}

/// The parameters of the kernels of the gradients.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct ScaledBackward {
    /// [rows, cols], 16-byte aligned
    pub dx: *mut f32,
    /// [rows, k / 32], disjoint from dx
    pub dscales: *mut f32,
    /// [rows, cols], 16-byte aligned, disjoint from both
    pub dy: *const f32,
    /// As dy
    pub x: *const f32,
    /// [rows, k / 32], disjoint from dx and dscales
    pub scales: *const f32,
    pub rows: u32,
    /// Not more than k.
    pub cols: u32,
    /// A multiple of 32.
    pub k: u32,
}

/// A value's quant, and its part of the scale's gradient for a dy of 1; whether it is within the range. The host runs it too.
#[inline(always)]
pub fn derivative<const Q4_0: bool>(x: f32, inverse: f32) -> (f32, bool) {
    let range = if Q4_0 { q4_0::RANGE } else { RANGE_I8 };
    let (exact, clipped) = (x * inverse, steps(x, inverse, range));
    let quant = if Q4_0 { q4_0::quant(clipped, 1.0) as i32 - 8 } else { quant_i8(clipped, 1.0) };
    let within = exact >= range[0] - 0.5 && exact < range[1] + 0.5;
    (if within { quant as f32 - exact } else { quant as f32 }, within)
}

/// A block's scale: NaN if a value is not finite, so that whatever is computed from the block is NaN. The host runs it too.
#[inline(always)]
pub fn scale_of(values: &[f32; BLOCK], given: f32) -> f32 {
    if abs_max(values) < f32::INFINITY { given } else { f32::NAN }
}

/// grid = [ceil(rows · k / 32 / [`THREADS`])]
///
/// # Safety
/// [`EncodeScaled`] says what holds of the pointers, which are valid on the launching stream for fewer than 2³¹ values.
#[kernel(block = THREADS, min_blocks = 5, module = "quant_scaled")]
pub unsafe fn quant_encode_scaled_q8_0(p: EncodeScaled) {
    // SAFETY: x is as `EncodeScaled` says; the block lies inside quants and both arrays of scales.
    unsafe {
        let Some((index, values)) = own_block(p.x, p.rows, p.cols, p.k) else { return };
        let scale = scale_of(&values, f32::load(p.scales.add(index as usize)));
        let inverse = inverse(scale);
        let to = p.quants.add(index as usize * BLOCK).cast::<Words>();
        unroll!(HALF < 2 => {
            let mut words = [0; 4];
            unroll!(I < 4 => {
                const AT: usize = HALF * 16 + I * 4;
                let four = [values[AT], values[AT + 1], values[AT + 2], values[AT + 3]];
                words[I] = pack_i8(four.map(|value| steps(value, inverse, RANGE_I8)), 1.0);
            });
            to.add(HALF).write(Words(words));
        });
        *p.stored.add(index as usize) = stored_scale(scale);
    }
}

/// As [`quant_encode_scaled_q8_0`].
///
/// # Safety
/// As [`quant_encode_scaled_q8_0`].
#[kernel(block = THREADS, min_blocks = 5, module = "quant_scaled")]
pub unsafe fn quant_encode_scaled_q4_0(p: EncodeScaled) {
    // SAFETY: x is as `EncodeScaled` says; the block lies inside quants and both arrays of scales.
    unsafe {
        let Some((index, values)) = own_block(p.x, p.rows, p.cols, p.k) else { return };
        let scale = scale_of(&values, f32::load(p.scales.add(index as usize)));
        let (inverse, mut clipped) = (inverse(scale), [0.0; BLOCK]);
        unroll!(I < 32 => clipped[I] = steps(values[I], inverse, q4_0::RANGE));
        p.quants.cast::<Words>().add(index as usize).write(Words(q4_0::pack(&clipped, 1.0)));
        *p.stored.add(index as usize) = stored_scale(scale);
    }
}

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn backward<const Q4_0: bool>(p: ScaledBackward) {
    // a thread has four columns of a row; those past the last row do its work again, so that all lanes are at the shuffles
    let (index, groups) = (thread::index_1d(), (p.k / 4).max(1));
    let (inside, row) = (index / groups < p.rows, (index / groups).min(p.rows - 1) as usize);
    let group = index % groups;
    let (column, block) = (group * 4, row * (groups / LANES) as usize + (group / LANES) as usize);
    // SAFETY: row and block lie inside the tensors, the columns are checked here or by `four`; all lanes are at the shuffles.
    unsafe {
        let start = row * p.cols as usize;
        let (x, dy) = (four(p.x.add(start), column, p.cols), four(p.dy.add(start), column, p.cols));
        let inverse = inverse(f32::load(p.scales.add(block)));
        let (mut dx, mut sum) = ([0.0; 4], 0.0);
        unroll!(I < 4 => {
            let (by_scale, within) = derivative::<Q4_0>(x[I], inverse);
            dx[I] = if within { dy[I] } else { 0.0 };
            sum += dy[I] * by_scale;
        });
        let sum = Sum.over::<LANES>(sum);
        if !inside {
            return; // no shuffle follows
        }
        if group.is_multiple_of(LANES) {
            *p.dscales.add(block) = sum;
        }
        if p.cols.is_multiple_of(4) {
            if column < p.cols {
                f32::store4(p.dx.add(start + column as usize), dx);
            }
            return;
        }
        unroll!(I < 4 => {
            if column + (I as u32) < p.cols {
                *p.dx.add(start + column as usize + I) = dx[I];
            }
        });
    }
}

macro_rules! backward_kernels {
    ($($name:ident $q4_0:literal;)*) => {$(
        /// grid = [ceil(rows · k / 4 / [`THREADS`])]
        ///
        /// # Safety
        /// [`ScaledBackward`] says what holds of the pointers, which are valid on the launching stream for fewer than 2³¹ values; there is
        /// a row.
        #[kernel(block = THREADS, min_blocks = 8, module = "quant_scaled", shuffles = 3)]
        pub unsafe fn $name(p: ScaledBackward) {
            // SAFETY: this kernel's contract is the body's.
            unsafe { backward::<$q4_0>(p) }
        }
    )*};
}

backward_kernels! {
    quant_scaled_backward_q8_0 false;
    quant_scaled_backward_q4_0 true;
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[
    quant_encode_scaled_q8_0.info(),
    quant_encode_scaled_q4_0.info(),
    quant_scaled_backward_q8_0.info(),
    quant_scaled_backward_q4_0.info(),
];
