//! Gathers rows: y[i, :] = table[ids[i], :].   table: [rows, cols] f32 or f16, ids: [n] u32, y: [n, cols] f32.
//!
//! An id outside the table gives a row of NaN and reads nothing.
//!
//! | kernel        | a row of y is handled by | when |
//! |---------------|--------------------------|------|
//! | embedding_‹t› | 1 block                  | all  |

use crate::device::{Element, F16};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

const BLOCK: u32 = 256;

/// The parameters of the kernels.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Gather<T> {
    /// [gridDim.x, cols]
    pub y: *mut f32,
    /// [rows, cols], disjoint from y
    pub table: *const T,
    /// [gridDim.x], disjoint from y
    pub ids: *const u32,
    pub rows: u32,
    pub cols: u32,
    /// 1 if y and the table start at a multiple of four elements and cols is a multiple of four, else 0.
    pub vectors: u32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[embedding_f32.info(), embedding_f16.info()];

/// # Safety
/// As the kernels below.
#[inline(always)]
unsafe fn gather<T: Element>(Gather { y, table, ids, rows, cols, vectors }: Gather<T>) {
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

/// grid = [n]
///
/// # Safety
/// [`Gather`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, min_blocks = 8)]
pub unsafe fn embedding_f32(p: Gather<f32>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { gather(p) }
}

/// grid = [n]
///
/// # Safety
/// As [`embedding_f32`].
#[kernel(block = BLOCK, min_blocks = 8)]
pub unsafe fn embedding_f16(p: Gather<F16>) {
    // SAFETY: this kernel's contract is the body's.
    unsafe { gather(p) }
}
