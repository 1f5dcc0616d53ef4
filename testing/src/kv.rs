//! The expected contents of a cache, and its actual contents, by code that is independent of the kernels and of the CPU
//! fallback.

use super::float16::{nearest, value};
use super::quant::read_gguf;
use half::f16;
use pascaline::float16::Overflow;
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::quant::Format;
use pascaline::{DType, Result, Tensor, ops};

/// The types of queries, with each format of keys and values that they read.
pub(super) fn types() -> impl Iterator<Item = (DType, KvFormat)> {
    KvFormat::ALL.map(|format| (DType::F32, format)).into_iter().chain([(DType::F16, KvFormat::F16)])
}

/// A head's columns as a format stores them; every value is exact in f32.
pub(super) fn stored(row: &[f32], format: KvFormat) -> Vec<f32> {
    let rounded =
        |bits, overflow| row.iter().map(|&x| nearest(f64::from(x), bits, overflow) as f32).collect();
    match format {
        KvFormat::F32 => row.to_vec(),
        KvFormat::F16 => rounded(5, Overflow::Infinity),
        KvFormat::Float16(bits) => rounded(bits, Overflow::Saturate),
        KvFormat::Q8_0 => row.chunks(32).flat_map(block).collect(),
    }
}

/// A block of Q8_0: quants by the scale before it is rounded to f16, times the rounded one.
fn block(x: &[f32]) -> Vec<f32> {
    let scale = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
    let quant = |x: &f32| if scale > 0.0 { (x * (1.0 / scale)).round_ties_even() } else { 0.0 };
    x.iter().map(|x| f16::from_f32(scale).to_f32() * quant(x)).collect()
}

/// The values of blocks, by way of those in files.
fn decoded(format: Format, quants: &[u8], scales: &[u8]) -> Vec<f32> {
    let about = format.descriptor();
    let file = about.file.as_ref().expect("a format of files");
    let mut bytes = vec![0; quants.len() * 8 / about.bits / file.block * file.bytes];
    (about.to_file)(&mut bytes, quants, scales);
    read_gguf(&bytes, format).into_iter().map(|x| x as f32).collect()
}

/// A cache with these keys and values [tokens, 2 · heads, dim], keys first: appended without norm and rotation.
pub(super) fn fill(kv: &Tensor, format: KvFormat) -> Result<[KvTensor; 2]> {
    let &[tokens, both, dim] = kv.dims() else { unreachable!("three dimensions") };
    let device = kv.device();
    let cache = || KvTensor::uninitialized([tokens, both / 2, dim], format, &device);
    let (mut k, mut v) = (cache()?, cache()?);
    let mut q = Tensor::uninitialized([tokens, 0, dim], kv.dtype(), &device)?;
    let cos = Tensor::from_slice(&vec![1.0f32; dim / 2], [1, dim / 2], &device)?;
    let sin = Tensor::zeros([1, dim / 2], DType::F32, &device)?;
    let at = Tensor::zeros([2], DType::U32, &device)?;
    ops::rope_append_into(q.view_mut()?, [k.view_mut()?, v.view_mut()?], kv, [&cos, &sin], None, &at)?;
    Ok([k, v])
}

/// All values of a cache.
pub(super) fn read(kv: &KvTensor) -> Result<Vec<f32>> {
    let (values, scales) = kv.parts();
    Ok(match (kv.format(), kv.format().blocks()) {
        (_, Some(format)) => {
            let quants: Vec<u8> = values.to_vec::<u32>()?.into_iter().flat_map(u32::to_le_bytes).collect();
            let scales = scales.map_or(Ok(vec![]), Tensor::to_vec::<f16>)?;
            let scales: Vec<u8> = scales.into_iter().flat_map(f16::to_le_bytes).collect();
            let (dim, width) = (kv.dims()[2], kv.dims()[2].next_multiple_of(format.descriptor().block));
            let rows = decoded(format, &quants, &scales);
            rows.chunks(width.max(1)).flat_map(|row| row[..dim].to_vec()).collect()
        }
        (KvFormat::Float16(bits), _) => {
            let codes = values.to_vec::<f16>()?.into_iter().map(f16::to_bits);
            codes.map(|code| value(code, bits) as f32).collect()
        }
        _ => values.to_vec()?,
    })
}
