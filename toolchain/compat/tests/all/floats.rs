//! `GpuFloat` on the virtual GPU has the bits that the same code has on the host; the approximations of `intrinsics` are within
//! their bounds there, where single instructions are modelled as correctly rounded.

#[path = "../../gpu/src/float_list.rs"]
mod float_list;

use crate::common::{PLAIN, Result, extent, load_plain};
use cust::memory::DeviceCopy;
use cust::prelude::*;
use std::sync::LazyLock;

#[test]
fn exact_functions_are_single_instructions() {
    let Some(text) = PLAIN.text() else { return };
    let exact = ["sqrt.rn", "fma.rn", "cvt.rmi", "cvt.rpi", "cvt.rzi", "cvt.rni", "min", "max"];
    for instruction in exact.iter().flat_map(|name| [format!("\t{name}.f32"), format!("\t{name}.f64")]) {
        assert!(text.contains(&instruction), "no{instruction}");
    }
}

#[test]
fn functions_of_f64_have_the_hosts_bits() -> Result<()> {
    let (x, y, n) = &*ARGUMENTS;
    same_bits("floats_f64", (x, y, n), |x, y, n| float_list::all(x, y, n).map(f64::to_bits))
}

#[test]
fn functions_of_f32_have_the_hosts_bits() -> Result<()> {
    let (x, y, n) = &*ARGUMENTS;
    let [x, y] = [x, y].map(|x| x.iter().map(|&x| x as f32).collect::<Vec<_>>());
    same_bits("floats_f32", (&x, &y, n), |x, y, n| {
        float_list::all(x, y, n).map(|value| value.to_bits().into())
    })
}

static ARGUMENTS: LazyLock<(Vec<f64>, Vec<f64>, Vec<i32>)> = LazyLock::new(arguments);

/// Special values with each other, and random ones over many orders of magnitude.
fn arguments() -> (Vec<f64>, Vec<f64>, Vec<i32>) {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.5,
        -3.5,
        0.499_999_97,
        1e-45,
        1e-310,
        -1e-320,
        1.2e-38,
        1e10,
        -1e10,
        3e38,
        1e300,
        -1e300,
        8_388_609.0,
        4_503_599_627_370_497.5,
        88.8,
        710.0,
        -104.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let mut state = 1u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut pairs: Vec<(f64, f64)> =
        special.iter().flat_map(|&x| special.iter().map(move |&y| (x, y))).collect();
    let count = if extent::all() { 20_000 } else { 1500 };
    if !extent::all() {
        extent::left_out("18,500 pairs of arguments of the functions of floats");
    }
    // a random significand and sign, and an exponent from −60 to 60, −8 to 7 or anywhere
    let mut number = |range: u64| {
        let bits = random();
        let exponent = 1023 - range / 2 + (bits >> 52) % range;
        f64::from_bits(bits & (1 << 63 | ((1 << 52) - 1)) | exponent << 52)
    };
    for i in 0..count {
        let range = [120, 16, 2046][i % 3];
        pairs.push((number(range), number(range)));
    }
    let n = (0..pairs.len()).map(|i| [0, 1, -1, 2, 3, -5, 17, 1000, i32::MAX, i32::MIN][i % 10]).collect();
    (pairs.iter().map(|pair| pair.0).collect(), pairs.iter().map(|pair| pair.1).collect(), n)
}

/// Compares every function at all arguments, by the bits; a NaN is a NaN.
fn same_bits<T: Default + DeviceCopy + Into<f64>, const N: usize>(
    kernel: &str,
    (x, y, n): (&[T], &[T], &[i32]),
    host: impl Fn(T, T, i32) -> [u64; N],
) -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let len = x.len();
    let nowhere = vec![x[0]; N * len];
    let results = DeviceBuffer::from_slice(&nowhere)?;
    let (device_x, device_y, device_n) =
        (DeviceBuffer::from_slice(x)?, DeviceBuffer::from_slice(y)?, DeviceBuffer::from_slice(n)?);
    let function = module.get_function(kernel)?;
    // SAFETY: three slices of `len` elements, and N results for each.
    unsafe {
        launch!(function<<<len.div_ceil(64) as u32, 64, 0, stream>>>(
            device_x.as_device_ptr(), len, device_y.as_device_ptr(), len, device_n.as_device_ptr(), len,
            results.as_device_ptr()
        ))?;
    }
    stream.synchronize()?;
    let results = results.as_host_vec()?;
    for i in 0..len {
        let wanted = host(x[i], y[i], n[i]);
        for (f, name) in float_list::NAMES.iter().enumerate() {
            let got: f64 = results[f * len + i].into();
            let wanted = if size_of::<T>() == 4 {
                f32::from_bits(wanted[f] as u32).into()
            } else {
                f64::from_bits(wanted[f])
            };
            let (x, y): (f64, f64) = (x[i].into(), y[i].into());
            assert!(
                got.to_bits() == wanted.to_bits()
                    || got.is_nan() && wanted.is_nan()
                    || ["min", "max"].contains(name) && got == wanted, // of zeros either
                "{kernel}, {name} of x = {x:e}, y = {y:e}, n = {}: {got:e}, not {wanted:e}",
                n[i]
            );
        }
    }
    Ok(())
}

/// Against f64, each with its bound: absolute, or in parts of the result.
#[test]
fn approximations_are_within_their_bounds() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let x: Vec<f32> = (1..2000).map(|i| i as f32 * 0.003_9 - 3.0).collect();
    let y: Vec<f32> = x.iter().map(|x| 1.5 - x * 0.5).collect();
    let len = x.len();
    let results = DeviceBuffer::from_slice(&vec![0.0f32; 17 * len])?;
    let (device_x, device_y) = (DeviceBuffer::from_slice(&x)?, DeviceBuffer::from_slice(&y)?);
    // SAFETY: two slices of `len` elements, and 17 results for each.
    unsafe {
        launch!(module.approximations<<<len.div_ceil(64) as u32, 64, 0, stream>>>(
            device_x.as_device_ptr(), len, device_y.as_device_ptr(), len, results.as_device_ptr()
        ))?;
    }
    stream.synchronize()?;
    let results = results.as_host_vec()?;
    let (ulp, absolute) = (2f64.powi(-23), 2f64.powf(-20.9));
    for i in 0..len {
        let (x, y) = (f64::from(x[i]), f64::from(y[i]));
        let near_pole = x.cos().abs() < 0.05 || x.abs() > 3.1;
        // the exact value, the bound in parts of it, the absolute bound
        let wanted = [
            (x.exp2(), 2.0 * ulp, 0.0),
            (x.log2(), 2.0 * ulp, 2.0 * ulp),
            (x.sin(), 0.0, if x.abs() < 3.1 { absolute } else { 4.0 * absolute }),
            (x.cos(), 0.0, if x.abs() < 3.1 { absolute } else { 4.0 * absolute }),
            (x.sqrt().recip(), 2f64.powf(-22.4), 0.0),
            (x.sqrt(), ulp, 0.0),
            (x.recip(), ulp, 0.0),
            (x.recip(), 0.5 * ulp, 0.0),
            (x / y, 2.0 * ulp, 0.0),
            (x.clamp(0.0, 1.0), 0.0, 0.0),
            (x.sin() - x.cos(), 0.0, 8.0 * absolute),
            (x.tan(), if near_pole { 1.0 } else { 60.0 * absolute }, absolute),
            (x.exp(), (2.0 + 1.16 * x.abs()) * ulp, 0.0),
            (10f64.powf(x), (2.0 + 2.95 * x.abs()) * ulp, 0.0),
            (x.ln() - x.log10(), 4.0 * ulp, 4.0 * ulp),
            (x.powf(y), 40.0 * ulp, 0.0),
            (x.tanh(), 4.0 * ulp, 0.0),
        ];
        for (f, (wanted, relative, absolute)) in wanted.into_iter().enumerate() {
            let got = f64::from(results[f * len + i]);
            if f == 15 && x < 0.0 {
                continue; // a power of a negative number is NaN
            }
            let close = (got - wanted).abs() <= relative * wanted.abs() + absolute;
            assert!(
                close || got.is_nan() && wanted.is_nan(),
                "approximation {f} of {x} and {y}: {got:e}, not {wanted:e}"
            );
        }
    }
    Ok(())
}
