//! Comparisons, selections, conversions.

use super::super::PtxError;
use super::super::inst::*;
use super::super::operand::{Arg, Body};
use super::{Mods, Ty, logic};
use crate::counters::Class;

impl<'a> Body<'a, '_> {
    pub(super) fn compare(
        &mut self,
        base: &str,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        match base {
            "selp" => {
                let ty = self.ty(m)?;
                let bits = ty.bits();
                self.count(args, 4..=4)?;
                if !matches!(bits, 16 | 32 | 64) {
                    return self.err("16, 32 or 64 bits are expected");
                }
                i.class = if ty.float() { Class::Fp32 } else { Class::Int };
                self.regular(&args[..3], 3, bits, ty.float(), i)?;
                i.c = self.pred(&args[3])?;
                i.op = if bits == 64 { Op::Sel64 } else { Op::Sel32 };
                Ok(())
            }
            "slct" => {
                let ftz = m.take("ftz");
                let (dt, ct) = (self.ty(m)?, self.ty(m)?);
                self.count(args, 4..=4)?;
                if !matches!(dt.bits(), 16 | 32 | 64) || !matches!(ct, Ty::S(32) | Ty::F(32)) {
                    return self.err("slct does not exist for these types");
                }
                i.class = Class::Int;
                self.regular(&args[..3], 3, dt.bits(), dt.float(), i)?;
                i.c = self.src(&args[3], 32, ct.float())?;
                i.op = Op::Slct { wide: dt.bits() == 64, float: ct.float(), ftz };
                Ok(())
            }
            "testp" => {
                let kind = m.first(|s| {
                    Some(match s {
                        "finite" => Testp::Finite,
                        "infinite" => Testp::Infinite,
                        "number" => Testp::Number,
                        "notanumber" => Testp::NotANumber,
                        "normal" => Testp::Normal,
                        "subnormal" => Testp::Subnormal,
                        _ => return None,
                    })
                });
                let (Some(kind), Ty::F(bits @ (32 | 64))) = (kind, self.ty(m)?) else {
                    return self.err("the form is testp.<property>.f32 or .f64");
                };
                self.count(args, 2..=2)?;
                i.class = Class::Fp32;
                i.d = self.pred_dst(&args[0])?;
                i.a = self.src(&args[1], bits, true)?;
                i.op = Op::Testp { kind, wide: bits == 64 };
                Ok(())
            }
            "copysign" => {
                let Ty::F(bits @ (32 | 64)) = self.ty(m)? else { return self.err("f32 or f64 is expected") };
                i.class = Class::Fp32;
                i.op = Op::Copysign { wide: bits == 64 };
                self.regular(args, 3, bits, true, i)
            }
            _ => {
                let Some((cmp, unsigned)) = m.first(cmp) else {
                    return self.err("the comparison is missing");
                };
                let logic = m.first(logic);
                let ftz = m.take("ftz");
                let float_dst = if base == "set" {
                    match self.ty(m)? {
                        Ty::U(32) | Ty::S(32) => false,
                        Ty::F(32) => true,
                        _ => return self.err("the result of set is u32, s32 or f32"),
                    }
                } else {
                    false
                };
                let ty = self.ty(m)?;
                let (Some(num), 16..=64) = (ty.num(), ty.bits()) else {
                    return self.err("this type has no comparison");
                };
                if num.float() && unsigned
                    || !num.float()
                        && !matches!(cmp, Cmp::Eq | Cmp::Ne | Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge)
                    || unsigned && !matches!(ty, Ty::U(_))
                    || matches!(ty, Ty::B(_)) && !matches!(cmp, Cmp::Eq | Cmp::Ne)
                {
                    return self.err("this comparison does not exist for the type");
                }
                let n = 3 + logic.is_some() as usize;
                self.count(args, n..=n)?;
                i.class = match num {
                    Num::F64 => Class::Fp64,
                    Num::F32 => Class::Fp32,
                    Num::F16 => Class::Fp16,
                    _ => Class::Int,
                };
                i.a = self.src(&args[1], ty.bits(), ty.float() && ty.bits() > 16)?;
                i.b = self.src(&args[2], ty.bits(), ty.float() && ty.bits() > 16)?;
                if logic.is_some() {
                    i.c = self.pred(&args[3])?;
                }
                if base == "set" {
                    i.d = self.dst(&args[0], 32)?;
                    i.op = Op::Set { cmp, ty: num, logic, ftz, float_dst };
                } else {
                    match args[0] {
                        Arg::Pair(p, q) => {
                            i.d = self.pred_dst(&Arg::Word(p))?;
                            i.e = self.pred_dst(&Arg::Word(q))?;
                        }
                        _ => i.d = self.pred_dst(&args[0])?,
                    }
                    i.op = Op::Setp { cmp, ty: num, logic, ftz };
                }
                Ok(())
            }
        }
    }

    pub(super) fn cvt(&mut self, m: &mut Mods<'a>, args: &[Arg<'a>], i: &mut Inst) -> Result<(), PtxError> {
        let int_round = m.first(|s| match s {
            "rni" => Some(Round::Near),
            "rzi" => Some(Round::Zero),
            "rmi" => Some(Round::Down),
            "rpi" => Some(Round::Up),
            _ => None,
        });
        let round = m.round();
        let (ftz, sat) = (m.take("ftz"), m.take("sat"));
        let (dt, st) = (self.ty(m)?, self.ty(m)?);
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
        self.count(args, 2..=2)?;
        let (d, to_wide) = self.dst_any(&args[0], to.bits())?;
        let (a, from_wide) = self.src_any(&args[1], from.bits(), from.float() && from != Num::F16)?;
        (i.d, i.a) = (d, a);
        i.class = match (to, from) {
            (Num::F64, _) | (_, Num::F64) => Class::Fp64,
            _ if to.float() || from.float() => Class::Convert,
            _ => Class::Int,
        };
        let round = int_round.or(round).unwrap_or(Round::Near);
        i.op = Op::Cvt(CvtMode { to, from, round, int: int_round.is_some(), sat, ftz, to_wide, from_wide });
        Ok(())
    }
}

fn cmp(s: &str) -> Option<(Cmp, bool)> {
    Some(match s {
        "eq" => (Cmp::Eq, false),
        "ne" => (Cmp::Ne, false),
        "lt" => (Cmp::Lt, false),
        "le" => (Cmp::Le, false),
        "gt" => (Cmp::Gt, false),
        "ge" => (Cmp::Ge, false),
        // The unsigned spellings.
        "lo" => (Cmp::Lt, true),
        "ls" => (Cmp::Le, true),
        "hi" => (Cmp::Gt, true),
        "hs" => (Cmp::Ge, true),
        "equ" => (Cmp::Equ, false),
        "neu" => (Cmp::Neu, false),
        "ltu" => (Cmp::Ltu, false),
        "leu" => (Cmp::Leu, false),
        "gtu" => (Cmp::Gtu, false),
        "geu" => (Cmp::Geu, false),
        "num" => (Cmp::Num, false),
        "nan" => (Cmp::Nan, false),
        _ => return None,
    })
}
