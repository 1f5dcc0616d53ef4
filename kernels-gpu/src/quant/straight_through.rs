//! The gradient through a rounding that was clipped: dx = dy where |x| ≤ limit, else 0.   dx, dy, x: [count] f32.
//!
//! Idea: rounding has no useful derivative, so it is taken for the identity within the range of the quants.
//! Source: Bengio, Léonard & Courville 2013, "Estimating or propagating gradients through stochastic neurons".

use crate::device::Element;
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Threads in a block.
pub const THREADS: u32 = 256;

/// grid = [ceil(count / THREADS)]
pub const STRAIGHT_THROUGH: KernelSpec = KernelSpec::new("quant_straight_through_f32", THREADS);

/// # Safety
/// `dx`, `dy`, `x`: [count], valid on the launching stream; dx overlaps neither; launched as [`STRAIGHT_THROUGH`] says.
#[kernel(launch_bounds(THREADS))]
pub unsafe fn quant_straight_through_f32(
    dx: *mut f32,
    dy: *const f32,
    x: *const f32,
    count: u32,
    limit: f32,
) {
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
