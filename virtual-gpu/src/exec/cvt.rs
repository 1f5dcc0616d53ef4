//! `cvt` in all its forms.

use half::f16;

use super::float::{canonical, flush, saturate};
use super::regs::*;
use crate::ptx::inst::*;

#[inline(always)]
pub(super) fn execute(r: &mut Regs, i: &Inst, m: CvtMode, mask: u32) {
    let simple = (m.sat || m.ftz, m.to_wide, m.from_wide);
    match (m.from, m.to, m.round, simple) {
        // The common ones, as whole rows.
        (Num::U32, Num::U64, _, (false, true, false)) => map1::<u32, u64>(r, i.d, i.a, mask, |x| x as u64),
        (Num::S32, Num::S64, _, (false, true, false)) => map1::<i32, i64>(r, i.d, i.a, mask, |x| x as i64),
        (Num::U64 | Num::S64, Num::U32 | Num::S32, _, (false, false, true)) => {
            map1::<u64, u32>(r, i.d, i.a, mask, |x| x as u32)
        }
        (Num::F16, Num::F32, _, (false, false, false)) => {
            map1::<u16, f32>(r, i.d, i.a, mask, |x| canonical(f16::from_bits(x).to_f32()))
        }
        (Num::U32, Num::F32, Round::Near, (false, false, false)) => {
            map1::<u32, f32>(r, i.d, i.a, mask, |x| x as f32)
        }
        (Num::S32, Num::F32, Round::Near, (false, false, false)) => {
            map1::<i32, f32>(r, i.d, i.a, mask, |x| x as f32)
        }
        _ => {
            let source = load_wide(r, i.a, m.from_wide);
            let out = std::array::from_fn(|l| convert(source[l], m));
            store_wide(r, i.d, m.to_wide, &out, mask);
        }
    }
}

/// A source register's bits to the destination register's, extended to its width.
pub(crate) fn convert(bits: u64, m: CvtMode) -> u64 {
    if m.from.float() { from_float(bits, m) } else { from_int(bits, m) }
}

fn sign_extend(v: u64, bits: u32) -> i64 {
    ((v << (64 - bits)) as i64) >> (64 - bits)
}

fn from_int(bits: u64, m: CvtMode) -> u64 {
    let n = m.from.bits();
    let value: i128 =
        if m.from.signed() { sign_extend(bits, n) as i128 } else { (bits & (u64::MAX >> (64 - n))) as i128 };
    match m.to {
        Num::F16 => f16_bits(round_int_to(value, 11, m.round), m) as u64,
        Num::F32 => {
            let v = round_int_to(value, 24, m.round) as f32;
            (if m.sat { saturate(v) } else { v }).to_bits() as u64
        }
        Num::F64 => {
            let v = round_int_to(value, 53, m.round);
            (if m.sat { v.clamp(0.0, 1.0) } else { v }).to_bits()
        }
        _ => fit(value, m.to, m.sat),
    }
}

/// An integer in the destination type: saturated, or truncated and extended.
fn fit(value: i128, to: Num, sat: bool) -> u64 {
    let n = to.bits();
    let (least, most) =
        if to.signed() { (-(1i128 << (n - 1)), (1 << (n - 1)) - 1) } else { (0, (1i128 << n) - 1) };
    let v = if sat { value.clamp(least, most) } else { value } as u64;
    if to.signed() { sign_extend(v, n) as u64 } else { v & (u64::MAX >> (64 - n)) }
}

/// Rounds an integer to `digits` significant bits, as a double (which then holds it exactly).
fn round_int_to(value: i128, digits: u32, round: Round) -> f64 {
    let magnitude = value.unsigned_abs();
    let drop = (128 - magnitude.leading_zeros()).saturating_sub(digits);
    if drop == 0 {
        return value as f64;
    }
    let (kept, rest) = (magnitude >> drop, magnitude & ((1 << drop) - 1));
    let half = 1u128 << (drop - 1);
    let negative = value < 0;
    let up = match round {
        Round::Near => rest > half || (rest == half && kept & 1 == 1),
        Round::Zero => false,
        Round::Up => rest != 0 && !negative,
        Round::Down => rest != 0 && negative,
    };
    let rounded = ((kept + up as u128) << drop) as f64;
    if negative { -rounded } else { rounded }
}

/// A double to half in any direction. Doubles that come here are exact values.
fn f16_bits(x: f64, m: CvtMode) -> u16 {
    if x.is_nan() {
        return if m.sat { 0 } else { 0x7fff };
    }
    let x = if m.sat { x.clamp(0.0, 1.0) } else { x };
    let near = f16::from_f64(x);
    let error = x - near.to_f64();
    let up = match m.round {
        Round::Near => return near.to_bits(),
        Round::Up => true,
        Round::Down => false,
        Round::Zero => x < 0.0,
    };
    if !(up && error > 0.0 || !up && error < 0.0) {
        return near.to_bits();
    }
    // One step up or down in the ordered bit patterns. The value nearest to a zero has its sign, and is stepped away from it.
    let b = near.to_bits();
    let away = up != (b & 0x8000 != 0);
    if away { b + 1 } else { b - 1 }
}

fn from_float(bits: u64, m: CvtMode) -> u64 {
    // Everything fits in a double exactly.
    let x = match m.from {
        Num::F16 => f16::from_bits(bits as u16).to_f64(),
        Num::F32 => {
            let x = f32::from_bits(bits as u32);
            (if m.ftz { flush(x) } else { x }) as f64
        }
        _ => f64::from_bits(bits),
    };
    let x = if m.int { integral(x, m.round) } else { x };
    match m.to {
        Num::F16 => f16_bits(x, m) as u64,
        Num::F32 => {
            let v = narrow(x, m.round);
            let v = if m.ftz { flush(v) } else { v };
            let v = if m.sat { saturate(v) } else { canonical(v) };
            v.to_bits() as u64
        }
        Num::F64 => {
            let v = if m.sat { if x > 0.0 { x.min(1.0) } else { 0.0 } } else { x };
            v.to_bits()
        }
        // A NaN becomes 0, or the top bit where a 64-bit type is involved; everything else saturates.
        _ if x.is_nan() => match m.from == Num::F64 || m.to.bits() == 64 {
            true => fit(1 << (m.to.bits() - 1), m.to, false),
            false => 0,
        },
        _ => fit(
            if x.abs() < 2f64.powi(100) { x as i128 } else { (x.signum() * 2f64.powi(100)) as i128 },
            m.to,
            true,
        ),
    }
}

fn integral(x: f64, round: Round) -> f64 {
    match round {
        Round::Near => x.round_ties_even(),
        Round::Zero => x.trunc(),
        Round::Down => x.floor(),
        Round::Up => x.ceil(),
    }
}

fn narrow(x: f64, round: Round) -> f32 {
    let near = x as f32;
    let error = x - near as f64;
    match round {
        Round::Up if error > 0.0 => near.next_up(),
        Round::Down if error < 0.0 => near.next_down(),
        Round::Zero if x > 0.0 && error < 0.0 => near.next_down(),
        Round::Zero if x < 0.0 && error > 0.0 => near.next_up(),
        _ => near,
    }
}
