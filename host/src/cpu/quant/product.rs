//! y = x·wᵀ for 8-bit activations and quantised w. The integer sums of each block of 32 are exact. A value of y is the sum
//! of these times the blocks' factors, in f32 and in the order of the blocks, so a row's result does not depend on the other
//! rows.
//!
//! Columns of y are computed in tiles, which are rows of w that are contiguous in memory. A task has several tiles. It reads x in
//! pieces of [`ROWS`] rows, which stay in the core's cache while all of the task's tiles use them. [`Instructions`] has what computes a
//! tile.

use super::portable;
use super::tile::{Activations, ROWS};
#[cfg(target_arch = "x86_64")]
use super::x86::{Panel, WeightBytes, avx2, avx512};
use crate::cpu::{activate, slice, slice_mut};
use crate::parallel::InTasks;
use crate::problem::activate::{Activation, Epilogue};
use crate::quant::{Format, QuantRows, QuantTensor};
use crate::simd::{Avx2, Avx512};
use crate::{Result, TensorMut};
use rayon::prelude::*;
use std::ops::Range;

/// Tasks for each thread, so that a slow one does not delay all. A task's first tile is waited for.
const TASKS: usize = 4;
/// The most columns of a task: more would push x out of the cache, fewer read it more often.
const COLUMNS: usize = 64;
/// Multiply-adds below which parallel tasks cost more than they save.
const PARALLEL: usize = 1 << 18;

/// What computes tiles.
#[derive(Clone, Copy, Debug)]
enum Instructions {
    Avx512(Avx512),
    Avx2(Avx2),
    /// Any processor's.
    Portable,
}

impl Instructions {
    /// What this processor has, the quickest first.
    fn all() -> impl Iterator<Item = Self> {
        let vectors = [Avx512::detect().map(Self::Avx512), Avx2::detect().map(Self::Avx2)];
        vectors.into_iter().flatten().chain([Self::Portable])
    }

    fn best() -> Self {
        Self::all().next().unwrap_or(Self::Portable)
    }
}

pub(crate) fn matmul(mut y: TensorMut, x: &QuantRows, w: &QuantTensor, epilogue: &Epilogue) -> Result<()> {
    let m = x.shape.rows_cols().0;
    let x = Activations::new(x)?;
    let bias = epilogue.bias.map(slice::<f32>).transpose()?;
    let residual = epilogue.residual.map(slice::<f32>).transpose()?;
    let (n, activation) = (w.rows(), epilogue.activation);
    let is_plain = bias.is_none() && residual.is_none() && activation == Activation::Identity;
    product(Instructions::best(), &mut slice_mut::<f32>(&mut y)?[..m * n], x, w, |first, y| {
        for (row, y) in y.iter_mut().enumerate().filter(|_| !is_plain) {
            for (column, y) in (first..).zip(y.iter_mut()) {
                let biased = *y + bias.map_or(0.0, |bias| bias[column]);
                let value = activate::value(biased, activation);
                *y = value + residual.map_or(0.0, |residual| residual[row * n + column]);
            }
        }
    })
}

/// y [m, n] = x·wᵀ. `finish` is called with some columns of all rows when they are complete, and the number of the first.
fn product(
    by: Instructions,
    y: &mut [f32],
    x: Activations,
    w: &QuantTensor,
    finish: impl Fn(usize, &mut [&mut [f32]]) + Sync,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let (rows, w) = (Rows::new(by, x, w.format()), Weights::new(w));
    in_tasks(rows.tile(), y, x, w.tensor, |first, y| {
        rows.columns(y, &w, first)?;
        finish(first, y);
        Ok(())
    })
}

/// Rows of x as the instructions read them, for weights of one format.
enum Rows<'a> {
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512, Vec<Panel>),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2, avx2::PreparedRows<'a>),
    Portable(portable::Rows),
}

impl<'a> Rows<'a> {
    fn new(by: Instructions, x: Activations<'a>, format: Format) -> Self {
        match by {
            #[cfg(target_arch = "x86_64")]
            // one row is read as fast as AVX2 computes most formats, in tiles of fewer rows of w, which memory delivers sooner; the bits are
            // the same
            Instructions::Avx512(avx512) if x.rows() == 1 && !is_small(format) => {
                Self::new(Instructions::Avx2(avx512.avx2()), x, format)
            }
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512(avx512) => Self::Avx512(avx512, avx512::prepared(x)),
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2(avx2) => Self::Avx2(avx2, avx2::PreparedRows::new(x, format)),
            _ => Self::Portable(portable::Rows::new(x)),
        }
    }

    /// Columns of a tile.
    fn tile(&self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(..) => avx512::TILE,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(..) => avx2::TILE,
            Self::Portable(_) => portable::TILE,
        }
    }

    /// Columns of y from number `first` on, for all rows.
    fn columns(&self, y: &mut [&mut [f32]], w: &Weights, first: usize) -> Result<()> {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(avx512, x) => avx512::tiles(*avx512, y, x, &w.bytes, first),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(avx2, x) => avx2::tiles(*avx2, y, x, &w.bytes, first),
            Self::Portable(x) => portable::columns(y, x, w.tensor, first)?,
        }
        Ok(())
    }
}

/// Whether weights of this format take longer to multiply by one row with AVX2 than to read.
#[cfg(target_arch = "x86_64")]
fn is_small(format: Format) -> bool {
    matches!(format, Format::Q2K | Format::Q3K)
}

struct Weights<'a> {
    tensor: &'a QuantTensor,
    #[cfg(target_arch = "x86_64")]
    bytes: WeightBytes<'a>,
}

impl<'a> Weights<'a> {
    fn new(tensor: &'a QuantTensor) -> Self {
        Self {
            tensor,
            #[cfg(target_arch = "x86_64")]
            bytes: WeightBytes::new(tensor),
        }
    }
}

/// Some rows of x, and the number of the first row of each w that they are multiplied by.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub rows: Range<usize>,
    pub first: usize,
}

/// Columns of a group's task: more would leave threads without one at the end, fewer make a task wait for memory for much of its time.
pub(crate) const GROUP_COLUMNS: usize = 256;

/// Each of `ys`, [m, n] without gaps, is the product of the groups' rows of x with n rows each of one of `matrices`. The groups have all of x,
/// in order.
pub(crate) fn grouped(
    ys: &mut [TensorMut],
    x: &QuantRows,
    matrices: &[&QuantTensor],
    groups: &[Group],
) -> Result<()> {
    let (m, n) = (x.shape.rows_cols().0, ys.first().map_or(0, |y| y.dims()[1]));
    let (x, by) = (Activations::new(x)?, Instructions::best());
    // the tasks write into these; each group's rows of a matrix are prepared once
    let mut products = Vec::with_capacity(matrices.len() * groups.len());
    let weights: Vec<_> = matrices.iter().map(|w| Weights::new(w)).collect();
    for (y, w) in ys.iter_mut().zip(&weights) {
        let mut y = &mut slice_mut::<f32>(y)?[..m * n];
        for Group { rows, first } in groups {
            let (of_group, others) = y.split_at_mut(rows.len() * n);
            y = others;
            products.push((x.range(rows), w, *first, of_group, None));
        }
    }
    // to prepare a value costs about as much as eight multiply-adds
    let work = 8 * x.k * m.div_ceil(groups.len().max(1));
    let prepare = PARALLEL.div_ceil(work.max(1));
    products.par_iter_mut().with_min_len(prepare).in_tasks(|(x, w, _, _, rows)| {
        *rows = Some(Rows::new(by, *x, w.tensor.format()));
    });
    let mut parts = Vec::new();
    for (x, w, first, y, rows) in &mut products {
        let Some(rows) = &*rows else { continue }; // there is none: each was prepared
        let columns = if x.rows() > ROWS { COLUMNS } else { GROUP_COLUMNS };
        let firsts = (*first..).step_by(columns);
        parts.extend(firsts.zip(by_columns(y, n, columns)).map(|(first, y)| (rows, *w, first, y)));
    }
    parts.par_iter_mut().try_in_tasks(|(rows, w, first, y)| rows.columns(y, w, *first))
}

/// Calls `f` in parallel with all rows of some columns, and the number of the first: a whole number of tiles, but for the last.
fn in_tasks(
    tile: usize,
    y: &mut [f32],
    x: Activations,
    w: &QuantTensor,
    f: impl Fn(usize, &mut [&mut [f32]]) -> Result<()> + Sync,
) -> Result<()> {
    let (m, n) = (x.rows(), w.rows());
    let tiles = n.div_ceil(tile);
    let most = if m > ROWS { COLUMNS / tile } else { tiles };
    // none so short that it costs more than it saves
    let least = (PARALLEL / 4).div_ceil(tile * m * w.k.max(1));
    let each = match m * n * w.k <= PARALLEL {
        true => tiles,
        false => tiles.div_ceil(TASKS * rayon::current_num_threads()).max(least).clamp(1, most),
    };
    let mut tasks = by_columns(y, n, each * tile);
    match tasks.as_mut_slice() {
        [task] => f(0, task),
        tasks => tasks.par_iter_mut().enumerate().try_in_tasks(|(task, y)| f(task * each * tile, y)),
    }
}

/// All rows of y, [m, n], in parts of so many columns.
fn by_columns(y: &mut [f32], n: usize, columns: usize) -> Vec<Vec<&mut [f32]>> {
    let mut parts: Vec<_> =
        (0..n.div_ceil(columns)).map(|_| Vec::with_capacity(y.len().div_ceil(n.max(1)))).collect();
    for row in y.chunks_exact_mut(n) {
        for (part, columns) in parts.iter_mut().zip(row.chunks_mut(columns)) {
            part.push(columns);
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::{FORMATS, name};
    use crate::{DType, Device, Tensor, ops};
    use kernels_gpu::quant::blocks::BLOCK;
    use std::sync::Mutex;

    /// x·wᵀ in f64 of the stored values.
    fn reference(x: &QuantRows, w: &QuantTensor) -> Result<Vec<f64>> {
        let weights = ops::dequantize(w, DType::F32)?.to_vec::<f32>()?;
        let (quants, scales) = x.to_vecs()?;
        let rows = quants.chunks_exact(x.k).zip(scales.chunks_exact(x.k / BLOCK));
        Ok(rows
            .flat_map(|(quants, scales)| {
                weights.chunks_exact(w.cols()).map(move |w| {
                    let value = |i: usize| f64::from(scales[i / BLOCK].0) * f64::from(quants[i]);
                    w.iter().enumerate().map(|(i, w)| f64::from(*w) * value(i)).sum()
                })
            })
            .collect())
    }

    /// y [m, n].
    fn product(by: Instructions, x: &QuantRows, w: &QuantTensor) -> Result<Vec<f32>> {
        let activations = Activations::new(x)?;
        let mut y = vec![f32::NAN; x.shape.rows_cols().0 * w.rows()];
        let finished = Mutex::new(vec![0; w.rows()]);
        super::product(by, &mut y, activations, w, |first, y| {
            let columns = first..first + y[0].len();
            finished.lock().unwrap()[columns].iter_mut().for_each(|times| *times += 1);
        })?;
        assert!(y.is_empty() || finished.lock().unwrap().iter().all(|&times| times == 1), "{finished:?}");
        Ok(y)
    }

    fn check(x: &Tensor, w: &QuantTensor) -> Result<()> {
        let x = ops::quantize_rows(x)?;
        let want = reference(&x, w)?;
        let largest = want.iter().fold(0f64, |max, x| max.max(x.abs()));
        for by in Instructions::all() {
            let got = product(by, &x, w)?;
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let close = (f64::from(*got) - want).abs() <= 1e-5 * largest;
                let (format, shape) = (name(w.format()), w.shape());
                assert!(close, "{format} {shape} {by:?}: value {i} is {got}, not {want}");
            }
        }
        Ok(())
    }

    fn randn(shape: [usize; 2], seed: u64) -> Result<Tensor> {
        Tensor::randn(shape, DType::F32, seed, &Device::Cpu)
    }

    #[test]
    fn all_formats_and_ragged_sizes() -> Result<()> {
        for format in FORMATS {
            for (m, n, k) in [(1, 1, 1), (1, 9, 33), (2, 8, 32), (3, 17, 300), (33, 7, 256), (65, 24, 1000)] {
                check(&randn([m, k], 1)?, &ops::quantize(&randn([n, k], 2)?, format)?)?;
            }
        }
        Ok(())
    }

    /// Quants that no quantiser writes but a file can hold, such as −128, and the largest sums possible.
    #[test]
    fn all_quants_and_the_largest_sums() -> Result<()> {
        let (n, k) = (9, 512);
        for format in FORMATS {
            for fill in [0, 0x7f7f_7f7f, 0x8080_8080, u32::MAX, 0x9e37_79b9] {
                let mut w = ops::quantize(&randn([n, k], 3)?, format)?;
                let mut quants = w.quants.view_mut()?;
                for (i, word) in slice_mut::<u32>(&mut quants)?.iter_mut().enumerate() {
                    *word =
                        if fill == 0x9e37_79b9 { (i as u32).wrapping_mul(fill).rotate_left(7) } else { fill };
                }
                for x in [1.0, -1.0] {
                    check(&Tensor::full(x, [2, k], &Device::Cpu)?, &w)?;
                }
                check(&randn([2, k], 4)?, &w)?;
            }
        }
        Ok(())
    }

    /// With more than one piece and more than one task, a row gives the same result as alone.
    #[test]
    fn a_row_is_the_same_alone() -> Result<()> {
        let (m, n, k) = (ROWS + 2, 8 * COLUMNS + 3, 1024);
        let x = randn([m, k], 5)?;
        let threads = rayon::ThreadPoolBuilder::new().num_threads(16).build().unwrap();
        for format in FORMATS {
            let w = ops::quantize(&randn([n, k], 6)?, format)?;
            for by in Instructions::all() {
                let all = threads.install(|| product(by, &ops::quantize_rows(&x)?, &w))?;
                for row in [0, ROWS - 1, ROWS + 1] {
                    let alone = product(by, &ops::quantize_rows(&x.narrow(0, row, 1)?)?, &w)?;
                    assert!(alone == all[row * n..][..n], "{} row {row} {by:?}", name(format));
                }
            }
        }
        Ok(())
    }

    /// The same sums in the same order: a model's answer does not depend on which of both a processor has.
    #[test]
    fn avx512_gives_the_bits_of_avx2() -> Result<()> {
        let (Some(avx2), Some(avx512)) = (Avx2::detect(), Avx512::detect()) else {
            eprintln!("not tested: this processor has no AVX-512 with VNNI");
            return Ok(());
        };
        for format in FORMATS {
            for m in [1, 35] {
                let (x, w) = (randn([m, 2100], 9)?, ops::quantize(&randn([41, 2100], 10)?, format)?);
                let x = ops::quantize_rows(&x)?;
                let of_both = [Instructions::Avx2(avx2), Instructions::Avx512(avx512)];
                let [first, second] = of_both.map(|by| product(by, &x, &w));
                assert!(first? == second?, "{}", name(format));
            }
        }
        Ok(())
    }

    #[test]
    fn no_rows_and_no_columns() -> Result<()> {
        for format in FORMATS {
            let w = ops::quantize(&randn([0, 32], 7)?, format)?;
            assert!(product(Instructions::best(), &ops::quantize_rows(&randn([1, 32], 8)?)?, &w)?.is_empty());
        }
        Ok(())
    }
}
