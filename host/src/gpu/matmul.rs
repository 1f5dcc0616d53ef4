//! Launches of matmul: operands as the kernels see them, the grid, and the parts of k. `select` chooses.

use crate::cuda::{Arg, CudaDevice, args};
use crate::memory::DeviceBuffer;
use crate::problem::activate::Activation;
use crate::problem::matmul::{Batch, Fusion, Matmul, MatrixStrides, Problem, Variant};
use crate::tensor::MAX_ELEMENTS;
use crate::{DType, Error, Result, Tensor, TensorMut};
use kernels_gpu::matmul::regtile::tile64_coded;
use kernels_gpu::matmul::{reduce, vector};
use select::{Layouts, Query, Types, select};

pub(crate) mod select;
pub(crate) mod table;

/// The largest grid along z.
const MAX_BATCH: usize = 65535;
/// The most rows of the kernels that read b once, and so of [`linear`].
pub(crate) const MAX_VECTOR_ROWS: usize = vector::MAX_M as usize;

/// A matrix as the kernels see it: device address, type and strides.
#[derive(Clone, Copy)]
struct Operand {
    address: u64,
    dtype: DType,
    strides: MatrixStrides,
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
    fusion: &Fusion,
) -> Result<()> {
    product(device, c, a, b, p, options, &Addresses::of(fusion))
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
            let strides = MatrixStrides { row: p.ldc, column: 1 };
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
    fn of(fusion: &Fusion) -> Self {
        let Fusion { norm, epilogue } = fusion;
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
    let variant = if p.m == 1 { Variant::Vector } else { Variant::Tile("tile64") };
    let around = Addresses { coded: Some(format), ..Addresses::of(&Fusion::default()) };
    product(device, y, x, &w, p, &Matmul { variant, ..Matmul::default() }, &around)?;
    Ok(true)
}

/// y = act(norm(x)·wᵀ + bias) + residual in one launch, for up to [`MAX_VECTOR_ROWS`] rows; all are matrices, and k > 0.
pub(crate) fn linear(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &Tensor,
    fusion: &Fusion,
) -> Result<()> {
    let w = w.swap_dims(0, 1)?;
    let mut p = Problem::new(y.layout(), x.layout(), w.layout());
    p.n = w.dims()[1]; // of which y may have half
    if p.is_empty() {
        return Ok(());
    }
    let whole = fusion.norm.is_some() || fusion.epilogue.activation != Activation::Identity;
    // a block sees all of k where something is done with the whole sum
    let options = Matmul { variant: Variant::Vector, splits: whole.then_some(1), ..Matmul::default() };
    matmul(device, y, x, &w, p, &options, fusion)
}

fn transposed(strides: MatrixStrides) -> MatrixStrides {
    MatrixStrides { row: strides.column, column: strides.row }
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
        (true, MatrixStrides { row: 1, .. }) => Some(Layouts::Nt),
        (true, MatrixStrides { column: 1, .. }) => Some(Layouts::Nn),
        _ => None,
    };
    let multiprocessors = device.properties().multiprocessors.max(1);
    let low_power = device.prefers_low_power();
    Query { batch, m, n, k, tile_layouts, vector_layouts, types, multiprocessors, low_power }
}

/// The tile for a large product on the device as it is now, of any number of multiprocessors, by a table in which one tile needs
/// less energy.
#[cfg(test)]
pub(crate) fn large_product_with_a_sparing_tile(device: &CudaDevice) -> &'static str {
    let operand = Operand {
        address: 256,
        dtype: DType::F32,
        strides: MatrixStrides { row: 4096, column: 1 },
        batch: 0,
    };
    let q = Query { multiprocessors: 20, ..query(device, operand, operand, operand, [1, 4096, 4096, 4096]) };
    let plan = select(&select::tests::sparing(), &q, Variant::Auto, None);
    match plan.map(|plan| plan.variant) {
        Some(Variant::Tile(name)) => name,
        other => unreachable!("{other:?} for a large product"),
    }
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
    let mut plan =
        select(table::of(device.properties())?, &q, variant, splits).ok_or_else(|| Error::Unsupported {
            op: "matmul",
            argument: "variant",
            value: format!("{variant:?}"),
            reason: "its kernels can't do this shape, layout or type".into(),
        })?;
    if let Some(format) = around.coded {
        plan.spec = match plan.variant {
            Variant::Vector => vector::NT_CODED[format],
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
    unsafe { device.launch_args(&plan.spec, grid, &arguments)? };
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
    unsafe { device.launch_args(&spec, [blocks, 1, batch], &arguments) }
}
