//! Elementary functions in f32, by the hardware's approximations.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use cuda_std::gpu_only;

/// log2(e)
const LOG2_E: f32 = core::f32::consts::LOG2_E;

/// a·b + c with one rounding (`fma.rn.f32`).
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(target_arch = "nvptx64")]
    {
        core::f32::math::mul_add(a, b, c)
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        a.mul_add(b, c)
    }
}

macro_rules! approximation {
    ($($(#[$doc:meta])* $name:ident = $instruction:literal;)*) => {$(
        $(#[$doc])*
        #[gpu_only]
        #[inline(always)]
        pub fn $name(x: f32) -> f32 {
            let y;
            // SAFETY: arithmetic only.
            unsafe { asm!($instruction, out(reg32) y, in(reg32) x, options(pure, nomem, nostack, preserves_flags)) };
            y
        }
    )*};
}

approximation! {
    /// 2^x to 2 ulp; subnormal results are zero.
    exp2 = "ex2.approx.ftz.f32 {}, {};";
    /// log2(x) to 2⁻²² absolute near one; subnormal arguments count as zero.
    log2 = "lg2.approx.ftz.f32 {}, {};";
    /// 1/√x to 2⁻²²·⁹ relative; subnormal arguments count as zero.
    rsqrt = "rsqrt.approx.ftz.f32 {}, {};";
    /// 1/x to 1 ulp; subnormal arguments and results are zero.
    rcp = "rcp.approx.ftz.f32 {}, {};";
    /// √x, correctly rounded.
    sqrt = "sqrt.rn.f32 {}, {};";
}

/// e^x. The relative error grows with |x|, to 8e-6 at the ends of the range; absolute errors stay below an ulp of
/// the largest term where results are summed, as in a softmax.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    exp2(x * LOG2_E)
}
