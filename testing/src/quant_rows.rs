//! Ops whose results are rows of 8-bit quants, which the next product reads.

use super::quant::{Weights, reference_row, reference_weights};
use super::{About, Case, HostTensor, Purpose, Tolerance, activate, data};
use pascaline::ops::{self, Activation, Epilogue};
use pascaline::quant::{FORMATS, Format, QuantRows, name};
use pascaline::{DType, Result, Shape, Tensor, TensorMut};
use rayon::prelude::*;

const EPS: f32 = 1e-6;

#[derive(Clone, Copy, PartialEq)]
enum Op {
    /// x / √(mean x² + eps) · weight
    RmsNorm,
    /// silu(gate)·up of x·wᵀ, with x quantised first.
    Gated(Format),
}

struct Rows {
    op: Op,
    m: usize,
    /// Columns of the result.
    cols: usize,
    /// Columns of x where they are others than the result's.
    k: usize,
    purpose: Purpose,
    weights: Weights,
    next: Weights,
}

/// Rows of the matrix that a bench multiplies the result with; a test reads the result itself.
const NEXT: usize = 2048;

impl Rows {
    fn out(&self) -> usize {
        if self.purpose == Purpose::Bench { NEXT } else { self.cols }
    }

    /// The largest magnitude that is expected in the result of normal values.
    fn largest(&self) -> f64 {
        match self.op {
            Op::RmsNorm => 16.0,                  // 4σ of x times 4σ of the weight
            Op::Gated(_) => 16.0 * self.k as f64, // the same of gate and up, each with a variance of k
        }
    }
}

impl Case for Rows {
    fn about(&self) -> About {
        let next = if self.purpose == Purpose::Bench { ",with=product" } else { "" };
        let Self { m, cols, k, .. } = self;
        let id = match self.op {
            Op::RmsNorm => format!("rms_norm_rows_f32/rows={m},cols={cols}{next}"),
            Op::Gated(format) => {
                format!("quant_gated_rows_{}_f32/m={m},n={},k={k}{next}", name(format), 2 * cols)
            }
        };
        let step = self.largest() / 127.0;
        let tolerance = match self.purpose {
            Purpose::Test => {
                Tolerance::new(step, 1e-5, "f32 sums; a value between two quants may become either: one step")
            }
            Purpose::Bench => Tolerance::new(
                3.0 * 4.5 * step,
                1e-4,
                "f32 sums; three values of a row may become the neighbouring quant, each times a weight of 4.5σ",
            ),
        };
        About {
            op: match self.op {
                Op::RmsNorm => "rms_norm_rows",
                Op::Gated(_) => "quant_gated_rows",
            },
            id,
            purpose: self.purpose,
            output: ([self.m, self.out()].into(), DType::F32),
            tolerance,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let make = |argument, shape: Shape| data::normal(&self.id(), argument, shape, DType::F32);
        let w = match self.op {
            Op::RmsNorm => [self.cols].into(),
            Op::Gated(_) => [2 * self.cols, self.k].into(),
        };
        let mut inputs = vec![make("x", [self.m, self.k].into()), make("w", w)];
        if self.purpose == Purpose::Bench {
            inputs.push(make("next", [NEXT, self.cols].into()));
        }
        inputs
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let (x, w) = (&inputs[0], &inputs[1]);
        let rows = match self.op {
            Op::RmsNorm => ops::rms_norm_rows(x, w, EPS)?,
            Op::Gated(format) => {
                ops::quant_gated_rows(&ops::quantize_rows(x)?, &self.weights.get(w, format)?)?
            }
        };
        match inputs.get(2) {
            Some(next) => {
                let next = self.next.get(next, Format::Q8_0)?;
                ops::quant_matmul_rows_into(y, &rows, &next, &Epilogue::default())
            }
            None => ops::copy_into(y, &values(&rows)?.to_device(&x.device())?),
        }
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let weights = match self.op {
            Op::RmsNorm => inputs[1].values.iter().map(|&w| f64::from(w)).collect(),
            Op::Gated(format) => reference_weights(&inputs[1], format),
        };
        let next = inputs.get(2).map(|next| reference_weights(next, Format::Q8_0));
        let mut y = Vec::with_capacity(rows.len() * self.out());
        for &r in rows {
            let x = inputs[0].row(r);
            let row: Vec<f32> = match self.op {
                Op::RmsNorm => {
                    let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
                    let scale = (squares / self.cols as f64 + f64::from(EPS)).sqrt().recip();
                    x.iter().zip(&weights).map(|(&x, w)| (f64::from(x) * scale * w) as f32).collect()
                }
                Op::Gated(_) => {
                    let x = reference_row(x);
                    let product = |row: usize| -> f64 {
                        let w = &weights[row * self.k..(row + 1) * self.k];
                        x.iter().zip(w).map(|(x, w)| x * w).sum()
                    };
                    let gated = |column: usize| {
                        let gate = activate::reference(product(column), Activation::SwiGlu);
                        (gate * product(self.cols + column)) as f32
                    };
                    (0..self.cols).into_par_iter().map(gated).collect()
                }
            };
            let quantized = reference_row(&row);
            match &next {
                None => y.extend(quantized),
                Some(next) => y.par_extend(
                    next.par_chunks_exact(self.cols)
                        .map(|w| quantized.iter().zip(w).map(|(x, w)| x * w).sum::<f64>()),
                ),
            }
        }
        y
    }

    fn flops(&self) -> f64 {
        let next =
            if self.purpose == Purpose::Bench { 2.0 * (self.m * self.cols * NEXT) as f64 } else { 0.0 };
        match self.op {
            Op::RmsNorm => 4.0 * (self.m * self.cols) as f64 + next,
            Op::Gated(_) => 4.0 * (self.m * self.cols * self.k) as f64 + next,
        }
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let (m, cols, k) = (self.m as f64, self.cols as f64, self.k as f64);
        match self.op {
            Op::RmsNorm => m * cols * 5.25,
            Op::Gated(_) => m * k * 4.0 + 2.0 * cols * k + m * cols * 1.25,
        }
    }

    fn compute_bound(&self) -> bool {
        self.purpose == Purpose::Bench
    }

    fn dp4a(&self) -> bool {
        self.purpose == Purpose::Bench
    }
}

/// The values that quantised rows stand for.
pub(crate) fn values(rows: &QuantRows) -> Result<Tensor> {
    let ((quants, scales), (m, cols)) = (rows.to_vecs()?, rows.shape().rows_cols());
    let k = quants.len() / m.max(1);
    let value = |at: usize| f32::from(quants[at]) * scales[at / 32].0;
    let values: Vec<f32> = (0..m).flat_map(|row| row * k..row * k + cols).map(value).collect();
    Tensor::from_slice(&values, [m, cols], &pascaline::Device::Cpu)
}

/// Every case of these ops.
pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    let mut add = |op, m, cols, k, purpose| {
        let (weights, next) = (Weights::default(), Weights::default());
        cases.push(Box::new(Rows { op, m, cols, k, purpose, weights, next }) as Box<dyn Case>);
    };
    for (m, cols) in [
        (0, 8),
        (3, 0),
        (1, 1),
        (2, 4),
        (3, 33),
        (4, 100),
        (5, 256),
        (3, 1028),
        (200, 2048),
        (2, 2052),
        (3, 8192),
        (2, 8196),
    ] {
        add(Op::RmsNorm, m, cols, cols, Purpose::Test);
    }
    add(Op::RmsNorm, 512, 2048, 2048, Purpose::Bench);
    for format in FORMATS {
        // the last three are one kernel on GPUs of up to 21, 26 and 142 multiprocessors, but for one or two last rows
        for (m, cols, k) in [
            (0, 8, 32),
            (3, 0, 32),
            (1, 1, 32),
            (5, 33, 96),
            (66, 250, 288),
            (100, 1200, 96),
            (130, 1500, 96),
            (257, 4000, 64),
        ] {
            add(Op::Gated(format), m, cols, k, Purpose::Test);
        }
    }
    for format in [Format::Q8_0, Format::Q4_0, Format::Q4K] {
        add(Op::Gated(format), 512, 6144, 2048, Purpose::Bench);
    }
    cases
}
