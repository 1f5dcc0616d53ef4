//! Softmax.

use super::row_op::{Data, RowOp, Rows, SHAPES};
use super::{Case, Tolerance};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

struct Softmax;

/// Every other value is −∞, as a mask leaves it, and in row 0 all are.
const MASKED: Data = Data::Changed("masked", |x, cols| {
    x.iter_mut().step_by(2).for_each(|value| *value = f32::NEG_INFINITY);
    x[..cols].fill(f32::NEG_INFINITY);
});

/// Rows that a block holds in registers, in shared memory, or reads twice.
const LONG: [(usize, usize); 9] = [
    (3, 1032),
    (2, 16384),
    (2, 16385),
    (1, 20011),
    (2, 30000),
    (2, 32768),
    (2, 32769),
    (1, 40000),
    (21, 32776),
];

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let test = |rows, cols, data| Rows::<Softmax>::test(rows, cols, dtype, data);
        cases.extend(SHAPES.iter().chain(&LONG).map(|&(rows, cols)| test(rows, cols, Data::Normal)));
        for cols in [70, 100, 1300, 1500, 8200, 8301, 17000, 33000] {
            cases.extend([Data::Outliers, MASKED].map(|data| test(4, cols, data)));
        }
        let misaligned = [96, 1040, 8208, 32776].into_iter();
        cases.extend(misaligned.flat_map(|cols| Rows::<Softmax>::misaligned(cols, dtype)));
    }
    let timed =
        [(16, 256), (4096, 128), (4096, 1024), (8192, 4096), (4096, 32768), (32, 151936), (1, 151936)];
    for (rows, cols) in timed {
        cases.extend([DType::F32, DType::F16].map(|dtype| Rows::<Softmax>::bench(rows, cols, dtype)));
    }
    cases
}

impl RowOp for Softmax {
    const NAME: &'static str = "softmax";
    const VECTORS: &'static [&'static str] = &[];
    const FLOPS: f64 = 5.0;

    fn tolerance(dtype: DType) -> Tolerance {
        match dtype {
            // ex2.approx and the rounding of x·log2(e): |x − max| stays below 2⁹ in the data, which is 2⁹ half-ulps
            // in the exponent and so 4e-5 relative at most, and only where the result is below 2⁻²⁴ times the max.
            DType::F32 => Tolerance::new(1e-9, 8e-6, "exp of a rounded exponent"),
            _ => Tolerance::new(3.0e-8, 1.0 / 1024.0, "one rounding to f16, subnormals included"),
        }
    }

    fn run(y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::softmax_into(y, &inputs[0])
    }

    fn reference(x: &[f64], _: &[Vec<f64>]) -> Vec<f64> {
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
        x.iter().map(|x| (x - max).exp() / sum).collect()
    }
}
