//! Softmax: kernel and grid.

use super::rows::{launch, parts};
use super::{by_dtype, matrix, vectors};
use crate::cuda::CudaDevice;
use crate::memory::DeviceBuffer;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::device::rows::{MAX_BLOCK_COLS, MAX_WIDE_COLS, wide_threads};
use kernels_gpu::softmax::{self, Merge, Softmax, SoftmaxPart};

pub(crate) fn softmax(device: &CudaDevice, y: TensorMut, x: &Tensor) -> Result<()> {
    by_dtype!(x.dtype(), T, kernels = [softmax::OF_F32, softmax::OF_F16] => {
        let [rows, cols] = matrix(x.shape());
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let (y, x) = (y.ptr::<T>(), x.ptr::<T>());
        let vectors = u32::from(vectors::rows_aligned(cols, size_of::<T>(), &[y as u64, x as u64]));
        let (parts, part_cols) = match cols {
            ..=MAX_WIDE_COLS => (1, cols),
            _ => parts(rows, cols, device.properties().multiprocessors),
        };
        if parts == 1 {
            let parameters = |lanes| Softmax { y, x, rows, cols, vectors, lanes };
            // SAFETY: `ops::softmax_into` has checked that both are contiguous [rows, cols] of the kernel's type on this
            // stream, of less than 2³¹ elements, and a TensorMut overlaps nothing.
            return unsafe {
                if MAX_BLOCK_COLS < cols && cols <= MAX_WIDE_COLS {
                    let wide = kernels.wide.of_threads(wide_threads(cols));
                    device.launch(&wide, [rows, 1, 1], &parameters(32))
                } else {
                    launch(device, &kernels.rows, [rows, cols], parameters)
                }
            };
        }
        let blocks = rows * parts;
        let normalizers = DeviceBuffer::uninitialized(device, blocks as usize * 2 * size_of::<f32>())?;
        let (normalizers, grid) = (normalizers.ptr(), [blocks, 1, 1]);
        // SAFETY: `ops::softmax_into` has checked x and y as for whole rows; `normalizers` has a pair for each part and is freed after both launches.
        unsafe {
            device.launch(&kernels.part, grid, &SoftmaxPart { normalizers, x, cols, part_cols, parts, vectors })?;
            device.launch(&kernels.merge, grid, &Merge { y, x, normalizers, cols, part_cols, parts, vectors })
        }
    })
}
