//! Dense attention over rounded queries and keys: the tiles, the mask and the parts are [`Dense`]'s.

use super::rounded::Rounded;
use crate::attention::prefill::{
    BM, Dense, KEYS, PAD, Part, SHUFFLES, Scratch, THREADS, WARPS, bn, chunks_elements, half_elements,
    prefill, sums_elements,
};
use crate::attention::tensors::{Strides, Tensors, Width, not_zero};
use cuda_std::KernelInfo;
use cuda_std::prelude::*;

/// The parameters of the kernels.
///
/// First elements and strides of out and v are multiples of 8 elements; each, with its gaps, spans less than 2³¹ elements.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Int8Prefill {
    /// [b, num_q_heads, q_len, head_dim], disjoint from all others
    pub out: *mut f32,
    /// [b · num_q_heads, q_rows, words], as [`round`](super::round) writes it
    pub q: *const u32,
    /// [b · num_kv_heads, k_rows, words]
    pub k: *const u32,
    /// [b, num_kv_heads, kv_len, head_dim]
    pub v: *const f32,
    /// [b · num_q_heads, q_rows], times scale · log₂ e
    pub q_scales: *const f32,
    /// [b · num_kv_heads, k_rows]
    pub k_scales: *const f32,
    pub out_strides: Strides,
    pub v_strides: Strides,
    pub num_q_heads: u32,
    /// Query heads of a kv head.
    pub group: u32,
    pub q_len: u32,
    /// May be 0.
    pub kv_len: u32,
    /// q_len and kv_len, padded to multiples of [`ROWS`](super::ROWS).
    pub q_rows: u32,
    pub k_rows: u32,
    /// A multiple of 8, at least 8 and at most the kernel's.
    pub head_dim: u32,
    /// 1 if causal, else 0.
    pub causal: u32,
    /// As in [`Prefill`](crate::attention::Prefill).
    pub longest_first: u32,
    /// As in [`Prefill`](crate::attention::Prefill).
    pub parts_log2: u32,
    /// As in [`Prefill`](crate::attention::Prefill).
    pub partial: *mut f32,
}

macro_rules! kernels {
    ($($name:ident $d:literal;)*) => {
        $(
            /// # Safety
            /// [`Int8Prefill`] constrains the pointers, which are valid on the launching stream, and the numbers. grid = [b · num_q_heads,
            /// ceil(q_len / QUERIES_PER_BLOCK), parts of the keys]
            #[kernel(
                block = THREADS, min_blocks = 2, module = "attention_int8", shuffles = SHUFFLES,
                shared(
                    chunks: [f32; chunks_elements(WARPS, KEYS)], probabilities: [f32; half_elements(WARPS, KEYS)],
                    maxima: [f32; BM], sums: [f32; sums_elements(WARPS)]
                )
            )]
            pub unsafe fn $name(p: Int8Prefill) {
                let scratch = Scratch { chunks, probabilities, maxima, sums };
                // SAFETY: the grid has a block, so there is a head; the parameters fulfil `prefill`'s contract.
                unsafe {
                    not_zero(p.num_q_heads);
                    let dense = Dense::new(p.num_q_heads, [p.q_len, p.kv_len], p.causal, p.longest_first);
                    let work = Part::new(dense, p.parts_log2, p.partial, $d);
                    prefill::<_, _, _, WARPS, { $d / 64 }, { $d % 64 / 16 }, KEYS, { BM + PAD }, { bn(KEYS) + PAD }, _>(
                        tensors(p), p.kv_len.wrapping_sub(1), work, scratch,
                    )
                }
            }
        )*

        /// By columns.
        pub const SPECS: &[Width<Int8Prefill>] = &[$(Width { columns: $d, spec: $name }),*];
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($name.info()),*];
    };
}

kernels! {
    attention_int8_prefill_d64 64;
    attention_int8_prefill_d80 80;
    attention_int8_prefill_d128 128;
}

/// The tensors, with the strides of rounded rows.
#[inline(always)]
fn tensors(p: Int8Prefill) -> Tensors<f32, Rounded, *const f32> {
    let row = super::words(p.head_dim);
    let strides = |rows: u32, heads: u32| Strides { batch: heads * rows * row, head: rows * row, row };
    // SAFETY: the grid has a head, so the group is not 0.
    unsafe { not_zero(p.group) };
    Tensors {
        out: p.out,
        factors: Rounded {
            q: p.q,
            k: p.k,
            q_scales: p.q_scales,
            k_scales: p.k_scales,
            q_rows: p.q_rows,
            k_rows: p.k_rows,
            num_q_heads: p.num_q_heads,
            group: p.group,
        },
        v: p.v,
        out_strides: p.out_strides,
        q_strides: strides(p.q_rows, p.num_q_heads),
        k_strides: strides(p.k_rows, p.num_q_heads / p.group),
        v_strides: p.v_strides,
        group: p.group,
        q_len: p.q_len,
        head_dim: p.head_dim,
        scale_log2: 1.0,
    }
}
