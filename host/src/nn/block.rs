//! A transformer block.

use super::{Attention, LayerCache, Map, Mlp, Norm, Rope};
use crate::{Result, Tensor};

/// h = x + attention(norm1(x)); y = h + mlp(norm2(h)).
#[derive(Clone, Debug)]
pub struct TransformerBlock {
    /// Before the attention.
    pub norm1: Norm,
    /// Between positions.
    pub attention: Attention,
    /// Before the MLP.
    pub norm2: Norm,
    /// At each position.
    pub mlp: Mlp,
}

impl TransformerBlock {
    /// `x`: [rows, hidden] f32 → the same shape.
    ///
    /// # Errors
    /// As [`Attention::forward`].
    pub fn forward(&self, x: &Tensor, rope: &Rope, cache: Option<&mut LayerCache>) -> Result<Tensor> {
        let (normed, norm) = self.norm1.before(x)?;
        let h = self.attention.forward_around(&normed, norm, Some(x), rope, cache)?;
        let (normed, norm) = self.norm2.before(&h)?;
        self.mlp.forward_around(&normed, norm, Some(&h))
    }

    /// As [`Linear::map`](super::Linear::map).
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        let (norm1, attention) = (self.norm1.map(f)?, self.attention.map(f)?);
        Ok(Self { norm1, attention, norm2: self.norm2.map(f)?, mlp: self.mlp.map(f)? })
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        self.attention.weight_bytes() + self.mlp.weight_bytes()
    }
}
