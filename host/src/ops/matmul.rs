//! Matrix products.

use super::check::Check;
use crate::problem::matmul::{Fusion, Matmul, Problem};
use crate::tensor::MAX_ELEMENTS;
use crate::{DType, Device, Error, Result, Shape, Tensor, TensorMut, cpu, gpu};

const CHECK: Check = Check("matmul");

/// c = a·b.
///
/// `a`: [.., m, k], `b`: [.., k, n], `c`: [.., m, n]. Leading dimensions are equal, or missing or 1 in one of the two,
/// which is then broadcast. Each operand may have any strides: `w.swap_dims(0, 1)` is a transposed matrix and costs
/// nothing. f32 · f32 → f32, f16 · f16 → f16, and f32 · f16 → f32 (weights in half precision); sums are f32.
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let a = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], &Device::Cpu)?;
/// let b = Tensor::from_slice(&[1.0f32, 10.0, 100.0, 1000.0], [2, 2], &Device::Cpu)?;
/// assert_eq!(ops::matmul(&a, &b)?.to_vec::<f32>()?, [201.0, 2010.0, 403.0, 4030.0]);
/// let transposed = b.swap_dims(0, 1)?;
/// assert_eq!(ops::matmul(&a, &transposed)?.to_vec::<f32>()?, [21.0, 2100.0, 43.0, 4300.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let shape = output_shape(a, b)?;
    let mut c = Tensor::uninitialized(shape, output_dtype(a, b)?, &a.device())?;
    matmul_into(c.view_mut()?, a, b, &Matmul::default())?;
    Ok(c)
}

/// c = alpha·a·b + beta·c, with `a`, `b` and `c` as in [`matmul`]. `c` has stride 1 in its last dimension.
///
/// ```
/// use pascaline::ops::{self, Matmul};
/// use pascaline::{DType, Device, Tensor};
/// let a = Tensor::from_slice(&[1.0f32, 2.0], [1, 2], &Device::Cpu)?;
/// let b = Tensor::from_slice(&[3.0f32, 4.0], [2, 1], &Device::Cpu)?;
/// let mut c = Tensor::full(100.0f32, [1, 1], &Device::Cpu)?;
/// let options = Matmul { alpha: 2.0, beta: 1.0, ..Matmul::default() };
/// ops::matmul_into(c.view_mut()?, &a, &b, &options)?;
/// assert_eq!(c.to_vec::<f32>()?, [2.0 * 11.0 + 100.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// As [`matmul`], [`Error::Layout`] for `c`, and [`Error::Unsupported`] if `options` name a kernel that does not support the
/// operands.
pub fn matmul_into(c: TensorMut, a: &Tensor, b: &Tensor, options: &Matmul) -> Result<()> {
    fused_into(c, a, b, options, &Fusion::default())
}

/// [`matmul_into`] with a bias and a residual, for a contiguous c.
pub(crate) fn fused_into(
    c: TensorMut,
    a: &Tensor,
    b: &Tensor,
    options: &Matmul,
    fusion: &Fusion,
) -> Result<()> {
    let shape = output_shape(a, b)?;
    CHECK.dtype("c", &c, output_dtype(a, b)?)?;
    CHECK.shape("c", &c, shape.dims(), shape.to_string())?;
    CHECK.size("a", a)?;
    CHECK.size("b", b)?;
    CHECK.size("c", &c)?;
    let device = CHECK.device(&c, &[("a", a), ("b", b)])?;
    let problem = Problem::new(c.layout(), a.layout(), b.layout());
    if problem.n > 1 && problem.c_column != 1 {
        return Err(Error::Layout {
            op: "matmul",
            argument: "c",
            needed: "contiguous in its last dimension",
        });
    }
    if problem.is_empty() {
        return Ok(());
    }
    match device {
        Device::Cpu => cpu::matmul::matmul(c, a, b, &problem, options, &fusion.epilogue),
        Device::Cuda(device) => gpu::matmul::matmul(&device, c, a, b, problem, options, fusion),
    }
}

/// The type of the product; the error for a pair that is not supported.
fn output_dtype(a: &Tensor, b: &Tensor) -> Result<DType> {
    let dtype = CHECK.float("a", a)?;
    CHECK.float("b", b)?;
    match (dtype, b.dtype()) {
        (DType::F16, found @ DType::F32) => {
            let expected = "f16, as a is; cast one of them".into();
            Err(Error::DType { op: "matmul", argument: "b", expected, found })
        }
        _ => Ok(dtype),
    }
}

/// [.., m, n] with the leading dimensions of both.
fn output_shape(a: &Tensor, b: &Tensor) -> Result<Shape> {
    let (Some((outer_a, [m, k])), Some((outer_b, [rows_b, n]))) =
        (a.dims().split_last_chunk::<2>(), b.dims().split_last_chunk::<2>())
    else {
        let (argument, x) = if a.dims().len() < 2 { ("a", a) } else { ("b", b) };
        return Err(CHECK.bad_shape(argument, x, "a matrix, or several: rank 2 or more"));
    };
    if k != rows_b {
        return Err(CHECK.bad_shape("b", b, format!("[.., {k}, n] for a of shape {}", a.shape())));
    }
    let rank = outer_a.len().max(outer_b.len());
    let mut dims = Vec::with_capacity(rank + 2);
    for d in 0..rank {
        // leading dimensions are aligned at their ends
        let size = |outer: &[usize]| (d + outer.len()).checked_sub(rank).map_or(1, |at| outer[at]);
        match (size(outer_a), size(outer_b)) {
            (x, y) if x == y => dims.push(x),
            (1, y) => dims.push(y),
            (x, 1) => dims.push(x),
            (x, _) => {
                let expected = format!("leading dimension {x} or 1 for a of shape {}", a.shape());
                return Err(CHECK.bad_shape("b", b, expected));
            }
        }
    }
    dims.extend([*m, *n]);
    let elements = dims.iter().fold(1u128, |product, &size| product.saturating_mul(size as u128));
    match elements <= MAX_ELEMENTS as u128 {
        true => Ok(dims.into()),
        // checked before the output is allocated
        false => Err(Error::TooLarge { op: "matmul", argument: "c", elements, limit: MAX_ELEMENTS as u128 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::matmul::Batch;

    fn tensor(dims: &[usize]) -> Tensor {
        Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap()
    }

    fn problem(a: &Tensor, b: &Tensor) -> Problem {
        let c = tensor(output_shape(a, b).unwrap().dims());
        Problem::new(c.layout(), a.layout(), b.layout())
    }

    #[test]
    fn a_shared_b_makes_one_product_of_all_rows() {
        let p = problem(&tensor(&[2, 3, 5, 7]), &tensor(&[7, 4]));
        assert_eq!((p.m, p.n, p.k, p.batch.len()), (30, 4, 7, 0));
        let p = problem(&tensor(&[6, 1, 7]), &tensor(&[7, 4]));
        assert_eq!((p.m, p.a.row, p.ldc, p.batch.len()), (6, 7, 4, 0));
    }

    #[test]
    fn adjacent_leading_extents_become_one() {
        let p = problem(&tensor(&[2, 3, 5, 7]), &tensor(&[2, 3, 7, 4]));
        assert_eq!(p.batch, [Batch { extent: 6, a: 35, b: 28, c: 20 }]);
        let p = problem(&tensor(&[2, 3, 5, 7]), &tensor(&[2, 1, 7, 4]));
        assert_eq!((p.m, p.batch.len()), (15, 1), "rows that share b");
        let p = problem(&tensor(&[2, 1, 5, 7]), &tensor(&[2, 3, 7, 4]));
        assert_eq!(p.batch.len(), 2);
        assert_eq!(p.offsets(1), [[0, 0, 0], [35, 84, 60]]);
        assert_eq!(p.offsets(0).len(), 6);
    }

    #[test]
    fn shapes_that_do_not_fit_are_named() {
        let error = |a: &[usize], b: &[usize]| output_shape(&tensor(a), &tensor(b)).unwrap_err();
        assert!(matches!(error(&[2, 3], &[4, 2]), Error::Shape { argument: "b", .. }));
        assert!(matches!(error(&[3], &[3, 2]), Error::Shape { argument: "a", .. }));
        assert!(matches!(error(&[3, 2], &[2]), Error::Shape { argument: "b", .. }));
        assert!(matches!(error(&[2, 3, 4], &[3, 4, 5]), Error::Shape { argument: "b", .. }));
    }
}
