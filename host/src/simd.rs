//! The processor's vector instructions. The standard library detects them once; every file with vector code asks here.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// A processor with AVX2, FMA and F16C. Having a value proves that they were detected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx2(());

impl Avx2 {
    /// `None` on other processors and architectures.
    #[inline]
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            return Some(Self(()));
        }
        None
    }
}

/// Runs an expression that is compiled twice: for all processors, and for those with AVX2. Functions that are not inlined
/// are compiled once, for all processors, so what it calls has to be `#[inline(always)]`.
macro_rules! vectorized {
    ($body:expr) => {
        $crate::simd::run(
            #[inline(always)]
            || $body,
        )
    };
}
pub(crate) use vectorized;

/// The AVX2 side of [`vectorized`].
#[inline(always)]
pub(crate) fn run<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn with_avx2<R>(f: impl FnOnce() -> R) -> R {
            f()
        }
        if Avx2::detect().is_some() {
            // SAFETY: the processor has these features: `Avx2::detect`.
            return unsafe { with_avx2(f) };
        }
    }
    f()
}

/// Converts f16 to f32, exactly. Both slices have the same length.
#[inline(always)]
pub(crate) fn widen(halves: &[f16], to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if Avx2::detect().is_some() {
        // SAFETY: the processor has these features: `Avx2::detect`.
        return unsafe { x86::widen(halves, to) };
    }
    halves.convert_to_f32_slice(to);
}

/// Rounds f32 to f16, ties to even. Both slices have the same length.
#[inline(always)]
pub(crate) fn narrow(values: &[f32], to: &mut [f16]) {
    #[cfg(target_arch = "x86_64")]
    if Avx2::detect().is_some() {
        // SAFETY: the processor has these features: `Avx2::detect`.
        return unsafe { x86::narrow(values, to) };
    }
    to.convert_from_f32_slice(values);
}

/// `half` does the same, but in a function that can't be inlined where eight elements are converted.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use half::f16;
    use half::slice::HalfFloatSliceExt;
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps, _mm256_cvtps_ph,
        _mm256_loadu_ps, _mm256_storeu_ps,
    };

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn widen(halves: &[f16], to: &mut [f32]) {
        let ((halves, rest), (to, to_rest)) = (halves.as_chunks::<8>(), to.as_chunks_mut::<8>());
        for (halves, to) in halves.iter().zip(to) {
            // SAFETY: both are references to eight elements, of 16 and 32 bits.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(halves.as_ptr().cast())))
            };
        }
        for (half, to) in rest.iter().zip(to_rest) {
            *to = half.to_f32();
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn narrow(values: &[f32], to: &mut [f16]) {
        let ((values, rest), (to, to_rest)) = (values.as_chunks::<8>(), to.as_chunks_mut::<8>());
        for (values, to) in values.iter().zip(to) {
            // SAFETY: both are references to eight elements, of 32 and 16 bits.
            unsafe {
                let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(values.as_ptr()));
                _mm_storeu_si128(to.as_mut_ptr().cast(), halves);
            }
        }
        to_rest.convert_from_f32_slice(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All f16 values, and f32 values around the midpoints between them, in slices that do not end with a whole vector.
    #[test]
    fn conversions_are_those_of_half() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        for len in [0, 1, 7, 8, 9, 65_535, 65_536] {
            let mut values = vec![0.0; len];
            widen(&halves[..len], &mut values);
            for (half, value) in halves.iter().zip(&values) {
                assert!(
                    half.to_f32().to_bits() == value.to_bits() || (half.is_nan() && value.is_nan()),
                    "{half:?}"
                );
            }
            let middles =
                values.iter().flat_map(|v| [v.to_bits(), v.to_bits() ^ 0x1000, v.to_bits() ^ 0x1001]);
            let values: Vec<f32> = middles.map(f32::from_bits).collect();
            let mut back = vec![f16::ZERO; values.len()];
            narrow(&values, &mut back);
            for (value, half) in values.iter().zip(&back) {
                let want = f16::from_f32(*value);
                assert!(want.to_bits() == half.to_bits() || (want.is_nan() && half.is_nan()), "{value:?}");
            }
        }
    }
}
