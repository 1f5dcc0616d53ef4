//! Which matmul kernel, how k is split, and the grid.

use crate::cuda::{Arg, CudaDevice, args};
use crate::memory::DeviceBuffer;
use crate::ops::Activation;
use crate::ops::matmul::{Around, Batch, Matmul, Problem, Strides, Variant};
use crate::tensor::MAX_ELEMENTS;
use crate::{DType, Error, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::matmul::regtile::{self, strided, tile32, tile64, tile64_coded, tile128};
use kernels_gpu::matmul::{reduce, textbook, vector};

/// The largest grid along z.
const MAX_BATCH: usize = 65535;
/// The most rows of the kernels that read b once, and so of [`linear`].
pub(crate) const MAX_VECTOR_ROWS: usize = vector::MAX_M as usize;
/// Warps that a multiprocessor should have at work in those kernels: each has 4 KiB of b on their way.
const VECTOR_WARPS: u32 = 12;
/// The most parts that k is split into: more cost more to add than they gain.
const MAX_SPLITS: u32 = 32;

/// Element types, as the kernels' tables are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Types {
    F32,
    F16,
    /// a f32, b f16, c f32.
    Mixed,
}

/// Which of a and b are transposed, as the kernels' tables are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layouts {
    Nn,
    Nt,
    Tn,
}

/// All that the choice depends on.
#[derive(Clone, Copy, Debug)]
struct Query {
    batch: u32,
    m: u32,
    n: u32,
    k: u32,
    /// For the kernels that load 16 bytes (f16: 8) at a time: `None` if strides or alignment do not allow it.
    tile_layouts: Option<Layouts>,
    /// For the few-row kernels: `None` if a does not run along k, or neither extent of b is contiguous.
    vector_layouts: Option<Layouts>,
    types: Types,
    multiprocessors: u32,
}

/// A kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plan {
    variant: Variant,
    spec: KernelSpec,
    /// Blocks along x.
    blocks: u32,
    splits: u32,
    /// k of each part but the last.
    k_chunk: u32,
    /// 2 to this power of a block's warps share the columns, for `Vector` with a transposed b.
    log_parts: u32,
}

/// A register tile as the cost estimate sees it.
struct Tile {
    variant: Variant,
    bm: u32,
    bn: u32,
    /// Warps of a block, and blocks that fit a multiprocessor.
    warps: u32,
    resident: u32,
    /// Share of the multiply-add rate when the multiprocessor is full: 1 minus what loads and addresses take.
    rate: f64,
}

const TILES: [Tile; 3] = [
    Tile { variant: Variant::Tile128, bm: tile128::BM, bn: tile128::BN, warps: 8, resident: 2, rate: 0.90 },
    Tile { variant: Variant::Tile64, bm: tile64::BM, bn: tile64::BN, warps: 2, resident: 6, rate: 0.82 },
    Tile { variant: Variant::Tile32, bm: tile32::BM, bn: tile32::BN, warps: 1, resident: 10, rate: 0.75 },
];

/// Multiply-adds of a multiprocessor per clock.
const FMA_PER_CLOCK: f64 = 128.0;
/// Bytes per clock and multiprocessor that memory gives: 10 to 19 on all GPUs in question.
const BYTES_PER_CLOCK: f64 = 12.0;
/// Warps with which a multiprocessor reaches half its rate: dual issue and latencies want about eight.
const HALF_RATE_WARPS: f64 = 2.0;
/// Clocks before a block's first multiply-add and behind its last.
const BLOCK_CLOCKS: f64 = 1500.0;
/// Clocks that a second launch costs.
const LAUNCH_CLOCKS: f64 = 3000.0;

impl Tile {
    fn blocks(&self, q: &Query) -> u32 {
        q.m.div_ceil(self.bm) * q.n.div_ceil(self.bn)
    }

    /// Estimated clocks for this tile with k split `splits` times.
    fn clocks(&self, q: &Query, splits: u32) -> f64 {
        let blocks = f64::from(self.blocks(q)) * f64::from(q.batch) * f64::from(splits);
        let per_multiprocessor = (blocks / f64::from(q.multiprocessors)).ceil();
        let warps = per_multiprocessor.min(self.resident.into()) * f64::from(self.warps);
        let rate = FMA_PER_CLOCK * self.rate * warps / (warps + HALF_RATE_WARPS);
        let k = f64::from(q.k.div_ceil(splits));
        let work = f64::from(self.bm * self.bn) * k / rate;
        let rounds = (per_multiprocessor / f64::from(self.resident)).ceil();
        let mut clocks = per_multiprocessor * work + rounds * BLOCK_CLOCKS;
        if splits > 1 {
            let elements = f64::from(q.batch) * f64::from(q.m) * f64::from(q.n);
            let bytes = elements * 4.0 * (2.0 * f64::from(splits) + 1.0);
            clocks += LAUNCH_CLOCKS + bytes / (BYTES_PER_CLOCK * f64::from(q.multiprocessors));
        }
        clocks
    }
}

/// `k` in `splits` parts of a multiple of `step`: the chunk, and how many parts that really makes.
fn split(k: u32, splits: u32, step: u32) -> (u32, u32) {
    let chunk = k.div_ceil(splits.max(1)).next_multiple_of(step);
    (chunk, k.div_ceil(chunk))
}

/// The numbers of parts worth trying.
fn split_candidates(q: &Query, step: u32) -> impl Iterator<Item = u32> {
    let outputs = q.batch as u64 * q.m as u64 * q.n as u64;
    let by_memory = (MAX_ELEMENTS as u64 / outputs.max(1)).clamp(1, MAX_SPLITS.into()) as u32;
    let most = (q.k / (4 * step)).clamp(1, by_memory);
    (0..=MAX_SPLITS.ilog2()).map(|power| 1 << power).take_while(move |&splits| splits <= most)
}

/// The plan for this product; `None` if `variant` can't do it.
fn select(q: &Query, variant: Variant, splits: Option<u32>) -> Option<Plan> {
    let variant = match variant {
        Variant::Auto => choose(q),
        other => other,
    };
    let types = q.types as usize;
    let (mut splits, mut log_parts) = (splits, 0);
    let (spec, blocks, step) = match variant {
        Variant::Auto => return None,
        Variant::Textbook => {
            let tile = textbook::TILE;
            splits = Some(1);
            let f32 = (q.types == Types::F32).then_some(textbook::SPEC);
            (f32?, q.m.div_ceil(tile) * q.n.div_ceil(tile), q.k.max(1))
        }
        Variant::Tile128 => {
            (tile128::SPECS[q.tile_layouts? as usize][types], TILES[0].blocks(q), regtile::BK)
        }
        Variant::Tile64 => (tile64::SPECS[q.tile_layouts? as usize][types], TILES[1].blocks(q), regtile::BK),
        Variant::Tile32 => {
            let specs = tile32::SPECS.get(q.tile_layouts? as usize)?;
            (specs[types], TILES[2].blocks(q), regtile::BK)
        }
        Variant::Strided => {
            let blocks = q.m.div_ceil(strided::BM) * q.n.div_ceil(strided::BN);
            (strided::SPECS[types], blocks, regtile::BK)
        }
        Variant::Vector => {
            let nt = |table: usize| (vector::NT[table][types], choose_parts(q));
            let (spec, parts) = match q.vector_layouts? {
                Layouts::Nt if q.m <= 1 => nt(0),
                Layouts::Nt if q.m <= 4 => nt(1),
                Layouts::Nt if q.m <= vector::MAX_M => nt(2),
                Layouts::Nn if q.m <= 1 => (vector::NN[types], 0),
                _ => return None,
            };
            log_parts = parts;
            let columns = match q.vector_layouts? {
                Layouts::Nt => vector::NT_COLUMNS * (vector::WARPS >> parts),
                _ => vector::NN_COLUMNS,
            };
            (spec, q.n.div_ceil(columns), vector::K_STEP)
        }
    };
    let splits = splits.unwrap_or_else(|| choose_splits(q, variant, blocks, step));
    let (k_chunk, splits) = split(q.k, splits, step);
    Some(Plan { variant, spec, blocks, splits, k_chunk, log_parts })
}

/// The family for this product.
fn choose(q: &Query) -> Variant {
    match (q.vector_layouts, q.tile_layouts) {
        (Some(Layouts::Nt), _) if q.m <= 8 => Variant::Vector,
        (Some(Layouts::Nn), _) if q.m <= 1 => Variant::Vector,
        (_, None) => Variant::Strided,
        (_, Some(layouts)) => {
            let best = TILES
                .iter()
                .filter(|tile| tile.variant != Variant::Tile32 || (q.m <= tile.bm && layouts != Layouts::Tn))
                .map(|tile| (tile, best_splits(q, tile).1))
                .min_by(|(_, x), (_, y)| x.total_cmp(y));
            best.map_or(Variant::Strided, |(tile, _)| tile.variant)
        }
    }
}

/// The number of parts with the lowest estimate, and the estimate.
fn best_splits(q: &Query, tile: &Tile) -> (u32, f64) {
    split_candidates(q, regtile::BK)
        .map(|splits| (splits, tile.clocks(q, splits)))
        .min_by(|(_, x), (_, y)| x.total_cmp(y))
        .unwrap_or((1, 0.0))
}

/// Warps that read b if each reads whole columns.
fn vector_warps(q: &Query) -> u32 {
    q.n.div_ceil(vector::NT_COLUMNS).saturating_mul(q.batch).max(1)
}

/// The least power of two of warps for each column that keeps the memory busy, if k gives all their lanes something.
fn choose_parts(q: &Query) -> u32 {
    let wanted = VECTOR_WARPS * q.multiprocessors;
    let useful = |parts: u32| q.k >> parts >= vector::K_STEP;
    let most = vector::WARPS.ilog2();
    (0..most).find(|&parts| vector_warps(q) << parts >= wanted || !useful(parts + 1)).unwrap_or(most)
}

fn choose_splits(q: &Query, variant: Variant, blocks: u32, step: u32) -> u32 {
    if variant == Variant::Vector {
        // what a block's own warps can't do
        let warps = blocks.saturating_mul(q.batch).max(1).saturating_mul(vector::WARPS);
        let wanted = VECTOR_WARPS * q.multiprocessors / warps;
        return split_candidates(q, step).take_while(|&splits| splits <= wanted.max(1)).last().unwrap_or(1);
    }
    // the strided kernel has the tile of the 64 × 64 kernels
    let tile = TILES.iter().find(|tile| tile.variant == variant).unwrap_or(&TILES[1]);
    best_splits(q, tile).0
}

/// A matrix as the kernels see it: device address, type and strides.
#[derive(Clone, Copy)]
struct Operand {
    address: u64,
    dtype: DType,
    strides: Strides,
    batch: usize,
}

impl Operand {
    /// Whether vectors of `elements` begin at multiples of their size, whichever of the lines `ld` apart they are in.
    fn is_aligned(&self, ld: usize, elements: usize) -> bool {
        self.address.is_multiple_of((elements * self.dtype.size()) as u64)
            && ld.is_multiple_of(elements)
            && self.batch.is_multiple_of(elements)
    }
}

pub(crate) fn matmul(
    device: &CudaDevice,
    c: TensorMut,
    a: &Tensor,
    b: &Tensor,
    p: Problem,
    options: &Matmul,
    around: &Around,
) -> Result<()> {
    product(device, c, a, b, p, options, &Addresses::of(around))
}

fn product(
    device: &CudaDevice,
    c: TensorMut,
    a: &Tensor,
    b: &Tensor,
    mut p: Problem,
    options: &Matmul,
    around: &Addresses,
) -> Result<()> {
    let (mut from_a, mut from_b) = ((a.address(), a.dtype()), (b.address(), b.dtype()));
    if p.n == 1 && p.m > 1 && p.ldc == 1 && a.dtype() == b.dtype() && around.bias == 0 {
        // a·x for a column x is xᵀ·aᵀ, for which there are few-row kernels
        std::mem::swap(&mut p.m, &mut p.n);
        (p.a, p.b) = (transposed(p.b), transposed(p.a));
        (from_a, from_b) = (from_b, from_a);
        p.batch.iter_mut().for_each(|batch| std::mem::swap(&mut batch.a, &mut batch.b));
    }
    if p.m == 1 {
        (p.a.row, p.ldc) = (0, 0); // a row has no next one, whose alignment could matter
    }
    let inner = p.batch.last().copied().unwrap_or(Batch { extent: 1, a: 0, b: 0, c: 0 });
    for [at_a, at_b, at_c] in p.offsets(1) {
        for first in (0..inner.extent).step_by(MAX_BATCH) {
            let batch = (inner.extent - first).min(MAX_BATCH);
            let operand = |(address, dtype): (u64, DType), at: usize, strides, batch| Operand {
                address: address + (at * dtype.size()) as u64,
                dtype,
                strides,
                batch,
            };
            let a = operand(from_a, at_a + first * inner.a, p.a, inner.a);
            let b = operand(from_b, at_b + first * inner.b, p.b, inner.b);
            let strides = Strides { row: p.ldc, column: 1 };
            let c = operand((c.address(), c.dtype()), at_c + first * inner.c, strides, inner.c);
            launch(device, c, a, b, [batch as u32, p.m as u32, p.n as u32, p.k as u32], options, around)?;
        }
    }
    Ok(())
}

/// What stands around a product, as the kernels see it; 0 where there is nothing.
#[derive(Clone, Copy)]
struct Addresses {
    bias: u64,
    /// In c's place as the factor of beta.
    residual: u64,
    norm: u64,
    eps: f32,
    activation: u32,
    /// Which of the formats that there are kernels for b is in, if it is no f32 or f16.
    coded: Option<usize>,
}

impl Addresses {
    fn of(around: &Around) -> Self {
        let Around { norm, epilogue } = around;
        Self {
            bias: epilogue.bias.map_or(0, Tensor::address),
            residual: epilogue.residual.map_or(0, Tensor::address),
            norm: norm.map_or(0, |(weight, _)| weight.address()),
            eps: norm.map_or(0.0, |(_, eps)| eps),
            activation: super::activate::number(epilogue.activation),
            coded: None,
        }
    }
}

/// The exponent bits of 16-bit formats that products read as they are: 4 loses least on weights, 8 is bfloat16.
const CODED: [u32; 2] = [4, 8];

/// c = x·wᵀ for the codes `w` [n, k] of a format with `exponent_bits`; `false`, and nothing done, if no kernel reads that
/// format or these alignments.
pub(crate) fn coded(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &Tensor,
    exponent_bits: u32,
) -> Result<bool> {
    let Some(format) = CODED.iter().position(|&bits| bits == exponent_bits) else { return Ok(false) };
    let w = w.swap_dims(0, 1)?;
    let p = Problem::new(y.layout(), x.layout(), w.layout());
    let fits = [p.k, p.n].iter().all(|extent| extent.is_multiple_of(4)) && y.address().is_multiple_of(16);
    if p.is_empty() || !(fits && x.address().is_multiple_of(16)) {
        return Ok(false);
    }
    let variant = if p.m <= MAX_VECTOR_ROWS { Variant::Vector } else { Variant::Tile64 };
    let around = Addresses { coded: Some(format), ..Addresses::of(&Around::default()) };
    product(device, y, x, &w, p, &Matmul { variant, ..Matmul::default() }, &around)?;
    Ok(true)
}

/// y = act(norm(x)·wᵀ + bias) + residual in one launch, for up to [`MAX_VECTOR_ROWS`] rows; all are matrices, and k > 0.
pub(crate) fn linear(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &Tensor,
    around: &Around,
) -> Result<()> {
    let w = w.swap_dims(0, 1)?;
    let mut p = Problem::new(y.layout(), x.layout(), w.layout());
    p.n = w.dims()[1]; // of which y may have half
    if p.is_empty() {
        return Ok(());
    }
    let whole = around.norm.is_some() || around.epilogue.activation != Activation::Identity;
    // a block sees all of k where something is done with the whole sum
    let options = Matmul { variant: Variant::Vector, splits: whole.then_some(1), ..Matmul::default() };
    matmul(device, y, x, &w, p, &options, around)
}

fn transposed(strides: Strides) -> Strides {
    Strides { row: strides.column, column: strides.row }
}

/// What [`select`] is asked about these operands.
fn query(device: &CudaDevice, c: Operand, a: Operand, b: Operand, [batch, m, n, k]: [u32; 4]) -> Query {
    let types = match (a.dtype, b.dtype) {
        (DType::F32, DType::F32) => Types::F32,
        (DType::F32, _) => Types::Mixed,
        _ => Types::F16,
    };
    let quads = |extent: u32| extent.is_multiple_of(4);
    let a_n = a.strides.column == 1 && a.is_aligned(a.strides.row, 4) && quads(k);
    let a_t = a.strides.row == 1 && a.is_aligned(a.strides.column, 4) && quads(m);
    let b_n = b.strides.column == 1 && b.is_aligned(b.strides.row, 4) && quads(n);
    let b_t = b.strides.row == 1 && b.is_aligned(b.strides.column, 4) && quads(k);
    let c_fits = c.is_aligned(c.strides.row, 4) && quads(n);
    let tile_layouts = match (a_n, a_t, b_n, b_t) {
        _ if !c_fits => None,
        (true, _, true, _) => Some(Layouts::Nn),
        (true, _, _, true) => Some(Layouts::Nt),
        (_, true, true, _) => Some(Layouts::Tn),
        _ => None,
    };
    let vector_layouts = match (a.strides.column == 1 || k == 1, b.strides) {
        (false, _) => None,
        (true, Strides { row: 1, .. }) => Some(Layouts::Nt),
        (true, Strides { column: 1, .. }) => Some(Layouts::Nn),
        _ => None,
    };
    let multiprocessors = device.properties().multiprocessors.max(1);
    Query { batch, m, n, k, tile_layouts, vector_layouts, types, multiprocessors }
}

fn launch(
    device: &CudaDevice,
    c: Operand,
    a: Operand,
    b: Operand,
    dims: [u32; 4],
    options: &Matmul,
    around: &Addresses,
) -> Result<()> {
    let [batch, m, n, k] = dims;
    let Matmul { alpha, mut beta, variant, splits } = *options;
    let (bias, mut addend) = (around.bias, c.address);
    if around.residual != 0 {
        (beta, addend) = (1.0, around.residual);
    }
    let (ldc, stride_c) = (c.strides.row as u32, c.batch as u32);
    let write = args![alpha, beta, bias, addend];
    if k == 0 {
        return add_parts(device, c, 0, 0, dims, write);
    }
    let q = query(device, c, a, b, dims);
    let mut plan = select(&q, variant, splits).ok_or_else(|| Error::Unsupported {
        op: "matmul",
        argument: "variant",
        value: format!("{variant:?}"),
        reason: "its kernels can't do this shape, layout or type".into(),
    })?;
    if let Some(format) = around.coded {
        plan.spec = match plan.variant {
            Variant::Vector => vector::NT_CODED[format][usize::from(m > 1)],
            _ => tile64_coded::SPECS[0][format],
        };
    }
    let elements = plan.splits as usize * batch as usize * m as usize * n as usize;
    let scratch = match plan.splits {
        1 => None,
        _ if elements > MAX_ELEMENTS => {
            let (elements, limit) = (elements as u128, MAX_ELEMENTS as u128);
            return Err(Error::TooLarge { op: "matmul", argument: "splits", elements, limit });
        }
        _ => Some(DeviceBuffer::uninitialized(device, elements * size_of::<f32>())?),
    };
    let partial = scratch.as_ref().map_or(0, DeviceBuffer::address);
    let grid = [plan.blocks, plan.splits, batch];
    let (stride_a, stride_b) = (a.batch as u32, b.batch as u32);
    let (row_a, col_a) = (a.strides.row as u32, a.strides.column as u32);
    let (row_b, col_b) = (b.strides.row as u32, b.strides.column as u32);
    let (lda, ldb) = match plan.variant {
        Variant::Vector => (row_a, if q.vector_layouts == Some(Layouts::Nt) { col_b } else { row_b }),
        _ => (
            if q.tile_layouts == Some(Layouts::Tn) { col_a } else { row_a },
            if q.tile_layouts == Some(Layouts::Nt) { col_b } else { row_b },
        ),
    };
    let extents: &[Arg] = args![m, n, k];
    let strides = args![ldc, stride_a, stride_b, stride_c, plan.k_chunk];
    let operands: &[Arg] = args![c.address, a.address, b.address, partial];
    let arguments = match plan.variant {
        Variant::Textbook => {
            let lines = args![row_a, col_a, row_b, col_b, ldc, stride_a, stride_b, stride_c, alpha, beta];
            [&operands[..3], extents, lines].concat()
        }
        Variant::Strided => [operands, extents, args![row_a, col_a, row_b, col_b], strides, write].concat(),
        Variant::Vector if q.vector_layouts == Some(Layouts::Nt) => {
            let vectors = |x: &Operand, ld: u32| x.is_aligned(ld as usize, 16 / x.dtype.size());
            let aligned = vectors(&a, lda) && vectors(&b, ldb) && around.norm.is_multiple_of(16);
            let rest = args![u32::from(aligned), around.norm, around.eps, around.activation, plan.log_parts];
            [operands, extents, args![lda, ldb], strides, write, rest].concat()
        }
        Variant::Vector => {
            let aligned = b.is_aligned(ldb as usize, 4) && n.is_multiple_of(4);
            [operands, extents, args![lda, ldb], strides, write, args![u32::from(aligned)]].concat()
        }
        _ => [operands, extents, args![lda, ldb], strides, write].concat(),
    };
    // SAFETY: `ops::matmul_into` has checked that types, shapes and streams fit and that every extent times its stride
    // stays inside tensors of less than 2³¹ elements; a TensorMut overlaps nothing. What stands around the product was
    // checked by `ops::linear_into`: a residual lies as c does. `select` gives a kernel whose layouts and alignment are
    // those that `query` found, and parts of k that cover it, none of them empty. The scratch memory holds all parts and
    // is freed behind the launches.
    unsafe { device.launch(&plan.spec, grid, &arguments)? };
    match plan.splits {
        1 => Ok(()),
        parts => add_parts(device, c, partial, parts, dims, write),
    }
}

/// c = alpha·Σ parts + bias + beta·d, with `write` = (alpha, beta, bias, d).
fn add_parts(
    device: &CudaDevice,
    c: Operand,
    partial: u64,
    splits: u32,
    [batch, m, n, _]: [u32; 4],
    write: &[Arg],
) -> Result<()> {
    let spec = reduce::SPECS[usize::from(c.dtype == DType::F16)];
    let blocks = (m as usize * n as usize).div_ceil(reduce::THREADS as usize) as u32;
    let (ldc, stride_c) = (c.strides.row as u32, c.batch as u32);
    let arguments = [args![c.address, partial, m, n, ldc, stride_c, splits], write].concat();
    // SAFETY: as in `launch`; the parts were written by the launch before on the same stream, and none are read
    // where there are none.
    unsafe { device.launch(&spec, [blocks, 1, batch], &arguments) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P4: u32 = 20;
    const MX330: u32 = 3;

    fn nt(m: u32, n: u32, k: u32, multiprocessors: u32) -> Query {
        Query {
            batch: 1,
            m,
            n,
            k,
            tile_layouts: Some(Layouts::Nt),
            vector_layouts: Some(Layouts::Nt),
            types: Types::F32,
            multiprocessors,
        }
    }

    fn plan(q: &Query) -> Plan {
        select(q, Variant::Auto, None).unwrap()
    }

    #[test]
    fn large_products_take_large_tiles_unsplit() {
        for multiprocessors in [MX330, P4, 132] {
            let plan = plan(&nt(4096, 4096, 4096, multiprocessors));
            assert_eq!((plan.variant, plan.splits, plan.blocks), (Variant::Tile128, 1, 1024));
        }
    }

    #[test]
    fn few_rows_stream_the_weights() {
        assert_eq!(plan(&nt(1, 2048, 2048, P4)).spec, vector::NT[0][0]);
        assert_eq!(plan(&nt(3, 2048, 2048, P4)).spec, vector::NT[1][0]);
        assert_eq!(plan(&nt(8, 2048, 2048, P4)).spec, vector::NT[2][0]);
        assert_eq!(plan(&nt(16, 2048, 2048, P4)).variant, Variant::Tile32);
        let nn = Query { vector_layouts: Some(Layouts::Nn), ..nt(1, 2048, 2048, P4) };
        assert_eq!(plan(&nn).spec, vector::NN[0]);
    }

    #[test]
    fn few_tiles_and_a_long_k_are_split() {
        let plan = plan(&nt(64, 64, 16384, P4));
        assert!(plan.splits > 4, "{plan:?}");
    }

    #[test]
    fn what_is_not_aligned_runs_strided() {
        let q = Query { tile_layouts: None, ..nt(100, 101, 103, P4) };
        assert_eq!(plan(&q).variant, Variant::Strided);
        assert_eq!(select(&q, Variant::Tile128, None), None);
        assert_eq!(select(&q, Variant::Vector, None), None, "100 rows");
    }

    #[test]
    fn the_parts_cover_k_and_none_is_empty() {
        for k in [1, 7, 8, 9, 255, 256, 257, 1000, 4096, 65537] {
            for wanted in 1..40 {
                for step in [8, 256] {
                    let (chunk, splits) = split(k, wanted, step);
                    assert!(chunk % step == 0 && splits <= wanted);
                    assert!(chunk * (splits - 1) < k && k <= chunk * splits, "{k} {wanted} {step}");
                }
            }
        }
    }
}
