//! Normalisation over the last dimension.

use super::checks::{expect_len, misfit};
use super::map::Map;
use crate::quant::QuantRows;
use crate::{Device, Result, Tensor, ops};

/// y = x / √(mean x² + ε) · w, with the mean over the last dimension.
///
/// ```
/// use pascaline::nn::RmsNorm;
/// use pascaline::{Device, Tensor};
/// let norm = RmsNorm::new(Tensor::from_slice(&[1.0f32, 2.0], [2], &Device::Cpu)?, 0.0)?;
/// let y = norm.forward(&Tensor::from_slice(&[5.0f32, 5.0], [1, 2], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// `weight`: `[cols]` f32; `eps` = ε.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if the weight is not a vector.
    pub fn new(weight: Tensor, eps: f32) -> Result<Self> {
        match weight.shape().rank() {
            1 => Ok(Self { weight, eps }),
            _ => Err(misfit("RmsNorm", "weight", "[cols]", &weight)),
        }
    }

    /// As [`Linear::map`](super::Linear::map).
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(Self { weight: f(&self.weight)?, ..*self })
    }

    /// The weight `[cols]` and ε.
    pub(super) fn parts(&self) -> (&Tensor, f32) {
        (&self.weight, self.eps)
    }

    /// [`forward`](Self::forward)'s result, quantised.
    pub(super) fn forward_rows(&self, x: &Tensor) -> Result<QuantRows> {
        ops::rms_norm_rows(x, &self.weight, self.eps)
    }

    /// `x`: [.., cols] f32 → the same shape.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not match.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::rms_norm(x, &self.weight, self.eps)
    }
}

/// y = (x − mean) / √(variance + ε) · w + b, with mean and variance over the last dimension.
///
/// ```
/// use pascaline::nn::LayerNorm;
/// use pascaline::{DType, Device, Tensor};
/// let weight = Tensor::ones([2], DType::F32, &Device::Cpu)?;
/// let bias = Tensor::full(10.0f32, [2], &Device::Cpu)?;
/// let norm = LayerNorm::new(weight, bias, 0.0)?;
/// let y = norm.forward(&Tensor::from_slice(&[4.0f32, 6.0], [1, 2], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec::<f32>()?, [9.0, 11.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    /// `weight`, `bias`: `[cols]` f32; `eps` = ε.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if they do not match each other.
    pub fn new(weight: Tensor, bias: Tensor, eps: f32) -> Result<Self> {
        expect_len("LayerNorm", "bias", &bias, weight.shape().elements())?;
        expect_len("LayerNorm", "weight", &weight, bias.shape().elements())?;
        Ok(Self { weight, bias, eps })
    }

    /// `x`: [.., cols] f32 → the same shape.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not match.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm(x, &self.weight, &self.bias, self.eps)
    }

    /// As [`Linear::map`](super::Linear::map).
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(Self { weight: f(&self.weight)?, bias: f(&self.bias)?, eps: self.eps })
    }
}

/// The norm of a block, of either kind.
///
/// ```
/// use pascaline::nn::{Norm, RmsNorm};
/// use pascaline::{DType, Device, Tensor};
/// let norm = Norm::Rms(RmsNorm::new(Tensor::ones([2], DType::F32, &Device::Cpu)?, 0.0)?);
/// let y = norm.forward(&Tensor::full(3.0f32, [1, 2], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 1.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub enum Norm {
    /// Root mean square.
    Rms(RmsNorm),
    /// Mean and variance.
    Layer(LayerNorm),
}

impl Norm {
    /// As [`RmsNorm::forward`] or [`LayerNorm::forward`].
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not match.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rms(norm) => norm.forward(x),
            Self::Layer(norm) => norm.forward(x),
        }
    }

    /// A copy with its weights on another device.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        self.map(&mut |tensor| tensor.to_device(device))
    }

    /// As [`Linear::map`](super::Linear::map).
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(match self {
            Self::Rms(norm) => Self::Rms(norm.map(f)?),
            Self::Layer(norm) => Self::Layer(norm.map(f)?),
        })
    }

    /// The operands of the linear map that follows: `x` and the norm, if the map can fuse it, else the normalised `x`.
    pub(super) fn before(&self, x: &Tensor) -> Result<(Tensor, Option<&RmsNorm>)> {
        match self {
            Self::Rms(norm) => Ok((x.clone(), Some(norm))),
            Self::Layer(norm) => Ok((norm.forward(x)?, None)),
        }
    }
}
