//! Conversion to the 16-bit formats and back.

use super::held::Held;
use super::{About, Case, HostTensor, Purpose, Tolerance, data};
use pascaline::float16::{EXPONENT_BITS, Float16Tensor, Overflow};
use pascaline::{DType, Result, Tensor, TensorMut, ops};

struct Conversion {
    count: usize,
    exponent_bits: u32,
    overflow: Overflow,
    purpose: Purpose,
    /// The codes, if the case is decoding alone.
    held: Option<Held<Float16Tensor>>,
}

impl Conversion {
    fn encode(&self, x: &Tensor) -> Result<Float16Tensor> {
        ops::float16_encode(x, self.exponent_bits, self.overflow)
    }
}

impl Case for Conversion {
    fn about(&self) -> About {
        let Self { count, exponent_bits, .. } = self;
        let op = if self.held.is_some() { "decode" } else { "round_trip" };
        let overflow = if self.overflow == Overflow::Saturate { ",saturating" } else { "" };
        let id = format!("float16_{op}_e{exponent_bits}/n={count}{overflow}");
        About {
            op: "float16",
            id,
            purpose: self.purpose,
            output: ([self.count].into(), DType::F32),
            tolerance: Tolerance::EXACT,
        }
    }

    fn inputs(&self) -> Vec<HostTensor> {
        let mut x = data::outliers(&self.id(), "x", [self.count], DType::F32);
        // from subnormals of the narrow formats to overflow
        for (i, value) in x.values.iter_mut().enumerate() {
            *value *= ((i % 41) as f32 - 20.0).exp2();
        }
        vec![x]
    }

    fn run(&self, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
        let (device, encode) = (y.device(), || self.encode(&inputs[0]));
        match &self.held {
            Some(held) => held.with(&device, encode, |codes| ops::float16_decode_into(y, codes)),
            None => ops::float16_decode_into(y, &encode()?),
        }
    }

    fn reference(&self, inputs: &[HostTensor], rows: &[usize]) -> Vec<f64> {
        let x = rows.iter().flat_map(|&r| inputs[0].row(r));
        x.map(|&x| nearest(f64::from(x), self.exponent_bits, self.overflow)).collect()
    }

    fn bytes(&self, _: &[HostTensor]) -> f64 {
        self.count as f64 * if self.held.is_some() { 6.0 } else { 12.0 }
    }
}

/// The nearest number with these exponent bits, ties to even, by the definition of the format.
pub(super) fn nearest(x: f64, exponent_bits: u32, overflow: Overflow) -> f64 {
    if x == 0.0 {
        return x;
    }
    let (bias, mantissa_bits) = ((1 << (exponent_bits - 1)) - 1, 15 - exponent_bits as i32);
    // of the largest power of two not above x, or less where x is smaller than all normal numbers
    let exponent = (x.abs().to_bits() >> 52) as i32 - 1023;
    let unit = power_of_two(exponent.max(1 - bias) - mantissa_bits);
    let rounded = (x / unit).round_ties_even() * unit;
    let largest = power_of_two(bias) * (2.0 - power_of_two(-mantissa_bits));
    match overflow {
        _ if rounded.abs() <= largest => rounded,
        Overflow::Infinity => f64::INFINITY.copysign(x),
        Overflow::Saturate => largest.copysign(x),
    }
}

/// 2ⁿ, which must be a normal number.
fn power_of_two(n: i32) -> f64 {
    f64::from_bits(((n + 1023) as u64) << 52)
}

/// The value of a code, by the definition: (−1)ˢ·2^(e − bias)·(1 + f/2ᵐ), subnormals without the 1.
pub(super) fn value(code: u16, exponent_bits: u32) -> f64 {
    let (bias, mantissa_bits) = ((1 << (exponent_bits - 1)) - 1, 15 - exponent_bits);
    let exponent = i32::from((code & 0x7fff) >> mantissa_bits);
    let fraction = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    let magnitude = match exponent {
        0 => fraction * power_of_two(1 - bias),
        e if e < (1 << exponent_bits) - 1 => (1.0 + fraction) * power_of_two(e - bias),
        _ if fraction == 0.0 => f64::INFINITY,
        _ => f64::NAN,
    };
    if code & 0x8000 == 0 { magnitude } else { -magnitude }
}

pub fn cases() -> Vec<Box<dyn Case>> {
    let mut cases = Vec::new();
    for exponent_bits in EXPONENT_BITS {
        let mut add = |count, overflow, purpose, held: bool| {
            let held = held.then(Held::default);
            let case = Conversion { count, exponent_bits, overflow, purpose, held };
            cases.push(Box::new(case) as Box<dyn Case>);
        };
        for count in [0, 1, 7, 8, 2049] {
            add(count, Overflow::Infinity, Purpose::Test, false);
        }
        add(333, Overflow::Saturate, Purpose::Test, false);
        add(333, Overflow::Infinity, Purpose::Test, true);
        if [4, 5, 8].contains(&exponent_bits) {
            add(1 << 25, Overflow::Infinity, Purpose::Bench, false);
            add(1 << 25, Overflow::Infinity, Purpose::Bench, true);
        }
    }
    cases
}
