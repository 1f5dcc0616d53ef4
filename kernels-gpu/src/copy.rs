//! y = x, bit for bit, for elements of 2 and 4 bytes.
//!
//! | kernel         | layouts                                          |
//! |----------------|--------------------------------------------------|
//! | copy_flat_b‹n› | both without gaps                                |
//! | copy_dims_b‹n› | any strides, up to six extents after merging; b128 where all rows are whole 16-byte vectors |

use crate::device::{Raw, flat, vector};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// grid = [`flat::blocks`](n, head, 16 / element size)
pub const FLAT_B32: KernelSpec = KernelSpec::new("copy_flat_b32", flat::BLOCK);
/// As [`FLAT_B32`].
pub const FLAT_B16: KernelSpec = KernelSpec::new("copy_flat_b16", flat::BLOCK);
/// grid = [ceil(rows << width_log2 / DIMS_BLOCK)], rows = d0·d1·d2·d3·d4
pub const DIMS_B32: KernelSpec = KernelSpec::new("copy_dims_b32", DIMS_BLOCK);
/// As [`DIMS_B32`].
pub const DIMS_B16: KernelSpec = KernelSpec::new("copy_dims_b16", DIMS_BLOCK);
/// As [`DIMS_B32`].
pub const DIMS_B128: KernelSpec = KernelSpec::new("copy_dims_b128", DIMS_BLOCK);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[FLAT_B32, FLAT_B16, DIMS_B32, DIMS_B16, DIMS_B128];

/// Threads in a block of the strided kernels.
pub const DIMS_BLOCK: u32 = 256;

/// Columns that a thread of the strided kernels copies at least, where a row has them: it shares one row's index
/// arithmetic among them, and their loads are in flight together.
pub const COLUMNS_PER_THREAD: u32 = 4;

/// # Safety
/// As [`copy_flat_b32`].
#[inline(always)]
unsafe fn flat_copy<E: Raw>(y: *mut E, x: *const E, n: u32, head: u32) {
    flat::for_each(
        n,
        head,
        E::LEN,
        // SAFETY: `for_each` gives indices of whole vectors below n, aligned as `head` promises.
        |i| unsafe { vector::load_raw(x.add(i as usize)) },
        // SAFETY: as above.
        |i, words| unsafe { vector::store_raw(y.add(i as usize), words) },
        // SAFETY: i < n.
        |i| unsafe { *y.add(i as usize) = E::from_word(E::load(x.add(i as usize))) },
    );
}

/// # Safety
/// `x`, `y`: [n] elements of 4 bytes, valid on the launching stream, disjoint; unless `head = n`, element `head` of
/// both lies at a multiple of 16 bytes. Launched as [`FLAT_B32`] says.
#[kernel(launch_bounds(flat::BLOCK))]
pub unsafe fn copy_flat_b32(y: *mut u32, x: *const u32, n: u32, head: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { flat_copy(y, x, n, head) }
}

/// # Safety
/// As [`copy_flat_b32`], of 2 bytes.
#[kernel(launch_bounds(flat::BLOCK))]
pub unsafe fn copy_flat_b16(y: *mut u16, x: *const u16, n: u32, head: u32) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { flat_copy(y, x, n, head) }
}

/// One extent and the strides along it, in elements.
#[derive(Clone, Copy)]
struct Dim {
    extent: u32,
    y: u32,
    x: u32,
}

/// What a strided copy moves at once.
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
                // SAFETY: as the caller promises.
                Self::from_word(unsafe { Raw::load(pointer) })
            }

            #[inline(always)]
            unsafe fn store(self, pointer: *mut Self) {
                // SAFETY: as the caller promises.
                unsafe { *pointer = self };
            }
        }
    )*};
}
scalar_unit! { u32 u16 }

impl Unit for [u32; 4] {
    const ZERO: Self = [0; 4];

    #[inline(always)]
    unsafe fn load(pointer: *const Self) -> Self {
        // SAFETY: as the caller promises.
        unsafe { vector::load_raw::<u32>(pointer.cast()) }
    }

    #[inline(always)]
    unsafe fn store(self, pointer: *mut Self) {
        // SAFETY: as the caller promises.
        unsafe { vector::store_raw::<u32>(pointer.cast(), self) }
    }
}

/// A row is an index into the five outer extents; 2^width_log2 neighbouring threads copy its columns.
///
/// # Safety
/// As [`copy_dims_b32`].
#[inline(always)]
unsafe fn dims_copy<E: Unit>(
    y: *mut E,
    x: *const E,
    rows: u32,
    width_log2: u32,
    outer: [Dim; 5],
    inner: Dim,
) {
    let width = 1 << width_log2;
    let thread = thread::index_1d();
    let (mut row, mut column) = (thread >> width_log2, thread & (width - 1));
    if row >= rows {
        return; // nothing below exchanges data between threads
    }
    let (mut y_offset, mut x_offset) = (0, 0);
    let [d0, d1, d2, d3, d4] = outer;
    for dim in [d4, d3, d2, d1, d0] {
        if dim.extent != 1 {
            let quotient = row / dim.extent.max(1); // never 0; said so, no panic is compiled in
            let index = row - quotient * dim.extent;
            y_offset += index * dim.y;
            x_offset += index * dim.x;
            row = quotient;
        }
    }
    while column < inner.extent {
        let mut units = [E::ZERO; COLUMNS_PER_THREAD as usize];
        let mut k = 0;
        while k < COLUMNS_PER_THREAD {
            let column = column + k * width;
            if column < inner.extent {
                // SAFETY: every index is below its extent, and the layouts lie inside x and y.
                units[k as usize] = unsafe { E::load(x.add((x_offset + column * inner.x) as usize)) };
            }
            k += 1;
        }
        let mut k = 0;
        while k < COLUMNS_PER_THREAD {
            let column = column + k * width;
            if column < inner.extent {
                // SAFETY: as above.
                unsafe { units[k as usize].store(y.add((y_offset + column * inner.y) as usize)) };
            }
            k += 1;
        }
        column += COLUMNS_PER_THREAD * width;
    }
}

macro_rules! dims_kernel {
    ($(#[$doc:meta])* $name:ident, $ty:ty) => {
        $(#[$doc])*
        #[kernel(launch_bounds(DIMS_BLOCK))]
        pub unsafe fn $name(
            y: *mut $ty, x: *const $ty, rows: u32, width_log2: u32,
            d0: u32, y0: u32, x0: u32, d1: u32, y1: u32, x1: u32, d2: u32, y2: u32, x2: u32,
            d3: u32, y3: u32, x3: u32, d4: u32, y4: u32, x4: u32, d5: u32, y5: u32, x5: u32,
        ) {
            let outer = [
                Dim { extent: d0, y: y0, x: x0 },
                Dim { extent: d1, y: y1, x: x1 },
                Dim { extent: d2, y: y2, x: x2 },
                Dim { extent: d3, y: y3, x: x3 },
                Dim { extent: d4, y: y4, x: x4 },
            ];
            let inner = Dim { extent: d5, y: y5, x: x5 };
            // SAFETY: this kernel's contract is the body's.
            unsafe { dims_copy(y, x, rows, width_log2, outer, inner) }
        }
    };
}

dims_kernel! {
    /// # Safety
    /// `x`, `y`: [d0, …, d5] with the strides x0, … and y0, …, in elements of 4 bytes, valid on the launching stream;
    /// no element of y lies at two indices or in x; all extents above zero, offsets below 2³¹. Launched as
    /// [`DIMS_B32`] says, width_log2 ≤ 8.
    copy_dims_b32, u32
}
dims_kernel! {
    /// # Safety
    /// As [`copy_dims_b32`], of 2 bytes.
    copy_dims_b16, u16
}
dims_kernel! {
    /// # Safety
    /// As [`copy_dims_b32`], of 16 bytes, at multiples of that.
    copy_dims_b128, [u32; 4]
}
