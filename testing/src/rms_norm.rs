//! RMS norm.

use super::row_op::{Data, RowOp, Rows, SHAPES};
use super::{Case, Tolerance};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

const EPS: f32 = 1e-6;

struct RmsNorm;

/// A row of zeros, which stays zero thanks to eps, and one with a NaN.
const SPECIAL: Data = Data::Changed("special", |x, cols| {
    x[..cols].fill(0.0);
    x[2 * cols - 1] = f32::NAN;
});

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let test = |rows, cols, data| Rows::<RmsNorm>::test(rows, cols, dtype, data);
        cases.extend(SHAPES.map(|(rows, cols)| test(rows, cols, Data::Normal)));
        for cols in [100, 1504, 8200] {
            cases.extend([Data::Outliers, SPECIAL].map(|data| test(3, cols, data)));
        }
        cases.extend([96, 1040, 8208].into_iter().flat_map(|cols| Rows::<RmsNorm>::misaligned(cols, dtype)));
        let timed = [(1, 2048), (1024, 2048), (8192, 2048), (8192, 4096), (32768, 128)];
        cases.extend(timed.map(|(rows, cols)| Rows::<RmsNorm>::bench(rows, cols, dtype)));
    }
    cases
}

impl RowOp for RmsNorm {
    const NAME: &'static str = "rms_norm";
    const VECTORS: &'static [&'static str] = &["weight"];
    const FLOPS: f64 = 4.0;

    fn tolerance(dtype: DType) -> Tolerance {
        match dtype {
            DType::F32 => Tolerance::new(
                1e-30,
                1e-6,
                "a sum of squares in f32 (half of its error counts), rsqrt, two products",
            ),
            _ => Tolerance::new(3.0e-8, 4.9e-4, "one rounding to f16, subnormals included"),
        }
    }

    fn run(y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::rms_norm_into(y, &inputs[0], &inputs[1], EPS)
    }

    fn reference(x: &[f64], vectors: &[Vec<f64>]) -> Vec<f64> {
        let squares: f64 = x.iter().map(|x| x * x).sum();
        let scale = 1.0 / (squares / x.len() as f64 + f64::from(EPS)).sqrt();
        x.iter().zip(&vectors[0]).map(|(x, weight)| x * scale * weight).collect()
    }
}
