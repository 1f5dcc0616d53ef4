//! Attention over caches in every format. The reference rounds keys and values and then follows the definition.

use super::attention::{NORMAL, naive, tolerance};
use super::held::Held;
use super::kv::{fill, stored, types};
use super::{About, Case, HostTensor, Purpose, data};
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::ops::{self, Attention};
use pascaline::{DType, Result, Tensor, TensorMut};

struct Cached {
    num_q_heads: usize,
    num_kv_heads: usize,
    q_len: usize,
    kv_len: usize,
    head_dim: usize,
    causal: bool,
    /// The type of q and out.
    dtype: DType,
    format: KvFormat,
    /// Whether the length is in device memory and not known to the host.
    on_device: bool,
    purpose: Purpose,
    /// Filled when the case first runs on a device.
    held: Held<[KvTensor; 2]>,
}

/// Rows of a cache after kv_len: NaN.
const SPARE: usize = 360;

impl Cached {
    /// Row `token` of kv head `head` of keys, or of values.
    fn row(&self, kv: &HostTensor, token: usize, head: usize, is_value: bool) -> Vec<f32> {
        let heads = self.num_kv_heads;
        stored(kv.row(token * 2 * heads + usize::from(is_value) * heads + head), self.format)
    }

    /// How many keys query `i` sees.
    fn visible(&self, i: usize) -> usize {
        if self.causal { (i + 1 + self.kv_len).saturating_sub(self.q_len) } else { self.kv_len }
    }
}

impl Case for Cached {
    fn about(&self) -> About {
        let Self { num_q_heads, num_kv_heads, q_len, kv_len, head_dim, dtype, format, .. } = self;
        let causal = u8::from(self.causal);
        let on_device = if self.on_device { ",length=device" } else { "" };
        let id = format!(
            "attention_cached_{dtype}_{format}/hq={num_q_heads},hkv={num_kv_heads},q={q_len},kv={kv_len},d={head_dim},\
             causal={causal}{on_device}"
        );
        About {
            op: "attention_cached",
            id,
            purpose: self.purpose,
            output: ([self.num_q_heads, self.q_len, self.head_dim].into(), self.dtype),
            // as attention's with normal data: rounded keys and values are no larger, and rounded alike on both sides
            tolerance: tolerance(self.dtype, NORMAL),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let spare = if self.purpose == Purpose::Test { SPARE } else { 0 };
        let (id, tokens) = (self.id(), self.kv_len + spare);
        let mut kv = data::normal(&id, "kv", [tokens, 2 * self.num_kv_heads, self.head_dim], self.dtype);
        let token = 2 * self.num_kv_heads * self.head_dim;
        kv.values[self.kv_len * token..].fill(f32::NAN);
        // a head of zeros, whose scale is zero
        kv.values[..token.min(self.kv_len * self.head_dim)].fill(0.0);
        let past = vec![self.kv_len.saturating_sub(self.q_len) as f32];
        vec![
            data::normal(&id, "q", [self.num_q_heads, self.q_len, self.head_dim], self.dtype),
            kv,
            HostTensor::new([1], DType::U32, past),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [q, kv, past] = inputs else { unreachable!("three inputs") };
        let options = Attention { scale: None, causal: self.causal };
        let run = |[k, v]: &[KvTensor; 2]| match self.on_device {
            true => ops::attention_cached_into(y, q, k, v, past, &options),
            false => ops::attention_over_into(y, q, k, v, self.kv_len, &options),
        };
        self.held.with(&q.device(), || fill(kv, self.format), run)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [q, kv, _] = inputs else { unreachable!("three inputs") };
        let group = self.num_q_heads / self.num_kv_heads;
        let attend = |&r: &usize| {
            let (head, i) = (r / self.q_len, r % self.q_len);
            let rows: Vec<[Vec<f32>; 2]> = (0..self.visible(i))
                .map(|token| [false, true].map(|is_value| self.row(kv, token, head / group, is_value)))
                .collect();
            naive(q.row(r), rows.iter().map(|[k, v]| (&k[..], &v[..])))
        };
        rows.iter().flat_map(attend).collect()
    }

    fn flops(&self) -> f64 {
        let keys: usize = match self.causal && self.q_len == self.kv_len {
            true => self.q_len * self.kv_len / 2,
            false => (0..self.q_len).map(|i| self.visible(i)).sum(),
        };
        4.0 * (self.num_q_heads * self.head_dim * keys) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let kv =
            (2 * self.num_kv_heads * self.kv_len * self.head_dim) as f64 * self.format.stored_bits() / 8.0;
        let q = 2 * self.num_q_heads * self.q_len * self.head_dim * self.dtype.size();
        kv + q as f64
    }

    fn compute_bound(&self) -> bool {
        self.q_len > ops::MAX_CACHED_QUERIES
    }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    let mut add = |(num_q_heads, num_kv_heads),
                   [q_len, kv_len, head_dim]: [usize; 3],
                   causal,
                   dtype,
                   format,
                   on_device,
                   purpose| {
        let held = Held::default();
        let case = Cached {
            num_q_heads,
            num_kv_heads,
            q_len,
            kv_len,
            head_dim,
            causal,
            dtype,
            format,
            on_device,
            purpose,
            held,
        };
        cases.push(Box::new(case) as Box<dyn Case>);
    };
    for (dtype, format) in types() {
        // lengths in device memory: the splits follow the capacity, so most are empty
        for (heads, shape, causal) in [
            ((4, 2), [1, 1, 128], true),
            ((4, 2), [1, 33, 128], true),
            ((4, 2), [1, 300, 128], true),
            ((4, 2), [2, 5, 128], true),
            ((3, 3), [3, 100, 64], false),
            ((3, 1), [1, 257, 64], true),
            ((4, 1), [8, 8, 128], true),
            ((2, 1), [8, 200, 80], true),
            ((2, 2), [1, 65, 16], true),
        ] {
            add(heads, shape, causal, dtype, format, true, Purpose::Test);
        }
        for (heads, shape, causal) in [
            ((2, 1), [0, 5, 64], true),
            ((2, 1), [1, 0, 64], true),
            ((2, 1), [9, 0, 128], false),
            ((4, 2), [9, 1, 32], true),
            ((4, 1), [17, 17, 24], true),
            ((4, 2), [33, 65, 128], true),
            ((2, 2), [70, 40, 64], false),
            ((2, 1), [64, 129, 80], true),
            ((2, 1), [70, 1100, 128], true),
            // keys in parts, whose results are as wide as the kernel, for some formats wider than the heads
            ((2, 1), [33, 600, 64], true),
            ((2, 2), [40, 1100, 24], false),
        ] {
            add(heads, shape, causal, dtype, format, false, Purpose::Test);
        }
    }
    for format in [KvFormat::Float16(4), KvFormat::BF16, KvFormat::Q8_0] {
        for kv_len in [1024, 8192, 65536] {
            add((16, 8), [1, kv_len, 128], false, DType::F32, format, false, Purpose::Bench);
        }
        add((16, 8), [1024, 1024, 128], true, DType::F32, format, false, Purpose::Bench);
        add((16, 8), [4096, 4096, 128], true, DType::F32, format, false, Purpose::Bench);
    }
    cases
}
