//! Softmax.

use super::{About, Case, HostTensor, Purpose, Tolerance, data, misaligned};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

#[derive(Clone)]
struct Softmax {
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
    /// Every other value is −∞, as a mask leaves it, and in row 0 all are.
    Masked,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let case = |rows, cols, data| Softmax { rows, cols, dtype, purpose: Purpose::Test, data };
        for (rows, cols) in [
            (0, 5),
            (5, 0),
            (1, 1),
            (3, 31),
            (8, 32),
            (9, 33),
            (7, 257),
            (17, 128),
            (5003, 9),
            (3001, 130),
            (1301, 260),
            (2, 1024),
            (3, 1025),
            (3, 1032),
            (2, 4099),
            (2, 8192),
            (2, 8193),
            (2, 9000),
            (2, 16384),
            (2, 16385),
            (1, 20011),
            (2, 30000),
            (2, 32768),
            (2, 32769),
            (1, 40000),
            (21, 32776),
        ] {
            cases.push(Box::new(case(rows, cols, Data::Normal)) as Box<dyn Case>);
        }
        for cols in [70, 100, 1300, 1500, 8200, 8301, 17000, 33000] {
            cases.push(Box::new(case(4, cols, Data::Outliers)));
            cases.push(Box::new(case(4, cols, Data::Masked)));
        }
        for cols in [96, 1040, 8208, 32776] {
            cases.extend(misaligned::both(&case(3, cols, Data::Normal)));
        }
    }
    for (rows, cols) in
        [(16, 256), (4096, 128), (4096, 1024), (8192, 4096), (4096, 32768), (32, 151936), (1, 151936)]
    {
        for dtype in [DType::F32, DType::F16] {
            let (purpose, data) = (Purpose::Bench, Data::Normal);
            cases.push(Box::new(Softmax { rows, cols, dtype, purpose, data }));
        }
    }
    cases
}

impl Case for Softmax {
    fn about(&self) -> About {
        let data = data::label(self.data);
        let id = format!("softmax_{}/rows={},cols={}{data}", self.dtype, self.rows, self.cols);
        About {
            op: "softmax",
            id,
            purpose: self.purpose,
            output: ([self.rows, self.cols].into(), self.dtype),
            tolerance: match self.dtype {
                // ex2.approx and the rounding of x·log2(e): |x − max| stays below 2⁹ in the data, which is 2⁹ half-ulps
                // in the exponent and so 4e-5 relative at most, and only where the result is below 2⁻²⁴ times the max.
                DType::F32 => Tolerance::new(1e-9, 8e-6, "exp of a rounded exponent"),
                _ => Tolerance::new(3.0e-8, 1.0 / 1024.0, "one rounding to f16, subnormals included"),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, shape) = (self.id(), [self.rows, self.cols]);
        let mut x = match self.data {
            Data::Outliers => data::outliers(&id, "x", shape, self.dtype),
            _ => data::normal(&id, "x", shape, self.dtype),
        };
        if self.data == Data::Masked {
            x.values.iter_mut().step_by(2).for_each(|value| *value = f32::NEG_INFINITY);
            x.values[..self.cols].fill(f32::NEG_INFINITY);
        }
        vec![x]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::softmax_into(y, &inputs[0])
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let mut y = Vec::with_capacity(rows.len() * self.cols);
        for &r in rows {
            let x = inputs[0].row(r);
            let max = x.iter().fold(f64::NEG_INFINITY, |max, &x| max.max(x.into()));
            let sum: f64 = x.iter().map(|&x| (f64::from(x) - max).exp()).sum();
            y.extend(x.iter().map(|&x| (f64::from(x) - max).exp() / sum));
        }
        y
    }

    fn flops(&self) -> f64 {
        5.0 * (self.rows * self.cols) as f64
    }
}
