//! y = x·Wᵀ + b, with the operations that are fused with it.

use super::checks::expect_len;
use super::map::Map;
use super::matrix::{Change, Matrix};
use super::norm::RmsNorm;
use crate::ops::Epilogue;
use crate::problem::pieces::rows_per_launch;
use crate::quant::QuantTensor;
use crate::{DType, Error, Result, Tensor, TensorMut};

/// A linear map y = x·Wᵀ + b. The weight is stored as [out, in], as in checkpoints.
///
/// ```
/// use pascaline::nn::Linear;
/// use pascaline::{Device, Tensor};
/// let weight = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2], &Device::Cpu)?;
/// let bias = Tensor::from_slice(&[0.5f32, 0.0, -0.5], [3], &Device::Cpu)?;
/// let linear = Linear::new(weight, Some(bias))?;
/// assert_eq!((linear.in_features(), linear.out_features()), (2, 3));
/// let y = linear.forward(&Tensor::from_slice(&[1.0f32, 1.0], [1, 2], &Device::Cpu)?)?;
/// assert_eq!(y.to_vec::<f32>()?, [3.5, 7.0, 10.5]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    /// [out, in]
    weight: Matrix,
    /// [out]
    bias: Option<Tensor>,
}

impl Linear {
    /// `weight`: [out, in] f32, f16 or quantised, `bias`: `[out]` f32.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if they do not match each other.
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

    /// Number of columns of the result, which are the weight's rows.
    pub fn out_features(&self) -> usize {
        self.weight.dims()[0]
    }

    /// Number of columns of the input, which are the weight's columns.
    pub fn in_features(&self) -> usize {
        self.weight.dims()[1]
    }

    /// `x`: [rows, in] f32 → [rows, out] f32.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not match.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_fused(x, None, Epilogue::default())
    }

    /// activation(norm(x)·Wᵀ + b) + residual. Fusing the surrounding module's operations saves passes over memory. The bias
    /// is this map's, and not the one in `epilogue`.
    pub(super) fn forward_fused(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        epilogue: Epilogue,
    ) -> Result<Tensor> {
        let rows = x.dims().first().copied().unwrap_or(0);
        let columns = epilogue.activation.columns(self.out_features()).unwrap_or(0);
        let mut y = Tensor::uninitialized([rows, columns], DType::F32, &x.device())?;
        let most = rows_per_launch(2 * self.out_features() * self.in_features(), &x.device());
        for start in (0..rows).step_by(most) {
            let len = most.min(rows - start);
            let residual = epilogue.residual.map(|residual| residual.narrow(0, start, len)).transpose()?;
            let epilogue = Epilogue { residual: residual.as_ref(), ..epilogue };
            self.forward_into(
                y.view_mut()?.narrow(0, start, len)?,
                &x.narrow(0, start, len)?,
                norm,
                epilogue,
            )?;
        }
        Ok(y)
    }

    /// As [`forward_fused`](Self::forward_fused), into `y`.
    pub(super) fn forward_into(
        &self,
        y: TensorMut,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        epilogue: Epilogue,
    ) -> Result<()> {
        self.weight.linear_into(y, x, norm, &Epilogue { bias: self.bias.as_ref(), ..epilogue })
    }

    /// The weight and the bias, if the weight is one quantised matrix.
    pub(super) fn quantized(&self) -> Option<(&QuantTensor, Option<&Tensor>)> {
        match &self.weight {
            Matrix::Quantized(weight) => Some((weight, self.bias.as_ref())),
            _ => None,
        }
    }

    /// With a low-rank change beside the weight, whose memory both share.
    pub(super) fn adapted(&self, change: &Change) -> Result<Self> {
        Ok(Self { weight: self.weight.with(change)?, bias: self.bias.clone() })
    }

    /// The same module with `f` applied to each tensor.
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(Self { weight: self.weight.map(f)?, bias: self.bias.as_ref().map(f).transpose()? })
    }

    /// The weight.
    pub fn weight(&self) -> &Matrix {
        &self.weight
    }

    /// Bytes of the stored weight; a product with few rows reads them once.
    pub fn weight_bytes(&self) -> usize {
        self.weight.bytes()
    }
}
