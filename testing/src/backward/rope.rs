//! Rotary position embedding.

use super::{About, Differentiable};
use crate::{HostTensor, Purpose, Tolerance, data};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};

pub(super) struct Rope {
    seq: usize,
    heads: usize,
    dim: usize,
    dtype: DType,
    purpose: Purpose,
}

pub(super) fn all() -> Vec<Rope> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for (seq, heads, dim) in [(0, 2, 8), (1, 1, 2), (5, 3, 30), (33, 4, 128)] {
            all.push(Rope { seq, heads, dim, dtype, purpose: Purpose::Test });
        }
        all.push(Rope { seq: 4096, heads: 16, dim: 128, dtype, purpose: Purpose::Bench });
    }
    all
}

impl Rope {
    /// Rotates by the angles, times `sign`.
    fn rotate(&self, x: &[f64], [cos, sin]: [&[f64]; 2], sign: f64) -> Vec<f64> {
        let half = self.dim / 2;
        let mut y = vec![0.0; x.len()];
        for (at, (y, x)) in y.chunks_exact_mut(self.dim).zip(x.chunks_exact(self.dim)).enumerate() {
            for i in 0..half {
                let angle = at / self.heads * half + i;
                let (cos, sin) = (cos[angle], sign * sin[angle]);
                y[i] = x[i] * cos - x[i + half] * sin;
                y[i + half] = x[i + half] * cos + x[i] * sin;
            }
        }
        y
    }
}

impl Differentiable for Rope {
    fn about(&self) -> About {
        let sizes = format!("seq={},heads={},dim={}", self.seq, self.heads, self.dim);
        About {
            op: "rope_backward",
            sizes,
            dtype: self.dtype,
            purpose: self.purpose,
            gradient: (self.forward_shape(), self.dtype),
            tolerance: match self.dtype {
                DType::F32 => Tolerance::new(6e-7, 2e-7, "two products of up to 3 that may cancel"),
                _ => Tolerance::new(6e-7, 4.9e-4, "one rounding to f16"),
            },
        }
    }

    fn forward_shape(&self) -> Shape {
        [self.seq, self.heads, self.dim].into()
    }

    fn arguments(&self) -> Vec<HostTensor> {
        data::angles(&self.sizes(), [self.seq, self.dim / 2]).into()
    }

    fn run(&self, y: TensorMut, dy: &Tensor, arguments: &[Tensor]) -> Result<()> {
        ops::rope_backward_into(y, dy, &arguments[0], &arguments[1])
    }

    fn formula(&self, dy: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        self.rotate(dy, [&arguments[0], &arguments[1]], -1.0)
    }

    /// The rotation is linear, so its gradient is the same at any point.
    fn point(&self, _: &[Vec<f64>]) -> Vec<f64> {
        vec![0.0; self.forward_shape().elements()]
    }

    fn forward(&self, point: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        self.rotate(point, [&arguments[0], &arguments[1]], 1.0)
    }

    fn flops(&self) -> f64 {
        3.0 * self.forward_shape().elements() as f64
    }
}
