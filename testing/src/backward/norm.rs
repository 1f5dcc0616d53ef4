//! RMS norm and layer norm, and the sums over rows that biases need.

use super::{About, Differentiable};
use crate::{HostTensor, Purpose, Tolerance, data};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};

const EPS: f32 = 1e-6;

/// The input with respect to which the gradient is taken.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    X,
    Weight,
    Bias,
}

pub(super) struct Norm {
    rows: usize,
    cols: usize,
    dtype: DType,
    purpose: Purpose,
    centred: bool,
    of: Of,
}

pub(super) fn all() -> Vec<Norm> {
    let mut all = Vec::new();
    for (centred, of) in
        [(false, Of::X), (false, Of::Weight), (true, Of::X), (true, Of::Weight), (true, Of::Bias)]
    {
        for dtype in [DType::F32, DType::F16] {
            let case = |rows, cols, purpose| Norm { rows, cols, dtype, purpose, centred, of };
            for (rows, cols) in
                [(0, 5), (1, 1), (3, 31), (700, 32), (17, 130), (3, 1024), (5, 1025), (2, 8200)]
            {
                all.push(case(rows, cols, Purpose::Test));
            }
            all.push(case(8192, 2048, Purpose::Bench));
        }
    }
    all
}

impl Norm {
    /// The mean, and the factor of the normalised row.
    fn stats(&self, x: &[f64]) -> (f64, f64) {
        let n = x.len() as f64;
        let mean = if self.centred { x.iter().sum::<f64>() / n } else { 0.0 };
        let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        (mean, 1.0 / (variance + f64::from(EPS)).sqrt())
    }
}

impl Differentiable for Norm {
    fn about(&self) -> About {
        let of = match self.of {
            Of::X => "x",
            Of::Weight => "weight",
            Of::Bias => "bias",
        };
        let sizes = format!("of={of},rows={},cols={}", self.rows, self.cols);
        About {
            op: if self.centred { "layer_norm_backward" } else { "rms_norm_backward" },
            sizes,
            dtype: self.dtype,
            purpose: self.purpose,
            gradient: match self.of {
                Of::X => (self.forward_shape(), self.dtype),
                _ => ([self.cols].into(), DType::F32),
            },
            tolerance: match (self.of, self.dtype) {
                (Of::X, DType::F16) => Tolerance::new(1e-5, 4.9e-4, "one rounding to f16"),
                (Of::X, _) => Tolerance::new(
                    1e-5,
                    2e-6,
                    "sums over a row of products about 1, rsqrt, and a row of few columns whose factor is large",
                ),
                _ => Tolerance::new(
                    6e-7 * (self.rows as f64).sqrt(),
                    2e-6,
                    "a sum over the rows of products about 1",
                ),
            },
        }
    }

    fn forward_shape(&self) -> Shape {
        [self.rows, self.cols].into()
    }

    fn arguments(&self) -> Vec<HostTensor> {
        let id = self.sizes();
        vec![
            data::normal(&id, "x", self.forward_shape(), self.dtype),
            data::normal(&id, "weight", [self.cols], self.dtype),
        ]
    }

    fn run(&self, y: TensorMut, dy: &Tensor, arguments: &[Tensor]) -> Result<()> {
        let [x, weight] = arguments else { return Ok(()) };
        let other = |shape: &Shape, dtype| Tensor::uninitialized(shape, dtype, &dy.device());
        let mut dx = other(x.shape(), self.dtype)?;
        let (mut dweight, mut dbias) =
            (other(weight.shape(), DType::F32)?, other(weight.shape(), DType::F32)?);
        let (mut dweight, mut dbias) = (dweight.view_mut()?, dbias.view_mut()?);
        match (self.of, self.centred) {
            // without the weights' gradients, as for frozen weights
            (Of::X, true) => return ops::layer_norm_backward_into(y, None, dy, x, weight, EPS),
            (Of::X, false) => return ops::rms_norm_backward_into(y, None, dy, x, weight, EPS),
            (Of::Weight, _) => dweight = y,
            (Of::Bias, _) => dbias = y,
        }
        match self.centred {
            true => ops::layer_norm_backward_into(dx.view_mut()?, Some([dweight, dbias]), dy, x, weight, EPS),
            false => ops::rms_norm_backward_into(dx.view_mut()?, Some(dweight), dy, x, weight, EPS),
        }
    }

    fn formula(&self, dy: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let [x, weight] = arguments else { return Vec::new() };
        let mut sums = vec![0.0; self.cols];
        let mut dx = Vec::with_capacity(x.len());
        for (dy, x) in dy.chunks_exact(self.cols).zip(x.chunks_exact(self.cols)) {
            let (mean, scale) = self.stats(x);
            let normed: Vec<f64> = x.iter().map(|x| (x - mean) * scale).collect();
            let g: Vec<f64> = dy.iter().zip(weight).map(|(dy, weight)| dy * weight).collect();
            let along = super::dot(&g, &normed) / self.cols as f64;
            let shift = if self.centred { g.iter().sum::<f64>() / self.cols as f64 } else { 0.0 };
            dx.extend(g.iter().zip(&normed).map(|(g, normed)| scale * (g - shift - normed * along)));
            for (c, sum) in sums.iter_mut().enumerate() {
                *sum += dy[c] * if self.of == Of::Weight { normed[c] } else { 1.0 };
            }
        }
        if self.of == Of::X { dx } else { sums }
    }

    fn point(&self, arguments: &[Vec<f64>]) -> Vec<f64> {
        match self.of {
            Of::X => arguments[0].clone(),
            Of::Weight => arguments[1].clone(),
            Of::Bias => vec![0.0; self.cols],
        }
    }

    fn forward(&self, point: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let x = if self.of == Of::X { point } else { &arguments[0] };
        let weight = if self.of == Of::Weight { point } else { &arguments[1] };
        let bias = |c: usize| if self.of == Of::Bias { point[c] } else { 0.0 };
        let rows = x.chunks_exact(self.cols);
        rows.flat_map(|x| {
            let (mean, scale) = self.stats(x);
            (0..x.len()).map(|c| (x[c] - mean) * scale * weight[c] + bias(c)).collect::<Vec<_>>()
        })
        .collect()
    }

    fn flops(&self) -> f64 {
        10.0 * (self.rows * self.cols) as f64
    }
}
