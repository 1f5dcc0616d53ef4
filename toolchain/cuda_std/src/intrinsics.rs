//! The hardware's approximations of elementary functions in f32, under the names that Rust-CUDA and CUDA's libdevice give them. They
//! take a few instructions each, where those of [`GpuFloat`](crate::GpuFloat) take dozens.
//!
//! Unlike Rust-CUDA's they need no `unsafe`. Errors of single instructions are those that the PTX ISA states, those of `fast_expf` and
//! `fast_exp10f` the CUDA guide's.

use crate::gpu_only;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
use core::f32::consts::{LN_2, LOG2_10, LOG2_E, LOG10_2};

macro_rules! instruction {
    ($($(#[$doc:meta])* $name:ident($($x:ident),*) = $instruction:literal;)*) => {$(
        $(#[$doc])*
        #[gpu_only]
        #[inline(always)]
        pub fn $name($($x: f32),*) -> f32 {
            let y;
            // SAFETY: arithmetic only.
            unsafe {
                asm!($instruction, out(reg32) y, $(in(reg32) $x,)* options(pure, nomem, nostack, preserves_flags))
            };
            y
        }
    )*};
}

instruction! {
    /// 2^x to 2 ulp (`ex2.approx.f32`).
    fast_exp2f(x) = "ex2.approx.f32 {}, {};";
    /// log₂ x (`lg2.approx.f32`): to 2⁻²² absolute for x in 0.5 to 2, to 2⁻²² relative outside.
    fast_log2f(x) = "lg2.approx.f32 {}, {};";
    /// sin x (`sin.approx.f32`): to 2⁻²⁰·⁹ absolute for x in −π to π; worse with |x| outside.
    fast_sinf(x) = "sin.approx.f32 {}, {};";
    /// cos x (`cos.approx.f32`): to 2⁻²⁰·⁹ absolute for x in −π to π; worse with |x| outside.
    fast_cosf(x) = "cos.approx.f32 {}, {};";
    /// 1/√x to 2⁻²²·⁴ relative (`rsqrt.approx.f32`).
    rsqrtf(x) = "rsqrt.approx.f32 {}, {};";
    /// √x to 2⁻²³ relative (`sqrt.approx.f32`).
    fast_sqrtf(x) = "sqrt.approx.f32 {}, {};";
    /// 1/x to 1 ulp (`rcp.approx.f32`).
    fast_rcpf(x) = "rcp.approx.f32 {}, {};";
    /// 1/x, correctly rounded (`rcp.rn.f32`).
    frcp_rn(x) = "rcp.rn.f32 {}, {};";
    /// x/y to 2 ulp for |y| in 2⁻¹²⁶ to 2¹²⁶ (`div.approx.f32`); zero for larger |y|.
    fast_fdividef(x, y) = "div.approx.f32 {}, {}, {};";
    /// x, but not below 0 and not above 1; 0 of NaN (`cvt.sat.f32.f32`).
    saturatef(x) = "cvt.sat.f32.f32 {}, {};";
}

/// sin x and cos x, as [`fast_sinf`] and [`fast_cosf`].
#[inline(always)]
pub fn fast_sincosf(x: f32) -> (f32, f32) {
    (fast_sinf(x), fast_cosf(x))
}

/// tan x: the quotient of [`fast_sinf`] and [`fast_cosf`].
#[inline(always)]
pub fn fast_tanf(x: f32) -> f32 {
    fast_fdividef(fast_sinf(x), fast_cosf(x))
}

/// e^x: [`fast_exp2f`] of a rounded product, so to 2 + 1.16·|x| ulp.
#[inline(always)]
pub fn fast_expf(x: f32) -> f32 {
    fast_exp2f(x * LOG2_E)
}

/// 10^x: [`fast_exp2f`] of a rounded product, so to 2 + 2.95·|x| ulp.
#[inline(always)]
pub fn fast_exp10f(x: f32) -> f32 {
    fast_exp2f(x * LOG2_10)
}

/// ln x: [`fast_log2f`] times ln 2.
#[inline(always)]
pub fn fast_logf(x: f32) -> f32 {
    fast_log2f(x) * LN_2
}

/// log₁₀ x: [`fast_log2f`] times log₁₀ 2.
#[inline(always)]
pub fn fast_log10f(x: f32) -> f32 {
    fast_log2f(x) * LOG10_2
}

/// x^y for x ≥ 0: [`fast_exp2f`] of y times [`fast_log2f`] of x. The error grows with the product.
#[inline(always)]
pub fn fast_powf(x: f32, y: f32) -> f32 {
    fast_exp2f(y * fast_log2f(x))
}

/// tanh x to 4 ulp, measured on the virtual GPU: (e^2x − 1)/(e^2x + 1), or below 1/4 the first terms of its series. sm_61 has no
/// instruction for it.
#[inline(always)]
pub fn fast_tanhf(x: f32) -> f32 {
    let square = x * x;
    if square < 1.0 / 16.0 {
        let series = [-1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0, 62.0 / 2835.0];
        let [a, b, c, d] = series;
        return x + x * square * (a + square * (b + square * (c + square * d)));
    }
    let magnitude = 1.0 - 2.0 * fast_rcpf(fast_exp2f(x.abs() * (2.0 * LOG2_E)) + 1.0);
    magnitude.copysign(x)
}
