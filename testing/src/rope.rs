//! Rotary position embedding.

use super::{About, Case, HostTensor, Purpose, Tolerance, data, misaligned};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

#[derive(Clone)]
struct Rope {
    seq: usize,
    heads: usize,
    dim: usize,
    dtype: DType,
    purpose: Purpose,
    /// Heads of the projection whose last part x is; `heads` if x is not part of one.
    fused: usize,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    let mut add = |seq, heads, dim, dtype, purpose, fused| {
        cases.push(Box::new(Rope { seq, heads, dim, dtype, purpose, fused }) as Box<dyn Case>);
    };
    for dtype in [DType::F32, DType::F16] {
        for (seq, heads, dim) in
            [(1, 1, 2), (3, 5, 6), (7, 4, 32), (2, 3, 130), (1, 16, 128), (0, 2, 8), (4, 0, 8)]
        {
            add(seq, heads, dim, dtype, Purpose::Test, heads);
        }
        add(5, 3, 16, dtype, Purpose::Test, 9);
        add(1, 32, 128, dtype, Purpose::Bench, 32);
        add(4096, 16, 128, dtype, Purpose::Bench, 16);
    }
    for dtype in [DType::F32, DType::F16] {
        let aligned = Rope { seq: 3, heads: 2, dim: 16, dtype, purpose: Purpose::Test, fused: 2 };
        cases.extend(misaligned::both(&aligned));
    }
    cases
}

impl Case for Rope {
    fn about(&self) -> About {
        let Self { seq, heads, dim, dtype, .. } = self;
        let fused = if self.fused == self.heads { String::new() } else { format!(",of={}", self.fused) };
        let id = format!("rope_{dtype}/seq={seq},heads={heads},dim={dim}{fused}");
        About {
            op: "rope",
            id,
            purpose: self.purpose,
            output: ([self.seq, self.heads, self.dim].into(), self.dtype),
            tolerance: match self.dtype {
                DType::F32 => {
                    Tolerance::new(1.2e-6, 1.2e-7, "two products of values below 4, each rounded once")
                }
                _ => Tolerance::new(3e-6, 1.0 / 1024.0, "one rounding to f16"),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let [cos, sin] = data::angles(&id, [self.seq, self.dim / 2]);
        vec![data::normal(&id, "x", [self.seq, self.fused, self.dim], self.dtype), cos, sin]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let x = inputs[0].narrow(1, self.fused - self.heads, self.heads)?;
        ops::rope_into(y, &x, &inputs[1], &inputs[2])
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let half = self.dim / 2;
        let mut y = Vec::with_capacity(rows.len() * self.dim);
        for row in rows {
            let (s, h) = (row / self.heads, row % self.heads);
            let x = inputs[0].row(s * self.fused + self.fused - self.heads + h);
            let (cos, sin) = (inputs[1].row(s), inputs[2].row(s));
            let value = |i: usize| f64::from(x[i]);
            let angle = |i: usize| (f64::from(cos[i]), f64::from(sin[i]));
            y.extend((0..half).map(|i| value(i) * angle(i).0 - value(i + half) * angle(i).1));
            y.extend((0..half).map(|i| value(i + half) * angle(i).0 + value(i) * angle(i).1));
        }
        y
    }

    fn flops(&self) -> f64 {
        3.0 * (self.seq * self.heads * self.dim) as f64
    }
}
