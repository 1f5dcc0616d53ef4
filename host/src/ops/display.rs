//! A tensor's values as text.

use super::check::Check;
use crate::{DType, Device, Result, Tensor};
use half::f16;
use std::fmt;

/// Tensors with more elements than this are abbreviated …
const MOST_ELEMENTS: usize = 1000;
/// … to this many entries at each end of a dimension.
const EDGE: usize = 3;
/// The most columns of a line.
const LINE: usize = 80;
/// Digits after the point if the format string gives no precision.
const DIGITS: usize = 4;
/// Magnitudes outside this range (other than 0) are printed with exponents. (10⁻⁴ in f32 is slightly smaller.)
const PLAIN: std::ops::Range<f64> = 0.9999e-4..1e6;

/// The values, nested as the dimensions are, and a last line with type, shape and device.
///
/// Of more than 1000 elements only the first and last three entries of each dimension are printed, and only these are copied
/// from the device. It waits for the work queued on the device's stream. All numbers have the same number of digits after
/// the point: the fewest that show them to four digits, or those of the format string (`{:.2}`). If any magnitude is 10⁶ or
/// more, or below 10⁻⁴, all have exponents. An error while reading is printed instead of the values. ([`Debug`] prints only
/// the last line and reads nothing.)
///
/// ```
/// use pascaline::{Device, Tensor};
/// let x = Tensor::from_slice(&[1.0f32, -0.25, 3.0, 40.0], [2, 2], &Device::Cpu)?;
/// assert_eq!(x.to_string(), "[[ 1.00, -0.25],\n [ 3.00, 40.00]]\nTensor f32 [2, 2] on cpu");
/// # Ok::<(), pascaline::Error>(())
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match values(self) {
            Ok((_, values)) if values.is_empty() => f.write_str("[]")?,
            Ok((shown, values)) => {
                let numbers = numbers(&values, self.dtype(), f.precision());
                let dims: Vec<_> = self.dims().iter().copied().zip(shown).collect();
                write_entries(f, &mut numbers.iter().map(String::as_str), &dims, 1)?;
            }
            Err(error) => write!(f, "(the values can't be read: {error})")?,
        }
        write!(f, "\n{self:?}")
    }
}

/// The number of entries printed of each dimension, and their elements.
fn values(x: &Tensor) -> Result<(Vec<usize>, Vec<f64>)> {
    if let Device::Cuda(device) = x.device()
        && device.stream().is_capturing()
    {
        // checked before the copies that gather the values, which would become part of the graph
        let (value, reason) = ("being captured into a graph", "there are no values yet");
        return Err(Check("Display").unsupported("stream", value, reason));
    }
    let shown = if x.shape().elements() > MOST_ELEMENTS { edges(x, 0)? } else { x.clone() };
    let values = match x.dtype() {
        DType::F32 => shown.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        DType::F16 => shown.to_vec::<f16>()?.into_iter().map(f64::from).collect(),
        DType::U32 => shown.to_vec::<u32>()?.into_iter().map(f64::from).collect(),
    };
    Ok((shown.dims().to_vec(), values))
}

/// The ends of every dimension from `dim` on, side by side. Copies corner by corner, never a large tensor.
fn edges(x: &Tensor, dim: usize) -> Result<Tensor> {
    match x.dims().get(dim) {
        None => x.contiguous(),
        Some(&size) if size > 2 * EDGE => {
            let ends = [x.narrow(dim, 0, EDGE)?, x.narrow(dim, size - EDGE, EDGE)?];
            super::cat(&[edges(&ends[0], dim + 1)?, edges(&ends[1], dim + 1)?], dim)
        }
        Some(_) => edges(x, dim + 1),
    }
}

/// Each value as text, all of the same width.
fn numbers(values: &[f64], dtype: DType, precision: Option<usize>) -> Vec<String> {
    let magnitudes = || values.iter().map(|value| value.abs()).filter(|m| m.is_finite() && *m > 0.0);
    let digits = precision.unwrap_or(DIGITS);
    let texts: Vec<String> = if dtype == DType::U32 {
        values.iter().map(f64::to_string).collect()
    } else if magnitudes().any(|magnitude| !PLAIN.contains(&magnitude)) {
        values.iter().map(|value| format!("{value:.digits$e}")).collect()
    } else {
        let mut texts: Vec<String> = values.iter().map(|value| format!("{value:.digits$}")).collect();
        if precision.is_none() {
            let zeros = |text: &String| text.len() - text.trim_end_matches('0').len();
            let finite = texts.iter().zip(values).filter(|(_, value)| value.is_finite());
            // keep one digit, which shows that it is a float
            let spare = finite.map(|(text, _)| zeros(text)).min().unwrap_or(0).min(DIGITS - 1);
            for (text, _) in texts.iter_mut().zip(values).filter(|(_, value)| value.is_finite()) {
                text.truncate(text.len() - spare);
            }
        }
        texts
    };
    let width = texts.iter().map(String::len).max().unwrap_or(0);
    texts.into_iter().map(|text| format!("{text:>width$}")).collect()
}

/// Writes one bracket with the entries of the first of `dims`, (entries, number printed). The next entry of a matrix begins
/// a new line after `indent` blanks.
fn write_entries<'a>(
    f: &mut fmt::Formatter<'_>,
    numbers: &mut impl Iterator<Item = &'a str>,
    dims: &[(usize, usize)],
    indent: usize,
) -> fmt::Result {
    let Some((&(entries, shown), inner)) = dims.split_first() else {
        return f.write_str(numbers.next().unwrap_or_default());
    };
    f.write_str("[")?;
    let mut column = indent;
    for entry in 0..shown {
        let elided = shown < entries && entry == EDGE;
        if inner.is_empty() {
            for text in elided.then_some("...").into_iter().chain(numbers.next()) {
                // ", " before and "," or "]" after it
                if column > indent && column + 2 + text.len() + 1 > LINE {
                    write!(f, ",\n{:indent$}", "")?;
                    column = indent;
                } else if column > indent {
                    f.write_str(", ")?;
                    column += 2;
                }
                f.write_str(text)?;
                column += text.len();
            }
        } else {
            let next = format!(",{}{:indent$}", "\n".repeat(inner.len()), "");
            if elided {
                write!(f, "{next}...")?;
            }
            if entry > 0 {
                f.write_str(&next)?;
            }
            write_entries(f, numbers, inner, indent + 1)?;
        }
    }
    f.write_str("]")
}
