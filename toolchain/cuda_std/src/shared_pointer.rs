//! Shared memory through 32-bit addresses, so that every access is an `ld.shared` or `st.shared` and address
//! arithmetic is one 32-bit add.

use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use core::marker::PhantomData;

/// A pointer into the block's static shared memory, to 32-bit elements.
#[derive(Clone, Copy)]
pub struct Shared<T> {
    address: u32,
    element: PhantomData<*mut T>,
}

/// Declares `COUNT` 32-bit elements of static shared memory, 16-byte aligned, contents undefined. Each call is an
/// array of its own: call it once per array, outside of loops.
#[gpu_only]
#[inline(always)]
pub fn declare<T: Word, const COUNT: usize>() -> Shared<T> {
    let address: u32;
    // SAFETY: declares an array and takes its address. Not `pure`, so that two calls are never merged into one.
    unsafe {
        asm!(
            "{{",
            ".shared .align 16 .b32 shared_array[{count}];",
            "mov.u32 {address}, shared_array;",
            "}}",
            count = const COUNT,
            address = out(reg32) address,
            options(nomem, nostack, preserves_flags)
        );
    }
    Shared { address, element: PhantomData }
}

/// A 32-bit value that shared memory holds.
pub trait Word: Copy {
    /// The value's bits.
    fn to_bits(self) -> u32;
    /// The value with these bits.
    fn from_bits(bits: u32) -> Self;
}

impl Word for f32 {
    #[inline(always)]
    fn to_bits(self) -> u32 {
        f32::to_bits(self)
    }
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        f32::from_bits(bits)
    }
}

impl Word for u32 {
    #[inline(always)]
    fn to_bits(self) -> u32 {
        self
    }
    #[inline(always)]
    fn from_bits(bits: u32) -> Self {
        bits
    }
}

impl<T: Word> Shared<T> {
    /// The address in the shared state space, for inline PTX.
    #[inline(always)]
    pub fn address(self) -> u32 {
        self.address
    }

    /// The pointer `index` elements later.
    #[inline(always)]
    pub fn at(self, index: u32) -> Self {
        Self { address: self.address.wrapping_add(index.wrapping_mul(4)), element: PhantomData }
    }

    /// Reads element `index`.
    ///
    /// # Safety
    /// Inside the array, written before, and there is a barrier between another thread's write and this.
    #[gpu_only]
    #[inline(always)]
    pub unsafe fn get(self, index: u32) -> T {
        let bits;
        // SAFETY: the element is in the array and was written before a barrier, as the caller promises.
        unsafe {
            asm!(
                "ld.shared.b32 {bits}, [{address}];",
                bits = out(reg32) bits,
                address = in(reg32) self.address + index * 4,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        T::from_bits(bits)
    }

    /// Reads two elements from `index` on by one 8-byte access.
    ///
    /// # Safety
    /// As [`get`](Self::get), for two elements; the address is a multiple of 8 bytes.
    #[gpu_only]
    #[inline(always)]
    pub unsafe fn get2(self, index: u32) -> [T; 2] {
        let (a, b);
        // SAFETY: the elements are in the array, were written before a barrier and are aligned, as the caller promises.
        unsafe {
            asm!(
                "ld.shared.v2.b32 {{{a}, {b}}}, [{address}];",
                a = out(reg32) a, b = out(reg32) b,
                address = in(reg32) self.address + index * 4,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        [T::from_bits(a), T::from_bits(b)]
    }

    /// Reads four elements from `index` on by one 16-byte access.
    ///
    /// # Safety
    /// As [`get`](Self::get), for four elements; the address is a multiple of 16 bytes.
    #[gpu_only]
    #[inline(always)]
    pub unsafe fn get4(self, index: u32) -> [T; 4] {
        let (a, b, c, d);
        // SAFETY: the elements are in the array, were written before a barrier and are aligned, as the caller promises.
        unsafe {
            asm!(
                "ld.shared.v4.b32 {{{a}, {b}, {c}, {d}}}, [{address}];",
                a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
                address = in(reg32) self.address + index * 4,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        [T::from_bits(a), T::from_bits(b), T::from_bits(c), T::from_bits(d)]
    }

    /// Reads four elements from `ROW · STRIDE + PART · APART` on by one 16-byte access whose offset is part of the
    /// instruction, so that an unrolled loop over rows computes no addresses.
    ///
    /// # Safety
    /// As [`get4`](Self::get4).
    #[gpu_only]
    #[inline(always)]
    pub unsafe fn get4_at<const ROW: u32, const STRIDE: u32, const PART: u32, const APART: u32>(
        self,
    ) -> [T; 4] {
        let (a, b, c, d);
        // SAFETY: the elements are in the array, were written before a barrier and are aligned, as the caller promises.
        unsafe {
            asm!(
                "ld.shared.v4.b32 {{{a}, {b}, {c}, {d}}}, [{address}+{offset}];",
                a = out(reg32) a, b = out(reg32) b, c = out(reg32) c, d = out(reg32) d,
                address = in(reg32) self.address,
                offset = const (ROW * STRIDE + PART * APART) * 4,
                options(pure, readonly, nostack, preserves_flags)
            );
        }
        [T::from_bits(a), T::from_bits(b), T::from_bits(c), T::from_bits(d)]
    }

    /// Writes element `ROW · STRIDE`; as [`get4_at`](Self::get4_at).
    ///
    /// # Safety
    /// As [`set`](Self::set).
    #[gpu_only]
    #[inline(always)]
    pub unsafe fn set_at<const ROW: u32, const STRIDE: u32>(self, value: T) {
        // SAFETY: the element is in the array and no other thread accesses it before a barrier, as the caller promises.
        unsafe {
            asm!(
                "st.shared.b32 [{address}+{offset}], {bits};",
                bits = in(reg32) value.to_bits(),
                address = in(reg32) self.address,
                offset = const ROW * STRIDE * 4,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Writes element `index`.
    ///
    /// # Safety
    /// Inside the array, and there is a barrier between other threads' accesses to this element and this.
    #[gpu_only]
    #[inline(always)]
    pub unsafe fn set(self, index: u32, value: T) {
        // SAFETY: the element is in the array and no other thread accesses it before a barrier, as the caller promises.
        unsafe {
            asm!(
                "st.shared.b32 [{address}], {bits};",
                bits = in(reg32) value.to_bits(),
                address = in(reg32) self.address + index * 4,
                options(nostack, preserves_flags)
            );
        }
    }

    /// Writes four elements from `index` on by one 16-byte access.
    ///
    /// # Safety
    /// As [`set`](Self::set), for four elements; the address is a multiple of 16 bytes.
    #[gpu_only]
    #[inline(always)]
    pub unsafe fn set4(self, index: u32, [a, b, c, d]: [T; 4]) {
        // SAFETY: the elements are in the array and aligned, and no other thread accesses them before a barrier, as the caller promises.
        unsafe {
            asm!(
                "st.shared.v4.b32 [{address}], {{{a}, {b}, {c}, {d}}};",
                a = in(reg32) a.to_bits(), b = in(reg32) b.to_bits(),
                c = in(reg32) c.to_bits(), d = in(reg32) d.to_bits(),
                address = in(reg32) self.address + index * 4,
                options(nostack, preserves_flags)
            );
        }
    }
}
