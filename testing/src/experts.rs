//! Mixture of experts: the choice, and products with experts' matrices, summed by weights.

use super::quant::{Weights, reference_row, reference_weights};
use super::quant_rows::values;
use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::ops::{ExpertRows, Routes};
use pascaline::quant::{FORMATS, Format, QuantTensor, name};
use pascaline::{DType, Result, Tensor, TensorMut, ops};
use rand::Rng;

/// The weights of all experts, zero where a token does not have one: [m, experts].
struct Route {
    m: usize,
    experts: usize,
    k: usize,
    top_k: usize,
    dtype: DType,
    /// Whether several experts have the same logits.
    ties: bool,
}

impl Case for Route {
    fn about(&self) -> About {
        let Self { m, experts, k, top_k, dtype, ties } = self;
        let ties = if *ties { ",data=ties" } else { "" };
        About {
            op: "experts_route",
            id: format!("experts_route_{dtype}/m={m},experts={experts},k={k},top_k={top_k}{ties}"),
            purpose: Purpose::Test,
            output: ([self.m, self.experts].into(), DType::F32),
            tolerance: Tolerance::new(
                1e-6,
                2e-5,
                "exp by the hardware, to 2 ulp of a power of two, of sums of k products of up to ±1 in f32",
            ),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        if !self.ties {
            let mut x = data::normal(&id, "x", [self.m, self.k], DType::F32);
            // logits of about ±1, far apart from each other compared with their error
            x.values.iter_mut().for_each(|x| *x /= (self.k as f32).sqrt());
            return vec![x, data::normal(&id, "gate", [self.experts, self.k], self.dtype)];
        }
        let x = data::small_integers(&id, "x", [self.m, self.k], DType::F32);
        let mut gate = data::small_integers(&id, "gate", [self.experts, self.k], self.dtype);
        for expert in 2..self.experts {
            let same = (expert % 2) * self.k;
            gate.values.copy_within(same..same + self.k, expert * self.k);
        }
        vec![x, gate]
    }

    fn run(&self, mut y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let (ids, weights) = ops::route(&inputs[0], &inputs[1], self.top_k, true)?.to_vecs()?;
        let mut all = vec![0.0f32; self.m * self.experts];
        for (pair, (id, weight)) in ids.into_iter().zip(weights).enumerate() {
            all[pair / self.top_k * self.experts + id as usize] += weight;
        }
        let all = Tensor::from_slice(&all, [self.m, self.experts], &inputs[0].device())?;
        ops::copy_into(y.reborrow(), &all)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let mut y = Vec::new();
        for &row in rows {
            let dot = |expert: usize| -> f64 {
                let pairs = inputs[0].row(row).iter().zip(inputs[1].row(expert));
                pairs.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum()
            };
            let logits: Vec<f64> = (0..self.experts).map(dot).collect();
            let mut order: Vec<usize> = (0..self.experts).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a])); // stable: the lower first
            order.truncate(self.top_k);
            let total: f64 = order.iter().map(|&e| (logits[e] - logits[order[0]]).exp()).sum();
            let weight = |e: usize| (logits[e] - logits[order[0]]).exp() / total;
            y.extend((0..self.experts).map(|e| if order.contains(&e) { weight(e) } else { 0.0 }));
        }
        y
    }
}

/// Which experts tokens have.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Choice {
    Normal,
    /// The lower half alone, so that the others have no tokens.
    Half,
    /// The first `top_k`, in the order of their numbers.
    First,
}

/// `top_k` different experts of each token, and normal numbers for their weights: [m, top_k] each.
fn choices(id: &str, [m, experts, top_k]: [usize; 3], choice: Choice) -> (HostTensor, HostTensor) {
    let mut rng = data::rng(id, "ids");
    let from = if choice == Choice::Half { (experts / 2).max(top_k) } else { experts };
    let mut ids = Vec::new();
    for _ in 0..m {
        let mut all: Vec<usize> = (0..from).collect();
        for at in 0..top_k {
            if choice != Choice::First {
                let other = rng.random_range(at..from);
                all.swap(at, other);
            }
            ids.push(all[at] as f32);
        }
    }
    let weights = data::normal(id, "weights", [m, top_k], DType::F32);
    (HostTensor::new([m, top_k], DType::U32, ids), weights)
}

/// Σ weight · x·wᵀ over each token's experts: [m, n].
struct Product {
    m: usize,
    experts: usize,
    n: usize,
    k: usize,
    top_k: usize,
    /// `None`: f32 or f16, as `dtype` says.
    format: Option<Format>,
    dtype: DType,
    choice: Choice,
    purpose: Purpose,
    weights: Weights,
}

impl Product {
    fn stored(&self) -> String {
        self.format.map_or_else(|| self.dtype.to_string(), |format| name(format).to_owned())
    }
}

impl Case for Product {
    fn about(&self) -> About {
        let Self { m, experts, n, k, top_k, .. } = self;
        let data = data::label(self.choice);
        let id = format!(
            "experts_linear_{}/m={m},experts={experts},n={n},k={k},top_k={top_k}{data}",
            self.stored()
        );
        let (terms, blocks) = (self.k as f64, (self.k / 32 + 1) as f64);
        let tolerance = match self.format {
            None => Tolerance::new(
                4.0 * f64::from(f32::EPSILON) * (terms * terms.sqrt()).sqrt(),
                2e-6,
                "f32 sums of k products of about 1, and of a token's experts",
            ),
            Some(_) => Tolerance::new(
                4.0 * f64::from(f32::EPSILON) * (terms * blocks).sqrt(),
                2e-5,
                "f32 sums over the blocks of a row, and of a token's experts",
            ),
        };
        About {
            op: "experts_linear",
            id,
            purpose: self.purpose,
            output: ([self.m, self.n].into(), DType::F32),
            tolerance,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let (ids, mut weights) = choices(&id, [self.m, self.experts, self.top_k], self.choice);
        weights.values.iter_mut().for_each(|weight| *weight = weight.abs() / self.top_k as f32);
        let dtype = if self.format.is_some() { DType::F32 } else { self.dtype };
        vec![
            data::normal(&id, "x", [self.m, self.k], DType::F32),
            data::normal(&id, "w", [self.experts * self.n, self.k], dtype),
            ids,
            weights,
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let (ids, weights) = (inputs[2].to_vec::<u32>()?, inputs[3].to_vec::<f32>()?);
        let routes = Routes::from_slices(&ids, &weights, self.top_k, self.experts, &inputs[0].device())?;
        let x = ExpertRows::Tokens(&inputs[0]);
        let products = match self.format {
            None => ops::experts_linear(x, &inputs[1], &routes)?,
            Some(format) => ops::quant_experts_linear(x, &self.weights.get(&inputs[1], format)?, &routes)?,
        };
        ops::experts_sum_into(y, &products, &routes, None)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let Self { n, k, top_k, .. } = *self;
        let w: Vec<f64> = match self.format {
            None => inputs[1].values.iter().copied().map(f64::from).collect(),
            Some(format) => reference_weights(&inputs[1], format),
        };
        let mut y = Vec::new();
        for &row in rows {
            let x = match self.format {
                None => inputs[0].row(row).iter().copied().map(f64::from).collect(),
                Some(_) => reference_row(inputs[0].row(row)),
            };
            y.extend((0..n).map(|column| -> f64 {
                let of = |j: usize| -> f64 {
                    let at = (inputs[2].row(row)[j] as usize * n + column) * k;
                    let product: f64 = x.iter().zip(&w[at..at + k]).map(|(x, w)| x * w).sum();
                    product * f64::from(inputs[3].row(row)[j])
                };
                (0..top_k).map(of).sum()
            }));
        }
        y
    }

    fn flops(&self) -> f64 {
        2.0 * (self.m * self.top_k * self.n * self.k) as f64
    }

    /// Each expert that has tokens is read once.
    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let Self { m, experts, n, k, top_k, .. } = *self;
        let w = match self.format {
            None => n * k * self.dtype.size(),
            Some(format) => QuantTensor::part_bytes(format, [n, k]).map_or(0, |parts| parts.iter().sum()),
        };
        (experts.min(m * top_k) * w + 4 * m * k + 4 * m * n) as f64
    }

    fn compute_bound(&self) -> bool {
        self.m > 64
    }

    fn dp4a(&self) -> bool {
        self.format.is_some()
    }
}

/// Σ weight · silu(gate)·up over each token's experts, each row quantised: [m, n].
struct Gated {
    m: usize,
    experts: usize,
    n: usize,
    k: usize,
    top_k: usize,
    formats: [Format; 2],
    gate: Weights,
    up: Weights,
}

impl Case for Gated {
    fn about(&self) -> About {
        let Self { m, experts, n, k, top_k, .. } = self;
        let [gate, up] = self.formats.map(name);
        let up = if gate == up { String::new() } else { format!(",up={up}") };
        let step = 16.0 * self.k as f64 / 127.0;
        About {
            op: "quant_experts_gated",
            id: format!("quant_experts_gated_{gate}/m={m},experts={experts},n={n},k={k},top_k={top_k}{up}"),
            purpose: Purpose::Test,
            output: ([self.m, self.n].into(), DType::F32),
            tolerance: Tolerance::new(
                step,
                1e-5,
                "f32 sums; a value between two quants may become either: one step of 4σ of gate times 4σ of up, each with a variance \
                 of k, for all experts, whose weights are 1 together at most",
            ),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let (ids, mut weights) = choices(&id, [self.m, self.experts, self.top_k], Choice::Normal);
        weights.values.iter_mut().for_each(|weight| *weight = weight.abs().min(1.0) / self.top_k as f32);
        let matrix = |name| data::normal(&id, name, [self.experts * self.n, self.k], DType::F32);
        let x = data::normal(&id, "x", [self.m, self.k], DType::F32);
        vec![x, matrix("gate"), matrix("up"), ids, weights]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let (ids, weights) = (inputs[3].to_vec::<u32>()?, inputs[4].to_vec::<f32>()?);
        let routes = Routes::from_slices(&ids, &weights, self.top_k, self.experts, &inputs[0].device())?;
        let gate = self.gate.get(&inputs[1], self.formats[0])?;
        let up = self.up.get(&inputs[2], self.formats[1])?;
        let rows = ops::quant_experts_gated(&inputs[0], &gate, &up, &routes)?;
        ops::experts_sum_into(y, &values(&rows)?.to_device(&inputs[0].device())?, &routes, None)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let Self { n, k, top_k, .. } = *self;
        let matrices = [1, 2].map(|input| reference_weights(&inputs[input], self.formats[input - 1]));
        let mut y = Vec::new();
        for &row in rows {
            let x = reference_row(inputs[0].row(row));
            let mut sums = vec![0.0; n];
            for j in 0..top_k {
                let expert = inputs[3].row(row)[j] as usize;
                let inner: Vec<f32> = (0..n)
                    .map(|column| {
                        let at = (expert * n + column) * k;
                        let [gate, up] = matrices
                            .each_ref()
                            .map(|w| -> f64 { x.iter().zip(&w[at..at + k]).map(|(x, w)| x * w).sum() });
                        (gate / (1.0 + (-gate).exp()) * up) as f32
                    })
                    .collect();
                let weight = f64::from(inputs[4].row(row)[j]);
                sums.iter_mut().zip(reference_row(&inner)).for_each(|(sum, value)| *sum += weight * value);
            }
            y.extend(sums);
        }
        y
    }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for (m, experts, k, top_k) in [
            (0, 3, 8, 1),
            (1, 1, 1, 1),
            (1, 128, 64, 8),
            (3, 7, 33, 7),
            (16, 33, 40, 5),
            (17, 65, 36, 2),
            (40, 5, 7, 1),
        ] {
            cases.push(Box::new(Route { m, experts, k, top_k, dtype, ties: false }));
        }
        cases.push(Box::new(Route { m: 5, experts: 70, k: 4, top_k: 40, dtype, ties: true }));
        cases.push(Box::new(Route { m: 19, experts: 9, k: 4, top_k: 3, dtype, ties: true }));
    }
    let mut add = |[m, experts, n, k, top_k]: [usize; 5], (format, dtype), choice, purpose| {
        let weights = Weights::default();
        cases.push(Box::new(Product { m, experts, n, k, top_k, format, dtype, choice, purpose, weights }));
    };
    let plain = [DType::F32, DType::F16].map(|dtype| (None, dtype));
    let quantized = FORMATS.map(|format| (Some(format), DType::F32));
    for stored in plain.into_iter().chain(quantized) {
        for (shape, choice) in [
            ([0, 3, 5, 32, 2], Choice::Normal),
            ([1, 7, 33, 40, 3], Choice::Normal),
            ([1, 5, 8, 27, 5], Choice::First), // all of them, and rows that are not aligned
            ([16, 11, 37, 64, 2], Choice::Half),
            ([17, 11, 37, 64, 2], Choice::Half),   // sorted
            ([70, 3, 66, 96, 1], Choice::First), // all tokens have one: tiles of 32 or 64 rows, and a last one
            ([130, 3, 65, 36, 2], Choice::Normal), // more rows of each than a tile has
            ([18, 35, 40, 29, 3], Choice::Normal), // fewer rows than experts
            ([40, 2, 64, 160, 2], Choice::Normal),
        ] {
            add(shape, stored, choice, Purpose::Test);
        }
    }
    for format in [Format::Q8_0, Format::Q4_0, Format::Q4K, Format::Q6K] {
        for m in [1, 4, 16, 512, 2048] {
            for [n, k] in [[768, 2048], [2048, 768]] {
                add([m, 128, n, k, 8], (Some(format), DType::F32), Choice::Normal, Purpose::Bench);
            }
        }
    }
    let mut add_gated = |[m, experts, n, k, top_k]: [usize; 5], formats| {
        let (gate, up) = Default::default();
        cases.push(Box::new(Gated { m, experts, n, k, top_k, formats, gate, up }));
    };
    for format in FORMATS {
        for shape in [
            [0, 3, 8, 32, 2],
            [2, 3, 40, 33, 2],   // few tokens: not sorted
            [17, 7, 33, 40, 3], // fewer rows of an expert than a step of the tile, a last block of one column
            [90, 3, 31, 64, 1], // less than a block, two or three steps
            [150, 2, 70, 96, 2], // several tiles of an expert
        ] {
            add_gated(shape, [format; 2]);
        }
    }
    add_gated([40, 5, 32, 64, 2], [Format::Q8_0, Format::Q6K]); // not in one pass
    cases
}
