//! Layer norm.

use super::row_op::{Data, RowOp, Rows, SHAPES};
use super::{Case, Tolerance};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

const EPS: f32 = 1e-6;

struct LayerNorm;

/// A constant row, whose variance is zero, and one with a NaN.
const SPECIAL: Data = Data::Changed("special", |x, cols| {
    x[..cols].fill(3.0);
    x[2 * cols - 1] = f32::NAN;
});

/// Far from zero: mean 1000 and variance 1, where mean(x²) − mean(x)² would have lost the variance.
const SHIFTED: Data = Data::Changed("shifted", |x, _| x.iter_mut().for_each(|x| *x += 1000.0));

/// The first 300 values are 1000 higher: the warps of a block find means that are far apart.
const STEP: Data = Data::Changed("step", |x, cols| {
    for row in x.chunks_mut(cols) {
        row.iter_mut().take(300).for_each(|x| *x += 1000.0);
    }
});

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let test = |rows, cols, data| Rows::<LayerNorm>::test(rows, cols, dtype, data);
        cases.extend(SHAPES.map(|(rows, cols)| test(rows, cols, Data::Normal)));
        for cols in [100, 1504, 8003, 8200] {
            cases.extend([Data::Outliers, SPECIAL, SHIFTED, STEP].map(|data| test(3, cols, data)));
        }
        cases
            .extend([96, 1040, 8208].into_iter().flat_map(|cols| Rows::<LayerNorm>::misaligned(cols, dtype)));
        let timed = [(1, 2048), (1024, 2048), (8192, 2048), (8192, 4096), (32768, 128)];
        cases.extend(timed.map(|(rows, cols)| Rows::<LayerNorm>::bench(rows, cols, dtype)));
    }
    cases
}

impl RowOp for LayerNorm {
    const NAME: &'static str = "layer_norm";
    const VECTORS: &'static [&'static str] = &["weight", "bias"];
    const FLOPS: f64 = 7.0;

    fn tolerance(dtype: DType) -> Tolerance {
        match dtype {
            // |(x − mean)/σ · weight| reaches 40 with outliers, and the bias may cancel it
            DType::F32 => Tolerance::new(2e-6, 1e-6, "six roundings of terms that may cancel"),
            _ => Tolerance::new(2e-6, 4.9e-4, "as f32, and one rounding to f16"),
        }
    }

    fn run(y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::layer_norm_into(y, &inputs[0], &inputs[1], &inputs[2], EPS)
    }

    fn reference(x: &[f64], vectors: &[Vec<f64>]) -> Vec<f64> {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
        let weights = vectors[0].iter().zip(&vectors[1]);
        x.iter().zip(weights).map(|(x, (weight, bias))| (x - mean) * scale * weight + bias).collect()
    }
}
