//! Linear maps with their prologues and epilogues.

use super::{About, Case, HostTensor, Purpose, Tolerance, activate, data};
use pascaline::ops::{self, Activation, Epilogue};
use pascaline::{DType, Result, Tensor, TensorMut};
use rayon::prelude::*;

const EPS: f32 = 1e-6;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct With {
    norm: bool,
    bias: bool,
    activation: Activation,
    residual: bool,
}

#[derive(Clone)]
struct Linear {
    m: usize,
    /// Rows of w.
    n: usize,
    k: usize,
    /// The types of x and y, and of w.
    dtypes: (DType, DType),
    with: With,
    purpose: Purpose,
}

const TYPES: [(DType, DType); 3] =
    [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::F32, DType::F16)];

/// The linear maps of a transformer block.
const NORM: With = With { norm: true, bias: false, activation: Activation::Identity, residual: false };
const GATE: With = With { activation: Activation::SwiGlu, ..NORM };
const RESIDUAL: With = With { norm: false, residual: true, ..NORM };
const FC1: With = With { norm: false, bias: true, activation: Activation::GeluTanh, residual: false };
const FC2: With = With { bias: true, ..RESIDUAL };

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Linear> = Vec::new();
    for dtypes in TYPES {
        let mut add = |[m, n, k]: [usize; 3], with| {
            cases.push(Linear { m, n, k, dtypes, with, purpose: Purpose::Test });
        };
        // all options at once, and each alone, for every number of rows that has kernels of its own
        for m in [1, 3, 8, 9] {
            for activation in activate::ACTIVATIONS {
                add([m, 38, 264], With { norm: true, bias: true, activation, residual: true });
            }
            for with in [NORM, GATE, RESIDUAL, FC1, FC2] {
                add([m, 34, 1032], with);
            }
        }
        // edges: nothing, one, unaligned, short and long rows
        for [m, n, k] in [
            [0, 4, 8],
            [2, 0, 8],
            [2, 6, 0],
            [1, 2, 1],
            [1, 30, 7],
            [2, 66, 33],
            [7, 130, 515],
            [1, 4, 4096],
            [1, 2, 9001],
            [1, 262, 520],
            [40, 72, 64],
            [33, 30, 37],
        ] {
            add([m, n, k], With { norm: true, bias: true, activation: Activation::SwiGlu, residual: true });
            add([m, n, k], FC2);
        }
        add([1, 5, 300], With { bias: true, ..NORM });
        // one column: the same as a row of the transposed product, but for the norm's rows
        add([4, 1, 264], NORM);
        add([4, 1, 264], RESIDUAL);
    }
    let bench = |m, n, k, dtypes, with| Linear { m, n, k, dtypes, with, purpose: Purpose::Bench };
    for dtypes in [TYPES[0], TYPES[2]] {
        // a token through a block of the 2B model
        cases.push(bench(1, 4096, 2048, dtypes, NORM));
        cases.push(bench(1, 2048, 2048, dtypes, RESIDUAL));
        cases.push(bench(1, 12288, 2048, dtypes, GATE));
        cases.push(bench(1, 2048, 6144, dtypes, RESIDUAL));
        // a picture's patches
        cases.push(bench(4096, 4096, 1024, dtypes, FC1));
        cases.push(bench(4096, 1024, 4096, dtypes, FC2));
    }
    cases.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect()
}

impl Linear {
    fn columns(&self) -> usize {
        if self.with.activation == Activation::SwiGlu { self.n / 2 } else { self.n }
    }
}

impl Case for Linear {
    fn about(&self) -> About {
        let types = match self.dtypes {
            (x, w) if x == w => x.to_string(),
            _ => "mixed".into(),
        };
        let named = |on: bool, name: &'static str| if on { name } else { "" };
        let (Self { m, n, k, .. }, with) = (self, self.with);
        let id = format!(
            "linear_{types}/m={m},n={n},k={k}{}{}{}{}",
            named(with.norm, ",norm"),
            named(with.bias, ",bias"),
            activate::name(with.activation),
            named(with.residual, ",residual")
        );
        // Products of the data are 12/√k at most and normal ones 1/√k; their sum is of size 1, and k roundings of half an
        // ulp of it add up to about √k ulp in any order. Gates multiply two such sums of up to 8.
        let sums = f64::from(f32::EPSILON) * (16.0 + 2.0 * (self.k as f64).sqrt()) * 8.0;
        let tolerance = match self.dtypes.0 {
            DType::F32 => Tolerance::new(sums, 4e-6, "f32 sums in any order, through an activation"),
            // the norm's result, the product, the activation and the sum with the residual: where they are passes of
            // their own, each is rounded to f16; a normed x is below 5, of which k roundings reach the sum
            _ => Tolerance::new(sums + 5e-3, 4e-3, "up to four roundings to f16"),
        };
        About {
            op: "linear",
            id,
            purpose: self.purpose,
            output: ([self.m, self.columns()].into(), self.dtypes.0),
            tolerance,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, (dtype, dtype_w)) = (self.id(), self.dtypes);
        let mut w = data::normal(&id, "w", [self.n, self.k], dtype_w);
        // scaled like trained weights: sums stay near 1, where activations are not linear
        w.values.iter_mut().for_each(|w| *w /= (self.k as f32).sqrt());
        vec![
            data::normal(&id, "x", [self.m, self.k], dtype),
            HostTensor::new(w.shape, dtype_w, w.values),
            data::normal(&id, "norm", [self.k], dtype),
            data::normal(&id, "bias", [self.n], dtype),
            data::normal(&id, "residual", [self.m, self.columns()], dtype),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [x, w, norm, bias, residual] = inputs else { unreachable!("five inputs") };
        let With { activation, .. } = self.with;
        let bias = self.with.bias.then_some(bias);
        let residual = self.with.residual.then_some(residual);
        let norm = self.with.norm.then_some((norm, EPS));
        ops::linear_into(y, x, w, norm, &Epilogue { bias, activation, residual })
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [x, w, norm, bias, residual] = inputs else { unreachable!("five inputs") };
        let mut y = Vec::with_capacity(rows.len() * self.columns());
        for &r in rows {
            let mut x: Vec<f64> = x.row(r).iter().copied().map(f64::from).collect();
            if self.with.norm {
                let squares: f64 = x.iter().map(|x| x * x).sum();
                let scale = 1.0 / (squares / self.k as f64 + f64::from(EPS)).sqrt();
                x.iter_mut().zip(&norm.values).for_each(|(x, &weight)| *x *= scale * f64::from(weight));
            }
            let biased = |c: usize| -> f64 {
                let w = &w.values[c * self.k..(c + 1) * self.k];
                let sum: f64 = x.iter().zip(w).map(|(x, &w)| x * f64::from(w)).sum();
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
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let (size, size_w) = (self.dtypes.0.size(), self.dtypes.1.size());
        let outputs = self.columns() * if self.with.residual { 2 } else { 1 };
        (self.n * self.k * size_w + self.m * (self.k + outputs) * size) as f64
    }

    fn compute_bound(&self) -> bool {
        self.m > 8
    }
}
