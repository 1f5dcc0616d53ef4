//! The choice of tiles of keys, and attention over them. Keys have an offset in their scores that differs from tile to tile, so that the
//! choice does not depend on rounding. The reference samples the same queries and follows the definitions.

use super::attention::{naive, tolerance};
use super::held::Held;
use super::kv::stored;
use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::ops::{self, KEYS_PER_CHOICE, KeyTiles, PAGE, QUERIES_PER_CHOICE, SequenceKv};
use pascaline::{DType, Result, Tensor, TensorMut};

/// One query in so many is sampled: the last of each.
const SAMPLED: usize = 16;
/// Keys before a block that it reads in any case.
const BAND: usize = 64;
/// The first column of all queries, by which keys have their offsets.
const UNIT: f32 = 4.0;

/// The sizes, and where keys are.
struct Chosen {
    num_q_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    q_len: usize,
    kv_len: usize,
    share: f32,
    /// Whether keys are in pages.
    paged: bool,
    format: KvFormat,
    purpose: Purpose,
    /// Whether the output is the choice: for each head, block and tile 1 where the block reads it, else 0.
    choice: bool,
    /// Filled when the case first runs on a device.
    held: Held<[KvTensor; 2]>,
}

impl Chosen {
    fn tiles(&self) -> usize {
        self.kv_len.div_ceil(KEYS_PER_CHOICE)
    }

    fn blocks(&self) -> usize {
        self.q_len.div_ceil(QUERIES_PER_CHOICE)
    }

    fn pages(&self) -> usize {
        self.kv_len.div_ceil(PAGE)
    }

    /// Rows of k and v.
    fn rows(&self) -> usize {
        if self.paged { (self.pages() + 1) * PAGE } else { self.kv_len + 3 }
    }

    /// The row of a key: pages are in descending order.
    fn place(&self, key: usize) -> usize {
        if self.paged { (self.pages() - 1 - key / PAGE) * PAGE + key % PAGE } else { key }
    }

    /// The offset of a tile's scores, which differs from those of all others.
    fn offset(&self, tile: usize) -> f32 {
        let tiles = self.tiles();
        let factor = if tiles.is_multiple_of(7) { 5 } else { 7 };
        let rank = (tile * factor + 3) % tiles;
        match self.purpose {
            Purpose::Test => rank as f32,
            Purpose::Bench => 12.0 * rank as f32 / tiles as f32,
        }
    }

    /// The first of the keys that a block reads in any case.
    fn local(&self, block: usize) -> usize {
        (self.kv_len - self.q_len + block * QUERIES_PER_CHOICE).saturating_sub(BAND)
    }

    /// The number of keys that a query sees.
    fn visible(&self, i: usize) -> usize {
        i + 1 + self.kv_len - self.q_len
    }

    fn stored(&self, kv: &HostTensor, head: usize, key: usize) -> [Vec<f32>; 2] {
        let kv_head = head / (self.num_q_heads / self.num_kv_heads);
        let row = self.place(key) * 2 * self.num_kv_heads + kv_head;
        [row, row + self.num_kv_heads].map(|row| stored(kv.row(row), self.format))
    }

    /// The tiles that a block of a head reads, by the definition.
    fn chosen(&self, inputs: &[HostTensor], head: usize, block: usize) -> Vec<bool> {
        let [q, kv, ..] = inputs else { unreachable!("four inputs") };
        let queries = block * QUERIES_PER_CHOICE..((block + 1) * QUERIES_PER_CHOICE).min(self.q_len);
        let seen = self.visible(queries.end - 1);
        let mut weights = vec![0.0; seen.div_ceil(KEYS_PER_CHOICE)];
        let keys: Vec<_> = (0..seen).map(|key| self.stored(kv, head, key)).collect();
        for group in queries.clone().step_by(SAMPLED) {
            let sample = (group + SAMPLED - 1).min(queries.end - 1);
            let row = q.row(head * self.q_len + sample);
            let scale = 1.0 / (self.head_dim as f64).sqrt();
            let score = |[k, _]: &[Vec<f32>; 2]| {
                row.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>() * scale
            };
            let scores: Vec<f64> = keys[..self.visible(sample)].iter().map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            for (key, score) in scores.iter().enumerate() {
                weights[key / KEYS_PER_CHOICE] += (score - max).exp() / sum;
            }
        }
        let local = self.local(block) / KEYS_PER_CHOICE;
        let mut chosen: Vec<bool> = (0..weights.len()).map(|tile| tile == 0 || tile >= local).collect();
        let covered = |chosen: &[bool]| -> f64 {
            chosen.iter().zip(&weights).filter(|(chosen, _)| **chosen).map(|(_, weight)| weight).sum()
        };
        let wanted = f64::from(self.share) * weights.iter().sum::<f64>();
        let others = |chosen: &[bool]| (0..chosen.len()).filter(|&tile| !chosen[tile]).collect::<Vec<_>>();
        while self.share == 1.0 || covered(&chosen) < wanted {
            let heaviest = others(&chosen).into_iter().max_by(|&a, &b| weights[a].total_cmp(&weights[b]));
            let Some(heaviest) = heaviest else { break };
            chosen[heaviest] = true;
        }
        chosen
    }

    fn choose(&self, q: &Tensor, kv: SequenceKv, local: &Tensor) -> Result<KeyTiles> {
        ops::choose_tiles(q, kv, local, self.share, None)
    }
}

impl Case for Chosen {
    fn about(&self) -> About {
        let Self { num_q_heads, num_kv_heads, head_dim, q_len, kv_len, share, format, .. } = self;
        let op = if self.choice { "choose_tiles" } else { "attention_over_tiles" };
        let paged = if self.paged { ",paged" } else { "" };
        let id = format!(
            "{op}_{format}/hq={num_q_heads},hkv={num_kv_heads},d={head_dim},q={q_len},kv={kv_len},share={share}{paged}"
        );
        let output = match self.choice {
            true => [*num_q_heads, self.blocks(), self.tiles()],
            false => [*num_q_heads, *q_len, *head_dim],
        };
        About {
            op,
            id,
            purpose: self.purpose,
            output: (output.into(), DType::F32),
            tolerance: match self.choice {
                true => Tolerance::EXACT,
                // scores are up to 24, of which an ulp is eight times that of those of normal data
                false => tolerance(DType::F32, 2e-5),
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, d, row) = (self.id(), self.head_dim, 2 * self.num_kv_heads);
        let mut q = data::normal(&id, "q", [self.num_q_heads, self.q_len, d], DType::F32);
        q.values.chunks_mut(d).for_each(|q| q[0] = UNIT);
        let mut kv = data::normal(&id, "kv", [self.rows(), row, d], DType::F32);
        let mut keys = vec![None; self.rows()];
        (0..self.kv_len).for_each(|key| keys[self.place(key)] = Some(key));
        for (values, key) in kv.values.chunks_mut((row * d).max(1)).zip(keys) {
            match key {
                None => values.fill(f32::NAN), // rows of no key must not be read
                Some(key) => {
                    let offset = self.offset(key / KEYS_PER_CHOICE) * (d as f32).sqrt() / UNIT;
                    values.chunks_mut(d).take(self.num_kv_heads).for_each(|k| k[0] = offset);
                }
            }
        }
        let local = (0..self.blocks()).map(|block| self.local(block) as f32).collect();
        let table = (0..self.pages()).rev().map(|page| page as f32).collect();
        vec![
            q,
            kv,
            HostTensor::new([self.blocks()], DType::U32, local),
            HostTensor::new([self.pages()], DType::U32, table),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [q, kv, local, table] = inputs else { unreachable!("four inputs") };
        let run = |[k, v]: &[KvTensor; 2]| {
            let kv = SequenceKv { k, v, table: self.paged.then_some(table), len: self.kv_len };
            let tiles = self.choose(q, kv, local)?;
            if !self.choice {
                return ops::attention_over_tiles_into(y, q, kv, &tiles, None);
            }
            let mut found = vec![0.0f32; self.num_q_heads * self.blocks() * self.tiles()];
            for (at, row) in found.chunks_mut(self.tiles().max(1)).enumerate() {
                for tile in tiles.of_block(at / self.blocks(), at % self.blocks())? {
                    row[tile as usize] += 1.0;
                }
            }
            y.write(&found)
        };
        self.held.with(&q.device(), || super::kv::fill(kv, self.format), run)
    }

    /// The kernels of attention over all keys.
    fn baseline(&self, y: TensorMut, inputs: &[Tensor]) -> Option<Result<()>> {
        let [q, kv, _, table] = inputs else { unreachable!("four inputs") };
        let run = |[k, v]: &[KvTensor; 2]| ops::paged_attention_into(y, q, k, v, table, self.kv_len, None);
        (self.paged && !self.choice && self.share == 1.0)
            .then(|| self.held.with(&q.device(), || super::kv::fill(kv, self.format), run))
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [q, kv, ..] = inputs else { unreachable!("four inputs") };
        if self.choice {
            let row = |&r: &usize| {
                let mut chosen = self.chosen(inputs, r / self.blocks(), r % self.blocks());
                chosen.resize(self.tiles(), false);
                chosen.into_iter().map(|chosen| f64::from(u8::from(chosen)))
            };
            return rows.iter().flat_map(row).collect();
        }
        let attend = |&r: &usize| {
            let (head, i) = (r / self.q_len, r % self.q_len);
            let chosen = self.chosen(inputs, head, i / QUERIES_PER_CHOICE);
            let keys = (0..self.visible(i)).filter(|key| chosen[key / KEYS_PER_CHOICE]);
            let keys: Vec<_> = keys.map(|key| self.stored(kv, head, key)).collect();
            naive(q.row(r), keys.iter().map(|[k, v]| (&k[..], &v[..])))
        };
        rows.iter().flat_map(attend).collect()
    }

    /// Of attention over all keys.
    fn flops(&self) -> f64 {
        let keys: usize = (0..self.q_len).map(|i| self.visible(i)).sum();
        4.0 * (self.num_q_heads * self.head_dim * keys) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let values = (2 * self.num_kv_heads * self.kv_len * self.head_dim) as f64;
        values * self.format.stored_bits() / 8.0
            + (2 * self.num_q_heads * self.q_len * self.head_dim * 4) as f64
    }

    fn compute_bound(&self) -> bool {
        true
    }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    let mut add =
        |(num_q_heads, num_kv_heads, head_dim), (q_len, kv_len), share, paged, format, choice, purpose| {
            let held = Held::default();
            let case = Chosen {
                num_q_heads,
                num_kv_heads,
                head_dim,
                q_len,
                kv_len,
                share,
                paged,
                format,
                purpose,
                choice,
                held,
            };
            cases.push(Box::new(case) as Box<dyn Case>);
        };
    for format in [KvFormat::F32, KvFormat::F16, KvFormat::BF16, KvFormat::Q8_0] {
        for (heads, lens, share, paged) in [
            ((4, 2, 128), (70, 700), 0.9, true),
            ((2, 1, 64), (130, 517), 0.6, false),
            ((2, 2, 24), (17, 300), 0.99, true),
            ((3, 1, 80), (65, 641), 0.5, false),
            ((2, 1, 128), (64, 384), 1.0, true),
        ] {
            add(heads, lens, share, paged, format, false, Purpose::Test);
        }
        add((2, 1, 128), (100, 1000), 0.8, true, format, true, Purpose::Test);
    }
    // the edges: no queries, one, no key before the queries, a share of almost nothing, more samples than a block has
    for (lens, share, paged) in [
        ((0, 5), 0.5, false),
        ((1, 1), 0.5, true),
        ((1, 129), 0.01, false),
        ((64, 64), 0.9, true),
        ((63, 64), 0.9, false),
        ((200, 200), 0.7, true),
        ((1030, 1100), 0.7, false),
    ] {
        for choice in [false, true] {
            add((2, 1, 64), lens, share, paged, KvFormat::F32, choice, Purpose::Test);
        }
    }
    // more tiles than have their weights in shared memory
    add((1, 1, 16), (64, 262_400), 0.89, true, KvFormat::F16, true, Purpose::Test);
    for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0] {
        for (kv_len, share) in [(8192, 0.95), (32768, 0.95), (32768, 1.0)] {
            add((16, 8, 128), (1024, kv_len), share, true, format, false, Purpose::Bench);
        }
    }
    cases.sort_by_key(|case| case.op()); // stable
    cases
}
