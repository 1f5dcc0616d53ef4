//! y = x·Wᵀ + b.

use super::{expect_len, misfit, rows_per_launch};
use crate::ops::{self, Matmul};
use crate::{DType, Result, Tensor, TensorMut};

/// A linear map, its weight stored as checkpoints have it.
#[derive(Clone, Debug)]
pub struct Linear {
    /// [out, in]
    weight: Tensor,
    /// [out]
    bias: Option<Tensor>,
}

impl Linear {
    /// `weight`: [out, in] f32 or f16, `bias`: `[out]` f32.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if they do not fit each other.
    pub fn new(weight: Tensor, bias: Option<Tensor>) -> Result<Self> {
        let &[out, _] = weight.dims() else { return Err(misfit("Linear", "weight", "[out, in]", &weight)) };
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
        let rows = x.dims().first().copied().unwrap_or(0);
        let most = rows_per_launch(2 * self.weight.shape().elements());
        if rows > most {
            let mut y = Tensor::uninitialized([rows, self.out_features()], DType::F32, &x.device())?;
            for start in (0..rows).step_by(most) {
                let len = most.min(rows - start);
                self.forward_into(y.view_mut()?.narrow(0, start, len)?, &x.narrow(0, start, len)?)?;
            }
            return Ok(y);
        }
        let y = ops::matmul(x, &self.weight.swap_dims(0, 1)?)?;
        match &self.bias {
            Some(bias) => ops::add(&y, bias),
            None => Ok(y),
        }
    }

    /// As [`forward`](Self::forward), into `y`, [rows, out] f32.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), and if `y` does not fit.
    pub fn forward_into(&self, y: TensorMut, x: &Tensor) -> Result<()> {
        match &self.bias {
            Some(bias) => ops::add_into(y, &ops::matmul(x, &self.weight.swap_dims(0, 1)?)?, bias),
            None => ops::matmul_into(y, x, &self.weight.swap_dims(0, 1)?, &Matmul::default()),
        }
    }

    /// Bytes of the weight, which a product with few rows reads once.
    pub fn weight_bytes(&self) -> usize {
        let size = if self.weight.dtype() == DType::F16 { 2 } else { 4 };
        self.weight.shape().elements() * size
    }
}
