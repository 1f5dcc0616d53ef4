//! Which reduction kernel, and its grid.

use super::rows::{launch_warps, parts};
use super::vectors;
use crate::cuda::{CudaDevice, args};
use crate::memory::DeviceBuffer;
use crate::ops::reduce::Reduction;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::device::rows::{MAX_WARP_COLS, row_threads};
use kernels_gpu::reduce::*;

/// What a reduction launches.
struct Kernels {
    /// For rows of up to `MAX_WARP_COLS` columns.
    warp: KernelSpec,
    /// For longer ones.
    block: KernelSpec,
    /// For each part of rows that are cut up,
    part: KernelSpec,
    /// and for what was found in the parts.
    merge: KernelSpec,
    /// The type of what is found in a part.
    partial: DType,
}

fn kernels(op: Reduction, dtype: DType) -> Kernels {
    let [warp, block, part, merge] = match (op, dtype) {
        (Reduction::Sum, DType::F16) => [SUM_WARP_F16, SUM_BLOCK_F16, SUM_PART_F16, SUM_MERGE_F16],
        (Reduction::Sum, _) => [SUM_WARP_F32, SUM_BLOCK_F32, SUM_BLOCK_F32, SUM_WARP_F32],
        (Reduction::Max, DType::F16) => [MAX_WARP_F16, MAX_BLOCK_F16, MAX_BLOCK_F16, MAX_WARP_F16],
        (Reduction::Max, _) => [MAX_WARP_F32, MAX_BLOCK_F32, MAX_BLOCK_F32, MAX_WARP_F32],
        (Reduction::Argmax, DType::F16) => {
            [ARGMAX_WARP_F16, ARGMAX_BLOCK_F16, ARGMAX_BLOCK_F16, ARGMAX_MERGE_F16]
        }
        (Reduction::Argmax, _) => [ARGMAX_WARP_F32, ARGMAX_BLOCK_F32, ARGMAX_BLOCK_F32, ARGMAX_MERGE_F32],
    };
    let partial = match op {
        Reduction::Sum => DType::F32,
        Reduction::Max => dtype,
        Reduction::Argmax => DType::U32,
    };
    Kernels { warp, block, part, merge, partial }
}

pub(crate) fn reduce(device: &CudaDevice, op: Reduction, y: TensorMut, x: &Tensor) -> Result<()> {
    let (rows, cols) = x.shape().rows_cols();
    let (rows, cols) = (rows as u32, cols as u32);
    let Kernels { warp, block, part, merge, partial } = kernels(op, x.dtype());
    let (y, x, size) = (y.address(), x.address(), x.dtype().size());
    let vectors = u32::from(vectors::rows_aligned(cols, size, &[x]));
    let (parts, part_cols) = parts(rows, cols, device.properties().multiprocessors);
    // SAFETY: `ops` has checked that x is contiguous [rows, cols] and y [rows] of the kernel's types on this stream, of
    // less than 2³¹ elements, cols > 0 unless it is a sum, and a TensorMut overlaps nothing. `partial` has an element for
    // each part and is freed behind both launches; the pool's addresses are multiples of 16 bytes.
    unsafe {
        if cols <= MAX_WARP_COLS {
            return launch_warps(device, &warp, (rows, cols), args![y, x, rows, cols, vectors]);
        }
        let threads = row_threads(part_cols);
        if parts == 1 {
            let block = block.of_threads(threads);
            return device.launch(&block, [rows, 1, 1], args![y, x, cols, cols, 1u32, vectors]);
        }
        let found = DeviceBuffer::uninitialized(device, (rows * parts) as usize * partial.size())?;
        let (part, found) = (part.of_threads(threads), found.address());
        device.launch(&part, [rows * parts, 1, 1], args![found, x, cols, part_cols, parts, vectors])?;
        match op {
            Reduction::Argmax => {
                let arguments = args![y, x, found, rows, cols, part_cols, parts];
                launch_warps(device, &merge, (rows, cols), arguments)
            }
            _ => launch_warps(device, &merge, (rows, parts), args![y, found, rows, parts, 0u32]),
        }
    }
}
