//! Layer norm.

use super::{About, Case, HostTensor, Purpose, Tolerance, data, misaligned};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

const EPS: f32 = 1e-6;

#[derive(Clone)]
struct LayerNorm {
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
    /// A constant row, whose variance is zero, and one with a NaN.
    Special,
    /// Far from zero: mean 1000 and variance 1, where mean(x²) − mean(x)² would have lost the variance.
    Shifted,
    /// The first 300 values are 1000 higher: the warps of a block find means that are far apart.
    Step,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        let case = |rows, cols, data| LayerNorm { rows, cols, dtype, purpose: Purpose::Test, data };
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
        for cols in [100, 1504, 8003, 8200] {
            cases.push(Box::new(case(3, cols, Data::Outliers)));
            cases.push(Box::new(case(3, cols, Data::Special)));
            cases.push(Box::new(case(3, cols, Data::Shifted)));
            cases.push(Box::new(case(3, cols, Data::Step)));
        }
        for cols in [96, 1040, 8208] {
            cases.extend(misaligned::both(&case(3, cols, Data::Normal)));
        }
        for (rows, cols) in [(1, 2048), (1024, 2048), (8192, 2048), (8192, 4096)] {
            cases.push(Box::new(LayerNorm { purpose: Purpose::Bench, ..case(rows, cols, Data::Normal) }));
        }
        cases.push(Box::new(LayerNorm { purpose: Purpose::Bench, ..case(32768, 128, Data::Normal) }));
    }
    cases
}

impl Case for LayerNorm {
    fn about(&self) -> About {
        let data = data::label(self.data);
        let id = format!("layer_norm_{}/rows={},cols={}{data}", self.dtype, self.rows, self.cols);
        About {
            op: "layer_norm",
            id,
            purpose: self.purpose,
            output: ([self.rows, self.cols].into(), self.dtype),
            tolerance: match self.dtype {
                // |(x − mean)/σ · weight| reaches 40 with outliers, and the bias may cancel it
                DType::F32 => Tolerance::new(2e-6, 1e-6, "six roundings of terms that may cancel"),
                _ => Tolerance::new(2e-6, 4.9e-4, "as f32, and one rounding to f16"),
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
            x.values[..self.cols].fill(3.0);
            x.values[2 * self.cols - 1] = f32::NAN;
        }
        if self.data == Data::Shifted {
            x.values.iter_mut().for_each(|x| *x += 1000.0);
        }
        if self.data == Data::Step {
            for row in x.values.chunks_mut(self.cols) {
                row.iter_mut().take(300).for_each(|x| *x += 1000.0);
            }
        }
        let x = HostTensor::new(x.shape, x.dtype, x.values);
        let weight = data::normal(&id, "weight", [self.cols], self.dtype);
        vec![x, weight, data::normal(&id, "bias", [self.cols], self.dtype)]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::layer_norm_into(y, &inputs[0], &inputs[1], &inputs[2], EPS)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let mut y = Vec::with_capacity(rows.len() * self.cols);
        for &r in rows {
            let x = inputs[0].row(r);
            let x: Vec<_> = x.iter().map(|&x| f64::from(x)).collect();
            let mean = x.iter().sum::<f64>() / self.cols as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / self.cols as f64;
            let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
            let weights = inputs[1].values.iter().zip(&inputs[2].values);
            y.extend(
                x.iter().zip(weights).map(|(x, (&w, &b))| (x - mean) * scale * f64::from(w) + f64::from(b)),
            );
        }
        y
    }

    fn flops(&self) -> f64 {
        7.0 * (self.rows * self.cols) as f64
    }
}
