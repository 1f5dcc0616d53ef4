//! Attention over the cache of keys and values in 8 bits. The reference quantises by a code of its own and sums in f64.

use super::{Case, HostTensor, Purpose, Tolerance, data};
use crate::quant::QuantKvCache;
use crate::{DType, Result, Shape, Tensor, TensorMut, ops};
use half::f16;
use std::sync::Mutex;

struct KvCache {
    num_q_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    kv_len: usize,
    dtype: DType,
    purpose: Purpose,
    /// Filled when the case first runs on a device.
    cache: Mutex<Option<QuantKvCache>>,
}

/// A vector in blocks of 32 quants; scales in f16, or, for queries, in f32.
fn quantized(x: &[f32], half: bool) -> Vec<f64> {
    let blocks = x.chunks(32).flat_map(|block| {
        let scale = block.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
        let stored = if half { f16::from_f32(scale).to_f64() } else { f64::from(scale) };
        block.iter().map(move |x| match scale > 0.0 {
            true => stored * f64::from((x * (1.0 / scale)).round_ties_even()),
            false => 0.0,
        })
    });
    blocks.collect()
}

impl KvCache {
    fn fill(&self, k: &Tensor, v: &Tensor) -> Result<QuantKvCache> {
        // room for more than there is, and two appends
        let Self { num_kv_heads, head_dim, kv_len, .. } = *self;
        let mut cache = QuantKvCache::new(num_kv_heads, head_dim, kv_len + 3, &k.device())?;
        let first = kv_len / 3;
        for (start, len) in [(0, first), (first, kv_len - first)] {
            ops::kv_cache_append(&mut cache, &k.narrow(0, start, len)?, &v.narrow(0, start, len)?)?;
        }
        Ok(cache)
    }
}

impl Case for KvCache {
    fn op(&self) -> &'static str {
        "kv_cache"
    }

    fn id(&self) -> String {
        let Self { num_q_heads, num_kv_heads, head_dim, kv_len, dtype, .. } = self;
        format!(
            "kv_cache_q8_{dtype}/heads={num_q_heads},kv_heads={num_kv_heads},head_dim={head_dim},kv_len={kv_len}"
        )
    }

    fn purpose(&self) -> Purpose {
        self.purpose
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let kv = [self.kv_len, self.num_kv_heads, self.head_dim];
        vec![
            data::normal(&self.id(), "q", [self.num_q_heads, self.head_dim], DType::F32),
            data::normal(&self.id(), "k", kv, self.dtype),
            data::outliers(&self.id(), "v", kv, self.dtype),
        ]
    }

    fn output(&self) -> (Shape, DType) {
        ([self.num_q_heads, self.head_dim].into(), DType::F32)
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let mut held = self.cache.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if held.as_ref().is_none_or(|cache| !cache.device().same(&inputs[0].device())) {
            *held = Some(self.fill(&inputs[1], &inputs[2])?);
        }
        match held.as_ref() {
            Some(cache) => ops::kv_cache_attention_into(y, cache, &inputs[0], None),
            None => Ok(()),
        }
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let group = self.num_q_heads / self.num_kv_heads;
        let mut y = Vec::new();
        for &head in rows {
            let q = quantized(inputs[0].row(head), false);
            let row =
                |x: &HostTensor, key: usize| quantized(x.row(key * self.num_kv_heads + head / group), true);
            let scores: Vec<f64> = (0..self.kv_len)
                .map(|key| {
                    let k = row(&inputs[1], key);
                    q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>() / (self.head_dim as f64).sqrt()
                })
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            let mut out = vec![0.0; self.head_dim];
            for (key, score) in scores.iter().enumerate() {
                let p = (score - max).exp() / total;
                out.iter_mut().zip(row(&inputs[2], key)).for_each(|(out, v)| *out += p * v);
            }
            y.extend(out);
        }
        y
    }

    fn tolerance(&self) -> Tolerance {
        Tolerance::new(2e-4, 2e-5, "f32 scores of a few units and exp2; values up to 400")
    }

    fn flops(&self) -> f64 {
        4.0 * (self.num_q_heads * self.kv_len * self.head_dim) as f64
    }

    fn bytes(&self) -> f64 {
        let values = 2 * self.num_kv_heads * self.kv_len * self.head_dim;
        values as f64 * 8.5 / 8.0 + 8.0 * (self.num_q_heads * self.head_dim) as f64
    }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    let mut add = |num_q_heads, num_kv_heads, head_dim, kv_len, dtype, purpose| {
        let cache = Mutex::new(None);
        let case = KvCache { num_q_heads, num_kv_heads, head_dim, kv_len, dtype, purpose, cache };
        cases.push(Box::new(case) as Box<dyn Case>);
    };
    for head_dim in [64, 128] {
        for (q, kv, len) in
            [(1, 1, 0), (1, 1, 1), (2, 2, 17), (4, 2, 33), (8, 2, 100), (3, 1, 257), (7, 1, 700)]
        {
            add(q, kv, head_dim, len, DType::F32, Purpose::Test);
        }
        add(4, 2, head_dim, 65, DType::F16, Purpose::Test);
    }
    for len in [1024, 8192, 65536] {
        add(16, 8, 128, len, DType::F32, Purpose::Bench);
    }
    cases
}
