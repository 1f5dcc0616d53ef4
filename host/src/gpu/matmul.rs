//! Which matmul kernel, how k is split, and the grid.

use crate::cuda::{CudaDevice, args};
use crate::memory::DeviceBuffer;
use crate::ops::matmul::{Batch, Matmul, Problem, Strides, Variant};
use crate::tensor::MAX_ELEMENTS;
use crate::{DType, Error, Result, Tensor, TensorMut};
use kernels_gpu::matmul::reduce;
use select::{Layouts, Query, Types, select};

pub(crate) mod select;
pub(crate) mod table;

/// The largest grid along z.
const MAX_BATCH: usize = 65535;
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
    mut p: Problem,
    options: &Matmul,
) -> Result<()> {
    let (mut from_a, mut from_b) = ((a.address(), a.dtype()), (b.address(), b.dtype()));
    if p.n == 1 && p.m > 1 && p.ldc == 1 && a.dtype() == b.dtype() {
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
            launch(device, c, a, b, [batch as u32, p.m as u32, p.n as u32, p.k as u32], options)?;
        }
    }
    Ok(())
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
) -> Result<()> {
    let [batch, m, n, k] = dims;
    let Matmul { alpha, beta, variant, splits } = *options;
    let (ldc, stride_c) = (c.strides.row as u32, c.batch as u32);
    if k == 0 {
        return add_parts(device, c, 0, 0, dims, alpha, beta);
    }
    let q = query(device, c, a, b, dims);
    let plan =
        select(table::of(device.properties())?, &q, variant, splits).ok_or_else(|| Error::Unsupported {
            op: "matmul",
            argument: "variant",
            value: format!("{variant:?}"),
            reason: "its kernels can't do this shape, layout or type".into(),
        })?;
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
    // SAFETY: `ops::matmul_into` has checked that types, shapes and streams fit and that every extent times its stride
    // stays inside tensors of less than 2³¹ elements; a TensorMut overlaps nothing. `select` gives a kernel whose
    // layouts and alignment are those that `query` found, and parts of k that cover it, none of them empty. The
    // scratch memory holds all parts and is freed behind the launches.
    unsafe {
        match plan.variant {
            Variant::Textbook => device.launch(
                &plan.spec,
                grid,
                args![
                    c.address, a.address, b.address, m, n, k, row_a, col_a, row_b, col_b, ldc, stride_a,
                    stride_b, stride_c, alpha, beta
                ],
            )?,
            Variant::Strided => device.launch(
                &plan.spec,
                grid,
                args![
                    c.address,
                    a.address,
                    b.address,
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
                    plan.k_chunk,
                    alpha,
                    beta
                ],
            )?,
            Variant::Vector => {
                let aligned = match q.vector_layouts {
                    Some(Layouts::Nt) => [(a, lda), (b, ldb)]
                        .iter()
                        .all(|(x, ld)| x.is_aligned(*ld as usize, 16 / x.dtype.size())),
                    _ => b.is_aligned(ldb as usize, 4) && n.is_multiple_of(4),
                };
                device.launch(
                    &plan.spec,
                    grid,
                    args![
                        c.address,
                        a.address,
                        b.address,
                        partial,
                        m,
                        n,
                        k,
                        lda,
                        ldb,
                        ldc,
                        stride_a,
                        stride_b,
                        stride_c,
                        plan.k_chunk,
                        alpha,
                        beta,
                        u32::from(aligned)
                    ],
                )?;
            }
            _ => device.launch(
                &plan.spec,
                grid,
                args![
                    c.address,
                    a.address,
                    b.address,
                    partial,
                    m,
                    n,
                    k,
                    lda,
                    ldb,
                    ldc,
                    stride_a,
                    stride_b,
                    stride_c,
                    plan.k_chunk,
                    alpha,
                    beta
                ],
            )?,
        }
    }
    match plan.splits {
        1 => Ok(()),
        parts => add_parts(device, c, partial, parts, dims, alpha, beta),
    }
}

/// c = alpha·Σ parts + beta·c.
fn add_parts(
    device: &CudaDevice,
    c: Operand,
    partial: u64,
    splits: u32,
    [batch, m, n, _]: [u32; 4],
    alpha: f32,
    beta: f32,
) -> Result<()> {
    let spec = reduce::SPECS[usize::from(c.dtype == DType::F16)];
    let blocks = (m as usize * n as usize).div_ceil(reduce::THREADS as usize) as u32;
    let (ldc, stride_c) = (c.strides.row as u32, c.batch as u32);
    // SAFETY: as in `launch`; the parts were written by the launch before on the same stream, and none are read
    // where there are none.
    unsafe {
        device.launch(
            &spec,
            [blocks, 1, batch],
            args![c.address, partial, m, n, ldc, stride_c, splits, alpha, beta],
        )
    }
}
