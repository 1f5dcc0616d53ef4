//! Element by element: z = f(x, y) and y = f(x).   x, z: [n]; y: [n], or [period] repeated along x (a bias).
//!
//! | kernel         | formula                                       |
//! |----------------|-----------------------------------------------|
//! | add_‹t›        | z = x + y                                     |
//! | mul_‹t›        | z = x · y                                     |
//! | silu_mul_‹t›   | z = x / (1 + e⁻ˣ) · y                         |
//! | scale_‹t›      | y = x · factor                                |
//! | gelu_tanh_‹t›  | y = x / (1 + e⁻²ᵘ), u = √(2/π)(x + 0.044715x³) |
//! | gelu_erf_‹t›   | y = x · Φ(x), Φ the normal distribution       |
//!
//! GELU: Hendrycks & Gimpel 2016. The tanh form is 0.5x(1 + tanh u), written so that it keeps its relative accuracy
//! for negative x, where 1 + tanh u cancels.

use crate::device::math::{exp2, fma, rcp};
use crate::device::{F16, Vector, flat};
use cuda_std::prelude::*;
use cuda_std::{KernelInfo, KernelSpec};

/// Coefficients of Q in erfc(a) = t·Q(t)·e^(−a²), t = 1/(1 + a/2), for 0 ≤ a ≤ 10, lowest first.
///
/// The form is that of Abramowitz & Stegun 7.1.26; the coefficients are a minimax fit of the relative error (Lawson's
/// iteration against 50-digit values), 4.3e-8 before and 1.6e-7 after rounding to f32.
pub const ERFC: [f32; 9] = [
    0.28208604,
    0.28238195,
    0.24305561,
    0.20287675,
    -0.02707305,
    0.27871478,
    -0.4877645,
    0.284_847,
    -0.0591246,
];

/// √(2/π)
pub const GELU_TANH_SCALE: f32 = 0.797_884_6;
/// The cubic coefficient of the tanh form.
pub const GELU_TANH_CUBIC: f32 = 0.044_715;

/// From here on Φ(−a) is zero in f32.
pub const GELU_ERF_LIMIT: f32 = 20.0;

/// e^(v + rest) for |rest| ≪ 1 to 3e-7 relative over the whole range; subnormal results are zero.
#[inline(always)]
fn exp_sum(v: f32, rest: f32) -> f32 {
    const LOG2_E: f32 = core::f32::consts::LOG2_E;
    /// log2(e) − LOG2_E
    const LOG2_E_REST: f32 = 1.925_963e-8;
    let power = v * LOG2_E;
    // the rounding error of the exponent, in units of ln
    let lost = (fma(v, LOG2_E, -power) + v * LOG2_E_REST) * core::f32::consts::LN_2 + rest;
    let y = exp2(power);
    // out of range y is 0 or ∞, and ∞ · lost may be NaN
    if v.abs() < 87.0 { fma(y, lost, y) } else { y }
}

#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x * rcp(1.0 + exp_sum(-x, 0.0))
}

#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    let u = GELU_TANH_SCALE * fma(GELU_TANH_CUBIC * x * x, x, x);
    x * rcp(1.0 + exp_sum(-2.0 * u, 0.0))
}

/// σ(x)(1 + x(1 − σ(x)))
#[inline(always)]
pub(crate) fn silu_slope(x: f32) -> f32 {
    let sigmoid = rcp(1.0 + exp_sum(-x, 0.0));
    sigmoid * fma(x, 1.0 - sigmoid, 1.0)
}

/// σ(2u) + 2xσ(2u)(1 − σ(2u))u′
#[inline(always)]
pub(crate) fn gelu_tanh_slope(x: f32) -> f32 {
    let u = GELU_TANH_SCALE * fma(GELU_TANH_CUBIC * x * x, x, x);
    let sigmoid = rcp(1.0 + exp_sum(-2.0 * u, 0.0));
    let du = GELU_TANH_SCALE * fma(3.0 * GELU_TANH_CUBIC * x, x, 1.0);
    fma(2.0 * x * du, sigmoid * (1.0 - sigmoid), sigmoid)
}

/// Φ(x) + xφ(x), φ the normal density
#[inline(always)]
pub(crate) fn gelu_erf_slope(x: f32) -> f32 {
    /// 1/√(2π)
    const NORMAL_SCALE: f32 = 0.398_942_3;
    let (tail, exp) = gelu_erf_parts(x);
    let below = if x < 0.0 { tail } else { 1.0 - tail };
    fma(x * NORMAL_SCALE, exp, below)
}

#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    let (tail, _) = gelu_erf_parts(x);
    if x < 0.0 { x * tail } else { x * (1.0 - tail) }
}

/// Φ(−|x|), and e^(−x²/2)
#[inline(always)]
fn gelu_erf_parts(x: f32) -> (f32, f32) {
    // Φ(−a) = erfc(a/√2) / 2
    let a = x.abs().min(GELU_ERF_LIMIT);
    let t = rcp(fma(a, 0.5 * core::f32::consts::FRAC_1_SQRT_2, 1.0));
    let mut q = ERFC[8];
    q = fma(q, t, ERFC[7]);
    q = fma(q, t, ERFC[6]);
    q = fma(q, t, ERFC[5]);
    q = fma(q, t, ERFC[4]);
    q = fma(q, t, ERFC[3]);
    q = fma(q, t, ERFC[2]);
    q = fma(q, t, ERFC[1]);
    q = fma(q, t, ERFC[0]);
    let square = a * a;
    let exp = exp_sum(-0.5 * square, -0.5 * fma(a, a, -square));
    (0.5 * t * q * exp, exp)
}

/// # Safety
/// As the kernels of one operand below.
#[inline(always)]
unsafe fn map<T: Vector>(One { y, x, n, head, .. }: One<T>, f: impl Fn(f32) -> f32) {
    flat::for_each(
        n,
        head,
        T::LEN,
        // SAFETY: `for_each` gives indices of whole vectors below n, aligned because `head` is; y does not overlap x.
        |i| unsafe { T::load_vector(x.add(i as usize)) },
        // SAFETY: the same whole vector below n, aligned; y overlaps nothing.
        |i, values| unsafe { T::store_vector(y.add(i as usize), T::map(values, &f)) },
        // SAFETY: i < n.
        |i| unsafe { *y.add(i as usize) = T::from_f32(f(T::load(x.add(i as usize)))) },
    );
}

/// # Safety
/// As the kernels of two operands below.
#[inline(always)]
unsafe fn zip<T: Vector>(Two { z, x, y, n, head, period }: Two<T>, f: impl Fn(f32, f32) -> f32) {
    let period = period.max(1); // never 0 if there is an element; stated so that no panic is compiled in
    let y_index = |i: u32| (if period == n { i } else { i % period }) as usize;
    flat::for_each(
        n,
        head,
        T::LEN,
        // SAFETY: `for_each` gives indices of whole vectors below n, aligned for x and, modulo the period, for y because
        // `head` is; z overlaps neither.
        |i| unsafe { (T::load_vector(x.add(i as usize)), T::load_vector(y.add(y_index(i)))) },
        // SAFETY: the same whole vector below n, aligned; z overlaps nothing.
        |i, (x, y)| unsafe { T::store_vector(z.add(i as usize), T::zip(x, y, &f)) },
        // SAFETY: i < n, and the index into y is below its length.
        |i| unsafe {
            *z.add(i as usize) = T::from_f32(f(T::load(x.add(i as usize)), T::load(y.add(y_index(i)))));
        },
    );
}

macro_rules! kernels {
    (
        two { $($two:ident: $two_t:ty = $f:expr;)* }
        one { $($one:ident: $one_t:ty = |$p:ident| $g:expr;)* }
    ) => {
        $(
            /// grid = [[`flat::blocks`](n, head, elements in 16 bytes)]
            ///
            /// # Safety
            /// [`Two`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
            #[kernel(block = flat::BLOCK, min_blocks = 16)]
            pub unsafe fn $two(p: Two<$two_t>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { zip(p, $f) }
            }
        )*
        $(
            /// grid = [[`flat::blocks`](n, head, elements in 16 bytes)]
            ///
            /// # Safety
            /// [`One`] constrains the pointers, which are valid on the launching stream for fewer than 2³¹ elements.
            #[kernel(block = flat::BLOCK, min_blocks = 16)]
            pub unsafe fn $one($p: One<$one_t>) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { map($p, $g) }
            }
        )*
        /// All kernels of this file.
        pub const KERNELS: &[KernelInfo] = &[$($two.info(),)* $($one.info(),)*];
    };
}

/// The parameters of the kernels of two operands.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct Two<T> {
    /// [n]
    pub z: *mut T,
    /// [n], disjoint from z
    pub x: *const T,
    /// [period], disjoint from z
    pub y: *const T,
    pub n: u32,
    /// An index from which on all three are aligned to 16 bytes, or n; if period < n, 0 or n.
    pub head: u32,
    /// n or a divisor of it; if it is less than n and head is 0, a multiple of the elements in 16 bytes.
    pub period: u32,
}

/// The parameters of the kernels of one operand.
#[derive(Clone, Copy, KernelParams)]
#[repr(C)]
pub struct One<T> {
    /// [n]
    pub y: *mut T,
    /// [n], disjoint from y
    pub x: *const T,
    pub n: u32,
    /// An index from which on both are aligned to 16 bytes, or n.
    pub head: u32,
    /// Read only by the scale kernels.
    pub factor: f32,
}

kernels! {
    two {
        add_f32: f32 = |x, y| x + y;
        add_f16: F16 = |x, y| x + y;
        mul_f32: f32 = |x, y| x * y;
        mul_f16: F16 = |x, y| x * y;
        silu_mul_f32: f32 = |x, y| silu(x) * y;
        silu_mul_f16: F16 = |x, y| silu(x) * y;
    }
    one {
        scale_f32: f32 = |p| |x| x * p.factor;
        scale_f16: F16 = |p| |x| x * p.factor;
        gelu_tanh_f32: f32 = |p| gelu_tanh;
        gelu_tanh_f16: F16 = |p| gelu_tanh;
        gelu_erf_f32: f32 = |p| gelu_erf;
        gelu_erf_f16: F16 = |p| gelu_erf;
    }
}

/// The kernels of one element type.
#[derive(Clone, Copy)]
pub struct Kernels<T> {
    pub add: KernelSpec<Two<T>>,
    pub mul: KernelSpec<Two<T>>,
    pub silu_mul: KernelSpec<Two<T>>,
    pub scale: KernelSpec<One<T>>,
    pub gelu_tanh: KernelSpec<One<T>>,
    pub gelu_erf: KernelSpec<One<T>>,
}

/// The kernels of f32.
pub const OF_F32: Kernels<f32> = Kernels {
    add: add_f32,
    mul: mul_f32,
    silu_mul: silu_mul_f32,
    scale: scale_f32,
    gelu_tanh: gelu_tanh_f32,
    gelu_erf: gelu_erf_f32,
};

/// The kernels of f16.
pub const OF_F16: Kernels<F16> = Kernels {
    add: add_f16,
    mul: mul_f16,
    silu_mul: silu_mul_f16,
    scale: scale_f16,
    gelu_tanh: gelu_tanh_f16,
    gelu_erf: gelu_erf_f16,
};
