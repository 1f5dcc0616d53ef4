//! Launches of matmul: operands, grid and split-K. `select` chooses the kernel.

use super::DeviceElement;
use crate::cuda::{CudaDevice, MAX_GRID};
use crate::memory::DeviceBuffer;
use crate::problem::activate::Activation;
use crate::problem::matmul::{Batch, Fusion, Matmul, MatrixStrides, Problem, Variant};
use crate::tensor::MAX_ELEMENTS;
use crate::{DType, Error, Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::float16::Float16;
use kernels_gpu::matmul::reduce::{self, Reduce};
use kernels_gpu::matmul::regtile::{AnyStrides, Tile};
use kernels_gpu::matmul::vector::{self, Nn, Nt};
use kernels_gpu::matmul::{Kernels, OF_E4, OF_E8, OF_F16, OF_F32, OF_MIXED};
use select::{Cut, Kernel, Layouts, Plan, Query, Types, select};
use std::ptr;
use table::Table;

mod query;
pub(crate) mod select;
pub(crate) mod table;

/// The largest grid along z.
const MAX_BATCH: usize = MAX_GRID[2] as usize;
/// The most rows of the kernels that read b once, and so of [`linear`].
pub(crate) const MAX_VECTOR_ROWS: usize = vector::MAX_M as usize;

/// Codes of a 16-bit float; they are stored in an f16 tensor with the same bits.
impl<const E: u32> DeviceElement for Float16<E> {
    const DTYPE: DType = DType::F16;
}

/// A matrix, or several that are `batch` elements apart, in the kernels' terms.
#[derive(Clone, Copy)]
struct Operand<P> {
    pointer: P,
    strides: MatrixStrides,
    batch: usize,
}

impl<T> Operand<*const T> {
    /// Whether vectors of `elements` elements are aligned in every line; lines are `ld` apart.
    fn is_aligned(&self, ld: usize, elements: usize) -> bool {
        (self.pointer as usize).is_multiple_of(elements * size_of::<T>())
            && ld.is_multiple_of(elements)
            && self.batch.is_multiple_of(elements)
    }
}

impl<T> Operand<*mut T> {
    fn as_const(&self) -> Operand<*const T> {
        Operand { pointer: self.pointer.cast_const(), strides: self.strides, batch: self.batch }
    }
}

/// The operands of one launch, and batch, m, n and k.
#[derive(Clone, Copy)]
struct Operands<A, B, C> {
    c: Operand<*mut C>,
    a: Operand<*const A>,
    b: Operand<*const B>,
    dims: [u32; 4],
}

impl<A: Copy, B: Copy, C: Copy> Operands<A, B, C> {
    /// Both parts of a product without a norm.
    fn cut(&self, fused: &Fused<A, C>, cut: Cut) -> [(Self, Fused<A, C>); 2] {
        let ([batch, m, n, k], mut second, mut of_second) = (self.dims, *self, *fused);
        let (first, at) = match cut {
            Cut::Rows(rows) => {
                second.a.pointer = self.a.pointer.wrapping_add(rows as usize * self.a.strides.row);
                second.dims = [batch, m - rows, n, k];
                ([batch, rows, n, k], rows as usize * self.c.strides.row)
            }
            Cut::Columns(columns) => {
                second.b.pointer = self.b.pointer.wrapping_add(columns as usize * self.b.strides.column);
                second.dims = [batch, m, n - columns, k];
                if !fused.bias.is_null() {
                    of_second.bias = fused.bias.wrapping_add(columns as usize);
                }
                ([batch, m, columns, k], columns as usize)
            }
        };
        second.c.pointer = self.c.pointer.wrapping_add(at);
        of_second.residual = fused.residual.map(|residual| residual.wrapping_add(at));
        [(Self { dims: first, ..*self }, *fused), (second, of_second)]
    }
}

/// The prologue and the epilogue of a product in the kernels' terms.
#[derive(Clone, Copy)]
struct Fused<A, C> {
    alpha: f32,
    beta: f32,
    /// Null if there is no bias.
    bias: *const C,
    /// The matrix that beta scales, if it is not c.
    residual: Option<*const C>,
    /// Null if there is no norm.
    norm: *const A,
    eps: f32,
    activation: u32,
}

impl<A: DeviceElement, C: DeviceElement> Fused<A, C> {
    fn new(options: &Matmul, Fusion { norm, epilogue }: &Fusion) -> Self {
        let residual = epilogue.residual.map(Tensor::ptr);
        Self {
            alpha: options.alpha,
            beta: if residual.is_some() { 1.0 } else { options.beta },
            bias: epilogue.bias.map_or(ptr::null(), Tensor::ptr),
            residual,
            norm: norm.map_or(ptr::null(), |(weight, _)| weight.ptr()),
            eps: norm.map_or(0.0, |(_, eps)| eps),
            activation: super::activate::number(epilogue.activation),
        }
    }
}

pub(crate) fn matmul<'a>(
    device: &CudaDevice,
    c: TensorMut,
    mut a: &'a Tensor,
    mut b: &'a Tensor,
    mut p: Problem,
    options: &Matmul,
    fusion: &Fusion,
) -> Result<()> {
    // a bias applies to columns and a norm to rows of a; the transposed product exchanges rows and columns
    let cut = matches!(options.variant, Variant::Rows(_) | Variant::Columns(_));
    let plain = fusion.epilogue.bias.is_none() && fusion.norm.is_none() && !cut;
    if p.n == 1 && p.m > 1 && p.ldc == 1 && a.dtype() == b.dtype() && plain {
        // a·x for a column x is xᵀ·aᵀ, which the few-row kernels compute
        std::mem::swap(&mut p.m, &mut p.n);
        (p.a, p.b) = (transposed(p.b), transposed(p.a));
        (a, b) = (b, a);
        p.batch.iter_mut().for_each(|batch| std::mem::swap(&mut batch.a, &mut batch.b));
    }
    match (a.dtype(), b.dtype()) {
        (DType::F32, DType::F32) => product(device, &OF_F32, c, [a, b], p, options, fusion),
        (DType::F32, _) => product(device, &OF_MIXED, c, [a, b], p, options, fusion),
        _ => product(device, &OF_F16, c, [a, b], p, options, fusion),
    }
}

fn product<A: DeviceElement, B: DeviceElement, C: DeviceElement>(
    device: &CudaDevice,
    kernels: &Kernels<A, B, C>,
    c: TensorMut,
    [a, b]: [&Tensor; 2],
    mut p: Problem,
    options: &Matmul,
    fusion: &Fusion,
) -> Result<()> {
    if p.m == 1 {
        (p.a.row, p.ldc) = (0, 0); // a single row has no next row whose alignment matters
    }
    let (c, a, b) = (c.ptr::<C>(), a.ptr::<A>(), b.ptr::<B>());
    let fused = Fused::new(options, fusion);
    let inner = p.batch.last().copied().unwrap_or(Batch { extent: 1, a: 0, b: 0, c: 0 });
    for [at_a, at_b, at_c] in p.offsets(1) {
        for first in (0..inner.extent).step_by(MAX_BATCH) {
            let batch = (inner.extent - first).min(MAX_BATCH);
            let c = c.wrapping_add(at_c + first * inner.c);
            let a = a.wrapping_add(at_a + first * inner.a);
            let b = b.wrapping_add(at_b + first * inner.b);
            let strides = MatrixStrides { row: p.ldc, column: 1 };
            let operands = Operands {
                c: Operand { pointer: c, strides, batch: inner.c },
                a: Operand { pointer: a, strides: p.a, batch: inner.a },
                b: Operand { pointer: b, strides: p.b, batch: inner.b },
                dims: [batch as u32, p.m as u32, p.n as u32, p.k as u32],
            };
            launch(device, kernels, &operands, options, &fused)?;
        }
    }
    Ok(())
}

/// c = x·wᵀ for the codes `w` [n, k] of a format with `exponent_bits`. Returns `false` if no kernel supports the format or
/// the alignment. There are kernels for 4 exponent bits, the format with the smallest error on weights, and for 8, bfloat16.
pub(crate) fn coded(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &Tensor,
    exponent_bits: u32,
) -> Result<bool> {
    let w = w.swap_dims(0, 1)?;
    let p = Problem::new(y.layout(), x.layout(), w.layout());
    let fits = [p.k, p.n].iter().all(|dim| dim.is_multiple_of(4)) && y.address().is_multiple_of(16);
    if p.is_empty() || !(fits && x.address().is_multiple_of(16)) {
        return Ok(false);
    }
    let variant = if p.m == 1 { Variant::Vector } else { Variant::Tile("tile64") };
    let (options, fusion) = (Matmul { variant, ..Matmul::default() }, Fusion::default());
    match exponent_bits {
        4 => product(device, &OF_E4, y, [x, &w], p, &options, &fusion)?,
        8 => product(device, &OF_E8, y, [x, &w], p, &options, &fusion)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// y = act(norm(x)·wᵀ + bias) + residual in one launch, for up to [`MAX_VECTOR_ROWS`] rows. All are matrices, and k > 0.
pub(crate) fn linear(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &Tensor,
    fusion: &Fusion,
) -> Result<()> {
    let w = w.swap_dims(0, 1)?;
    let mut p = Problem::new(y.layout(), x.layout(), w.layout());
    p.n = w.dims()[1]; // y has half as many, if gated
    // both are contiguous, but a dimension of one entry may have any stride, and only one layout has kernels with an activation
    p.a = MatrixStrides { row: p.k, column: 1 };
    p.b = MatrixStrides { row: 1, column: p.k };
    if p.is_empty() {
        return Ok(());
    }
    let whole = fusion.norm.is_some() || fusion.epilogue.activation != Activation::Identity;
    // an activation or a gate needs the whole sum, so a block multiplies all of k
    let options = Matmul { variant: Variant::Vector, splits: whole.then_some(1), ..Matmul::default() };
    matmul(device, y, x, &w, p, &options, fusion)
}

fn transposed(strides: MatrixStrides) -> MatrixStrides {
    MatrixStrides { row: strides.column, column: strides.row }
}

/// The query to [`select`] for these operands.
fn query<A: DeviceElement, B: DeviceElement, C>(device: &CudaDevice, x: &Operands<A, B, C>) -> Query {
    let Operands { c, a, b, dims: [batch, m, n, k] } = x;
    let (c, [batch, m, n, k]) = (c.as_const(), [*batch, *m, *n, *k]);
    let types = match (A::DTYPE, B::DTYPE) {
        (DType::F32, DType::F32) => Types::F32,
        (DType::F32, _) => Types::Mixed,
        _ => Types::F16,
    };
    let quads = |dim: u32| dim.is_multiple_of(4);
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

/// The tile for a large product on the device in its current state, with any number of multiprocessors, by a table in which
/// one tile needs less energy.
#[cfg(test)]
pub(crate) fn large_product_with_a_sparing_tile(device: &CudaDevice) -> &'static str {
    let strides = MatrixStrides { row: 4096, column: 1 };
    let c = Operand { pointer: ptr::without_provenance_mut::<f32>(256), strides, batch: 0 };
    let operands = Operands { c, a: c.as_const(), b: c.as_const(), dims: [1, 4096, 4096, 4096] };
    let q = Query { multiprocessors: 20, ..query(device, &operands) };
    let plan = select(&select::tests::sparing(), &q, Variant::Auto, None);
    match plan.map(|plan| plan.kernel) {
        Some(Kernel::Tile(size, _)) => size.family().name,
        other => unreachable!("{other:?} for a large product"),
    }
}

fn launch<A: DeviceElement, B: DeviceElement, C: DeviceElement>(
    device: &CudaDevice,
    kernels: &Kernels<A, B, C>,
    operands: &Operands<A, B, C>,
    options: &Matmul,
    fused: &Fused<A, C>,
) -> Result<()> {
    if operands.dims[3] == 0 {
        return add_parts(device, &kernels.reduce, operands, fused, ptr::null(), 0);
    }
    let q = query(device, operands);
    let table = table::for_card(device.properties())?;
    let cut = match (options.variant, options.splits) {
        (Variant::Auto, None) if fused.norm.is_null() => select::cut(table, &q),
        (Variant::Rows(rows), _) => Some(Cut::Rows(rows)),
        (Variant::Columns(columns), _) => Some(Cut::Columns(columns)),
        _ => None,
    };
    let Some(cut) = cut else { return launch_whole(device, kernels, operands, options, fused, (table, &q)) };
    let [_, m, n, _] = operands.dims;
    if !cut.fits(m, n) {
        return Err(unsupported(options));
    }
    let options = Matmul { variant: Variant::Auto, ..*options };
    for (operands, fused) in operands.cut(fused, cut) {
        launch_whole(device, kernels, &operands, &options, &fused, (table, &query(device, &operands)))?;
    }
    Ok(())
}

fn unsupported(options: &Matmul) -> Error {
    Error::Unsupported {
        op: "matmul",
        argument: "variant",
        value: format!("{:?}", options.variant),
        reason: "its kernels can't do this shape, layout or type".into(),
    }
}

fn launch_whole<A: DeviceElement, B: DeviceElement, C: DeviceElement>(
    device: &CudaDevice,
    kernels: &Kernels<A, B, C>,
    operands: &Operands<A, B, C>,
    options: &Matmul,
    fused: &Fused<A, C>,
    (table, q): (&Table, &Query),
) -> Result<()> {
    let [batch, m, n, _] = operands.dims;
    let plan = select(table, q, options.variant, options.splits).ok_or_else(|| unsupported(options))?;
    let elements = plan.splits as usize * batch as usize * m as usize * n as usize;
    let scratch = match plan.splits {
        1 => None,
        _ if elements > MAX_ELEMENTS => {
            let (elements, limit) = (elements as u128, MAX_ELEMENTS as u128);
            return Err(Error::TooLarge { op: "matmul", argument: "splits", elements, limit });
        }
        _ => Some(DeviceBuffer::uninitialized(device, elements * size_of::<f32>())?),
    };
    let partial = scratch.as_ref().map_or(ptr::null_mut(), DeviceBuffer::ptr);
    run(device, kernels, operands, &plan, fused, partial)?.ok_or_else(|| unsupported(options))?;
    match plan.splits {
        1 => Ok(()),
        parts => add_parts(device, &kernels.reduce, operands, fused, partial, parts),
    }
}

/// Launches the kernel of a plan. `None`, and nothing launched, if there is no kernel for these types.
fn run<A: DeviceElement, B: DeviceElement, C: DeviceElement>(
    device: &CudaDevice,
    kernels: &Kernels<A, B, C>,
    operands: &Operands<A, B, C>,
    plan: &Plan,
    fused: &Fused<A, C>,
    partial: *mut f32,
) -> Result<Option<()>> {
    let &Operands { c: to, a: from_a, b: from_b, dims: [batch, m, n, k] } = operands;
    let (c, a, b) = (to.pointer, from_a.pointer, from_b.pointer);
    let (stride_a, stride_b, stride_c) = (from_a.batch as u32, from_b.batch as u32, to.batch as u32);
    let (row_a, col_a) = (from_a.strides.row as u32, from_a.strides.column as u32);
    let (row_b, col_b) = (from_b.strides.row as u32, from_b.strides.column as u32);
    let (ldc, k_chunk, grid) = (to.strides.row as u32, plan.k_chunk, [plan.blocks, plan.splits, batch]);
    let &Fused { alpha, beta, bias, residual, norm, eps, activation } = fused;
    let addend = residual.unwrap_or(c);

    match plan.kernel {
        Kernel::Tile(size, layouts) => {
            let Some(spec) = kernels.tiles[size as usize][layouts as usize] else { return Ok(None) };
            let parameters = Tile {
                c,
                a,
                b,
                partial,
                m,
                n,
                k,
                lda: if layouts == Layouts::Tn { col_a } else { row_a },
                ldb: if layouts == Layouts::Nt { col_b } else { row_b },
                ldc,
                stride_a,
                stride_b,
                stride_c,
                k_chunk,
                alpha,
                beta,
                bias,
                addend,
            };
            // SAFETY: `ops::matmul_into` has checked types, shapes, streams and spans, `ops::linear_into` the bias and the residual,
            // which has c's layout. `select` gives this kernel for the layouts and the alignment that `query` found, and splits that
            // cover k, none of them empty. `partial` has room for all partial sums and is freed after the launches.
            unsafe { device.launch(&spec, grid, &parameters)? };
        }
        Kernel::Strided => {
            let Some(spec) = kernels.strided else { return Ok(None) };
            let parameters = AnyStrides {
                c,
                a,
                b,
                partial,
                m,
                n,
                k,
                row_a,
                col_a,
                row_b,
                col_b,
                ldc,
                stride_a,
                stride_b,
                stride_c,
                k_chunk,
                alpha,
                beta,
                bias,
                addend,
            };
            // SAFETY: `ops::matmul_into` has checked types, shapes, streams and spans, `ops::linear_into` the bias and the residual,
            // which has c's layout; the kernel takes any strides. The splits cover k, none of them is empty, and `partial` has room
            // for all partial sums and is freed after the launches.
            unsafe { device.launch(&spec, grid, &parameters)? };
        }
        Kernel::VectorNt(rows) => {
            let Some(spec) = kernels.vector_nt[rows as usize] else { return Ok(None) };
            let aligned = from_a.is_aligned(row_a as usize, 16 / size_of::<A>())
                && from_b.is_aligned(col_b as usize, 16 / size_of::<B>())
                && (norm as usize).is_multiple_of(16);
            let parameters = Nt {
                c,
                a,
                b,
                partial,
                m,
                n,
                k,
                lda: row_a,
                ldb: col_b,
                ldc,
                stride_a,
                stride_b,
                stride_c,
                k_chunk,
                alpha,
                beta,
                bias,
                addend,
                aligned: u32::from(aligned),
                norm,
                eps,
                activation,
                log_parts: plan.log_parts,
            };
            // SAFETY: `ops::matmul_into` has checked types, shapes, streams and spans, `ops::linear_into` the norm's weights, the bias
            // and the residual, which has c's layout. `select` gives this kernel for rows of a and b that are contiguous, and
            // `aligned` says where they begin. `partial` has room for the splits' sums and is freed after the launches.
            unsafe { device.launch(&spec, grid, &parameters)? };
        }
        Kernel::VectorNn(rows) => {
            // there is none for eight
            let Some(&Some(spec)) = kernels.vector_nn.get(rows as usize) else { return Ok(None) };
            let aligned = from_b.is_aligned(row_b as usize, 4) && n.is_multiple_of(4);
            let parameters = Nn {
                c,
                a,
                b,
                partial,
                m,
                n,
                k,
                lda: row_a,
                ldb: row_b,
                ldc,
                stride_a,
                stride_b,
                stride_c,
                k_chunk,
                alpha,
                beta,
                bias,
                addend,
                aligned: u32::from(aligned),
            };
            // SAFETY: `ops::matmul_into` has checked types, shapes, streams and spans, `ops::linear_into` the bias and the residual,
            // which has c's layout. `select` gives this kernel for at most as many rows of a as it has sums of; they and b's are
            // contiguous, and `aligned` says where b's begin. `partial` has room for the splits' sums and is freed after the launches.
            unsafe { device.launch(&spec, grid, &parameters)? };
        }
    }
    Ok(Some(()))
}

/// c = alpha·Σ parts + bias + beta·d.
fn add_parts<A, B, C: DeviceElement>(
    device: &CudaDevice,
    spec: &KernelSpec<Reduce<C>>,
    operands: &Operands<A, B, C>,
    fused: &Fused<A, C>,
    partial: *const f32,
    splits: u32,
) -> Result<()> {
    let (to, [batch, m, n, _]) = (&operands.c, operands.dims);
    let &Fused { alpha, beta, bias, residual, .. } = fused;
    let (c, addend) = (to.pointer, residual.unwrap_or(to.pointer));
    let (ldc, stride_c) = (to.strides.row as u32, to.batch as u32);
    let vector = reduce::VECTOR as usize;
    let lines = Operand { pointer: addend, ..to.as_const() };
    let is_aligned = [to.as_const(), lines].iter().all(|x| x.is_aligned(x.strides.row, vector));
    let elements = if is_aligned && (n as usize).is_multiple_of(vector) { reduce::VECTOR } else { 1 };
    let parameters = Reduce { c, partial, m, n, ldc, stride_c, splits, alpha, beta, bias, addend, elements };
    let blocks = (m as usize * n as usize).div_ceil((reduce::THREADS * elements) as usize) as u32;
    // SAFETY: `ops::matmul_into` has checked types, shapes, streams and spans, and `ops::linear_into` the bias and the residual.
    // The previous launch on the same stream has written the partial sums; with no splits none are read.
    unsafe { device.launch(spec, [blocks, 1, batch], &parameters) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second part of a cut product begins in c, a or b, the bias and the residual where the first one ends.
    #[test]
    fn parts_of_a_cut_begin_where_the_first_ends() {
        let at = |address: usize| ptr::without_provenance_mut::<f32>(address * size_of::<f32>());
        let operand = |address, row, column| Operand {
            pointer: at(address),
            strides: MatrixStrides { row, column },
            batch: 7,
        };
        let c = operand(1000, 50, 1);
        let (a, b) = (operand(2000, 1, 30).as_const(), operand(3000, 1, 20).as_const());
        let operands = Operands { c, a, b, dims: [2, 30, 40, 20] };
        let (alpha, beta, norm) = (2.0, 1.0, ptr::null::<f32>());
        let (bias, residual) = (at(4000).cast_const(), Some(at(5000).cast_const()));
        let fused = Fused { alpha, beta, bias, residual, norm, eps: 0.0, activation: 0 };
        let places = |(x, fused): &(Operands<f32, f32, f32>, Fused<f32, f32>)| {
            let places =
                [x.c.pointer.cast_const(), x.a.pointer, x.b.pointer, fused.bias, fused.residual.unwrap()];
            (x.dims, places.map(|pointer| pointer as usize / size_of::<f32>()))
        };
        let [first, second] = operands.cut(&fused, Cut::Rows(10));
        assert_eq!(places(&first), ([2, 10, 40, 20], [1000, 2000, 3000, 4000, 5000]));
        assert_eq!(places(&second), ([2, 20, 40, 20], [1500, 2010, 3000, 4000, 5500]));
        let [first, second] = operands.cut(&fused, Cut::Columns(16));
        assert_eq!(places(&first), ([2, 30, 16, 20], [1000, 2000, 3000, 4000, 5000]));
        assert_eq!(places(&second), ([2, 30, 24, 20], [1016, 2000, 3320, 4016, 5016]));
        let none = Fused { bias: ptr::null(), residual: None, ..fused };
        let [_, (_, second)] = operands.cut(&none, Cut::Columns(16));
        assert!(second.bias.is_null() && second.residual.is_none());
    }
}
