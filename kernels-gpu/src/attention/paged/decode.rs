//! One query for each of many sequences: [`decode`](crate::attention::decode) over the pages of each.
//!
//! 1. A unit is a kv head of a sequence; the grid's y counts them over all sequences.
//! 2. How many keys there are is read from device memory. The length of a split follows from it ([`keys_per_split`]), and blocks of
//!    splits that a sequence does not have return at once.
//! 3. A sequence's own key, where q is a fused projection, is the last of its length.
//! 4. A sequence without keys gives 0, as in the dense kernels; so a launch may have more rows than there are sequences.

use super::table::{PAGE, Table, keys_per_split};
use crate::attention::appended::Appended;
use crate::attention::decode::{
    Instance, Instances, Keys, THREADS, acc_elements, decode, instance, keys, shuffles_appending,
    state_elements,
};
use crate::attention::merge::Scratch;
use crate::attention::tensors::{Floats, Strides, Tensors, by_width};
use crate::device::F16;
use crate::device::element::load_word;
use crate::kv::{Stored, for_each_storage};
use crate::rope_append::Rotation;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// The parameters of the kernels: fields without a comment are as [`Decode`](crate::attention::Decode) has them.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct PagedDecode {
    /// [sequences, num_q_heads, head_dim]
    pub out: *mut f32,
    /// With more than one split in the grid, [sequences · num_q_heads, gridDim.x, partial_elements(D)], else not used.
    pub partial: *mut f32,
    pub counters: *mut u32,
    /// The pages of each sequence: [sequences, width]
    pub tables: *const u32,
    /// The number of keys of each sequence; those beyond width · PAGE are ignored: [sequences]
    pub lens: *const u32,
    /// [sequences, num_q_heads, head_dim]; with `cos`, [sequences, num_q_heads + 2 · num_kv_heads, head_dim]
    pub q: *const f32,
    /// [last_row + 1, num_kv_heads, head_dim]
    pub k: *const u8,
    /// [last_row + 1, num_kv_heads, head_dim]
    pub v: *const u8,
    pub out_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub num_kv_heads: u32,
    pub group: u32,
    pub head_dim: u32,
    /// Entries of a table, so few that their keys make at most gridDim.x splits; width · PAGE is below 2³².
    pub width: u32,
    /// The pool's last row.
    pub last_row: u32,
    /// The most splits that a sequence makes, whatever its length.
    pub splits: u32,
    pub scale_log2: f32,
    pub exponent_bits: u32,
    pub k_scales: *const F16,
    pub v_scales: *const F16,
    pub cos: *const f32,
    pub sin: *const f32,
    pub q_weight: *const f32,
    pub k_weight: *const f32,
    /// With `cos`, the row of the pool that each sequence's own key is written to, and `at_stride` later its query's angle: [sequences]
    pub at: *const u32,
    pub at_stride: u32,
    pub angles: u32,
    pub eps: f32,
}

/// The keys of one sequence.
#[derive(Clone, Copy)]
struct Paged {
    table: Table,
    len: u32,
    splits: u32,
    num_kv_heads: u32,
}

#[inlined]
impl Keys for Paged {
    /// One past the last key of the split.
    type Row = u32;

    fn count(self) -> u32 {
        self.len
    }

    fn splits(self) -> u32 {
        self.splits
    }

    fn kv_head(self, unit: u32) -> u32 {
        unit % self.num_kv_heads.max(1)
    }

    unsafe fn key(self, n: u32) -> u32 {
        // SAFETY: n is below the count, for which the table has pages.
        unsafe { self.table.row(n) }
    }

    fn row(self, _: u32, end: u32) -> u32 {
        end
    }

    unsafe fn sees(self, end: u32, n: u32) -> bool {
        n < end
    }
}

macro_rules! kernels {
    ($($storage:ident: $stored:ty, $types:expr, $([$width:ident $d:literal $of_width:literal])+;)*) => {
        /// By the storage of k and v, width and rows of a kv head.
        mod kernels {
            $(pub mod $storage {
                $(pub mod $width {
                    use super::super::super::*;

                    kernels! { @ r1 $stored, $d, 1, concat!("attention_paged_decode_", $of_width), "_r1_", $types }
                    kernels! { @ r2 $stored, $d, 2, concat!("attention_paged_decode_", $of_width), "_r2_", $types }
                    kernels! { @ r4 $stored, $d, 4, concat!("attention_paged_decode_", $of_width), "_r4_", $types }
                    pub const INSTANCES: [Instance<PagedDecode>; 3] =
                        [instance(r1, 1, $d), instance(r2, 2, $d), instance(r4, 4, $d)];
                })+
            })*
        }

        pub(super) const INSTANCES: &[Instances<PagedDecode>] =
            &[$(by_width(&[$(kernels::$storage::$width::INSTANCES),+])),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($(
            kernels::$storage::$width::r1.info(),
            kernels::$storage::$width::r2.info(),
            kernels::$storage::$width::r4.info(),
        )+)*];
    };
    (@ $name:ident $stored:ty, $d:literal, $rows:literal, $of_width:expr, $of_rows:literal, $types:expr) => {
        /// # Safety
        /// [`PagedDecode`] constrains the pointers, which are valid on the launching stream, and the numbers;
        /// launched as [`Kernels::decode`](crate::attention::paged::Kernels::decode) says.
        #[kernel(
            name = concat!($of_width, $of_rows, $types), block = THREADS, min_blocks = 4,
            module = concat!($of_width, "_", $types), shuffles = shuffles_appending::<$stored>($d, $rows),
            shared(
                acc: [f32; acc_elements($rows)], m: [f32; state_elements($d, $rows)], l: [f32; state_elements($d, $rows)]
            )
        )]
        pub unsafe fn $name(p: PagedDecode) {
            let [k, v] = <$stored>::of([p.k, p.v], p.exponent_bits, [p.k_scales, p.v_scales]);
            let scratch = Scratch { partial: p.partial, counters: p.counters, acc, m, l };
            // SAFETY: the block's sequence has a length and a table, with pages for its keys; the other parameters
            // fulfil `decode`'s contract.
            unsafe {
                let sequence = thread::block_idx_y() / p.num_kv_heads.max(1);
                let len = load_word(p.lens.add(sequence as usize));
                // the last key of a length is the query's own, if the query is in a projection
                let own = u32::from(!p.cos.is_null() && len > 0);
                let len = (len - own).min(p.width * PAGE);
                let keys_per_split = keys_per_split(len, p.splits);
                let splits = len.div_ceil(keys_per_split).max(1);
                if thread::block_idx_x() >= splits {
                    return; // the whole block; no other block waits for it
                }
                let pages = p.tables.add((sequence * p.width) as usize);
                let table = Table { pages, last_row: p.last_row };
                let work = Paged { table, len, splits, num_kv_heads: p.num_kv_heads };
                let appended = (!p.cos.is_null()).then(|| {
                    let row = load_word(p.at.add(sequence as usize));
                    Appended {
                        rotation: Rotation { cos: p.cos, sin: p.sin, angles: p.angles, half: p.head_dim / 2, eps: p.eps },
                        q_weight: p.q_weight,
                        k_weight: p.k_weight,
                        angle: load_word(p.at.add((p.at_stride + sequence) as usize)),
                        row,
                        room: if row > p.last_row { 0 } else { own },
                        k: (p.k.cast_mut(), p.k_scales.cast_mut()),
                        v: (p.v.cast_mut(), p.v_scales.cast_mut()),
                        exponent_bits: p.exponent_bits,
                    }
                });
                let tensors = Tensors {
                    out: p.out,
                    factors: Floats { q: p.q, k },
                    v,
                    out_strides: p.out_strides,
                    q_strides: p.q_strides,
                    k_strides: p.k_strides,
                    v_strides: p.v_strides,
                    group: p.group,
                    q_len: 1,
                    head_dim: p.head_dim,
                    scale_log2: p.scale_log2,
                };
                decode::<_, _, { $d / 8 }, $rows, { keys::<$stored>($rows) }, _>(
                    tensors, p.num_kv_heads, keys_per_split, work, appended, scratch,
                )
            }
        }
    };
}

for_each_storage! { kernels }
