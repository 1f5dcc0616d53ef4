//! Sums over rows: kernels, and the division of the rows into parts.

use super::{DeviceElement, matrix, vectors};
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::{DType, Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::column_sum::{Columns, WIDTH, column_sum_f16, column_sum_f32};
use std::ptr;

/// The fewest rows of a part: with fewer, the second launch costs more than it saves.
const MIN_PART_ROWS: u32 = 128;
/// Blocks wanted per multiprocessor: as many as are resident.
const BLOCKS_PER_SM: u32 = 8;

/// The sums of x's columns.
pub(crate) fn column_sum(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F16 => launch_sums(device, &column_sum_f16, y, x, None),
        _ => launch_sums(device, &column_sum_f32, y, x, None),
    }
}

/// The sums of dy · (x − m) · s, with m and s of each row in `stats`: [rows, 2] f32.
pub(super) fn normed(
    device: &CudaDevice,
    y: TensorMut,
    dy: &Tensor,
    x: &Tensor,
    stats: &DeviceBuffer,
) -> Result<()> {
    match x.dtype() {
        DType::F16 => launch_sums(device, &column_sum_f16, y, dy, Some((x, stats))),
        _ => launch_sums(device, &column_sum_f32, y, dy, Some((x, stats))),
    }
}

fn launch_sums<T: DeviceElement>(
    device: &CudaDevice,
    spec: &KernelSpec<Columns<T>>,
    y: TensorMut,
    x: &Tensor,
    normed: Option<(&Tensor, &DeviceBuffer)>,
) -> Result<()> {
    let [rows, cols] = matrix(x.shape());
    let blocks = cols.div_ceil(WIDTH * vectors::len(size_of::<T>()));
    let part_rows = part_rows(rows, blocks, device.properties().multiprocessors);
    let parts = rows.div_ceil(part_rows).max(1);
    let partial = if parts > 1 { parts as usize * cols as usize * size_of::<f32>() } else { 0 };
    let partial = DeviceBuffer::uninitialized(device, partial)?;
    let (z, stats) = match normed {
        Some((z, stats)) => (z.ptr::<T>(), stats.ptr::<f32>().cast_const()),
        None => (ptr::null(), ptr::null()),
    };
    let first = if parts > 1 { partial.ptr() } else { y.ptr::<f32>() };
    let x = x.ptr::<T>();
    let aligned = u32::from(vectors::rows_aligned(cols, size_of::<T>(), &[x as u64, z as u64]));
    let parameters = Columns { y: first, x, z, stats, rows, cols, part_rows, vectors: aligned };
    // SAFETY: the callers have checked that x and z are contiguous [rows, cols] of the kernel's type and y is [cols] f32,
    // all on this stream and of less than 2³¹ elements; a TensorMut overlaps nothing. `partial` has a row for each part,
    // `stats` two numbers for each row. `partial` is freed after the launches.
    unsafe {
        device.launch(spec, [blocks, parts, 1], &parameters)?;
        if parts > 1 {
            let (z, stats) = (ptr::null(), ptr::null());
            let x = partial.ptr::<f32>().cast_const();
            let aligned = u32::from(vectors::rows_aligned(cols, size_of::<f32>(), &[x as u64]));
            let parameters =
                Columns { y: y.ptr(), x, z, stats, rows: parts, cols, part_rows: parts, vectors: aligned };
            let blocks = cols.div_ceil(WIDTH * vectors::len(size_of::<f32>()));
            device.launch(&column_sum_f32, [blocks, 1, 1], &parameters)?;
        }
    }
    Ok(())
}

/// Rows per part, so that the parts fill the device.
fn part_rows(rows: u32, blocks: u32, multiprocessors: u32) -> u32 {
    let wanted = (BLOCKS_PER_SM * multiprocessors / blocks.max(1)).max(1);
    rows.div_ceil(wanted).max(MIN_PART_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fill_the_device_and_are_not_too_short() {
        assert_eq!(part_rows(10_000, 128, 20), 10_000); // 128 blocks of columns nearly fill it
        assert_eq!(part_rows(10_000, 4, 20), 250);
        assert_eq!(part_rows(100, 1, 20), MIN_PART_ROWS);
    }
}
