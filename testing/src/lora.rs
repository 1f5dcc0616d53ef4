//! Quantised matrices beside a low-rank change.

use super::held::Held;
use super::quant::{reference_row, reference_weights};
use super::quant_linear::{EPS, between_no_quants, normed};
use super::{About, Case, HostTensor, Purpose, Tolerance, activate, data};
use pascaline::ops::{Activation, Epilogue};
use pascaline::quant::{FORMATS, Format, QuantTensor, name};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

struct Product {
    m: usize,
    /// The shape of w: [n, k]
    n: usize,
    k: usize,
    rank: usize,
    format: Format,
    activation: Activation,
    /// Whether there is a bias and a residual.
    adds: bool,
    /// Whether x is normalised.
    norm: bool,
    purpose: Purpose,
    stored: Held<QuantTensor>,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut all = Vec::new();
    let mut add = |[m, n, k, rank]: [usize; 4], format, activation, (adds, norm), purpose| {
        let stored = Held::default();
        let case = Product { m, n, k, rank, format, activation, adds, norm, purpose, stored };
        all.push(Box::new(case) as Box<dyn Case>);
    };
    for format in FORMATS {
        let mut test = |shape, activation, adds| add(shape, format, activation, (adds, false), Purpose::Test);
        let none = Activation::Identity;
        // one launch: one row of w, ragged rows and ranks, a rank of more than a warp's lanes, x in two parts
        for shape in [[1, 1, 32, 1], [1, 33, 100, 5], [1, 70, 2080, 37], [1, 5, 8192 + 96, 3]] {
            test(shape, none, false);
        }
        test([1, 40, 512, 16], Activation::Silu, true);
        test([1, 34, 96, 2], Activation::SwiGlu, false);
        // three launches: rows that are no multiple of four values, a large rank, few and many rows
        for shape in
            [[1, 9, 1001, 2], [1, 3, 64, 513], [3, 20, 64, 5], [70, 40, 96, 4], [0, 5, 32, 2], [1, 0, 32, 2]]
        {
            test(shape, none, false);
        }
        test([2, 34, 96, 2], Activation::SwiGlu, true);
        // normalised rows, in one launch and in several
        let mut test = |shape, activation, adds| add(shape, format, activation, (adds, true), Purpose::Test);
        test([1, 33, 1096, 5], none, false);
        test([1, 40, 2080, 37], Activation::Silu, true);
        test([1, 134, 300, 16], Activation::SwiGlu, false);
        test([1, 34, 96, 2], Activation::SwiGlu, true);
        test([1, 5, 8196, 3], none, false);
        test([3, 34, 96, 2], Activation::SwiGlu, false);
    }
    for format in [Format::Q4_0, Format::Q8_0, Format::Q4K] {
        for shape in [[1, 2048, 2048, 16], [1, 4096, 2048, 48], [1, 12288, 2048, 32], [1, 2048, 6144, 16]] {
            add(shape, format, Activation::Identity, (false, false), Purpose::Bench);
        }
    }
    all
}

impl Product {
    fn columns(&self) -> usize {
        if self.activation == Activation::SwiGlu { self.n / 2 } else { self.n }
    }
}

impl Case for Product {
    fn about(&self) -> About {
        let Self { m, n, k, rank, .. } = *self;
        let activation = activate::name(self.activation);
        let adds = if self.adds { ",bias,residual" } else { "" };
        let norm = if self.norm { ",norm" } else { "" };
        let id =
            format!("quant_lora_{}/m={m},n={n},k={k},rank={rank}{norm}{activation}{adds}", name(self.format));
        let (k, blocks, rank) = (k as f64, (k / 32 + 1) as f64, rank as f64);
        let sums = 4.0 * (k * blocks).sqrt() + rank.sqrt() * (6.0 + 2.0 * k);
        // the product of two values has the error of each times the other
        let size = if self.activation == Activation::SwiGlu { (k * (1.0 + rank)).sqrt() * 4.0 } else { 1.0 };
        let tolerance = Tolerance::new(
            sums * size * f64::from(f32::EPSILON),
            2e-5,
            "f32 sums over the blocks of a row, over k and over the rank in any order, and exp in the activation",
        );
        About {
            op: "quant_lora",
            id,
            purpose: self.purpose,
            output: ([self.m, self.columns()].into(), DType::F32),
            tolerance,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, &Self { m, n, k, rank, .. }) = (self.id(), self);
        let make = |argument, shape: [usize; 2]| data::normal(&id, argument, shape, DType::F32);
        let [mut x, norm] = between_no_quants(&id, [m, k]);
        if !self.norm {
            x = make("x", [m, k]);
        }
        let mut inputs = vec![x, make("w", [n, k]), make("a", [rank, k]), make("b", [n, rank]), norm];
        if self.adds {
            inputs.push(data::normal(&id, "bias", [n], DType::F32));
            inputs.push(make("residual", [m, self.columns()]));
        }
        inputs
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [x, w, a, b, norm, adds @ ..] = inputs else { return Ok(()) };
        let epilogue = Epilogue { bias: adds.first(), activation: self.activation, residual: adds.get(1) };
        let product = |w: &QuantTensor| {
            ops::quant_lora_into(y, x, w, self.norm.then_some((norm, EPS)), [a, b], &epilogue)
        };
        self.stored.with(&w.device(), || ops::quantize(w, self.format), product)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [x, w, a, b, norm, adds @ ..] = inputs else { return Vec::new() };
        let w = reference_weights(w, self.format);
        let dot = |x: &[f64], row: &[f64]| x.iter().zip(row).map(|(x, w)| x * w).sum::<f64>();
        let exact = |row: &[f32]| row.iter().map(|&value| f64::from(value)).collect::<Vec<_>>();
        let mut y = Vec::with_capacity(rows.len() * self.columns());
        for &r in rows {
            let row = if self.norm { normed(x.row(r), &norm.values) } else { x.row(r).to_vec() };
            let (quantised, plain) = (reference_row(&row), exact(&row));
            let low: Vec<f64> = (0..self.rank).map(|row| dot(&plain, &exact(a.row(row)))).collect();
            let sum = |column: usize| {
                let bias = adds.first().map_or(0.0, |bias| f64::from(bias.values[column]));
                dot(&quantised, &w[column * self.k..][..self.k]) + dot(&low, &exact(b.row(column))) + bias
            };
            y.extend((0..self.columns()).map(|column| {
                let value = match self.activation {
                    Activation::SwiGlu => {
                        activate::reference(sum(column), Activation::Silu) * sum(column + self.n / 2)
                    }
                    other => activate::reference(sum(column), other),
                };
                value + adds.get(1).map_or(0.0, |residual| f64::from(residual.row(r)[column]))
            }));
        }
        y
    }

    fn flops(&self) -> f64 {
        2.0 * (self.m * (self.n * self.k + self.rank * (self.n + self.k))) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let Self { m, n, k, rank, format, .. } = *self;
        let w = QuantTensor::part_bytes(format, [n, k]).map_or(0, |parts| parts.iter().sum());
        (w + 4 * (rank * (n + k) + m * (n + k))) as f64
    }

    fn dp4a(&self) -> bool {
        true
    }
}
