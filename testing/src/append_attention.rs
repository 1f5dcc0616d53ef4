//! Attention of tokens that are appended in the same launch, in caches and in pages. The reference rotates, rounds, and then follows the
//! definition. Where stored values are rounded, angles are quarter turns, so that both sides round the same numbers.

use super::attention::{NORMAL, naive, tolerance};
use super::held::Held;
use super::kv::{fill, read, stored, types};
use super::rope_append::{BEFORE, EPS, rotated};
use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::ops::{self, HeadNorms, PAGE, Projection};
use pascaline::{DType, Result, Tensor, TensorMut};
use std::sync::Mutex;

/// The tokens before those that are appended.
enum Past {
    /// The first rows of a cache, which has room for so many more; the rows appended follow each other.
    Cache { past: usize, rows: usize, room: usize },
    /// Of each sequence, in pages; one row of each is appended.
    Pages(Vec<usize>),
}

struct Append {
    past: Past,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    norms: bool,
    /// The type of the projection and of the output.
    dtype: DType,
    format: KvFormat,
    purpose: Purpose,
    /// Filled when a bench first runs on a device.
    held: Held<Mutex<[KvTensor; 2]>>,
}

/// Rows of the tables of angles, and the first row's angle.
const ANGLES: usize = 7;
const FIRST: usize = 2;

impl Append {
    fn rows(&self) -> usize {
        match &self.past {
            Past::Cache { rows, .. } => *rows,
            Past::Pages(lens) => lens.len(),
        }
    }

    /// Rows of each cache: in pages, one page more than there are tokens for.
    fn capacity(&self) -> usize {
        match &self.past {
            Past::Cache { past, room, .. } => past + room,
            Past::Pages(lens) => (lens.iter().map(|len| len / PAGE + 1).sum::<usize>() + 1) * PAGE,
        }
    }

    /// Entries of a page table.
    fn width(&self) -> usize {
        match &self.past {
            Past::Cache { .. } => 0,
            Past::Pages(lens) => lens.iter().max().map_or(0, |len| len / PAGE + 1),
        }
    }

    /// The rows of the cache with the keys that row `i` attends to, its own among them, if they are in it.
    fn keys(&self, i: usize) -> Vec<usize> {
        match &self.past {
            Past::Cache { past, .. } => (0..(past + i + 1).min(self.capacity())).collect(),
            Past::Pages(lens) => {
                (0..=lens[i]).map(|key| self.table(i, key / PAGE) * PAGE + key % PAGE).collect()
            }
        }
    }

    /// A page of sequence `i`: the last sequence has the first pages, each its own in descending order.
    fn table(&self, i: usize, page: usize) -> usize {
        let Past::Pages(lens) = &self.past else { unreachable!("pages") };
        let after: usize = lens[i..].iter().map(|len| len / PAGE + 1).sum();
        after - 1 - page.min(lens[i] / PAGE)
    }

    /// The row of the cache that row `i` is appended to, which may be beyond it.
    fn slot(&self, i: usize) -> usize {
        match &self.past {
            Past::Cache { past, .. } => past + i,
            Past::Pages(lens) => self.keys(i)[lens[i]],
        }
    }

    /// The angle of row `i`, before it is limited.
    fn angle(&self, i: usize) -> usize {
        match &self.past {
            Past::Cache { .. } => FIRST + i,
            Past::Pages(lens) => lens[i],
        }
    }

    /// Head `head` of row `i` of the projection, rotated. Exact but for the norm.
    fn head(&self, inputs: &[HostTensor], i: usize, head: usize) -> Vec<f32> {
        let x = inputs[0].row(i * (self.heads + 2 * self.kv_heads) + head);
        if head >= self.heads + self.kv_heads {
            return x.to_vec();
        }
        let weight = &inputs[if head < self.heads { 3 } else { 4 }].values;
        let angle = self.angle(i).min(ANGLES - 1);
        let x = rotated(x, self.norms.then_some(weight), [inputs[1].row(angle), inputs[2].row(angle)]);
        x.into_iter().map(|x| x as f32).collect()
    }

    /// Row `row` of the keys, or of the values, after the op.
    fn kept(&self, inputs: &[HostTensor], row: usize, head: usize, is_value: bool) -> Vec<f32> {
        let of_heads = self.kv_heads * usize::from(is_value) + head;
        let new = (0..self.rows()).find(|&i| self.slot(i) == row);
        match new {
            Some(i) => stored(&self.head(inputs, i, self.heads + of_heads), self.format),
            None => stored(inputs[6].row(row * 2 * self.kv_heads + of_heads), self.format),
        }
    }

    /// Rows of the output: out's, and in a test those of both caches.
    fn parts(&self) -> [usize; 2] {
        let cache = if self.purpose == Purpose::Test { self.capacity() * self.kv_heads } else { 0 };
        [self.rows() * self.heads, cache]
    }
}

impl Case for Append {
    fn about(&self) -> About {
        let Self { heads, kv_heads, dim, dtype, format, .. } = self;
        let norms = if self.norms { ",norms" } else { "" };
        let (op, of_past) = match &self.past {
            Past::Cache { past, rows, room } => {
                ("append_attention", format!("rows={rows},past={past},room={room}"))
            }
            Past::Pages(lens) => {
                let each = match &lens[..] {
                    [first, .., last] if lens.len() > 8 && first == last => format!("{}x{first}", lens.len()),
                    lens => lens.iter().map(usize::to_string).collect::<Vec<_>>().join("+"),
                };
                ("paged_append_attention", format!("past={each}"))
            }
        };
        let [of_out, of_cache] = self.parts();
        let dtype_of_output = if self.purpose == Purpose::Test { DType::F32 } else { *dtype };
        About {
            op,
            id: format!("{op}_{dtype}_{format}/{of_past},h={heads},hkv={kv_heads},d={dim}{norms}"),
            purpose: self.purpose,
            output: ([of_out + 2 * of_cache, *dim].into(), dtype_of_output),
            tolerance: match self.norms {
                true => Tolerance::new(2e-5, 1.2e-6, "rounding of scores whose q and k are normed, rsqrt"),
                false => tolerance(*dtype, NORMAL), // as attention over a cache; nothing else is rounded twice
            },
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, dtype, rows, half) = (self.id(), self.dtype, self.rows(), self.dim / 2);
        let [cos, sin] = match self.norms {
            true => data::angles(&id, [ANGLES, half]),
            false => [[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 0.0, -1.0]].map(|turn: [f32; 4]| {
                let values = (0..ANGLES * half).map(|i| turn[(i / half + i % half) % 4]).collect();
                HostTensor::new([ANGLES, half], DType::F32, values)
            }),
        };
        let mut kv = data::normal(&id, "kv", [self.capacity(), 2 * self.kv_heads, self.dim], dtype);
        let mut used = vec![false; self.capacity()];
        (0..rows).flat_map(|i| self.keys(i)).for_each(|row| used[row] = true);
        let of_row = (2 * self.kv_heads * self.dim).max(1);
        for (values, _) in kv.values.chunks_mut(of_row).zip(&used).filter(|(_, used)| !**used) {
            values.fill(BEFORE); // neither read nor written
        }
        let at = match &self.past {
            Past::Cache { past, .. } => HostTensor::new([2], DType::U32, vec![*past as f32, FIRST as f32]),
            Past::Pages(_) => {
                let slots = (0..rows).map(|i| self.slot(i) as f32);
                let at = slots.chain((0..rows).map(|i| self.angle(i) as f32)).collect();
                HostTensor::new([2, rows], DType::U32, at)
            }
        };
        let (pages, lens) = match &self.past {
            Past::Cache { .. } => (vec![], vec![]),
            Past::Pages(lens) => (
                (0..rows)
                    .flat_map(|i| (0..self.width()).map(move |page| self.table(i, page) as f32))
                    .collect(),
                lens.iter().map(|&len| (len + 1) as f32).collect(),
            ),
        };
        vec![
            data::normal(&id, "qkv", [rows, self.heads + 2 * self.kv_heads, self.dim], dtype),
            cos,
            sin,
            data::normal(&id, "q_weight", [self.dim], dtype),
            data::normal(&id, "k_weight", [self.dim], dtype),
            at,
            kv,
            HostTensor::new([lens.len(), self.width()], DType::U32, pages),
            HostTensor::new([lens.len()], DType::U32, lens),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [qkv, cos, sin, q, k, at, kv, tables, lens] = inputs else { unreachable!("nine inputs") };
        let norms = self.norms.then_some(HeadNorms { q, k, eps: EPS });
        let from = Projection { qkv, cos, sin, norms, at };
        let shape = [self.rows(), self.heads, self.dim];
        let run = |out: TensorMut, [k, v]: &mut [KvTensor; 2]| match self.past {
            Past::Cache { .. } => ops::append_attention_into(out, [k, v], &from, None),
            Past::Pages(_) => ops::paged_append_attention_into(out, [k, v], &from, [tables, lens], None),
        };
        if self.purpose == Purpose::Bench {
            let make = || fill(kv, self.format).map(Mutex::new);
            return self.held.with(&qkv.device(), make, |caches| {
                run(y.reshape(shape)?, &mut caches.lock().expect("no bench has panicked"))
            });
        }
        let mut caches = fill(kv, self.format)?;
        let mut out = Tensor::uninitialized(shape, self.dtype, &qkv.device())?;
        run(out.view_mut()?, &mut caches)?;
        let [k, v] = &caches;
        let all = [ops::cast(&out, DType::F32)?.to_vec()?, read(k)?, read(v)?].concat();
        ops::copy_into(y, &Tensor::from_slice(&all, self.output().0, &qkv.device())?)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let [of_out, of_cache] = self.parts();
        let row = |&r: &usize| -> Vec<f64> {
            if let Some(r) = r.checked_sub(of_out) {
                let (is_value, row) = (r >= of_cache, r % of_cache / self.kv_heads);
                let kept = self.kept(inputs, row, r % self.kv_heads, is_value);
                return kept.into_iter().map(f64::from).collect();
            }
            let (i, head) = (r / self.heads, r % self.heads);
            let kv_head = head / (self.heads / self.kv_heads);
            let kept = |row| [false, true].map(|is_value| self.kept(inputs, row, kv_head, is_value));
            let keys: Vec<[Vec<f32>; 2]> = self.keys(i).into_iter().map(kept).collect();
            naive(&self.head(inputs, i, head), keys.iter().map(|[k, v]| (&k[..], &v[..])))
        };
        rows.iter().flat_map(row).collect()
    }

    fn flops(&self) -> f64 {
        let keys: usize = (0..self.rows()).map(|i| self.keys(i).len()).sum();
        4.0 * (self.heads * self.dim * keys) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let keys: usize = match &self.past {
            Past::Cache { past, rows, .. } => past + rows,
            Past::Pages(lens) => lens.iter().map(|len| len + 1).sum(),
        };
        let kv = (2 * self.kv_heads * keys * self.dim) as f64 * self.format.stored_bits() / 8.0;
        let of_rows = self.rows() * (2 * self.heads + 2 * self.kv_heads) * self.dim * self.dtype.size();
        kv + of_rows as f64
    }

    fn compute_bound(&self) -> bool {
        false
    }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Append> = Vec::new();
    for (dtype, format) in types() {
        let case = |past, (heads, kv_heads), dim, norms| Append {
            past,
            heads,
            kv_heads,
            dim,
            norms,
            dtype,
            format,
            purpose: Purpose::Test,
            held: Held::default(),
        };
        let cache = |past, rows, room| Past::Cache { past, rows, room };
        for (past, heads, dim) in [
            (cache(0, 1, 9), (4, 2), 128),
            (cache(33, 1, 300), (16, 8), 128),
            (cache(300, 1, 1), (8, 2), 128),
            (cache(64, 2, 90), (4, 2), 128),
            (cache(97, 3, 3), (3, 3), 64),
            (cache(257, 1, 7), (3, 1), 64),
            (cache(5, 8, 8), (4, 1), 128),
            (cache(200, 8, 20), (2, 1), 80),
            (cache(65, 1, 600), (8, 1), 72),
            (cache(65, 5, 20), (6, 2), 16),
            // more rows than there is room for: those without are dropped
            (cache(30, 5, 2), (4, 2), 64),
            (cache(30, 2, 0), (2, 1), 128),
        ] {
            cases.push(case(past, heads, dim, false));
        }
        let pages = |lens: &[usize]| Past::Pages(lens.to_vec());
        if dtype == DType::F32 {
            for (past, heads, dim) in [
                (pages(&[0, 33, 16, 300, 15, 17]), (4, 2), 128),
                (pages(&[5, 1, 70]), (2, 2), 64),
                (pages(&[65, 64, 63]), (4, 1), 80),
                (pages(&[600]), (8, 1), 16),
            ] {
                cases.push(case(past, heads, dim, false));
            }
        }
        if dtype == DType::F32 && format == KvFormat::F32 {
            for (past, heads, dim) in [
                (cache(33, 1, 9), (4, 2), 128),
                (cache(70, 2, 9), (4, 2), 64),
                (cache(0, 8, 8), (2, 1), 72),
                (pages(&[9, 80]), (4, 2), 128),
            ] {
                cases.push(case(past, heads, dim, true));
            }
            cases.push(case(cache(3, 0, 4), (2, 1), 64, true));
            cases.push(case(pages(&[]), (2, 1), 64, true));
        }
        if [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0].contains(&format) && dtype == DType::F32 {
            let pasts = [cache(1023, 1, 1), cache(8191, 1, 1), Past::Pages(vec![1023; 16])];
            let benches = pasts.map(|past| case(past, (16, 8), 128, true));
            cases.extend(benches.map(|case| Append { purpose: Purpose::Bench, ..case }));
        }
    }
    cases.into_iter().map(|case| Box::new(case) as Box<dyn Case>).collect()
}
