//! Few queries: [`decode`](crate::attention::decode) over the groups of keys that a list names.
//!
//! A unit is what shares both keys and mask: the query heads of a kv head or, where those have masks of their own, of a
//! mask head. The list's groups count as one row of keys, and are split as the dense kernels split theirs.

use super::GROUP;
use crate::attention::Strides;
use crate::attention::decode::{DECODE, Decode, Keys, THREADS, decode};
use crate::device::F16;
use crate::device::element::load_word;
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

const G: u32 = GROUP as u32;

/// The dense instance of the same type, width and rows under another name; of several rows three blocks fit on a
/// multiprocessor, since what each row sees takes registers.
const fn instance(name: &'static str, like: Decode) -> Decode {
    let min_blocks = if like.rows == 1 { 4 } else { 3 };
    Decode { spec: KernelSpec { name, min_blocks, ..like.spec }, ..like }
}

const fn instances(names: [&'static str; 6], like: &[Decode; 6]) -> [Decode; 6] {
    let mut instances = *like;
    let mut i = 0;
    while i < 6 {
        instances[i] = instance(names[i], like[i]);
        i += 1;
    }
    instances
}

/// All instances, by [`Types`](crate::attention::Types), head_dim and rows: grid = [splits, b · units,
/// ceil(q_len · group / rows)].
pub const SPARSE_DECODE: [[Decode; 6]; 3] = [
    instances(
        [
            "attention_sparse_decode_d64_r1_f32",
            "attention_sparse_decode_d64_r2_f32",
            "attention_sparse_decode_d64_r4_f32",
            "attention_sparse_decode_d128_r1_f32",
            "attention_sparse_decode_d128_r2_f32",
            "attention_sparse_decode_d128_r4_f32",
        ],
        &DECODE[0],
    ),
    instances(
        [
            "attention_sparse_decode_d64_r1_f16",
            "attention_sparse_decode_d64_r2_f16",
            "attention_sparse_decode_d64_r4_f16",
            "attention_sparse_decode_d128_r1_f16",
            "attention_sparse_decode_d128_r2_f16",
            "attention_sparse_decode_d128_r4_f16",
        ],
        &DECODE[1],
    ),
    instances(
        [
            "attention_sparse_decode_d64_r1_f32_f16",
            "attention_sparse_decode_d64_r2_f32_f16",
            "attention_sparse_decode_d64_r4_f32_f16",
            "attention_sparse_decode_d128_r1_f32_f16",
            "attention_sparse_decode_d128_r2_f32_f16",
            "attention_sparse_decode_d128_r4_f32_f16",
        ],
        &DECODE[2],
    ),
];

const fn specs() -> [KernelSpec; 18] {
    let mut specs = [SPARSE_DECODE[0][0].spec; 18];
    let mut i = 0;
    while i < 18 {
        specs[i] = SPARSE_DECODE[i / 6][i % 6].spec;
        i += 1;
    }
    specs
}

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &specs();

/// The groups that a list names for one unit.
#[derive(Clone, Copy)]
struct Listed {
    /// The first key of each: [groups].
    keys: *const u32,
    /// What each query sees of each, as bits: [groups, q_len].
    seen: *const u32,
    groups: u32,
    q_len: u32,
    kv_len: u32,
    kv_head: u32,
}

impl Keys for Listed {
    /// A query, and one past the last key of its split.
    type Row = (u32, u32);

    #[inline(always)]
    fn count(self) -> u32 {
        self.groups * G
    }

    #[inline(always)]
    fn kv_head(self, _: u32) -> u32 {
        self.kv_head
    }

    #[inline(always)]
    unsafe fn key(self, n: u32) -> u32 {
        // SAFETY: n is below the count.
        let first = unsafe { load_word(self.keys.add((n / G) as usize)) };
        (first + n % G).min(self.kv_len - 1)
    }

    #[inline(always)]
    fn row(self, i: u32, end: u32) -> (u32, u32) {
        (i, end)
    }

    #[inline(always)]
    unsafe fn sees(self, (i, end): (u32, u32), n: u32) -> bool {
        let at = n.min(end - 1) / G * self.q_len + i;
        // SAFETY: a group below the split's end, and so of the list.
        n < end && unsafe { load_word(self.seen.add(at as usize)) } >> (n % G) & 1 == 1
    }
}

macro_rules! kernels {
    ($($name:ident: $tq:ty, $tkv:ty, $lanes:literal, $rows:literal, $keys:literal, $blocks:literal;)*) => {$(
        /// # Safety
        /// As [`attention_decode_d64_r1_f32`](crate::attention::decode::attention_decode_d64_r1_f32), with `units` in
        /// the place of kv heads: a multiple of num_kv_heads and of the mask's heads, of which `units_per_kv_head` and
        /// `units_per_mask` share one. `starts`: [mask heads + 1], where each one's groups begin; `keys` [groups], below
        /// kv_len; `seen` [groups, q_len]. keys_per_split · splits ≥ the groups' keys.
        #[kernel(launch_bounds(THREADS, $blocks))]
        pub unsafe fn $name(
            out: *mut $tq, partial: *mut f32, counters: *mut u32, starts: *const u32, keys: *const u32, seen: *const u32,
            q: *const $tq, k: *const $tkv, v: *const $tkv,
            out_batch: u32, out_head: u32, out_row: u32,
            q_batch: u32, q_head: u32, q_row: u32,
            k_batch: u32, k_head: u32, k_row: u32,
            v_batch: u32, v_head: u32, v_row: u32,
            units: u32, units_per_kv_head: u32, units_per_mask: u32, group: u32, q_len: u32, kv_len: u32,
            head_dim: u32, keys_per_split: u32, scale_log2: f32,
        ) {
            const ACC: usize = 8 * THREADS as usize * $rows;
            const ML: usize = THREADS as usize / $lanes * $rows;
            let strides = [
                Strides { batch: out_batch, head: out_head, row: out_row },
                Strides { batch: q_batch, head: q_head, row: q_row },
                Strides { batch: k_batch, head: k_head, row: k_row },
                Strides { batch: v_batch, head: v_head, row: v_row },
            ];
            // SAFETY: this kernel's contract is the body's.
            unsafe {
                let unit = thread::block_idx_y() % units.max(1);
                let (head, kv_head) = (unit / units_per_mask.max(1), unit / units_per_kv_head.max(1));
                let (start, end) = (load_word(starts.add(head as usize)), load_word(starts.add(head as usize + 1)));
                let (keys, seen) = (keys.add(start as usize), seen.add(start as usize * q_len as usize));
                let work = Listed { keys, seen, groups: end - start, q_len, kv_len, kv_head };
                decode::<$tq, _, $lanes, $rows, $keys, ACC, ML, _>(
                    out, partial, counters, q, k, v, strides, units, group, q_len, head_dim, keys_per_split, scale_log2, work,
                )
            }
        }
    )*};
}

kernels! {
    attention_sparse_decode_d64_r1_f32: f32, f32, 8, 1, 4, 4;
    attention_sparse_decode_d64_r2_f32: f32, f32, 8, 2, 2, 3;
    attention_sparse_decode_d64_r4_f32: f32, f32, 8, 4, 1, 3;
    attention_sparse_decode_d128_r1_f32: f32, f32, 16, 1, 4, 4;
    attention_sparse_decode_d128_r2_f32: f32, f32, 16, 2, 2, 3;
    attention_sparse_decode_d128_r4_f32: f32, f32, 16, 4, 1, 3;
    attention_sparse_decode_d64_r1_f16: F16, F16, 8, 1, 4, 4;
    attention_sparse_decode_d64_r2_f16: F16, F16, 8, 2, 4, 3;
    attention_sparse_decode_d64_r4_f16: F16, F16, 8, 4, 2, 3;
    attention_sparse_decode_d128_r1_f16: F16, F16, 16, 1, 4, 4;
    attention_sparse_decode_d128_r2_f16: F16, F16, 16, 2, 4, 3;
    attention_sparse_decode_d128_r4_f16: F16, F16, 16, 4, 2, 3;
    attention_sparse_decode_d64_r1_f32_f16: f32, F16, 8, 1, 4, 4;
    attention_sparse_decode_d64_r2_f32_f16: f32, F16, 8, 2, 4, 3;
    attention_sparse_decode_d64_r4_f32_f16: f32, F16, 8, 4, 2, 3;
    attention_sparse_decode_d128_r1_f32_f16: f32, F16, 16, 1, 4, 4;
    attention_sparse_decode_d128_r2_f32_f16: f32, F16, 16, 2, 4, 3;
    attention_sparse_decode_d128_r4_f32_f16: f32, F16, 16, 4, 2, 3;
}
