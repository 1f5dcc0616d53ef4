//! Tensors in 16-bit floating-point formats with E exponent bits and 15 − E mantissa bits, for storage.
//!
//! [`Float16`] is a single number: E = 5 is IEEE half precision, E = 8 bfloat16. [`survey`] finds the E with the smallest
//! error for given values; [`ops::float16_encode`](crate::ops::float16_encode) converts tensors.

use crate::quant::ErrorReport;
use crate::{Device, Result, Shape, Tensor};
pub use kernels_gpu::float16::{Float16, MAX_EXPONENT_BITS, MIN_EXPONENT_BITS};
use std::fmt;
use std::ops::RangeInclusive;

/// The exponent bits of the formats.
pub const EXPONENT_BITS: RangeInclusive<u32> = MIN_EXPONENT_BITS..=MAX_EXPONENT_BITS;

/// The conversion of values beyond the largest finite number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Infinity, as in IEEE 754.
    #[default]
    Infinity,
    /// The largest finite number, also for infinities.
    Saturate,
}

/// A tensor of 16-bit codes: see [`ops::float16_encode`](crate::ops::float16_encode). Clones share storage.
#[derive(Clone, Debug)]
pub struct Float16Tensor {
    pub(crate) exponent_bits: u32,
    /// The codes, stored as f16 with the same bits. They have these values only with 5 exponent bits.
    pub(crate) codes: Tensor,
}

impl Float16Tensor {
    /// The exponent bits of its format; the mantissa has 15 minus this.
    pub fn exponent_bits(&self) -> u32 {
        self.exponent_bits
    }

    /// The shape: the sizes of its dimensions.
    pub fn shape(&self) -> &Shape {
        self.codes.shape()
    }

    /// The device that it is on, with the stream.
    pub fn device(&self) -> Device {
        self.codes.device()
    }

    /// The codes in row-major order.
    pub fn to_codes(&self) -> Result<Vec<u16>> {
        Ok(self.codes.to_vec::<half::f16>()?.into_iter().map(half::f16::to_bits).collect())
    }
}

/// Runs `$body` with `$E` bound to a number of exponent bits; the caller has rejected numbers outside [`EXPONENT_BITS`].
macro_rules! with_exponent_bits {
    ($bits:expr, $E:ident => $body:expr) => {
        with_exponent_bits!(@ $bits, $E, $body; 2 3 4 5 6 7; 8)
    };
    (@ $bits:expr, $E:ident, $body:expr; $($value:literal)*; $last:literal) => {
        match $bits {
            $($value => { const $E: u32 = $value; $body })*
            _ => { const $E: u32 = $last; $body }
        }
    };
}
pub(crate) use with_exponent_bits;

/// The error of a format on given values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Exponent bits of the format.
    pub exponent_bits: u32,
    /// The error of the saturating conversion.
    pub error: ErrorReport,
    /// Number of finite values beyond the largest number of the format.
    pub overflows: usize,
    /// Number of values other than zero that became zero.
    pub underflows: usize,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { exponent_bits: e, error, overflows, underflows } = self;
        write!(
            f,
            "{e} exponent, {} mantissa bits: {error}, {overflows} too large, {underflows} too small",
            15 - e
        )
    }
}

/// The error of every format on `values`, by exponent bits.
///
/// ```
/// use pascaline::float16::{least, survey};
/// let losses = survey(&[1.0, 1.001, 1.002, 1.003]); // a narrow range needs mantissa bits
/// assert_eq!(least(&losses).map(|loss| loss.exponent_bits), Some(2));
/// ```
pub fn survey(values: &[f32]) -> Vec<Loss> {
    EXPONENT_BITS.map(|bits| with_exponent_bits!(bits, E => loss::<E>(values))).collect()
}

/// The format of a [`survey`] with the smallest relative error; of equal ones, the one with the most exponent bits. `None`
/// if every error is NaN, because the values contain NaNs or infinities.
pub fn least(losses: &[Loss]) -> Option<Loss> {
    let numbers = losses.iter().copied().filter(|loss| loss.error.relative_rms.is_finite());
    numbers.reduce(|best, loss| if loss.error.relative_rms <= best.error.relative_rms { loss } else { best })
}

fn loss<const E: u32>(values: &[f32]) -> Loss {
    let read_back: Vec<f32> = values.iter().map(|&x| Float16::<E>::from_f32_saturating(x).to_f32()).collect();
    let too_large = |x: &&f32| x.is_finite() && Float16::<E>::from_f32(**x).to_f32().is_infinite();
    Loss {
        exponent_bits: E,
        error: ErrorReport::new(values, &read_back),
        overflows: values.iter().filter(too_large).count(),
        underflows: values.iter().zip(&read_back).filter(|(x, y)| **x != 0.0 && **y == 0.0).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_against_precision() {
        // between 1 and 2 more mantissa is better, down to the format whose largest number is below 2
        let narrow: Vec<f32> = (0..1000).map(|i| 1.0 + i as f32 / 1000.0).collect();
        assert_eq!(least(&survey(&narrow)).map(|loss| loss.exponent_bits), Some(2));
        // a range of 60 powers of two needs 7 or 8 exponent bits; 7 leave one more for the mantissa
        let wide: Vec<f32> = (0..1000).map(|i| (1.0 + i as f32 / 1000.0) * 2f32.powi(i % 61 - 30)).collect();
        assert!(least(&survey(&wide)).is_some_and(|loss| loss.exponent_bits >= 6));
        assert!(survey(&[1e30])[3].overflows == 1 && survey(&[1e-30])[3].underflows == 1);
        assert_eq!(least(&survey(&[f32::NAN])), None);
    }
}
