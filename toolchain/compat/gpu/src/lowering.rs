//! Operations that LLVM lowers wrongly for `sm_61`, or not at all, unless `cuda_builder` helps.

use core::sync::atomic::{AtomicU32, Ordering};
use cuda_std::{kernel, thread};

/// `x[i] %= y[i]`, in f64 and in f32; by constants in rows of their own.
///
/// # Safety
/// `x` and `xs` are valid for `5 · n` elements, `y` and `ys` for `n`.
#[kernel]
pub unsafe fn remainders(x: *mut f64, y: &[f64], xs: *mut f32, ys: &[f32]) {
    let (i, n) = (thread::index_1d() as usize, y.len());
    let (Some(by), Some(by_s)) = (y.get(i), ys.get(i)) else { return };
    // SAFETY: i < n, and each thread has elements of its own.
    unsafe {
        let (x, xs) = (x.add(i), xs.add(i));
        (*x, *xs) = (*x % by, *xs % by_s);
        (*x.add(n), *xs.add(n)) = (*x.add(n) % 3.7, *xs.add(n) % 3.7);
        (*x.add(2 * n), *xs.add(2 * n)) = (*x.add(2 * n) % 1.0, *xs.add(2 * n) % 1.0);
        (*x.add(3 * n), *xs.add(3 * n)) = (*x.add(3 * n) % -0.25, *xs.add(3 * n) % -0.25);
        (*x.add(4 * n), *xs.add(4 * n)) = (7.5 % *x.add(4 * n), 7.5 % *xs.add(4 * n));
    }
}

/// Message passing: block 0 writes and releases, the other blocks wait, acquire and copy.
///
/// # Safety
/// `data` and `flag` are zero and nobody else uses them; `seen` has an element for each block.
#[kernel]
pub unsafe fn message(data: *mut u32, flag: &AtomicU32, seen: *mut u32) {
    let block = thread::block_idx_x() as usize;
    // SAFETY: the only write of `data` comes before the flag, the reads after it.
    unsafe {
        if block == 0 {
            *data = 42;
            flag.store(1, Ordering::Release);
        } else {
            while flag.load(Ordering::Acquire) == 0 {}
        }
        *seen.add(block) = *data;
    }
}

/// The last block adds what all have written.
///
/// # Safety
/// `parts` has an element for each block, `sum` one; `count` is zero.
#[kernel]
pub unsafe fn last_block(parts: *mut u32, count: &AtomicU32, sum: *mut u32) {
    let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
    // SAFETY: each block writes its own part, and the last one reads them after all others' releases.
    unsafe {
        *parts.add(block as usize) = block + 1;
        if count.fetch_add(1, Ordering::AcqRel) == blocks - 1 {
            *sum = (0..blocks as usize).map(|i| parts.add(i).read_volatile()).sum();
        }
    }
}

/// Store buffering: of two blocks that write one flag and read the other's, one at least sees a write.
///
/// # Safety
/// `flags` and `seen` have an element for each of the two blocks; the flags are zero.
#[kernel]
pub unsafe fn store_buffering(flags: *mut u32, seen: *mut u32) {
    let block = thread::block_idx_x() as usize;
    // SAFETY: of two blocks, each has an element of its own, and flags are accessed as atomics only.
    unsafe {
        let (own, other) = (AtomicU32::from_ptr(flags.add(block)), AtomicU32::from_ptr(flags.add(1 - block)));
        own.store(1, Ordering::SeqCst);
        *seen.add(block) = other.load(Ordering::SeqCst);
    }
}

/// One operation of each ordering, for the text.
///
/// # Safety
/// None: the compiler checks everything.
#[kernel]
pub unsafe fn exchanges(x: &AtomicU32) {
    if x.compare_exchange(1, 2, Ordering::Release, Ordering::Relaxed).is_ok() {
        x.swap(3, Ordering::Acquire);
        x.fetch_or(4, Ordering::Relaxed);
    }
}

/// Whether two texts are equal, how they compare, and a word moved over itself.
///
/// # Safety
/// `order` is valid for 2 elements, `moved` for 8; nobody else uses them.
#[kernel]
pub unsafe fn texts(a: &[u8], b: &[u8], order: *mut i32, moved: *mut u8) {
    // SAFETY: the caller's contract.
    unsafe {
        *order = i32::from(a == b);
        *order.add(1) = a.cmp(b) as i32;
        core::ptr::copy(moved, moved.add(a.len().min(3)), 5);
    }
}
