//! Scaled dot-product attention.

use super::{About, Differentiable, dot};
use crate::held::Held;
use crate::{HostTensor, Purpose, Tolerance, data};
use pascaline::block_mask::{BlockGrid, BlockMask};
use pascaline::ops::{self, Path, PreparedMask};
use pascaline::{DType, Device, Result, Shape, Tensor, TensorMut};
use rand::Rng;
use rayon::prelude::*;

/// The input with respect to which the gradient is taken.
#[derive(Clone, Copy, PartialEq)]
enum Of {
    Q,
    K,
    V,
}

pub(super) struct Attention {
    heads: (usize, usize),
    q_len: usize,
    kv_len: usize,
    head_dim: usize,
    causal: bool,
    /// Whether tensors are [len, heads, head_dim] in memory, as projections leave them.
    swapped: bool,
    of: Of,
    dtype: DType,
    purpose: Purpose,
    /// The mask of block-sparse attention.
    sparse: Option<Sparse>,
}

/// A mask of blocks.
struct Sparse {
    kind: Kind,
    block: usize,
    heads: usize,
    prepared: Held<PreparedMask>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// The diagonal and up to so many keys before it.
    Window(usize),
    /// Each pair with a probability of 30 %.
    Pairs,
    /// Each block with a probability of 40 %; row 1 has none.
    Blocks,
}

impl Sparse {
    fn mask(&self, q_len: usize, kv_len: usize) -> Result<BlockMask> {
        let grid = BlockGrid::new(self.block, q_len, kv_len)?;
        let mut rng = data::rng(&format!("{:?}", self.kind), "mask");
        match self.kind {
            Kind::Window(before) => BlockMask::sliding_window(grid, before, 0),
            Kind::Pairs => {
                let pairs: Vec<bool> =
                    (0..self.heads * q_len * kv_len).map(|_| rng.random_range(0..10) < 3).collect();
                BlockMask::from_matrix(grid, self.heads, &pairs)
            }
            Kind::Blocks => BlockMask::from_rule(grid, self.heads, |_, row| {
                let columns = (0..grid.columns()).filter(|_| rng.random_range(0..10) < 4);
                if row == 1 { Vec::new() } else { columns.collect() }
            }),
        }
    }
}

/// Block-sparse attention.
pub(super) fn all_sparse() -> Vec<Attention> {
    let mut all = Vec::new();
    let mut add = |heads, q_len, kv_len, head_dim, swapped, sparse: (Kind, usize, usize), purpose| {
        for dtype in [DType::F32, DType::F16] {
            for of in [Of::Q, Of::K, Of::V] {
                if purpose == Purpose::Bench && of != Of::K {
                    continue;
                }
                let (kind, block, heads_of_mask) = sparse;
                let sparse = Some(Sparse { kind, block, heads: heads_of_mask, prepared: Held::default() });
                let case = Attention::new(heads, [q_len, kv_len, head_dim], [false, swapped], of, dtype);
                all.push(Attention { purpose, sparse, ..case });
            }
        }
    };
    for (heads, q_len, kv_len, head_dim, swapped, sparse) in [
        ((1, 1), 1, 1, 16, false, (Kind::Window(0), 16, 1)),
        ((2, 1), 5, 5, 16, true, (Kind::Pairs, 16, 1)),
        ((4, 2), 70, 130, 32, true, (Kind::Pairs, 32, 4)), // a mask for each query head, and ragged ends
        ((4, 1), 150, 90, 64, false, (Kind::Blocks, 16, 2)), // queries that see nothing
        ((2, 2), 100, 100, 72, true, (Kind::Window(40), 64, 1)),
        ((2, 1), 200, 200, 128, false, (Kind::Blocks, 64, 1)),
        ((1, 1), 129, 300, 128, true, (Kind::Blocks, 128, 1)),
        ((1, 1), 0, 3, 16, false, (Kind::Blocks, 16, 1)),
        ((1, 1), 3, 0, 16, false, (Kind::Blocks, 16, 1)),
    ] {
        add(heads, q_len, kv_len, head_dim, swapped, sparse, Purpose::Test);
    }
    for kind in [Kind::Window(511), Kind::Blocks] {
        add((8, 8), 2048, 2048, 128, true, (kind, 64, 1), Purpose::Bench);
    }
    all
}

pub(super) fn all() -> Vec<Attention> {
    let mut all = Vec::new();
    for dtype in [DType::F32, DType::F16] {
        for of in [Of::Q, Of::K, Of::V] {
            for (heads, q_len, kv_len, head_dim, causal, swapped) in [
                ((1, 1), 1, 1, 16, true, false),
                ((2, 1), 5, 5, 16, true, true),
                ((4, 2), 65, 65, 32, true, true),
                ((2, 2), 64, 130, 64, false, false),
                ((3, 1), 33, 70, 72, true, false),
                ((2, 1), 70, 33, 128, true, false), // the first queries see nothing
                ((2, 1), 129, 129, 128, true, true),
                ((2, 1), 530, 70, 16, true, true),  // queries in parts
                ((2, 1), 70, 530, 16, true, false), // keys in parts
                ((1, 1), 100, 600, 128, false, true),
                ((1, 1), 560, 520, 64, true, true), // both, and the first queries see nothing
                ((160, 80), 5, 5, 16, true, false), // a group's heads in one block
                ((1, 1), 0, 3, 16, false, false),
                ((1, 1), 3, 0, 16, false, false),
            ] {
                all.push(Attention::new(heads, [q_len, kv_len, head_dim], [causal, swapped], of, dtype));
            }
        }
        for (head_dim, causal) in [(128, true), (64, false)] {
            let case = Attention::new((16, 8), [1024, 1024, head_dim], [causal, true], Of::K, dtype);
            all.push(Attention { purpose: Purpose::Bench, ..case });
        }
    }
    all
}

impl Attention {
    fn new(
        heads: (usize, usize),
        [q_len, kv_len, head_dim]: [usize; 3],
        [causal, swapped]: [bool; 2],
        of: Of,
        dtype: DType,
    ) -> Self {
        let (purpose, sparse) = (Purpose::Test, None);
        Self { heads, q_len, kv_len, head_dim, causal, swapped, of, dtype, purpose, sparse }
    }

    fn options(&self) -> ops::Attention {
        ops::Attention { causal: self.causal, ..ops::Attention::default() }
    }

    /// The shape in memory.
    fn stored(&self, heads: usize, len: usize) -> Shape {
        if self.swapped { [len, heads, self.head_dim].into() } else { [heads, len, self.head_dim].into() }
    }

    /// [heads, len, head_dim] of a tensor as it is in memory.
    fn view(&self, x: &Tensor) -> Result<Tensor> {
        if self.swapped { x.swap_dims(0, 1) } else { Ok(x.clone()) }
    }

    fn view_mut<'a>(&self, x: TensorMut<'a>) -> Result<TensorMut<'a>> {
        if self.swapped { x.swap_dims(0, 1) } else { Ok(x) }
    }

    /// Where row `i` of head `head` begins.
    fn at(&self, heads: usize, len: usize, head: usize, i: usize) -> usize {
        self.head_dim * if self.swapped { i * heads + head } else { head * len + i }
    }

    /// The weights of query `i` of a head over the keys that it sees.
    fn weights(&self, mask: Option<&BlockMask>, q: &[f64], k: &[f64], head: usize, i: usize) -> Vec<f64> {
        let (d, (num_q, num_kv)) = (self.head_dim, self.heads);
        let seen = if self.causal { (i + 1 + self.kv_len).saturating_sub(self.q_len) } else { self.kv_len };
        let q = &q[self.at(num_q, self.q_len, head, i)..][..d];
        let key = |j: usize| &k[self.at(num_kv, self.kv_len, head / (num_q / num_kv), j)..][..d];
        let sees = |j: usize| mask.is_none_or(|mask| mask.attends(head / (num_q / mask.heads()), i, j));
        let score = |j: usize| if sees(j) { dot(q, key(j)) / (d as f64).sqrt() } else { f64::NEG_INFINITY };
        let scores: Vec<f64> = (0..seen).map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if max == f64::NEG_INFINITY {
            return vec![0.0; seen]; // it sees nothing
        }
        let sum: f64 = scores.iter().map(|x| (x - max).exp()).sum();
        scores.iter().map(|x| (x - max).exp() / sum).collect()
    }

    /// The mask on a device, made once: benches time the op alone.
    fn prepared(&self, device: &Device) -> Result<Option<PreparedMask>> {
        let (Some(sparse), Some(mask)) = (&self.sparse, self.mask()) else { return Ok(None) };
        let make = || PreparedMask::new(mask, Path::Sparse, device);
        sparse.prepared.with(device, make, |mask| Ok(Some(mask.clone())))
    }

    fn mask(&self) -> Option<BlockMask> {
        let mask = |sparse: &Sparse| sparse.mask(self.q_len, self.kv_len);
        self.sparse.as_ref().map(|sparse| mask(sparse).expect("the table's masks are valid"))
    }
}

impl Differentiable for Attention {
    fn about(&self) -> About {
        let of = match self.of {
            Of::Q => "q",
            Of::K => "k",
            Of::V => "v",
        };
        let (q_heads, kv_heads) = self.heads;
        let Self { q_len, kv_len, head_dim, causal, .. } = self;
        let view = if self.swapped { ",view=swapped" } else { "" };
        let shape = format!("of={of},heads={q_heads}/{kv_heads},q={q_len},kv={kv_len},d={head_dim}");
        let sizes = match &self.sparse {
            Some(Sparse { kind, block, heads, .. }) => {
                format!("{shape},mask={kind:?},block={block},masks={heads}{view}")
            }
            None => format!("{shape},causal={causal}{view}"),
        };
        let shape = match self.of {
            Of::Q => self.forward_shape(),
            _ => self.stored(self.heads.1, self.kv_len),
        };
        let gradient = (shape, self.dtype);
        About {
            op: if self.sparse.is_some() { "sparse_attention_backward" } else { "attention_backward" },
            sizes,
            dtype: self.dtype,
            purpose: self.purpose,
            gradient,
            tolerance: match self.dtype {
                DType::F32 => Tolerance::new(
                    2e-5,
                    1e-5,
                    "sums over keys or queries of products about √d, with weights of the scores' error",
                ),
                _ => Tolerance::new(
                    4e-3,
                    2e-3,
                    "the result is rounded to f16, and its product with dout is subtracted",
                ),
            },
        }
    }

    fn forward_shape(&self) -> Shape {
        self.stored(self.heads.0, self.q_len)
    }

    fn arguments(&self) -> Vec<HostTensor> {
        let (id, kv) = (self.sizes(), self.stored(self.heads.1, self.kv_len));
        vec![
            data::normal(&id, "q", self.forward_shape(), self.dtype),
            data::normal(&id, "k", kv.clone(), self.dtype),
            data::normal(&id, "v", kv, self.dtype),
        ]
    }

    fn run(&self, y: TensorMut, dy: &Tensor, arguments: &[Tensor]) -> Result<()> {
        let [q, k, v] = arguments else { return Ok(()) };
        let new = |x: &Tensor| Tensor::uninitialized(x.shape(), self.dtype, &y.device());
        let (mut dq, mut dk, mut dv, mut out) = (new(q)?, new(k)?, new(v)?, new(q)?);
        let [q, k, v] = [self.view(q)?, self.view(k)?, self.view(v)?];
        let mask = self.prepared(&y.device())?;
        let result = self.view_mut(out.view_mut()?)?;
        match &mask {
            Some(mask) => ops::sparse_attention_into(result, &q, &k, &v, mask, None)?,
            None => ops::attention_into(result, &q, &k, &v, &self.options())?,
        }
        let mut outputs = [dq.view_mut()?, dk.view_mut()?, dv.view_mut()?];
        outputs[match self.of {
            Of::Q => 0,
            Of::K => 1,
            Of::V => 2,
        }] = y;
        let [dq, dk, dv] = outputs;
        let outputs = [self.view_mut(dq)?, self.view_mut(dk)?, self.view_mut(dv)?];
        let (dout, out) = (self.view(dy)?, self.view(&out)?);
        match &mask {
            Some(mask) => ops::sparse_attention_backward_into(outputs, [&dout, &q, &k, &v, &out], mask, None),
            None => ops::attention_backward_into(outputs, &dout, &q, &k, &v, &out, &self.options()),
        }
    }

    fn formula(&self, dy: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let [q, k, v] = arguments else { return Vec::new() };
        let (d, (num_q, num_kv)) = (self.head_dim, self.heads);
        let (scale, mask) = (1.0 / (d as f64).sqrt(), self.mask());
        // for each query head its part of the gradient: (first element, row)
        let parts = (0..num_q).into_par_iter().map(|head| {
            let key_at = |j: usize| self.at(num_kv, self.kv_len, head / (num_q / num_kv), j);
            let mut rows: Vec<(usize, Vec<f64>)> = match self.of {
                Of::Q => {
                    (0..self.q_len).map(|i| (self.at(num_q, self.q_len, head, i), vec![0.0; d])).collect()
                }
                _ => (0..self.kv_len).map(|j| (key_at(j), vec![0.0; d])).collect(),
            };
            for i in 0..self.q_len {
                let weights = self.weights(mask.as_ref(), q, k, head, i);
                let at = self.at(num_q, self.q_len, head, i);
                let (query, dout) = (&q[at..at + d], &dy[at..at + d]);
                let products: Vec<f64> =
                    (0..weights.len()).map(|j| dot(dout, &v[key_at(j)..][..d])).collect();
                let delta = dot(&weights, &products);
                for (j, weight) in weights.iter().enumerate() {
                    let ds = weight * (products[j] - delta) * scale;
                    let (row, factor, of) = match self.of {
                        Of::Q => (i, ds, &k[key_at(j)..][..d]),
                        Of::K => (j, ds, query),
                        Of::V => (j, *weight, dout),
                    };
                    rows[row].1.iter_mut().zip(of).for_each(|(sum, x)| *sum += factor * x);
                }
            }
            rows
        });
        let parts: Vec<_> = parts.collect();
        let mut gradient = vec![0.0; self.gradient().0.elements()];
        for (at, row) in parts.into_iter().flatten() {
            gradient[at..at + d].iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
        }
        gradient
    }

    fn point(&self, arguments: &[Vec<f64>]) -> Vec<f64> {
        arguments[match self.of {
            Of::Q => 0,
            Of::K => 1,
            Of::V => 2,
        }]
        .clone()
    }

    fn forward(&self, point: &[f64], arguments: &[Vec<f64>]) -> Vec<f64> {
        let (d, (num_q, num_kv)) = (self.head_dim, self.heads);
        let q = if self.of == Of::Q { point } else { &arguments[0] };
        let k = if self.of == Of::K { point } else { &arguments[1] };
        let v = if self.of == Of::V { point } else { &arguments[2] };
        let (mask, mut out) = (self.mask(), vec![0.0; q.len()]);
        for head in 0..num_q {
            for i in 0..self.q_len {
                let at = self.at(num_q, self.q_len, head, i);
                for (j, weight) in self.weights(mask.as_ref(), q, k, head, i).iter().enumerate() {
                    let v = &v[self.at(num_kv, self.kv_len, head / (num_q / num_kv), j)..][..d];
                    out[at..at + d].iter_mut().zip(v).for_each(|(sum, v)| *sum += weight * v);
                }
            }
        }
        out
    }

    /// Five products for each pair.
    fn flops(&self) -> f64 {
        let share = match self.mask() {
            Some(mask) => mask.pairs() as f64 / (mask.heads() * self.q_len * self.kv_len).max(1) as f64,
            None if self.causal => 0.5,
            None => 1.0,
        };
        let pairs = (self.heads.0 * self.q_len * self.kv_len) as f64 * share;
        10.0 * pairs * self.head_dim as f64
    }
}
