//! The cache of keys and values in 8 bits.

use super::check::{Check, aligned};
use crate::quant::QuantKvCache;
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};

/// Quantises the keys and values of new tokens into the cache, behind those in it.
///
/// `k`, `v`: [tokens, num_kv_heads, head_dim], of one type, f32 or f16, contiguous.
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) if there is no room, [`Error::Shape`](crate::Error::Shape),
/// [`Error::DType`](crate::Error::DType), [`Error::Layout`](crate::Error::Layout),
/// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), or a device error; the cache is then as it was.
pub fn kv_cache_append(cache: &mut QuantKvCache, k: &Tensor, v: &Tensor) -> Result<()> {
    const CHECK: Check = Check("kv_cache_append");
    let tokens = k.dims().first().copied().unwrap_or(0);
    let shape = [tokens, cache.num_kv_heads, cache.head_dim];
    CHECK.shape("k", k, &shape, "[tokens, num_kv_heads, head_dim]")?;
    CHECK.shape("v", v, &shape, "k's shape")?;
    CHECK.contiguous("k", k)?;
    CHECK.contiguous("v", v)?;
    CHECK.dtype("v", v, CHECK.float("k", k)?)?;
    if tokens > cache.capacity - cache.len {
        let reason = format!("{} of {} tokens are in use", cache.len, cache.capacity);
        return Err(CHECK.unsupported("tokens", tokens, reason));
    }
    // views begin anywhere; the kernel reads four elements at a time
    let (k, v) = (aligned(k)?, aligned(v)?);
    let at = cache.len;
    for (half, x) in [(&mut cache.k, &k), (&mut cache.v, &v)] {
        let scales = half.scales.clone();
        let quants = half.quants.view_mut()?;
        let device = CHECK.device(&quants, &[("k or v", x), ("scales", &scales)])?;
        drop(scales);
        let scales = half.scales.view_mut()?;
        match device {
            Device::Cpu => cpu::kv_cache::write(quants, scales, x, at)?,
            Device::Cuda(device) => gpu::kv_cache::write(&device, quants, scales, x, at)?,
        }
    }
    cache.len += tokens;
    Ok(())
}

/// out = softmax(scale · q kᵀ) v over all tokens of the cache, one query per head; an empty cache gives zeros.
///
/// `q`: [num_q_heads, head_dim] f32, contiguous, with num_q_heads a multiple of the cache's heads. `scale`: `None` for
/// 1/√head_dim. Queries are quantised to 8 bits for the scores.
///
/// # Errors
/// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType), [`Error::Layout`](crate::Error::Layout),
/// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch), or a device error.
pub fn kv_cache_attention(cache: &QuantKvCache, q: &Tensor, scale: Option<f32>) -> Result<Tensor> {
    let mut out = Tensor::uninitialized(q.shape(), DType::F32, &q.device())?;
    kv_cache_attention_into(out.view_mut()?, cache, q, scale)?;
    Ok(out)
}

/// [`kv_cache_attention`] into `out`, of `q`'s shape.
///
/// # Errors
/// As [`kv_cache_attention`].
pub fn kv_cache_attention_into(
    out: TensorMut,
    cache: &QuantKvCache,
    q: &Tensor,
    scale: Option<f32>,
) -> Result<()> {
    const CHECK: Check = Check("kv_cache_attention");
    let expected = "[num_q_heads, head_dim], a multiple of the cache's heads";
    match q.dims() {
        &[heads, d] if d == cache.head_dim && cache.num_kv_heads > 0 && heads % cache.num_kv_heads == 0 => {}
        _ => return Err(CHECK.bad_shape("q", q, expected)),
    }
    CHECK.shape("out", &out, q.dims(), "q's shape")?;
    for (argument, dtype) in [("q", q.dtype()), ("out", out.dtype())] {
        if dtype != DType::F32 {
            let expected = DType::F32.to_string();
            return Err(crate::Error::DType { op: "kv_cache_attention", argument, expected, found: dtype });
        }
    }
    CHECK.contiguous("q", q)?;
    CHECK.contiguous("out", &out)?;
    let scale = scale.unwrap_or_else(|| 1.0 / (cache.head_dim as f32).sqrt());
    match CHECK.device(&out, &[("q", q), ("cache", &cache.k.quants)])? {
        Device::Cpu => cpu::kv_cache::attention(out, cache, q, scale),
        Device::Cuda(device) => gpu::kv_cache::attention(&device, out, cache, &aligned(q)?, scale),
    }
}
