//! A transformer block.

use super::attention::{Attention, Rope};
use super::cache::Cache;
use super::map::Map;
use super::matrix::{Change, Matrix};
use super::mlp::Mlp;
use super::norm::Norm;
use crate::{Error, Result, Tensor};

/// h = x + attention(norm1(x)); y = h + mlp(norm2(h)).
///
/// ```
/// use pascaline::nn::{Attention, Linear, Mlp, Norm, RmsNorm, Rope, TransformerBlock};
/// use pascaline::ops::Activation;
/// use pascaline::{DType, Device, Result, Tensor};
/// let zeros = |shape: [usize; 2]| Linear::new(Tensor::zeros(shape, DType::F32, &Device::Cpu)?, None);
/// let norm = || Ok::<_, pascaline::Error>(Norm::Rms(RmsNorm::new(Tensor::ones([32], DType::F32, &Device::Cpu)?, 1e-6)?));
/// let block = TransformerBlock {
///     norm1: norm()?,
///     attention: Attention::new(zeros([64, 32])?, None, zeros([32, 32])?, [2, 1, 16], true)?, // 2 heads on 1 kv head
///     norm2: norm()?,
///     mlp: Mlp::new(zeros([128, 32])?, Activation::SwiGlu, zeros([32, 64])?)?,
/// };
/// let angles = Tensor::zeros([8, 8], DType::F32, &Device::Cpu)?;
/// let x = Tensor::randn([3, 32], DType::F32, 1, &Device::Cpu)?;
/// let y = block.forward(&x, &Rope::new(angles.clone(), angles, 0, 0)?, None)?;
/// assert_eq!(y.to_vec::<f32>()?, x.to_vec::<f32>()?); // with weights of 0 only the residual path is left
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransformerBlock {
    /// Applied before the attention.
    pub norm1: Norm,
    /// Combines the rows of different positions.
    pub attention: Attention,
    /// Applied before the MLP.
    pub norm2: Norm,
    /// Applied to each position separately.
    pub mlp: Mlp,
}

impl TransformerBlock {
    /// `x`: [rows, hidden] f32 → the same shape.
    pub fn forward(&self, x: &Tensor, rope: &Rope, cache: Option<Cache>) -> Result<Tensor> {
        x.device().pass(|| {
            let h = self.attend(x, true, rope, cache)?;
            self.feed_forward(&h, true)
        })
    }

    /// The first half: attention(norm1(x)), plus x if `residual` is set. If several devices compute a part of the block
    /// each, one of them adds x; [`AllReduce`](super::AllReduce) sums the parts.
    pub fn attend(&self, x: &Tensor, residual: bool, rope: &Rope, cache: Option<Cache>) -> Result<Tensor> {
        let (normed, norm) = self.norm1.before(x)?;
        self.attention.forward_fused(&normed, norm, residual.then_some(x), rope, cache)
    }

    /// The second half: mlp(norm2(h)), plus h if `residual` is set.
    pub fn feed_forward(&self, h: &Tensor, residual: bool) -> Result<Tensor> {
        let (normed, norm) = self.norm2.before(h)?;
        self.mlp.forward_fused(&normed, norm, residual.then_some(h))
    }

    /// With low-rank changes beside its matrices, whose memory both share: of queries, keys and values, of the attention's output, and of
    /// the MLP's two maps. Experts have none.
    ///
    /// # Errors
    /// As [`Matrix::adapted`]; [`Error::Unsupported`] if there are not as many changes as matrices, or experts are to be changed.
    pub fn adapted(&self, changes: &[Change]) -> Result<Self> {
        let [qkv, out, mlp @ ..] = changes else {
            let (argument, value) = ("changes", format!("{} changes", changes.len()));
            let reason = "each matrix of the block has one or none".into();
            return Err(Error::Unsupported { op: "TransformerBlock", argument, value, reason });
        };
        let (norm1, norm2) = (self.norm1.clone(), self.norm2.clone());
        Ok(Self { norm1, attention: self.attention.adapted([qkv, out])?, norm2, mlp: self.mlp.adapted(mlp)? })
    }

    /// As [`Linear::map`](super::Linear::map).
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        let (norm1, attention) = (self.norm1.map(f)?, self.attention.map(f)?);
        Ok(Self { norm1, attention, norm2: self.norm2.map(f)?, mlp: self.mlp.map(f)? })
    }

    /// Its matrices, in the order of computation.
    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        let [qkv, out] = self.attention.linears().map(|linear| linear.weight());
        [vec![qkv, out], self.mlp.matrices()].concat()
    }

    /// Bytes of the stored matrices that a token reads.
    pub fn weight_bytes(&self) -> usize {
        self.attention.weight_bytes() + self.mlp.weight_bytes()
    }
}
