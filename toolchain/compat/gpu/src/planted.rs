//! Kernels with one mistake each, which the checks of the virtual GPU find. Each wrong line ends with a comment that names its
//! kernel: the test looks for it in the report.
#![expect(clippy::undocumented_unsafe_blocks, reason = "what is unsafe here is wrong by intention")]

use core::sync::atomic::{AtomicU32, Ordering};
use cuda_std::{kernel, shared_array, thread, warp};

/// Two warps exchange through shared memory, and no barrier stands between.
///
/// # Safety
/// `y` has 64 elements; launched with one block of 64 threads.
#[kernel]
pub unsafe fn planted_shared_race(y: *mut f32) {
    let tile = unsafe { shared_array![f32; 64] };
    let i = thread::thread_idx_x() as usize;
    unsafe {
        *tile.add(i) = 0.0;
        thread::sync_threads();
        *tile.add(i) = i as f32;
        *y.add(i) = *tile.add(63 - i); // planted_shared_race
    }
}

/// Writes one element behind `y`.
///
/// # Safety
/// Wrong by intention.
#[kernel]
pub unsafe fn planted_overrun(x: &[f32], y: *mut f32) {
    let i = thread::index_1d() as usize;
    if i <= x.len() {
        unsafe { *y.add(i) = 1.0 }; // planted_overrun
    }
}

/// Reads `x`, which nobody has written.
///
/// # Safety
/// `x` and `y` have an element for each thread.
#[kernel]
pub unsafe fn planted_uninitialised(x: *const f32, y: *mut f32) {
    let i = thread::index_1d() as usize;
    unsafe { *y.add(i) = twice(x.add(i)) }; // planted_uninitialised
}

#[inline(always)]
unsafe fn twice(x: *const f32) -> f32 {
    2.0 * unsafe { *x } // twice
}

/// Indexes a slice beyond its end.
///
/// # Safety
/// `y` has an element for each thread.
#[kernel]
pub unsafe fn planted_panic(x: &[f32], y: *mut f32) {
    let i = thread::index_1d() as usize;
    let value = x[i + 1]; // planted_panic
    unsafe { *y.add(i) = value };
}

/// Each block reads what its neighbour writes.
///
/// # Safety
/// `y` has an element for each block and one more.
#[kernel]
pub unsafe fn planted_race_of_blocks(y: *mut f32) {
    let block = thread::block_idx_x() as usize;
    if thread::thread_idx_x() == 0 {
        unsafe {
            *y.add(block) = 1.0 + *y.add(block + 1); // planted_race_of_blocks
        }
    }
}

/// Two warps of a block exchange through global memory, and no barrier stands between.
///
/// # Safety
/// `y` has 64 elements, `z` as many; launched with one block of 64 threads.
#[kernel]
pub unsafe fn planted_race_of_warps(y: *mut f32, z: *mut f32) {
    let i = thread::thread_idx_x() as usize;
    unsafe {
        *y.add(i) = i as f32;
        *z.add(i) = *y.add(63 - i); // planted_race_of_warps
    }
}

/// Writes the first element behind an array in shared memory, where another array begins.
///
/// # Safety
/// `y` has 32 elements; launched with one block of 32 threads.
#[kernel]
pub unsafe fn planted_shared_overrun(y: *mut f32, len: u32) {
    let (a, b) = unsafe { (shared_array![f32; 32], shared_array![f32; 32]) };
    let i = thread::thread_idx_x() as usize;
    unsafe {
        *b.add(i) = 1.0;
        if i == 0 {
            *a.add(len as usize) = 2.0; // planted_shared_overrun
        }
        *a.add(i) = 3.0;
        warp::sync_warp(warp::FULL_MASK);
        *y.add(i) = *a.add(31 - i) + *b.add(31 - i);
    }
}

/// The warps of a block wait at two different barriers of one number.
///
/// # Safety
/// `y` has 64 elements; launched with one block of 64 threads.
#[kernel]
pub unsafe fn planted_two_barriers(y: *mut f32) {
    let i = thread::thread_idx_x() as usize;
    if i < 32 {
        unsafe { *y.add(i) = 1.0 };
        thread::sync_threads(); // planted_two_barriers
    } else {
        unsafe { *y.add(i) = 2.0 };
        thread::sync_threads();
        unsafe { *y.add(i) = 3.0 };
    }
}

/// The lanes of a warp exchange through shared memory without `sync_warp`.
///
/// # Safety
/// `y` has 32 elements; launched with one block of 32 threads.
#[kernel]
pub unsafe fn planted_warp_exchange(y: *mut f32) {
    let tile = unsafe { shared_array![f32; 32] };
    let i = thread::thread_idx_x() as usize;
    unsafe {
        *tile.add(i) = i as f32;
        *y.add(i) = *tile.add(31 - i); // planted_warp_exchange
    }
}

/// The same exchanges as above, done right: through a barrier, through `sync_warp`, between blocks through a counter with
/// `Release` and `Acquire`, and with atomics.
///
/// # Safety
/// `y` has 64 elements for each block, `turn` and `sum` hold 0; launched with blocks of 64 threads.
#[kernel]
pub unsafe fn right_exchanges(y: *mut f32, turn: &AtomicU32, sum: &AtomicU32) {
    let (a, b) = unsafe { (shared_array![f32; 64], shared_array![f32; 64]) };
    let i = thread::thread_idx_x() as usize;
    let block = thread::block_idx_x();
    unsafe {
        *a.add(i) = i as f32;
        warp::sync_warp(warp::FULL_MASK);
        *b.add(i) = *a.add(i ^ 31);
        thread::sync_threads();
        let value = *b.add(63 - i);
        sum.fetch_add(value as u32, Ordering::Relaxed);
        if i == 0 {
            while turn.load(Ordering::Acquire) != block {}
        }
        thread::sync_threads();
        let before = if block == 0 { 0.0 } else { *y.add(64 * (block as usize - 1) + 63 - i) };
        *y.add(64 * block as usize + i) = before + value;
        thread::sync_threads();
        if i == 0 {
            turn.store(block + 1, Ordering::Release);
        }
    }
}
