//! Floating-point atomics that `core` does not have. Integer atomics are `core::sync::atomic`'s, which become `atom` and `red`
//! with the fences that `cuda_builder` puts beside them.

use core::cell::UnsafeCell;
use core::sync::atomic::Ordering;

/// An `f32` that threads of one GPU add to.
#[repr(transparent)]
pub struct AtomicF32(UnsafeCell<f32>);

// SAFETY: the only shared access is the atomic instruction below.
unsafe impl Sync for AtomicF32 {}

impl AtomicF32 {
    /// A new atomic with this value.
    pub const fn new(value: f32) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> f32 {
        self.0.into_inner()
    }

    /// Adds `value` and returns what was there before. Orderings hold among the threads of the GPU: `membar.gl` before it to
    /// release, after it to acquire.
    #[cfg(target_arch = "nvptx64")]
    #[inline(always)]
    pub fn fetch_add(&self, value: f32, order: Ordering) -> f32 {
        if matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst) {
            crate::thread::device_fence();
        }
        let old;
        // SAFETY: the pointer comes from a live reference.
        unsafe {
            core::arch::asm!(
                "atom.add.f32 {old}, [{pointer}], {value};",
                old = out(reg32) old,
                pointer = in(reg64) self.0.get(),
                value = in(reg32) value,
                options(nostack, preserves_flags)
            );
        }
        if matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst) {
            crate::thread::device_fence();
        }
        old
    }

    /// Adds `value` and returns what was there before.
    #[cfg(not(target_arch = "nvptx64"))]
    pub fn fetch_add(&self, value: f32, order: Ordering) -> f32 {
        // SAFETY: AtomicU32 has the size and alignment of f32, and all shared access goes through it.
        let bits = unsafe { core::sync::atomic::AtomicU32::from_ptr(self.0.get().cast()) };
        let load = if order == Ordering::Relaxed { Ordering::Relaxed } else { Ordering::Acquire };
        let mut old = bits.load(load);
        loop {
            let new = (f32::from_bits(old) + value).to_bits();
            match bits.compare_exchange_weak(old, new, order, load) {
                Ok(_) => return f32::from_bits(old),
                Err(now) => old = now,
            }
        }
    }
}
