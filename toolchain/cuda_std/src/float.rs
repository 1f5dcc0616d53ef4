//! Elementary functions of `f32` and `f64`, which `core` does not have: [`GpuFloat`]. The hardware's fast approximations of some
//! of them are in [`intrinsics`](crate::intrinsics).
//!
//! What the hardware rounds correctly is its instruction: `sqrt.rn`, `fma.rn`, and `cvt.rmi`, `rpi`, `rzi`, `rni` for roundings. The
//! rest is the crate [`libm`], which keeps to IEEE 754 at subnormals, infinities and NaN. The host computes the same bits by
//! the same code. Errors, measured, are in the book's page "Floats in kernels".

use crate::lowered;
use core::ops::{Add, Div, Mul, Neg, Rem, Sub};

mod private {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// `f32` or `f64` with the functions of `std`, under the names of `std` and Rust-CUDA. Angles are in radians.
///
/// On the GPU `x.sin()` is this trait's. On the host `f32` and `f64` have methods of their own, which come first there: only
/// `GpuFloat::sin(x)` and generic code compute the GPU's bits. An import that the host does not need wants
/// `#[cfg_attr(not(target_arch = "nvptx64"), allow(unused_imports))]`.
///
/// ```
/// use cuda_std::GpuFloat;
///
/// fn softplus<T: GpuFloat>(x: T) -> T {
///     x.exp().ln_1p()
/// }
/// assert_eq!(softplus(0.0f32), core::f32::consts::LN_2);
/// ```
pub trait GpuFloat:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Rem<Output = Self>
    + Neg<Output = Self>
    + private::Sealed
{
    /// The largest integer that is not above `self`. Exact.
    fn floor(self) -> Self;
    /// The smallest integer that is not below `self`. Exact.
    fn ceil(self) -> Self;
    /// The nearest integer; halves away from zero. Exact.
    fn round(self) -> Self;
    /// The nearest integer; halves to the even one. Exact.
    fn round_ties_even(self) -> Self;
    /// The integer part. Exact.
    fn trunc(self) -> Self;
    /// `self - self.trunc()`. Exact.
    fn fract(self) -> Self;
    /// The magnitude. Exact.
    fn abs(self) -> Self;
    /// 1 or −1 by the sign bit; NaN of NaN.
    fn signum(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// The smaller; of a number and NaN the number, of zeros of both signs either.
    fn min(self, other: Self) -> Self;
    /// The larger; of a number and NaN the number, of zeros of both signs either.
    fn max(self, other: Self) -> Self;
    /// `self · a + b` with one rounding.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// The integer n of `self = n · rhs + self.rem_euclid(rhs)`.
    fn div_euclid(self, rhs: Self) -> Self;
    /// The remainder that is not negative. Exact unless `self` is negative: then it is rounded, and may be `rhs.abs()`.
    fn rem_euclid(self, rhs: Self) -> Self;
    /// `self` to the power of an integer, by repeated squaring: the error grows with `n`.
    fn powi(self, n: i32) -> Self;
    /// `self` to the power `n`.
    fn powf(self, n: Self) -> Self;
    /// √self, correctly rounded; NaN below zero.
    fn sqrt(self) -> Self;
    /// 1/√self, rounded twice; NaN below zero.
    fn rsqrt(self) -> Self;
    /// ∛self
    fn cbrt(self) -> Self;
    /// √(self² + other²) without overflow on the way.
    fn hypot(self, other: Self) -> Self;
    /// e^self
    fn exp(self) -> Self;
    /// 2^self
    fn exp2(self) -> Self;
    /// e^self − 1, precise near zero.
    fn exp_m1(self) -> Self;
    /// The natural logarithm; NaN below zero.
    fn ln(self) -> Self;
    /// The logarithm to a base: `self.ln() / base.ln()`.
    fn log(self, base: Self) -> Self;
    /// The logarithm to the base 2.
    fn log2(self) -> Self;
    /// The logarithm to the base 10.
    fn log10(self) -> Self;
    /// ln(1 + self), precise near zero.
    fn ln_1p(self) -> Self;
    /// The sine.
    fn sin(self) -> Self;
    /// The cosine.
    fn cos(self) -> Self;
    /// The sine and the cosine, for less than both.
    fn sin_cos(self) -> (Self, Self);
    /// The tangent.
    fn tan(self) -> Self;
    /// The arcsine, −π/2 to π/2; NaN outside of −1 to 1.
    fn asin(self) -> Self;
    /// The arccosine, 0 to π; NaN outside of −1 to 1.
    fn acos(self) -> Self;
    /// The arctangent, −π/2 to π/2.
    fn atan(self) -> Self;
    /// The angle of the point (x = `other`, y = `self`), −π to π.
    fn atan2(self, other: Self) -> Self;
    /// The hyperbolic sine.
    fn sinh(self) -> Self;
    /// The hyperbolic cosine.
    fn cosh(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The inverse hyperbolic sine.
    fn asinh(self) -> Self;
    /// The inverse hyperbolic cosine; NaN below 1.
    fn acosh(self) -> Self;
    /// The inverse hyperbolic tangent; NaN outside of −1 to 1.
    fn atanh(self) -> Self;
}

/// Methods that one instruction, or a few, compute exactly: by `core`'s intrinsics on the GPU, by `std` on the host.
macro_rules! instructions {
    ($float:ident: $($name:ident($($argument:ident),*);)*) => {$(
        #[inline(always)]
        fn $name(self $(, $argument: Self)*) -> Self {
            #[cfg(target_arch = "nvptx64")]
            { core::$float::math::$name(self $(, $argument)*) }
            #[cfg(not(target_arch = "nvptx64"))]
            { <$float>::$name(self $(, $argument)*) }
        }
    )*};
}

/// Methods that are functions of `libm`.
macro_rules! functions {
    ($($name:ident($($argument:ident),*) = $function:ident;)*) => {$(
        #[inline]
        fn $name(self $(, $argument: Self)*) -> Self {
            libm::$function(self $(, $argument)*)
        }
    )*};
}

/// The methods that are the same for both types, and the two lists.
macro_rules! float {
    ($float:ident, $remainder:ident, $sincos:ident, $acosh:ident; $($functions:tt)*) => {
        impl GpuFloat for $float {
            instructions! { $float: floor(); ceil(); round(); round_ties_even(); trunc(); sqrt(); mul_add(a, b); }
            functions! { $($functions)* }

            #[inline(always)]
            fn fract(self) -> Self {
                self - GpuFloat::trunc(self)
            }

            #[inline(always)]
            fn abs(self) -> Self {
                $float::abs(self)
            }

            #[inline(always)]
            fn signum(self) -> Self {
                $float::signum(self)
            }

            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                $float::copysign(self, sign)
            }

            #[inline(always)]
            fn min(self, other: Self) -> Self {
                $float::min(self, other)
            }

            #[inline(always)]
            fn max(self, other: Self) -> Self {
                $float::max(self, other)
            }

            /// Not by `%`, whose quotient LLVM would share with this one.
            #[inline]
            fn div_euclid(self, rhs: Self) -> Self {
                let quotient = GpuFloat::trunc(self / rhs);
                match lowered::$remainder(self, rhs) < 0.0 {
                    true if rhs > 0.0 => quotient - 1.0,
                    true => quotient + 1.0,
                    false => quotient,
                }
            }

            #[inline]
            fn rem_euclid(self, rhs: Self) -> Self {
                let remainder = lowered::$remainder(self, rhs);
                if remainder < 0.0 { remainder + $float::abs(rhs) } else { remainder }
            }

            #[inline]
            fn powi(self, n: i32) -> Self {
                let (mut square, mut exponent, mut power) = (self, n.unsigned_abs(), 1.0);
                loop {
                    if exponent & 1 == 1 {
                        power *= square;
                    }
                    exponent >>= 1;
                    if exponent == 0 {
                        break;
                    }
                    square *= square;
                }
                if n < 0 { 1.0 / power } else { power }
            }

            #[inline(always)]
            fn rsqrt(self) -> Self {
                1.0 / GpuFloat::sqrt(self)
            }

            #[inline]
            fn log(self, base: Self) -> Self {
                GpuFloat::ln(self) / GpuFloat::ln(base)
            }

            #[inline]
            fn sin_cos(self) -> (Self, Self) {
                libm::$sincos(self)
            }

            /// `libm`'s gives numbers for large negative arguments.
            #[inline]
            fn acosh(self) -> Self {
                if self < 1.0 { <$float>::NAN } else { libm::$acosh(self) }
            }
        }
    };
}

float! {
    f32, cuda_std_fmod_f32, sincosf, acoshf;
    powf(n) = powf;
    cbrt() = cbrtf;
    hypot(other) = hypotf;
    exp() = expf;
    exp2() = exp2f;
    exp_m1() = expm1f;
    ln() = logf;
    log2() = log2f;
    log10() = log10f;
    ln_1p() = log1pf;
    sin() = sinf;
    cos() = cosf;
    tan() = tanf;
    asin() = asinf;
    acos() = acosf;
    atan() = atanf;
    atan2(other) = atan2f;
    sinh() = sinhf;
    cosh() = coshf;
    tanh() = tanhf;
    asinh() = asinhf;
    atanh() = atanhf;
}

float! {
    f64, cuda_std_fmod_f64, sincos, acosh;
    powf(n) = pow;
    cbrt() = cbrt;
    hypot(other) = hypot;
    exp() = exp;
    exp2() = exp2;
    exp_m1() = expm1;
    ln() = log;
    log2() = log2;
    log10() = log10;
    ln_1p() = log1p;
    sin() = sin;
    cos() = cos;
    tan() = tan;
    asin() = asin;
    acos() = acos;
    atan() = atan;
    atan2(other) = atan2;
    sinh() = sinh;
    cosh() = cosh;
    tanh() = tanh;
    asinh() = asinh;
    atanh() = atanh;
}
