//! A cache of keys and values in 8 bits.

use crate::{DType, Device, Error, Result, Tensor};
use kernels_gpu::quant::blocks::BLOCK;

/// Keys and values of one sequence in 8.5 bits a value: per head and position, blocks of 32 columns with an f16 scale
/// each. [`ops::kv_cache_append`](crate::ops::kv_cache_append) quantises new tokens into it, and
/// [`ops::kv_cache_attention`](crate::ops::kv_cache_attention) reads it as it is.
#[derive(Debug)]
pub struct QuantKvCache {
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) capacity: usize,
    pub(crate) len: usize,
    pub(crate) k: Half8,
    pub(crate) v: Half8,
}

/// One of keys and values.
#[derive(Debug)]
pub(crate) struct Half8 {
    /// u32 [num_kv_heads, capacity, head_dim / 4]
    pub quants: Tensor,
    /// f16 [num_kv_heads, capacity, head_dim / 32]
    pub scales: Tensor,
}

impl QuantKvCache {
    /// An empty cache for `capacity` tokens.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a head_dim other than 64 and 128, [`Error::TooLarge`], [`Error::OutOfMemory`].
    pub fn new(num_kv_heads: usize, head_dim: usize, capacity: usize, device: &Device) -> Result<Self> {
        const OP: &str = "kv_cache";
        if head_dim != 64 && head_dim != 128 {
            let reason = "there are kernels for 64 and 128".into();
            return Err(Error::Unsupported {
                op: OP,
                argument: "head_dim",
                value: head_dim.to_string(),
                reason,
            });
        }
        let elements = num_kv_heads as u128 * capacity as u128 * head_dim as u128;
        if elements > crate::MAX_ELEMENTS as u128 {
            let limit = crate::MAX_ELEMENTS as u128;
            return Err(Error::TooLarge { op: OP, argument: "capacity", elements, limit });
        }
        let half = || -> Result<Half8> {
            Ok(Half8 {
                quants: Tensor::uninitialized([num_kv_heads, capacity, head_dim / 4], DType::U32, device)?,
                scales: Tensor::uninitialized(
                    [num_kv_heads, capacity, head_dim / BLOCK],
                    DType::F16,
                    device,
                )?,
            })
        };
        Ok(Self { num_kv_heads, head_dim, capacity, len: 0, k: half()?, v: half()? })
    }

    /// Tokens in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no tokens in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens it has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Forgets all tokens from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        2 * self.num_kv_heads * self.capacity * (self.head_dim + self.head_dim / BLOCK * 2)
    }

    /// Where it lives.
    pub fn device(&self) -> Device {
        self.k.quants.device()
    }
}
