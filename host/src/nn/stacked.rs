//! Matrices of several types as one, each below the previous one.

use super::{Map, Matrix, RmsNorm};
use crate::ops::{self, Activation, Epilogue};
use crate::{DType, Error, Result, Tensor, TensorMut};

/// Matrices of equal width that are stored in different types. For example, files of mixed precision keep the projection of
/// values in more bits than those of queries and keys. Each part is a separate product; activations are normalised and
/// quantised once.
///
/// ```
/// use pascaline::nn::{Linear, Matrix};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let part = |seed| Tensor::randn([2, 64], DType::F32, seed, &Device::Cpu);
/// let quantized = ops::quantize(&part(2)?, Format::Q8_0)?;
/// let stacked = Matrix::stacked(vec![part(1)?.into(), quantized.into()])?;
/// assert_eq!(stacked.formats(), [None, Some(Format::Q8_0)]);
/// assert_eq!(Linear::new(stacked, None)?.out_features(), 4);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stacked {
    parts: Vec<Matrix>,
    dims: [usize; 2],
}

impl Stacked {
    /// # Errors
    /// [`Error::Shape`] if a part is not a matrix of the first one's width, or there is none.
    pub(super) fn new(parts: Vec<Matrix>) -> Result<Self> {
        let width = parts.first().and_then(|first| first.dims().get(1)).copied().unwrap_or(0);
        let wrong = |part: &&Matrix| part.dims().len() != 2 || part.dims()[1] != width;
        if let Some(part) = parts.iter().find(wrong) {
            let (expected, found) = (format!("[_, {width}]"), part.dims().into());
            return Err(Error::Shape { op: "Matrix", argument: "part", expected, found });
        }
        let rows = parts.iter().map(|part| part.dims()[0]).sum();
        Ok(Self { parts, dims: [rows, width] })
    }

    /// The parts, from the top.
    pub fn parts(&self) -> &[Matrix] {
        &self.parts
    }

    pub(super) fn dims(&self) -> &[usize] {
        &self.dims
    }

    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        let parts = self.parts.iter().map(|part| part.map(f)).collect::<Result<_>>()?;
        Ok(Self { parts, dims: self.dims })
    }

    /// As [`Matrix::linear_into`].
    pub(super) fn linear_into(
        &self,
        y: TensorMut,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        epilogue: &Epilogue,
    ) -> Result<()> {
        let Epilogue { bias, activation, residual } = *epilogue;
        if bias.is_none() && residual.is_none() && activation == Activation::Identity {
            return self.product_into(y, x, norm);
        }
        let mut product = Tensor::uninitialized([x.dims()[0], self.dims[0]], DType::F32, &x.device())?;
        self.product_into(product.view_mut()?, x, norm)?;
        Matrix::finish_into(y, &product, epilogue)
    }

    /// y [rows, n] = norm(x)·Wᵀ; each part's columns follow those of the previous part.
    fn product_into(&self, mut y: TensorMut, x: &Tensor, norm: Option<&RmsNorm>) -> Result<()> {
        let rows = x.dims()[0];
        let quantized = self.parts.iter().filter(|part| matches!(part, Matrix::Quantized(_))).count();
        let normed = match norm {
            // the kernel for a single row quantises it itself
            Some(norm) if rows == 1 || quantized < self.parts.len() => Some(norm.forward(x)?),
            _ => None,
        };
        let quantized = match (&normed, norm) {
            _ if rows == 1 || quantized == 0 => None,
            (None, Some(norm)) => Some(norm.forward_rows(x)?),
            (normed, _) => Some(ops::quantize_rows(normed.as_ref().unwrap_or(x))?),
        };
        let x = normed.as_ref().unwrap_or(x);
        let product = |part: &Matrix, y: TensorMut| match (part, &quantized) {
            (Matrix::Quantized(w), Some(x)) => ops::quant_matmul_rows_into(y, x, w, &Epilogue::default()),
            _ => part.linear_into(y, x, None, &Epilogue::default()),
        };
        let mut at = 0;
        for part in &self.parts {
            let n = part.dims()[0];
            let columns = y.reborrow().narrow(1, at, n)?;
            if columns.is_contiguous() {
                product(part, columns)?;
            } else {
                let mut own = Tensor::uninitialized([rows, n], DType::F32, &x.device())?;
                product(part, own.view_mut()?)?;
                ops::copy_into(columns, &own)?;
            }
            at += n;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::nn::{Linear, Mlp};
    use crate::quant::{Format, QuantTensor};

    /// Three parts of different types, and the same as one matrix in f32.
    fn both(n: usize, k: usize) -> Result<[Matrix; 2]> {
        let (mut parts, mut values) = (Vec::new(), Vec::new());
        for (seed, format) in [(1, None), (2, Some(Format::Q8_0)), (3, Some(Format::Q4_0))] {
            let plain = Tensor::randn([n, k], DType::F32, seed, &Device::Cpu)?;
            let part = match format {
                None => plain.clone().into(),
                Some(format) => ops::quantize(&plain, format)?.into(),
            };
            values.extend(match &part {
                Matrix::Quantized(w) => ops::dequantize(w, DType::F32)?.to_vec::<f32>()?,
                _ => plain.to_vec::<f32>()?,
            });
            parts.push(part);
        }
        let whole = Tensor::from_slice(&values, [3 * n, k], &Device::Cpu)?;
        Ok([Matrix::stacked(parts)?, whole.into()])
    }

    /// 8-bit activations have an error of up to half of 1/127 of the largest in a block; the errors add like independent
    /// ones.
    fn assert_close(found: &Tensor, want: &Tensor) -> Result<()> {
        let (found, want) = (found.to_vec::<f32>()?, want.to_vec::<f32>()?);
        let error = crate::quant::ErrorReport::new(&want, &found);
        assert!(error.relative_rms < 0.02, "{error}");
        Ok(())
    }

    #[test]
    fn parts_give_what_the_whole_gives() -> Result<()> {
        let (n, k) = (8, 64);
        let [stacked, whole] = both(n, k)?;
        assert_eq!((stacked.dims(), stacked.dims()), (whole.dims(), &[3 * n, k][..]));
        assert_eq!(stacked.bytes(), n * k * 4 + n * (k / 32) * (34 + 18));
        for rows in [1, 5] {
            let x = Tensor::randn([rows, k], DType::F32, 9, &Device::Cpu)?;
            let bias = Tensor::randn([3 * n], DType::F32, 4, &Device::Cpu)?;
            for bias in [None, Some(bias)] {
                let of = |w: &Matrix| Linear::new(w.clone(), bias.clone())?.forward(&x);
                assert_close(&of(&stacked)?, &of(&whole)?)?;
            }
            let down = Tensor::randn([k, 3 * n / 2], DType::F32, 5, &Device::Cpu)?;
            let mlp = |w: &Matrix| {
                let fc1 = Linear::new(w.clone(), None)?;
                Mlp::new(fc1, Activation::SwiGlu, Linear::new(down.clone(), None)?)?.forward(&x)
            };
            assert_close(&mlp(&stacked)?, &mlp(&whole)?)?;
        }
        Ok(())
    }

    #[test]
    fn parts_of_other_widths_are_refused() -> Result<()> {
        let part = |k| -> Result<Matrix> {
            Ok(QuantTensor::from_f32(&vec![1.0; 4 * k], [4, k], Format::Q8_0, &Device::Cpu)?.into())
        };
        assert!(matches!(Matrix::stacked(vec![part(32)?, part(64)?]), Err(Error::Shape { .. })));
        assert!(matches!(Matrix::stacked(vec![part(32)?]), Ok(Matrix::Quantized(_))), "one is not stacked");
        Ok(())
    }
}
