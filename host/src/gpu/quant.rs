//! Quantised weights: the kernels that quantise, dequantise and multiply, and their grids.

use super::DeviceElement;
use super::quant_tiles::{Tiling, tiling};
use crate::cuda::occupancy::Resources;
use crate::cuda::{COUNTERS, CudaDevice, Properties};
use crate::memory::DeviceBuffer;
use crate::problem::activate::{Activation, Epilogue};
use crate::quant::{Format, QuantRows, QuantTensor};
use crate::{DType, Result, Tensor, TensorMut};
use cuda_std::KernelSpec;
use kernels_gpu::device::rows::{MAX_BLOCK_COLS, row_threads};
use kernels_gpu::quant::blocks::{BLOCK, RowScale};
use kernels_gpu::quant::decode::{self, Decode, TO_F16, TO_F32};
use kernels_gpu::quant::encode::{self, Encode, EncodeRows, quant_encode_rows_f16, quant_encode_rows_f32};
use kernels_gpu::quant::formats::{ENCODE, Scales};
use kernels_gpu::quant::norm::{Norm, quant_rms_norm_f32};
use kernels_gpu::quant::straight_through::{self, StraightThrough, quant_straight_through_f32};
use kernels_gpu::quant::tile::{BN, GATED128, TILE32, TILE64, TILE128};
use kernels_gpu::quant::vector::one::{self, GATED1, NORMED1, VECTOR1, Vector};
use kernels_gpu::quant::vector::quantized::{self, VECTOR};
use kernels_gpu::quant::{Gated, Product};
use std::ptr;

/// The most rows of which tiles of 128 are half empty.
const MAX_TILE64_M: u32 = 64;
/// Blocks of tiles of 128 rows that are resident on a multiprocessor: fewer do not hide the latency.
const TILE_BLOCKS_PER_SM: u32 = 2;

/// Whether tiles of 128 rows fill the device: seven in eight of the places for their blocks have one.
fn fills(m: u32, n: u32, multiprocessors: u32) -> bool {
    8 * m.div_ceil(128) * n.div_ceil(BN) >= 7 * TILE_BLOCKS_PER_SM * multiprocessors
}

pub(crate) fn quantize(device: &CudaDevice, w: &mut QuantTensor, x: &Tensor) -> Result<()> {
    let (rows, cols, k) = (w.rows() as u32, w.cols() as u32, w.k as u32);
    let blocks = match w.format().descriptor().scales {
        Scales::Row => rows,
        _ => (rows * (k / BLOCK as u32)).div_ceil(encode::THREADS),
    };
    let (quants, scales) =
        (w.quants.view_mut()?.address() as *mut u8, w.scales.view_mut()?.address() as *mut u8);
    let parameters = Encode { quants, scales, x: x.ptr(), rows, cols, k };
    // SAFETY: `ops::quantize` has checked that x is contiguous [rows, cols] f32 and allocated quants and scales for the
    // format and these dimensions. All are on this stream, of less than 2³¹ values, and nothing else refers to the new ones.
    unsafe { device.launch(&ENCODE[w.format() as usize], [blocks, 1, 1], &parameters) }
}

/// Quantises `x` to the last of `rows`, as many as x has: usually all.
pub(crate) fn quantize_rows(device: &CudaDevice, rows: &mut QuantRows, x: &Tensor) -> Result<()> {
    match x.dtype() {
        DType::F16 => encode_rows(device, &quant_encode_rows_f16, rows, x),
        _ => encode_rows(device, &quant_encode_rows_f32, rows, x),
    }
}

fn encode_rows<T: DeviceElement>(
    device: &CudaDevice,
    spec: &KernelSpec<EncodeRows<T>>,
    rows: &mut QuantRows,
    x: &Tensor,
) -> Result<()> {
    let (m, cols) = x.shape().rows_cols();
    let first = rows.shape.rows_cols().0 - m;
    let (m, cols, k) = (m as u32, cols as u32, rows.k as u32);
    let (quants, scales) = (rows.quants.view_mut()?.address(), rows.scales.view_mut()?.address());
    let grid = [(m * (k / 4)).div_ceil(encode::THREADS), 1, 1];
    let quants = (quants as *mut u32).wrapping_add(first * rows.k / 4);
    let scales = (scales as *mut RowScale).wrapping_add(first * rows.k / BLOCK);
    let parameters = EncodeRows { quants, scales, x: x.ptr::<T>(), rows: m, cols, k };
    // SAFETY: `ops::quantize_rows` has checked that x is contiguous [m, cols] of the kernel's type and allocated quants and
    // scales for k, a multiple of 256, and for m rows; `ops::quant_gated_rows` for at least m rows. All are on this stream, of
    // less than 2³¹ values.
    unsafe { device.launch(spec, grid, &parameters) }
}

/// Whether [`rms_norm_rows`] and [`vector`] can normalise rows of this length.
pub(crate) fn norm_is_fused(cols: usize) -> bool {
    cols > 0 && cols.is_multiple_of(4) && cols <= MAX_BLOCK_COLS as usize
}

/// rms_norm(x), quantised, for lengths of rows of which [`norm_is_fused`] says so.
pub(crate) fn rms_norm_rows(
    device: &CudaDevice,
    rows: &mut QuantRows,
    x: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<()> {
    let (m, cols) = x.shape().rows_cols();
    let (m, cols, k) = (m as u32, cols as u32, rows.k as u32);
    let (quants, scales) = (rows.quants.view_mut()?.address(), rows.scales.view_mut()?.address());
    let (quants, scales) = (quants as *mut u32, scales as *mut _);
    let parameters = Norm { quants, scales, x: x.ptr(), weight: weight.ptr(), cols, k, eps };
    // SAFETY: `ops::rms_norm_rows` has checked that x is contiguous [m, cols] f32 and the weight [cols] f32, both aligned, with
    // a length of rows as `norm_is_fused` asks for, and allocated quants and scales for k, cols rounded up to a multiple of
    // 256. All are on this stream, of less than 2³¹ values.
    unsafe { device.launch(&quant_rms_norm_f32.of_threads(row_threads(k)), [m, 1, 1], &parameters) }
}

pub(crate) fn dequantize(
    device: &CudaDevice,
    y: TensorMut,
    w: &QuantTensor,
    ids: Option<&Tensor>,
) -> Result<()> {
    let format = w.format() as usize;
    match y.dtype() {
        DType::F16 => decode(device, &TO_F16[format], y, w, ids),
        _ => decode(device, &TO_F32[format], y, w, ids),
    }
}

fn decode<T: DeviceElement>(
    device: &CudaDevice,
    spec: &KernelSpec<Decode<T>>,
    y: TensorMut,
    w: &QuantTensor,
    ids: Option<&Tensor>,
) -> Result<()> {
    let (rows, cols) = y.shape().rows_cols();
    let (rows, cols, n, k) = (rows as u32, cols as u32, w.rows() as u32, w.k as u32);
    let grid = [(rows * cols.div_ceil(4)).div_ceil(decode::THREADS), 1, 1];
    let ids = ids.map_or(ptr::null(), Tensor::ptr);
    let (w, w_scales) = addresses(w);
    let parameters = Decode { y: y.ptr::<T>(), w, w_scales, ids, rows, cols, n, k };
    // SAFETY: `ops::quant` has checked that y is contiguous [rows, cols] of the kernel's type with w's columns, and that
    // ids has `rows` indices or that rows is w's; all are on this stream and of less than 2³¹ values.
    unsafe { device.launch(spec, grid, &parameters) }
}

/// The addresses of a matrix's quants and scales; the format gives their layout.
pub(super) fn addresses(w: &QuantTensor) -> (*const u8, *const u8) {
    (w.quants.address() as *const u8, w.scales.address() as *const u8)
}

/// The blocks of a kernel that the device holds at once.
pub(super) fn one_wave<P>(device: &CudaDevice, spec: &KernelSpec<P>) -> Result<u32> {
    let &Properties { multiprocessor, multiprocessors, .. } = device.properties();
    let Resources { registers, shared_bytes } = device.kernel_resources(spec.name)?;
    let resident = multiprocessor.resident_blocks(spec.threads(), registers, shared_bytes);
    Ok(resident.max(1) * multiprocessors)
}

/// y = act(norm(x)·wᵀ + bias) + residual for one row `x` in f32, whose length [`norm_is_fused`] allows if there is a norm. With
/// [`Activation::SwiGlu`] w has gates, then ups, and there is no bias.
pub(crate) fn vector(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &QuantTensor,
    norm: Option<(&Tensor, f32)>,
    epilogue: &Epilogue,
) -> Result<()> {
    let (index, n) = (w.format() as usize, y.shape().elements() as u32);
    let (spec, blocks) = match (epilogue.activation, norm) {
        (Activation::SwiGlu, _) => (GATED1[index], one::gated_blocks1(n)),
        (_, Some(_)) => (NORMED1[index], one::blocks1(n)),
        (_, None) => (VECTOR1[index], one::blocks1(n)),
    };
    // each block quantises the row once, for all columns that it computes
    let grid = [blocks.min(one_wave(device, &spec)?), 1, 1];
    let (k, cols) = (w.k as u32, w.cols() as u32);
    let (bias, residual, activation) = arguments(epilogue);
    let (norm, eps) = norm.map_or((ptr::null(), 0.0), |(weight, eps)| (weight.ptr(), eps));
    let (y, x, (w, w_scales)) = (y.ptr(), x.ptr(), addresses(w));
    let parameters = Vector { y, x, norm, w, w_scales, bias, residual, n, k, cols, activation, eps };
    // SAFETY: `ops` has checked that x and the norm's weight are contiguous f32 with w's columns and aligned, and that y, residual and
    // bias have as many columns as w has rows, or half as many for gates and ups. All are f32 and on this stream. A TensorMut overlaps
    // nothing. Without columns there is no block, and so no launch.
    unsafe { device.launch(&spec, grid, &parameters) }
}

/// Bias, residual, and the activation's number.
pub(super) fn arguments(epilogue: &Epilogue) -> (*const f32, *const f32, u32) {
    let pointer = |tensor: Option<&Tensor>| tensor.map_or(ptr::null(), Tensor::ptr);
    (pointer(epilogue.bias), pointer(epilogue.residual), super::activate::number(epilogue.activation))
}

fn is_pascal(&Properties { capability: (major, _), .. }: &Properties) -> bool {
    major == 6
}

/// The kernel of a product, its grid, and the bytes of its blocks' sums if k is in parts.
struct Choice {
    spec: KernelSpec<Product>,
    grid: [u32; 3],
    partial: usize,
}

/// The vector kernel for up to [`quantized::MAX_M`] rows, which have the same bits in each of them, however many there are.
fn vector_kernel(device: &CudaDevice, format: Format, m: u32, n: u32) -> Result<Choice> {
    let spec = VECTOR[quantized::variant_for(m)][format as usize];
    // each block copies the rows once, for all columns that it computes
    let blocks = quantized::blocks(n).min(one_wave(device, &spec)?);
    Ok(Choice { spec, grid: [blocks, 1, 1], partial: 0 })
}

/// The tile kernel for y: [m, n] with k columns.
fn tile_kernel(format: Format, [m, n, k]: [u32; 3], properties: &Properties) -> Choice {
    by_tiles(format, [m, n], tiling([m, n, k], is_pascal(properties), properties.multiprocessors, COUNTERS))
}

/// The kernel for y: [m, n] by such tiles.
fn by_tiles(format: Format, [m, n]: [u32; 2], Tiling { rows, parts }: Tiling) -> Choice {
    let kernels = match rows {
        32 => &TILE32,
        64 => &TILE64,
        _ => &TILE128,
    };
    let grid = [m.div_ceil(rows), n.div_ceil(BN), parts];
    let records = if parts > 1 { grid.iter().product::<u32>() * rows * BN } else { 0 };
    Choice { spec: kernels[format as usize], grid, partial: records as usize * size_of::<f32>() }
}

/// The pieces of m rows, each the first row and their number. A tile of 128 rows takes as long for half as many, so a last one
/// of so few is a product of its own.
fn pieces(m: u32, n: u32, multiprocessors: u32) -> impl Iterator<Item = (u32, u32)> {
    let (whole, rest) = (m / 128 * 128, m % 128);
    let apart = (1..=MAX_TILE64_M).contains(&rest) && fills(whole, n, multiprocessors);
    let pieces = if apart { [(0, whole), (whole, rest)] } else { [(0, m), (m, 0)] };
    pieces.into_iter().filter(|&(_, len)| len > 0)
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
    for (first, m) in pieces(m, n, device.properties().multiprocessors) {
        let at = first as usize * n as usize;
        let piece = |pointer: *const f32| if pointer.is_null() { pointer } else { pointer.wrapping_add(at) };
        let (bias, residual, activation) = arguments(epilogue);
        let outputs = (y.ptr::<f32>().wrapping_add(at), bias, piece(residual), activation);
        // SAFETY: `ops::quant_matmul_rows_into` has checked that x has w's columns, that y and residual are contiguous [m, n] and
        // bias [n], all f32 and on this stream; the pieces' rows are among theirs. A TensorMut overlaps nothing.
        unsafe { multiply(device, outputs, x, (first, m), w)? }
    }
    Ok(())
}

/// y = act(x·wᵀ + bias) + residual for `m` rows of x from `first`, with y, bias, residual and the activation's number in `outputs`.
///
/// # Safety
/// y and residual are [m, n], bias [n], f32 and on the stream; y overlaps nothing. x has these rows and w's columns; both are on
/// the stream.
unsafe fn multiply(
    device: &CudaDevice,
    outputs: (*mut f32, *const f32, *const f32, u32),
    x: &QuantRows,
    (first, m): (u32, u32),
    w: &QuantTensor,
) -> Result<()> {
    let n = w.rows() as u32;
    let kernel = match m <= quantized::MAX_M {
        true => vector_kernel(device, w.format(), m, n)?,
        false => tile_kernel(w.format(), [m, n, w.k as u32], device.properties()),
    };
    // SAFETY: this function's contract.
    unsafe { multiply_by(device, kernel, outputs, x, (first, m), w) }
}

/// As [`multiply`], by a kernel that takes as many rows.
///
/// # Safety
/// As there; the grid is the kernel's for this shape.
unsafe fn multiply_by(
    device: &CudaDevice,
    Choice { spec, grid, partial }: Choice,
    (y, bias, residual, activation): (*mut f32, *const f32, *const f32, u32),
    x: &QuantRows,
    (first, m): (u32, u32),
    w: &QuantTensor,
) -> Result<()> {
    let (n, k, x_k) = (w.rows() as u32, w.k as u32, x.k as u32);
    let (w, w_scales) = addresses(w);
    let [x, x_scales] = [(x.quants.address(), 1), (x.scales.address(), BLOCK / size_of::<RowScale>())]
        .map(|(start, values)| (start as *const u8).wrapping_add(first as usize * x_k as usize / values));
    let partial = DeviceBuffer::uninitialized(device, partial)?;
    let (partial, counters) = (partial.ptr(), device.stream().counters() as *mut u32);
    let parameters =
        Product { y, x, x_scales, w, w_scales, bias, residual, partial, counters, m, n, k, x_k, activation };
    // SAFETY: this function's contract. Rows of x are padded to multiples of 256, and so no shorter than those of w, which have
    // at least one block. `partial` has the sums of all blocks of several parts and is freed after the launch; the stream has a counter
    // for each of their tiles, as `tiling` is told.
    unsafe { device.launch(&spec, grid, &parameters) }
}

/// The most rows whose gated product with `n` rows of w has no kernel of its own on a device.
pub fn unfused_gate_rows(n: usize, multiprocessors: u32) -> usize {
    let (places, columns) = (7 * TILE_BLOCKS_PER_SM * multiprocessors, 8 * (n as u32).div_ceil(BN).max(1));
    (places.div_ceil(columns).saturating_sub(1) * 128).max(MAX_TILE64_M) as usize
}

/// Whether the gated product of `m` rows with `n` rows of w has a kernel of its own on the device.
pub(crate) fn gate_is_fused(device: &CudaDevice, m: usize, n: usize) -> bool {
    let (m, n) = (m as u32, n as u32);
    m > MAX_TILE64_M && fills(m, n, device.properties().multiprocessors)
}

/// The last rows of x as [`pieces`] has them apart, by the product's sums: y = x·wᵀ, as many rows as y has.
pub(crate) fn matmul_last(device: &CudaDevice, y: TensorMut, x: &QuantRows, w: &QuantTensor) -> Result<()> {
    let (m, rest) = (x.shape.rows_cols().0 as u32, y.shape().rows_cols().0 as u32);
    let outputs = (y.ptr(), ptr::null(), ptr::null(), super::activate::number(Activation::Identity));
    // SAFETY: `ops::quant_gated_rows` has made y for these rows and checked that x has w's columns; all are on this stream.
    unsafe { multiply(device, outputs, x, (m - rest, rest), w) }
}

/// The rows silu(gate)·up of x·wᵀ, quantised, for sizes of which [`gate_is_fused`] says so. Gives the number of last rows that
/// it leaves, because a tile for them would be at most half full.
pub(crate) fn gated_rows(
    device: &CudaDevice,
    rows: &mut QuantRows,
    x: &QuantRows,
    w: &QuantTensor,
) -> Result<usize> {
    let (all, n) = (x.shape.rows_cols().0 as u32, w.rows() as u32);
    let m = pieces(all, n, device.properties().multiprocessors).next().map_or(all, |(_, len)| len);
    let (k, x_k, y_k) = (w.k as u32, x.k as u32, rows.k as u32);
    let (quants, scales) = (rows.quants.view_mut()?.address(), rows.scales.view_mut()?.address());
    let (quants, scales) = (quants as *mut u32, scales as *mut _);
    let (w_quants, w_scales) = addresses(w);
    let (x, x_scales) = (x.quants.address() as *const u8, x.scales.address() as *const u8);
    let parameters = Gated { quants, scales, x, x_scales, w: w_quants, w_scales, m, n, k, x_k, y_k };
    let grid = [m.div_ceil(128), y_k / BLOCK as u32, 1];
    // SAFETY: `ops::quant_gated_rows` has checked that x has w's columns and that w has an even number of rows, and allocated
    // quants and scales for m rows of y_k ≥ n / 2 values, a multiple of 256. All are on this stream, and nothing else refers to
    // the new ones. Rows of x are padded to multiples of 256, and so no shorter than those of w; m and n are not 0.
    unsafe { device.launch(&GATED128[w.format() as usize], grid, &parameters)? }
    Ok((all - m) as usize)
}

pub(crate) fn straight_through(
    device: &CudaDevice,
    dx: TensorMut,
    dy: &Tensor,
    x: &Tensor,
    limit: f32,
) -> Result<()> {
    let count = x.shape().elements() as u32;
    let grid = [count.div_ceil(straight_through::THREADS), 1, 1];
    let parameters = StraightThrough { dx: dx.ptr(), dy: dy.ptr(), x: x.ptr(), count, limit };
    // SAFETY: `ops::fake_quantize_gradient` has checked that dy and x are contiguous f32 of one shape, of less than 2³¹
    // elements, on this stream, and made dx like them.
    unsafe { device.launch(&quant_straight_through_f32, grid, &parameters) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, ops};

    #[test]
    fn vector_kernels_by_rows() {
        let of = |m| VECTOR[quantized::variant_for(m)][Format::Q4_0 as usize].name;
        assert_eq!([of(1), of(3), of(8)], ["quant_vector2_q4_0", "quant_vector4_q4_0", "quant_vector8_q4_0"]);
        assert_eq!(of(9), "quant_vector16_q4_0");
    }

    /// k in parts, of all heights of tiles, also where the parts differ in length and the last block of k is half a tile.
    #[test]
    fn the_sums_of_parts_are_the_product() -> Result<()> {
        let device = Device::virtual_gpu()?;
        let Device::Cuda(gpu) = &device else { panic!("the virtual GPU is no CUDA device") };
        let (m, n, k) = (70, 67, 480);
        let values = |count: usize| (0..count).map(|at| (at as f32 * 0.37).sin()).collect::<Vec<_>>();
        let x = ops::quantize_rows(&Tensor::from_slice(&values(m * k), [m, k], &device)?)?;
        for format in Format::ALL {
            let w = ops::quantize(&Tensor::from_slice(&values(n * k), [n, k], &device)?, format)?;
            for rows in [32, 64, 128] {
                let product = |parts| {
                    let mut y = Tensor::uninitialized([m, n], DType::F32, &device)?;
                    let outputs = (y.view_mut()?.ptr::<f32>(), ptr::null(), ptr::null(), 0);
                    let choice = by_tiles(format, [m as u32, n as u32], Tiling { rows, parts });
                    // SAFETY: y is [m, n] and new; x has m rows and w's columns. All are on one stream.
                    unsafe { multiply_by(gpu, choice, outputs, &x, (0, m as u32), &w)? };
                    y.to_vec::<f32>()
                };
                let whole = product(1)?;
                for parts in [2, 3, 8] {
                    let apart = product(parts)?;
                    let far = whole.iter().zip(&apart).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    // sums of up to 480 products below 1, rounded in another order
                    assert!(far < 1e-3, "{format:?}, {rows} rows, {parts} parts: {far}");
                    assert_ne!(whole, apart, "{format:?}, {rows} rows: {parts} parts are as good as one");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn few_rows_after_the_last_whole_tile_are_apart() {
        let of = |m, n, sms| pieces(m, n, sms).collect::<Vec<_>>();
        assert_eq!(of(800, 2048, 20), [(0, 768), (768, 32)]);
        assert_eq!(of(192, 2048, 20), [(0, 192)], "the whole tiles do not fill the device");
        assert_eq!(of(192, 4096, 20), [(0, 128), (128, 64)]);
        assert_eq!(of(193, 4096, 20), [(0, 193)]);
        assert_eq!([of(128, 4096, 20), of(64, 4096, 20), of(1, 4096, 20)], [[(0, 128)], [(0, 64)], [(0, 1)]]);
    }

    #[test]
    fn the_most_rows_without_a_kernel_for_gates() {
        for (n, sms) in [(12288, 132), (12288, 20), (6144, 132), (64, 3), (512, 30), (1, 1)] {
            let most = unfused_gate_rows(n, sms) as u32;
            assert!(most == MAX_TILE64_M || !fills(most, n as u32, sms), "{n} {sms}");
            assert!(most + 1 > MAX_TILE64_M && fills(most + 1, n as u32, sms), "{n} {sms}");
        }
    }

    #[test]
    fn formats_index_the_kernels() {
        for format in crate::quant::FORMATS {
            let name = crate::quant::name(format);
            assert!(
                TO_F32[format as usize].name.contains(name) && TO_F16[format as usize].name.contains(name)
            );
            assert!(
                VECTOR1[format as usize].name.ends_with(name)
                    && [NORMED1, GATED1].iter().all(|one| one[format as usize].name.ends_with(name))
                    && TILE128[format as usize].name.ends_with(name)
                    && GATED128[format as usize].name.ends_with(name)
            );
            assert!(VECTOR.iter().all(|kernels| kernels[format as usize].name.ends_with(name)));
            assert!([TILE32, TILE64].iter().all(|tile| tile[format as usize].name.ends_with(name)));
        }
    }
}
