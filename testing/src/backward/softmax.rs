//! Softmax.

use super::{About, Differentiable, dot};
use crate::{HostTensor, Purpose, Tolerance, data};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};

pub(super) struct Softmax {
    rows: usize,
    cols: usize,
    dtype: DType,
    purpose: Purpose,
}

pub(super) fn all() -> Vec<Softmax> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for (rows, cols) in [(0, 5), (1, 1), (3, 31), (9, 128), (5, 1024), (3, 1025), (2, 4099), (2, 9000)] {
            all.push(Softmax { rows, cols, dtype, purpose: Purpose::Test });
        }
        all.push(Softmax { rows: 8192, cols: 2048, dtype, purpose: Purpose::Bench });
    }
    all
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
    x.iter().map(|x| (x - max).exp() / sum).collect()
}

impl Differentiable for Softmax {
    fn about(&self) -> About {
        let sizes = format!("rows={},cols={}", self.rows, self.cols);
        About {
            op: "softmax_backward",
            sizes,
            dtype: self.dtype,
            purpose: self.purpose,
            gradient: (self.forward_shape(), self.dtype),
            tolerance: match self.dtype {
                DType::F32 => Tolerance::new(
                    3e-7,
                    1e-6,
                    "a sum of products of which one is at most 1, in f32; then it is subtracted",
                ),
                _ => Tolerance::new(6e-7, 4.9e-4, "one rounding to f16, subnormals included"),
            },
        }
    }

    fn forward_shape(&self) -> Shape {
        [self.rows, self.cols].into()
    }

    fn arguments(&self) -> Vec<HostTensor> {
        let x = data::normal(&self.sizes(), "x", self.forward_shape(), DType::F32);
        let rows = x.values.chunks_exact(self.cols);
        let y = rows.flat_map(|x| softmax(&x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()));
        vec![HostTensor::new(self.forward_shape(), self.dtype, y.map(|y| y as f32).collect())]
    }

    fn run(&self, y: TensorMut, dy: &Tensor, arguments: &[Tensor]) -> Result<()> {
        ops::softmax_backward_into(y, dy, &arguments[0])
    }

    fn formula(&self, dy: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let rows = dy.chunks_exact(self.cols).zip(arguments[0].chunks_exact(self.cols));
        rows.flat_map(|(dy, y)| {
            let sum = dot(dy, y);
            dy.iter().zip(y).map(move |(dy, y)| y * (dy - sum)).collect::<Vec<_>>()
        })
        .collect()
    }

    /// x = ln y, up to a constant, which softmax ignores.
    fn point(&self, arguments: &[Vec<f64>]) -> Vec<f64> {
        arguments[0].iter().map(|y| y.ln()).collect()
    }

    fn forward(&self, point: &[f64], _: &[Vec<f64>]) -> Vec<f64> {
        point.chunks_exact(self.cols).flat_map(softmax).collect()
    }

    fn flops(&self) -> f64 {
        4.0 * (self.rows * self.cols) as f64
    }
}
