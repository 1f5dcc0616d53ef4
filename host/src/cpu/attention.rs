//! Attention: blocks of queries in parallel, each over tiles of keys with a running maximum and sum, as the GPU does
//! it (Dao 2023, FlashAttention-2, algorithm 1).

use super::{slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::kv::{KvFormat, KvView};
use crate::parallel::InTasks;
use crate::problem::attention::{HeadStrides, Problem};
use crate::quant::Format;
use crate::simd::{dot, vectorized};
use crate::{Result, Tensor, TensorMut};
use half::f16;
use kernels_gpu::float16::Decoder;
use kernels_gpu::kv::HostBlocks;
use kernels_gpu::quant::blocks::BLOCK;
use rayon::prelude::*;
use std::marker::PhantomData;

/// Queries of a task. They share each tile of keys that is read.
pub(super) const QUERIES: usize = 16;
/// Keys of a tile: with 128 columns of f32, the tile's keys and values fit a core's L1 cache together.
pub(super) const KEYS: usize = 32;

/// The keys of a tile that a query attends to, one bit each, the tile's first key lowest.
pub(super) type Seen = u32;

/// Which keys are read, and which queries attend to them. It is asked a few times for each tile, so that attention need not be
/// compiled for each kind.
pub(super) trait Keys: Sync {
    /// The tiles that any of up to [`QUERIES`] queries from `first` on attends to: first key and number of keys, at most
    /// [`KEYS`]. `head` is a query head, counted over all batches.
    fn tiles(&self, head: usize, first: usize) -> Vec<(usize, usize)>;

    /// The rows of keys and values that hold the keys of query head `head` from key `tile` on.
    fn rows(&self, _head: usize, tile: usize, rows: &mut [usize]) {
        (tile..).zip(rows).for_each(|(key, row)| *row = key);
    }

    /// The keys of a tile that query `i` attends to.
    fn seen(&self, head: usize, i: usize, tile: usize) -> Seen;
}

/// All keys, or for causal attention those up to each query's position.
impl Keys for Problem {
    fn tiles(&self, _: usize, first: usize) -> Vec<(usize, usize)> {
        let last = (first + QUERIES).min(self.q_len) - 1;
        (0..self.visible(last)).step_by(KEYS).map(|tile| (tile, KEYS.min(self.kv_len - tile))).collect()
    }

    fn seen(&self, _: usize, i: usize, tile: usize) -> Seen {
        let count = self.visible(i).saturating_sub(tile).min(KEYS);
        if count == 0 { 0 } else { Seen::MAX >> (KEYS - count) }
    }
}

/// Keys or values in the format that they are stored in.
pub(super) trait StoredRows: Sync {
    /// Reads the elements from number `start` on, all of one row.
    fn read(&self, to: &mut [f32], start: usize);
}

impl<T: Float> StoredRows for &[T] {
    #[inline(always)]
    fn read(&self, to: &mut [f32], start: usize) {
        T::read(&self[start..][..to.len()], to);
    }
}

struct Codes<'a>(&'a [f16], Decoder);

impl StoredRows for Codes<'_> {
    #[inline(always)]
    fn read(&self, to: &mut [f32], start: usize) {
        let Self(codes, decoder) = self;
        let codes = codes[start..].iter().map(|code| decoder.upper(u32::from(code.to_bits()) << 16));
        to.iter_mut().zip(codes).for_each(|(to, from)| *to = from);
    }
}

/// Blocks of BYTES bytes of quants.
struct Blocks<'a, F, const BYTES: usize> {
    quants: &'a [u8],
    scales: &'a [f16],
    format: PhantomData<fn() -> F>,
}

impl<F: HostBlocks, const BYTES: usize> StoredRows for Blocks<'_, F, BYTES> {
    #[inline(always)]
    fn read(&self, to: &mut [f32], start: usize) {
        let quants = self.quants[start / BLOCK * BYTES..].chunks(BYTES);
        let scales = self.scales[start / BLOCK..].iter().map(|scale| scale.to_f32());
        for ((to, quants), scale) in to.chunks_mut(BLOCK).zip(quants).zip(scales) {
            F::read(quants, scale, to);
        }
    }
}

impl<'a> KvView<'a> {
    fn codes(self, exponent_bits: u32) -> Result<Codes<'a>> {
        Ok(Codes(slice(self.values)?, Decoder::new(exponent_bits)))
    }

    fn blocks<F, const BYTES: usize>(self) -> Result<Blocks<'a, F, BYTES>> {
        let scales = self.scales.map_or(Ok(&[][..]), slice)?;
        let quants = bytemuck::cast_slice(slice::<u32>(self.values)?);
        Ok(Blocks { quants, scales, format: PhantomData })
    }
}

pub(crate) fn attention(out: TensorMut, q: &Tensor, [k, v]: [KvView; 2], problem: &Problem) -> Result<()> {
    attention_over(out, q, [k, v], problem, problem)
}

macro_rules! by_format {
    ($($(#[$about:meta])* $format:ident $file:ident $name:literal;)*) => {
        /// Keys or values, read one row at a time.
        pub(super) fn stored(x: KvView) -> Result<Box<dyn StoredRows + '_>> {
            Ok(match x.format {
                KvFormat::F32 => Box::new(slice::<f32>(x.values)?),
                KvFormat::F16 => Box::new(slice::<f16>(x.values)?),
                KvFormat::Float16(bits) => Box::new(x.codes(bits)?),
                $(KvFormat::$format => {
                    const BYTES: usize = Format::$format.descriptor().bits * BLOCK / 8;
                    Box::new(x.blocks::<kernels_gpu::kv::$file::$format, BYTES>()?)
                })*
            })
        }

        /// Attention over the keys that `keys` lists.
        pub(super) fn attention_over(
            out: TensorMut,
            q: &Tensor,
            [k, v]: [KvView; 2],
            problem: &Problem,
            keys: &dyn Keys,
        ) -> Result<()> {
            match k.format {
                KvFormat::F32 => {
                    let kv = [slice::<f32>(k.values)?, slice::<f32>(v.values)?];
                    over(out, q, kv, problem, keys)
                }
                KvFormat::F16 => {
                    let kv = [slice::<f16>(k.values)?, slice::<f16>(v.values)?];
                    over(out, q, kv, problem, keys)
                }
                KvFormat::Float16(bits) => over(out, q, [k.codes(bits)?, v.codes(bits)?], problem, keys),
                $(KvFormat::$format => {
                    const BYTES: usize = Format::$format.descriptor().bits * BLOCK / 8;
                    type Rows<'a> = Blocks<'a, kernels_gpu::kv::$file::$format, BYTES>;
                    let kv: [Rows; 2] = [k.blocks()?, v.blocks()?];
                    over(out, q, kv, problem, keys)
                })*
            }
        }
    };
}
kernels_gpu::for_each_kv_format!(by_format);

fn over<R: StoredRows>(
    mut out: TensorMut,
    q: &Tensor,
    [k, v]: [R; 2],
    problem: &Problem,
    keys: &dyn Keys,
) -> Result<()> {
    if problem.batch * problem.num_q_heads * problem.q_len == 0 {
        return Ok(());
    }
    let queries = stored(KvView::plain(q))?;
    let heads = problem.batch * problem.num_q_heads;
    let blocks = problem.q_len.div_ceil(QUERIES);
    let mut rows = vec![Vec::new(); heads * blocks];
    rows.par_iter_mut().enumerate().in_tasks(|(task, rows)| {
        *rows =
            vectorized!(block(&*queries, [&k, &v], problem, keys, task / blocks, task % blocks * QUERIES));
    });
    with_float!(q.dtype(), T => {
        let out = slice_mut::<T>(&mut out)?;
        for (task, rows) in rows.iter().enumerate() {
            let start = start(problem.out, problem, task / blocks, 1);
            for (i, row) in rows.chunks_exact(problem.head_dim).enumerate() {
                let at = start + (task % blocks * QUERIES + i) * problem.out.row;
                out[at..at + problem.head_dim].iter_mut().zip(row).for_each(|(y, x)| *y = T::from_f32(*x));
            }
        }
    });
    Ok(())
}

/// The first element of query head `head` (counted over all batches), or of the kv head that `group` query heads share.
pub(super) fn start(strides: HeadStrides, problem: &Problem, head: usize, group: usize) -> usize {
    head / problem.num_q_heads * strides.batch + head % problem.num_q_heads / group * strides.head
}

/// The results [rows, head_dim] of up to [`QUERIES`] queries of one head.
#[inline(always)]
fn block<R: StoredRows>(
    q: &dyn StoredRows,
    [k, v]: [&R; 2],
    problem: &Problem,
    keys: &dyn Keys,
    head: usize,
    first: usize,
) -> Vec<f32> {
    let d = problem.head_dim;
    let queries = QUERIES.min(problem.q_len - first);
    let mut q_rows = vec![0.0; queries * d];
    let q_start = start(problem.q, problem, head, 1) + first * problem.q.row;
    for (i, row) in q_rows.chunks_exact_mut(d).enumerate() {
        q.read(row, q_start + i * problem.q.row);
    }
    q_rows.iter_mut().for_each(|x| *x *= problem.scale);

    let group = problem.group();
    let (k_start, v_start) = (start(problem.k, problem, head, group), start(problem.v, problem, head, group));
    let mut acc = vec![0.0; queries * d];
    let mut max = [f32::NEG_INFINITY; QUERIES];
    let mut sum = [0.0; QUERIES];
    let (mut k_tile, mut v_tile) = (vec![0.0; KEYS * d], vec![0.0; KEYS * d]);
    for (tile, count) in keys.tiles(head, first) {
        let mut places = [0; KEYS];
        keys.rows(head, tile, &mut places[..count]);
        for (j, &row) in places[..count].iter().enumerate() {
            let columns = j * d..(j + 1) * d;
            k.read(&mut k_tile[columns.clone()], k_start + row * problem.k.row);
            v.read(&mut v_tile[columns], v_start + row * problem.v.row);
        }
        for i in 0..queries {
            let seen = keys.seen(head, first + i, tile);
            if seen == 0 {
                continue;
            }
            let is_seen = |j: usize| seen >> j & 1 == 1;
            let query = &q_rows[i * d..(i + 1) * d];
            let mut scores = [f32::NEG_INFINITY; KEYS];
            let mut new_max = max[i];
            for j in (0..count).filter(|&j| is_seen(j)) {
                scores[j] = dot(query, &k_tile[j * d..(j + 1) * d]);
                new_max = new_max.max(scores[j]);
            }
            // only −∞ so far: weights of 0, not NaN
            let base = if new_max == f32::NEG_INFINITY { 0.0 } else { new_max };
            let rescale = (max[i] - base).exp();
            max[i] = new_max;
            sum[i] *= rescale;
            let acc = &mut acc[i * d..(i + 1) * d];
            acc.iter_mut().for_each(|x| *x *= rescale);
            for j in (0..count).filter(|&j| is_seen(j)) {
                let weight = (scores[j] - base).exp();
                sum[i] += weight;
                let value = &v_tile[j * d..(j + 1) * d];
                acc.iter_mut().zip(value).for_each(|(acc, value)| *acc += weight * value);
            }
        }
    }
    for (row, sum) in acc.chunks_exact_mut(d).zip(sum) {
        let factor = if sum == 0.0 { 0.0 } else { 1.0 / sum };
        row.iter_mut().for_each(|x| *x *= factor);
    }
    acc
}
