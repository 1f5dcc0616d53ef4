//! A quantised matrix beside a low-rank change, for one row: the launch.

use super::quant::{addresses, arguments, one_wave};
use crate::cuda::CudaDevice;
use crate::problem::activate::{Activation, Epilogue};
use crate::quant::QuantTensor;
use crate::{Result, Tensor, TensorMut};
use kernels_gpu::quant::lora::{self, LORA, LORA_GATED, LORA_NORMED, Lora, MAX_RANK};
use kernels_gpu::quant::vector::one::{blocks1, gated_blocks1};
use std::ptr;

/// Whether [`lora`] takes a change of this rank to a matrix with so many columns.
pub(crate) fn is_fused(rank: usize, cols: usize) -> bool {
    (1..=MAX_RANK as usize).contains(&rank) && cols.is_multiple_of(4)
}

/// How many blocks compute x·aᵀ for the others, which write the result.
pub(crate) fn helpers(rank: usize) -> u32 {
    lora::helpers(rank as u32)
}

/// y = act(h·wᵀ + (h·aᵀ)·bᵀ + bias) + residual with h = norm(x) for one row `x` in f32, where [`is_fused`] says so, with so many
/// [`helpers`]. Norms and gates are as for [`vector`](super::quant::vector).
pub(crate) fn lora(
    device: &CudaDevice,
    y: TensorMut,
    (x, norm): (&Tensor, Option<(&Tensor, f32)>),
    w: &QuantTensor,
    [a, b]: [&Tensor; 2],
    epilogue: &Epilogue,
    helpers: u32,
) -> Result<()> {
    let (format, n, rank) = (w.format() as usize, y.shape().elements() as u32, a.dims()[0] as u32);
    let (spec, blocks) = match (epilogue.activation, norm) {
        (Activation::SwiGlu, _) => (LORA_GATED[format], gated_blocks1(n)),
        (_, Some(_)) => (LORA_NORMED[format], blocks1(n)),
        (_, None) => (LORA[format], blocks1(n)),
    };
    let places = one_wave(device, &spec)?.saturating_sub(helpers).max(1);
    let grid = [helpers + blocks.min(places), 1, 1];
    let words = device.stream().counters() as *mut u32;
    let (k, cols) = (w.k as u32, w.cols() as u32);
    let (bias, residual, activation) = arguments(epilogue);
    let (w, w_scales) = addresses(w);
    let (y, x, a, b) = (y.ptr(), x.ptr(), a.ptr(), b.ptr());
    let (norm, eps) = norm.map_or((ptr::null(), 0.0), |(weight, eps)| (weight.ptr(), eps));
    let parameters = Lora {
        y,
        x,
        norm,
        w,
        w_scales,
        a,
        b,
        words,
        bias,
        residual,
        n,
        k,
        cols,
        rank,
        helpers,
        activation,
        eps,
    };
    // SAFETY: `ops::quant_lora_into` has checked that x and the norm's weight are contiguous f32 with w's columns, a multiple of 4 and with
    // a norm a number that `norm_is_fused` allows, and aligned, that y, residual and bias have as many columns as w has rows, or half as
    // many for gates and ups, and that a is [rank, cols] and b has rank columns and w's rows, both contiguous f32; a is aligned. All are
    // on this stream, which has more counters than the largest rank. A TensorMut overlaps nothing.
    unsafe { device.launch(&spec, grid, &parameters) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Format;
    use crate::{DType, Device, ops};

    /// Without helpers every warp computes x·aᵀ itself, with a norm and without, and the bits are the same.
    #[test]
    fn the_sums_do_not_depend_on_helpers() -> Result<()> {
        let device = Device::virtual_gpu()?;
        let Device::Cuda(gpu) = &device else { panic!("the virtual GPU is no CUDA device") };
        let (n, k, rank) = (70, 608, 37);
        let randn = |shape: [usize; 2], seed| Tensor::randn(shape, DType::F32, seed, &device);
        let (x, a, b) = (randn([1, k], 1)?, randn([rank, k], 2)?, randn([n, rank], 3)?);
        let w = ops::quantize(&randn([n, k], 4)?, Format::Q8_0)?;
        let weight = Tensor::randn([k], DType::F32, 5, &device)?;
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
        for norm in [None, Some((&weight, 1e-6))] {
            let product = |x: &Tensor, helpers| {
                let mut y = Tensor::uninitialized([1, n], DType::F32, &device)?;
                lora(gpu, y.view_mut()?, (x, norm), &w, [&a, &b], &Epilogue::default(), helpers)?;
                y.to_vec::<f32>()
            };
            let whole = product(&x, helpers(rank))?;
            assert_eq!(bits(product(&x, 0)?), bits(whole.clone()));
            assert_eq!(bits(product(&x, 3)?), bits(whole.clone()), "the first twelve rows have helpers");
            if norm.is_none() {
                // exactly, if no launch finds the sums of the one before it
                let twice = product(&ops::scale(&x, 2.0)?, helpers(rank))?;
                assert_eq!(bits(twice), bits(whole.iter().map(|y| 2.0 * y).collect()));
            }
        }
        Ok(())
    }
}
