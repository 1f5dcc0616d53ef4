//! The cache of keys and values in 8 bits.

use super::{slice, slice_mut, with_float};
use crate::dtype::Float;
use crate::quant::QuantKvCache;
use crate::{Result, Tensor, TensorMut};
use half::f16;
use kernels_gpu::quant::blocks::{BLOCK, Half, abs_max, inverse, pack_i8, quant_i8, scale_i8};
use rayon::prelude::*;

pub(crate) fn write(mut quants: TensorMut, mut scales: TensorMut, x: &Tensor, position: usize) -> Result<()> {
    let &[_, heads, d] = x.dims() else { return Ok(()) };
    let capacity = quants.dims()[1];
    let (quants, scales) = (slice_mut::<u32>(&mut quants)?, slice_mut::<f16>(&mut scales)?);
    with_float!(x.dtype(), T => {
        for (row, x) in slice::<T>(x)?[..x.shape().elements()].chunks_exact(d).enumerate() {
            let to = row % heads * capacity + position + row / heads;
            for (b, x) in x.chunks_exact(BLOCK).enumerate() {
                let values: [f32; BLOCK] = std::array::from_fn(|i| x[i].to_f32());
                let scale = scale_i8(abs_max(&values));
                for (word, four) in values.chunks_exact(4).enumerate() {
                    quants[to * d / 4 + b * BLOCK / 4 + word] =
                        pack_i8([four[0], four[1], four[2], four[3]], inverse(scale));
                }
                scales[to * d / BLOCK + b] = f16::from_bits(Half::from_f32(scale).0);
            }
        }
    });
    Ok(())
}

pub(crate) fn attention(mut out: TensorMut, cache: &QuantKvCache, q: &Tensor, scale: f32) -> Result<()> {
    let (num_q_heads, d) = q.shape().rows_cols();
    let group = num_q_heads / cache.num_kv_heads;
    let q = slice::<f32>(q)?;
    let bytes =
        |quants: &Tensor| slice::<u32>(quants).map(|words| bytemuck::cast_slice::<u32, i8>(words).to_vec());
    let (k, v) = (bytes(&cache.k.quants)?, bytes(&cache.v.quants)?);
    let (k_scales, v_scales) = (slice::<f16>(&cache.k.scales)?, slice::<f16>(&cache.v.scales)?);
    let heads = slice_mut::<f32>(&mut out)?[..num_q_heads * d].par_chunks_exact_mut(d);
    heads.enumerate().for_each(|(head, out)| {
        let first = head / group * cache.capacity;
        let blocks: Vec<(Vec<i32>, f32)> = q[head * d..(head + 1) * d]
            .chunks_exact(BLOCK)
            .map(|values| {
                let scale = scale_i8(abs_max(values));
                (values.iter().map(|&x| quant_i8(x, inverse(scale))).collect(), scale)
            })
            .collect();
        let scores: Vec<f32> = (first..first + cache.len)
            .map(|row| {
                let parts = blocks.iter().enumerate().map(|(b, (quants, q_scale))| {
                    let keys = &k[row * d + b * BLOCK..][..BLOCK];
                    let sum: i32 = quants.iter().zip(keys).map(|(q, &k)| q * i32::from(k)).sum();
                    sum as f32 * (q_scale * k_scales[row * d / BLOCK + b].to_f32())
                });
                scale * parts.sum::<f32>()
            })
            .collect();
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = scores.iter().map(|score| (score - max).exp()).sum();
        out.fill(0.0);
        for (score, row) in scores.iter().zip(first..) {
            let p = (score - max).exp() / total;
            for (i, out) in out.iter_mut().enumerate() {
                *out += p * v_scales[(row * d + i) / BLOCK].to_f32() * f32::from(v[row * d + i]);
            }
        }
    });
    Ok(())
}
