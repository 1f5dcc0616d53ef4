//! Transpose: the kernels and the grid of tiles.

use super::copy_flat::contiguous;
use crate::cuda::CudaDevice;
use crate::problem::transpose::matrices;
use crate::{Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::transpose::{
    TILE, Transpose, sector_tiles, transpose_pairs_b16, transpose_tile_b16, transpose_tile_b32,
    transpose_vectors_b32,
};

pub(crate) fn transpose(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    let (batch, rows, cols) = matrices(x.shape());
    let (y, x, size) = (y.address(), x.address(), x.dtype().size());
    if rows == 1 || cols == 1 {
        return contiguous(device, y, x, (batch * rows * cols) as u32, size);
    }
    tiles(device, y, x, batch as u32, rows as u32, cols as u32, size)
}

/// y: [batch, cols, rows], x: [batch, rows, cols], both contiguous, of elements of `size` bytes. The caller has checked that
/// they are on this device's stream, disjoint, and below 2³¹ elements.
pub(super) fn tiles(
    device: &CudaDevice,
    y: u64,
    x: u64,
    batch: u32,
    rows: u32,
    cols: u32,
    size: usize,
) -> Result<()> {
    // SAFETY: the caller has checked that both are contiguous, of this element size and on this stream, of less than 2³¹ elements,
    // and that they do not overlap.
    unsafe {
        match size {
            2 => launch(device, &of_2_bytes([y, x], rows, cols), y, x, batch, rows, cols),
            _ => launch(device, &of_4_bytes([y, x], rows, cols), y, x, batch, rows, cols),
        }
    }
}

/// # Safety
/// As [`CudaDevice::launch`]; this function ensures the grid.
unsafe fn launch<E: Copy>(
    device: &CudaDevice,
    spec: &KernelSpec<Transpose<E>>,
    y: u64,
    x: u64,
    batch: u32,
    rows: u32,
    cols: u32,
) -> Result<()> {
    let writes_sectors = [transpose_tile_b32.name, transpose_tile_b16.name].contains(&spec.name);
    let down = if writes_sectors { sector_tiles(rows, size_of::<E>() as u32) } else { rows.div_ceil(TILE) };
    // there are at most as many tiles as elements
    let grid = [batch * down * cols.div_ceil(TILE), 1, 1];
    let parameters = Transpose { y: y as *mut E, x: x as *const E, rows, cols };
    // SAFETY: the pointers hold by this function's contract. The grid has a block for each tile.
    unsafe { device.launch(spec, grid, &parameters) }
}

/// The kernel for elements of 2 bytes at these addresses, of y and x. Where rows of y do not begin at whole vectors, the
/// kernel that writes whole sectors is faster than the one that reads pairs.
fn of_2_bytes([y, x]: [u64; 2], rows: u32, cols: u32) -> KernelSpec<Transpose<u16>> {
    let whole = rows.is_multiple_of(8) && y.is_multiple_of(16);
    let pairs = cols.is_multiple_of(2) && x.is_multiple_of(4);
    if whole && pairs { transpose_pairs_b16 } else { transpose_tile_b16 }
}

/// The kernel for elements of 4 bytes at these addresses, of y and x.
fn of_4_bytes([y, x]: [u64; 2], rows: u32, cols: u32) -> KernelSpec<Transpose<u32>> {
    let whole = |n: u32, address: u64| n.is_multiple_of(4) && address.is_multiple_of(16);
    if whole(rows, y) && whole(cols, x) { transpose_vectors_b32 } else { transpose_tile_b32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_and_pairs_need_dimensions_and_addresses_that_are_multiples_of_them() {
        assert_eq!(of_2_bytes([256, 512], 16, 6), transpose_pairs_b16);
        assert_eq!(of_2_bytes([256, 516], 16, 6), transpose_pairs_b16);
        for (addresses, rows, cols) in
            [([256, 512], 12, 4), ([256, 512], 16, 3), ([264, 512], 16, 4), ([256, 514], 16, 4)]
        {
            assert_eq!(of_2_bytes(addresses, rows, cols), transpose_tile_b16);
        }
        assert_eq!(of_4_bytes([256, 512], 8, 4), transpose_vectors_b32);
        for (addresses, rows, cols) in
            [([256, 512], 6, 4), ([256, 512], 8, 7), ([260, 512], 8, 4), ([256, 520], 8, 4)]
        {
            assert_eq!(of_4_bytes(addresses, rows, cols), transpose_tile_b32);
        }
    }
}
