//! The parts of the row ops' baseline kernels: one block per row, one element per load, a tree reduction in shared memory. A
//! straightforward first version, for comparison.

use super::shared::Shared;
use cuda_std::thread::{sync_threads, thread_idx_x};

/// Threads in a block.
pub const BLOCK: u32 = 256;

/// Folds the columns t, t + BLOCK, … of thread t.
///
/// # Safety
/// `x` valid for `cols` elements.
#[inline(always)]
pub unsafe fn fold(x: *const f32, cols: u32, mut value: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut c = thread_idx_x();
    while c < cols {
        // SAFETY: c < cols
        value = f(value, unsafe { *x.add(c as usize) });
        c += BLOCK;
    }
    value
}

/// y[c] = f(c, x[c])
///
/// # Safety
/// `x` and `y` valid for `cols` elements.
#[inline(always)]
pub unsafe fn write(y: *mut f32, x: *const f32, cols: u32, f: impl Fn(usize, f32) -> f32) {
    let mut c = thread_idx_x();
    while c < cols {
        // SAFETY: c < cols
        unsafe { *y.add(c as usize) = f(c as usize, *x.add(c as usize)) };
        c += BLOCK;
    }
}

/// Combines the values of all threads; the result is valid in all of them. `scratch` holds `BLOCK` elements and may be
/// reused after the call.
///
/// # Safety
/// All threads of a block of `BLOCK` call it together.
#[inline(always)]
pub unsafe fn reduce(value: f32, scratch: Shared<f32>, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let t = thread_idx_x();
    // SAFETY: all threads are here and reach every barrier. Between two barriers a thread writes only its own element and
    // reads others only from the upper half, which no thread writes then.
    unsafe {
        scratch.set(t, value);
        sync_threads();
        let mut half = BLOCK / 2;
        while half > 0 {
            if t < half {
                scratch.set(t, combine(scratch.get(t), scratch.get(t + half)));
            }
            sync_threads();
            half /= 2;
        }
        let total = scratch.get(0);
        sync_threads();
        total
    }
}
