//! Transpose: the grid of its tiles.

use super::copy::contiguous;
use crate::cuda::{CudaDevice, args};
use crate::ops::transpose::matrices;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::transpose::{PAIRS_B16, TEXTBOOK_F32, TEXTBOOK_TILE, TILE, TILE_B16, TILE_B32};

pub(crate) fn transpose(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (batch, rows, cols) = matrices(x.shape());
    let (y, x, size) = (y.address(), x.address(), x.dtype().size());
    if rows == 1 || cols == 1 {
        return contiguous(device, y, x, (batch * rows * cols) as u32, size);
    }
    tiles(device, y, x, batch as u32, rows as u32, cols as u32, size)
}

/// y: [batch, cols, rows], x: [batch, rows, cols], both without gaps, of elements of `size` bytes; the caller has
/// found them so on this device's stream, disjoint, and below 2³¹ elements.
pub(super) fn tiles(
    device: &CudaDevice,
    y: u64,
    x: u64,
    batch: u32,
    rows: u32,
    cols: u32,
    size: usize,
) -> Result<()> {
    let spec = select([y, x], rows, cols, size);
    // at most as many tiles as elements
    let grid = [batch * rows.div_ceil(TILE) * cols.div_ceil(TILE), 1, 1];
    // SAFETY: as this function's contract says.
    unsafe { device.launch(&spec, grid, args![y, x, rows, cols]) }
}

/// The kernel for elements of `size` bytes at these addresses.
fn select(addresses: [u64; 2], rows: u32, cols: u32, size: usize) -> KernelSpec {
    let pairs =
        rows.is_multiple_of(2) && cols.is_multiple_of(2) && addresses.iter().all(|a| a.is_multiple_of(4));
    match size {
        2 if pairs => PAIRS_B16,
        2 => TILE_B16,
        _ => TILE_B32,
    }
}

/// The textbook kernel, for benches.
pub(crate) fn textbook(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (batch, rows, cols) = matrices(x.shape());
    let (batch, rows, cols) = (batch as u32, rows as u32, cols as u32);
    let grid = [cols.div_ceil(TEXTBOOK_TILE), rows.div_ceil(TEXTBOOK_TILE), batch];
    // SAFETY: the case that calls this has passed `ops::transpose_into`, which checks all that the kernel asks for.
    unsafe { device.launch(&TEXTBOOK_F32, grid, args![y.address(), x.address(), rows, cols]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_need_even_extents_and_words_to_start_at() {
        assert_eq!(select([256, 512], 6, 4, 2), PAIRS_B16);
        assert_eq!(select([256, 512], 6, 4, 4), TILE_B32);
        for (addresses, rows, cols) in
            [([256, 512], 5, 4), ([256, 512], 6, 3), ([258, 512], 6, 4), ([256, 514], 6, 4)]
        {
            assert_eq!(select(addresses, rows, cols, 2), TILE_B16);
        }
    }
}
