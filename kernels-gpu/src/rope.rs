//! Rotary position embedding: of each head, elements i and i + dim/2 are turned by the angle of (s, i).
//!
//! y[s, h, i]         = x[s, h, i] · cos[s, i] − x[s, h, i + dim/2] · sin[s, i]
//! y[s, h, i + dim/2] = x[s, h, i + dim/2] · cos[s, i] + x[s, h, i] · sin[s, i]
//!
//! x, y: [seq, heads, dim] f32 or f16, the last extent dense; cos, sin: [seq, dim/2] f32.
//! Source: Su et al. 2021, "RoFormer", in the form of GPT-NeoX (halves, not neighbours, make a pair).
//!
//! | kernel   | a pair is handled by | when |
//! |----------|----------------------|------|
//! | rope_‹t› | 1 thread             | all  |

use crate::device::{Element, F16};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block: one per pair of one position.
pub const BLOCK: u32 = 128;

/// grid = [seq, ceil(heads · dim/2 / BLOCK)]
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
) {
    let s = thread::block_idx_x();
    let pair = thread::block_idx_y() * BLOCK + thread::thread_idx_x();
    if pair >= heads * half {
        return;
    }
    let (head, i) = (pair / half, pair % half);
    // SAFETY: s < seq, head < heads and i < half, so every element lies inside its tensor.
    unsafe {
        let angle = s as usize * half as usize + i as usize;
        let (cos, sin) = (f32::load(cos.add(angle)), f32::load(sin.add(angle)));
        let x = x.add(s as usize * x_seq as usize + head as usize * x_head as usize + i as usize);
        let y = y.add(s as usize * y_seq as usize + head as usize * y_head as usize + i as usize);
        let (low, high) = (T::load(x), T::load(x.add(half as usize)));
        *y = T::from_f32(low * cos - high * sin);
        *y.add(half as usize) = T::from_f32(high * cos + low * sin);
    }
}

/// # Safety
/// `x`: [gridDim.x, heads, 2·half] with strides (x_seq, x_head, 1), `y` likewise, `cos`, `sin`: [gridDim.x, half];
/// valid on the launching stream, `y` disjoint from the others; launched as [`ROPE_F32`] says.
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
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { rotate(y, x, cos, sin, heads, half, y_seq, y_head, x_seq, x_head) }
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
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { rotate(y, x, cos, sin, heads, half, y_seq, y_head, x_seq, x_head) }
}
