//! Atomics that `core` does not have: sums of floats, and operations by scope. Integer atomics of the whole GPU are `core::sync::atomic`'s,
//! which become `atom` and `red` with the fences that `cuda_builder` puts beside them.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

#[cfg(target_arch = "nvptx64")]
use crate::thread;

/// The threads that an operation is atomic and ordered among, in CUDA's words; PTX's `.cta`, `.gpu` and `.sys`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of the block (`atomicAdd_block`).
    Block,
    /// Those of the GPU (`atomicAdd`).
    Device,
    /// Those of all GPUs, and the host's (`atomicAdd_system`).
    System,
}

/// The fences around a relaxed operation, as `core`'s atomics have them here.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
fn fence(scope: Scope, asked: bool) {
    if asked {
        match scope {
            Scope::Block => thread::block_fence(),
            Scope::Device => thread::device_fence(),
            Scope::System => thread::system_fence(),
        }
    }
}

#[cfg(target_arch = "nvptx64")]
fn releases(order: Ordering) -> bool {
    matches!(order, Ordering::Release | Ordering::AcqRel | Ordering::SeqCst)
}

#[cfg(target_arch = "nvptx64")]
fn acquires(order: Ordering) -> bool {
    matches!(order, Ordering::Acquire | Ordering::AcqRel | Ordering::SeqCst)
}

/// One instruction, its scope chosen, between its fences.
#[cfg(target_arch = "nvptx64")]
macro_rules! atom {
    ($operation:literal, $register:ident, $ty:ty, $pointer:expr, [$($value:expr),*], $order:expr, $scope:expr) => {{
        fence($scope, releases($order));
        let old: $ty;
        // SAFETY: the pointer comes from a live reference, and all shared access goes through atomics.
        unsafe {
            match $scope {
                Scope::Block => atom!(@ ".cta", $operation, $register, old, $pointer, $($value),*),
                Scope::Device => atom!(@ ".gpu", $operation, $register, old, $pointer, $($value),*),
                Scope::System => atom!(@ ".sys", $operation, $register, old, $pointer, $($value),*),
            }
        }
        fence($scope, acquires($order));
        old
    }};
    (@ $scope:literal, $operation:literal, $register:ident, $old:ident, $pointer:expr, $value:expr) => {
        core::arch::asm!(
            concat!("atom", $scope, ".", $operation, " {old}, [{pointer}], {value};"),
            old = out($register) $old, pointer = in(reg64) $pointer, value = in($register) $value,
            options(nostack, preserves_flags)
        )
    };
    (@ $scope:literal, $operation:literal, $register:ident, $old:ident, $pointer:expr, $wanted:expr, $value:expr) => {
        core::arch::asm!(
            concat!("atom", $scope, ".", $operation, " {old}, [{pointer}], {wanted}, {value};"),
            old = out($register) $old, pointer = in(reg64) $pointer, wanted = in($register) $wanted, value = in($register) $value,
            options(nostack, preserves_flags)
        )
    };
}

macro_rules! floats {
    ($($(#[$doc:meta])* $name:ident($float:ty, $atomic:ty, $register:ident, $plain:literal, $scoped:literal);)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        pub struct $name(UnsafeCell<$float>);

        // SAFETY: the only shared access is by the atomic instructions below.
        unsafe impl Sync for $name {}

        impl $name {
            /// A new atomic with this value.
            pub const fn new(value: $float) -> Self {
                Self(UnsafeCell::new(value))
            }

            /// The value.
            pub fn into_inner(self) -> $float {
                self.0.into_inner()
            }

            /// Adds `value` and returns what was there before. Orderings hold among the threads of the GPU: `membar.gl` before it to
            /// release, after it to acquire.
            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            pub fn fetch_add(&self, value: $float, order: Ordering) -> $float {
                fence(Scope::Device, releases(order));
                let old;
                // SAFETY: the pointer comes from a live reference.
                unsafe {
                    core::arch::asm!(
                        $plain,
                        old = out($register) old,
                        pointer = in(reg64) self.0.get(),
                        value = in($register) value,
                        options(nostack, preserves_flags)
                    );
                }
                fence(Scope::Device, acquires(order));
                old
            }

            /// [`fetch_add`](Self::fetch_add) among the threads of a scope.
            #[cfg(target_arch = "nvptx64")]
            #[inline(always)]
            pub fn fetch_add_in(&self, value: $float, order: Ordering, scope: Scope) -> $float {
                atom!($scoped, $register, $float, self.0.get(), [value], order, scope)
            }

            /// Adds `value` and returns what was there before.
            #[cfg(not(target_arch = "nvptx64"))]
            pub fn fetch_add(&self, value: $float, order: Ordering) -> $float {
                // SAFETY: the integer has the float's size and alignment, and all shared access goes through it.
                let bits = unsafe { <$atomic>::from_ptr(self.0.get().cast()) };
                let load = if order == Ordering::Relaxed { Ordering::Relaxed } else { Ordering::Acquire };
                let mut old = bits.load(load);
                loop {
                    let new = (<$float>::from_bits(old) + value).to_bits();
                    match bits.compare_exchange_weak(old, new, order, load) {
                        Ok(_) => return <$float>::from_bits(old),
                        Err(now) => old = now,
                    }
                }
            }

            /// [`fetch_add`](Self::fetch_add): the host has one scope.
            #[cfg(not(target_arch = "nvptx64"))]
            pub fn fetch_add_in(&self, value: $float, order: Ordering, _scope: Scope) -> $float {
                self.fetch_add(value, order)
            }
        }
    )*};
}

floats! {
    /// An `f32` that threads of one GPU add to.
    AtomicF32(f32, AtomicU32, reg32, "atom.add.f32 {old}, [{pointer}], {value};", "add.f32");
    /// An `f64` that threads of one GPU add to, from sm_60 on.
    AtomicF64(f64, AtomicU64, reg64, "atom.add.f64 {old}, [{pointer}], {value};", "add.f64");
}

/// Operations of `core`'s integer atomics among the threads of a [`Scope`]: by block cheaper than by GPU, by system seen by the host.
pub trait AtomicIn {
    /// The number.
    type Value;
    /// Adds, wrapping, and returns what was there before.
    fn fetch_add_in(&self, value: Self::Value, order: Ordering, scope: Scope) -> Self::Value;
    /// Keeps the smaller, and returns what was there before.
    fn fetch_min_in(&self, value: Self::Value, order: Ordering, scope: Scope) -> Self::Value;
    /// Keeps the larger, and returns what was there before.
    fn fetch_max_in(&self, value: Self::Value, order: Ordering, scope: Scope) -> Self::Value;
    /// Stores, and returns what was there before.
    fn swap_in(&self, value: Self::Value, order: Ordering, scope: Scope) -> Self::Value;
    /// Stores `new` where `wanted` is, and returns what was there before: `wanted`, if it was stored.
    fn compare_and_swap_in(
        &self,
        wanted: Self::Value,
        new: Self::Value,
        order: Ordering,
        scope: Scope,
    ) -> Self::Value;
}

macro_rules! integers {
    ($($name:ident($value:ty, $register:ident, $add:literal, $min:literal, $max:literal, $swap:literal, $cas:literal);)*) => {$(
        #[cfg(target_arch = "nvptx64")]
        #[crate::inlined]
        impl AtomicIn for $name {
            type Value = $value;

            fn fetch_add_in(&self, value: $value, order: Ordering, scope: Scope) -> $value {
                atom!($add, $register, $value, self.as_ptr(), [value], order, scope)
            }

            fn fetch_min_in(&self, value: $value, order: Ordering, scope: Scope) -> $value {
                atom!($min, $register, $value, self.as_ptr(), [value], order, scope)
            }

            fn fetch_max_in(&self, value: $value, order: Ordering, scope: Scope) -> $value {
                atom!($max, $register, $value, self.as_ptr(), [value], order, scope)
            }

            fn swap_in(&self, value: $value, order: Ordering, scope: Scope) -> $value {
                atom!($swap, $register, $value, self.as_ptr(), [value], order, scope)
            }

            fn compare_and_swap_in(&self, wanted: $value, new: $value, order: Ordering, scope: Scope) -> $value {
                atom!($cas, $register, $value, self.as_ptr(), [wanted, new], order, scope)
            }
        }

        #[cfg(not(target_arch = "nvptx64"))]
        impl AtomicIn for $name {
            type Value = $value;

            fn fetch_add_in(&self, value: $value, order: Ordering, _scope: Scope) -> $value {
                self.fetch_add(value, order)
            }

            fn fetch_min_in(&self, value: $value, order: Ordering, _scope: Scope) -> $value {
                self.fetch_min(value, order)
            }

            fn fetch_max_in(&self, value: $value, order: Ordering, _scope: Scope) -> $value {
                self.fetch_max(value, order)
            }

            fn swap_in(&self, value: $value, order: Ordering, _scope: Scope) -> $value {
                self.swap(value, order)
            }

            fn compare_and_swap_in(&self, wanted: $value, new: $value, order: Ordering, _scope: Scope) -> $value {
                let failure = match order {
                    Ordering::Release => Ordering::Relaxed,
                    Ordering::AcqRel => Ordering::Acquire,
                    same => same,
                };
                self.compare_exchange(wanted, new, order, failure).unwrap_or_else(|old| old)
            }
        }
    )*};
}

integers! {
    AtomicU32(u32, reg32, "add.u32", "min.u32", "max.u32", "exch.b32", "cas.b32");
    AtomicI32(i32, reg32, "add.s32", "min.s32", "max.s32", "exch.b32", "cas.b32");
    AtomicU64(u64, reg64, "add.u64", "min.u64", "max.u64", "exch.b64", "cas.b64");
    AtomicI64(i64, reg64, "add.u64", "min.s64", "max.s64", "exch.b64", "cas.b64");
}
