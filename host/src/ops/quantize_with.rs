//! Quantisation with a choice of scales.

use super::quant::quantize;
use crate::cpu::quant::{encode_row, reconstruct};
use crate::quant::{Format, QuantTensor, ScaleChoice, name};
use crate::{Device, Error, Result, Shape, Tensor};
use kernels_gpu::quant::blocks::{BLOCK, inverse, quant_i8, scale_i8};
use kernels_gpu::quant::formats::q4_0;

/// Number of scales that [`ScaleChoice::LeastError`] tries, from 0.4 to 1.4 of the one by the largest magnitude. Above 1,
/// the largest of a 4-bit block becomes −7 or −6 and not −8. Each scale is then fitted to its quants.
const CANDIDATES: usize = 101;

/// Quantises `x` [n, k], row-major, on the CPU, with scales by `choice`, and copies the result to `device`.
///
/// ```
/// use pascaline::quant::{ErrorReport, Format, ScaleChoice};
/// use pascaline::{DType, Device, Tensor, ops};
/// let x = Tensor::randn([8, 256], DType::F32, 1, &Device::Cpu)?.to_vec::<f32>()?;
/// let error = |choice| -> pascaline::Result<f64> {
///     let w = ops::quantize_with(&x, [8, 256], Format::Q4_0, choice, &Device::Cpu)?;
///     Ok(ErrorReport::new(&x, &ops::dequantize(&w, DType::F32)?.to_vec::<f32>()?).relative_rms)
/// };
/// assert!(error(ScaleChoice::LeastError)? < error(ScaleChoice::AbsMax)?);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Shape`] if `shape` is not [n, k] with as many values, [`Error::OutOfMemory`]. [`Error::Unsupported`] for a
/// percentile outside (0, 1], and for any choice but [`ScaleChoice::AbsMax`] with formats other than `I8`, `Q8_0` and
/// `Q4_0`, which search their scales themselves.
pub fn quantize_with(
    x: &[f32],
    shape: impl Into<Shape>,
    format: Format,
    choice: ScaleChoice,
    device: &Device,
) -> Result<QuantTensor> {
    let shape = shape.into();
    let unsupported = |argument, value: String, reason: &str| Error::Unsupported {
        op: "quantize_with",
        argument,
        value,
        reason: reason.into(),
    };
    if let ScaleChoice::Percentile(share) = choice
        && !(share > 0.0 && share <= 1.0)
    {
        return Err(unsupported("choice", share.to_string(), "a percentile is above 0 and at most 1"));
    }
    let x = Tensor::from_slice(x, &shape, &Device::Cpu)?;
    if choice == ScaleChoice::AbsMax {
        return quantize(&x, format)?.to_device(device);
    }
    if !matches!(format, Format::I8 | Format::Q8_0 | Format::Q4_0) {
        return Err(unsupported("format", name(format).into(), "this format searches its scales itself"));
    }
    let mut tensor = QuantTensor::uninitialized(format, shape, &Device::Cpu)?;
    let values = x.to_vec::<f32>()?;
    let (cols, k) = (tensor.cols(), tensor.k);
    encode_row_by_row(&mut tensor, &values, cols, k, choice)?;
    tensor.to_device(device)
}

fn encode_row_by_row(
    tensor: &mut QuantTensor,
    x: &[f32],
    cols: usize,
    k: usize,
    choice: ScaleChoice,
) -> Result<()> {
    let format = tensor.format();
    let mut row = vec![0.0; k];
    for (r, x) in x.chunks_exact(cols).enumerate() {
        row[..cols].copy_from_slice(x);
        let group = if format == Format::I8 { k } else { BLOCK };
        let scales: Vec<f32> = row
            .chunks_exact(group)
            .map(|values| choose(format, if format == Format::I8 { &values[..cols] } else { values }, choice))
            .collect();
        encode_row(tensor, r, &row, &scales)?;
    }
    Ok(())
}

/// The scale of one group of values.
fn choose(format: Format, values: &[f32], choice: ScaleChoice) -> f32 {
    let by_maximum = match <&[f32; BLOCK]>::try_from(values) {
        Ok(block) if format == Format::Q4_0 => q4_0::scale(block),
        _ => scale_i8(kernels_gpu::quant::blocks::abs_max(values)),
    };
    if by_maximum == 0.0 || !by_maximum.is_finite() {
        return by_maximum;
    }
    match choice {
        ScaleChoice::AbsMax => by_maximum,
        ScaleChoice::Percentile(share) => {
            let mut magnitudes: Vec<f32> = values.iter().map(|value| value.abs()).collect();
            magnitudes.sort_by(f32::total_cmp);
            let index = ((share * magnitudes.len() as f32).ceil() as usize).clamp(1, magnitudes.len()) - 1;
            let largest = magnitudes[magnitudes.len() - 1];
            by_maximum * (magnitudes[index] / largest)
        }
        ScaleChoice::LeastError => {
            let error = |scale: f32| -> f64 {
                values.iter().map(|&x| f64::from(reconstruct(format, x, scale) - x).powi(2)).sum()
            };
            // begins with the scale by the largest magnitude, so that the result is never worse
            let mut best = (error(by_maximum), by_maximum);
            for candidate in 0..CANDIDATES {
                let scale = by_maximum * (0.4 + 0.01 * candidate as f32);
                for scale in [scale, fitted(format, values, scale)] {
                    let error = error(scale);
                    if error < best.0 {
                        best = (error, scale);
                    }
                }
            }
            best.1
        }
    }
}

/// The scale with the least squared error for the quants of `scale`: Σ x·q / Σ q².
fn fitted(format: Format, values: &[f32], scale: f32) -> f32 {
    let (mut xq, mut qq) = (0.0f64, 0.0f64);
    for &x in values {
        let q = match format {
            Format::Q4_0 => f64::from(q4_0::quant(x, inverse(scale))) - 8.0,
            _ => f64::from(quant_i8(x, inverse(scale))),
        };
        xq += f64::from(x) * q;
        qq += q * q;
    }
    if qq > 0.0 { (xq / qq) as f32 } else { scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiples of one scale up to 7 of them: no candidate is that scale, the fit to the quants of a near one is.
    #[test]
    fn multiples_of_a_scale_are_exact_after_the_fit() {
        let exact = 0.1875; // also in the f16 of a block
        let values: Vec<f32> = (0..BLOCK).map(|i| exact * (i % 15) as f32 - 7.0 * exact).collect();
        for format in [Format::Q4_0, Format::Q8_0] {
            let scale = choose(format, &values, ScaleChoice::LeastError).abs();
            let multiple = exact / scale;
            assert!((multiple - multiple.round()).abs() < 1e-5, "{format:?}: {scale}");
        }
    }
}
