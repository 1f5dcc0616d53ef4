//! Floating-point instructions over all lanes.

use half::f16;

use super::float::*;
use super::regs::*;
use crate::ptx::inst::*;

macro_rules! float_test {
    ($r:expr, $i:expr, $cmp:expr, $load:expr) => {{
        let load = $load;
        let (a, b) = (load($r, $i.a), load($r, $i.b));
        let mut t = 0u32;
        for l in 0..LANES {
            let (a, b) = (a[l], b[l]);
            let v = match $cmp {
                Cmp::Eq => a == b,
                Cmp::Ne => a < b || a > b,
                Cmp::Lt => a < b,
                Cmp::Le => a <= b,
                Cmp::Gt => a > b,
                Cmp::Ge => a >= b,
                Cmp::Equ => !(a < b || a > b),
                Cmp::Neu => a != b,
                Cmp::Ltu => !(a >= b),
                Cmp::Leu => !(a > b),
                Cmp::Gtu => !(a <= b),
                Cmp::Geu => !(a < b),
                Cmp::Num => a == a && b == b,
                Cmp::Nan => a != a || b != b,
            };
            t |= (v as u32) << l;
        }
        t
    }};
}
pub(super) use float_test;

#[inline(always)]
pub(super) fn float_binary(r: &mut Regs, i: &Inst, op: FBin, m: FMode, mask: u32) {
    let at = [i.d, i.a, i.b];
    match m.ty {
        FltTy::F32 => match (op, m.round, m.ftz || m.sat) {
            (FBin::Add, Round::Near, false) => map2::<f32, f32, f32>(r, at, mask, |a, b| canonical(a + b)),
            (FBin::Sub, Round::Near, false) => map2::<f32, f32, f32>(r, at, mask, |a, b| canonical(a - b)),
            (FBin::Mul, Round::Near, false) => map2::<f32, f32, f32>(r, at, mask, |a, b| canonical(a * b)),
            (FBin::Min, _, false) => map2::<f32, f32, f32>(r, at, mask, min32),
            (FBin::Max, _, false) => map2::<f32, f32, f32>(r, at, mask, max32),
            _ => map2::<f32, f32, f32>(r, at, mask, |a, b| {
                let (a, b) = if m.ftz { (flush(a), flush(b)) } else { (a, b) };
                let v = match op {
                    FBin::Add => add32(a, b, m.round),
                    FBin::Sub => add32(a, -b, m.round),
                    FBin::Mul => mul32(a, b, m.round),
                    FBin::Div if m.approx => div_approx(a, b),
                    FBin::Div => div32(a, b, m.round),
                    FBin::Min => min32(a, b),
                    FBin::Max => max32(a, b),
                };
                finish(v, m)
            }),
        },
        FltTy::F64 => map2::<f64, f64, f64>(r, at, mask, |a, b| match op {
            FBin::Add => add64(a, b, m.round),
            FBin::Sub => add64(a, -b, m.round),
            FBin::Mul => mul64(a, b, m.round),
            FBin::Div => div64(a, b, m.round),
            FBin::Min => min64(a, b),
            FBin::Max => max64(a, b),
        }),
        FltTy::F16 | FltTy::F16x2 => {
            let f = |a: f16, b: f16| {
                // Sums and products of halves are exact in f64.
                let (a, b) = (a.to_f64(), b.to_f64());
                match op {
                    FBin::Add => a + b,
                    FBin::Sub => a - b,
                    _ => a * b,
                }
            };
            let one = |a: u16, b: u16| finish16(f16::from_f64(f(flush16(a, m.ftz), flush16(b, m.ftz))), m);
            if m.ty == FltTy::F16 {
                map2::<u16, u16, u16>(r, at, mask, one);
            } else {
                map2::<u32, u32, u32>(r, at, mask, |a, b| {
                    one(a as u16, b as u16) as u32 | (one((a >> 16) as u16, (b >> 16) as u16) as u32) << 16
                });
            }
        }
    }
}

#[inline(always)]
fn finish(v: f32, m: FMode) -> f32 {
    let v = if m.ftz { flush(v) } else { v };
    if m.sat { saturate(v) } else { v }
}

pub(super) fn flush16(bits: u16, ftz: bool) -> f16 {
    f16::from_bits(if ftz && bits & 0x7c00 == 0 { bits & 0x8000 } else { bits })
}

fn finish16(v: f16, m: FMode) -> u16 {
    let v = if v.is_nan() { f16::from_bits(0x7fff) } else { flush16(v.to_bits(), m.ftz) };
    if !m.sat {
        return v.to_bits();
    }
    f16::from_f32(saturate(v.to_f32())).to_bits()
}

#[inline(always)]
pub(super) fn fma(r: &mut Regs, i: &Inst, m: FMode, mask: u32) {
    let at = [i.d, i.a, i.b, i.c];
    match m.ty {
        FltTy::F32 if m.round == Round::Near && !m.ftz && !m.sat => {
            map3::<f32, f32, f32, f32>(r, at, mask, |a, b, c| canonical(a.mul_add(b, c)));
        }
        FltTy::F32 => map3::<f32, f32, f32, f32>(r, at, mask, |a, b, c| {
            let (a, b, c) = if m.ftz { (flush(a), flush(b), flush(c)) } else { (a, b, c) };
            finish(fma32(a, b, c, m.round), m)
        }),
        FltTy::F64 => map3::<f64, f64, f64, f64>(r, at, mask, |a, b, c| fma64(a, b, c, m.round)),
        FltTy::F16 | FltTy::F16x2 => {
            let one = |a: u16, b: u16, c: u16| {
                finish16(fma16(flush16(a, m.ftz), flush16(b, m.ftz), flush16(c, m.ftz)), m)
            };
            if m.ty == FltTy::F16 {
                map3::<u16, u16, u16, u16>(r, at, mask, one);
            } else {
                map3::<u32, u32, u32, u32>(r, at, mask, |a, b, c| {
                    let hi = one((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
                    one(a as u16, b as u16, c as u16) as u32 | (hi as u32) << 16
                });
            }
        }
    }
}

#[inline(always)]
pub(super) fn float_unary(r: &mut Regs, i: &Inst, op: FUn, m: FMode, mask: u32) {
    let (d, a) = (i.d, i.a);
    match m.ty {
        FltTy::F32 => map1::<f32, f32>(r, d, a, mask, |x| {
            let x = if m.ftz { flush(x) } else { x };
            let v = match op {
                FUn::Neg => -x,
                FUn::Abs => x.abs(),
                FUn::Sqrt => sqrt32(x, m.round),
                FUn::Rcp => div32(1.0, x, m.round),
                FUn::Rsqrt => canonical((1.0 / (x as f64).sqrt()) as f32),
                FUn::Sin => canonical((x as f64).sin() as f32),
                FUn::Cos => canonical((x as f64).cos() as f32),
                FUn::Lg2 => canonical((x as f64).log2() as f32),
                FUn::Ex2 => canonical((x as f64).exp2() as f32),
                FUn::Tanh => canonical((x as f64).tanh() as f32),
            };
            if m.ftz { flush(v) } else { v }
        }),
        FltTy::F64 => map1::<f64, f64>(r, d, a, mask, |x| match op {
            FUn::Neg => -x,
            FUn::Abs => x.abs(),
            FUn::Sqrt => sqrt64(x, m.round),
            FUn::Rcp => div64(1.0, x, m.round),
            _ => 1.0 / x.sqrt(),
        }),
        FltTy::F16 | FltTy::F16x2 if matches!(op, FUn::Ex2 | FUn::Tanh) => {
            let f = if op == FUn::Ex2 { f64::exp2 } else { f64::tanh };
            let one = |x: u16| u32::from(finish16(f16::from_f64(f(f16::from_bits(x).to_f64())), m));
            map1::<u32, u32>(r, d, a, mask, |x| match m.ty {
                FltTy::F16 => one(x as u16),
                _ => one(x as u16) | one((x >> 16) as u16) << 16,
            });
        }
        FltTy::F16 | FltTy::F16x2 => {
            let low = if op == FUn::Neg { |x: u32| x ^ 0x8000_8000 } else { |x: u32| x & 0x7fff_7fff };
            map1::<u32, u32>(r, d, a, mask, low);
        }
    }
}
