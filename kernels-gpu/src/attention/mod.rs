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
//! | attention_backward_‹step›_‹t› | 64 queries or keys of a head, of the gradients | training |
//!
//! ‹t› is the type of q and out, followed by that of k and v where it differs: f32, f16, f32_f16. The cache's formats
//! other than f32 and f16 ([`kv`](crate::kv)) have kernels for D = 128 only, which serve every head_dim up to 128.

pub mod backward;
pub mod decode;
pub mod merge;
pub mod paged;
pub mod prefill;
pub mod sparse;

pub use decode::Decode;
pub use prefill::{Prefill, PrefillMerge};

use crate::device::F16;
use crate::kv::Storage;
use cuda_std::KernelSpec;

/// Repeats a block with `$i` a constant 0, 1, …. Arrays that only constants index stay in registers, and addresses become
/// immediates. A count that is a const parameter is at most 8.
macro_rules! unroll {
    ($i:ident < 2 $body:block) => { unroll!(@ $i $body 0 1) };
    ($i:ident < 4 $body:block) => { unroll!(@ $i $body 0 1 2 3) };
    ($i:ident < 6 $body:block) => { unroll!(@ $i $body 0 1 2 3 4 5) };
    ($i:ident < 8 $body:block) => { unroll!(@ $i $body 0 1 2 3 4 5 6 7) };
    ($i:ident < 16 $body:block) => { unroll!(@ $i $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15) };
    ($i:ident < $count:ident $body:block) => { unroll!($i < 8 { if $i < $count $body }) };
    (@ $i:ident $body:block $($n:literal)*) => { $({ const $i: usize = $n; $body })* };
}
use unroll;

/// The dense kernels of one type of q and out, `Q`, and one [`Storage`] of k and v.
#[derive(Clone, Copy)]
pub struct Kernels<Q> {
    /// Few queries.
    pub decode: decode::Instances<Decode<Q>>,
    /// Many queries, of head_dim ≤ 64 and ≤ 128: grid = [b · num_q_heads, ceil(q_len / QUERIES_PER_BLOCK), parts of the keys]
    pub prefill: [KernelSpec<Prefill<Q>>; 2],
    /// Merges the parts.
    pub merge: KernelSpec<PrefillMerge<Q>>,
}

/// All f16.
pub const OF_F16: Kernels<F16> = Kernels {
    decode: decode::of_f16::INSTANCES[0],
    prefill: prefill::of_f16::SPECS[0],
    merge: prefill::attention_prefill_merge_f16,
};

impl Kernels<f32> {
    /// q and out f32, k and v stored so.
    pub const fn of(storage: Storage) -> Self {
        Self {
            decode: decode::of_f32::INSTANCES[storage as usize],
            prefill: prefill::of_f32::SPECS[storage as usize],
            merge: prefill::attention_prefill_merge_f32,
        }
    }
}

/// For head_dim ≤ 64 and ≤ 128, the first and the last of a list: where there are kernels for wide heads only, they serve both.
const fn by_width<T: Copy>(kernels: &[T]) -> [T; 2] {
    [kernels[0], kernels[kernels.len() - 1]]
}

/// Strides of a tensor [b, heads, rows, head_dim] in elements; the last is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Strides {
    pub batch: u32,
    pub head: u32,
    pub row: u32,
}

const _: () = assert!(size_of::<Strides>() == 12 && align_of::<Strides>() == 4);

impl Strides {
    /// The first element of head `head` of batch `batch`.
    #[inline(always)]
    fn offset(self, batch: u32, head: u32) -> u32 {
        batch * self.batch + head * self.head
    }
}

/// The fields that all dense and sparse kernels share, with k and v wrapped in the readers of their format.
#[derive(Clone, Copy)]
struct Tensors<Q, S> {
    out: *mut Q,
    q: *const Q,
    k: S,
    v: S,
    out_strides: Strides,
    q_strides: Strides,
    k_strides: Strides,
    v_strides: Strides,
    group: u32,
    q_len: u32,
    head_dim: u32,
    scale_log2: f32,
}

/// These [`Tensors`] of a kernel's parameters.
macro_rules! tensors {
    ($p:ident, $k:expr, $v:expr) => {
        crate::attention::Tensors {
            out: $p.out,
            q: $p.q,
            k: $k,
            v: $v,
            out_strides: $p.out_strides,
            q_strides: $p.q_strides,
            k_strides: $p.k_strides,
            v_strides: $p.v_strides,
            group: $p.group,
            q_len: $p.q_len,
            head_dim: $p.head_dim,
            scale_log2: $p.scale_log2,
        }
    };
}
use tensors;

/// Tells the compiler that a divisor is not zero, so that the division compiles without a panic.
///
/// # Safety
/// `divisor` is not zero.
#[inline(always)]
unsafe fn not_zero(divisor: u32) {
    // SAFETY: `divisor` is not zero: this function's contract.
    unsafe { core::hint::assert_unchecked(divisor != 0) }
}

/// One past the last key that query `i` attends to; ≤ 0 if there is none.
#[inline(always)]
fn visible(i: u32, q_len: u32, kv_len: u32, causal: bool) -> i32 {
    if causal { i as i32 + 1 + kv_len as i32 - q_len as i32 } else { kv_len as i32 }
}
