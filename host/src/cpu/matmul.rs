//! Matrix products by the `gemm-f32` crate, which takes any strides. f16 is converted panel by panel and multiplied in f32. A
//! product of few rows with a matrix whose columns are contiguous reads that matrix once, column by column.

use super::{slice, slice_mut};
use crate::dtype::Float;
use crate::parallel::{InTasks, release_team};
use crate::problem::activate::Epilogue;
use crate::problem::matmul::{Matmul, MatrixStrides, Problem};
use crate::{DType, Element, Result, Tensor, TensorMut};
use gemm_common::Parallelism;
use gemm_f32::gemm::f32::get_gemm_fn;
use half::f16;
use rayon::prelude::*;

/// Columns of b that are converted at a time: a panel of 2048 rows is 1 MiB, which stays in a core's L2.
const PANEL: usize = 128;
/// The most rows for which columns are read directly; from more rows on, converting panels costs less than it saves.
const FEW: usize = 8;
/// Multiply-adds below which a product is not spread over threads.
const PARALLEL: usize = 1 << 18;

pub(crate) fn matmul(
    mut c: TensorMut,
    a: &Tensor,
    b: &Tensor,
    p: &Problem,
    options: &Matmul,
    epilogue: &Epilogue,
) -> Result<()> {
    match (a.dtype(), b.dtype()) {
        (DType::F32, DType::F32) => f32(slice_mut(&mut c)?, slice(a)?, slice(b)?, p, options),
        (DType::F32, _) => panels::<f32, f32>(slice_mut(&mut c)?, slice(a)?, slice(b)?, p, options),
        _ => panels::<f16, f16>(slice_mut(&mut c)?, slice(a)?, slice(b)?, p, options),
    }
    match c.dtype() {
        DType::F16 => add::<f16>(&mut c, p, epilogue),
        _ => add::<f32>(&mut c, p, epilogue),
    }
}

/// c [m, n] += bias + residual, for a contiguous c.
fn add<C: Float + Element>(c: &mut TensorMut, p: &Problem, epilogue: &Epilogue) -> Result<()> {
    if epilogue.bias.is_none() && epilogue.residual.is_none() {
        return Ok(());
    }
    let bias = epilogue.bias.map(slice::<C>).transpose()?;
    let residual = epilogue.residual.map(slice::<C>).transpose()?;
    let rows = slice_mut::<C>(c)?[..p.m * p.n].par_chunks_exact_mut(p.n).enumerate();
    rows.with_min_len(super::ELEMENTS_PER_TASK.div_ceil(p.n)).in_tasks(|(row, c)| {
        for (column, c) in c.iter_mut().enumerate() {
            let bias = bias.map_or(0.0, |bias| bias[column].to_f32());
            let residual = residual.map_or(0.0, |residual| residual[row * p.n + column].to_f32());
            *c = C::from_f32(c.to_f32() + bias + residual);
        }
    });
    Ok(())
}

/// c [m, n] = alpha·a·b + beta·c on slices that begin at the matrices' first elements, by all threads if `spread` and it is worth it.
fn product(
    spread: bool,
    c: &mut [f32],
    ldc: usize,
    (a, a_strides): (&[f32], MatrixStrides),
    (b, b_strides): (&[f32], MatrixStrides),
    (m, n, k): (usize, usize, usize),
    (alpha, beta): (f32, f32),
) {
    if m == 0 || n == 0 {
        return;
    }
    let reach = |rows: usize, cols: usize, s: MatrixStrides| match rows * cols {
        0 => 0,
        _ => (rows - 1) * s.row + (cols - 1) * s.column + 1,
    };
    assert!(reach(m, k, a_strides) <= a.len() && reach(k, n, b_strides) <= b.len());
    assert!(reach(m, n, MatrixStrides { row: ldc, column: 1 }) <= c.len());
    let parallelism = match spread && m * n * k >= PARALLEL {
        true => {
            release_team();
            Parallelism::Rayon(0)
        }
        false => Parallelism::None,
    };
    // the crate's kernels write columns, so this is cᵀ = bᵀ·aᵀ
    // SAFETY: all elements that the sizes and strides reach are inside the slices (asserted above), and c is borrowed
    // mutably, so it overlaps neither input. gemm swaps the names of alpha and beta.
    unsafe {
        get_gemm_fn()(
            n,
            m,
            k,
            c.as_mut_ptr(),
            ldc as isize,
            1,
            beta != 0.0,
            b.as_ptr(),
            b_strides.row as isize,
            b_strides.column as isize,
            a.as_ptr(),
            a_strides.row as isize,
            a_strides.column as isize,
            beta,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}

fn f32(c: &mut [f32], a: &[f32], b: &[f32], p: &Problem, options: &Matmul) {
    for [at_a, at_b, at_c] in p.offsets(0) {
        let (a, b) = (from(a, at_a), from(b, at_b));
        product(
            true,
            &mut c[at_c..],
            p.ldc,
            (a, p.a),
            (b, p.b),
            (p.m, p.n, p.k),
            (options.alpha, options.beta),
        );
    }
}

/// The elements from `at` on; none where the tensor has none.
fn from<T>(x: &[T], at: usize) -> &[T] {
    x.get(at..).unwrap_or_default()
}

/// Converts a once and b by panels of columns, multiplies in f32 and rounds once.
fn panels<A: Float, C: Float>(c: &mut [C], a: &[A], b: &[f16], p: &Problem, options: &Matmul) {
    let (m, n, k) = (p.m, p.n, p.k);
    for [at_a, at_b, at_c] in p.offsets(0) {
        let (a, b, c) = (from(a, at_a), from(b, at_b), &mut c[at_c..]);
        if m * n == 0 {
            continue;
        }
        let mut rows = vec![0f32; m * k];
        if k > 0 {
            let lines = rows.par_chunks_exact_mut(k).enumerate();
            lines.with_min_len(super::ELEMENTS_PER_TASK.div_ceil(k)).in_tasks(|(r, row)| {
                read_line(row, &a[r * p.a.row..], p.a.column);
            });
        }
        let a = rows;
        if m <= FEW && p.b.row == 1 {
            columns(c, &a, b, p, options);
            continue;
        }
        let enough = n.div_ceil(PANEL) >= rayon::current_num_threads();
        let mut sums = vec![0f32; m * n.next_multiple_of(PANEL)];
        sums.par_chunks_mut(m * PANEL).enumerate().in_tasks(|(index, sums)| {
            let first = index * PANEL;
            let cols = PANEL.min(n - first);
            // the panel is stored transposed, [cols, k], if b is, so that reads and writes are both contiguous
            let transposed = p.b.row < p.b.column;
            let (lines, along) = if transposed { (cols, k) } else { (k, cols) };
            let (line, step) = if transposed { (p.b.column, p.b.row) } else { (p.b.row, p.b.column) };
            let mut panel = vec![0.0; lines * along];
            if along > 0 {
                for (l, to) in panel.chunks_exact_mut(along).enumerate() {
                    read_line(to, &b[first * p.b.column + l * line..], step);
                }
            }
            let strides = match transposed {
                true => MatrixStrides { row: 1, column: k },
                false => MatrixStrides { row: cols, column: 1 },
            };
            let dense = MatrixStrides { row: k, column: 1 };
            product(!enough, sums, PANEL, (&a, dense), (&panel, strides), (m, cols, k), (options.alpha, 0.0));
        });
        let rows = c.par_chunks_mut(p.ldc.max(n)).take(m).enumerate();
        rows.with_min_len(super::ELEMENTS_PER_TASK.div_ceil(n)).in_tasks(|(r, c)| {
            for (c, sums) in c[..n].chunks_mut(PANEL).zip(sums.chunks(m * PANEL)) {
                for (c, sum) in c.iter_mut().zip(&sums[r * PANEL..]) {
                    *c = C::from_f32(match options.beta {
                        0.0 => *sum,
                        beta => sum + beta * c.to_f32(),
                    });
                }
            }
        });
    }
}

/// Reads elements that are `step` apart, as f32.
fn read_line<T: Float>(to: &mut [f32], from: &[T], step: usize) {
    if step == 1 {
        return T::read(&from[..to.len()], to);
    }
    for (i, to) in to.iter_mut().enumerate() {
        *to = from[i * step].to_f32();
    }
}

/// c [m, n] = alpha·a·b + beta·c for a contiguous a [m, k] of few rows, and b with contiguous columns.
fn columns<B: Float, C: Float>(c: &mut [C], a: &[f32], b: &[B], p: &Problem, options: &Matmul) {
    let (m, k) = (p.m, p.k);
    let mut sums = vec![0f32; m * p.n]; // [n, m]
    let columns = sums.par_chunks_exact_mut(m).enumerate();
    columns.with_min_len(PARALLEL.div_ceil(m * k.max(1))).in_tasks(|(column, sums)| {
        if k > 0 {
            let b = &b[column * p.b.column..][..k];
            sums.iter_mut().zip(a.chunks_exact(k)).for_each(|(sum, a)| *sum = B::dot(a, b));
        }
    });
    for r in 0..m {
        for (c, sums) in c[r * p.ldc..][..p.n].iter_mut().zip(sums.chunks_exact(m)) {
            *c = C::from_f32(match options.beta {
                0.0 => options.alpha * sums[r],
                beta => options.alpha * sums[r] + beta * c.to_f32(),
            });
        }
    }
}
