//! Products with a [`Matrix`], and rows of it.

use super::matrix::{Adapted, Matrix, Stacked};
use super::norm::RmsNorm;
use crate::ops::{self, Activation, Epilogue};
use crate::{DType, Error, Result, Tensor, TensorMut};

impl Matrix {
    /// y = act(norm(x)·Wᵀ + bias) + residual, as [`ops::linear_into`].
    pub(super) fn linear_into(
        &self,
        y: TensorMut,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        epilogue: &Epilogue,
    ) -> Result<()> {
        let parts = norm.map(RmsNorm::parts);
        match self {
            Self::Plain(weight) => ops::linear_into(y, x, weight, parts, epilogue),
            Self::Quantized(weight) => ops::quant_linear_into(y, x, weight, parts, epilogue),
            Self::Stacked(stacked) => stacked.linear_into(y, x, norm, epilogue),
            Self::Adapted(adapted) => adapted.linear_into(y, x, norm, epilogue),
        }
    }

    /// The rows with the numbers `ids`, in f32.
    pub(super) fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        match self {
            Self::Plain(table) => ops::embedding(table, ids),
            Self::Quantized(table) => ops::quant_embedding(table, ids, DType::F32),
            Self::Adapted(adapted) => adapted.rows(ids),
            Self::Stacked(_) => {
                let (argument, value) = ("table", "a stacked matrix".to_owned());
                let reason = "rows are looked up in a matrix of one type".into();
                Err(Error::Unsupported { op: "Embedding", argument, value, reason })
            }
        }
    }
}

impl Stacked {
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
        ops::finish_into(y, &product, epilogue)
    }

    /// y [rows, n] = norm(x)·Wᵀ; each part's columns follow those of the previous part.
    fn product_into(&self, mut y: TensorMut, x: &Tensor, norm: Option<&RmsNorm>) -> Result<()> {
        let rows = x.dims()[0];
        let quantized = self.parts.iter().filter(|part| matches!(part, Matrix::Quantized(_))).count();
        let all = quantized == self.parts.len();
        let by_product = quantized == 0 || ops::is_vector(x);
        let normed = match norm {
            Some(norm) if !all || rows == 1 && !by_product => Some(norm.forward(x)?),
            _ => None,
        };
        // kernels for one row normalise and quantise it themselves
        let norm_of_parts = norm.filter(|_| normed.is_none() && by_product);
        let quantized = match (&normed, norm) {
            _ if rows == 1 || by_product || quantized == 0 => None,
            (None, Some(norm)) => Some(norm.forward_rows(x)?),
            (normed, _) => Some(ops::quantize_rows(normed.as_ref().unwrap_or(x))?),
        };
        let x = normed.as_ref().unwrap_or(x);
        let product = |part: &Matrix, y: TensorMut| match (part, &quantized) {
            (Matrix::Quantized(w), Some(x)) => ops::quant_matmul_rows_into(y, x, w, &Epilogue::default()),
            _ => part.linear_into(y, x, norm_of_parts, &Epilogue::default()),
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

impl Adapted {
    /// As [`Matrix::rows`].
    pub(super) fn rows(&self, ids: &Tensor) -> Result<Tensor> {
        let (rows, low) = (self.base.rows(ids)?, ops::embedding(&self.b, ids)?);
        let change = ops::matmul(&low.reshape([ids.shape().elements(), self.a.dims()[0]])?, &self.a)?;
        ops::add(&rows, &change.reshape(rows.shape())?)
    }

    /// As [`Matrix::linear_into`].
    pub(super) fn linear_into(
        &self,
        y: TensorMut,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        epilogue: &Epilogue,
    ) -> Result<()> {
        let change = [&self.a, &self.b];
        match &*self.base {
            Matrix::Quantized(weight) => {
                ops::quant_lora_into(y, x, weight, norm.map(RmsNorm::parts), change, epilogue)
            }
            Matrix::Stacked(parts) if x.dims()[0] == 1 => self.row_by_parts(y, x, norm, parts, epilogue),
            base => {
                let normed = norm.map(|norm| norm.forward(x)).transpose()?;
                let x = normed.as_ref().unwrap_or(x);
                ops::beside_into(y, x, change, self.b.dims()[0], epilogue, |y, epilogue| {
                    base.linear_into(y, x, None, epilogue)
                })
            }
        }
    }

    /// The product with one row, each part of the base beside its rows of the change.
    fn row_by_parts(
        &self,
        y: TensorMut,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        base: &Stacked,
        epilogue: &Epilogue,
    ) -> Result<()> {
        let mut sums = Tensor::uninitialized([1, base.dims[0]], DType::F32, &x.device())?;
        let mut at = 0;
        for part in &base.parts {
            let n = part.dims()[0];
            let part = Self { base: Box::new(part.clone()), a: self.a.clone(), b: self.b.narrow(0, at, n)? };
            part.linear_into(sums.view_mut()?.narrow(1, at, n)?, x, norm, &Epilogue::default())?;
            at += n;
        }
        ops::finish_into(y, &sums, epilogue)
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

    fn randn(shape: [usize; 2], seed: u64) -> Tensor {
        Tensor::randn(shape, DType::F32, seed, &Device::Cpu).unwrap()
    }

    /// A change beside a matrix, and the same one merged; with activations, norms and residuals.
    #[test]
    fn beside_is_merged() -> Result<()> {
        let (n, k, rank) = (8, 64, 3);
        let base = ops::quantize(&randn([n, k], 1), Format::Q8_0)?;
        let (a, b) = (randn([rank, k], 2), randn([n, rank], 3));
        let merged = ops::add(&ops::dequantize(&base, DType::F32)?, &ops::matmul(&b, &a)?)?;
        let beside = Matrix::adapted(base.into(), a, b)?;
        let norm = RmsNorm::new(Tensor::ones([k], DType::F32, &Device::Cpu)?, 1e-6)?;
        let bias = Tensor::ones([n], DType::F32, &Device::Cpu)?;
        for rows in [1, 5] {
            let x = randn([rows, k], 4);
            for (activation, columns) in
                [(Activation::Identity, n), (Activation::Silu, n), (Activation::SwiGlu, n / 2)]
            {
                let residual = randn([rows, columns], 5);
                for residual in [None, Some(&residual)] {
                    let bias = (activation != Activation::SwiGlu).then_some(&bias);
                    let epilogue = Epilogue { bias, activation, residual };
                    let product = |matrix: &Matrix| -> Result<Vec<f32>> {
                        let mut y = Tensor::uninitialized([rows, columns], DType::F32, &Device::Cpu)?;
                        matrix.linear_into(y.view_mut()?, &x, Some(&norm), &epilogue)?;
                        y.to_vec()
                    };
                    let (found, want) = (product(&beside)?, product(&merged.clone().into())?);
                    let error = crate::quant::ErrorReport::new(&want, &found);
                    assert!(error.relative_rms < 0.02, "{rows} rows, {activation:?}: {error}");
                }
            }
        }
        let ids = Tensor::from_slice(&[7u32, 0], [2], &Device::Cpu)?;
        let (found, want) =
            (beside.rows(&ids)?.to_vec::<f32>()?, ops::embedding(&merged, &ids)?.to_vec::<f32>()?);
        assert!(found.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-4));
        let part = Linear::new(beside.narrow(2, 3)?, None)?;
        assert_eq!((part.out_features(), beside.formats()), (3, vec![Some(Format::Q8_0)]));
        assert!(Matrix::adapted(merged.clone().into(), randn([2, 63], 1), randn([n, 2], 1)).is_err());
        assert!(Matrix::adapted(merged.into(), randn([2, k], 1), randn([n, 3], 1)).is_err());
        Ok(())
    }
}
