//! Which vector instructions the processor has. Found out once by the standard library; every file of `cpu` asks here.

/// A processor with AVX2, FMA and F16C. Holding the value proves that it was found to be one.
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

/// Runs `f`, which the compiler makes once for all processors and once for those with AVX2. What `f` calls takes part if
/// it is inlined.
#[inline(always)]
pub(crate) fn vectorized<R>(f: impl FnOnce() -> R) -> R {
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
