//! The code for the GPU, and on the host the contract by which it is launched.

#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use cuda_std::prelude::*;

/// sum[i] = a[i] + b[i].
#[derive(KernelParams)]
#[repr(C)]
pub struct Add<'a> {
    /// `[len]`
    pub sum: DevicePtrMut<'a, f32>,
    /// `[len]`
    pub a: DevicePtr<'a, f32>,
    /// `[len]`
    pub b: DevicePtr<'a, f32>,
    /// Number of elements.
    pub len: u32,
}

/// One thread for each i.
///
/// # Safety
/// `sum`, `a` and `b` have `len` elements.
#[kernel(block = 256)]
pub unsafe fn add(p: Add<'_>) {
    let i = thread::index_1d();
    if i < p.len {
        let i = i as usize;
        // SAFETY: i < len, and no other thread has it.
        unsafe { *p.sum.as_mut_ptr().add(i) = *p.a.as_ptr().add(i) + *p.b.as_ptr().add(i) };
    }
}
