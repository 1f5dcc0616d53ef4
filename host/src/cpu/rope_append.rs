//! Splits a fused projection: q is normalised and rotated, k and v also appended to the cache.

use super::{ELEMENTS_PER_TASK, slice, slice_mut, with_float};
use crate::Result;
use crate::dtype::Float;
use crate::kv::{KvFormat, KvMut};
use crate::parallel::InTasks;
use crate::problem::rope_append::{Outputs, Projection};
use crate::simd::vectorized;
use half::f16;
use kernels_gpu::float16::encode;
use kernels_gpu::quant::blocks::BLOCK;
use rayon::prelude::*;
use std::borrow::Cow;

pub(crate) fn rope_append(Outputs { mut q, mut k, mut v }: Outputs, projection: &Projection) -> Result<()> {
    let &Projection { qkv, cos, sin, norms, at } = projection;
    let [rows, all_heads, dim] = [0, 1, 2].map(|d| qkv.dims()[d]);
    if qkv.shape().elements() == 0 {
        return Ok(());
    }
    let (capacity, kv_heads, angles) = (k.dims[0], k.dims[1], cos.dims()[0]);
    let heads = all_heads - 2 * kv_heads;
    let (cos, sin) = (slice::<f32>(cos)?, slice::<f32>(sin)?);
    let at = slice::<u32>(at)?;
    // each row's cache row and position
    let each = projection.each();
    let place = |row: usize| match each {
        Some(stride) => (at[row] as usize, at[stride + row] as usize),
        None => (at[0] as usize + row, at[1] as usize + row),
    };
    with_float!(qkv.dtype(), T => {
        let qkv = slice::<T>(qkv)?;
        let weights = norms.map(|norms| Ok([slice::<T>(norms.q)?, slice::<T>(norms.k)?])).transpose()?;
        let eps = norms.map_or(0.0, |norms| norms.eps);
        // a head of q or k; v is copied unchanged
        let read = |x: &mut [f32], row: usize, head: usize| {
            T::read(&qkv[(row * all_heads + head) * dim..][..dim], x);
            if head < heads + kv_heads {
                let angle = place(row).1.min(angles - 1) * dim / 2;
                let weight = weights.map(|[q, k]| if head < heads { q } else { k });
                vectorized!(rotate(x, weight, eps, &cos[angle..], &sin[angle..]));
            }
        };
        if heads > 0 {
            let q = slice_mut::<T>(&mut q)?[..rows * heads * dim].par_chunks_exact_mut(heads * dim);
            let rows = q.enumerate().with_min_len(ELEMENTS_PER_TASK.div_ceil(heads * dim));
            rows.in_tasks(|(row, q)| {
                let mut x = vec![0.0; dim];
                for (head, q) in q.chunks_exact_mut(dim).enumerate() {
                    read(&mut x, row, head);
                    T::write(&x, q);
                }
            });
        }
        let mut x = vec![0.0; dim];
        for row in 0..rows {
            let slot = place(row).0;
            for kv_head in (0..kv_heads).take_while(|_| slot < capacity) {
                read(&mut x, row, heads + kv_head);
                write(&mut k, slot * kv_heads + kv_head, &x)?;
                read(&mut x, row, heads + kv_heads + kv_head);
                write(&mut v, slot * kv_heads + kv_head, &x)?;
            }
        }
    });
    Ok(())
}

/// Normalises a head and rotates its pairs.
#[inline(always)]
fn rotate<T: Float>(x: &mut [f32], weight: Option<&[T]>, eps: f32, cos: &[f32], sin: &[f32]) {
    if let Some(weight) = weight {
        let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
        let scale = (squares / x.len() as f64 + f64::from(eps)).sqrt().recip() as f32;
        x.iter_mut().zip(weight).for_each(|(x, weight)| *x *= scale * weight.to_f32());
    }
    let (low, high) = x.split_at_mut(x.len() / 2);
    for ((low, high), (cos, sin)) in low.iter_mut().zip(high).zip(cos.iter().zip(sin)) {
        (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
    }
}

/// Writes row `row` of a cache.
fn write(cache: &mut KvMut, row: usize, x: &[f32]) -> Result<()> {
    match (cache.format, cache.format.blocks()) {
        (_, Some(format)) => {
            let mut x = Cow::Borrowed(x);
            if !x.len().is_multiple_of(BLOCK) {
                let whole = x.len().next_multiple_of(BLOCK);
                x.to_mut().resize(whole, 0.0);
            }
            let about = format.descriptor();
            let (of_quants, of_scales) = (x.len() / 8 * about.bits, about.scales.row_bytes(x.len()));
            let quants: &mut [u8] = bytemuck::cast_slice_mut(slice_mut::<u32>(&mut cache.values)?);
            if let Some(scales) = &mut cache.scales {
                let scales: &mut [u8] = bytemuck::cast_slice_mut(slice_mut::<f16>(scales)?);
                (about.encode)(&x, &mut quants[row * of_quants..], &mut scales[row * of_scales..]);
            }
        }
        (KvFormat::F16, _) => store(&mut slice_mut::<f16>(&mut cache.values)?[row * x.len()..], x),
        (KvFormat::Float16(bits), _) => {
            let codes = &mut slice_mut::<f16>(&mut cache.values)?[row * x.len()..];
            codes.iter_mut().zip(x).for_each(|(code, &x)| *code = f16::from_bits(encode(x, bits, true)));
        }
        _ => store(&mut slice_mut::<f32>(&mut cache.values)?[row * x.len()..], x),
    }
    Ok(())
}

fn store<T: Float>(to: &mut [T], x: &[f32]) {
    T::write(x, &mut to[..x.len()]);
}
