//! Attention over keys and values in pages, of sequences with lengths of their own. The reference rounds keys and values and then
//! follows the definition.

use super::attention::{NORMAL, naive, tolerance};
use super::held::Held;
use super::kv::stored;
use super::{About, Case, HostTensor, Purpose, data};
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::ops::{self, PAGE};
use pascaline::{DType, Result, Tensor, TensorMut};

struct Paged {
    num_q_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    /// Keys of each sequence.
    lens: Vec<usize>,
    /// Queries of the only sequence, or `None` for one of each sequence.
    q_len: Option<usize>,
    /// Whether all sequences begin with the first one's first page.
    shared: bool,
    /// Entries of a table after those that the longest sequence needs.
    spare: usize,
    format: KvFormat,
    purpose: Purpose,
    /// Filled when the case first runs on a device.
    held: Held<[KvTensor; 2]>,
}

/// Entries of the table that no key needs: no page has this number, and kernels must not read it.
const NO_PAGE: u32 = 1 << 20;

impl Paged {
    fn width(&self) -> usize {
        self.lens.iter().max().map_or(0, |len| len.div_ceil(PAGE)) + self.spare
    }

    fn q_shape(&self) -> [usize; 3] {
        match self.q_len {
            None => [self.lens.len(), self.num_q_heads, self.head_dim],
            Some(q_len) => [self.num_q_heads, q_len, self.head_dim],
        }
    }

    /// Pages of the pool: one more than there are tokens for, which holds NaN.
    fn pages(&self) -> usize {
        self.lens.iter().map(|len| len.div_ceil(PAGE)).sum::<usize>() + 1
    }

    /// Each sequence's pages, in descending order and to each sequence in turn, so that no page is followed by its successor.
    fn tables(&self) -> Vec<Vec<u32>> {
        let mut next = self.pages() as u32 - 1;
        let mut tables = vec![Vec::new(); self.lens.len()];
        for page in 0..self.width() {
            for (table, len) in tables.iter_mut().zip(&self.lens) {
                if page < len.div_ceil(PAGE) {
                    next -= 1;
                    table.push(next);
                }
            }
        }
        if self.shared {
            let first = tables[0].first().copied();
            tables.iter_mut().for_each(|table| {
                if let (Some(own), Some(first)) = (table.first_mut(), first) {
                    *own = first;
                }
            });
        }
        tables
    }

    /// The pool's row of a sequence's key.
    fn place(&self, tables: &[Vec<u32>], sequence: usize, key: usize) -> usize {
        tables[sequence][key / PAGE] as usize * PAGE + key % PAGE
    }

    /// For a row of the output: its sequence, its head, and the number of keys it sees.
    fn row(&self, r: usize) -> (usize, usize, usize) {
        match self.q_len {
            None => (r / self.num_q_heads, r % self.num_q_heads, self.lens[r / self.num_q_heads]),
            Some(q_len) => (0, r / q_len, (r % q_len + 1 + self.lens[0]).saturating_sub(q_len)),
        }
    }
}

impl Case for Paged {
    fn about(&self) -> About {
        let Self { num_q_heads, num_kv_heads, head_dim, lens, format, spare, .. } = self;
        let lens = match lens.len() {
            0..=8 => lens.iter().map(usize::to_string).collect::<Vec<_>>().join("+"),
            many => format!("{many}x{}", lens[0]),
        };
        let q_len = self.q_len.map(|q_len| format!(",q={q_len}")).unwrap_or_default();
        let shared = if self.shared { ",shared" } else { "" };
        let id = format!(
            "paged_attention_{format}/hq={num_q_heads},hkv={num_kv_heads},d={head_dim},kv={lens},spare={spare}{q_len}{shared}"
        );
        About {
            op: "paged_attention",
            id,
            purpose: self.purpose,
            output: (self.q_shape().into(), DType::F32),
            // as attention's over a contiguous cache
            tolerance: tolerance(DType::F32, NORMAL),
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let (id, rows) = (self.id(), self.pages() * PAGE);
        let mut kv = data::normal(&id, "kv", [rows, 2 * self.num_kv_heads, self.head_dim], DType::F32);
        let row = 2 * self.num_kv_heads * self.head_dim;
        let tables = self.tables();
        let mut used = vec![false; rows];
        for (sequence, len) in self.lens.iter().enumerate() {
            (0..*len).for_each(|key| used[self.place(&tables, sequence, key)] = true);
        }
        for (values, _) in kv.values.chunks_mut(row.max(1)).zip(&used).filter(|(_, used)| !**used) {
            values.fill(f32::NAN); // rows of no sequence must not be read
        }
        let width = self.width();
        let entry = |table: &Vec<u32>, page: usize| table.get(page).copied().unwrap_or(NO_PAGE) as f32;
        let entries = tables.iter().flat_map(|table| (0..width).map(move |page| entry(table, page)));
        vec![
            data::normal(&id, "q", self.q_shape(), DType::F32),
            kv,
            HostTensor::new([self.lens.len(), width], DType::U32, entries.collect()),
            HostTensor::new([self.lens.len()], DType::U32, self.lens.iter().map(|&len| len as f32).collect()),
        ]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let [q, kv, tables, lens] = inputs else { unreachable!("four inputs") };
        let run = |[k, v]: &[KvTensor; 2]| match self.q_len {
            None => ops::paged_attention_each_into(y, q, k, v, tables, lens, None),
            Some(_) => {
                let table = tables.reshape([self.width()])?;
                ops::paged_attention_into(y, q, k, v, &table, self.lens[0], None)
            }
        };
        self.held.with(&q.device(), || super::kv::fill(kv, self.format), run)
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let ([q, kv, ..], tables) = (inputs, self.tables()) else { unreachable!("four inputs") };
        let (group, heads) = (self.num_q_heads / self.num_kv_heads, self.num_kv_heads);
        let attend = |&r: &usize| {
            let (sequence, head, seen) = self.row(r);
            let rows: Vec<[Vec<f32>; 2]> = (0..seen)
                .map(|key| {
                    let row = self.place(&tables, sequence, key) * 2 * heads + head / group;
                    [row, row + heads].map(|row| stored(kv.row(row), self.format))
                })
                .collect();
            naive(q.row(r), rows.iter().map(|[k, v]| (&k[..], &v[..])))
        };
        rows.iter().flat_map(attend).collect()
    }

    fn flops(&self) -> f64 {
        let keys: usize = match self.q_len {
            None => self.lens.iter().sum(),
            Some(q_len) => (0..q_len).map(|i| (i + 1 + self.lens[0]).saturating_sub(q_len)).sum(),
        };
        4.0 * (self.num_q_heads * self.head_dim * keys) as f64
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        let keys: usize = self.lens.iter().sum();
        let kv = (2 * self.num_kv_heads * keys * self.head_dim) as f64 * self.format.stored_bits() / 8.0;
        let queries = self.q_len.unwrap_or(self.lens.len());
        kv + (2 * self.num_q_heads * queries * self.head_dim * 4) as f64
    }

    fn compute_bound(&self) -> bool {
        self.q_len.is_some()
    }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    let mut add = |(num_q_heads, num_kv_heads, head_dim),
                   lens: &[usize],
                   q_len,
                   spare,
                   shared,
                   format,
                   purpose| {
        let (lens, held) = (lens.to_vec(), Held::default());
        let case =
            Paged { num_q_heads, num_kv_heads, head_dim, lens, q_len, shared, spare, format, purpose, held };
        cases.push(Box::new(case) as Box<dyn Case>);
    };
    for format in KvFormat::ALL {
        for (heads, lens, spare, shared) in [
            ((4, 2, 128), &[1, 33, 0, 300, 16, 17][..], 0, false),
            ((2, 2, 64), &[5, 1, 70], 3, true),
            ((4, 1, 80), &[65, 64, 63], 1, true),
            ((3, 1, 16), &[600], 0, false),
        ] {
            add(heads, lens, None, spare, shared, format, Purpose::Test);
        }
        for (heads, len, q_len) in [
            ((4, 2, 128), 65, 33),
            ((2, 1, 64), 1, 1),
            ((2, 2, 24), 17, 17),
            ((2, 1, 80), 160, 64),
            ((2, 1, 128), 40, 70),
        ] {
            add(heads, &[len], Some(q_len), 1, false, format, Purpose::Test);
        }
    }
    // edges: no sequences, no keys at all, and no table
    for lens in [&[][..], &[0, 0]] {
        for spare in [0, 2] {
            add((2, 1, 64), lens, None, spare, false, KvFormat::F16, Purpose::Test);
        }
    }
    add((2, 1, 64), &[5], Some(0), 0, false, KvFormat::F32, Purpose::Test);
    add((2, 1, 128), &[0], Some(3), 0, false, KvFormat::F32, Purpose::Test);
    for format in [KvFormat::F32, KvFormat::F16, KvFormat::Q8_0] {
        for (sequences, len) in [(1, 1024), (16, 1024), (64, 1024), (16, 8192)] {
            add((16, 8, 128), &vec![len; sequences], None, 0, false, format, Purpose::Bench);
        }
        add((16, 8, 128), &[2048], Some(128), 0, false, format, Purpose::Bench);
        add((16, 8, 128), &[2048], Some(2048), 0, false, format, Purpose::Bench);
    }
    cases
}
