//! Keys and values of the queries themselves, for [`decode`](super::decode): a fused projection has them after q's heads.
//!
//! ```text
//! each block:           its rows of q: normalised, rotated                        → shared memory
//! the last split's too: a key and a value for each query, as k and v store them   → shared memory, and k and v
//! ```
//!
//! The last split attends to these keys first, in shared memory. So no block reads what the launch writes.

use crate::device::{Element, F16, Shared};
use crate::kv::Stored;
use crate::kv::stored::{Row, each_pair};
use crate::rope_append::Rotation;
use core::ptr::null_mut;
use cuda_std::inlined;
use cuda_std::prelude::*;

/// What the kernels' parameters say of them.
#[derive(Clone, Copy)]
pub(super) struct Appended<Q> {
    pub rotation: Rotation,
    pub q_weight: *const Q,
    pub k_weight: *const Q,
    /// The first query's angle.
    pub angle: u32,
    /// The row of k and v that the first key is written to; the others follow.
    pub row: u32,
    /// How many there is room for. The others are dropped.
    pub room: u32,
    /// The memory of k, and its scales.
    pub k: (*mut u8, *mut F16),
    pub v: (*mut u8, *mut F16),
    pub exponent_bits: u32,
}

/// A block's rows of q: row r of a unit is query r mod q_len of its head r / q_len.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// The block's first row, and the unit's number of them.
    pub first: u32,
    pub count: u32,
    pub q_len: u32,
    pub first_head: u32,
}

#[inlined]
impl Rows {
    /// The head and the query of the block's row `i`; past the last row, that row's.
    pub fn at(self, i: u32) -> (u32, u32) {
        let row = (self.first + i).min(self.count - 1);
        (self.first_head + row / self.q_len, row % self.q_len)
    }
}

/// A kv head of a fused projection.
#[derive(Clone, Copy)]
pub(super) struct KvHead {
    pub number: u32,
    /// How many there are; those of keys follow the heads of q, `first` in number, those of values follow them.
    pub count: u32,
    pub first: u32,
}

#[inlined]
impl<Q: Element> Appended<Q> {
    /// Writes to `to` [R + 2 · own, d] the block's R rows of q, then a key and a value of each of the first `own` queries. Columns past a
    /// head's are not written. `x` gives the address of a query's row in a head of the projection.
    ///
    /// # Safety
    /// All threads call it together. The projection has the heads; only blocks with this kv head have `own` ≠ 0, and k and v have the rows
    /// that there is room for.
    pub unsafe fn rotate<S: Stored, const R: usize>(
        self,
        rows: Rows,
        own: u32,
        kv: KvHead,
        x: impl Fn(u32, u32) -> *const Q,
        (to, d): (Shared<f32>, u32),
    ) {
        let half = self.rotation.half;
        let mut item = thread::thread_idx_x() / 32;
        while item < R as u32 + 2 * own {
            let is_query = item < R as u32;
            let number = item.wrapping_sub(R as u32);
            let is_value = !is_query && number % 2 == 1;
            let (head, i) = match is_query {
                true => rows.at(item),
                false => (kv.first + number % 2 * kv.count + kv.number, number / 2),
            };
            let weight = if is_query { self.q_weight } else { self.k_weight };
            // SAFETY: whole warps are here, with a head of the projection each. A row that is written is inside k or v, and no other block
            // writes it; the item's row is inside `to`.
            unsafe {
                let pairs = self.rotation.head(x(head, i), weight, self.angle.saturating_add(i), is_value);
                let [low, high] = match is_query {
                    true => {
                        let (values, scales) = (null_mut(), null_mut());
                        let row = Row { values, scales, exponent_bits: 0, row: 0, half, is_written: false };
                        <*const Q>::store(row, pairs)
                    }
                    false => {
                        let (values, scales) = if is_value { self.v } else { self.k };
                        let row = (self.row + i) * kv.count + kv.number;
                        let is_written = i < self.room && thread::block_idx_z() == 0;
                        let exponent_bits = self.exponent_bits;
                        S::store(Row { values, scales, exponent_bits, row, half, is_written }, pairs)
                    }
                };
                each_pair!(half, P, column => {
                    to.set(item * d + column, low[P]);
                    to.set(item * d + column + half, high[P]);
                });
            }
            item += thread::block_dim_x() / 32;
        }
        thread::sync_threads();
    }
}
