//! Fused projections, split into queries and a cache.

use super::float16::nearest;
use super::kv::{fill, read, types};
use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::float16::Overflow;
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::ops::{self, HeadNorms};
use pascaline::{DType, Result, Tensor, TensorMut};

pub(super) const EPS: f32 = 1e-6;
/// The contents of the caches before the op.
pub(super) const BEFORE: f32 = 77.0;
/// Rows after each cache, which the op must not write.
const SPARE: usize = 2;

struct Append {
    rows: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    norms: bool,
    /// The type of qkv and q.
    dtype: DType,
    /// The format of the caches.
    format: KvFormat,
    /// Rows of the caches, and how many are in use before the op.
    capacity: usize,
    past: usize,
    /// Rows of the tables of angles, and the one that the first row uses.
    angles: usize,
    first: usize,
    /// Whether each row is given its own slot and angle; they are those of the rows in reverse.
    each: bool,
    purpose: Purpose,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Append> = Vec::new();
    for (dtype, format) in types() {
        let case = |rows, (heads, kv_heads), dim, norms| Append {
            rows,
            heads,
            kv_heads,
            dim,
            norms,
            dtype,
            format,
            capacity: rows + 5,
            past: 3,
            angles: rows + 2,
            first: 1,
            each: false,
            purpose: Purpose::Test,
        };
        for norms in [false, true] {
            for dim in [2, 6, 64, 66, 128, 194, 256] {
                cases.push(case(3, (4, 2), dim, norms));
            }
            cases.push(case(1, (16, 4), 128, norms));
            cases.push(case(7, (3, 3), 72, norms));
        }
        for (rows, heads, dim) in [(0, (2, 1), 8), (2, (0, 1), 8), (2, (2, 0), 8), (2, (2, 1), 0)] {
            cases.push(case(rows, heads, dim, true));
        }
        for (rows, heads, dim) in [(1, (4, 2), 128), (5, (4, 2), 66), (7, (3, 3), 72), (0, (2, 1), 8)] {
            cases.push(Append { each: true, ..case(rows, heads, dim, true) });
        }
        cases.push(Append { each: true, past: 6, angles: 2, ..case(4, (2, 1), 32, false) });
        // more rows than slots and angles: a row without a slot is dropped
        cases.push(Append { past: 6, angles: 2, ..case(4, (2, 1), 32, true) });
        cases.push(Append { past: u32::MAX as usize >> 8, first: 9, ..case(2, (2, 2), 32, true) });
        let bench = |rows, past| Append {
            purpose: Purpose::Bench,
            capacity: past + rows,
            past,
            ..case(rows, (16, 8), 128, true)
        };
        cases.extend([bench(1, 1400), bench(1024, 0)]);
    }
    cases.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect()
}

impl Append {
    fn all_heads(&self) -> usize {
        self.heads + 2 * self.kv_heads
    }

    /// The index of row `row` in the order of the cache.
    fn order(&self, row: usize) -> usize {
        if self.each { self.rows - 1 - row } else { row }
    }

    /// Rows of the output for q and for each cache. A bench has q alone, so that only the op is timed.
    fn parts(&self) -> [usize; 3] {
        let cache = if self.purpose == Purpose::Bench { 0 } else { (self.capacity + SPARE) * self.kv_heads };
        [self.rows * self.heads, cache, cache]
    }

    /// Head `head` of row `row` by the definition.
    fn head(&self, inputs: &[HostTensor], row: usize, head: usize) -> Vec<f64> {
        let x = inputs[0].row(row * self.all_heads() + head);
        if head >= self.heads + self.kv_heads {
            return x.iter().copied().map(f64::from).collect();
        }
        let weight = &inputs[if head < self.heads { 3 } else { 4 }].values;
        let angle = (self.first + self.order(row)).min(self.angles - 1);
        rotated(x, self.norms.then_some(weight), [inputs[1].row(angle), inputs[2].row(angle)])
    }
}

/// A head of q or k, normalised if there is a weight, and rotated, by the definition.
pub(super) fn rotated(x: &[f32], weight: Option<&Vec<f32>>, [cos, sin]: [&[f32]; 2]) -> Vec<f64> {
    let mut x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    if let Some(weight) = weight {
        let squares: f64 = x.iter().map(|x| x * x).sum();
        let scale = 1.0 / (squares / x.len() as f64 + f64::from(EPS)).sqrt();
        x.iter_mut().zip(weight).for_each(|(x, &weight)| *x *= scale * f64::from(weight));
    }
    let half = x.len() / 2;
    let rotated = |i: usize| {
        let (low, high) = (x[i % half], x[i % half + half]);
        let (cos, sin) = (f64::from(cos[i % half]), f64::from(sin[i % half]));
        if i < half { low * cos - high * sin } else { high * cos + low * sin }
    };
    (0..x.len()).map(rotated).collect()
}

impl Case for Append {
    fn about(&self) -> About {
        let types = match (self.dtype, self.format) {
            (qkv, cache) if qkv.name() == cache.name() => qkv.to_string(),
            (qkv, cache) => format!("{qkv}_{cache}"),
        };
        let Self { rows, heads, kv_heads, dim, past, .. } = self;
        let norms = if self.norms { ",norms" } else { "" };
        let each = if self.each { ",each" } else { "" };
        let id = format!(
            "rope_append_{types}/rows={rows},h={heads},hkv={kv_heads},d={dim},past={past}{norms}{each}"
        );
        // q and both caches, one after the other, in f32.
        let dtype = if self.purpose == Purpose::Bench { self.dtype } else { DType::F32 };
        let output = ([self.parts().iter().sum(), self.dim].into(), dtype);
        About {
            op: "rope_append",
            id,
            purpose: self.purpose,
            output,
            tolerance: match (self.format, self.format.block_error()) {
                // the cases of attention over caches compare every quant
                (_, Some(error)) => {
                    Tolerance::new(20.2 * error, 5e-4, "a block's values are below 20; a scale in f16")
                }
                (KvFormat::Float16(bits), _) => {
                    // half a unit in the last place; subnormals have the same unit
                    let (bits, bias) = (bits as i32, (1 << (bits - 1)) - 1);
                    let (abs, rel) = (2f64.powi(1 - bias - (15 - bits) - 1), 2f64.powi(-(15 - bits) - 1));
                    Tolerance::new(8e-6 + abs, 1.01 * rel, "one rounding to 16 bits")
                }
                _ => Tolerance::new(8e-6, 1.2e-6, "two products of normed values below 20, rsqrt"),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, dtype) = (self.id(), self.dtype);
        let [cos, sin] = data::angles(&id, [self.angles, self.dim / 2]);
        vec![
            data::normal(&id, "qkv", [self.rows, self.all_heads(), self.dim], dtype),
            cos,
            sin,
            data::normal(&id, "q_weight", [self.dim], dtype),
            data::normal(&id, "k_weight", [self.dim], dtype),
            match self.each {
                true => {
                    let from = |first: usize| (0..self.rows).map(move |row| (first + self.order(row)) as f32);
                    let at = from(self.past).chain(from(self.first)).collect();
                    HostTensor::new([2, self.rows], DType::U32, at)
                }
                false => HostTensor::new([2], DType::U32, vec![self.past as f32, self.first as f32]),
            },
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [qkv, cos, sin, q_weight, k_weight, at] = inputs else { unreachable!("six inputs") };
        let (device, dtype) = (qkv.device(), self.dtype);
        let norms = self.norms.then_some(HeadNorms { q: q_weight, k: k_weight, eps: EPS });
        if self.purpose == Purpose::Bench {
            let dims = [self.capacity, self.kv_heads, self.dim];
            let room = || KvTensor::uninitialized(dims, self.format, &device);
            let (mut k, mut v) = (room()?, room()?);
            let q = y.reshape([self.rows, self.heads, self.dim])?;
            return ops::rope_append_into(q, [k.view_mut()?, v.view_mut()?], qkv, [cos, sin], norms, at);
        }
        let before = |shape: [usize; 3]| {
            HostTensor::new(shape, dtype, vec![BEFORE; shape.iter().product()]).to(&device)
        };
        let mut q = before([self.rows, self.heads, self.dim])?;
        let kv = before([self.capacity + SPARE, 2 * self.kv_heads, self.dim])?;
        let [mut k, mut v] = fill(&kv, self.format)?;
        let caches = [k.view_mut()?.narrow(0, self.capacity)?, v.view_mut()?.narrow(0, self.capacity)?];
        ops::rope_append_into(q.view_mut()?, caches, qkv, [cos, sin], norms, at)?;
        let all = [ops::cast(&q, DType::F32)?.to_vec()?, read(&k)?, read(&v)?].concat();
        ops::copy_into(y, &Tensor::from_slice(&all, self.output().0, &device)?)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [queries, cache, _] = self.parts();
        let largest = match self.format {
            KvFormat::Float16(bits) => nearest(f64::MAX, bits, Overflow::Saturate),
            _ => f64::INFINITY,
        };
        let mut y = Vec::with_capacity(rows.len() * self.dim);
        for &r in rows {
            if r < queries {
                y.extend(self.head(inputs, r / self.heads, r % self.heads));
                continue;
            }
            let (is_value, r) = ((r - queries) / cache, (r - queries) % cache);
            let (slot, head) = (r / self.kv_heads, r % self.kv_heads);
            match slot.checked_sub(self.past).filter(|&row| row < self.rows && slot < self.capacity) {
                Some(row) => {
                    let head =
                        self.head(inputs, self.order(row), self.heads + is_value * self.kv_heads + head);
                    y.extend(head.iter().map(|x| x.clamp(-largest, largest)));
                }
                None => y.extend(vec![f64::from(BEFORE).min(largest); self.dim]),
            }
        }
        y
    }

    fn flops(&self) -> f64 {
        8.0 * (self.rows * self.all_heads() * self.dim) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let heads = self.rows * self.dim;
        let float = (heads * (self.all_heads() + self.heads) * self.dtype.size()) as f64;
        float + (heads * 2 * self.kv_heads) as f64 * self.format.stored_bits() / 8.0
    }
}
