// One kernel or function for each name of `cuda_std`. Included by `lib.rs`, twice, and by the GPU crate: so without `//!`.

use core::sync::atomic::Ordering;
use cuda_std::atomic::AtomicF32;
use cuda_std::{gpu_only, kernel, mem, misc, shared, shared_array, thread, warp};

/// Every index and size of a thread.
#[gpu_only]
pub fn indices() -> [u32; 14] {
    [
        thread::thread_idx_x(),
        thread::thread_idx_y(),
        thread::thread_idx_z(),
        thread::block_idx_x(),
        thread::block_idx_y(),
        thread::block_idx_z(),
        thread::block_dim_x(),
        thread::block_dim_y(),
        thread::block_dim_z(),
        thread::grid_dim_x(),
        thread::grid_dim_y(),
        thread::grid_dim_z(),
        thread::index_1d(),
        thread::warp_size(),
    ]
}

/// Barriers and fences.
///
/// # Safety
/// All threads of the block call it together.
#[gpu_only]
pub unsafe fn synchronisation(predicate: u32) -> u32 {
    thread::sync_threads();
    thread::device_fence();
    thread::system_fence();
    // SAFETY: the whole warp is here, as the caller promises.
    unsafe { warp::sync_warp(u32::MAX) };
    thread::sync_threads_count(predicate) + thread::sync_threads_and(predicate) + thread::sync_threads_or(predicate)
}

/// Reverses 64 elements through shared memory, and times it.
///
/// # Safety
/// `x` is valid for 64 elements and `cycles` for one; one block of 64 threads, with dynamic shared memory for one
/// more word.
#[kernel]
pub unsafe fn reverse(x: *mut i32, cycles: *mut u64, total: &AtomicF32) {
    let start = misc::clock();
    let tile: *mut i32 = shared_array![i32; 64];
    let extra: *mut u32 = shared::dynamic_shared_mem::<u32>();
    let i = thread::thread_idx_x() as usize;
    // SAFETY: i < 64 by the launch, and the barrier is between the writes and the reads.
    unsafe {
        *tile.add(i) = *x.add(i);
        if i < 32 && warp::lane_id() == 0 {
            *extra = mem::dynamic_smem_size() + mem::total_smem_size();
        }
        thread::sync_threads();
        *x.add(i) = *tile.add(63 - i);
        let _before: f32 = total.fetch_add(1.0, Ordering::Relaxed);
        if i == 0 {
            *cycles = misc::clock() - start;
        }
    }
}

/// `sum[i] = a[i] + b[i]`: slices to read, each a pointer and a length in the entry, and a pointer to write.
///
/// # Safety
/// `sum` is valid for as many elements as both slices have, and nothing else refers to it.
#[kernel]
pub unsafe fn add(a: &[f32], b: &[f32], sum: *mut f32) {
    let i = thread::index_1d() as usize;
    if i < a.len() && i < b.len() {
        // SAFETY: i is inside both slices, and no other thread has it.
        unsafe { *sum.add(i) = a[i] + b[i] };
    }
}

/// `y[i] = Σⱼ weights[j] · x[(i + j + shift) mod len of x]`: slices of other types, with other parameters between them.
///
/// # Safety
/// `y` is valid for as many elements as `x` has, and nothing else refers to it; `x` is not empty.
#[kernel]
pub unsafe fn correlate(y: *mut f64, shift: u8, x: &[u16], n: u32, weights: &[f64]) {
    let i = thread::index_1d();
    if i >= n {
        return;
    }
    let mut sum = 0.0;
    for (j, weight) in weights.iter().enumerate() {
        sum += weight * f64::from(x[(i as usize + j + usize::from(shift)) % x.len()]);
    }
    // SAFETY: i < n, which is the number of elements, and no other thread has it.
    unsafe { *y.add(i as usize) = sum };
}

/// Atomics work on the host too.
pub fn host_atomics() -> f32 {
    let total = AtomicF32::new(1.5);
    total.fetch_add(2.0, Ordering::SeqCst);
    total.into_inner()
}

#[cfg(test)]
#[test]
fn atomics_agree() {
    assert_eq!(host_atomics(), 3.5);
}
