//! The gradient through a rounding that was clipped: dx = dy where |x| ≤ limit, else 0.   dx, dy, x: [count] f32.
//!
//! Idea: rounding has no useful derivative, so it is treated as the identity within the range of the quants.
//! Source: Bengio, Léonard & Courville 2013, "Estimating or propagating gradients through stochastic neurons".

use crate::device::Element;
use cuda_std::prelude::*;

/// Threads in a block.
pub const THREADS: u32 = 256;

/// The parameters of the kernel.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct StraightThrough {
    /// [count], disjoint from both
    pub dx: *mut f32,
    /// [count]
    pub dy: *const f32,
    /// [count]
    pub x: *const f32,
    pub count: u32,
    pub limit: f32,
}

/// grid = [ceil(count / [`THREADS`])]
///
/// # Safety
/// [`StraightThrough`] constrains the pointers, which are valid on the launching stream.
#[kernel(block = THREADS, min_blocks = 8)]
pub unsafe fn quant_straight_through_f32(StraightThrough { dx, dy, x, count, limit }: StraightThrough) {
    let i = thread::index_1d();
    if i >= count {
        return;
    }
    // SAFETY: i < count
    unsafe {
        let within = f32::load(x.add(i as usize)).abs() <= limit;
        *dx.add(i as usize) = if within { f32::load(dy.add(i as usize)) } else { 0.0 };
    }
}
