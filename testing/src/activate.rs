//! Activations: the epilogue of a linear map.

use super::{About, Case, HostTensor, Purpose, Tolerance, data, misaligned};
use pascaline::ops::{self, Activation};
use pascaline::{DType, Result, Tensor, TensorMut};
use std::f64::consts::{FRAC_1_SQRT_2, PI};

pub(super) const ACTIVATIONS: [Activation; 5] =
    [Activation::Identity, Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::SwiGlu];

/// For a case's id.
pub(super) fn name(activation: Activation) -> &'static str {
    match activation {
        Activation::Identity => "",
        Activation::Silu => ",act=silu",
        Activation::GeluTanh => ",act=gelu_tanh",
        Activation::GeluErf => ",act=gelu_erf",
        Activation::SwiGlu => ",act=swiglu",
    }
}

/// The function of one value by its definition; for SwiGLU, of a value of the first half.
pub(super) fn reference(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Identity => x,
        Activation::Silu | Activation::SwiGlu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let u = (2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3));
            x / (1.0 + (-2.0 * u).exp())
        }
        Activation::GeluErf if x < 0.0 => x * 0.5 * erfc(-x * FRAC_1_SQRT_2),
        Activation::GeluErf => x * (1.0 - 0.5 * erfc(x * FRAC_1_SQRT_2)),
    }
}

#[derive(Clone)]
struct Activate {
    rows: usize,
    /// Columns of the result.
    cols: usize,
    bias: bool,
    activation: Activation,
    dtype: DType,
    purpose: Purpose,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for activation in ACTIVATIONS {
        for dtype in [DType::F32, DType::F16] {
            let case = |rows, cols, bias, purpose| Activate { rows, cols, bias, activation, dtype, purpose };
            for (rows, cols) in [(0, 3), (3, 0), (1, 1), (5, 7), (3, 512), (2, 1025), (4, 1032)] {
                for bias in [false, true] {
                    cases.push(Box::new(case(rows, cols, bias, Purpose::Test)) as Box<dyn Case>);
                }
            }
            cases.extend(misaligned::both(&case(3, 136, true, Purpose::Test)));
            cases.push(Box::new(case(4096, 4096, activation != Activation::SwiGlu, Purpose::Bench)));
        }
    }
    cases
}

impl Activate {
    fn width(&self) -> usize {
        if self.activation == Activation::SwiGlu { 2 * self.cols } else { self.cols }
    }
}

impl Case for Activate {
    fn about(&self) -> About {
        let bias = if self.bias { ",bias" } else { "" };
        let (name, Self { rows, cols, dtype, .. }) = (name(self.activation), self);
        let id = format!("activate_{dtype}/rows={rows},cols={cols}{name}{bias}");
        About {
            op: "activate",
            id,
            purpose: self.purpose,
            output: ([self.rows, self.cols].into(), self.dtype),
            tolerance: match self.dtype {
                DType::F32 => Tolerance::new(
                    2e-6,
                    3e-6,
                    "the rounding of x + bias, below 8, times the function's slope and the other half; exp to 3e-7",
                ),
                _ => Tolerance::new(2e-6, 4.9e-4, "as in f32, and one rounding to f16"),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, width) = (self.id(), self.width());
        let mut inputs = vec![data::normal(&id, "x", [self.rows, width], self.dtype)];
        if self.bias {
            inputs.push(data::normal(&id, "bias", [width], self.dtype));
        }
        inputs
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::activate_into(y, &inputs[0], inputs.get(1), self.activation)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let mut y = Vec::with_capacity(rows.len() * self.cols);
        for &r in rows {
            let biased = |c: usize| {
                let bias = inputs.get(1).map_or(0.0, |bias| bias.values[c]);
                f64::from(inputs[0].row(r)[c]) + f64::from(bias)
            };
            y.extend((0..self.cols).map(|c| {
                let value = reference(biased(c), self.activation);
                if self.activation == Activation::SwiGlu { value * biased(self.cols + c) } else { value }
            }));
        }
        y
    }

    fn flops(&self) -> f64 {
        10.0 * (self.rows * self.cols) as f64
    }
}

/// 1 − erf(z) for z ≥ 0, to 1e-11 relative: the Maclaurin series of erf below 2, the continued fraction above
/// (Abramowitz & Stegun 7.1.5 and 7.1.14).
fn erfc(z: f64) -> f64 {
    if z < 2.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..60 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        1.0 - 2.0 / PI.sqrt() * sum
    } else {
        let fraction = (1..200).rev().fold(z, |rest, n| z + f64::from(n) / 2.0 / rest);
        (-z * z).exp() / PI.sqrt() / fraction
    }
}

#[cfg(test)]
mod tests {
    use super::erfc;

    #[test]
    fn the_reference_has_known_values() {
        // Abramowitz & Stegun, tables 7.1 and 7.3
        for (z, want) in [(0.0, 1.0), (0.5, 0.4795001222), (1.0, 0.1572992071), (2.0, 0.0046777350)] {
            assert!((erfc(z) - want).abs() < 1e-10, "erfc({z}) = {}", erfc(z));
        }
        assert!((erfc(1.999_999_999) / erfc(2.0) - 1.0).abs() < 1e-8);
        assert!((erfc(5.0) / 1.537_459_794_428_035e-12 - 1.0).abs() < 1e-11);
    }
}
