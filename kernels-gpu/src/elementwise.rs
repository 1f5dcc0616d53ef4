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
use crate::spec::KernelSpec;
use cuda_std::prelude::*;

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
    // what rounding took from the exponent, in units of ln
    let lost = (fma(v, LOG2_E, -power) + v * LOG2_E_REST) * core::f32::consts::LN_2 + rest;
    let y = exp2(power);
    // beyond the range y is 0 or ∞, and ∞ · lost may be NaN
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

#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
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
    let tail = 0.5 * t * q * exp_sum(-0.5 * square, -0.5 * fma(a, a, -square));
    if x < 0.0 { x * tail } else { x * (1.0 - tail) }
}

/// # Safety
/// As the kernels of one operand below.
#[inline(always)]
unsafe fn map<T: Vector>(y: *mut T, x: *const T, n: u32, head: u32, f: impl Fn(f32) -> f32) {
    flat::for_each(
        n,
        head,
        T::LEN,
        // SAFETY: `for_each` gives indices of whole vectors below n, aligned as `head` promises; y does not overlap x.
        |i| unsafe { T::load_vector(x.add(i as usize)) },
        // SAFETY: as above.
        |i, values| unsafe { T::store_vector(y.add(i as usize), T::map(values, &f)) },
        // SAFETY: i < n.
        |i| unsafe { *y.add(i as usize) = T::from_f32(f(T::load(x.add(i as usize)))) },
    );
}

/// # Safety
/// As the kernels of two operands below.
#[inline(always)]
unsafe fn zip<T: Vector>(
    z: *mut T,
    x: *const T,
    y: *const T,
    n: u32,
    head: u32,
    period: u32,
    f: impl Fn(f32, f32) -> f32,
) {
    let period = period.max(1); // never 0 where there is an element; said so, no panic is compiled in
    let y_index = |i: u32| (if period == n { i } else { i % period }) as usize;
    flat::for_each(
        n,
        head,
        T::LEN,
        // SAFETY: `for_each` gives indices of whole vectors below n, aligned as `head` promises for x and, at the
        // index modulo the period, for y; z overlaps neither.
        |i| unsafe { (T::load_vector(x.add(i as usize)), T::load_vector(y.add(y_index(i)))) },
        // SAFETY: as above.
        |i, (x, y)| unsafe { T::store_vector(z.add(i as usize), T::zip(x, y, &f)) },
        // SAFETY: i < n, and the index into y is below its length.
        |i| unsafe {
            *z.add(i as usize) = T::from_f32(f(T::load(x.add(i as usize)), T::load(y.add(y_index(i)))));
        },
    );
}

macro_rules! kernels {
    (
        two { $($(#[$two_doc:meta])* $two_spec:ident $two:ident: $two_t:ty = $f:expr;)* }
        one { $($(#[$one_doc:meta])* $one_spec:ident $one:ident: $one_t:ty, ($($scalar:ident)?) = $g:expr;)* }
    ) => {
        $(
            #[doc = "grid = [`flat::blocks`](n, head, elements in 16 bytes)"]
            pub const $two_spec: KernelSpec = KernelSpec::new(stringify!($two), flat::BLOCK);
            /// # Safety
            /// `z`, `x`: [n], `y`: [period], valid on the launching stream, z disjoint from both; `period` is n or a
            /// divisor of it. Unless `head = n`, element `head` of all three lies at a multiple of 16 bytes, and if
            /// `period < n`, `head` is 0 and 16 bytes divide the period. Launched as the spec of its name says.
            #[kernel(launch_bounds(flat::BLOCK))]
            pub unsafe fn $two(
                z: *mut $two_t, x: *const $two_t, y: *const $two_t, n: u32, head: u32, period: u32,
            ) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { zip(z, x, y, n, head, period, $f) }
            }
        )*
        $(
            #[doc = "grid = [`flat::blocks`](n, head, elements in 16 bytes)"]
            pub const $one_spec: KernelSpec = KernelSpec::new(stringify!($one), flat::BLOCK);
            /// # Safety
            /// `y`, `x`: [n], valid on the launching stream, disjoint. Unless `head = n`, element `head` of both lies
            /// at a multiple of 16 bytes. Launched as the spec of its name says.
            #[kernel(launch_bounds(flat::BLOCK))]
            pub unsafe fn $one(y: *mut $one_t, x: *const $one_t, n: u32, head: u32, $($scalar: f32)?) {
                // SAFETY: this kernel's contract is the body's.
                unsafe { map(y, x, n, head, $g) }
            }
        )*
        /// All kernels of this file.
        pub const KERNELS: &[KernelSpec] = &[$($two_spec,)* $($one_spec,)*];
    };
}

kernels! {
    two {
        ADD_F32 add_f32: f32 = |x, y| x + y;
        ADD_F16 add_f16: F16 = |x, y| x + y;
        MUL_F32 mul_f32: f32 = |x, y| x * y;
        MUL_F16 mul_f16: F16 = |x, y| x * y;
        SILU_MUL_F32 silu_mul_f32: f32 = |x, y| silu(x) * y;
        SILU_MUL_F16 silu_mul_f16: F16 = |x, y| silu(x) * y;
    }
    one {
        SCALE_F32 scale_f32: f32, (factor) = |x| x * factor;
        SCALE_F16 scale_f16: F16, (factor) = |x| x * factor;
        GELU_TANH_F32 gelu_tanh_f32: f32, () = gelu_tanh;
        GELU_TANH_F16 gelu_tanh_f16: F16, () = gelu_tanh;
        GELU_ERF_F32 gelu_erf_f32: f32, () = gelu_erf;
        GELU_ERF_F16 gelu_erf_f16: F16, () = gelu_erf;
    }
}
