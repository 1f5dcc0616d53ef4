//! Which kernels write and read the cache of keys and values in 8 bits.

use super::attention::split;
use crate::cuda::{CudaDevice, args};
use crate::memory::DeviceBuffer;
use crate::quant::QuantKvCache;
use crate::{DType, Result, Tensor, TensorMut};
use kernels_gpu::attention::merge::partial_elements;
use kernels_gpu::quant::kv_cache::{DECODE, DECODE_ROWS, WRITE, WRITE_THREADS};

pub(crate) fn write(
    device: &CudaDevice,
    quants: TensorMut,
    scales: TensorMut,
    x: &Tensor,
    position: usize,
) -> Result<()> {
    let &[tokens, heads, d] = x.dims() else { return Ok(()) };
    let capacity = quants.dims()[1] as u32;
    let (tokens, heads, d) = (tokens as u32, heads as u32, d as u32);
    let spec = WRITE[usize::from(x.dtype() == DType::F16)];
    let grid = [(tokens * heads * (d / 4)).div_ceil(WRITE_THREADS), 1, 1];
    let arguments =
        args![quants.address(), scales.address(), x.address(), tokens, heads, d, capacity, position as u32];
    // SAFETY: `ops::kv_cache_append` has checked that x is contiguous [tokens, heads, d] of the kernel's type, aligned, on
    // this stream, and that the tokens fit behind `position`; `QuantKvCache` made quants and scales for these extents.
    unsafe { device.launch(&spec, grid, arguments) }
}

pub(crate) fn attention(
    device: &CudaDevice,
    out: TensorMut,
    cache: &QuantKvCache,
    q: &Tensor,
    scale: f32,
) -> Result<()> {
    let (num_q_heads, d) = q.shape().rows_cols();
    if num_q_heads == 0 {
        return Ok(());
    }
    let group = num_q_heads / cache.num_kv_heads;
    // the smallest variant that serves the whole group, or else the largest
    let variant =
        DECODE_ROWS.iter().position(|&rows| group <= rows as usize).unwrap_or(DECODE_ROWS.len() - 1);
    let groups = group.div_ceil(DECODE_ROWS[variant] as usize);
    let blocks = cache.num_kv_heads * groups;
    let (splits, keys_per_split) = split(blocks, cache.len, device.properties().multiprocessors);
    let bytes = num_q_heads * splits * partial_elements(d as u32) as usize * size_of::<f32>();
    let partial = DeviceBuffer::uninitialized(device, if splits > 1 { bytes } else { 0 })?;
    let spec = DECODE[usize::from(d == 128)][variant];
    let grid = [splits as u32, cache.num_kv_heads as u32, groups as u32];
    let [k, v] = [&cache.k, &cache.v].map(|half| (half.quants.address(), half.scales.address()));
    let arguments = args![
        out.address(),
        partial.address(),
        device.stream().counters(),
        q.address(),
        k.0,
        v.0,
        k.1,
        v.1,
        group as u32,
        cache.capacity as u32,
        cache.len as u32,
        keys_per_split as u32,
        scale * std::f32::consts::LOG2_E,
    ];
    // SAFETY: `ops::kv_cache_attention_into` has checked q and out: contiguous [num_q_heads, d] f32 on the cache's stream;
    // `QuantKvCache` made the caches for d and its capacity, of which `len` tokens are written; `partial` has a record for
    // each head and split and is freed behind the launch; `split` makes no more groups of blocks than the stream has counters.
    unsafe { device.launch(&spec, grid, arguments) }
}
