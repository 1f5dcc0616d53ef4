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

/// A processor with AVX-512 F, BW and VNNI. Having a value proves that they were detected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Avx512(Avx2);

impl Avx512 {
    /// Every such processor has AVX2, FMA and F16C.
    pub fn avx2(self) -> Avx2 {
        self.0
    }

    /// `None` on other processors and architectures.
    #[inline]
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni")
        {
            return Avx2::detect().map(Self);
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

/// Σ a·b. Both slices have the same length.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if Avx2::detect().is_some() {
        // SAFETY: the processor has these features: `Avx2::detect`.
        return unsafe { x86::dot(a, b) };
    }
    partial_sums(a, b, |b| b)
}

/// As [`dot`].
#[inline(always)]
pub(crate) fn dot_f16(a: &[f32], b: &[f16]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if Avx2::detect().is_some() {
        // SAFETY: the processor has these features: `Avx2::detect`.
        return unsafe { x86::dot_f16(a, b) };
    }
    partial_sums(a, b, f16::to_f32)
}

/// Σ a·b in eight partial sums, for processors without AVX2.
fn partial_sums<T: Copy>(a: &[f32], b: &[T], value: impl Fn(T) -> f32) -> f32 {
    let mut sums = [0f32; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * value(*b);
        }
    }
    sums.iter().sum()
}

/// `half` does the same, but in a function that can't be inlined where eight elements are converted.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use half::f16;
    use half::slice::HalfFloatSliceExt;
    use std::arch::x86_64::{
        _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_ps, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_setzero_ps, _mm256_storeu_ps,
    };

    /// A dot product in 32 partial sums, four registers of eight. LLVM keeps them in memory if they are an array.
    macro_rules! dot {
        ($name:ident, $b:ty, $at:ident => $load:expr, $value:expr) => {
            #[inline]
            #[target_feature(enable = "avx2,fma,f16c")]
            pub fn $name(a: &[f32], b: &[$b]) -> f32 {
                let mut sums = [_mm256_setzero_ps(); 4];
                let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<32>(), b.as_chunks::<32>());
                for (a, b) in a.iter().zip(b) {
                    for (i, sum) in sums.iter_mut().enumerate() {
                        let $at = b[i * 8..][..8].as_ptr();
                        // SAFETY: both pointers are at eight elements.
                        let (a, b) = unsafe { (_mm256_loadu_ps(a[i * 8..][..8].as_ptr()), $load) };
                        *sum = _mm256_fmadd_ps(a, b, *sum);
                    }
                }
                let [s, t, u, v] = sums;
                let sum = _mm256_add_ps(_mm256_add_ps(s, t), _mm256_add_ps(u, v));
                let mut parts = [0.0; 8];
                // SAFETY: there is room for eight.
                unsafe { _mm256_storeu_ps(parts.as_mut_ptr(), sum) };
                let [s, t, u, v, w, x, y, z] = parts;
                let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * $value(*b)).sum();
                ((s + t) + (u + v)) + ((w + x) + (y + z)) + rest
            }
        };
    }
    dot!(dot, f32, at => _mm256_loadu_ps(at), |b: f32| b);
    dot!(dot_f16, f16, at => _mm256_cvtph_ps(_mm_loadu_si128(at.cast())), f16::to_f32);

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

    /// Small integers, whose products and sums are exact in any order.
    #[test]
    fn dot_products_of_all_lengths() {
        for len in (0..100).chain([511, 512, 1000]) {
            let a: Vec<f32> = (0..len).map(|i| (i % 7) as f32 - 3.0).collect();
            let b: Vec<f32> = (0..len).map(|i| (i % 11) as f32 - 5.0).collect();
            let halves: Vec<f16> = b.iter().map(|b| f16::from_f32(*b)).collect();
            let want: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            assert_eq!(dot(&a, &b), want, "{len}");
            assert_eq!(dot_f16(&a, &halves), want, "{len}");
            assert_eq!(partial_sums(&a, &halves, f16::to_f32), want, "{len}");
        }
    }

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
