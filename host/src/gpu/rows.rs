//! Row ops: the kernels by the length of rows, their grids, and how long rows are split.

use super::vectors;
use crate::Result;
use crate::cuda::CudaDevice;
use cuda_std::{KernelParams, KernelSpec};
use kernels_gpu::device::rows::{MAX_BLOCK_COLS, MAX_WARP_COLS, RowKernels, row_lanes, row_threads};

/// The number of rows per multiprocessor that counts as few: all of them are resident at once.
const FEW_PER_SM: u32 = 8;

/// The kernel for this number of rows of this length.
fn for_rows<P: KernelParams>(
    kernels: &RowKernels<P>,
    [rows, cols]: [u32; 2],
    multiprocessors: u32,
) -> KernelSpec<P> {
    if cols <= MAX_WARP_COLS {
        kernels.warp
    } else if cols <= MAX_BLOCK_COLS {
        let few = rows <= FEW_PER_SM * multiprocessors;
        if few { kernels.few } else { kernels.block }.of_threads(row_threads(cols))
    } else {
        kernels.stream
    }
}

/// Launches a row op. `parameters` is called with the number of lanes per row, which only the warp kernels read.
///
/// # Safety
/// As [`CudaDevice::launch`], except that this function ensures the length of rows and the grid.
pub(super) unsafe fn launch<P: KernelParams>(
    device: &CudaDevice,
    kernels: &RowKernels<P>,
    [rows, cols]: [u32; 2],
    parameters: impl Fn(u32) -> P,
) -> Result<()> {
    let spec = for_rows(kernels, [rows, cols], device.properties().multiprocessors);
    // SAFETY: the pointers hold by this function's contract. The kernel was chosen for this length of rows, and the grid
    // has a block for each row.
    unsafe {
        match cols {
            ..=MAX_WARP_COLS => launch_warps(device, &spec, [rows, cols], parameters),
            _ => device.launch(&spec, [rows, 1, 1], &parameters(32)),
        }
    }
}

/// Threads per multiprocessor that must have work before a row gets fewer threads.
const THREADS_PER_SM: u32 = 1024;

/// Lanes of a warp that share a row. As few as the row allows, so that each thread has many loads in flight; all 32 if the
/// rows are too few to fill the device that way.
fn lanes(rows: u32, cols: u32, multiprocessors: u32) -> u32 {
    let wanted = multiprocessors * THREADS_PER_SM / rows.max(1);
    match wanted.checked_ilog2() {
        Some(log) => row_lanes(cols).max(1 << log.min(5)),
        None => row_lanes(cols),
    }
}

/// Launches a kernel with a number of lanes per row, with which `parameters` is called.
///
/// # Safety
/// As [`CudaDevice::launch`]; this function ensures the grid and the lanes.
pub(super) unsafe fn launch_warps<P: KernelParams>(
    device: &CudaDevice,
    spec: &KernelSpec<P>,
    [rows, cols]: [u32; 2],
    parameters: impl Fn(u32) -> P,
) -> Result<()> {
    let lanes = lanes(rows, cols, device.properties().multiprocessors);
    let rows_per_warp = 32 / lanes;
    let threads = device.warps_block(spec, rows.div_ceil(rows_per_warp))?;
    let rows_per_block = threads / 32 * rows_per_warp;
    let grid = [rows.div_ceil(rows_per_block), 1, 1];
    // SAFETY: the pointers hold by this function's contract. `lanes` is a power of two, from `row_lanes` to 32, and the grid
    // covers the rows. A grid of no blocks is not launched.
    unsafe { device.launch(&spec.of_threads(threads), grid, &parameters(lanes)) }
}

/// The fewest columns of a part: as many as a block reads at once, and enough to justify a second launch.
const MIN_PART_COLS: u32 = 4096;
/// Blocks wanted per multiprocessor where rows are split.
const BLOCKS_PER_SM: u32 = 2;

/// The number of parts that rows are split into to fill the device, and their length; one part if there are enough rows. A
/// part begins at a multiple of every vector's length.
pub(super) fn parts(rows: u32, cols: u32, multiprocessors: u32) -> (u32, u32) {
    let wanted = (BLOCKS_PER_SM * multiprocessors / rows.max(1)).max(1);
    let part_cols = cols.div_ceil(wanted).max(MIN_PART_COLS).next_multiple_of(vectors::len(size_of::<u16>()));
    if rows >= multiprocessors || part_cols >= cols {
        (1, cols)
    } else {
        (cols.div_ceil(part_cols), part_cols)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels_gpu::softmax;

    const KERNELS: RowKernels<softmax::Softmax<f32>> =
        RowKernels { few: softmax::OF_F32.wide, ..softmax::OF_F32.rows }; // any other

    #[test]
    fn the_kernel_follows_the_length_of_rows_and_their_number() {
        let kernel = |rows, cols| for_rows(&KERNELS, [rows, cols], 20);
        assert_eq!(kernel(1, 1), KERNELS.warp);
        assert_eq!(kernel(999, MAX_WARP_COLS), KERNELS.warp);
        assert_eq!(kernel(999, MAX_WARP_COLS + 1), KERNELS.block.of_threads(128));
        assert_eq!(kernel(161, 2048), KERNELS.block.of_threads(128));
        assert_eq!(kernel(160, 2048), KERNELS.few.of_threads(128));
        assert_eq!(kernel(1, 2049), KERNELS.few.of_threads(256));
        assert_eq!(kernel(999, MAX_BLOCK_COLS), KERNELS.block.of_threads(512));
        assert_eq!(kernel(1, MAX_BLOCK_COLS + 1), KERNELS.stream);
    }

    #[test]
    fn a_row_has_fewer_lanes_where_rows_fill_the_device() {
        assert_eq!(
            [1, 512, 513, 1024, 2048, 1 << 20].map(|rows| lanes(rows, 128, 16)),
            [32, 32, 16, 16, 8, 8]
        );
        assert_eq!([1, 256, 257, 1024].map(|cols| lanes(1 << 20, cols, 16)), [8, 16, 32, 32]);
        assert_eq!(lanes(0, 5, 16), 32);
        assert_eq!(lanes(u32::MAX >> 1, 1, 132), 8);
    }

    #[test]
    fn few_long_rows_are_cut_into_parts_that_cover_them() {
        assert_eq!(parts(1, 151_936, 20), (38, 4096));
        assert_eq!(parts(32, 151_936, 132), (8, 18_992));
        assert_eq!(parts(1, MIN_PART_COLS, 20), (1, MIN_PART_COLS), "short");
        assert_eq!(parts(20, 1 << 20, 20), (1, 1 << 20), "enough rows");
        assert_eq!(parts(0, 5, 20), (1, 5));
        for cols in [4097, 8191, 10_000, 20_011, 1 << 20] {
            for rows in [1, 2, 7, 19] {
                let (parts, part_cols) = parts(rows, cols, 20);
                assert!(parts == 1 || part_cols % 8 == 0, "{rows} {cols}");
                assert!((parts - 1) * part_cols < cols && cols <= parts * part_cols, "{rows} {cols}");
            }
        }
    }
}
