//! Comparisons, selections, conversions.

use super::super::inst::*;
use super::super::operand::Arg;
use super::{Decoder, Result, Ty};
use crate::counters::Class;

impl<'a> Decoder<'a, '_, '_> {
    pub(super) fn compare(&mut self) -> Result<()> {
        match self.base {
            "selp" => {
                let ty = self.ty()?;
                let bits = ty.bits();
                self.count(4..=4)?;
                if !matches!(bits, 16 | 32 | 64) {
                    return self.err("16, 32 or 64 bits are expected");
                }
                self.i.class = if ty.float() { Class::Fp32 } else { Class::Int };
                self.leading(bits, &[bits; 2], ty.float())?;
                self.i.c = self.pred(3)?;
                self.i.op = if bits == 64 { Op::Sel64 } else { Op::Sel32 };
                Ok(())
            }
            "slct" => {
                let ftz = self.take("ftz");
                let (dt, ct) = (self.ty()?, self.ty()?);
                self.count(4..=4)?;
                if !matches!(dt.bits(), 16 | 32 | 64) || !matches!(ct, Ty::S(32) | Ty::F(32)) {
                    return self.err("slct does not exist for these types");
                }
                self.i.class = Class::Int;
                self.leading(dt.bits(), &[dt.bits(); 2], dt.float())?;
                self.i.c = self.body.src(&self.args[3], 32, ct.float())?;
                self.i.op = Op::Slct { wide: dt.bits() == 64, float: ct.float(), ftz };
                Ok(())
            }
            "testp" => {
                let (Some(kind), Ty::F(bits @ (32 | 64))) = (self.first(Testp::word), self.ty()?) else {
                    return self.err("the form is testp.<property>.f32 or .f64");
                };
                self.count(2..=2)?;
                self.i.class = Class::Fp32;
                self.pred_dst()?;
                self.i.a = self.body.src(&self.args[1], bits, true)?;
                self.i.op = Op::Testp { kind, wide: bits == 64 };
                Ok(())
            }
            "copysign" => {
                let Ty::F(bits @ (32 | 64)) = self.ty()? else { return self.err("f32 or f64 is expected") };
                self.i.class = Class::Fp32;
                self.i.op = Op::Copysign { wide: bits == 64 };
                self.regular(3, bits, true)
            }
            _ => self.comparison(self.base == "set"),
        }
    }

    /// `setp`, or `set` with a number as the result.
    fn comparison(&mut self, set: bool) -> Result<()> {
        let (cmp, unsigned) = self.need(cmp, "the comparison is missing")?;
        let logic = self.first(Logic::word);
        let ftz = self.take("ftz");
        let result = if set { self.ty()? } else { Ty::U(32) };
        let ty = self.ty()?;
        if ty == Ty::F16x2 && !unsigned {
            return self.comparison_of_halves(cmp, logic, ftz, set.then_some(result));
        }
        let (one, result_bits) = match result {
            Ty::U(32) | Ty::S(32) => (u32::MAX, 32),
            Ty::F(32) => (1f32.to_bits(), 32),
            Ty::F(16) => (u32::from(half::f16::ONE.to_bits()), 16),
            Ty::U(16) | Ty::S(16) if ty == Ty::F(16) => (0xffff, 16),
            Ty::F16x2 => return self.err("f16x2 is the result of a comparison of f16x2 alone"),
            _ => return self.err("the result of set is u32, s32, f32 or f16, of f16 also u16 or s16"),
        };
        let bits = ty.bits();
        let (Some(num), 16..=64) = (ty.num(), bits) else {
            return self.err("this type has no comparison");
        };
        let ordered = matches!(cmp, Cmp::Eq | Cmp::Ne | Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge);
        if !num.float() && !ordered
            || unsigned && !matches!(ty, Ty::U(_))
            || matches!(ty, Ty::B(_)) && !matches!(cmp, Cmp::Eq | Cmp::Ne)
        {
            return self.err("this comparison does not exist for the type");
        }
        let n = 3 + logic.is_some() as usize;
        self.count(n..=n)?;
        self.i.class = match num {
            Num::F64 => Class::Fp64,
            Num::F32 => Class::Fp32,
            Num::F16 => Class::Fp16,
            _ => Class::Int,
        };
        let float = ty.float() && bits > 16;
        self.i.a = self.body.src(&self.args[1], bits, float)?;
        self.i.b = self.body.src(&self.args[2], bits, float)?;
        if logic.is_some() {
            self.i.c = self.pred(3)?;
        }
        if set {
            self.i.op = Op::Set { cmp, ty: num, logic, ftz, one };
            return self.dst(result_bits);
        }
        self.i.op = Op::Setp { cmp, ty: num, logic, ftz };
        match self.args[0] {
            Arg::Pair(p, q) => self.pred_pair(p, q),
            _ => self.pred_dst(),
        }
    }

    /// `setp.f16x2`, or `set.f16x2` if there is a type of the result.
    fn comparison_of_halves(
        &mut self,
        cmp: Cmp,
        logic: Option<Logic>,
        ftz: bool,
        result: Option<Ty>,
    ) -> Result<()> {
        let n = 3 + logic.is_some() as usize;
        self.count(n..=n)?;
        self.i.class = Class::Fp16;
        self.i.a = self.src(1, 32)?;
        self.i.b = self.src(2, 32)?;
        if logic.is_some() {
            self.i.c = self.pred(3)?;
        }
        let one = match result {
            Some(Ty::F16x2) => half::f16::ONE.to_bits(),
            Some(Ty::U(32) | Ty::S(32)) => 0xffff,
            Some(_) => return self.err("the result of set on f16x2 is u32, s32 or f16x2"),
            None => {
                let Arg::Pair(p, q) = self.args[0] else {
                    return self.err("two predicates are expected, p|q");
                };
                self.i.op = Op::SetpHalves { cmp, logic, ftz };
                return self.pred_pair(p, q);
            }
        };
        self.i.op = Op::SetHalves { cmp, logic, ftz, one };
        self.dst(32)
    }

    /// The destinations p|q.
    fn pred_pair(&mut self, p: &'a str, q: &'a str) -> Result<()> {
        self.i.d = self.body.pred_dst(&Arg::Word(p))?;
        self.i.e = self.body.pred_dst(&Arg::Word(q))?;
        Ok(())
    }

    pub(super) fn cvt(&mut self) -> Result<()> {
        let int_round = self.first(|s| Round::word(s.strip_suffix('i')?));
        let round = self.first(Round::word);
        let (ftz, sat) = (self.take("ftz"), self.take("sat"));
        let (dt, st) = (self.ty()?, self.ty()?);
        let (Some(to), Some(from)) = (dt.num(), st.num()) else {
            return self.err("this conversion does not exist");
        };
        if matches!(dt, Ty::B(_)) || matches!(st, Ty::B(_)) {
            return self.err("cvt needs .u, .s or .f types");
        }
        let float_narrows = to.float() && from.float() && to.bits() < from.bits();
        let needs_round = float_narrows || (to.float() && !from.float());
        let needs_int = !to.float() && from.float();
        if needs_round != round.is_some() || (needs_int && int_round.is_none()) {
            return self.err("the rounding mode does not fit the types");
        }
        if int_round.is_some() && !(needs_int || (to.float() && to == from)) {
            return self.err("integer rounding does not fit the types");
        }
        if ftz && to != Num::F32 && from != Num::F32 {
            return self.err(".ftz is for f32");
        }
        self.count(2..=2)?;
        let (d, to_wide) = self.body.dst_any(&self.args[0], to.bits())?;
        let float = from.float() && from != Num::F16;
        let (a, from_wide) = self.body.src_any(&self.args[1], from.bits(), float)?;
        (self.i.d, self.i.a) = (d, a);
        self.i.class = match (to, from) {
            (Num::F64, _) | (_, Num::F64) => Class::Fp64,
            _ if to.float() || from.float() => Class::Convert,
            _ => Class::Int,
        };
        let (round, int) = (int_round.or(round).unwrap_or(Round::Near), int_round.is_some());
        self.i.op = Op::Cvt(CvtMode { to, from, round, int, sat, ftz, to_wide, from_wide });
        Ok(())
    }
}

/// A comparison, and whether its spelling is for unsigned numbers alone.
fn cmp(s: &str) -> Option<(Cmp, bool)> {
    match s {
        "lo" => Some((Cmp::Lt, true)),
        "ls" => Some((Cmp::Le, true)),
        "hi" => Some((Cmp::Gt, true)),
        "hs" => Some((Cmp::Ge, true)),
        _ => Cmp::word(s).map(|cmp| (cmp, false)),
    }
}
