//! Transpose: the grid of its tiles.

use super::copy::contiguous;
use crate::cuda::{CudaDevice, args};
use crate::ops::transpose::matrices;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::transpose::{
    PAIRS_B16, TEXTBOOK_F32, TEXTBOOK_TILE, TILE, TILE_B16, TILE_B32, VECTORS_B32, sector_tiles,
};

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
    let down = match spec {
        TILE_B32 | TILE_B16 => sector_tiles(rows, size as u32),
        _ => rows.div_ceil(TILE),
    };
    // at most as many tiles as elements
    let grid = [batch * down * cols.div_ceil(TILE), 1, 1];
    // SAFETY: as this function's contract says.
    unsafe { device.launch_args(&spec, grid, args![y, x, rows, cols]) }
}

/// The kernel for elements of `size` bytes at these addresses, of y and x. Where rows of y do not begin with whole vectors,
/// those that write whole sectors are ahead of those that read pairs.
fn select([y, x]: [u64; 2], rows: u32, cols: u32, size: usize) -> KernelSpec {
    let whole = rows.is_multiple_of((16 / size) as u32) && y.is_multiple_of(16);
    match size {
        2 if whole && cols.is_multiple_of(2) && x.is_multiple_of(4) => PAIRS_B16,
        2 => TILE_B16,
        _ if whole && cols.is_multiple_of(4) && x.is_multiple_of(16) => VECTORS_B32,
        _ => TILE_B32,
    }
}

/// The textbook kernel, for benches.
pub(crate) fn textbook(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (batch, rows, cols) = matrices(x.shape());
    let (batch, rows, cols) = (batch as u32, rows as u32, cols as u32);
    let grid = [cols.div_ceil(TEXTBOOK_TILE), rows.div_ceil(TEXTBOOK_TILE), batch];
    // SAFETY: the case that calls this has passed `ops::transpose_into`, which checks all that the kernel asks for.
    unsafe { device.launch_args(&TEXTBOOK_F32, grid, args![y.address(), x.address(), rows, cols]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_pairs_need_extents_and_addresses_that_are_multiples_of_them() {
        assert_eq!(select([256, 512], 16, 6, 2), PAIRS_B16);
        assert_eq!(select([256, 516], 16, 6, 2), PAIRS_B16);
        for (addresses, rows, cols) in
            [([256, 512], 12, 4), ([256, 512], 16, 3), ([264, 512], 16, 4), ([256, 514], 16, 4)]
        {
            assert_eq!(select(addresses, rows, cols, 2), TILE_B16);
        }
        assert_eq!(select([256, 512], 8, 4, 4), VECTORS_B32);
        for (addresses, rows, cols) in
            [([256, 512], 6, 4), ([256, 512], 8, 7), ([260, 512], 8, 4), ([256, 520], 8, 4)]
        {
            assert_eq!(select(addresses, rows, cols, 4), TILE_B32);
        }
    }
}
