#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use cuda_std::prelude::*;

/// sum[i] = a[i] + b[i], one thread for each i.
///
/// # Safety
/// `sum` is valid for writes of as many elements as `a` and `b` have both.
#[kernel]
pub unsafe fn add(a: &[f32], b: &[f32], sum: *mut f32) {
    let i = thread::index_1d() as usize;
    if let (Some(a), Some(b)) = (a.get(i), b.get(i)) {
        // SAFETY: i is inside both slices, and no other thread has it.
        unsafe { *sum.add(i) = a + b };
    }
}
