//! Rotary position embedding: of each head, elements i and i + dim/2 are rotated by the angle of (s, i).
//!
//! y[s, h, i]         = x[s, h, i] · cos[s, i] − x[s, h, i + dim/2] · sin[s, i]
//! y[s, h, i + dim/2] = x[s, h, i + dim/2] · cos[s, i] + x[s, h, i] · sin[s, i]
//!
//! x, y: [seq, heads, dim] f32 or f16, the last dimension dense; cos, sin: [seq, dim/2] f32.
//! Source: Su et al. 2021, "RoFormer", in the form of GPT-NeoX (halves, not neighbours, make a pair).
//!
//! | kernel   | pairs of a thread | when                                       |
//! |----------|-------------------|--------------------------------------------|
//! | rope_‹t› | 4 neighbours      | rows and halves are multiples of 4 elements |
//! |          | 1                 | else                                       |

use crate::device::{Element, F16};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// Threads in a block.
pub const BLOCK: u32 = 128;
/// Pairs per thread, with `vectors`.
pub const PAIRS: u32 = 4;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Rope<T> {
    /// [gridDim.x, heads, 2 · half] with strides (y_seq, y_head, 1)
    pub y: *mut T,
    /// [gridDim.x, heads, 2 · half] with strides (x_seq, x_head, 1), disjoint from y
    pub x: *const T,
    /// [gridDim.x, half], disjoint from y
    pub cos: *const f32,
    /// [gridDim.x, half], disjoint from y
    pub sin: *const f32,
    pub heads: u32,
    pub half: u32,
    pub y_seq: u32,
    pub y_head: u32,
    pub x_seq: u32,
    pub x_head: u32,
    /// 1 if all four tensors start at multiples of four elements and half and the strides are such multiples, else 0.
    pub vectors: u32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[rope_f32.info(), rope_f16.info()];

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn rotate_rows<T: Element>(p: Rope<T>) {
    let Rope { y, x, cos, sin, heads, half, y_seq, y_head, x_seq, x_head, vectors } = p;
    let s = thread::block_idx_x();
    let pair =
        (thread::block_idx_y() * BLOCK + thread::thread_idx_x()) * if vectors != 0 { PAIRS } else { 1 };
    if pair >= heads * half {
        return;
    }
    let half = half.max(1); // pair < heads · half, so it is not 0; stated so that no panic is compiled in
    let (head, i) = (pair / half, pair % half);
    // SAFETY: s < seq, head < heads and i < half, so every element is inside its tensor.
    unsafe {
        let angle = s as usize * half as usize + i as usize;
        let (cos, sin) = (cos.add(angle), sin.add(angle));
        let x = x.add(s as usize * x_seq as usize + head as usize * x_head as usize + i as usize);
        let y = y.add(s as usize * y_seq as usize + head as usize * y_head as usize + i as usize);
        let (x_high, y_high) = (x.add(half as usize), y.add(half as usize));
        let rotate =
            |low: f32, high: f32, cos: f32, sin: f32| [low * cos - high * sin, high * cos + low * sin];
        if vectors != 0 {
            // half is a multiple of PAIRS, so all of them belong to one head
            let ([a, b, c, d], [e, f, g, h]) = (T::load4(x), T::load4(x_high));
            let (cos, sin) = (f32::load4(cos), f32::load4(sin));
            let [ae, bf] = [rotate(a, e, cos[0], sin[0]), rotate(b, f, cos[1], sin[1])];
            let [cg, dh] = [rotate(c, g, cos[2], sin[2]), rotate(d, h, cos[3], sin[3])];
            T::store4(y, [ae[0], bf[0], cg[0], dh[0]]);
            T::store4(y_high, [ae[1], bf[1], cg[1], dh[1]]);
        } else {
            let [low, high] = rotate(T::load(x), T::load(x_high), f32::load(cos), f32::load(sin));
            *y = T::from_f32(low);
            *y_high = T::from_f32(high);
        }
    }
}

/// grid = [seq, ceil(heads · half / BLOCK)], with `vectors` [seq, ceil(heads · half / PAIRS / BLOCK)]
///
/// # Safety
/// [`Rope`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, min_blocks = 16)]
pub unsafe fn rope_f32(p: Rope<f32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { rotate_rows(p) }
}

/// As [`rope_f32`].
///
/// # Safety
/// As [`rope_f32`].
#[kernel(block = BLOCK, min_blocks = 16)]
pub unsafe fn rope_f16(p: Rope<F16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { rotate_rows(p) }
}
