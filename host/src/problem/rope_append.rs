//! Splitting a fused projection into rotated queries and a cache's keys and values.

use crate::kv::KvMut;
use crate::{Tensor, TensorMut};

/// The RMS norm of each head of q and of k, before they are rotated.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorms<'a> {
    /// \[dim\], of qkv's type.
    pub q: &'a Tensor,
    /// \[dim\], of qkv's type.
    pub k: &'a Tensor,
    /// Finite and not negative.
    pub eps: f32,
}

/// The outputs of [`ops::rope_append_into`](crate::ops::rope_append_into): `q`: [rows, heads, dim] of qkv's type, `k` and
/// `v`: caches [capacity, kv_heads, dim] in one format; all contiguous.
pub struct Outputs<'a> {
    pub q: TensorMut<'a>,
    pub k: KvMut<'a>,
    pub v: KvMut<'a>,
}
