//! Every function of `GpuFloat`, for the kernels that compute them on the GPU and for the test that computes them on the host.

use cuda_std::GpuFloat;

macro_rules! list {
    ($x:ident, $y:ident, $n:ident: $($name:literal = $value:expr;)*) => {
        /// The functions, in the order of [`all`].
        #[allow(dead_code)] // the host's test names them
        pub const NAMES: [&str; COUNT] = [$($name),*];

        /// How many there are.
        pub const COUNT: usize = [$($name),*].len();

        /// Each function of these arguments.
        pub fn all<T: GpuFloat>($x: T, $y: T, $n: i32) -> [T; COUNT] {
            [$($value),*]
        }
    };
}

list! { x, y, n:
    "floor" = x.floor();
    "ceil" = x.ceil();
    "round" = x.round();
    "round_ties_even" = x.round_ties_even();
    "trunc" = x.trunc();
    "fract" = x.fract();
    "abs" = x.abs();
    "signum" = x.signum();
    "copysign" = x.copysign(y);
    "min" = x.min(y);
    "max" = x.max(y);
    "mul_add" = x.mul_add(y, x);
    "div_euclid" = x.div_euclid(y);
    "rem_euclid" = x.rem_euclid(y);
    "%" = x % y;
    "powi" = x.powi(n);
    "powf" = x.powf(y);
    "sqrt" = x.sqrt();
    "rsqrt" = x.rsqrt();
    "cbrt" = x.cbrt();
    "hypot" = x.hypot(y);
    "exp" = x.exp();
    "exp2" = x.exp2();
    "exp_m1" = x.exp_m1();
    "ln" = x.ln();
    "log" = x.log(y);
    "log2" = x.log2();
    "log10" = x.log10();
    "ln_1p" = x.ln_1p();
    "sin" = x.sin();
    "cos" = x.cos();
    "sin_cos, sine" = x.sin_cos().0;
    "sin_cos, cosine" = x.sin_cos().1;
    "tan" = x.tan();
    "asin" = x.asin();
    "acos" = x.acos();
    "atan" = x.atan();
    "atan2" = x.atan2(y);
    "sinh" = x.sinh();
    "cosh" = x.cosh();
    "tanh" = x.tanh();
    "asinh" = x.asinh();
    "acosh" = x.acosh();
    "atanh" = x.atanh();
}
