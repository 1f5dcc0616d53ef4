//! Floating-point arithmetic as sm_61 does it: exact where PTX says so, canonical NaNs, flush to zero.
//!
//! Directed rounding works on an exact pair, the rounded result and the sign of the rounding error: see [`directed`].

use crate::ptx::inst::Round;

/// The NaN that f32 arithmetic gives on the hardware.
pub(crate) const NAN32: u32 = 0x7fff_ffff;

#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    if x.to_bits() & 0x7f80_0000 == 0 { f32::from_bits(x.to_bits() & 0x8000_0000) } else { x }
}

/// Works on the bits: the optimiser may treat all NaNs as equal and drop a selection between floats.
#[inline(always)]
pub(crate) fn canonical(x: f32) -> f32 {
    let b = x.to_bits();
    f32::from_bits(if b & 0x7fff_ffff > 0x7f80_0000 { NAN32 } else { b })
}

/// `.sat`: to [0, 1], NaN to 0.
#[inline(always)]
pub(crate) fn saturate(x: f32) -> f32 {
    if x > 0.0 { if x < 1.0 { x } else { 1.0 } } else { 0.0 }
}

#[inline(always)]
pub(crate) fn min32(a: f32, b: f32) -> f32 {
    // -0 is less than +0; a NaN loses against a number.
    if a.is_nan() {
        canonical(b)
    } else if b.is_nan() || a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

#[inline(always)]
pub(crate) fn max32(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        canonical(b)
    } else if b.is_nan() || a > b || (a == b && a.is_sign_positive()) {
        a
    } else {
        b
    }
}

pub(crate) fn min64(a: f64, b: f64) -> f64 {
    if a.is_nan() || (!b.is_nan() && (b < a || (a == b && b.is_sign_negative()))) { b } else { a }
}

pub(crate) fn max64(a: f64, b: f64) -> f64 {
    if a.is_nan() || (!b.is_nan() && (b > a || (a == b && b.is_sign_positive()))) { b } else { a }
}

/// Exact sum of two doubles: rounded sum and the error. Source: Knuth's two-sum.
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// Rounds the exact value hi + lo (|lo| at most half an ulp of hi) to f32 in any direction.
fn to_f32(hi: f64, lo: f64, round: Round) -> f32 {
    if !hi.is_finite() || (hi == 0.0 && lo == 0.0) {
        return hi as f32;
    }
    if round == Round::Near {
        return to_odd(hi, lo) as f32;
    }
    let near = hi as f32;
    let error = if near.is_infinite() { -(near.signum() as f64) } else { (hi - near as f64) + lo };
    let error = if error == 0.0 { lo } else { error };
    directed(near, error, hi, round)
}

/// hi + lo rounded to odd, so that a later rounding to a narrower format is right.
/// Source: Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums".
pub(crate) fn to_odd(hi: f64, lo: f64) -> f64 {
    if lo == 0.0 || hi.to_bits() & 1 == 1 || !hi.is_finite() {
        return hi;
    }
    let away = (lo > 0.0) == (hi > 0.0);
    f64::from_bits(if away { hi.to_bits() + 1 } else { hi.to_bits() - 1 })
}

/// From the nearest result and the sign of (exact - nearest) to the wanted direction.
fn directed(near: f32, error: f64, exact: f64, round: Round) -> f32 {
    let up = match round {
        Round::Near => return near,
        Round::Up => true,
        Round::Down => false,
        Round::Zero => exact < 0.0,
    };
    if up && error > 0.0 {
        near.next_up()
    } else if !up && error < 0.0 {
        near.next_down()
    } else {
        near
    }
}

/// An exact zero sum is -0 when rounding down, unless both terms are +0.
fn zero_sum(a: f64, b: f64, s: f64, round: Round) -> f64 {
    if s == 0.0 && round == Round::Down && (a.is_sign_negative() || b.is_sign_negative()) { -0.0 } else { s }
}

pub(crate) fn add32(a: f32, b: f32, round: Round) -> f32 {
    if round == Round::Near {
        return canonical(a + b);
    }
    let (s, e) = two_sum(a as f64, b as f64);
    canonical(to_f32(zero_sum(a as f64, b as f64, s, round), e, round))
}

pub(crate) fn mul32(a: f32, b: f32, round: Round) -> f32 {
    if round == Round::Near {
        return canonical(a * b);
    }
    // 24 × 24 bits fit in 53, and the exponent fits too: exact.
    canonical(to_f32(a as f64 * b as f64, 0.0, round))
}

pub(crate) fn fma32(a: f32, b: f32, c: f32, round: Round) -> f32 {
    if round == Round::Near {
        return canonical(a.mul_add(b, c));
    }
    let p = a as f64 * b as f64;
    let (s, e) = two_sum(p, c as f64);
    if !s.is_finite() {
        return canonical(s as f32);
    }
    canonical(to_f32(zero_sum(p, c as f64, s, round), e, round))
}

pub(crate) fn div32(a: f32, b: f32, round: Round) -> f32 {
    let q = a as f64 / b as f64;
    if round == Round::Near {
        return canonical(a / b);
    }
    if !q.is_finite() || q == 0.0 || b.is_infinite() {
        return canonical(q as f32);
    }
    // The remainder's sign against the divisor's tells which side of q the quotient lies on.
    let r = (-q).mul_add(b as f64, a as f64);
    canonical(to_f32(q, if b < 0.0 { -r } else { r } * f64::MIN_POSITIVE.sqrt(), round))
}

pub(crate) fn sqrt32(a: f32, round: Round) -> f32 {
    if round == Round::Near || a.is_nan() || a <= 0.0 || a.is_infinite() {
        return canonical(a.sqrt());
    }
    let q = (a as f64).sqrt();
    let r = (-q).mul_add(q, a as f64);
    canonical(to_f32(q, r * f64::MIN_POSITIVE.sqrt(), round))
}

fn directed64(near: f64, error: f64, round: Round) -> f64 {
    if near.is_nan() || error == 0.0 || error.is_nan() {
        return near;
    }
    let up = match round {
        Round::Near => return near,
        Round::Up => true,
        Round::Down => false,
        Round::Zero => near < 0.0,
    };
    match (up, error > 0.0) {
        (true, true) => near.next_up(),
        (false, false) => near.next_down(),
        _ => near,
    }
}

/// Finite operands whose result overflowed: the exact value lies below the infinity.
fn overflow_error(result: f64, finite: bool, error: f64) -> f64 {
    if result.is_infinite() && finite { -result.signum() } else { error }
}

pub(crate) fn add64(a: f64, b: f64, round: Round) -> f64 {
    let (s, e) = two_sum(a, b);
    if round == Round::Near {
        return s;
    }
    let e = overflow_error(s, a.is_finite() && b.is_finite(), e);
    directed64(zero_sum(a, b, s, round), e, round)
}

/// a · b + c. Directed modes are exact unless the product's error underflows (|a·b| below 2^-968).
pub(crate) fn fma64(a: f64, b: f64, c: f64, round: Round) -> f64 {
    let r = a.mul_add(b, c);
    if round == Round::Near {
        return r;
    }
    let p = a * b;
    let pe = a.mul_add(b, -p);
    // r - exact, summed from the largest: (p - r) + c + pe.
    let (s, e1) = two_sum(p, -r);
    let (s, e2) = two_sum(s, c);
    let error = s + (e1 + e2 + pe);
    let finite = a.is_finite() && b.is_finite() && c.is_finite();
    directed64(zero_sum(p, c, r, round), overflow_error(r, finite, error), round)
}

pub(crate) fn mul64(a: f64, b: f64, round: Round) -> f64 {
    let p = a * b;
    if round == Round::Near {
        return p;
    }
    let e = overflow_error(p, a.is_finite() && b.is_finite(), a.mul_add(b, -p));
    directed64(p, e, round)
}

pub(crate) fn div64(a: f64, b: f64, round: Round) -> f64 {
    let q = a / b;
    if round == Round::Near || !q.is_finite() || b.is_infinite() {
        return q;
    }
    let r = (-q).mul_add(b, a);
    directed64(q, if b < 0.0 { -r } else { r }, round)
}

pub(crate) fn sqrt64(a: f64, round: Round) -> f64 {
    let q = a.sqrt();
    if round == Round::Near || !q.is_finite() || q == 0.0 {
        return q;
    }
    directed64(q, (-q).mul_add(q, a), round)
}

/// `div.approx.f32`: for divisors above 2^126 the hardware's reciprocal is zero.
pub(crate) fn div_approx(a: f32, b: f32) -> f32 {
    let huge = b.abs() > f32::from_bits(0x7e80_0000) && b.is_finite();
    match huge {
        true if a.is_infinite() => f32::from_bits(NAN32),
        true if !a.is_nan() => f32::from_bits((a.to_bits() ^ b.to_bits()) & 0x8000_0000),
        _ => canonical(a / b),
    }
}

/// Half-precision a · b + c with one rounding.
pub(crate) fn fma16(a: half::f16, b: half::f16, c: half::f16) -> half::f16 {
    let (s, e) = two_sum(a.to_f64() * b.to_f64(), c.to_f64());
    if s.is_nan() { half::f16::from_bits(0x7fff) } else { half::f16::from_f64(to_odd(s, e)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: f32 = 1e-30;

    #[test]
    fn directed_addition_brackets_the_exact_sum() {
        assert_eq!(add32(1.0, TINY, Round::Near), 1.0);
        assert_eq!(add32(1.0, TINY, Round::Up), 1.0f32.next_up());
        assert_eq!(add32(1.0, TINY, Round::Down), 1.0);
        assert_eq!(add32(-1.0, -TINY, Round::Zero), -1.0);
        assert_eq!(add32(1.0, -TINY, Round::Zero), 1.0f32.next_down());
        assert_eq!(add32(f32::MAX, f32::MAX, Round::Zero), f32::MAX);
        assert_eq!(add32(1.0, -1.0, Round::Down).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn directed_quotients_and_roots() {
        let third = 1.0f32 / 3.0; // nearest lies above
        assert_eq!(div32(1.0, 3.0, Round::Down), third.next_down());
        assert_eq!(div32(1.0, 3.0, Round::Up), third);
        assert_eq!(div32(6.0, 3.0, Round::Up), 2.0);
        assert_eq!(sqrt32(2.0, Round::Up), 2f32.sqrt().next_up());
        assert_eq!(sqrt32(4.0, Round::Up), 2.0);
        assert_eq!(div64(1.0, 3.0, Round::Up), (1.0f64 / 3.0).next_up());
        assert_eq!(fma64(1.0, 1.0, 1e-30, Round::Up), 1f64.next_up());
        assert_eq!(mul64(f64::MAX, 2.0, Round::Zero), f64::MAX);
    }

    #[test]
    fn min_max_with_zeroes_and_nan() {
        assert_eq!(min32(0.0, -0.0).to_bits(), 0x8000_0000);
        assert_eq!(max32(-0.0, 0.0).to_bits(), 0);
        assert_eq!(min32(f32::NAN, 2.0), 2.0);
        assert_eq!(max32(f32::NAN, f32::NAN).to_bits(), NAN32);
    }

    #[test]
    fn half_fma_rounds_once() {
        let h = half::f16::from_f64;
        // 1 + 2^-11 is a tie; the tiny addend breaks it upwards.
        let r = fma16(h(2f64.powi(-24)), h(1.0), h(1.0));
        assert_eq!(r.to_f64(), 1.0);
        assert_eq!(fma16(h(1.0), h(2f64.powi(-11)), h(1.0)).to_f64(), 1.0);
        // (1 + 2^-10)² - 1 = 2^-9 + 2^-20, a tie that goes to the even 2^-9.
        assert_eq!(fma16(h(1.0009765625), h(1.0009765625), h(-1.0)).to_f64(), 2f64.powi(-9));
    }
}
