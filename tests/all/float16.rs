//! The 16-bit formats against a definition in f64: every code of every format, and every exponent of f32.

use crate::common;
use half::{bf16, f16};
use kernels_gpu::float16::Decoder;
use pascaline::float16::{EXPONENT_BITS, Float16, Overflow};
use pascaline::{Device, Tensor, ops};

/// (−1)ˢ·2^(e − bias)·(1 + f/2ᵐ), subnormals without the 1, by the definition.
fn value(bits: u32, code: u16) -> f64 {
    let mantissa_bits = 15 - bits;
    let bias = (1i32 << (bits - 1)) - 1;
    let sign = if code & 0x8000 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from((code & 0x7fff) >> mantissa_bits);
    let fraction = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    match exponent {
        0 => sign * fraction * 2f64.powi(1 - bias),
        e if e == (1 << bits) - 1 && fraction == 0.0 => sign * f64::INFINITY,
        e if e == (1 << bits) - 1 => f64::NAN,
        e => sign * (1.0 + fraction) * 2f64.powi(e - bias),
    }
}

/// The nearest code by search among all magnitudes, ties to the even code; what lies at least half a step beyond the
/// largest finite number is infinity.
fn nearest(bits: u32, magnitudes: &[f64], x: f32) -> u16 {
    let sign = if x.is_sign_negative() { 0x8000 } else { 0 };
    let x = f64::from(x).abs();
    let above = magnitudes.partition_point(|&magnitude| magnitude < x);
    let infinity = ((1u16 << bits) - 1) << (15 - bits);
    if above == 0 {
        return sign;
    }
    let below = above as u16 - 1;
    let low = magnitudes[usize::from(below)];
    let high =
        magnitudes.get(above).copied().unwrap_or_else(|| low + (low - magnitudes[usize::from(below) - 1]));
    let code = match (x - low).partial_cmp(&(high - x)) {
        Some(std::cmp::Ordering::Less) => below,
        Some(std::cmp::Ordering::Greater) => below + 1,
        _ => below + below % 2,
    };
    sign | if x.is_infinite() { infinity } else { code.min(infinity) }
}

fn check_format<const E: u32>(samples: &[f32]) {
    let infinity = ((1u16 << E) - 1) << (15 - E);
    let decoder = Decoder::new(E);
    for code in 0..=u16::MAX {
        let (got, want) = (Float16::<E>(code).to_f32(), value(E, code));
        let lower = decoder.both(u32::from(!code) << 16 | u32::from(code))[0];
        assert_eq!(lower.to_bits(), got.to_bits(), "E = {E}: {code:#06x} by a decoder");
        assert!(
            f64::from(got) == want && got.is_sign_negative() == (code >= 0x8000)
                || got.is_nan() && want.is_nan()
        );
        if !got.is_nan() {
            assert_eq!(Float16::<E>::from_f32(got).0, code, "E = {E}: {code:#06x} there and back");
        } else {
            assert!(Float16::<E>::from_f32(got).to_f32().is_nan());
        }
    }
    let magnitudes: Vec<f64> = (0..infinity).map(|code| value(E, code)).collect();
    for &x in samples {
        let (plain, saturating) = (Float16::<E>::from_f32(x), Float16::<E>::from_f32_saturating(x));
        if x.is_nan() {
            assert!(plain.to_f32().is_nan() && saturating.to_f32().is_nan());
            continue;
        }
        let want = nearest(E, &magnitudes, x);
        assert_eq!(plain.0, want, "E = {E}: {x:e}");
        let largest = if want & 0x7fff == infinity { want - 1 } else { want };
        assert_eq!(saturating.0, largest, "E = {E}: {x:e}, saturating");
    }
}

/// Every exponent and sign of f32 with fractions at, and one beside, the places where roundings of 7 to 13 mantissa bits
/// tie, and some others.
fn samples() -> Vec<f32> {
    let mut samples = Vec::new();
    for exponent in 0..=255u32 {
        let mut fractions = vec![0, 1, 0x7fffff, 0x400000, 0x2aaaaa, 0x555555, 0x123456];
        for bit in 8..20 {
            let half = 1u32 << bit;
            for odd in [0, 2 * half, 6 * half] {
                fractions.extend([
                    half + odd - 1,
                    half + odd,
                    half + odd + 1,
                    0x800000 - half,
                    0x800000 - half - 1,
                ]);
            }
        }
        for fraction in fractions {
            for sign in [0, 1u32 << 31] {
                samples.push(f32::from_bits(sign | exponent << 23 | fraction & 0x7fffff));
            }
        }
    }
    samples
}

#[test]
fn every_code_and_every_exponent() {
    let samples = samples();
    check_format::<2>(&samples);
    check_format::<3>(&samples);
    check_format::<4>(&samples);
    check_format::<5>(&samples);
    check_format::<6>(&samples);
    check_format::<7>(&samples);
    check_format::<8>(&samples);
}

#[test]
fn five_bits_are_ieee_half_and_eight_bfloat16() {
    for x in samples() {
        assert_eq!(Float16::<5>::from_f32(x).0, f16::from_f32_const(x).to_bits(), "{x:e}");
        assert_eq!(Float16::<8>::from_f32(x).0, bf16::from_f32_const(x).to_bits(), "{x:e}");
    }
    for code in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(code), bf16::from_bits(code));
        if !half.is_nan() {
            assert_eq!(Float16::<5>(code).to_f32().to_bits(), half.to_f32_const().to_bits());
        }
        assert_eq!(Float16::<8>(code).to_f32().to_bits(), u32::from(code) << 16);
        assert_eq!(Float16::<8>(code).to_f32().is_nan(), brain.is_nan());
    }
}

#[test]
fn the_gpu_gives_the_same_codes() -> pascaline::Result<()> {
    let device = common::cuda_device();
    let mut samples = samples();
    samples.truncate(samples.len() / 8 * 8 - 3); // the last thread has fewer than eight
    let on_cpu = Tensor::from_slice(&samples, [samples.len()], &Device::Cpu)?;
    let on_gpu = on_cpu.to_device(&device)?;
    for bits in EXPONENT_BITS {
        for overflow in [Overflow::Infinity, Overflow::Saturate] {
            let want = ops::float16_encode(&on_cpu, bits, overflow)?;
            let got = ops::float16_encode(&on_gpu, bits, overflow)?;
            assert_eq!(got.to_codes()?, want.to_codes()?, "E = {bits}");
            let (got, want) =
                (ops::float16_decode(&got)?.to_vec::<f32>()?, ops::float16_decode(&want)?.to_vec::<f32>()?);
            assert!(got.iter().zip(&want).all(|(got, want)| got.to_bits() == want.to_bits()), "E = {bits}");
        }
    }
    Ok(())
}

/// A format holds small whole numbers exactly, so a product with them is exact: for every format, one row, several, many,
/// and dimensions that are no multiple of a vector load.
#[test]
fn products_with_weights_in_every_format() -> pascaline::Result<()> {
    for device in [Device::Cpu, common::cuda_device()] {
        for bits in EXPONENT_BITS {
            for (m, n, k) in [
                (0, 3, 4),
                (1, 1, 1),
                (1, 68, 264),
                (1, 7, 33),
                (5, 12, 96),
                (8, 8, 40),
                (9, 64, 32),
                (70, 132, 100),
            ] {
                // quarters up to 1, which the narrowest format has too
                let x: Vec<f32> = (0..m * k).map(|i| ((i * 7 + i / k) % 9) as f32 - 4.0).collect();
                let w: Vec<f32> = (0..n * k).map(|i| (((i * 5 + i / k) % 9) as f32 - 4.0) / 4.0).collect();
                let codes = Tensor::from_slice(&w, [n, k], &device)?;
                let codes = ops::float16_encode(&codes, bits, Overflow::Infinity)?;
                let got = ops::float16_matmul(&Tensor::from_slice(&x, [m, k], &device)?, &codes)?;
                assert_eq!(got.dims(), [m, n]);
                let got = got.to_vec::<f32>()?;
                for (at, got) in got.iter().enumerate() {
                    let (row, column) = (&x[at / n * k..][..k], &w[at % n * k..][..k]);
                    let want: f32 = row.iter().zip(column).map(|(x, w)| x * w).sum();
                    assert_eq!(*got, want, "E = {bits}, {m} × {n} × {k}, element {at}");
                }
            }
        }
    }
    let w =
        ops::float16_encode(&Tensor::from_slice(&[1.0f32; 8], [2, 4], &Device::Cpu)?, 8, Overflow::Infinity)?;
    assert!(ops::float16_matmul(&Tensor::from_slice(&[1.0f32; 3], [1, 3], &Device::Cpu)?, &w).is_err());
    Ok(())
}

#[test]
fn other_widths_are_refused() {
    let x = Tensor::from_slice(&[1.0f32], [1], &Device::Cpu).unwrap();
    assert!(ops::float16_encode(&x, 1, Overflow::Infinity).is_err());
    assert!(ops::float16_encode(&x, 9, Overflow::Infinity).is_err());
}
