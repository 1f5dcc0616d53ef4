//! RMS norm.

use super::{About, Case, HostTensor, Purpose, Tolerance, data, misaligned};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

const EPS: f32 = 1e-6;

#[derive(Clone)]
struct RmsNorm {
    rows: usize,
    cols: usize,
    dtype: DType,
    purpose: Purpose,
    data: Data,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    Normal,
    Outliers,
    /// A row of zeros, which stays zero thanks to eps, and one with a NaN.
    Special,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let case = |rows, cols, data| RmsNorm { rows, cols, dtype, purpose: Purpose::Test, data };
        for (rows, cols) in [
            (0, 5),
            (5, 0),
            (1, 1),
            (3, 31),
            (8, 32),
            (9, 33),
            (17, 128),
            (5003, 9),
            (3001, 130),
            (1301, 260),
            (7, 257),
            (2, 1024),
            (3, 1025),
            (5, 2048),
            (3, 3333),
            (2, 4099),
            (2, 8192),
            (2, 8193),
            (2, 9000),
        ] {
            cases.push(Box::new(case(rows, cols, Data::Normal)) as Box<dyn Case>);
        }
        for cols in [100, 1504, 8200] {
            cases.push(Box::new(case(3, cols, Data::Outliers)));
            cases.push(Box::new(case(3, cols, Data::Special)));
        }
        for cols in [96, 1040, 8208] {
            cases.extend(misaligned::both(&case(3, cols, Data::Normal)));
        }
        for (rows, cols) in [(1, 2048), (1024, 2048), (8192, 2048), (8192, 4096)] {
            cases.push(Box::new(RmsNorm { purpose: Purpose::Bench, ..case(rows, cols, Data::Normal) }));
        }
        cases.push(Box::new(RmsNorm { purpose: Purpose::Bench, ..case(32768, 128, Data::Normal) }));
    }
    cases
}

impl Case for RmsNorm {
    fn about(&self) -> About {
        let data = data::label(self.data);
        let id = format!("rms_norm_{}/rows={},cols={}{data}", self.dtype, self.rows, self.cols);
        About {
            op: "rms_norm",
            id,
            purpose: self.purpose,
            output: ([self.rows, self.cols].into(), self.dtype),
            tolerance: match self.dtype {
                DType::F32 => Tolerance::new(
                    1e-30,
                    1e-6,
                    "a sum of squares in f32 (half of its error counts), rsqrt, two products",
                ),
                _ => Tolerance::new(3.0e-8, 4.9e-4, "one rounding to f16, subnormals included"),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, shape) = (self.id(), [self.rows, self.cols]);
        let mut x = match self.data {
            Data::Outliers => data::outliers(&id, "x", shape, self.dtype),
            _ => data::normal(&id, "x", shape, self.dtype),
        };
        if self.data == Data::Special {
            x.values[..self.cols].fill(0.0);
            x.values[2 * self.cols - 1] = f32::NAN;
        }
        vec![x, data::normal(&id, "weight", [self.cols], self.dtype)]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::rms_norm_into(y, &inputs[0], &inputs[1], EPS)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let mut y = Vec::with_capacity(rows.len() * self.cols);
        for &r in rows {
            let x = inputs[0].row(r);
            let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
            let scale = 1.0 / (squares / self.cols as f64 + f64::from(EPS)).sqrt();
            y.extend(x.iter().zip(&inputs[1].values).map(|(&x, &w)| f64::from(x) * scale * f64::from(w)));
        }
        y
    }

    fn flops(&self) -> f64 {
        4.0 * (self.rows * self.cols) as f64
    }
}
