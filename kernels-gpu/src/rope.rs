//! Rotary position embedding: of each head, elements i and i + dim/2 are turned by the angle of (s, i).
//!
//! y[s, h, i]         = x[s, h, i] · cos[s, i] − x[s, h, i + dim/2] · sin[s, i]
//! y[s, h, i + dim/2] = x[s, h, i + dim/2] · cos[s, i] + x[s, h, i] · sin[s, i]
//!
//! x, y: [seq, heads, dim] f32 or f16, the last extent dense; cos, sin: [seq, dim/2] f32.
//! Source: Su et al. 2021, "RoFormer", in the form of GPT-NeoX (halves, not neighbours, make a pair).
//!
//! | kernel   | pairs of a thread | when                                       |
//! |----------|-------------------|--------------------------------------------|
//! | rope_‹t› | 4 neighbours      | rows and halves are multiples of 4 elements |
//! |          | 1                 | else                                       |

use crate::device::{Element, F16};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block.
pub const BLOCK: u32 = 128;
/// Pairs of a thread, with `vectors`.
pub const PAIRS: u32 = 4;

/// grid = [seq, ceil(heads · dim/2 / BLOCK)], with `vectors` [seq, ceil(heads · dim/2 / PAIRS / BLOCK)]
pub const ROPE_F32: KernelSpec = KernelSpec::new("rope_f32", BLOCK);
/// As [`ROPE_F32`].
pub const ROPE_F16: KernelSpec = KernelSpec::new("rope_f16", BLOCK);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[ROPE_F32, ROPE_F16];

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn rotate<T: Element>(
    y: *mut T,
    x: *const T,
    cos: *const f32,
    sin: *const f32,
    heads: u32,
    half: u32,
    y_seq: u32,
    y_head: u32,
    x_seq: u32,
    x_head: u32,
    vectors: u32,
) {
    let s = thread::block_idx_x();
    let pair =
        (thread::block_idx_y() * BLOCK + thread::thread_idx_x()) * if vectors != 0 { PAIRS } else { 1 };
    if pair >= heads * half {
        return;
    }
    let half = half.max(1); // pair < heads · half, so it is; said so, no panic is compiled in
    let (head, i) = (pair / half, pair % half);
    // SAFETY: s < seq, head < heads and i < half, so every element lies inside its tensor.
    unsafe {
        let angle = s as usize * half as usize + i as usize;
        let (cos, sin) = (cos.add(angle), sin.add(angle));
        let x = x.add(s as usize * x_seq as usize + head as usize * x_head as usize + i as usize);
        let y = y.add(s as usize * y_seq as usize + head as usize * y_head as usize + i as usize);
        let (x_high, y_high) = (x.add(half as usize), y.add(half as usize));
        let turn = |low: f32, high: f32, cos: f32, sin: f32| [low * cos - high * sin, high * cos + low * sin];
        if vectors != 0 {
            // half is a multiple of PAIRS, so all of them belong to one head
            let ([a, b, c, d], [e, f, g, h]) = (T::load4(x), T::load4(x_high));
            let (cos, sin) = (f32::load4(cos), f32::load4(sin));
            let [ae, bf] = [turn(a, e, cos[0], sin[0]), turn(b, f, cos[1], sin[1])];
            let [cg, dh] = [turn(c, g, cos[2], sin[2]), turn(d, h, cos[3], sin[3])];
            T::store4(y, [ae[0], bf[0], cg[0], dh[0]]);
            T::store4(y_high, [ae[1], bf[1], cg[1], dh[1]]);
        } else {
            let [low, high] = turn(T::load(x), T::load(x_high), f32::load(cos), f32::load(sin));
            *y = T::from_f32(low);
            *y_high = T::from_f32(high);
        }
    }
}

/// # Safety
/// `x`: [gridDim.x, heads, 2·half] with strides (x_seq, x_head, 1), `y` likewise, `cos`, `sin`: [gridDim.x, half];
/// valid on the launching stream, `y` disjoint from the others; `vectors` only if all four, half and the strides are multiples of
/// four elements; launched as [`ROPE_F32`] says.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn rope_f32(
    y: *mut f32,
    x: *const f32,
    cos: *const f32,
    sin: *const f32,
    heads: u32,
    half: u32,
    y_seq: u32,
    y_head: u32,
    x_seq: u32,
    x_head: u32,
    vectors: u32,
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { rotate(y, x, cos, sin, heads, half, y_seq, y_head, x_seq, x_head, vectors) }
}

/// # Safety
/// As [`rope_f32`], launched as [`ROPE_F16`] says.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn rope_f16(
    y: *mut F16,
    x: *const F16,
    cos: *const f32,
    sin: *const f32,
    heads: u32,
    half: u32,
    y_seq: u32,
    y_head: u32,
    x_seq: u32,
    x_head: u32,
    vectors: u32,
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { rotate(y, x, cos, sin, heads, half, y_seq, y_head, x_seq, x_head, vectors) }
}
