//! Cross-entropy of logits, and of the logits x · wᵀ.

use super::{About, Differentiable};
use crate::{HostTensor, Purpose, Tolerance, data};
use pascaline::{DType, Result, Shape, Tensor, TensorMut, ops};
use rand::Rng;

/// The result that is compared.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Logits,
    X,
    W,
}

/// The sum of the losses, times [`FACTOR`].
pub(super) struct CrossEntropy {
    rows: usize,
    hidden: usize,
    vocab: usize,
    of: Of,
    dtype: DType,
    purpose: Purpose,
}

const FACTOR: f32 = 0.25;

pub(super) fn all() -> Vec<CrossEntropy> {
    let (mut all, dtype) = (Vec::new(), DType::F32);
    for of in [Of::Logits, Of::X, Of::W] {
        for (rows, hidden, vocab) in [(1, 16, 1), (5, 8, 33), (9, 64, 1000), (3, 16, 2050)] {
            all.push(CrossEntropy { rows, hidden, vocab, of, dtype, purpose: Purpose::Test });
        }
    }
    // more than one chunk of rows
    all.push(CrossEntropy {
        rows: 250,
        hidden: 8,
        vocab: 100_000,
        of: Of::X,
        dtype,
        purpose: Purpose::Bench,
    });
    let (rows, hidden, vocab) = (1024, 2048, 151_936);
    for of in [Of::Logits, Of::X] {
        all.push(CrossEntropy { rows, hidden, vocab, of, dtype, purpose: Purpose::Bench });
    }
    all
}

impl CrossEntropy {
    fn logits(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        let rows = x.chunks_exact(self.hidden);
        rows.flat_map(|x| w.chunks_exact(self.hidden).map(|w| super::dot(x, w))).collect()
    }

    fn row_logits(&self, point: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        match self.of {
            Of::Logits => point.to_vec(),
            Of::X => self.logits(point, &arguments[1]),
            Of::W => self.logits(&arguments[0], point),
        }
    }

    /// The gradient with respect to the logits; a label out of range gives zeros.
    fn of_logits(&self, logits: &[f64], labels: &[f64]) -> Vec<f64> {
        let rows = logits.chunks_exact(self.vocab).zip(labels);
        rows.flat_map(|(x, &label)| {
            let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = x.iter().map(|x| (x - max).exp()).sum();
            let counts = if (label as usize) < self.vocab { f64::from(FACTOR) } else { 0.0 };
            let target = |c: usize| if c == label as usize { 1.0 } else { 0.0 };
            (0..x.len()).map(move |c| counts * ((x[c] - max).exp() / sum - target(c))).collect::<Vec<_>>()
        })
        .collect()
    }
}

impl Differentiable for CrossEntropy {
    fn about(&self) -> About {
        let of = match self.of {
            Of::Logits => "logits",
            Of::X => "x",
            Of::W => "w",
        };
        let sizes = format!("of={of},rows={},hidden={},vocab={}", self.rows, self.hidden, self.vocab);
        let shape = match self.of {
            Of::Logits => [self.rows, self.vocab],
            Of::X => [self.rows, self.hidden],
            Of::W => [self.vocab, self.hidden],
        };
        let gradient = (shape.into(), DType::F32);
        About {
            op: if self.of == Of::Logits { "cross_entropy" } else { "linear_cross_entropy" },
            sizes,
            dtype: self.dtype,
            purpose: self.purpose,
            gradient,
            tolerance: match self.of {
                Of::Logits => Tolerance::new(
                    1e-7,
                    4e-5,
                    "exp of a difference of up to 600, whose rounding is multiplied by it",
                ),
                // a logit is a sum whose partial sums grow with √hidden, so its rounding grows with hidden; a weight's relative
                // error is that
                _ => Tolerance::new(
                    4e-6 * (self.hidden as f64 / 64.0).max(1.0),
                    1e-5,
                    "a weighted mean of numbers about 1, with weights of the logits' error, which grows with their products",
                ),
            },
        }
    }

    /// One number, whose gradient is 1: dy is not used.
    fn forward_shape(&self) -> Shape {
        [1].into()
    }

    fn arguments(&self) -> Vec<HostTensor> {
        let (id, mut rng) = (self.sizes(), data::rng(&self.sizes(), "labels"));
        let labels = (0..self.rows).map(|_| rng.random_range(0..self.vocab + 1) as f32).collect();
        let labels = HostTensor::new([self.rows], DType::U32, labels);
        match self.of {
            Of::Logits => vec![data::outliers(&id, "logits", [self.rows, self.vocab], DType::F32), labels],
            _ => vec![
                data::normal(&id, "x", [self.rows, self.hidden], DType::F32),
                data::normal(&id, "w", [self.vocab, self.hidden], DType::F32),
                labels,
            ],
        }
    }

    fn run(&self, mut y: TensorMut, _: &Tensor, arguments: &[Tensor]) -> Result<()> {
        if self.of == Of::Logits {
            ops::copy_into(y.reborrow(), &arguments[0])?;
            let mut loss = Tensor::zeros([self.rows], DType::F32, &y.device())?;
            return ops::cross_entropy_into(loss.view_mut()?, y, &arguments[1], FACTOR);
        }
        let [x, w, labels] = arguments else { return Ok(()) };
        let found = ops::linear_cross_entropy(x, w, labels, FACTOR, self.of == Of::W)?;
        ops::copy_into(y, found.dw.as_ref().unwrap_or(&found.dx))
    }

    fn formula(&self, _: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let labels = &arguments[arguments.len() - 1];
        let g = self.of_logits(&self.row_logits(&self.point(arguments), arguments), labels);
        let mut sums = vec![0.0; self.point(arguments).len()];
        match self.of {
            Of::Logits => return g,
            Of::X => {
                for (sums, g) in sums.chunks_exact_mut(self.hidden).zip(g.chunks_exact(self.vocab)) {
                    for (g, w) in g.iter().zip(arguments[1].chunks_exact(self.hidden)) {
                        sums.iter_mut().zip(w).for_each(|(sum, w)| *sum += g * w);
                    }
                }
            }
            Of::W => {
                for (x, g) in arguments[0].chunks_exact(self.hidden).zip(g.chunks_exact(self.vocab)) {
                    for (g, sums) in g.iter().zip(sums.chunks_exact_mut(self.hidden)) {
                        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += g * x);
                    }
                }
            }
        }
        sums
    }

    fn formula_rows(&self, dy: &[f64], arguments: &[Vec<f64>], rows: &[usize]) -> Vec<f64> {
        let pick = |x: &[f64], cols: usize| -> Vec<f64> {
            rows.iter().flat_map(|r| x[r * cols..(r + 1) * cols].iter().copied()).collect()
        };
        // a row of logits or of x needs its own label alone
        let labels = || pick(&arguments[arguments.len() - 1], 1);
        match self.of {
            Of::Logits => self.formula(dy, &[pick(&arguments[0], self.vocab), labels()]),
            Of::X => self.formula(dy, &[pick(&arguments[0], self.hidden), arguments[1].clone(), labels()]),
            Of::W => pick(&self.formula(dy, arguments), self.hidden),
        }
    }

    fn point(&self, arguments: &[Vec<f64>]) -> Vec<f64> {
        arguments[usize::from(self.of == Of::W)].clone()
    }

    fn forward(&self, point: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let (logits, labels) = (self.row_logits(point, arguments), &arguments[arguments.len() - 1]);
        let rows = logits.chunks_exact(self.vocab).zip(labels);
        let counted = rows.filter(|(_, label)| (**label as usize) < self.vocab);
        let losses = counted.map(|(x, &label)| {
            let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            x.iter().map(|x| (x - max).exp()).sum::<f64>().ln() - (x[label as usize] - max)
        });
        vec![f64::from(FACTOR) * losses.sum::<f64>()]
    }

    fn flops(&self) -> f64 {
        let products = if self.of == Of::Logits { 0.0 } else { 4.0 * self.hidden as f64 };
        (self.rows * self.vocab) as f64 * (5.0 + products)
    }
}
