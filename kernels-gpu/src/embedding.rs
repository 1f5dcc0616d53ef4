//! Rows by number: y[i, :] = table[ids[i], :].   table: [rows, cols] f32 or f16, ids: [n] u32, y: [n, cols] f32.
//!
//! An id that is no row gives a row of NaN and reads nothing.
//!
//! | kernel        | a row of y is handled by | when |
//! |---------------|--------------------------|------|
//! | embedding_‹t› | 1 block                  | all  |

use crate::device::{Element, F16};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

const BLOCK: u32 = 256;

/// grid = [n]
pub const GATHER_F32: KernelSpec = KernelSpec::new("embedding_f32", BLOCK);
/// As [`GATHER_F32`].
pub const GATHER_F16: KernelSpec = KernelSpec::new("embedding_f16", BLOCK);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[GATHER_F32, GATHER_F16];

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn gather<T: Element>(
    y: *mut f32,
    table: *const T,
    ids: *const u32,
    rows: u32,
    cols: u32,
    vectors: u32,
) {
    let (i, tid) = (thread::block_idx_x() as usize, thread::thread_idx_x());
    // SAFETY: one block per id; every column written or read is below cols, every row below rows.
    unsafe {
        let id = *ids.add(i);
        let y = y.add(i * cols as usize);
        let row = table.add(id as usize * cols as usize);
        if id >= rows {
            let mut c = tid;
            while c < cols {
                *y.add(c as usize) = f32::NAN;
                c += BLOCK;
            }
        } else if vectors != 0 {
            let mut c = tid * 4;
            while c < cols {
                f32::store4(y.add(c as usize), T::load4(row.add(c as usize)));
                c += BLOCK * 4;
            }
        } else {
            let mut c = tid;
            while c < cols {
                *y.add(c as usize) = T::load(row.add(c as usize));
                c += BLOCK;
            }
        }
    }
}

/// # Safety
/// `y`: [gridDim.x, cols], `table`: [rows, cols], `ids`: [gridDim.x], valid on the launching stream and disjoint; with
/// `vectors`, `y` and `table` start at a multiple of four elements and cols is one; launched as [`GATHER_F32`] says.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn embedding_f32(
    y: *mut f32,
    table: *const f32,
    ids: *const u32,
    rows: u32,
    cols: u32,
    vectors: u32,
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { gather(y, table, ids, rows, cols, vectors) }
}

/// # Safety
/// As [`embedding_f32`], launched as [`GATHER_F16`] says.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn embedding_f16(
    y: *mut f32,
    table: *const F16,
    ids: *const u32,
    rows: u32,
    cols: u32,
    vectors: u32,
) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { gather(y, table, ids, rows, cols, vectors) }
}
