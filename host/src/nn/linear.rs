//! y = x·Wᵀ + b, and what may stand around it.

use super::{Map, Matrix, RmsNorm, expect_len, rows_per_launch};
use crate::ops::{Activation, Epilogue};
use crate::{DType, Error, Result, Tensor, TensorMut};

/// A linear map, its weight stored as checkpoints have it.
#[derive(Clone, Debug)]
pub struct Linear {
    /// [out, in]
    weight: Matrix,
    /// [out]
    bias: Option<Tensor>,
}

/// What a module around a linear map leaves to it: fewer passes over memory than steps of their own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around<'a> {
    /// Before the map.
    pub norm: Option<&'a RmsNorm>,
    /// Behind it.
    pub activation: Activation,
    /// [rows, out], added last.
    pub residual: Option<&'a Tensor>,
}

impl Linear {
    /// `weight`: [out, in] f32, f16 or quantised, `bias`: `[out]` f32.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if they do not fit each other.
    pub fn new(weight: impl Into<Matrix>, bias: Option<Tensor>) -> Result<Self> {
        let weight = weight.into();
        let &[out, _] = weight.dims() else {
            let (expected, found) = ("[out, in]".into(), weight.dims().into());
            return Err(Error::Shape { op: "Linear", argument: "weight", expected, found });
        };
        if let Some(bias) = &bias {
            expect_len("Linear", "bias", bias, out)?;
        }
        Ok(Self { weight, bias })
    }

    /// Width of the result.
    pub fn out_features(&self) -> usize {
        self.weight.dims()[0]
    }

    /// Width of the input.
    pub fn in_features(&self) -> usize {
        self.weight.dims()[1]
    }

    /// `x`: [rows, in] f32 → [rows, out] f32.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not fit, or a device error.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_around(x, Around::default())
    }

    /// activation(norm(x)·Wᵀ + b) + residual.
    pub(super) fn forward_around(&self, x: &Tensor, around: Around) -> Result<Tensor> {
        let rows = x.dims().first().copied().unwrap_or(0);
        let columns = around.activation.columns(self.out_features()).unwrap_or(0);
        let mut y = Tensor::uninitialized([rows, columns], DType::F32, &x.device())?;
        let most = rows_per_launch(2 * self.out_features() * self.in_features());
        for start in (0..rows).step_by(most) {
            let len = most.min(rows - start);
            let residual = around.residual.map(|residual| residual.narrow(0, start, len)).transpose()?;
            let around = Around { residual: residual.as_ref(), ..around };
            self.forward_into(y.view_mut()?.narrow(0, start, len)?, &x.narrow(0, start, len)?, around)?;
        }
        Ok(y)
    }

    /// As [`forward_around`](Self::forward_around), in one piece into `y`.
    pub(super) fn forward_into(&self, y: TensorMut, x: &Tensor, around: Around) -> Result<()> {
        let Around { norm, activation, residual } = around;
        let epilogue = Epilogue { bias: self.bias.as_ref(), activation, residual };
        self.weight.linear_into(y, x, norm, &epilogue)
    }

    /// The same map with each tensor replaced by what `f` makes of it.
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(Self { weight: self.weight.map(f)?, bias: self.bias.as_ref().map(f).transpose()? })
    }

    /// Bytes of the weight, which a product with few rows reads once.
    pub fn weight_bytes(&self) -> usize {
        self.weight.bytes()
    }
}
