//! A gate beside what it gates: silu(gate) · up.

use super::activate::{argument, function, tolerance};
use super::{About, Differentiable};
use crate::{HostTensor, Purpose};
use pascaline::ops::{self, Activation};
use pascaline::{DType, Result, Shape, Tensor, TensorMut};

pub(super) struct SiluMul {
    rows: usize,
    cols: usize,
    /// Whether the gradient is that with respect to `up`.
    of_up: bool,
    dtype: DType,
    purpose: Purpose,
}

pub(super) fn all() -> Vec<SiluMul> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for of_up in [false, true] {
            for (rows, cols) in [(0, 5), (1, 1), (3, 31), (7, 512), (2, 2050)] {
                all.push(SiluMul { rows, cols, of_up, dtype, purpose: Purpose::Test });
            }
        }
        all.push(SiluMul { rows: 4096, cols: 6144, of_up: false, dtype, purpose: Purpose::Bench });
    }
    all
}

impl Differentiable for SiluMul {
    fn about(&self) -> About {
        let of = if self.of_up { "up" } else { "gate" };
        About {
            op: "silu_mul_backward",
            sizes: format!("of={of},rows={},cols={}", self.rows, self.cols),
            dtype: self.dtype,
            purpose: self.purpose,
            gradient: (self.forward_shape(), self.dtype),
            tolerance: tolerance(self.dtype),
        }
    }

    fn forward_shape(&self) -> Shape {
        [self.rows, self.cols].into()
    }

    fn arguments(&self) -> Vec<HostTensor> {
        ["gate", "up"].map(|name| argument(&self.sizes(), name, self.forward_shape(), self.dtype)).into()
    }

    fn run(&self, y: TensorMut, dy: &Tensor, arguments: &[Tensor]) -> Result<()> {
        let [gate, up] = arguments else { return Ok(()) };
        let mut other = Tensor::uninitialized(dy.shape(), dy.dtype(), &dy.device())?;
        let other = other.view_mut()?;
        ops::silu_mul_backward_into(if self.of_up { [other, y] } else { [y, other] }, dy, gate, up)
    }

    fn formula(&self, dy: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let inputs = dy.iter().zip(&arguments[0]).zip(&arguments[1]);
        inputs
            .map(|((dy, &gate), up)| {
                let (silu, slope) = function(gate, Activation::Silu);
                if self.of_up { dy * silu } else { dy * up * slope }
            })
            .collect()
    }

    fn point(&self, arguments: &[Vec<f64>]) -> Vec<f64> {
        arguments[usize::from(self.of_up)].clone()
    }

    fn forward(&self, point: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let (gate, up) = if self.of_up { (&arguments[0][..], point) } else { (point, &arguments[1][..]) };
        gate.iter().zip(up).map(|(&gate, up)| function(gate, Activation::Silu).0 * up).collect()
    }

    fn flops(&self) -> f64 {
        20.0 * (self.rows * self.cols) as f64
    }
}
