//! Activations.

use super::{About, Differentiable};
use crate::{HostTensor, Purpose, Tolerance, data};
use pascaline::ops::{self, Activation};
use pascaline::{DType, Result, Shape, Tensor, TensorMut};

pub(super) struct Activate {
    rows: usize,
    /// Columns of dy.
    cols: usize,
    activation: Activation,
    dtype: DType,
    purpose: Purpose,
}

pub(super) fn all() -> Vec<Activate> {
    use Activation::{GeluErf, GeluTanh, Identity, Silu, SwiGlu};
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for activation in [Identity, Silu, GeluTanh, GeluErf, SwiGlu] {
            for (rows, cols) in [(0, 5), (1, 1), (3, 31), (7, 512), (2, 2050)] {
                all.push(Activate { rows, cols, activation, dtype, purpose: Purpose::Test });
            }
        }
        for activation in [GeluTanh, SwiGlu] {
            all.push(Activate { rows: 4096, cols: 6144, activation, dtype, purpose: Purpose::Bench });
        }
    }
    all
}

/// Φ by the series of erf where it converges quickly, else by its continued fraction.
fn normal(x: f64) -> f64 {
    let a = x.abs() / std::f64::consts::SQRT_2;
    if a < 3.0 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-18 {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        let erf = 2.0 / std::f64::consts::PI.sqrt() * sum;
        return if x < 0.0 { 0.5 * (1.0 - erf) } else { 0.5 * (1.0 + erf) };
    }
    let fraction = (1..200).rev().fold(a, |f, k| a + k as f64 / 2.0 / f);
    let tail = 0.5 * (-a * a).exp() / std::f64::consts::PI.sqrt() / fraction;
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// The function, and its derivative.
pub(super) fn function(x: f64, activation: Activation) -> (f64, f64) {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Identity => (x, 1.0),
        Activation::Silu | Activation::SwiGlu => {
            let s = sigmoid(x);
            (x * s, s * (1.0 + x * (1.0 - s)))
        }
        Activation::GeluTanh => {
            let (scale, cubic) = ((2.0 / std::f64::consts::PI).sqrt(), 0.044715);
            let tanh = (scale * (x + cubic * x.powi(3))).tanh();
            let slope = scale * (1.0 + 3.0 * cubic * x * x);
            (0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)
        }
        Activation::GeluErf => {
            let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
            (x * normal(x), normal(x) + x * density)
        }
    }
}

pub(super) fn tolerance(dtype: DType) -> Tolerance {
    match dtype {
        DType::F32 => Tolerance::new(
            2e-6,
            3e-6,
            "two terms of about 1 that cancel near the minimum, times dy and up to 12",
        ),
        _ => Tolerance::new(3e-6, 4.9e-4, "one rounding to f16"),
    }
}

/// An argument that reaches into the tails.
pub(super) fn argument(id: &str, name: &str, shape: Shape, dtype: DType) -> HostTensor {
    let mut x = data::normal(id, name, shape, dtype);
    x.values.iter_mut().for_each(|x| *x *= 3.0);
    HostTensor::new(x.shape, dtype, x.values)
}

impl Activate {
    fn width(&self) -> usize {
        if self.activation == Activation::SwiGlu { 2 * self.cols } else { self.cols }
    }
}

impl Differentiable for Activate {
    fn about(&self) -> About {
        let sizes = format!("f={:?},rows={},cols={}", self.activation, self.rows, self.cols);
        About {
            op: "activate_backward",
            sizes,
            dtype: self.dtype,
            purpose: self.purpose,
            gradient: ([self.rows, self.width()].into(), self.dtype),
            tolerance: tolerance(self.dtype),
        }
    }

    fn forward_shape(&self) -> Shape {
        [self.rows, self.cols].into()
    }

    fn arguments(&self) -> Vec<HostTensor> {
        vec![argument(&self.sizes(), "x", [self.rows, self.width()].into(), self.dtype)]
    }

    fn run(&self, y: TensorMut, dy: &Tensor, arguments: &[Tensor]) -> Result<()> {
        ops::activate_backward_into(y, dy, &arguments[0], self.activation)
    }

    fn formula(&self, dy: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let rows = dy.chunks_exact(self.cols).zip(arguments[0].chunks_exact(self.width()));
        rows.flat_map(|(dy, x)| {
            let through = (0..self.cols).map(|c| {
                let up = if x.len() > self.cols { x[self.cols + c] } else { 1.0 };
                dy[c] * up * function(x[c], self.activation).1
            });
            let gated = (self.cols..x.len())
                .map(|c| dy[c - self.cols] * function(x[c - self.cols], self.activation).0);
            through.chain(gated).collect::<Vec<_>>()
        })
        .collect()
    }

    fn point(&self, arguments: &[Vec<f64>]) -> Vec<f64> {
        arguments[0].clone()
    }

    fn forward(&self, point: &[f64], _: &[Vec<f64>]) -> Vec<f64> {
        let rows = point.chunks_exact(self.width());
        rows.flat_map(|x| {
            let up = |c: usize| if x.len() > self.cols { x[self.cols + c] } else { 1.0 };
            (0..self.cols).map(|c| function(x[c], self.activation).0 * up(c)).collect::<Vec<_>>()
        })
        .collect()
    }

    fn flops(&self) -> f64 {
        10.0 * (self.rows * self.width()) as f64
    }
}
