//! Block-sparse attention, and means of blocks.

use super::attention::{NORMAL, naive, tolerance};
use super::held::Held;
use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::block_mask::{BlockGrid, BlockMask};
use pascaline::internals::sparse;
use pascaline::ops::{self, Attention, Path, PreparedMask};
use pascaline::{DType, Result, Tensor, TensorMut};
use rand::Rng;
use std::sync::OnceLock;

/// A kind of mask; numbers are of keys, or of blocks where the builder's are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Dense,
    Causal,
    /// Keys before and after.
    Window(usize, usize),
    /// Global tokens, keys before and after.
    GlobalWindow(usize, usize, usize),
    /// Stride; causal.
    Strided(usize),
    /// Stride and summary blocks; causal.
    Fixed(usize, usize),
    /// Window, global and random blocks.
    BigBird(usize, usize, usize),
    /// Each block with this probability, in percent.
    Blocks(u32),
    /// Each pair with this probability, in percent.
    Pairs(u32),
    /// Rows of blocks see none, half and all of the keys, in turn.
    Uneven,
}

struct Sparse {
    heads: (usize, usize),
    mask_heads: usize,
    block: usize,
    q_len: usize,
    kv_len: usize,
    head_dim: usize,
    batch: usize,
    dtypes: (DType, DType),
    kind: Kind,
    path: Path,
    /// Warps of the prefill kernels' blocks, if not the library's choice.
    warps: Option<usize>,
    purpose: Purpose,
    mask: OnceLock<BlockMask>,
    prepared: Held<PreparedMask>,
}

const F32: (DType, DType) = (DType::F32, DType::F32);
const F16: (DType, DType) = (DType::F16, DType::F16);
const MIXED: (DType, DType) = (DType::F32, DType::F16);

impl Sparse {
    fn new(kind: Kind, block: usize, q_len: usize, kv_len: usize) -> Self {
        Self {
            heads: (2, 2),
            mask_heads: 1,
            block,
            q_len,
            kv_len,
            head_dim: 64,
            batch: 1,
            dtypes: F32,
            kind,
            path: Path::Sparse,
            warps: None,
            purpose: Purpose::Test,
            mask: OnceLock::new(),
            prepared: Held::default(),
        }
    }

    fn heads(self, q: usize, kv: usize, mask: usize) -> Self {
        Self { heads: (q, kv), mask_heads: mask, ..self }
    }

    fn head_dim(self, head_dim: usize, dtypes: (DType, DType)) -> Self {
        Self { head_dim, dtypes, ..self }
    }

    fn warps(self, warps: usize) -> Self {
        Self { warps: Some(warps), ..self }
    }

    fn mask(&self) -> &BlockMask {
        self.mask.get_or_init(|| self.build().expect("the table's masks are valid"))
    }

    fn build(&self) -> Result<BlockMask> {
        let grid = BlockGrid::new(self.block, self.q_len, self.kv_len)?;
        let mut rng = data::rng(&self.id(), "mask");
        let heads = self.mask_heads;
        match self.kind {
            Kind::Dense => BlockMask::dense(grid),
            Kind::Causal => BlockMask::causal(grid),
            Kind::Window(before, after) => BlockMask::sliding_window(grid, before, after),
            Kind::GlobalWindow(global, before, after) => {
                BlockMask::global_window(grid, global, before, after)
            }
            Kind::Strided(stride) => BlockMask::strided(grid, stride),
            Kind::Fixed(stride, summary) => BlockMask::fixed(grid, stride, summary),
            Kind::BigBird(window, global, random) => {
                BlockMask::big_bird(grid, heads, window, global, random, 7)
            }
            Kind::Blocks(percent) => BlockMask::from_rule(grid, heads, |_, _| {
                (0..grid.columns()).filter(|_| rng.random_range(0..100) < percent).collect()
            }),
            Kind::Pairs(percent) => {
                let pairs = heads * self.q_len * self.kv_len;
                let matrix: Vec<bool> = (0..pairs).map(|_| rng.random_range(0..100) < percent).collect();
                BlockMask::from_matrix(grid, heads, &matrix)
            }
            Kind::Uneven => {
                BlockMask::from_rule(grid, heads, |_, row| (0..grid.columns() * (row % 3) / 2).collect())
            }
        }
    }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    let kinds = [
        Kind::Dense,
        Kind::Causal,
        Kind::Window(40, 3),
        Kind::GlobalWindow(5, 30, 30),
        Kind::Strided(2),
        Kind::Fixed(2, 1),
        Kind::BigBird(1, 1, 1),
        Kind::Blocks(30),
        Kind::Pairs(20),
        Kind::Uneven,
    ];
    // every mask with every block, lengths ragged and unequal
    for (n, kind) in kinds.into_iter().enumerate() {
        for (block, q_len, kv_len) in [(16, 70, 90), (32, 100, 65), (64, 130, 200), (128, 150, 300)] {
            let (head_dim, dtypes) = [(64, F32), (72, F16), (128, F32), (128, MIXED)][(n + block / 32) % 4];
            cases.push(Sparse::new(kind, block, q_len, kv_len).head_dim(head_dim, dtypes));
        }
    }
    // the edges of tiles, groups and blocks; rows and heads that see nothing
    for (q_len, kv_len) in
        [(0, 5), (9, 0), (9, 1), (15, 16), (16, 15), (17, 33), (63, 65), (64, 64), (65, 127), (128, 48)]
    {
        cases.push(Sparse::new(Kind::Causal, 16, q_len, kv_len));
        cases.push(Sparse::new(Kind::Pairs(3), 32, q_len, kv_len).head_dim(72, F32));
        cases.push(Sparse::new(Kind::Blocks(0), 64, q_len, kv_len).head_dim(128, F16));
    }
    // masks of several heads, shared among query heads in all ways, and batches
    for (q, kv, mask) in [(4, 2, 4), (4, 2, 2), (4, 2, 1), (4, 4, 2), (6, 2, 6), (8, 4, 2)] {
        for q_len in [1, 3, 80] {
            let case = Sparse::new(Kind::Blocks(40), 16, q_len, 150).heads(q, kv, mask);
            cases.push(Sparse { batch: 2, ..case });
        }
        cases.push(Sparse::new(Kind::Pairs(50), 32, 40, 70).heads(q, kv, mask).head_dim(128, F16));
    }
    // few queries over a cache
    for (q_len, kv_len) in [(1, 0), (1, 1), (1, 16), (1, 17), (1, 300), (2, 63), (5, 129), (8, 7), (8, 600)] {
        cases.push(Sparse::new(Kind::Window(50, 0), 16, q_len, kv_len).heads(4, 2, 1).head_dim(128, F32));
        cases.push(Sparse::new(Kind::GlobalWindow(4, 60, 0), 64, q_len, kv_len).head_dim(72, F16));
        cases.push(Sparse::new(Kind::Pairs(30), 32, q_len, kv_len).heads(8, 2, 8).head_dim(64, MIXED));
    }
    // a row of tiles that is split among blocks, and the merge of its parts
    for dtypes in [F32, F16] {
        cases.push(
            Sparse::new(Kind::GlobalWindow(3, 20, 20), 16, 330, 2100).heads(1, 1, 1).head_dim(72, dtypes),
        );
    }
    // each number of warps of a block, whatever the library's choice
    for warps in sparse::WARPS {
        for (n, dtypes) in [F32, F16, MIXED].into_iter().enumerate() {
            for head_dim in [64, 72, 128] {
                let kind = [Kind::Causal, Kind::Pairs(20), Kind::Blocks(30)][n];
                let (block, q_len) = [(16, 79), (32, 113), (64, 47)][n];
                cases.push(Sparse::new(kind, block, q_len, 131).head_dim(head_dim, dtypes).warps(warps));
            }
            let shared = Sparse::new(Kind::Blocks(40), 16, 70, 150).heads(8, 4, 2).head_dim(72, dtypes);
            cases.push(Sparse { batch: 2, ..shared.warps(warps) });
            let split = Sparse::new(Kind::GlobalWindow(3, 20, 20), 16, 330, 2100).heads(2, 2, 1);
            cases.push(split.head_dim([64, 128, 72][n], dtypes).warps(warps));
        }
        for (q_len, kv_len) in [(9, 0), (9, 1), (15, 16), (17, 33), (33, 65), (64, 64), (65, 127)] {
            cases.push(Sparse::new(Kind::Causal, 16, q_len, kv_len).head_dim(128, F32).warps(warps));
        }
        cases.push(Sparse::new(Kind::Uneven, 16, 130, 300).warps(warps));
        cases.push(Sparse::new(Kind::Blocks(0), 64, 70, 90).head_dim(128, F16).warps(warps));
    }
    // masks that the dense kernels handle
    for kind in [Kind::Dense, Kind::Causal] {
        for q_len in [2, 70] {
            cases.push(Sparse { path: Path::Auto, ..Sparse::new(kind, 64, q_len, 90) });
        }
    }
    bench(&mut cases);
    let mut cases: Vec<Box<dyn Case>> =
        cases.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect();
    for (rows, block, head_dim, dtype, purpose) in [
        (0, 16, 64, DType::F32, Purpose::Test),
        (1, 16, 64, DType::F16, Purpose::Test),
        (100, 32, 72, DType::F32, Purpose::Test),
        (128, 64, 128, DType::F16, Purpose::Test),
        (65, 128, 16, DType::F32, Purpose::Test),
        (8192, 64, 128, DType::F32, Purpose::Bench),
        (8192, 64, 128, DType::F16, Purpose::Bench),
    ] {
        cases.push(Box::new(BlockMean { heads: 3, rows, block, head_dim, dtype, purpose }));
    }
    cases
}

/// 16 heads of 128; densities from 5 to 50 %, and the sparse kernels on masks that the dense ones could handle.
fn bench(cases: &mut Vec<Sparse>) {
    let case = |kind, block, len, dtypes| {
        let case = Sparse::new(kind, block, len, len).heads(16, 16, 1).head_dim(128, dtypes);
        Sparse { purpose: Purpose::Bench, ..case }
    };
    for len in [4096, 8192] {
        for kind in [Kind::Dense, Kind::Causal] {
            for block in [16, 64] {
                cases.push(case(kind, block, len, F32));
            }
        }
        for percent in [5, 10, 25, 50] {
            for block in [16, 32, 64, 128] {
                cases.push(case(Kind::Blocks(percent), block, len, F32));
            }
            cases.push(case(Kind::Blocks(percent), 64, len, F16));
            cases.push(case(Kind::Blocks(percent), 64, len, F32).heads(16, 8, 16));
            let window = len * percent as usize / 100;
            cases.push(case(Kind::Window(window / 2, window / 2), 64, len, F32));
        }
        cases.push(case(Kind::GlobalWindow(64, 255, 256), 64, len, F32));
        cases.push(case(Kind::Strided(8), 64, len, F32));
        cases.push(case(Kind::Fixed(8, 1), 64, len, F32));
        cases.push(case(Kind::BigBird(1, 2, 3), 64, len, F32));
    }
    for (kind, dtypes) in
        [(Kind::Dense, F32), (Kind::Window(4095, 0), F32), (Kind::GlobalWindow(64, 4031, 0), F16)]
    {
        let case = Sparse::new(kind, 64, 1, 32768).heads(16, 8, 1).head_dim(128, dtypes);
        cases.push(Sparse { purpose: Purpose::Bench, ..case });
    }
}

impl Case for Sparse {
    fn about(&self) -> About {
        let types = match self.dtypes {
            (q, kv) if q == kv => q.to_string(),
            (q, kv) => format!("{q}_{kv}"),
        };
        let kind = match self.kind {
            Kind::Dense => "dense".into(),
            Kind::Causal => "causal".into(),
            Kind::Window(before, after) => format!("window({before}+{after})"),
            Kind::GlobalWindow(global, before, after) => format!("global({global}+{before}+{after})"),
            Kind::Strided(stride) => format!("strided({stride})"),
            Kind::Fixed(stride, summary) => format!("fixed({stride}+{summary})"),
            Kind::BigBird(window, global, random) => format!("big_bird({window}+{global}+{random})"),
            Kind::Blocks(percent) => format!("blocks({percent}%)"),
            Kind::Pairs(percent) => format!("pairs({percent}%)"),
            Kind::Uneven => "uneven".into(),
        };
        let id = format!(
            "sparse_attention_{types}/mask={kind},block={},masks={},b={},hq={},hkv={},q={},kv={},d={}{}{}",
            self.block,
            self.mask_heads,
            self.batch,
            self.heads.0,
            self.heads.1,
            self.q_len,
            self.kv_len,
            self.head_dim,
            if self.path == Path::Auto { ",path=auto" } else { "" },
            self.warps.map_or(String::new(), |warps| format!(",warps={warps}")),
        );
        About {
            op: "sparse_attention",
            id,
            purpose: self.purpose,
            output: ([self.batch, self.heads.0, self.q_len, self.head_dim].into(), self.dtypes.0),
            // As attention's on normal data: the same arithmetic over fewer keys. With few keys each weighs more, which that
            // bound of 7 times a score's error covers.
            tolerance: tolerance(self.dtypes.0, NORMAL),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let id = self.id();
        let (q_heads, kv_heads) = self.heads;
        let kv_shape = [self.batch, kv_heads, self.kv_len, self.head_dim];
        vec![
            data::normal(&id, "q", [self.batch, q_heads, self.q_len, self.head_dim], self.dtypes.0),
            data::normal(&id, "k", kv_shape, self.dtypes.1),
            data::normal(&id, "v", kv_shape, self.dtypes.1),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [q, k, v] = inputs else { unreachable!("three inputs") };
        let device = y.device();
        let prepare = || match self.warps {
            Some(warps) => sparse::prepared(self.mask().clone(), warps, &device),
            None => PreparedMask::new(self.mask().clone(), self.path, &device),
        };
        self.prepared.with(&device, prepare, |mask| ops::sparse_attention_into(y, q, k, v, mask, None))
    }

    /// The dense kernels, where they handle the mask.
    fn baseline(&self, y: TensorMut, inputs: &[Tensor]) -> Option<Result<()>> {
        let [q, k, v] = inputs else { unreachable!("three inputs") };
        let causal = match self.kind {
            Kind::Dense => false,
            Kind::Causal => true,
            _ => return None,
        };
        Some(ops::attention_into(y, q, k, v, &Attention { scale: None, causal }))
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let (q_heads, kv_heads) = self.heads;
        let mask = self.mask();
        let mut out = Vec::with_capacity(rows.len() * self.head_dim);
        for &r in rows {
            let (batch, head, i) = (r / self.q_len / q_heads, r / self.q_len % q_heads, r % self.q_len);
            let kv_head = head / (q_heads / kv_heads);
            let mask_head = head / (q_heads / self.mask_heads);
            let keys = (0..self.kv_len).filter(|&j| mask.attends(mask_head, i, j));
            let keys = keys.map(|j| {
                let row = (batch * kv_heads + kv_head) * self.kv_len + j;
                (inputs[1].row(row), inputs[2].row(row))
            });
            out.extend(naive(inputs[0].row(r), keys));
        }
        out
    }

    /// Two products over the pairs that see each other.
    fn flops(&self) -> f64 {
        let repeats = self.batch * self.heads.0 / self.mask_heads * self.head_dim;
        4.0 * repeats as f64 * self.mask().pairs() as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let q = 2 * self.heads.0 * self.q_len * self.dtypes.0.size();
        let kv = 2 * self.heads.1 * self.kv_len * self.dtypes.1.size();
        let density = if self.q_len > 8 { 1.0 } else { self.mask().density() };
        (self.batch * self.head_dim) as f64 * (q as f64 + density * kv as f64)
    }

    fn compute_bound(&self) -> bool {
        self.q_len > 8
    }
}

struct BlockMean {
    heads: usize,
    rows: usize,
    block: usize,
    head_dim: usize,
    dtype: DType,
    purpose: Purpose,
}

impl Case for BlockMean {
    fn about(&self) -> About {
        let Self { heads, rows, block, head_dim, dtype, .. } = self;
        let id = format!("block_mean_{dtype}/heads={heads},rows={rows},block={block},d={head_dim}");
        About {
            op: "block_mean",
            id,
            purpose: self.purpose,
            output: ([self.heads, self.rows.div_ceil(self.block), self.head_dim].into(), DType::F32),
            // a sum of at most 128 values below 3.5, each addition off by half an ulp of at most 128 · 3.5
            tolerance: Tolerance::new(
                128.0 * 3.5 * f64::from(f32::EPSILON),
                0.0,
                "rounding of the running sum",
            ),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        vec![data::normal(&self.id(), "x", [self.heads, self.rows, self.head_dim], self.dtype)]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        ops::block_mean_into(y, &inputs[0], self.block)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let blocks = self.rows.div_ceil(self.block);
        let mut out = Vec::with_capacity(rows.len() * self.head_dim);
        for &r in rows {
            let first = r % blocks * self.block;
            let members = first..self.rows.min(first + self.block);
            let row = |i: usize| inputs[0].row(r / blocks * self.rows + i);
            for column in 0..self.head_dim {
                let sum: f64 = members.clone().map(|i| f64::from(row(i)[column])).sum();
                out.push(sum / members.len() as f64);
            }
        }
        out
    }

    fn flops(&self) -> f64 {
        (self.heads * self.rows * self.head_dim) as f64
    }
}
