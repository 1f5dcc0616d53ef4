//! The gradient of [`embedding`](crate::embedding), added: dtable[ids[i], :] += dy[i, :].   dtable: [rows, cols], dy: [n, cols]
//!
//! The block of the first of several equal ids adds all their rows, in order, and the others do nothing. So no two blocks write one row,
//! and the sum does not depend on which runs first. The ids are few and stay in a cache; they need not be sorted.
//!
//! | kernel                 | a row is handled by | when |
//! |------------------------|---------------------|------|
//! | embedding_backward_f32 | 1 block             | all  |

use crate::device::block_reduce;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

const BLOCK: u32 = 256;
const WARPS: u32 = BLOCK / 32;

/// The parameters of the kernel.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Scatter {
    /// [rows, cols]; read and written
    pub dtable: *mut f32,
    /// [gridDim.x, cols], disjoint from dtable
    pub dy: *const f32,
    /// [gridDim.x], disjoint from dtable
    pub ids: *const u32,
    pub rows: u32,
    pub cols: u32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[embedding_backward_f32.info()];

/// grid = [n]
///
/// # Safety
/// [`Scatter`] says what holds of the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, shared(scratch: [u32; WARPS * 2]), shuffles = 10)]
pub unsafe fn embedding_backward_f32(Scatter { dtable, dy, ids, rows, cols }: Scatter) {
    let (own, n, tid) = (thread::block_idx_x(), thread::grid_dim_x(), thread::thread_idx_x());
    // SAFETY: own < n, so ids are read inside; rows and columns are compared with the table's. All threads are at the
    // reduction's barrier.
    unsafe {
        let id = *ids.add(own as usize);
        let (mut before, mut after) = (0, 0);
        let mut i = tid;
        while i < n {
            let is_equal = u32::from(*ids.add(i as usize) == id);
            before |= if i < own { is_equal } else { 0 };
            after |= if i > own { is_equal } else { 0 };
            i += BLOCK;
        }
        let [before, after] = block_reduce::reduce_once([before, after], WARPS, scratch, Or);
        let end = if after == 0 { own + 1 } else { n };
        if id >= rows || before != 0 {
            return;
        }
        let row = dtable.add(id as usize * cols as usize);
        let mut c = tid;
        while c < cols {
            let mut sum = *row.add(c as usize);
            let mut i = own;
            while i < end {
                if *ids.add(i as usize) == id {
                    sum += *dy.add(i as usize * cols as usize + c as usize);
                }
                i += 1;
            }
            *row.add(c as usize) = sum;
            c += BLOCK;
        }
    }
}
