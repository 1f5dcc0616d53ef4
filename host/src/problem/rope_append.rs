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

/// A fused projection, and how its heads are normalised and rotated, as
/// [`rope_append_into`](crate::ops::rope_append_into) has them.
#[derive(Clone, Copy, Debug)]
pub struct Projection<'a> {
    /// [rows, heads + 2·kv_heads, dim]
    pub qkv: &'a Tensor,
    /// [angles, dim/2] f32
    pub cos: &'a Tensor,
    /// [angles, dim/2] f32
    pub sin: &'a Tensor,
    /// None to rotate only.
    pub norms: Option<HeadNorms<'a>>,
    /// \[2\] u32, the number of rows in the cache and the first row's angle; or [2, rows], each row's index in the cache and its angle.
    pub at: &'a Tensor,
}

impl Projection<'_> {
    /// How far each row's angle is from its index in the cache, if rows have their own.
    pub(crate) fn each(&self) -> Option<usize> {
        let layout = self.at.layout();
        (layout.shape.rank() == 2).then(|| layout.strides[0])
    }
}

/// The outputs of [`ops::rope_append_into`](crate::ops::rope_append_into): `q`: [rows, heads, dim] of qkv's type, `k` and
/// `v`: caches [capacity, kv_heads, dim] in one format; all contiguous.
pub struct Outputs<'a> {
    pub q: TensorMut<'a>,
    pub k: KvMut<'a>,
    pub v: KvMut<'a>,
}
