//! Many queries of a head with all keys, or causally with those up to each query's position.
//!
//! On sm_61 two blocks of either width fit a multiprocessor: eight keys a thread make 85 % of the loops' instructions
//! multiply-adds. With four a third block fits; on an H200 that took 3 to 7 % longer (head_dim 64), 7 to 38 % (128).

use super::{BM, PAD, Place, THREADS, Work, bn, key_of, prefill, read_indices, spec};
use crate::attention::{Strides, not_zero, unroll};
use crate::device::F16;
use crate::device::stored::{Blocks, Coded};
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

/// Columns of a tile's scores that a thread owns: tiles of 128 keys.
const KEYS: usize = 8;

/// head_dim ≤ 64: grid = [b · num_q_heads, ceil(q_len / QUERIES_PER_BLOCK)], by [`Types`](super::Types).
pub const PREFILL_D64: [KernelSpec; 3] = [
    spec("attention_prefill_d64_f32", KEYS, 2),
    spec("attention_prefill_d64_f16", KEYS, 2),
    spec("attention_prefill_d64_f32_f16", KEYS, 2),
];

/// head_dim ≤ 128; else as [`PREFILL_D64`].
pub const PREFILL_D128: [KernelSpec; 3] = [
    spec("attention_prefill_d128_f32", KEYS, 2),
    spec("attention_prefill_d128_f16", KEYS, 2),
    spec("attention_prefill_d128_f32_f16", KEYS, 2),
];

/// q and out f32, k and v in a 16-bit format with any exponent bits; head_dim ≤ 128, grid as [`PREFILL_D64`].
pub const PREFILL_CODED: KernelSpec = spec("attention_prefill_d128_f32_coded", KEYS, 2);
/// q and out f32, k and v in blocks of 8 bits; else as [`PREFILL_CODED`].
pub const PREFILL_Q8_0: KernelSpec = spec("attention_prefill_d128_f32_q8_0", KEYS, 2);

/// All kernels of this file.
pub const KERNELS: &[KernelSpec] = &[
    PREFILL_D64[0],
    PREFILL_D64[1],
    PREFILL_D64[2],
    PREFILL_D128[0],
    PREFILL_D128[1],
    PREFILL_D128[2],
    PREFILL_CODED,
    PREFILL_Q8_0,
];

/// All keys, or those up to each query's position.
#[derive(Clone, Copy)]
struct Dense {
    num_q_heads: u32,
    q_len: u32,
    kv_len: u32,
    /// All ones if causal, else 0: a mask and no condition, so that the compiler makes no branches of it.
    causal: u32,
    /// Rows of blocks that come longest first.
    longest_first: u32,
}

impl Dense {
    /// As [`visible`](crate::attention::visible).
    #[inline(always)]
    fn visible(self, i: u32) -> i32 {
        self.kv_len as i32 + ((i as i32 + 1 - self.q_len as i32) & self.causal as i32)
    }

    /// The block's first query.
    #[inline(always)]
    fn first(self, y: u32) -> u32 {
        let longest_first = y < self.longest_first;
        BM * if longest_first { thread::grid_dim_y() - 1 - y } else { y - self.longest_first }
    }

    /// Keys that the block's last query and so any sees.
    #[inline(always)]
    fn seen(self) -> u32 {
        let [_, _, y] = read_indices();
        let last = (self.first(y) + BM).min(self.q_len) - 1;
        self.visible(last).max(0) as u32
    }
}

impl Work<KEYS> for Dense {
    const STEP: u32 = 1;

    /// The blocks with the most keys come first, so that short ones fill the gaps at the end. Those behind
    /// `longest_first` come shortest first: where all are resident at once, each joins one that is as much longer.
    #[inline(always)]
    fn place(self) -> Place {
        let [tid, x, y] = read_indices();
        Place::new(tid, x / self.num_q_heads, x % self.num_q_heads, self.first(y))
    }

    #[inline(always)]
    fn begin(self) -> u32 {
        0
    }

    #[inline(always)]
    fn end(self) -> u32 {
        self.seen().div_ceil(bn(KEYS))
    }

    #[inline(always)]
    fn keys(self, tile: u32) -> u32 {
        (self.seen() - tile * bn(KEYS)).next_multiple_of(64).min(bn(KEYS))
    }

    #[inline(always)]
    unsafe fn key(self, tile: u32, row: u32) -> u32 {
        tile * bn(KEYS) + row
    }

    #[inline(always)]
    unsafe fn sees(self, _: Place, _: u32) -> bool {
        true
    }

    /// Rows past q_len see what they like: they are not written.
    #[inline(always)]
    unsafe fn mask(self, s: &mut [[f32; KEYS]; 8], place: Place, tile: u32) {
        if ((tile + 1) * bn(KEYS)) as i32 > self.visible(place.first) {
            let key = tile * bn(KEYS) + 4 * place.tx;
            let past_row = key as i32 - self.visible(place.first + place.row);
            let per_row = (1 & self.causal) as i32;
            unroll!(I < 8 {
                unroll!(J < KEYS {
                    let masked = past_row + key_of(J) as i32 >= per_row * I as i32;
                    if masked || key + key_of(J) >= self.kv_len {
                        s[I][J] = f32::NEG_INFINITY;
                    }
                });
            });
        }
    }

    #[inline(always)]
    unsafe fn partial(self) -> Option<*mut f32> {
        None
    }
}

macro_rules! kernels {
    ($(
        $name:ident: $tq:ty, $tkv:ty, $groups:literal, $blocks:literal
        $(, $open:path { $($more:ident: $type:ty),* })?;
    )*) => {$(
        /// # Safety
        /// `out`, `q`, `k`, `v`: as the module's head says, of less than 2³¹ elements with gaps, valid on the
        /// launching stream, `out` disjoint from the others, addresses and strides (batch, head, row) multiples of
        /// 8 elements. `causal`: 0 or 1. `scale_log2`: scale · log2 e. `longest_first`: so many of the grid's rows
        /// come longest first, the others shortest first. Launched as the contract of the same name says.
        #[kernel(launch_bounds(THREADS, $blocks))]
        pub unsafe fn $name(
            out: *mut $tq, q: *const $tq, k: *const $tkv, v: *const $tkv,
            out_batch: u32, out_head: u32, out_row: u32,
            q_batch: u32, q_head: u32, q_row: u32,
            k_batch: u32, k_head: u32, k_row: u32,
            v_batch: u32, v_head: u32, v_row: u32,
            num_q_heads: u32, group: u32, q_len: u32, kv_len: u32, head_dim: u32,
            scale_log2: f32, causal: u32, longest_first: u32 $($(, $more: $type)*)?
        ) {
            let strides = [
                Strides { batch: out_batch, head: out_head, row: out_row },
                Strides { batch: q_batch, head: q_head, row: q_row },
                Strides { batch: k_batch, head: k_head, row: k_row },
                Strides { batch: v_batch, head: v_head, row: v_row },
            ];
            $(let [k, v] = $open([k, v], $($more),*);)?
            // SAFETY: this kernel's contract is the body's; a grid with a block in it has a head.
            unsafe {
                not_zero(num_q_heads);
                let causal = 0u32.wrapping_sub(causal);
                let work = Dense { num_q_heads, q_len, kv_len, causal, longest_first };
                prefill::<$tq, _, $groups, KEYS, { bn(KEYS) + PAD }, _>(
                    out, q, k, v, strides, group, q_len, kv_len.wrapping_sub(1), head_dim, scale_log2, work,
                )
            }
        }
    )*};
}

kernels! {
    attention_prefill_d64_f32: f32, f32, 1, 2;
    attention_prefill_d64_f16: F16, F16, 1, 2;
    attention_prefill_d64_f32_f16: f32, F16, 1, 2;
    attention_prefill_d128_f32: f32, f32, 2, 2;
    attention_prefill_d128_f16: F16, F16, 2, 2;
    attention_prefill_d128_f32_f16: f32, F16, 2, 2;
    attention_prefill_d128_f32_coded: f32, u16, 2, 2, Coded::pair { exponent_bits: u32 };
    attention_prefill_d128_f32_q8_0: f32, u8, 2, 2, Blocks::pair { k_scales: *const F16, v_scales: *const F16 };
}
