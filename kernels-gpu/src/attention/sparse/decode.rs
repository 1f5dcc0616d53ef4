//! Few queries: [`decode`](crate::attention::decode) over the groups of keys in a list.
//!
//! A unit is a set of query heads that share both keys and mask: those of a kv head or, if these have different masks, of a
//! mask head. The list's groups count as one row of keys, and are split like the keys of the dense kernels.

use super::lists::GROUP;
use crate::attention::decode::{
    Instance, Instances, Keys, THREADS, acc_elements, decode, shuffles, state_elements,
};
use crate::attention::merge::Scratch;
use crate::attention::tensors::{Strides, tensors};
use crate::device::F16;
use crate::device::element::load_word;
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

const G: u32 = GROUP as u32;

/// The parameters of the kernels: fields without a comment are as [`Decode`](crate::attention::Decode) has them, with units
/// instead of kv heads.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct SparseDecode<Q, Kv> {
    pub out: *mut Q,
    pub partial: *mut f32,
    pub counters: *mut u32,
    /// [mask heads + 1], the first group of each mask head
    pub starts: *const u32,
    /// The first key of each group, below kv_len: [groups]
    pub keys: *const u32,
    /// The keys of each group that each query attends to, as bits: [groups, q_len]
    pub seen: *const u32,
    pub q: *const Q,
    pub k: *const Kv,
    pub v: *const Kv,
    pub out_strides: Strides,
    pub q_strides: Strides,
    pub k_strides: Strides,
    pub v_strides: Strides,
    /// A multiple of num_kv_heads and of the mask's heads.
    pub units: u32,
    pub units_per_kv_head: u32,
    /// Number of units of a mask head.
    pub units_per_mask: u32,
    /// Number of query heads of a unit.
    pub group: u32,
    pub q_len: u32,
    pub kv_len: u32,
    pub head_dim: u32,
    /// keys_per_split · splits ≥ the keys of a mask head's groups.
    pub keys_per_split: u32,
    pub scale_log2: f32,
}

/// The groups of one unit.
#[derive(Clone, Copy)]
struct Listed {
    /// The first key of each: [groups].
    keys: *const u32,
    /// The keys of each that each query attends to, as bits: [groups, q_len].
    seen: *const u32,
    groups: u32,
    q_len: u32,
    kv_len: u32,
    kv_head: u32,
}

#[inlined]
impl Keys for Listed {
    /// A query, and one past the last key of its split.
    type Row = (u32, u32);

    fn count(self) -> u32 {
        self.groups * G
    }

    fn kv_head(self, _: u32) -> u32 {
        self.kv_head
    }

    unsafe fn key(self, n: u32) -> u32 {
        // SAFETY: n is below the count.
        let first = unsafe { load_word(self.keys.add((n / G) as usize)) };
        (first + n % G).min(self.kv_len - 1)
    }

    fn row(self, i: u32, end: u32) -> (u32, u32) {
        (i, end)
    }

    unsafe fn sees(self, (i, end): (u32, u32), n: u32) -> bool {
        let at = n.min(end - 1) / G * self.q_len + i;
        // SAFETY: the group is below the split's end, so it is in the list.
        n < end && unsafe { load_word(self.seen.add(at as usize)) } >> (n % G) & 1 == 1
    }
}

/// Resident blocks per multiprocessor: three with several rows, since each row's bits take a register.
const fn min_blocks(rows: u32) -> u32 {
    if rows == 1 { 4 } else { 3 }
}

macro_rules! kernels {
    ($(
        $instances:ident: $module:literal, $q:ty, $kv:ty, $d:literal {
            $($name:ident: $rows:literal, $keys:literal;)*
        }
    )*) => {
        $($(
            /// # Safety
            /// [`SparseDecode`] constrains the pointers, which are valid on the launching stream, and the numbers;
            /// launched as [`Instance::spec`] says.
            #[kernel(
                block = THREADS, min_blocks = min_blocks($rows), module = $module, shuffles = shuffles($d, $rows, $keys),
                shared(
                    acc: [f32; acc_elements($rows)], m: [f32; state_elements($d, $rows)], l: [f32; state_elements($d, $rows)]
                )
            )]
            pub unsafe fn $name(p: SparseDecode<$q, $kv>) {
                let scratch = Scratch { partial: p.partial, counters: p.counters, acc, m, l };
                // SAFETY: the unit's mask head has a start and an end in `starts`, and these are groups of `keys` and
                // `seen`; the other parameters fulfil `decode`'s contract.
                unsafe {
                    let unit = thread::block_idx_y() % p.units.max(1);
                    let (head, kv_head) = (unit / p.units_per_mask.max(1), unit / p.units_per_kv_head.max(1));
                    let (start, end) = (load_word(p.starts.add(head as usize)), load_word(p.starts.add(head as usize + 1)));
                    let work = Listed {
                        keys: p.keys.add(start as usize),
                        seen: p.seen.add(start as usize * p.q_len as usize),
                        groups: end - start,
                        q_len: p.q_len,
                        kv_len: p.kv_len,
                        kv_head,
                    };
                    decode::<_, _, { $d / 8 }, $rows, $keys, _>(
                        tensors!(p, p.k, p.v), p.units, p.keys_per_split, work, None, scratch,
                    )
                }
            }
        )*

        /// For 1, 2 and 4 rows.
        const $instances: [Instance<SparseDecode<$q, $kv>>; 3] =
            [$(Instance { spec: $name, rows: $rows, head_dim: $d }),*];
        )*

        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($($name.info()),*),*];
    };
}

kernels! {
    D64_F32: "attention_sparse_decode_d64_f32", f32, f32, 64 {
        attention_sparse_decode_d64_r1_f32: 1, 4;
        attention_sparse_decode_d64_r2_f32: 2, 2;
        attention_sparse_decode_d64_r4_f32: 4, 1;
    }
    D128_F32: "attention_sparse_decode_d128_f32", f32, f32, 128 {
        attention_sparse_decode_d128_r1_f32: 1, 4;
        attention_sparse_decode_d128_r2_f32: 2, 2;
        attention_sparse_decode_d128_r4_f32: 4, 1;
    }
    D64_F16: "attention_sparse_decode_d64_f16", F16, F16, 64 {
        attention_sparse_decode_d64_r1_f16: 1, 4;
        attention_sparse_decode_d64_r2_f16: 2, 4;
        attention_sparse_decode_d64_r4_f16: 4, 2;
    }
    D128_F16: "attention_sparse_decode_d128_f16", F16, F16, 128 {
        attention_sparse_decode_d128_r1_f16: 1, 4;
        attention_sparse_decode_d128_r2_f16: 2, 4;
        attention_sparse_decode_d128_r4_f16: 4, 2;
    }
    D64_F32_F16: "attention_sparse_decode_d64_f32_f16", f32, F16, 64 {
        attention_sparse_decode_d64_r1_f32_f16: 1, 4;
        attention_sparse_decode_d64_r2_f32_f16: 2, 4;
        attention_sparse_decode_d64_r4_f32_f16: 4, 2;
    }
    D128_F32_F16: "attention_sparse_decode_d128_f32_f16", f32, F16, 128 {
        attention_sparse_decode_d128_r1_f32_f16: 1, 4;
        attention_sparse_decode_d128_r2_f32_f16: 2, 4;
        attention_sparse_decode_d128_r4_f32_f16: 4, 2;
    }
}

pub(super) const OF_F32: Instances<SparseDecode<f32, f32>> = [D64_F32, D128_F32];
pub(super) const OF_F16: Instances<SparseDecode<F16, F16>> = [D64_F16, D128_F16];
pub(super) const OF_F32_F16: Instances<SparseDecode<f32, F16>> = [D64_F32_F16, D128_F32_F16];
