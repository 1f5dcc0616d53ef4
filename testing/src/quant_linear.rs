//! Linear maps of quantised matrices, with their prologues and epilogues.
//!
//! Activations that lie between two quants may become either. So the data has none: a block's largest normalised value is 127 times a
//! number, and all others are whole multiples of it.

use super::quant::{Weights, reference_row, reference_weights};
use super::{About, Case, HostTensor, Purpose, Tolerance, activate, data};
use pascaline::ops::{self, Activation, Epilogue};
use pascaline::quant::{FORMATS, Format, QuantTensor, name};
use pascaline::{DType, Result, Tensor, TensorMut};
use rayon::prelude::*;

pub(super) const EPS: f32 = 1e-6;

#[derive(Clone, Copy)]
struct With {
    norm: bool,
    bias: bool,
    activation: Activation,
    residual: bool,
}

const NORM: With = With { norm: true, bias: false, activation: Activation::Identity, residual: false };
const GATE: With = With { activation: Activation::SwiGlu, ..NORM };

struct Linear {
    m: usize,
    /// Rows of w.
    n: usize,
    k: usize,
    format: Format,
    with: With,
    purpose: Purpose,
    weights: Weights,
}

/// Rows x [m, k] and the weight [k] of their norm.
pub(super) fn between_no_quants(id: &str, [m, k]: [usize; 2]) -> [HostTensor; 2] {
    let mut x = data::small_integers(id, "x", [m, k], DType::F32);
    x.values.iter_mut().for_each(|x| *x *= 7.0);
    for row in x.values.chunks_mut(k.max(1)) {
        row.iter_mut().step_by(32).for_each(|x| *x = 127.0);
    }
    // 1 for the largest of a block; up to four for the others, which are at most 28
    let mut norm = data::small_integers(id, "norm", [k], DType::F32);
    for (i, weight) in norm.values.iter_mut().enumerate() {
        let sign = if *weight < 0.0 { -1.0 } else { 1.0 };
        let own = if i % 32 == 0 { 1.0 } else { sign * (1.0 + weight.abs() % 4.0) };
        *weight = own * (1.0 + (i / 32 % 3) as f32 / 2.0);
    }
    [x, norm]
}

/// A row's RMS norm, rounded to f32.
pub(super) fn normed(row: &[f32], weight: &[f32]) -> Vec<f32> {
    let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
    let scale = (squares / row.len() as f64 + f64::from(EPS)).sqrt().recip();
    row.iter().zip(weight).map(|(&x, &weight)| (f64::from(x) * scale * f64::from(weight)) as f32).collect()
}

/// Every case of the op.
pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    let mut add = |[m, n, k]: [usize; 3], format, with, purpose| {
        cases
            .push(Box::new(Linear { m, n, k, format, with, purpose, weights: Weights::default() })
                as Box<dyn Case>);
    };
    for format in FORMATS {
        let mut test = |shape, with| add(shape, format, with, Purpose::Test);
        test([1, 70, 1032], GATE);
        test([1, 66, 300], With { bias: true, activation: Activation::Silu, residual: true, ..NORM });
        test([1, 34, 2080], With { residual: true, ..GATE });
        // two rows, of formats without super-blocks by a kernel of their own; and three
        for m in [2, 3] {
            test([m, 70, 1032], GATE);
            test([m, 67, 300], With { bias: true, activation: Activation::Silu, residual: true, ..NORM });
        }
        if !matches!(format, Format::I8 | Format::Q4_0 | Format::Q4K | Format::Q6K) {
            continue;
        }
        for activation in activate::ACTIVATIONS {
            for m in [1, 3] {
                test([m, 38, 264], With { norm: true, bias: true, activation, residual: true });
            }
        }
        // nothing, one, unaligned; rows of which each block has several, and rows as long as the norm's kernels have and longer
        for [n, k] in [[0, 32], [2, 1], [6, 37], [17000, 64], [34, 4096], [10, 8192], [6, 8196]] {
            for m in [1, 2] {
                for with in [NORM, GATE, With { norm: false, ..GATE }] {
                    test([m, n, k], with);
                }
            }
        }
    }
    for format in [Format::Q4_0, Format::Q8_0, Format::Q4K] {
        // a token through a block of the 2B model, and the same without norm; two tokens through its gates
        for norm in [true, false] {
            add([1, 4096, 2048], format, With { norm, ..NORM }, Purpose::Bench);
            add([1, 12288, 2048], format, With { norm, ..NORM }, Purpose::Bench);
            for m in [1, 2] {
                add([m, 12288, 2048], format, With { norm, ..GATE }, Purpose::Bench);
            }
        }
    }
    cases
}

impl Linear {
    fn columns(&self) -> usize {
        if self.with.activation == Activation::SwiGlu { self.n / 2 } else { self.n }
    }
}

impl Case for Linear {
    fn about(&self) -> About {
        let named = |on: bool, name: &'static str| if on { name } else { "" };
        let (Self { m, n, k, .. }, with) = (self, self.with);
        let id = format!(
            "quant_linear_{}/m={m},n={n},k={k}{}{}{}{}",
            name(self.format),
            named(with.norm, ",norm"),
            named(with.bias, ",bias"),
            activate::name(with.activation),
            named(with.residual, ",residual")
        );
        // sums are of about size 4: gates and ups of up to 16 are multiplied
        let sums = f64::from(f32::EPSILON) * (16.0 + 2.0 * (self.k as f64).sqrt()) * 16.0;
        About {
            op: "quant_linear",
            id,
            purpose: self.purpose,
            output: ([self.m, self.columns()].into(), DType::F32),
            tolerance: Tolerance::new(sums, 4e-6, "f32 sums over the blocks of a row, through an activation"),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, [m, n, k]) = (self.id(), [self.m, self.n, self.k]);
        let [mut x, norm] = between_no_quants(&id, [m, k]);
        if !self.with.norm {
            x.values.iter_mut().for_each(|x| *x /= 32.0);
        }
        let mut w = data::normal(&id, "w", [n, k], DType::F32);
        w.values.iter_mut().for_each(|w| *w /= (k as f32).sqrt());
        vec![
            x,
            HostTensor::new(w.shape, DType::F32, w.values),
            norm,
            data::normal(&id, "bias", [n], DType::F32),
            data::normal(&id, "residual", [m, self.columns()], DType::F32),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [x, w, norm, bias, residual] = inputs else { unreachable!("five inputs") };
        let With { activation, .. } = self.with;
        let bias = self.with.bias.then_some(bias);
        let residual = self.with.residual.then_some(residual);
        let norm = self.with.norm.then_some((norm, EPS));
        let w = self.weights.get(w, self.format)?;
        ops::quant_linear_into(y, x, &w, norm, &Epilogue { bias, activation, residual })
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [x, w, norm, bias, residual] = inputs else { unreachable!("five inputs") };
        let weights = reference_weights(w, self.format);
        let mut y = Vec::with_capacity(rows.len() * self.columns());
        for &r in rows {
            let row = if self.with.norm { normed(x.row(r), &norm.values) } else { x.row(r).to_vec() };
            let row = reference_row(&row);
            let biased = |c: usize| -> f64 {
                let w = &weights[c * self.k..(c + 1) * self.k];
                let sum: f64 = row.iter().zip(w).map(|(x, w)| x * w).sum();
                sum + if self.with.bias { f64::from(bias.values[c]) } else { 0.0 }
            };
            y.par_extend((0..self.columns()).into_par_iter().map(|c| {
                let mut value = activate::reference(biased(c), self.with.activation);
                if self.with.activation == Activation::SwiGlu {
                    value *= biased(self.columns() + c);
                }
                value + if self.with.residual { f64::from(residual.row(r)[c]) } else { 0.0 }
            }));
        }
        y
    }

    fn flops(&self) -> f64 {
        2.0 * (self.m * self.n * self.k) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let w = QuantTensor::part_bytes(self.format, [self.n, self.k]).map_or(0, |parts| parts.iter().sum());
        (w + 4 * self.m * (self.k + self.columns())) as f64
    }

    fn compute_bound(&self) -> bool {
        self.m > 64
    }

    fn dp4a(&self) -> bool {
        true
    }
}
