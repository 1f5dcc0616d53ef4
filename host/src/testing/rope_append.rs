//! Fused projections, taken apart into queries and a cache.

use super::{Case, HostTensor, Purpose, Tolerance, data};
use crate::ops::{self, HeadNorms};
use crate::{DType, Result, Shape, Tensor, TensorMut};

const EPS: f32 = 1e-6;
/// What the caches hold before.
const BEFORE: f32 = 77.0;
/// Rows behind each cache, which the op must leave alone.
const SPARE: usize = 2;

struct Append {
    rows: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    norms: bool,
    /// Of qkv and q, and of the caches.
    dtypes: (DType, DType),
    /// Rows of the caches, and how many are taken before.
    capacity: usize,
    past: usize,
    /// Angles that there are, and the first row's.
    angles: usize,
    first: usize,
    purpose: Purpose,
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Append> = Vec::new();
    for dtypes in [(DType::F32, DType::F32), (DType::F16, DType::F16), (DType::F32, DType::F16)] {
        let case = |rows, (heads, kv_heads), dim, norms| Append {
            rows,
            heads,
            kv_heads,
            dim,
            norms,
            dtypes,
            capacity: rows + 5,
            past: 3,
            angles: rows + 2,
            first: 1,
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
        // more rows than room and angles: what has no place is left out
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

    /// Rows of the output that are heads of q, and of each cache. What is timed is the op alone, and checked in q alone.
    fn parts(&self) -> [usize; 3] {
        let cache = if self.purpose == Purpose::Bench { 0 } else { (self.capacity + SPARE) * self.kv_heads };
        [self.rows * self.heads, cache, cache]
    }

    /// Head `head` of row `row` as the definition says.
    fn head(&self, inputs: &[HostTensor], row: usize, head: usize) -> Vec<f64> {
        let x = inputs[0].row(row * self.all_heads() + head);
        let mut x: Vec<f64> = x.iter().copied().map(f64::from).collect();
        if head >= self.heads + self.kv_heads {
            return x;
        }
        if self.norms {
            let squares: f64 = x.iter().map(|x| x * x).sum();
            let scale = 1.0 / (squares / self.dim as f64 + f64::from(EPS)).sqrt();
            let weight = &inputs[if head < self.heads { 3 } else { 4 }].values;
            x.iter_mut().zip(weight).for_each(|(x, &weight)| *x *= scale * f64::from(weight));
        }
        let angle = (self.first + row).min(self.angles - 1);
        let (cos, sin, half) = (inputs[1].row(angle), inputs[2].row(angle), self.dim / 2);
        let turned = |i: usize| {
            let (low, high) = (x[i % half], x[i % half + half]);
            let (cos, sin) = (f64::from(cos[i % half]), f64::from(sin[i % half]));
            if i < half { low * cos - high * sin } else { high * cos + low * sin }
        };
        (0..self.dim).map(turned).collect()
    }
}

impl Case for Append {
    fn op(&self) -> &'static str {
        "rope_append"
    }

    fn id(&self) -> String {
        let types = match self.dtypes {
            (qkv, cache) if qkv == cache => qkv.to_string(),
            (qkv, cache) => format!("{qkv}_{cache}"),
        };
        let Self { rows, heads, kv_heads, dim, past, .. } = self;
        let norms = if self.norms { ",norms" } else { "" };
        format!("rope_append_{types}/rows={rows},h={heads},hkv={kv_heads},d={dim},past={past}{norms}")
    }

    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, dtype) = (self.id(), self.dtypes.0);
        let shape = [self.angles, self.dim / 2];
        let angles = data::normal(&id, "angles", shape, DType::F32).values;
        let table = |f: fn(f32) -> f32| {
            HostTensor::new(shape, DType::F32, angles.iter().map(|&angle| f(angle)).collect())
        };
        vec![
            data::normal(&id, "qkv", [self.rows, self.all_heads(), self.dim], dtype),
            table(f32::cos),
            table(f32::sin),
            data::normal(&id, "q_weight", [self.dim], dtype),
            data::normal(&id, "k_weight", [self.dim], dtype),
            HostTensor::new([2], DType::U32, vec![self.past as f32, self.first as f32]),
        ]
    }

    /// q and both caches, one behind the other, in f32.
    fn output(&self) -> (Shape, DType) {
        let dtype = if self.purpose == Purpose::Bench { self.dtypes.0 } else { DType::F32 };
        ([self.parts().iter().sum(), self.dim].into(), dtype)
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [qkv, cos, sin, q_weight, k_weight, at] = inputs else { unreachable!("six inputs") };
        let (device, (dtype, cache)) = (qkv.device(), self.dtypes);
        let norms = self.norms.then_some(HeadNorms { q: q_weight, k: k_weight, eps: EPS });
        if self.purpose == Purpose::Bench {
            let room = || Tensor::uninitialized([self.capacity, self.kv_heads, self.dim], cache, &device);
            let (mut k, mut v) = (room()?, room()?);
            let outputs = [y.reshape([self.rows, self.heads, self.dim])?, k.view_mut()?, v.view_mut()?];
            return ops::rope_append_into(outputs, qkv, [cos, sin], norms, at);
        }
        let before = |shape: [usize; 3], dtype| {
            HostTensor::new(shape, dtype, vec![BEFORE; shape.iter().product()]).to(&device)
        };
        let mut q = before([self.rows, self.heads, self.dim], dtype)?;
        let mut k = before([self.capacity + SPARE, self.kv_heads, self.dim], cache)?;
        let mut v = before([self.capacity + SPARE, self.kv_heads, self.dim], cache)?;
        let room = self.capacity;
        let outputs = [q.view_mut()?, k.view_mut()?.narrow(0, 0, room)?, v.view_mut()?.narrow(0, 0, room)?];
        ops::rope_append_into(outputs, qkv, [cos, sin], norms, at)?;
        let mut all = Tensor::uninitialized(y.shape(), DType::F32, &device)?;
        let mut at = 0;
        for (part, rows) in [q, k, v].iter().zip(self.parts()) {
            let part = ops::cast(part, DType::F32)?.reshape([rows, self.dim])?;
            ops::copy_into(all.view_mut()?.narrow(0, at, rows)?, &part)?;
            at += rows;
        }
        ops::copy_into(y, &all)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [queries, cache, _] = self.parts();
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
                    y.extend(self.head(inputs, row, self.heads + is_value * self.kv_heads + head));
                }
                None => y.extend(vec![f64::from(BEFORE); self.dim]),
            }
        }
        y
    }

    fn tolerance(&self) -> Tolerance {
        match self.dtypes.1 {
            DType::F32 => Tolerance::new(8e-6, 1.2e-6, "two products of normed values below 20, rsqrt"),
            _ => Tolerance::new(8e-6, 1.0 / 1024.0, "one rounding to f16"),
        }
    }

    fn flops(&self) -> f64 {
        8.0 * (self.rows * self.all_heads() * self.dim) as f64
    }

    fn bytes(&self) -> f64 {
        let heads = self.rows * self.dim;
        let read = heads * self.all_heads() * self.dtypes.0.size();
        let written = heads * (self.heads * self.dtypes.0.size() + 2 * self.kv_heads * self.dtypes.1.size());
        (read + written) as f64
    }
}
