//! Mixture of experts: kernels and grids.

use super::by_dtype;
use super::quant::one_wave;
use crate::cuda::{COUNTERS, CudaDevice};
use crate::memory::DeviceBuffer;
use crate::problem::experts::{Places, Routes, Sorted};
use crate::quant::{QuantRows, QuantTensor};
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::experts::{
    BLOCK_LOGITS, Combine, ROUTE, ROUTE_TOKENS, ROUTE4, Route, SUM_COLUMNS, Sort, experts_sort,
    experts_sum_f32, slots,
};
use kernels_gpu::matmul::experts::{
    Experts, ROW_COLUMNS, TILE, matmul_experts1_f32, matmul_experts1_mixed, matmul_experts64_f32,
    matmul_experts64_mixed,
};
use kernels_gpu::quant;
use kernels_gpu::quant::blocks::BLOCK;
use kernels_gpu::quant::experts::{BM, EXPERTS64, GATED64};
use kernels_gpu::quant::tile::BN;
use kernels_gpu::quant::vector::experts::{EXPERTS1, Experts1};
use kernels_gpu::quant::vector::one::blocks1;
use std::ptr;

/// The most tokens whose pairs are not sorted: each pair reads its expert's matrix by itself. So a token's result has the same
/// bits alone and among as many others as products with few rows take.
pub(crate) const MAX_UNSORTED_TOKENS: usize = quant::vector::quantized::MAX_M as usize;
/// Blocks of several tokens that a multiprocessor gets at least, for a router that reads its matrix once for them: with fewer it is slower.
const ROUTE_BLOCKS_PER_SM: u32 = 2;

pub(crate) fn route(
    device: &CudaDevice,
    ids: TensorMut,
    weights: TensorMut,
    x: &Tensor,
    gate: &Tensor,
    normalized: bool,
    uses: Option<TensorMut>,
) -> Result<()> {
    let (tokens, cols) = x.shape().rows_cols();
    let (experts, top_k) = (gate.dims()[0], ids.dims()[1]);
    let logits = DeviceBuffer::uninitialized(device, tokens * experts * size_of::<f32>())?;
    let together = (tokens as u32).div_ceil(ROUTE_TOKENS);
    const { assert!(MAX_UNSORTED_TOKENS <= COUNTERS, "a counter for each of a few tokens") };
    let are_few = tokens <= MAX_UNSORTED_TOKENS;
    let are_many = !are_few && together >= ROUTE_BLOCKS_PER_SM * device.properties().multiprocessors;
    let grid = match (are_few, are_many) {
        (true, _) => [(experts as u32).div_ceil(BLOCK_LOGITS), tokens as u32, 1], // logits are spread over the device
        (_, true) => [1, together, 1],
        _ => [1, tokens as u32, 1],
    };
    let counters = device.stream().counters() as *mut u32;
    by_dtype!(gate.dtype(), T, (few, many) = [(ROUTE.0, ROUTE4.0), (ROUTE.1, ROUTE4.1)] => {
        let (x, gate) = (x.ptr::<f32>(), gate.ptr::<T>());
        let aligned = (x as usize).is_multiple_of(16) && (gate as usize).is_multiple_of(4 * size_of::<T>());
        let parameters = Route {
            ids: ids.ptr(),
            weights: weights.ptr(),
            logits: logits.ptr(),
            counters,
            uses: uses.as_ref().map_or(ptr::null_mut(), TensorMut::ptr),
            x,
            gate,
            experts: experts as u32,
            top_k: top_k as u32,
            m: tokens as u32,
            cols: cols as u32,
            vectors: u32::from(aligned && cols.is_multiple_of(4)),
            normalized: u32::from(normalized),
        };
        // SAFETY: `ops::route` has checked that x is contiguous [tokens, cols] f32 and gate [experts, cols] of the kernel's type, with
        // 1 ≤ top_k ≤ experts ≤ MAX_EXPERTS, and made ids and weights [tokens, top_k]. All are on this stream and of less than 2³¹
        // elements. `logits` has room for each expert and is freed after the launch; `uses` is [experts]. The stream has a counter
        // for each token if there are several blocks.
        unsafe { device.launch(if are_many { many } else { few }, grid, &parameters) }
    })
}

pub(crate) fn sort(device: &CudaDevice, order: &mut Sorted, ids: &Tensor) -> Result<()> {
    let (pairs, top_k) = (ids.shape().elements() as u32, ids.dims()[1] as u32);
    let experts = order.starts.dims()[0] as u32 - 1;
    let Sorted { tokens, places, starts } = order;
    let (tokens, places, starts) =
        (tokens.view_mut()?.ptr(), places.view_mut()?.ptr(), starts.view_mut()?.ptr());
    let parameters = Sort { tokens, places, starts, ids: ids.ptr(), pairs, top_k };
    // SAFETY: `ops` has made the outputs [pairs], [pairs] and [experts + 1] on ids' stream, and ids are below `experts`: the kernel
    // for routes gives such, and `Routes::from_slices` checks them.
    unsafe { device.launch(&experts_sort, [experts, 1, 1], &parameters) }
}

pub(crate) fn sum(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    routes: &Routes,
    residual: Option<&Tensor>,
) -> Result<()> {
    let (tokens, cols) = y.shape().rows_cols();
    let (tokens, cols, top_k) = (tokens as u32, cols as u32, routes.top_k() as u32);
    let parameters = Combine {
        y: y.ptr(),
        x: x.ptr(),
        weights: routes.weights.ptr(),
        places: routes.sorted.as_ref().map_or(ptr::null(), |sorted| sorted.places.ptr()),
        residual: residual.map_or(ptr::null(), Tensor::ptr),
        cols,
        top_k,
    };
    // SAFETY: `ops::experts_sum_into` has checked that y and residual are contiguous [tokens, cols] and x [pairs, cols], all f32, on
    // this stream and of less than 2³¹ elements; places are rows of x. A TensorMut overlaps nothing.
    unsafe { device.launch(&experts_sum_f32, [tokens, cols.div_ceil(SUM_COLUMNS), 1], &parameters) }
}

/// The slots for a kernel, what is in them, and whether it leaves out experts without one. Sorted rows need none.
fn slots_of(places: Option<Places>) -> (*const u32, [u64; 2], u32) {
    match places {
        Some(Places { slots, cached, on_device }) => {
            (slots.address_to_queue() as *const u32, cached, on_device.into())
        }
        None => (ptr::null(), [0; 2], 0),
    }
}

/// Products in floating point.
pub(crate) fn linear(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &Tensor,
    routes: &Routes,
    (sharing, at): (usize, Option<Places>),
) -> Result<()> {
    let (pairs, n) = y.shape().rows_cols();
    let (pairs, n, k, experts) = (pairs as u32, n as u32, w.dims()[1] as u32, routes.experts as u32);
    by_dtype!(w.dtype(), T, (tile, row) = [
        (matmul_experts64_f32, matmul_experts1_f32), (matmul_experts64_mixed, matmul_experts1_mixed)
    ] => {
        let (y, x, w) = (y.ptr::<f32>(), x.ptr::<f32>(), w.ptr::<T>());
        let starts = |bytes: u32| [y as usize, x as usize, w as usize].iter().all(|at| at.is_multiple_of(bytes as usize));
        let aligned = starts(16) && (k * size_of::<T>() as u32).is_multiple_of(16);
        let (ids, sorted) = match &routes.sorted {
            Some(sorted) => (ptr::null(), sorted.starts.ptr::<u32>()),
            None => (routes.ids.ptr(), ptr::null()),
        };
        let sharing = if sorted.is_null() { sharing as u32 } else { 1 };
        let (slots_of_experts, cached, on_device) = slots_of(at);
        let parameters = Experts {
            y,
            x,
            w,
            ids,
            starts: sorted,
            cached: cached[0] as *const T,
            slots: slots_of_experts,
            experts,
            n,
            k,
            sharing,
            aligned: aligned.into(),
            on_device,
        };
        let (spec, grid) = if !sorted.is_null() && starts(16) && n.is_multiple_of(4) && k.is_multiple_of(4) {
            (tile, [n.div_ceil(TILE), slots(pairs, TILE, experts), 1])
        } else {
            let rows = if sorted.is_null() { pairs } else { slots(pairs, 1, experts) };
            (row, [n.div_ceil(ROW_COLUMNS), 1, rows])
        };
        // SAFETY: `ops::experts_linear` has checked that x and w are contiguous, of the kernel's types, with k > 0 columns and
        // `experts` times n rows of w, and that x has a row for each pair, or for `sharing` of them; y is [pairs, n]. All are on this
        // stream and of less than 2³¹ elements. The routes' ids are below `experts`. Slots have an entry for each
        // expert, and `cached` n rows for each slot, aligned as w's: `nn::expert_cache` writes them in this stream's order.
        unsafe { device.launch(spec, grid, &parameters) }
    })
}

/// Products of few tokens with quantised matrices.
pub(crate) fn vectors(
    device: &CudaDevice,
    y: TensorMut,
    x: &Tensor,
    w: &QuantTensor,
    routes: &Routes,
    (sharing, at): (usize, Option<Places>),
) -> Result<()> {
    let (pairs, n) = y.shape().rows_cols();
    let (pairs, n, spec) = (pairs as u32, n as u32, EXPERTS1[w.format() as usize]);
    let (slots_of_experts, cached, on_device) = slots_of(at);
    let parameters = Experts1 {
        y: y.ptr(),
        x: x.ptr(),
        w: w.quants.address() as *const u8,
        w_scales: w.scales.address() as *const u8,
        ids: routes.ids.ptr(),
        cached: cached[0] as *const u8,
        cached_scales: cached[1] as *const u8,
        slots: slots_of_experts,
        n,
        k: w.k as u32,
        cols: x.dims()[1] as u32,
        sharing: sharing as u32,
        on_device,
    };
    // each block quantises its row once, for all columns that it computes
    let blocks = blocks1(n).min((one_wave(device, &spec)? / pairs.max(1)).max(1));
    // SAFETY: `ops::quant_experts_linear` has checked that x is contiguous f32, aligned, with w's columns, padded to a multiple of 4,
    // and a row for each pair, or for `sharing` of them; w has `experts` times n rows, and y is [pairs, n]. All are on this stream and
    // of less than 2³¹ elements. The routes' ids are below `experts`. Slots are as in `linear`.
    unsafe { device.launch(&spec, [blocks, pairs, 1], &parameters) }
}

/// Products of sorted rows with quantised matrices.
pub(crate) fn tiles(
    device: &CudaDevice,
    y: TensorMut,
    x: &QuantRows,
    w: &QuantTensor,
    routes: &Routes,
) -> Result<()> {
    let (pairs, n) = y.shape().rows_cols();
    let (pairs, n, experts) = (pairs as u32, n as u32, routes.experts as u32);
    let parameters = quant::Experts {
        y: y.ptr(),
        x: x.quants.address() as *const u8,
        x_scales: x.scales.address() as *const u8,
        w: w.quants.address() as *const u8,
        w_scales: w.scales.address() as *const u8,
        starts: routes.sorted.as_ref().map_or(ptr::null(), |sorted| sorted.starts.ptr()),
        experts,
        n,
        k: w.k as u32,
        x_k: x.k as u32,
    };
    let grid = [slots(pairs, BM, experts), n.div_ceil(BN), 1];
    // SAFETY: `ops::quant_experts_linear` has checked that x has w's columns and a row for each pair, sorted by the routes, which have
    // an order; w has `experts` times n rows, and y is [pairs, n]. All are on this stream and of less than 2³¹ elements. Rows of x are
    // padded to multiples of 256, and so no shorter than those of w, which have at least one block.
    unsafe { device.launch(&EXPERTS64[w.format() as usize], grid, &parameters) }
}

/// The rows silu(gate)·up of sorted pairs, quantised; `x` has a row for each token.
pub(crate) fn gated(
    device: &CudaDevice,
    rows: &mut QuantRows,
    x: &QuantRows,
    [gate, up]: [&QuantTensor; 2],
    sorted: &Sorted,
) -> Result<()> {
    let pairs = rows.shape.rows_cols().0 as u32;
    let experts = sorted.starts.dims()[0] as u32 - 1;
    let [(w, w_scales), (up, up_scales)] =
        [gate, up].map(|w| (w.quants.address() as *const u8, w.scales.address() as *const u8));
    let parameters = quant::GatedExperts {
        quants: rows.quants.view_mut()?.address() as *mut u32,
        scales: rows.scales.view_mut()?.address() as *mut _,
        x: x.quants.address() as *const u8,
        x_scales: x.scales.address() as *const u8,
        w,
        w_scales,
        up,
        up_scales,
        tokens: sorted.tokens.ptr(),
        starts: sorted.starts.ptr(),
        experts,
        n: gate.rows() as u32 / experts,
        k: gate.k as u32,
        x_k: x.k as u32,
        y_k: rows.k as u32,
    };
    let grid = [slots(pairs, BM, experts), rows.k as u32 / BLOCK as u32, 1];
    // SAFETY: `ops::quant_experts_gated` has checked that x has the matrices' columns and a row for each token of the routes, whose
    // order this is, that both matrices have one format and `experts` times n rows, and made the result for all pairs with y_k ≥ n
    // values, a multiple of 256. All are on this stream and of less than 2³¹ elements. Rows of x are padded to multiples of 256.
    unsafe { device.launch(&GATED64[gate.format() as usize], grid, &parameters) }
}
