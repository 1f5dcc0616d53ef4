//! y = x, bit for bit, for elements of 2 and 4 bytes.
//!
//! | kernel         | layouts                                          |
//! |----------------|--------------------------------------------------|
//! | copy_flat_b‹n› | both contiguous                                |
//! | copy_dims_b‹n› | any strides, up to six dimensions after merging; b128 where all rows are whole 16-byte vectors |

use crate::device::{Raw, flat, vector};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// The parameters of the flat kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Flat<E> {
    /// [n]
    pub y: *mut E,
    /// [n], disjoint from y
    pub x: *const E,
    pub n: u32,
    /// An index from which on both are aligned to 16 bytes, or n.
    pub head: u32,
}

/// One dimension and the strides along it, in elements.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Dim {
    /// Not zero.
    pub size: u32,
    pub y: u32,
    pub x: u32,
}

/// The parameters of the strided kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Dims<E> {
    /// The dimensions with their strides in y; no two indices have the same address, and y does not overlap x
    pub y: *mut E,
    /// The dimensions with their strides in x
    pub x: *const E,
    /// d0 · d1 · d2 · d3 · d4
    pub rows: u32,
    /// log₂ of the threads per row, at most 8.
    pub width_log2: u32,
    pub d0: Dim,
    pub d1: Dim,
    pub d2: Dim,
    pub d3: Dim,
    pub d4: Dim,
    pub d5: Dim,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[
    copy_flat_b32.info(),
    copy_flat_b16.info(),
    copy_dims_b32.info(),
    copy_dims_b16.info(),
    copy_dims_b128.info(),
];

/// Threads in a block of the strided kernels.
pub const DIMS_BLOCK: u32 = 256;

/// The fewest columns that a thread of the strided kernels copies, if the row has them. They share the index arithmetic of a
/// row, and their loads are in flight together.
pub const COLUMNS_PER_THREAD: u32 = 4;

/// # Safety
/// As [`copy_flat_b32`].
#[inline(always)]
unsafe fn flat_copy<E: Raw>(Flat { y, x, n, head }: Flat<E>) {
    flat::for_each(
        n,
        head,
        E::LEN,
        // SAFETY: `for_each` gives indices of whole vectors below n, aligned because `head` is.
        |i| unsafe { vector::load_raw(x.add(i as usize)) },
        // SAFETY: the same whole vector below n, aligned; y overlaps nothing.
        |i, words| unsafe { vector::store_raw(y.add(i as usize), words) },
        // SAFETY: i < n.
        |i| unsafe { *y.add(i as usize) = E::from_word(E::load(x.add(i as usize))) },
    );
}

/// grid = [[`flat::blocks`](n, head, 4)]
///
/// # Safety
/// [`Flat`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = flat::BLOCK, min_blocks = 16)]
pub unsafe fn copy_flat_b32(p: Flat<u32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { flat_copy(p) }
}

/// grid = [[`flat::blocks`](n, head, 8)]
///
/// # Safety
/// As [`copy_flat_b32`].
#[kernel(block = flat::BLOCK, min_blocks = 16)]
pub unsafe fn copy_flat_b16(p: Flat<u16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { flat_copy(p) }
}

/// The unit that a strided copy moves.
trait Unit: Copy {
    const ZERO: Self;

    /// # Safety
    /// As [`Raw::load`], aligned to the unit's size.
    unsafe fn load(pointer: *const Self) -> Self;

    /// # Safety
    /// `pointer` is in global memory, valid for writing and aligned to the unit's size.
    unsafe fn store(self, pointer: *mut Self);
}

macro_rules! scalar_unit {
    ($($ty:ty)*) => {$(
        impl Unit for $ty {
            const ZERO: Self = 0;

            #[inline(always)]
            unsafe fn load(pointer: *const Self) -> Self {
                // SAFETY: `pointer` is global, valid and not written meanwhile: this function's contract.
                Self::from_word(unsafe { Raw::load(pointer) })
            }

            #[inline(always)]
            unsafe fn store(self, pointer: *mut Self) {
                // SAFETY: `pointer` is valid for writing and aligned: this function's contract.
                unsafe { *pointer = self };
            }
        }
    )*};
}
scalar_unit! { u32 u16 }

#[inlined]
impl Unit for [u32; 4] {
    const ZERO: Self = [0; 4];

    unsafe fn load(pointer: *const Self) -> Self {
        // SAFETY: 16 readable bytes, 16-byte aligned: this function's contract.
        unsafe { vector::load_raw::<u32>(pointer.cast()) }
    }

    unsafe fn store(self, pointer: *mut Self) {
        // SAFETY: 16 writable bytes, 16-byte aligned: this function's contract.
        unsafe { vector::store_raw::<u32>(pointer.cast(), self) }
    }
}

/// A row is an index into the five outer dimensions; 2^width_log2 neighbouring threads copy its columns.
///
/// # Safety
/// As [`copy_dims_b32`].
#[inline(always)]
unsafe fn dims_copy<E: Unit>(Dims { y, x, rows, width_log2, d0, d1, d2, d3, d4, d5: inner }: Dims<E>) {
    let width = 1 << width_log2;
    let thread = thread::index_1d();
    let (mut row, mut column) = (thread >> width_log2, thread & (width - 1));
    if row >= rows {
        return; // nothing below exchanges data between threads
    }
    let (mut y_offset, mut x_offset) = (0, 0);
    for dim in [d4, d3, d2, d1, d0] {
        if dim.size != 1 {
            let quotient = row / dim.size.max(1); // never 0; stated so that no panic is compiled in
            let index = row - quotient * dim.size;
            y_offset += index * dim.y;
            x_offset += index * dim.x;
            row = quotient;
        }
    }
    while column < inner.size {
        let mut units = [E::ZERO; COLUMNS_PER_THREAD as usize];
        let mut k = 0;
        while k < COLUMNS_PER_THREAD {
            let column = column + k * width;
            if column < inner.size {
                // SAFETY: every index is below its dimension, and the layouts are inside x and y.
                units[k as usize] = unsafe { E::load(x.add((x_offset + column * inner.x) as usize)) };
            }
            k += 1;
        }
        let mut k = 0;
        while k < COLUMNS_PER_THREAD {
            let column = column + k * width;
            if column < inner.size {
                // SAFETY: every index is below its dimension, and y's layout is inside y, which overlaps nothing.
                unsafe { units[k as usize].store(y.add((y_offset + column * inner.y) as usize)) };
            }
            k += 1;
        }
        column += COLUMNS_PER_THREAD * width;
    }
}

/// grid = [ceil(rows << width_log2 / [`DIMS_BLOCK`])]
///
/// # Safety
/// [`Dims`] constrains the pointers, which are valid on the launching stream; offsets are below 2³¹.
#[kernel(block = DIMS_BLOCK, min_blocks = 8)]
pub unsafe fn copy_dims_b32(p: Dims<u32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { dims_copy(p) }
}

/// As [`copy_dims_b32`], of 2 bytes.
///
/// # Safety
/// As [`copy_dims_b32`].
#[kernel(block = DIMS_BLOCK, min_blocks = 8)]
pub unsafe fn copy_dims_b16(p: Dims<u16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { dims_copy(p) }
}

/// As [`copy_dims_b32`], of 16 bytes, at multiples of that.
///
/// # Safety
/// As [`copy_dims_b32`].
#[kernel(block = DIMS_BLOCK, min_blocks = 8)]
pub unsafe fn copy_dims_b128(p: Dims<[u32; 4]>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { dims_copy(p) }
}
