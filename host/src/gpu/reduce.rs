//! Reductions: kernel and grid.

use super::rows::{launch_warps, parts};
use super::{DeviceElement, matrix, vectors};
use crate::cuda::{COUNTERS, CudaDevice};
use crate::memory::DeviceBuffer;
use crate::problem::reduce::Reduction;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::device::rows::{MAX_WARP_COLS, row_threads};
use kernels_gpu::reduce::*;

pub(crate) fn reduce(device: &CudaDevice, op: Reduction, y: TensorMut, x: &Tensor) -> Result<()> {
    match (op, x.dtype()) {
        (Reduction::Sum, DType::F16) => launch_reduction(device, &SUM_F16, y, x),
        (Reduction::Sum, _) => launch_reduction(device, &SUM_F32, y, x),
        (Reduction::Max, DType::F16) => launch_reduction(device, &MAX_F16, y, x),
        (Reduction::Max, _) => launch_reduction(device, &MAX_F32, y, x),
        (Reduction::Argmax, DType::F16) => launch_reduction(device, &ARGMAX_F16, y, x),
        (Reduction::Argmax, _) => launch_reduction(device, &ARGMAX_F32, y, x),
    }
}

fn launch_reduction<R: DeviceElement, T: DeviceElement, F: Copy>(
    device: &CudaDevice,
    kernels: &Kernels<R, T, F>,
    y: TensorMut,
    x: &Tensor,
) -> Result<()> {
    let [rows, cols] = matrix(x.shape());
    let (y, x) = (y.ptr::<R>(), x.ptr::<T>());
    let vectors = u32::from(vectors::rows_aligned(cols, size_of::<T>(), &[x as u64]));
    if cols <= MAX_WARP_COLS {
        let parameters = |lanes| ReduceRows { y, x, rows, cols, vectors, lanes };
        // SAFETY: `ops` has checked that x is contiguous [rows, cols] and y [rows] of the kernel's types on this stream, of
        // less than 2³¹ elements, cols > 0 unless it is a sum, and a TensorMut overlaps nothing.
        return unsafe { launch_warps(device, &kernels.warp, [rows, cols], parameters) };
    }
    let (parts, part_cols) = match rows as usize {
        ..=COUNTERS => parts(rows, cols, device.properties().multiprocessors),
        _ => (1, cols),
    };
    let found = if parts > 1 { (rows * parts) as usize * size_of::<F>() } else { 0 };
    let found = DeviceBuffer::uninitialized(device, found)?;
    let counters = device.stream().counters() as *mut u32;
    let parameters = Parts { y, found: found.ptr(), counters, x, cols, part_cols, parts, vectors };
    let block = kernels.block.of_threads(row_threads(part_cols));
    // SAFETY: `ops` has checked that x is contiguous [rows, cols] and y [rows] of the kernel's types on this stream, of less than
    // 2³¹ elements, and a TensorMut overlaps nothing; cols is larger than a warp's. `found` has room for each part and is freed after the launch. The stream has a counter for each row
    // that is split, and parts begin at whole vectors.
    unsafe { device.launch(&block, [rows * parts, 1, 1], &parameters) }
}
