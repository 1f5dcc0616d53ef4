#![cfg_attr(target_arch = "nvptx64", no_std, feature(abi_ptx))]

use cuda_std::prelude::*;

/// `y[i] = a * x[i] + y[i]`.
#[derive(KernelParams)]
#[repr(C)]
pub struct Axpy<'a> {
    /// `[len]`
    pub y: DevicePtrMut<'a, f32>,
    /// `[len]`
    pub x: DevicePtr<'a, f32>,
    pub a: f32,
    pub len: u32,
}

/// One thread for each i.
///
/// # Safety
/// `x` and `y` have `len` elements.
#[kernel(block = 64)]
pub unsafe fn axpy(p: Axpy<'_>) {
    let i = thread::index_1d();
    if i < p.len {
        let i = i as usize;
        // SAFETY: i < len, and no other thread has it.
        unsafe { *p.y.as_mut_ptr().add(i) = p.a * *p.x.as_ptr().add(i) + *p.y.as_mut_ptr().add(i) };
    }
}
