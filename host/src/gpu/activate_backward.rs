//! Gradient of activations: kernel and grid.

use super::activate::number;
use super::{by_dtype, matrix, vectors};
use crate::cuda::{CudaDevice, MAX_GRID};
use crate::problem::activate::Activation;
use crate::{Result, Shape, Tensor, TensorMut};
use kernels_gpu::activate_backward::{BLOCK_BYTES, Backward, activate_backward_f16, activate_backward_f32};

pub(crate) fn activate_backward(
    device: &CudaDevice,
    dx: TensorMut,
    dy: &Tensor,
    x: &Tensor,
    activation: Activation,
) -> Result<()> {
    by_dtype!(x.dtype(), T, spec = [activate_backward_f32, activate_backward_f16] => {
        let [rows, cols] = matrix(dy.shape());
        let (dx, x) = (dx.ptr::<T>(), x.ptr::<T>());
        // with a gate, what it gates is the second half of a row
        let (dup, up) = (dx.wrapping_add(cols as usize), x.wrapping_add(cols as usize));
        let row = if activation == Activation::SwiGlu { 2 * cols } else { cols };
        let p = Backward { dx, dup, dy: dy.ptr::<T>(), x, up, cols, row, activation: number(activation), vectors: 0 };
        let (grid, p) = grid(rows, p);
        // SAFETY: `ops` has checked that dy [rows, cols], x and dx are contiguous, of the kernel's type, on this stream and of less
        // than 2³¹ elements, and a TensorMut overlaps nothing. With SwiGlu a row of x and dx has 2 · cols elements.
        unsafe { device.launch(spec, grid, &p) }
    })
}

pub(crate) fn silu_mul_backward(
    device: &CudaDevice,
    [dgate, dup]: [TensorMut; 2],
    dy: &Tensor,
    [gate, up]: [&Tensor; 2],
) -> Result<()> {
    let shape = dy.shape();
    by_dtype!(dy.dtype(), T, spec = [activate_backward_f32, activate_backward_f16] => {
        let [dx, dup] = [dgate, dup].map(|out| out.ptr::<T>());
        let [dy, x, up] = [dy, gate, up].map(Tensor::ptr::<T>);
        let most = MAX_GRID[1] * BLOCK_BYTES / size_of::<T>() as u32;
        for (at, [rows, cols]) in as_rows(shape, most) {
            let (dx, dup) = (dx.wrapping_add(at), dup.wrapping_add(at));
            let (dy, x, up) = (dy.wrapping_add(at), x.wrapping_add(at), up.wrapping_add(at));
            let activation = number(Activation::SwiGlu);
            let (grid, p) = grid(rows, Backward { dx, dup, dy, x, up, cols, row: cols, activation, vectors: 0 });
            // SAFETY: `ops` has checked that all tensors are contiguous, of one shape and the kernel's type, on this stream and of less
            // than 2³¹ elements, and TensorMuts overlap nothing. The rows are those of the shape, or as many elements.
            unsafe { device.launch(spec, grid, &p)? };
        }
        Ok(())
    })
}

/// The rows of a contiguous tensor; where they have more than `most` columns, rows of so many and then one of the elements that are left. With
/// the number of the first element.
fn as_rows(shape: &Shape, most: u32) -> Vec<(usize, [u32; 2])> {
    match matrix(shape) {
        [rows, cols] if cols <= most => vec![(0, [rows, cols])],
        [rows, cols] => {
            let whole = rows * cols / most;
            let rest = (whole as usize * most as usize, [1, rows * cols % most]);
            vec![(0, [whole, most]), rest].into_iter().filter(|(_, [_, cols])| *cols > 0).collect()
        }
    }
}

/// The grid for so many rows, and the parameters with `vectors` set.
fn grid<T>(rows: u32, p: Backward<T>) -> ([u32; 3], Backward<T>) {
    let pieces = (p.cols as usize * size_of::<T>()).div_ceil(BLOCK_BYTES as usize) as u32;
    let addresses = [p.dx as u64, p.dup as u64, p.dy as u64, p.x as u64, p.up as u64];
    let vectors = u32::from(vectors::rows_aligned(p.cols, size_of::<T>(), &addresses));
    ([rows, pieces, 1], Backward { vectors, ..p })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_no_grid_has_blocks_for_are_divided() {
        let of = |dims: &[usize]| as_rows(&Shape::from(dims), 100);
        assert_eq!(of(&[7, 100]), [(0, [7, 100])]);
        assert_eq!(of(&[0, 5]), [(0, [0, 5])]);
        assert_eq!(of(&[250]), [(0, [2, 100]), (200, [1, 50])]);
        assert_eq!(of(&[3, 200]), [(0, [6, 100])]);
        assert_eq!(of(&[3, 101]), [(0, [3, 100]), (300, [1, 3])]);
    }
}
