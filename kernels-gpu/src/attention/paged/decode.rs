//! One query for each of many sequences: [`decode`](crate::attention::decode) over the pages of each.
//!
//! 1. A unit is a kv head of a sequence; the grid's y counts them over all sequences.
//! 2. How many keys there are is read from device memory. The length of a split follows from it ([`keys_per_split`]), and blocks of
//!    splits that a sequence does not have return at once.
//! 3. A sequence without keys gives 0, as in the dense kernels; so a launch may have more rows than there are sequences.

use super::{Table, keys_per_split};
use crate::attention::decode::{
    Instance, Instances, Keys, THREADS, acc_elements, decode, shuffles, state_elements,
};
use crate::attention::merge::Scratch;
use crate::attention::{Strides, Tensors};
use crate::device::F16;
use crate::device::element::load_word;
use crate::device::stored::KvElement;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// The parameters of the kernels: fields without a comment are as [`Decode`](crate::attention::Decode) has them.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct PagedDecode<Q, Kv> {
    /// [sequences, num_q_heads, head_dim]
    pub out: *mut Q,
    /// With more than one split in the grid, [sequences · num_q_heads, gridDim.x, partial_elements(D)], else not used.
    pub partial: *mut f32,
    pub counters: *mut u32,
    /// The pages of each sequence: [sequences, width]
    pub tables: *const u32,
    /// The number of keys of each sequence; those beyond `capacity` are ignored: [sequences]
    pub lens: *const u32,
    /// [sequences, num_q_heads, head_dim]
    pub q: *const Q,
    /// [last_row + 1, num_kv_heads, head_dim]
    pub k: *const Kv,
    /// [last_row + 1, num_kv_heads, head_dim]
    pub v: *const Kv,
    pub out_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    pub num_kv_heads: u32,
    pub group: u32,
    pub head_dim: u32,
    /// Entries of a table.
    pub width: u32,
    /// The most keys of a sequence: at most width · PAGE, and so few that they make at most gridDim.x splits.
    pub capacity: u32,
    /// The pool's last row.
    pub last_row: u32,
    /// The most splits that a sequence makes, whatever its length.
    pub splits: u32,
    pub scale_log2: f32,
    pub exponent_bits: u32,
    pub k_scales: *const F16,
    pub v_scales: *const F16,
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
    ($(
        $instances:ident: $module:literal, $kv:ty, $d:literal {
            $($name:ident: $rows:literal, $keys:literal;)*
        }
    )*) => {
        $($(
            /// # Safety
            /// [`PagedDecode`] constrains the pointers, which are valid on the launching stream, and the numbers;
            /// launched as [`Kernels::decode`](super::Kernels::decode) says.
            #[kernel(
                block = THREADS, min_blocks = 4, module = $module, shuffles = shuffles($d, $rows, $keys),
                shared(
                    acc: [f32; acc_elements($rows)], m: [f32; state_elements($d, $rows)], l: [f32; state_elements($d, $rows)]
                )
            )]
            pub unsafe fn $name(p: PagedDecode<f32, $kv>) {
                let [k, v] = KvElement::stored([p.k, p.v], p.exponent_bits, [p.k_scales, p.v_scales]);
                let scratch = Scratch { partial: p.partial, counters: p.counters, acc, m, l };
                // SAFETY: the block's sequence has a length and a table, with pages for its keys; the other parameters
                // fulfil `decode`'s contract.
                unsafe {
                    let sequence = thread::block_idx_y() / p.num_kv_heads.max(1);
                    let len = load_word(p.lens.add(sequence as usize)).min(p.capacity);
                    let keys = keys_per_split(len, p.splits);
                    let splits = len.div_ceil(keys).max(1);
                    if thread::block_idx_x() >= splits {
                        return; // the whole block; no other block waits for it
                    }
                    let pages = p.tables.add((sequence * p.width) as usize);
                    let table = Table { pages, last_row: p.last_row };
                    let work = Paged { table, len, splits, num_kv_heads: p.num_kv_heads };
                    let tensors = Tensors {
                        out: p.out,
                        q: p.q,
                        k,
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
                    decode::<_, _, { $d / 8 }, $rows, $keys, _>(tensors, p.num_kv_heads, keys, work, scratch)
                }
            }
        )*

        /// For 1, 2 and 4 rows.
        const $instances: [Instance<PagedDecode<f32, $kv>>; 3] =
            [$(Instance { spec: $name, rows: $rows, head_dim: $d }),*];
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($($name.info()),*),*];
    };
}

kernels! {
    D64_F32: "attention_paged_decode_d64_f32", f32, 64 {
        attention_paged_decode_d64_r1_f32: 1, 4;
        attention_paged_decode_d64_r2_f32: 2, 2;
        attention_paged_decode_d64_r4_f32: 4, 1;
    }
    D128_F32: "attention_paged_decode_d128_f32", f32, 128 {
        attention_paged_decode_d128_r1_f32: 1, 4;
        attention_paged_decode_d128_r2_f32: 2, 2;
        attention_paged_decode_d128_r4_f32: 4, 1;
    }
    D64_F32_F16: "attention_paged_decode_d64_f32_f16", F16, 64 {
        attention_paged_decode_d64_r1_f32_f16: 1, 4;
        attention_paged_decode_d64_r2_f32_f16: 2, 4;
        attention_paged_decode_d64_r4_f32_f16: 4, 2;
    }
    D128_F32_F16: "attention_paged_decode_d128_f32_f16", F16, 128 {
        attention_paged_decode_d128_r1_f32_f16: 1, 4;
        attention_paged_decode_d128_r2_f32_f16: 2, 4;
        attention_paged_decode_d128_r4_f32_f16: 4, 2;
    }
    D128_F32_CODED: "attention_paged_decode_d128_f32_coded", u16, 128 {
        attention_paged_decode_d128_r1_f32_coded: 1, 4;
        attention_paged_decode_d128_r2_f32_coded: 2, 4;
        attention_paged_decode_d128_r4_f32_coded: 4, 2;
    }
    D128_F32_Q8_0: "attention_paged_decode_d128_f32_q8_0", u8, 128 {
        attention_paged_decode_d128_r1_f32_q8_0: 1, 4;
        attention_paged_decode_d128_r2_f32_q8_0: 2, 4;
        attention_paged_decode_d128_r4_f32_q8_0: 4, 2;
    }
}

pub(super) const OF_F32: Instances<PagedDecode<f32, f32>> = [D64_F32, D128_F32];
pub(super) const OF_F32_F16: Instances<PagedDecode<f32, F16>> = [D64_F32_F16, D128_F32_F16];
pub(super) const OF_F32_CODED: Instances<PagedDecode<f32, u16>> = [D128_F32_CODED, D128_F32_CODED];
pub(super) const OF_F32_Q8_0: Instances<PagedDecode<f32, u8>> = [D128_F32_Q8_0, D128_F32_Q8_0];
