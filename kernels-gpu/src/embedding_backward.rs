//! The gradient of [`embedding`](crate::embedding): dtable[r, :] = Σ dy[i, :] over the i with ids[i] = r, or += it.
//! dtable: [rows, cols], dy: [n, cols]
//!
//! A block has [`ROWS`] rows of the table and searches all ids, which are few and stay in a cache; they need not be sorted.
//! Each row is written once: the sum in the order of i, or zeros. So the result is the same each time, and the gradient need
//! not be zeroed before.
//!
//! | kernel                 | 16 rows are handled by | when |
//! |------------------------|------------------------|------|
//! | embedding_backward_f32 | 1 block                | all  |

use crate::device::block_reduce;
use crate::device::columns::Columns;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

const BLOCK: u32 = 256;
const WARPS: u32 = BLOCK / 32;
/// Rows per block: fewer fill the device even with a small table, more search the ids less often.
pub const ROWS: u32 = 16;

/// The parameters of the kernel.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Scatter {
    /// [rows, cols]; read only if `add`
    pub dtable: *mut f32,
    /// [n, cols], disjoint from dtable
    pub dy: *const f32,
    /// [n], disjoint from dtable
    pub ids: *const u32,
    pub n: u32,
    pub rows: u32,
    pub cols: u32,
    /// Whether to accumulate in the table.
    pub add: u32,
    /// Whether all rows of dtable and dy start and end at multiples of 16 bytes.
    pub vectors: u32,
}

/// All kernels of this file.
pub const KERNELS: &[KernelInfo] = &[embedding_backward_f32.info()];

/// grid = [ceil(rows / ROWS)]
///
/// # Safety
/// [`Scatter`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
#[kernel(block = BLOCK, min_blocks = 8, shared(scratch: [u32; WARPS]), shuffles = 5)]
pub unsafe fn embedding_backward_f32(Scatter { dtable, dy, ids, n, rows, cols, add, vectors }: Scatter) {
    let (tid, first) = (thread::thread_idx_x(), thread::block_idx_x() * ROWS);
    let lane = tid % 32;
    let columns = Columns::new::<f32>(cols, tid, BLOCK, vectors != 0);
    // SAFETY: ids are read below n, rows below the table's. All threads reach the reduction's barrier, and all lanes the
    // ballots: their loops depend only on values that are the same for all of them.
    unsafe {
        let mut used = 0;
        let mut i = tid;
        while i < n {
            let row = (*ids.add(i as usize)).wrapping_sub(first);
            used |= if row < ROWS { 1 << row } else { 0 };
            i += BLOCK;
        }
        let [used] = block_reduce::reduce_once([used], WARPS, scratch, Or);
        let end = rows.min(first + ROWS);
        let mut r = first;
        while r < end {
            let is_used = used >> (r - first) & 1 != 0;
            let row = dtable.add(r as usize * cols as usize);
            let mut group = 0;
            while (is_used || add == 0) && columns.has(group) {
                let mut sum = if add != 0 { columns.load(row.cast_const(), group, 0.0) } else { [0.0; 4] };
                let mut i = 0;
                while is_used && i < n {
                    let mut equal = warp::warp_vote_ballot(
                        warp::FULL_MASK,
                        i + lane < n && *ids.add((i + lane).min(n - 1) as usize) == r,
                    );
                    while equal != 0 {
                        let from = dy.add((i + equal.trailing_zeros()) as usize * cols as usize);
                        let values = columns.load(from, group, 0.0);
                        sum =
                            [sum[0] + values[0], sum[1] + values[1], sum[2] + values[2], sum[3] + values[3]];
                        equal &= equal - 1;
                    }
                    i += 32;
                }
                columns.store(row, group, sum);
                group += 1;
            }
            r += 1;
        }
    }
}
