//! A matrix with a low-rank change beside it.

use super::{Map, Matrix, RmsNorm};
use crate::ops::{self, Activation, Epilogue};
use crate::{DType, Error, Result, Tensor, TensorMut};

/// W + B·A, whose product is W·x + B·(A·x): a quantised W stays as it is stored (Hu et al. 2021, "LoRA").
///
/// ```
/// use pascaline::nn::{Linear, Matrix};
/// use pascaline::quant::Format;
/// use pascaline::{DType, Device, Tensor, ops};
/// let base = ops::quantize(&Tensor::ones([4, 32], DType::F32, &Device::Cpu)?, Format::Q8_0)?;
/// let a = Tensor::ones([2, 32], DType::F32, &Device::Cpu)?;
/// let b = Tensor::full(0.5f32, [4, 2], &Device::Cpu)?;
/// let matrix = Matrix::adapted(base.into(), a, b)?;
/// assert_eq!(matrix.formats(), [Some(Format::Q8_0)]);
/// let y = Linear::new(matrix, None)?.forward(&Tensor::ones([1, 32], DType::F32, &Device::Cpu)?)?;
/// assert!(y.to_vec::<f32>()?.iter().all(|y| (y - 64.0).abs() < 0.1)); // 32 + 2 · 0.5 · 32
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adapted {
    base: Box<Matrix>,
    /// A: [rank, in]
    a: Tensor,
    /// B: [out, rank]
    b: Tensor,
}

impl Adapted {
    /// # Errors
    /// [`Error::Shape`] if the dimensions do not fit each other.
    pub(super) fn new(base: Matrix, a: Tensor, b: Tensor) -> Result<Self> {
        let wrong = |argument, expected: String, found: &Tensor| {
            Err(Error::Shape { op: "Matrix", argument, expected, found: found.shape().clone() })
        };
        let &[n, k] = base.dims() else { return wrong("base", "a matrix beside its change".into(), &a) };
        match (a.dims(), b.dims()) {
            (&[rank, width], _) if width != k => wrong("a", format!("[{rank}, {k}]"), &a),
            (&[rank, _], found) if *found != [n, rank] => wrong("b", format!("[{n}, {rank}]"), &b),
            (&[_, _], _) => Ok(Self { base: Box::new(base), a, b }),
            _ => wrong("a", format!("[rank, {k}]"), &a),
        }
    }

    /// The matrix without the change.
    pub fn base(&self) -> &Matrix {
        &self.base
    }

    pub(super) fn dims(&self) -> &[usize] {
        self.base.dims()
    }

    pub(super) fn bytes(&self) -> usize {
        let of = |part: &Tensor| part.shape().elements() * part.dtype().size();
        self.base.bytes() + of(&self.a) + of(&self.b)
    }

    pub(super) fn narrow(&self, start: usize, rows: usize) -> Result<Self> {
        let base = Box::new(self.base.narrow(start, rows)?);
        Ok(Self { base, a: self.a.clone(), b: self.b.narrow(0, start, rows)? })
    }

    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(Self { base: Box::new(self.base.map(f)?), a: f(&self.a)?, b: f(&self.b)? })
    }

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
        let normed = norm.map(|norm| norm.forward(x)).transpose()?;
        let x = normed.as_ref().unwrap_or(x);
        let Epilogue { bias, activation, residual } = *epilogue;
        let low = ops::linear(x, &self.a, None, &Epilogue::default())?;
        let change =
            |residual| ops::linear(&low, &self.b, None, &Epilogue { residual, ..Epilogue::default() });
        if activation == Activation::Identity {
            let change = change(residual)?;
            let epilogue = Epilogue { bias, residual: Some(&change), ..Epilogue::default() };
            return self.base.linear_into(y, x, None, &epilogue);
        }
        let change = change(None)?;
        let mut product = Tensor::uninitialized(change.shape(), DType::F32, &x.device())?;
        let epilogue = Epilogue { bias, residual: Some(&change), ..Epilogue::default() };
        self.base.linear_into(product.view_mut()?, x, None, &epilogue)?;
        Matrix::finish_into(y, &product, &Epilogue { activation, residual, ..Epilogue::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::nn::Linear;
    use crate::quant::Format;

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
