//! Attention.

use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::ops::{self, Attention};
use pascaline::{DType, Result, Tensor, TensorMut};

/// The shape of attention, and how its four tensors lie in memory.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub batch: usize,
    pub num_q_heads: usize,
    pub num_kv_heads: usize,
    pub q_len: usize,
    pub kv_len: usize,
    pub head_dim: usize,
    pub causal: bool,
    /// All four are [b, len, heads, head_dim] with two dimensions exchanged.
    pub swapped: bool,
}

impl Shape {
    pub const fn new(
        (num_q_heads, num_kv_heads): (usize, usize),
        q_len: usize,
        kv_len: usize,
        head_dim: usize,
        causal: bool,
    ) -> Self {
        Self { batch: 1, num_q_heads, num_kv_heads, q_len, kv_len, head_dim, causal, swapped: false }
    }

    /// How many keys query `i` sees.
    pub fn visible(&self, i: usize) -> usize {
        if self.causal { (i + 1 + self.kv_len).saturating_sub(self.q_len) } else { self.kv_len }
    }

    /// The dimensions in memory order, of a tensor with `len` rows a head.
    pub fn stored(&self, heads: usize, len: usize) -> [usize; 4] {
        match self.swapped {
            true => [self.batch, len, heads, self.head_dim],
            false => [self.batch, heads, len, self.head_dim],
        }
    }

    /// The number of the row in memory that is row `i` of head `head`, of a tensor with `len` rows a head.
    pub fn row(&self, batch: usize, heads: usize, head: usize, len: usize, i: usize) -> usize {
        match self.swapped {
            true => (batch * len + i) * heads + head,
            false => (batch * heads + head) * len + i,
        }
    }

    /// The batch, kv head and query of row `r` in memory of q and the output.
    pub fn place(&self, r: usize) -> (usize, usize, usize) {
        let (heads, q_len) = (self.num_q_heads, self.q_len);
        let (batch, head, i) = match self.swapped {
            true => (r / heads / q_len, r % heads, r / heads % q_len),
            false => (r / q_len / heads, r / q_len % heads, r % q_len),
        };
        (batch, head / (heads / self.num_kv_heads), i)
    }

    /// The part of a case's name.
    pub fn label(&self) -> String {
        let Self { batch, num_q_heads, num_kv_heads, q_len, kv_len, head_dim, causal, swapped } = *self;
        let view = if swapped { ",view=swapped" } else { "" };
        format!(
            "b={batch},hq={num_q_heads},hkv={num_kv_heads},q={q_len},kv={kv_len},d={head_dim},causal={}{view}",
            u8::from(causal)
        )
    }

    /// Two products of [q_len, kv_len, head_dim]; a causal square counts half, as its masked half is not computed.
    pub fn flops(&self) -> f64 {
        let keys: usize = match self.causal {
            true if self.q_len == self.kv_len => self.q_len * self.kv_len / 2,
            true => (0..self.q_len).map(|i| self.visible(i)).sum(),
            false => self.q_len * self.kv_len,
        };
        4.0 * (self.batch * self.num_q_heads * self.head_dim) as f64 * keys as f64
    }

    /// Of q, out, k and v, with elements of these sizes in q and out and in k and v.
    pub fn bytes(&self, [q, kv]: [usize; 2]) -> f64 {
        let (q, kv) = (2 * self.num_q_heads * self.q_len * q, 2 * self.num_kv_heads * self.kv_len * kv);
        (self.batch * self.head_dim * (q + kv)) as f64
    }
}

#[derive(Clone, Copy)]
struct Sdpa {
    shape: Shape,
    /// The types of q and out, and of k and v.
    dtypes: (DType, DType),
    /// k and v are the first kv_len rows of caches with [`SPARE`] more, which hold NaN.
    cache: bool,
    data: Data,
    purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    Normal,
    /// A few entries of q and k are a hundred times as large, so that single keys win.
    Outliers,
    /// All scores are far below zero: a maximum that starts at 0 would underflow.
    Negative,
}

/// Rows of a cache after kv_len.
const SPARE: usize = 9;

const F32: (DType, DType) = (DType::F32, DType::F32);
const F16: (DType, DType) = (DType::F16, DType::F16);
const MIXED: (DType, DType) = (DType::F32, DType::F16);

impl Sdpa {
    const fn new(heads: (usize, usize), q_len: usize, kv_len: usize, head_dim: usize, causal: bool) -> Self {
        let shape = Shape::new(heads, q_len, kv_len, head_dim, causal);
        Self { shape, dtypes: F32, cache: false, data: Data::Normal, purpose: Purpose::Test }
    }

    const fn dtypes(mut self, dtypes: (DType, DType)) -> Self {
        self.dtypes = dtypes;
        self
    }

    /// The first rows of caches, or two dimensions exchanged.
    const fn view(mut self, cache: bool) -> Self {
        self.cache = cache;
        self.shape.swapped = !cache;
        self
    }

    const fn data(mut self, data: Data) -> Self {
        self.data = data;
        self
    }

    const fn batch(mut self, batch: usize) -> Self {
        self.shape.batch = batch;
        self
    }

    const fn bench(mut self) -> Self {
        self.purpose = Purpose::Bench;
        self
    }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    // lengths around the tiles' edges, full and causal, queries fewer and more than keys
    for (q_len, kv_len) in [
        (0, 5),
        (9, 0),
        (9, 1),
        (17, 17),
        (31, 65),
        (33, 31),
        (63, 64),
        (64, 64),
        (65, 63),
        (64, 129),
        (100, 100),
        (129, 65),
        (130, 7),
    ] {
        for causal in [false, true] {
            cases.push(Sdpa::new((2, 2), q_len, kv_len, 64, causal));
        }
    }
    // enough blocks that GPUs of about 20 multiprocessors run some longest first, the others shortest first
    cases.push(Sdpa::new((8, 2), 260, 270, 24, true));
    // so few blocks that the keys are in 2, 4 or 8 parts, of which some are empty for the first queries
    for (heads, q_len, kv_len, head_dim, dtypes) in [
        ((2, 1), 33, 600, 128, F32),
        ((2, 2), 100, 1100, 64, F32),
        ((4, 2), 130, 2100, 128, F32),
        ((1, 1), 600, 600, 64, F32),
        ((2, 2), 700, 520, 72, F32),
        ((3, 1), 70, 1030, 80, F32),
        ((2, 1), 65, 1025, 128, F16),
        ((2, 2), 64, 900, 64, MIXED),
        ((3, 1), 70, 1030, 80, MIXED),
    ] {
        for causal in [false, true] {
            cases.push(Sdpa::new(heads, q_len, kv_len, head_dim, causal).dtypes(dtypes));
        }
    }
    // head_dim, each with another grouping and type
    for (head_dim, heads, dtypes) in [
        (16, (2, 1), F32),
        (24, (4, 1), F16),
        (40, (3, 3), MIXED),
        (64, (4, 2), F16),
        (72, (2, 2), F32),
        (80, (2, 1), F32),
        (80, (8, 1), F16),
        (88, (1, 1), F32),
        (96, (2, 1), MIXED),
        (128, (2, 1), F32),
        (128, (2, 2), F16),
        (128, (1, 1), MIXED),
    ] {
        cases.push(Sdpa::new(heads, 33, 65, head_dim, true).dtypes(dtypes));
        cases.push(Sdpa::new(heads, 70, 40, head_dim, false).dtypes(dtypes));
        cases.push(Sdpa::new(heads, 1, 100, head_dim, true).dtypes(dtypes));
        cases.push(Sdpa::new(heads, 5, 33, head_dim, true).dtypes(dtypes));
    }
    // few queries: splits of the keys, and their edges
    for (q_len, kv_len) in [
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 7),
        (1, 64),
        (1, 129),
        (1, 257),
        (1, 600),
        (2, 1),
        (2, 300),
        (7, 8),
        (8, 7),
        (8, 500),
    ] {
        cases.push(Sdpa::new((4, 2), q_len, kv_len, 128, true));
        cases.push(Sdpa::new((2, 2), q_len, kv_len, 64, true).dtypes(F16));
    }
    cases.push(Sdpa::new((8, 1), 1, 513, 128, false).dtypes(F16));
    cases.push(Sdpa::new((8, 1), 3, 200, 72, true).dtypes(MIXED));
    // views
    for cache in [true, false] {
        for (q_len, kv_len) in [(1, 300), (4, 33), (40, 70), (40, 570)] {
            cases.push(Sdpa::new((4, 2), q_len, kv_len, 128, true).batch(2).view(cache));
            cases.push(Sdpa::new((4, 4), q_len, kv_len, 72, false).batch(2).view(cache).dtypes(F16));
            cases.push(Sdpa::new((4, 4), q_len, kv_len, 72, false).batch(2).view(cache));
        }
    }
    // hard data
    for data in [Data::Outliers, Data::Negative] {
        for q_len in [1, 66] {
            cases.push(Sdpa::new((2, 1), q_len, 200, 64, false).data(data));
            cases.push(Sdpa::new((2, 1), q_len, 200, 72, false).data(data));
            cases.push(Sdpa::new((2, 1), q_len, 200, 128, true).data(data).dtypes(F16));
        }
    }
    cases.push(Sdpa::new((16, 16), 4096, 4096, 72, false).bench()); // the tower of the 8B size, 1024 × 1024
    for dtypes in [F32, F16] {
        for (heads, len, head_dim) in [
            ((16, 8), 1024, 128),
            ((16, 8), 4096, 128),
            ((32, 32), 1024, 128),
            ((32, 32), 4096, 128),
            ((16, 16), 4096, 64),
        ] {
            for causal in [false, true] {
                cases.push(Sdpa::new(heads, len, len, head_dim, causal).dtypes(dtypes).bench());
            }
        }
        for (heads, kv_len) in
            [((16, 16), 1024), ((16, 16), 8192), ((16, 16), 32768), ((16, 8), 8192), ((32, 8), 8192)]
        {
            cases.push(Sdpa::new(heads, 1, kv_len, 128, false).dtypes(dtypes).bench());
        }
    }
    cases.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect()
}

impl Sdpa {
    /// Rows of k and v in memory.
    fn kv_rows(&self) -> usize {
        self.shape.kv_len + if self.cache { SPARE } else { 0 }
    }
}

/// The absolute error with normal data.
pub(super) const NORMAL: f64 = 4e-6;

/// How close results of this type must be.
pub(super) fn tolerance(dtype: DType, abs: f64) -> Tolerance {
    match dtype {
        DType::F32 => Tolerance::new(abs, 0.0, "rounding of the scores times the largest value"),
        // 2⁻¹¹, and a little more since the rounded result has an error already
        _ => Tolerance::new(abs, 5e-4, "rounding of the scores, and one rounding to f16"),
    }
}

/// One query over keys and their values, by the definition; zeros if there are none.
pub(super) fn naive<'a>(q: &[f32], keys: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> Vec<f64> {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let dot = |k: &[f32]| -> f64 { q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum() };
    let (scores, values): (Vec<f64>, Vec<&[f32]>) = keys.map(|(k, v)| (dot(k) * scale, v)).unzip();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; q.len()];
    for (weight, v) in weights.iter().zip(values) {
        out.iter_mut().zip(v).for_each(|(x, &v)| *x += weight / sum * f64::from(v));
    }
    out
}

impl Case for Sdpa {
    fn about(&self) -> About {
        let types = match self.dtypes {
            (q, kv) if q == kv => q.to_string(),
            (q, kv) => format!("{q}_{kv}"),
        };
        let view = if self.cache { ",view=cache" } else { "" };
        let id = format!("attention_{types}/{}{view}{}", self.shape.label(), data::label(self.data));
        // A score that is off by δ changes the result, a mean of values below 3.5, by 7 δ at most, and by less than δ
        // where many keys count. In normal data δ is below 2⁻²¹: 2⁻²⁴ times the sum of |q·k| · scale, about 8, and
        // ex2's 2⁻²². The hard data's scores are 2⁶ (negative) and up to 2¹² times as large where they still compete.
        let abs = match self.data {
            Data::Normal => NORMAL,
            Data::Negative => 2e-4,
            Data::Outliers => 2e-3,
        };
        let tolerance = tolerance(self.dtypes.0, abs);
        About {
            op: "attention",
            id,
            purpose: self.purpose,
            output: (self.shape.stored(self.shape.num_q_heads, self.shape.q_len).into(), self.dtypes.0),
            tolerance,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let hard = match self.data {
            Data::Outliers => data::outliers,
            _ => data::normal,
        };
        let q_shape = self.shape.stored(self.shape.num_q_heads, self.shape.q_len);
        let kv_shape = self.shape.stored(self.shape.num_kv_heads, self.kv_rows());
        let mut q = hard(&id, "q", q_shape, self.dtypes.0);
        let mut k = hard(&id, "k", kv_shape, self.dtypes.1);
        let mut v = data::normal(&id, "v", kv_shape, self.dtypes.1);
        if self.data == Data::Negative {
            q.values.iter_mut().for_each(|x| *x = 2.0 + x.abs().min(4.0) / 4.0);
            k.values.iter_mut().for_each(|x| *x = -4.0 - x.abs().min(4.0) / 4.0);
            q = HostTensor::new(q.shape, q.dtype, q.values);
            k = HostTensor::new(k.shape, k.dtype, k.values);
        }
        if self.cache {
            let d = self.shape.head_dim;
            for x in [&mut k, &mut v] {
                for head in x.values.chunks_exact_mut(self.kv_rows() * d) {
                    head[self.shape.kv_len * d..].fill(f32::NAN);
                }
            }
        }
        vec![q, k, v]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let Shape { kv_len, causal, swapped, .. } = self.shape;
        let options = Attention { scale: None, causal };
        let [q, k, v] = inputs else { unreachable!("three inputs") };
        if self.cache {
            ops::attention_into(y, q, &k.narrow(2, 0, kv_len)?, &v.narrow(2, 0, kv_len)?, &options)
        } else if swapped {
            let (q, k, v) = (q.swap_dims(1, 2)?, k.swap_dims(1, 2)?, v.swap_dims(1, 2)?);
            ops::attention_into(y.swap_dims(1, 2)?, &q, &k, &v, &options)
        } else {
            ops::attention_into(y, q, k, v, &options)
        }
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let shape = &self.shape;
        let mut out = Vec::with_capacity(rows.len() * shape.head_dim);
        for &r in rows {
            let (batch, kv_head, i) = shape.place(r);
            let kv_row = |j| shape.row(batch, shape.num_kv_heads, kv_head, self.kv_rows(), j);
            let keys = (0..shape.visible(i)).map(|j| (inputs[1].row(kv_row(j)), inputs[2].row(kv_row(j))));
            out.extend(naive(inputs[0].row(r), keys));
        }
        out
    }

    fn flops(&self) -> f64 {
        self.shape.flops()
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        self.shape.bytes([self.dtypes.0.size(), self.dtypes.1.size()])
    }

    fn compute_bound(&self) -> bool {
        self.shape.q_len > 8
    }
}
