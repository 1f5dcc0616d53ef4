//! Scaled dot-product attention: out = softmax(scale · q kᵀ) v per head, without the score matrix in memory.
//!
//! q, out: [b, num_q_heads, q_len, head_dim]; k, v: [b, num_kv_heads, kv_len, head_dim]. Query head h reads kv head h /
//! group, group = num_q_heads / num_kv_heads. Causal: query i attends to the keys ≤ i + kv_len − q_len. A row that attends
//! to no key gives 0. Outer strides are arbitrary, the last dimension is contiguous, rows are 8-element aligned.
//!
//! | kernel                     | a block handles                           | when               |
//! |----------------------------|-------------------------------------------|--------------------|
//! | attention_prefill_d‹D›_‹t› | 64 queries of a head                      | q_len > 8          |
//! | attention_prefill_merge_‹t› | rows whose keys were in parts             | few queries        |
//! | attention_decode_d‹D›_r‹R›_‹t› | R rows of a kv head, one split of the keys | q_len ≤ 8      |
//! | attention_paged_‹kernel›_… | as these, through tables of pages        | many sequences     |
//! | attention_chosen_‹kernel›_… | as these, over the tiles of keys that weigh most | long prompts |
//! | attention_int8_‹kernel›     | as the first, q and k in 8-bit integers   | if asked for       |
//! | attention_backward_‹step›_‹t› | 64 queries or keys of a head, of the gradients | training |
//!
//! ‹t› is the type of q and out, followed by that of k and v where it differs: f32, f16, f32_f16. The cache's formats
//! other than f32 and f16 ([`kv`](crate::kv)) have kernels for D = 128 only, which serve every head_dim up to 128.

mod appended;
pub mod backward;
pub mod chosen;
pub mod decode;
pub mod int8;
pub mod merge;
pub mod paged;
pub mod prefill;
pub mod sparse;
mod tensors;

pub use decode::Decode;
pub use prefill::{Prefill, PrefillMerge};
pub use tensors::{Strides, Width};

use crate::device::F16;
use crate::kv::Storage;
use cuda_std::KernelSpec;

/// The dense kernels of one type of q and out, `Q`, and one [`Storage`] of k and v.
#[derive(Clone, Copy)]
pub struct Kernels<Q: 'static> {
    /// Few queries.
    pub decode: decode::Instances<Decode<Q>>,
    /// Many queries, by columns: grid = [b · num_q_heads, ceil(q_len / QUERIES_PER_BLOCK), parts of the keys]
    pub prefill: &'static [Width<Prefill<Q>>],
    /// Merges the parts.
    pub merge: KernelSpec<PrefillMerge<Q>>,
}

/// All f16.
pub const OF_F16: Kernels<F16> = Kernels {
    decode: decode::of_f16::INSTANCES[0],
    prefill: prefill::of_f16::SPECS[0],
    merge: prefill::attention_prefill_merge_f16,
};

/// All f32: 80 columns are those of heads of 72, which would take 1.6 times the products of values with a kernel for 128.
const OF_F32: [Width<Prefill<f32>>; 3] = {
    let [narrow, wide] = [prefill::of_f32::SPECS[0][0], prefill::of_f32::SPECS[0][1]];
    [narrow, prefill::of_f32_d80::SPECS[0][0], wide]
};

impl Kernels<f32> {
    /// q and out f32, k and v stored so.
    pub const fn of(storage: Storage) -> Self {
        Self {
            decode: decode::of_f32::INSTANCES[storage as usize],
            prefill: match storage {
                Storage::F32 => &OF_F32,
                _ => prefill::of_f32::SPECS[storage as usize],
            },
            merge: prefill::attention_prefill_merge_f32,
        }
    }
}
