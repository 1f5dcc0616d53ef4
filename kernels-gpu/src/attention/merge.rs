//! Merges partial results. A block merges those of its slots. The last of the blocks that share rows (see [`ticket`]) then
//! merges those of the blocks.
//!
//! A partial result is (m, l, acc): the largest score, the sum of exp(score − m), and that of exp(score − m) v.
//!
//! Source: Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", section 3.1.

use crate::device::element::read4;
use crate::device::math::{exp2, fma, rcp};
use crate::device::unroll::unroll;
use crate::device::{Element, Shared, ticket};
use cuda_std::prelude::*;

/// Elements after the columns of a partial result. Two hold m and l; the others keep 16-byte alignment.
pub(super) const STATE: u32 = 4;

/// f32 elements of one row's partial result of one split, for an instance of padded head_dim `d`.
pub const fn partial_elements(d: u32) -> u32 {
    d + STATE
}

/// max, or 0 if there was no key, so that −∞ − max is −∞ and not NaN.
#[inline(always)]
pub(super) fn base(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Memory for partial results: those of the splits in global memory, those of a block's slots in shared memory.
#[derive(Clone, Copy)]
pub(super) struct Scratch {
    /// [rows of all y, splits, d + 4], 16-byte aligned; not used by a single split.
    pub partial: *mut f32,
    /// [gridDim.y · gridDim.z] zeros, left zero; not used by a single split.
    pub counters: *mut u32,
    /// [slots, R, d]
    pub acc: Shared<f32>,
    /// [slots, R]
    pub m: Shared<f32>,
    /// [slots, R]
    pub l: Shared<f32>,
}

/// A thread's part in merging, in blocks of `THREADS` threads. Blocks with the same y and z share rows; x is the split.
#[derive(Clone, Copy)]
pub(super) struct Merge<const P: usize> {
    pub scratch: Scratch,
    /// The block's first row of its y's `rows`; fewer than R may be left.
    pub first_row: u32,
    pub rows: u32,
    /// The slot of the block's `slots` that this thread has a part of.
    pub slot: u32,
    pub slots: u32,
    /// The first columns of its pieces of four; exactly one thread of each slot has column 0.
    pub columns: [u32; P],
    /// Columns in memory, a multiple of four.
    pub d: u32,
    /// Columns of the result.
    pub head_dim: u32,
    /// The number of splits, one block each; records have room for gridDim.x.
    pub splits: u32,
}

#[inlined]
impl<const P: usize> Merge<P> {
    /// Writes the result of the block's R rows, or its part of it. `out` gives the address of a row's first column.
    ///
    /// # Safety
    /// All threads call it together. The scratch memory has the sizes that its fields name. In global memory only this
    /// launch uses it, and only this block writes what `out` gives for rows below `rows`.
    pub unsafe fn finish<T: Element, const R: usize>(
        self,
        mut m: [f32; R],
        mut l: [f32; R],
        mut acc: [[[f32; 4]; P]; R],
        out: impl Fn(u32) -> *mut T,
    ) {
        let Self { first_row, rows, slot, slots, columns, d, .. } = self;
        let Scratch { counters, acc: all_acc, m: all_m, l: all_l, .. } = self.scratch;
        let splits = self.splits;
        let mut whole = splits == 1;
        loop {
            unroll!(I < 4 => {
                if I < R {
                    let row = slot * R as u32 + I as u32;
                    // SAFETY: each thread writes its own elements of [slots, R, D]; one thread of a slot writes the slot's
                    // of [slots, R].
                    unsafe {
                        unroll!(J < 4 => if J < P { all_acc.set4(row * d + columns[J], acc[I][J]); });
                        if columns[0] == 0 {
                            all_m.set(row, m[I]);
                            all_l.set(row, l[I]);
                        }
                    }
                }
            });
            thread::sync_threads();

            // each thread has some of the elements of [R, D]
            let mut element = thread::thread_idx_x();
            while element < R as u32 * d {
                let (row, column) = (element / d, element % d);
                let mut max = f32::NEG_INFINITY;
                let mut s = 0;
                while s < slots {
                    // SAFETY: inside [slots, R], written before the barrier.
                    max = max.max(unsafe { all_m.get(s * R as u32 + row) });
                    s += 1;
                }
                let (mut total, mut sum) = (0.0, 0.0);
                s = 0;
                while s < slots {
                    let at = s * R as u32 + row;
                    // SAFETY: inside [slots, R] and [slots, R, D], written before the barrier.
                    unsafe {
                        let weight = exp2(all_m.get(at) - base(max));
                        sum = fma(weight, all_l.get(at), sum);
                        total = fma(weight, all_acc.get(at * d + column), total);
                    }
                    s += 1;
                }
                let row = first_row + row;
                if row < rows && whole && column < self.head_dim {
                    let factor = if sum == 0.0 { 0.0 } else { rcp(sum) };
                    // SAFETY: a row and a column of out.
                    unsafe { *out(row).add(column as usize) = T::from_f32(total * factor) };
                } else if row < rows && !whole {
                    // SAFETY: the record (row, split) is inside partial.
                    unsafe {
                        let record =
                            self.records(row).add((thread::block_idx_x() * partial_elements(d)) as usize);
                        *record.add(column as usize) = total;
                        if column < STATE {
                            *record.add((d + column) as usize) = if column == 0 { max } else { sum };
                        }
                    }
                }
                element += thread::block_dim_x();
            }
            if whole {
                return;
            }

            // the last block continues with the splits; a slot has every slots-th of them
            // SAFETY: all threads are here; each group of blocks that differ only in the split has its own counter.
            unsafe {
                let counter = thread::block_idx_z() * thread::grid_dim_y() + thread::block_idx_y();
                if !ticket::is_last(counters.add(counter as usize), splits) {
                    return;
                }
            }
            unroll!(I < 4 => {
                if I < R {
                    // SAFETY: the records of a row, all of them written and visible.
                    (m[I], l[I], acc[I]) = unsafe { self.merged((first_row + I as u32).min(rows - 1)) };
                }
            });
            whole = true;
        }
    }

    /// A row's records, which are contiguous.
    fn records(self, row: u32) -> *mut f32 {
        let first = (thread::block_idx_y() * self.rows + row) as usize * thread::grid_dim_x() as usize;
        self.scratch.partial.wrapping_add(first * partial_elements(self.d) as usize)
    }

    /// The thread's share of a row's records, merged.
    ///
    /// # Safety
    /// The records are written, before a fence that this thread has passed.
    unsafe fn merged(self, row: u32) -> (f32, f32, [[f32; 4]; P]) {
        /// Records in flight.
        const N: usize = 4;
        let (records, splits) = (self.records(row), self.splits);
        let (mut m, mut l, mut acc) = (f32::NEG_INFINITY, 0.0, [[0.0; 4]; P]);
        let mut split = self.slot;
        while split < splits {
            let (mut max, mut sum, mut columns) = ([f32::NEG_INFINITY; N], [0.0; N], [[[0.0; 4]; P]; N]);
            let mut next = m;
            unroll!(J < 4 => {
                let split = split + J as u32 * self.slots;
                if split < splits {
                    // SAFETY: a record of this row, which its block wrote before the fence that the caller has passed.
                    unsafe {
                        let record = records.add((split * partial_elements(self.d)) as usize);
                        [max[J], sum[J], ..] = read4(record.add(self.d as usize));
                        unroll!(K < 4 => if K < P { columns[J][K] = read4(record.add(self.columns[K] as usize)); });
                    }
                    next = next.max(max[J]);
                }
            });
            let rescale = exp2(m - base(next));
            m = next;
            l *= rescale;
            unroll!(K < 4 => if K < P { unroll!(E < 4 => { acc[K][E] *= rescale; }); });
            unroll!(J < 4 => {
                let weight = exp2(max[J] - base(next));
                l = fma(weight, sum[J], l);
                unroll!(K < 4 => {
                    if K < P {
                        unroll!(E < 4 => { acc[K][E] = fma(weight, columns[J][K][E], acc[K][E]); });
                    }
                });
            });
            split += N as u32 * self.slots;
        }
        (m, l, acc)
    }
}

/// Column `column` of the result of `count` partial results, which are `stride` elements apart, for padded head_dim `d`.
///
/// # Safety
/// In the records, the column and the first two words of the state are written.
#[inline(always)]
pub(super) unsafe fn merge(records: *const f32, stride: usize, count: u32, d: u32, column: u32) -> f32 {
    // SAFETY: the caller's records are below `count`, with the column and both words of the state written.
    unsafe {
        let state = |record: u32| records.add(record as usize * stride + d as usize);
        let mut max = f32::NEG_INFINITY;
        let mut record = 0;
        while record < count {
            max = max.max(f32::load(state(record)));
            record += 1;
        }
        let (mut total, mut sum) = (0.0, 0.0);
        record = 0;
        while record < count {
            let weight = exp2(f32::load(state(record)) - base(max));
            sum = fma(weight, f32::load(state(record).add(1)), sum);
            total = fma(weight, f32::load(records.add(record as usize * stride + column as usize)), total);
            record += 1;
        }
        total * if sum == 0.0 { 0.0 } else { rcp(sum) }
    }
}
