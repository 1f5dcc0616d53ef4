//! The errors of `GpuFloat`, which docs/kernels/math.md lists: in f32 against std's f64, in f64 against std's own. The host runs the
//! code of the GPU; that both give the same bits is `compat`'s test.
//!
//! ```text
//! cargo test --release -p pascaline-cuda-std --test floats -- --nocapture          # prints what was measured
//! PASCALINE_TESTS=all cargo test --release -p pascaline-cuda-std --test floats      # 79 times as many arguments
//! ```

use cuda_std::GpuFloat;

#[path = "../../../tests/all/common/extent.rs"]
mod extent;

/// A function in f32, in f64 and by std, and the most ulp that its results may be off in both types.
struct Function {
    name: &'static str,
    f32: fn(f32) -> f32,
    f64: fn(f64) -> f64,
    std: fn(f64) -> f64,
    limits: [f64; 2],
}

macro_rules! functions {
    ($($name:ident: $f32:literal, $f64:literal;)*) => {
        [$(Function {
            name: stringify!($name),
            f32: |x| GpuFloat::$name(x),
            f64: |x| GpuFloat::$name(x),
            std: |x| reference::$name(x),
            limits: [$f32, $f64],
        }),*]
    };
}

/// std's functions. Its inverse hyperbolic ones are formulas of its own, off by hundreds of ulp: for these the C library's.
mod reference {
    macro_rules! of_std {
        ($($name:ident)*) => {$(pub fn $name(x: f64) -> f64 { x.$name() })*};
    }
    of_std! { sqrt cbrt exp exp2 exp_m1 ln log2 log10 ln_1p sin cos tan asin acos atan sinh cosh tanh floor round fract }

    unsafe extern "C" {
        pub safe fn asinh(x: f64) -> f64;
        pub safe fn acosh(x: f64) -> f64;
        pub safe fn atanh(x: f64) -> f64;
    }
}

/// By name: ulp in f32, and in f64 together with std's own error: one more than measured, as other C libraries have other errors.
#[rustfmt::skip]
const FUNCTIONS: [Function; 24] = functions! {
    sqrt: 0.5, 0.0;
    cbrt: 0.51, 1.0;
    exp: 0.9, 2.0;
    exp2: 0.51, 2.0;
    exp_m1: 0.8, 2.0;
    ln: 0.8, 2.0;
    log2: 0.9, 2.0;
    log10: 0.8, 3.0;
    ln_1p: 0.9, 2.0;
    sin: 0.51, 2.0;
    cos: 0.51, 2.0;
    tan: 0.9, 2.0;
    asin: 0.7, 2.0;
    acos: 0.9, 2.0;
    atan: 0.9, 2.0;
    sinh: 1.8, 3.0;
    cosh: 1.4, 3.0;
    tanh: 2.2, 4.0;
    asinh: 1.6, 2.0;
    acosh: 1.8, 2.0;
    atanh: 1.7, 2.0;
    floor: 0.0, 0.0;
    round: 0.0, 0.0;
    fract: 0.0, 0.0;
};

/// The distance from the exact value in units of the last place: of a type with `digits` binary digits and this least exponent.
/// An infinity counts as the power of two after the largest number.
fn ulp(got: f64, exact: f64, digits: i32, least: i32, most: i32) -> f64 {
    if got.is_nan() || exact.is_nan() {
        return if got.is_nan() && exact.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if got == exact {
        return 0.0;
    }
    let exponent =
        if exact == 0.0 { least } else { ((exact.to_bits() >> 52 & 0x7ff) as i32 - 1023).max(least) };
    // scaled down: the power of two after the largest f64 is none
    let bound = |x: f64| (x / 4.0).clamp(-2f64.powi(most - 2), 2f64.powi(most - 2));
    let unit = (exponent.min(most - 1) - digits + 1 - 2).max(-1074);
    (bound(got) - bound(exact)).abs() / 2f64.powi(unit)
}

fn ulp32(got: f32, exact: f64) -> f64 {
    ulp(got.into(), exact, 24, -126, 128)
}

/// Near the least numbers, where a quarter of a unit is none, to a unit.
fn ulp64(got: f64, exact: f64) -> f64 {
    if exact.abs() < 1e-290 && got.is_finite() && got != exact {
        return (got.to_bits() as i64).abs_diff(exact.to_bits() as i64) as f64;
    }
    ulp(got, exact, 53, -1022, 1024)
}

/// f32 of all orders of magnitude and both signs, at equal distances of their bits.
fn samples() -> impl Iterator<Item = f32> {
    let step = if extent::all() { 509 } else { 40_211 };
    (0..=u32::MAX).step_by(step).map(f32::from_bits)
}

/// Of each f32 of [`samples`] an f64 with further random digits.
fn samples64() -> impl Iterator<Item = f64> {
    let mut state = 1u64;
    samples().map(move |x| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f64::from_bits(f64::from(x).to_bits() ^ state >> 35)
    })
}

/// The largest error, and where it is.
fn worst<T: Copy + Default>(errors: impl Iterator<Item = (T, f64)>) -> (T, f64) {
    errors.fold((T::default(), 0.0), |most, error| if error.1 > most.1 { error } else { most })
}

#[test]
fn functions_of_one_argument_are_as_precise_as_the_table_says() {
    let mut wrong = Vec::new();
    for Function { name, f32, f64, std, limits } in FUNCTIONS {
        let (x, error) = worst(samples().map(|x| (x, ulp32(f32(x), std(x.into())))));
        let (x64, error64) = worst(samples64().map(|x| (x, ulp64(f64(x), std(x)))));
        println!("| `{name}` | {error:.2} | {error64:.2} | at {x:e} and {x64:e}");
        if error > limits[0] {
            wrong.push(format!("{name} of {x:e} in f32: {:e}, off by {error} ulp", f32(x)));
        }
        if error64 > limits[1] {
            wrong.push(format!("{name} of {x64:e} in f64: {:e}, off by {error64} ulp", f64(x64)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Pairs over a range of exponents: powers that overflow, and those that do not.
fn pairs() -> impl Iterator<Item = (f32, f32)> {
    let mut state = 1u32;
    let mut random = move || {
        for (left, shift) in [(true, 13), (false, 17), (true, 5)] {
            state ^= if left { state << shift } else { state >> shift };
        }
        state
    };
    let count = if extent::all() { 8_000_000 } else { 100_000 };
    (0..count).map(move |i| {
        let range = [8, 32, 254][i % 3];
        let mut number = || {
            let bits = random();
            let exponent = 127 - range / 2 + (bits >> 23) % range;
            f32::from_bits(bits & 0x807f_ffff | exponent << 23)
        };
        (number(), number())
    })
}

#[test]
fn functions_of_two_arguments_are_as_precise_as_the_table_says() {
    type Two = (&'static str, fn(f32, f32) -> f32, fn(f64, f64) -> f64, fn(f64, f64) -> f64, [f64; 2]);
    let functions: [Two; 6] = [
        ("powf", |x, y| GpuFloat::powf(x, y), |x, y| GpuFloat::powf(x, y), f64::powf, [0.9, 2.0]),
        ("hypot", |x, y| GpuFloat::hypot(x, y), |x, y| GpuFloat::hypot(x, y), f64::hypot, [0.9, 2.0]),
        ("atan2", |x, y| GpuFloat::atan2(x, y), |x, y| GpuFloat::atan2(x, y), f64::atan2, [1.5, 2.0]),
        ("rsqrt", |x, _| GpuFloat::rsqrt(x), |x, _| GpuFloat::rsqrt(x), |x, _| 1.0 / x.sqrt(), [1.5, 0.0]),
        ("log", |x, y| GpuFloat::log(x, y), |x, y| GpuFloat::log(x, y), |x, y| x.ln() / y.ln(), [2.6, 5.0]),
        (
            "powi, |n| ≤ 16",
            |x, y| GpuFloat::powi(x, y as i32 % 17),
            |x, y| GpuFloat::powi(x, y as i32 % 17),
            // zero if the inverse overflows; the arguments of the comparison in f64 are no f32
            |x, y| {
                let (n, is_f32) = (y as i32 % 17, f64::from(x as f32) == x);
                let largest = if is_f32 { f32::MAX.into() } else { f64::MAX };
                if n < 0 && x.powi(-n).abs() > largest { 0.0 } else { x.powf(n.into()) }
            },
            [13.0, 15.0],
        ),
    ];
    let mut wrong = Vec::new();
    for (name, f32, f64, std, limits) in functions {
        let (x, error) = worst(pairs().map(|(x, y)| ((x, y), ulp32(f32(x, y), std(x.into(), y.into())))));
        let pairs = pairs().map(|(x, y)| (f64::from(x) * (1.0 + 1e-9), f64::from(y) * (1.0 + 1e-10)));
        let (x64, error64) = worst(pairs.map(|(x, y)| ((x, y), ulp64(f64(x, y), std(x, y)))));
        println!("| `{name}` | {error:.2} | {error64:.2} | at {x:?} and {x64:?}");
        if error > limits[0] || error64 > limits[1] {
            wrong.push(format!("{name} of {x:?} or {x64:?}: off by {error} and {error64} ulp"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn exact_functions_are_those_of_std() {
    let same = |got: f32, wanted: f32| got.to_bits() == wanted.to_bits() || got.is_nan() && wanted.is_nan();
    for x in samples() {
        let of_one = [
            (GpuFloat::floor(x), x.floor()),
            (GpuFloat::ceil(x), x.ceil()),
            (GpuFloat::round(x), x.round()),
            (GpuFloat::round_ties_even(x), x.round_ties_even()),
            (GpuFloat::trunc(x), x.trunc()),
            (GpuFloat::fract(x), x.fract()),
            (GpuFloat::abs(x), x.abs()),
            (GpuFloat::signum(x), x.signum()),
        ];
        assert!(of_one.iter().all(|&(got, wanted)| same(got, wanted)), "{x:e}: {of_one:?}");
    }
    for (x, y) in pairs() {
        let of_two = [
            (GpuFloat::copysign(x, y), x.copysign(y)),
            (GpuFloat::min(x, y), x.min(y)),
            (GpuFloat::max(x, y), x.max(y)),
            (GpuFloat::mul_add(x, y, 1.0), x.mul_add(y, 1.0)),
            (GpuFloat::div_euclid(x, y), x.div_euclid(y)),
            (GpuFloat::rem_euclid(x, y), x.rem_euclid(y)),
        ];
        assert!(of_two.iter().all(|&(got, wanted)| same(got, wanted)), "{x:e} and {y:e}: {of_two:?}");
    }
}

#[test]
fn arguments_outside_of_a_domain_give_nan() {
    for x in [-1.0f64, -1e8, -1e200, f64::NEG_INFINITY, f64::NAN] {
        for (name, got) in
            [("acosh", GpuFloat::acosh(x)), ("sqrt", GpuFloat::sqrt(x)), ("rsqrt", GpuFloat::rsqrt(x))]
        {
            assert!(got.is_nan(), "{name} of {x}: {got}");
        }
        assert!(GpuFloat::acosh(x as f32).is_nan(), "acosh of {x}");
        assert!(x == -1.0 || GpuFloat::ln_1p(x).is_nan(), "ln_1p of {x}");
    }
    assert_eq!(GpuFloat::acosh(1.0f64), 0.0);
    assert!(GpuFloat::acosh(0.999_999_9f32).is_nan() && GpuFloat::asin(1.000_000_2f32).is_nan());
    assert_eq!(GpuFloat::powi(2.0f32, -149), 0.0, "its inverse overflows, as in std");
    assert_eq!([GpuFloat::powi(-2.0f64, i32::MIN), GpuFloat::powi(0.0f64, 0)], [0.0, 1.0]);
}
