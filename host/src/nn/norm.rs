//! Normalisation over the last extent.

use super::{Map, expect_len, misfit};
use crate::{Result, Tensor, ops};

/// y = x / √(mean x² + ε) · w.
#[derive(Clone, Debug)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// `weight`: `[cols]` f32.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if it is no vector.
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

    /// The weight `[cols]` and eps.
    pub(super) fn parts(&self) -> (&Tensor, f32) {
        (&self.weight, self.eps)
    }

    /// `x`: [.., cols] f32 → the same shape.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not fit, or a device error.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::rms_norm(x, &self.weight, self.eps)
    }
}

/// y = (x − mean) / √(variance + ε) · w + b.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f32,
}

impl LayerNorm {
    /// `weight`, `bias`: `[cols]` f32.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if they do not fit each other.
    pub fn new(weight: Tensor, bias: Tensor, eps: f32) -> Result<Self> {
        expect_len("LayerNorm", "bias", &bias, weight.shape().elements())?;
        expect_len("LayerNorm", "weight", &weight, bias.shape().elements())?;
        Ok(Self { weight, bias, eps })
    }

    /// `x`: [.., cols] f32 → the same shape.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not fit, or a device error.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        ops::layer_norm(x, &self.weight, &self.bias, self.eps)
    }
}

/// Either, where a block may have one or the other.
#[derive(Clone, Debug)]
pub enum Norm {
    /// Root mean square.
    Rms(RmsNorm),
    /// Mean and variance.
    Layer(LayerNorm),
}

impl Norm {
    /// As the norm's own.
    ///
    /// # Errors
    /// As the norm's own.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Rms(norm) => norm.forward(x),
            Self::Layer(norm) => norm.forward(x),
        }
    }

    /// As [`Linear::map`](super::Linear::map).
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(match self {
            Self::Rms(norm) => Self::Rms(norm.map(f)?),
            Self::Layer(LayerNorm { weight, bias, eps }) => {
                Self::Layer(LayerNorm { weight: f(weight)?, bias: f(bias)?, eps: *eps })
            }
        })
    }

    /// What the linear map behind this norm takes: `x` and the norm, if that is a part of the map, else the normed.
    pub(super) fn before(&self, x: &Tensor) -> Result<(Tensor, Option<&RmsNorm>)> {
        match self {
            Self::Rms(norm) => Ok((x.clone(), Some(norm))),
            Self::Layer(norm) => Ok((norm.forward(x)?, None)),
        }
    }
}
