//! Which kernels quantise, read back and multiply, and their grids.

use crate::cuda::occupancy::Resources;
use crate::cuda::{CudaDevice, Properties, args};
use crate::ops::Epilogue;
use crate::quant::{Format, QuantRows, QuantTensor};
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::KernelSpec;
use kernels_gpu::quant::blocks::BLOCK;
use kernels_gpu::quant::decode::{self, DECODE};
use kernels_gpu::quant::encode::{self, I8, Q4_0, Q4K, Q8_0, ROWS};
use kernels_gpu::quant::straight_through::STRAIGHT_THROUGH;
use kernels_gpu::quant::tile::{BN, SLICES64, TILE32, TILE64, TILE128};
use kernels_gpu::quant::vector::{self, VECTOR, VECTOR1};

/// Up to here tiles of 32 rows: with 64, half of a tile or more would be empty.
const MAX_TILE32_M: u32 = 32;
/// Likewise up to here tiles of 64 rows.
const MAX_TILE64_M: u32 = 64;
/// Blocks of tiles of 128 rows that a multiprocessor holds: fewer leave latencies uncovered.
const TILE_BLOCKS_PER_SM: u32 = 2;

pub(crate) fn quantize(device: &CudaDevice, w: &mut QuantTensor, x: &Tensor) -> Result<()> {
    let (rows, cols, k) = (w.rows() as u32, w.cols() as u32, w.k as u32);
    let format = w.format();
    let (quants, scales, x) = (w.quants.view_mut()?.address(), w.scales.view_mut()?.address(), x.address());
    let threads = |spec: &KernelSpec| [(rows * (k / BLOCK as u32)).div_ceil(spec.threads()), 1, 1];
    // SAFETY: `ops::quantize` has checked that x is contiguous [rows, cols] f32 and made quants and scales for the format
    // and these extents; all are on this stream, of less than 2³¹ values, and nothing else refers to the new ones.
    unsafe {
        match format {
            Format::I8 => device.launch_args(&I8, [rows, 1, 1], args![quants, scales, x, cols, k]),
            Format::Q8_0 => {
                device.launch_args(&Q8_0, threads(&Q8_0), args![quants, scales, x, rows, cols, k])
            }
            Format::Q4_0 => {
                device.launch_args(&Q4_0, threads(&Q4_0), args![quants, scales, x, rows, cols, k])
            }
            Format::Q4K => device.launch_args(&Q4K, threads(&Q4K), args![quants, scales, x, rows, cols, k]),
        }
    }
}

pub(crate) fn quantize_rows(device: &CudaDevice, rows: &mut QuantRows, x: &Tensor) -> Result<()> {
    let (m, cols) = x.shape().rows_cols();
    let (m, cols, k) = (m as u32, cols as u32, rows.k as u32);
    let spec = ROWS[usize::from(x.dtype() == DType::F16)];
    let (quants, scales) = (rows.quants.view_mut()?.address(), rows.scales.view_mut()?.address());
    let grid = [(m * (k / 4)).div_ceil(encode::THREADS), 1, 1];
    // SAFETY: `ops::quantize_rows` has checked that x is contiguous [m, cols] of the kernel's type and made quants and
    // scales for k, a multiple of 256; all are on this stream and small enough.
    unsafe { device.launch_args(&spec, grid, args![quants, scales, x.address(), m, cols, k]) }
}

pub(crate) fn dequantize(
    device: &CudaDevice,
    y: TensorMut,
    w: &QuantTensor,
    ids: Option<&Tensor>,
) -> Result<()> {
    let (rows, cols) = y.shape().rows_cols();
    let (rows, cols, n, k) = (rows as u32, cols as u32, w.rows() as u32, w.k as u32);
    let spec = DECODE[w.format() as usize][usize::from(y.dtype() == DType::F16)];
    let grid = [(rows * cols.div_ceil(4)).div_ceil(decode::THREADS), 1, 1];
    let ids = ids.map_or(0, Tensor::address);
    // SAFETY: `ops::quant` has checked that y is contiguous [rows, cols] of the kernel's type with w's columns, and that
    // ids has `rows` indices or that rows is w's; all are on this stream and of less than 2³¹ values.
    unsafe {
        device.launch_args(
            &spec,
            grid,
            args![y.address(), w.quants.address(), w.scales.address(), ids, rows, cols, n, k],
        )
    }
}

/// y = act(x·wᵀ + bias) + residual for one row `x` in f32.
pub(crate) fn vector(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &QuantTensor,
    epilogue: &Epilogue,
) -> Result<()> {
    let (spec, n) = (VECTOR1[w.format() as usize], w.rows() as u32);
    // One wave: each block quantises the row once, for all columns that it makes.
    let &Properties { multiprocessor, multiprocessors, .. } = device.properties();
    let Resources { registers, shared_bytes } = device.kernel_resources(spec.name)?;
    let resident = multiprocessor.resident_blocks(spec.threads(), registers, shared_bytes);
    let grid = [vector::blocks1(n).min(resident.max(1) * multiprocessors), 1, 1];
    let [bias, residual, activation] = arguments(epilogue);
    let (w_quants, w_scales) = (w.quants.address(), w.scales.address());
    let (k, cols) = (w.k as u32, w.cols() as u32);
    // SAFETY: `ops::quant_matmul_into` has checked that x is contiguous f32 with w's columns, aligned, and that y and
    // residual are as wide as w has rows, and bias; all f32 and on this stream. A TensorMut overlaps nothing.
    unsafe {
        device.launch_args(
            &spec,
            grid,
            args![
                y.address(),
                x.address(),
                w_quants,
                w_scales,
                bias,
                residual,
                n,
                k,
                cols,
                activation as u32
            ],
        )
    }
}

/// The addresses of bias and residual, and the activation's number.
fn arguments(epilogue: &Epilogue) -> [u64; 3] {
    let address = |tensor: Option<&Tensor>| tensor.map_or(0, Tensor::address);
    let activation = super::activate::number(epilogue.activation);
    [address(epilogue.bias), address(epilogue.residual), u64::from(activation)]
}

/// The kernel for a product, and its grid.
fn select(format: Format, m: u32, n: u32, multiprocessors: u32) -> (KernelSpec, [u32; 3]) {
    let format = format as usize;
    if m <= vector::MAX_M {
        let (variant, columns) = vector::select(m);
        return (VECTOR[variant][format], [n.div_ceil(columns), 1, 1]);
    }
    let columns = n.div_ceil(BN);
    let blocks = |rows| m.div_ceil(rows) * columns;
    let grid = |rows| [m.div_ceil(rows), columns, 1];
    if m > MAX_TILE64_M && blocks(128) >= TILE_BLOCKS_PER_SM * multiprocessors {
        (TILE128[format], grid(128))
    } else if m <= MAX_TILE32_M || blocks(32) <= multiprocessors {
        (TILE32[format], grid(32))
    } else if blocks(64) <= multiprocessors {
        (SLICES64[format], grid(64))
    } else {
        (TILE64[format], grid(64))
    }
}

pub(crate) fn matmul(
    device: &CudaDevice,
    y: TensorMut,
    x: &QuantRows,
    w: &QuantTensor,
    epilogue: &Epilogue,
) -> Result<()> {
    let (m, n) = (x.shape.rows_cols().0 as u32, w.rows() as u32);
    if m == 0 || n == 0 {
        return Ok(());
    }
    let (spec, grid) = select(w.format(), m, n, device.properties().multiprocessors);
    let [bias, residual, activation] = arguments(epilogue);
    let (x_quants, x_scales) = (x.quants.address(), x.scales.address());
    let (w_quants, w_scales) = (w.quants.address(), w.scales.address());
    let (k, x_k) = (w.k as u32, x.k as u32);
    // SAFETY: `ops::quant_matmul_rows_into` has checked that x has w's columns, that y and residual are contiguous [m, n] and
    // bias [n], all f32 and on this stream. Rows of x are padded to multiples of 256, and so no shorter than those of w,
    // which have at least one block. A TensorMut overlaps nothing.
    unsafe {
        device.launch_args(
            &spec,
            grid,
            args![
                y.address(),
                x_quants,
                x_scales,
                w_quants,
                w_scales,
                bias,
                residual,
                m,
                n,
                k,
                x_k,
                activation as u32
            ],
        )
    }
}

pub(crate) fn straight_through(
    device: &CudaDevice,
    dx: TensorMut,
    dy: &Tensor,
    x: &Tensor,
    limit: f32,
) -> Result<()> {
    let count = x.shape().elements() as u32;
    let grid = [count.div_ceil(STRAIGHT_THROUGH.threads()), 1, 1];
    // SAFETY: `ops::fake_quantize_gradient` has checked that dy and x are contiguous f32 of one shape, of less than 2³¹
    // elements, on this stream, and made dx like them.
    unsafe {
        device.launch_args(
            &STRAIGHT_THROUGH,
            grid,
            args![dx.address(), dy.address(), x.address(), count, limit],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_by_shape() {
        let of = |m, n, sms| select(Format::Q4_0, m, n, sms).0.name;
        assert_eq!(of(1, 4096, 20), "quant_vector2_q4_0");
        assert_eq!(of(3, 4096, 20), "quant_vector4_q4_0");
        assert_eq!(of(8, 4096, 20), "quant_vector8_q4_0");
        assert_eq!(of(9, 4096, 20), "quant_tile32_q4_0");
        assert_eq!(of(33, 4096, 20), "quant_tile64_q4_0");
        assert_eq!(of(128, 320, 20), "quant_tile32_q4_0");
        assert_eq!(of(128, 384, 20), "quant_slices64_q4_0");
        assert_eq!(of(128, 640, 20), "quant_slices64_q4_0");
        assert_eq!(of(128, 1024, 20), "quant_tile64_q4_0");
        assert_eq!(of(128, 4096, 20), "quant_tile128_q4_0");
        assert_eq!(of(64, 8192, 20), "quant_tile64_q4_0"); // 128 rows would be half empty
    }

    #[test]
    fn formats_index_the_kernels() {
        for format in crate::quant::FORMATS {
            let name = crate::quant::name(format);
            assert!(
                DECODE[format as usize][0].name.contains(name)
                    && TILE128[format as usize].name.ends_with(name)
            );
            assert!(
                VECTOR.iter().chain([&VECTOR1]).all(|kernels| kernels[format as usize].name.ends_with(name))
            );
            assert!([TILE32, TILE64, SLICES64].iter().all(|tile| tile[format as usize].name.ends_with(name)));
        }
    }
}
