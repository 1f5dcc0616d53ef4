//! Finds the last of several blocks to finish. It can process the output of all of them, so no second launch is needed.
//!
//! Source: CUDA C++ Programming Guide, "Memory fence functions", whose example sums an array this way.

use core::sync::atomic::{AtomicU32, Ordering};
use cuda_std::thread;

/// Whether this block is the last of `blocks` to call this with this counter; the same for all its threads. To the last
/// block all earlier writes of these blocks to global memory are visible, through ordinary loads but not through the
/// read-only path. The counter is zero again for the next launch.
///
/// # Safety
/// All threads of the block call it together. `counter` is valid, zero when the launch begins, and used only by these blocks
/// while they run.
#[inline(always)]
pub unsafe fn is_last(counter: *mut u32, blocks: u32) -> bool {
    thread::device_fence();
    thread::sync_threads();
    let mut last = false;
    if thread::thread_idx_x() == 0 {
        // SAFETY: `counter` is valid and these blocks' alone: this function's contract. All accesses are atomic.
        let counter = unsafe { AtomicU32::from_ptr(counter) };
        last = counter.fetch_add(1, Ordering::Relaxed) == blocks - 1;
        if last {
            counter.store(0, Ordering::Relaxed);
        }
    }
    let last = thread::sync_threads_or(u32::from(last)) != 0;
    thread::device_fence();
    last
}
