//! Attention over chosen tiles of keys: its operands and sizes.

use crate::Tensor;
use crate::kv::KvTensor;
use kernels_gpu::attention::chosen::{SAMPLED, TILE};
use kernels_gpu::attention::prefill::QUERIES_PER_BLOCK;

/// Queries of a block, which read the same tiles of keys.
pub const QUERIES_PER_CHOICE: usize = QUERIES_PER_BLOCK as usize;

/// Keys of a tile.
pub const KEYS_PER_CHOICE: usize = TILE as usize;

/// Keys and values of one sequence, whose last tokens are the queries.
///
/// ```
/// use pascaline::kv::{KvFormat, KvTensor};
/// use pascaline::ops::SequenceKv;
/// use pascaline::Device;
/// let room = || KvTensor::uninitialized([64, 1, 16], KvFormat::F32, &Device::Cpu);
/// let (k, v) = (room()?, room()?);
/// let first_40 = SequenceKv { k: &k, v: &v, table: None, len: 40 };
/// # let _ = first_40;
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SequenceKv<'a> {
    /// [rows, num_kv_heads, head_dim]
    pub k: &'a KvTensor,
    /// As k, in the same format.
    pub v: &'a KvTensor,
    /// The sequence's pages in order, \[≥ len / [`PAGE`](crate::ops::PAGE)\] u32, as [`paged_attention_into`](crate::ops::paged_attention_into) reads them; `None`
    /// where key n is row n.
    pub table: Option<&'a Tensor>,
    /// Number of keys.
    pub len: usize,
}

/// The tiles that a block's last query sees.
pub(crate) fn tiles_seen(block: usize, q_len: usize, kv_len: usize) -> usize {
    let last = ((block + 1) * QUERIES_PER_CHOICE).min(q_len);
    (kv_len - q_len + last).div_ceil(KEYS_PER_CHOICE)
}

/// Samples of as many queries.
pub(crate) fn samples(q_len: usize) -> usize {
    q_len.div_ceil(SAMPLED as usize)
}
