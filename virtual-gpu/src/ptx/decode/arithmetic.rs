//! Moves, arithmetic and special functions.

use super::super::PtxError;
use super::super::inst::*;
use super::super::operand::{Arg, Body};
use super::{Mods, Ty};
use crate::counters::Class;

impl<'a> Body<'a, '_> {
    pub(super) fn mov(&mut self, m: &mut Mods<'a>, args: &[Arg<'a>], i: &mut Inst) -> Result<(), PtxError> {
        let ty = self.ty(m)?;
        self.count(args, 2..=2)?;
        i.class = Class::Move;
        if ty == Ty::Pred {
            i.d = self.pred_dst(&args[0])?;
            i.a = self.pred(&args[1])?;
            i.b = i.a;
            i.op = Op::PredLogic(Logic::Or);
            return Ok(());
        }
        let bits = ty.bits();
        if bits == 8 {
            return self.err("there is no 8-bit mov");
        }
        if let (_, Arg::Vector(parts)) | (Arg::Vector(parts), _) = (&args[0], &args[1]) {
            let n = parts.len() as u32;
            let part = bits / n.max(1);
            if part * n != bits || !matches!(part, 16 | 32) {
                return self.err("the parts do not fill the register");
            }
            i.b = self.f.lists.len() as u32;
            i.imm = n as i64;
            let pack = matches!(args[1], Arg::Vector(_));
            let mut rows = Vec::new();
            for p in parts {
                rows.push(if pack { self.src(p, part, false)? } else { self.dst(p, part)? });
            }
            self.f.lists.extend(rows);
            let (wide, part_bits) = (bits == 64, part as u8);
            if pack {
                i.d = self.dst(&args[0], bits)?;
                i.op = Op::Pack { wide, part_bits };
            } else {
                i.a = self.src(&args[1], bits, false)?;
                i.op = Op::Unpack { wide, part_bits };
            }
            return Ok(());
        }
        i.d = self.dst(&args[0], bits)?;
        let clock = match args[1] {
            Arg::Word("%clock") => Some(Clock::Clock32),
            Arg::Word("%clock_hi") => Some(Clock::Clock32Hi),
            Arg::Word("%clock64") => Some(Clock::Clock64),
            Arg::Word("%globaltimer") => Some(Clock::Globaltimer),
            _ => None,
        };
        if let Some(c) = clock {
            if (bits == 64) != matches!(c, Clock::Clock64 | Clock::Globaltimer) {
                return self.err("the clock register has another width");
            }
            i.op = Op::Clock(c);
            return Ok(());
        }
        i.a = self.src(&args[1], bits, ty.float())?;
        i.op = if bits == 64 { Op::Mov64 } else { Op::Mov32 };
        Ok(())
    }

    pub(super) fn arithmetic(
        &mut self,
        base: &str,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        let ty = self.ty(m)?;
        if let Some(flt) = ty.flt() {
            return self.float_arithmetic(base, flt, m, args, i);
        }
        if m.take("cc") {
            m.parts.push("cc");
            m.parts.push(type_name(ty));
            return self.carry(base, m, args, i, false);
        }
        let Some(t) = ty.int() else { return self.err("an arithmetic type is expected") };
        let bits = ty.bits();
        let sat = m.take("sat");
        if sat && (t != IntTy::S32 || !matches!(base, "add" | "sub" | "mad")) {
            return self.err(".sat needs .s32");
        }
        i.class = Class::Int;
        match base {
            "add" | "sub" | "div" | "min" | "max" => {
                let op = match (base, sat) {
                    ("add", false) => IBin::Add,
                    ("add", true) => IBin::AddSat,
                    ("sub", false) => IBin::Sub,
                    ("sub", true) => IBin::SubSat,
                    ("div", _) => IBin::Div,
                    ("min", _) => IBin::Min,
                    _ => IBin::Max,
                };
                if op == IBin::Div {
                    i.class = Class::IntDiv;
                }
                i.op = Op::IBin(op, t);
                self.regular(args, 3, bits, false, i)
            }
            "neg" | "abs" => {
                i.op = Op::IUn(if base == "neg" { IUn::Neg } else { IUn::Abs }, t);
                self.regular(args, 2, bits, false, i)
            }
            "mul" | "mad" => {
                i.class = Class::IntMul;
                let mad = base == "mad";
                let n = if mad { 4 } else { 3 };
                if m.take("wide") {
                    self.count(args, n..=n)?;
                    if bits == 64 {
                        return self.err(".wide needs 16- or 32-bit operands");
                    }
                    i.d = self.dst(&args[0], 2 * bits)?;
                    i.a = self.src(&args[1], bits, false)?;
                    i.b = self.src(&args[2], bits, false)?;
                    if mad {
                        i.c = self.src(&args[3], 2 * bits, false)?;
                    }
                    i.op = if mad { Op::ITri(ITri::MadWide, t) } else { Op::IBin(IBin::MulWide, t) };
                    return Ok(());
                }
                let hi = m.take("hi");
                if !hi && !m.take("lo") {
                    return self.err(".lo, .hi or .wide is missing");
                }
                if sat && !hi {
                    return self.err(".sat goes with .hi only");
                }
                i.op = match (mad, hi) {
                    (false, false) => Op::IBin(IBin::Mul, t),
                    (false, true) => Op::IBin(IBin::MulHi, t),
                    (true, false) => Op::ITri(ITri::Mad, t),
                    (true, true) => Op::ITri(if sat { ITri::MadHiSat } else { ITri::MadHi }, t),
                };
                self.regular(args, n, bits, false, i)
            }
            _ => self.err("this instruction needs a floating-point type"),
        }
    }

    pub(super) fn carry(
        &mut self,
        base: &str,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
        carry_in: bool,
    ) -> Result<(), PtxError> {
        let ty = self.int_ty(m)?;
        let carry_out = m.take("cc");
        let bits = if ty.wide() { 64 } else { 32 };
        if matches!(ty, IntTy::U16 | IntTy::S16) {
            return self.err("there is no 16-bit carry arithmetic");
        }
        i.class = Class::Int;
        let op = match base {
            "add" | "addc" => Carry::Add,
            "sub" | "subc" => Carry::Sub,
            "mad" | "madc" => {
                i.class = Class::IntMul;
                if m.take("hi") {
                    Carry::MadHi
                } else if m.take("lo") {
                    Carry::MadLo
                } else {
                    return self.err(".lo or .hi is missing");
                }
            }
            _ => return self.err(".cc does not belong here"),
        };
        i.op = Op::Carry { op, ty, carry_in, carry_out };
        self.regular(args, if matches!(op, Carry::MadLo | Carry::MadHi) { 4 } else { 3 }, bits, false, i)
    }

    pub(super) fn float_arithmetic(
        &mut self,
        base: &str,
        ty: FltTy,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        let given = m.round();
        let mut mode = FMode {
            ty,
            round: given.unwrap_or(Round::Near),
            ftz: m.take("ftz"),
            sat: m.take("sat"),
            approx: false,
        };
        let (bits, half) = match ty {
            FltTy::F16 => (16, true),
            FltTy::F16x2 => (32, true),
            FltTy::F32 => (32, false),
            FltTy::F64 => (64, false),
        };
        if ty == FltTy::F64 && (mode.ftz || mode.sat) {
            return self.err(".ftz and .sat are not for f64");
        }
        if half && mode.round != Round::Near {
            return self.err("f16 arithmetic rounds to nearest");
        }
        let plain = match ty {
            FltTy::F32 => Class::Fp32,
            FltTy::F64 => Class::Fp64,
            _ => Class::Fp16,
        };
        i.class = plain;
        let n = match base {
            "neg" | "abs" => {
                if given.is_some() || mode.sat {
                    return self.err("no rounding or .sat here");
                }
                i.op = Op::FUn(if base == "neg" { FUn::Neg } else { FUn::Abs }, mode);
                2
            }
            "fma" | "mad" => {
                // mad.f32 with a rounding mode is fma on every target since sm_20.
                if given.is_none() {
                    return self.err("a rounding mode is missing");
                }
                if ty == FltTy::F32 {
                    i.class = Class::Ffma;
                }
                i.op = Op::Fma(mode);
                4
            }
            "min" | "max" => {
                if given.is_some() || mode.sat {
                    return self.err("no rounding or .sat here");
                }
                i.op = Op::FBin(if base == "min" { FBin::Min } else { FBin::Max }, mode);
                3
            }
            "div" => {
                if half {
                    return self.err("there is no f16 division");
                }
                let (approx, full) = (m.take("approx"), m.take("full"));
                if approx || full {
                    if ty == FltTy::F64 || given.is_some() {
                        return self.err(".approx and .full are for f32, without a rounding mode");
                    }
                    mode.approx = approx;
                    i.class = Class::Special;
                } else if given.is_none() {
                    return self.err("a rounding mode is missing");
                } else if ty == FltTy::F32 {
                    i.class = Class::Fp32Div;
                }
                i.op = Op::FBin(FBin::Div, mode);
                3
            }
            _ => {
                i.op = Op::FBin(
                    match base {
                        "add" => FBin::Add,
                        "sub" => FBin::Sub,
                        _ => FBin::Mul,
                    },
                    mode,
                );
                3
            }
        };
        self.regular(args, n, bits, !half, i)
    }

    pub(super) fn special_function(
        &mut self,
        base: &str,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        let Some(ty @ (FltTy::F32 | FltTy::F64)) = self.ty(m)?.flt() else {
            return self.err("f32 or f64 is expected");
        };
        let approx = m.take("approx");
        let given = m.round();
        let mode = FMode { ty, round: given.unwrap_or(Round::Near), ftz: m.take("ftz"), sat: false, approx };
        let op = match base {
            "sqrt" => FUn::Sqrt,
            "rcp" => FUn::Rcp,
            "rsqrt" => FUn::Rsqrt,
            "sin" => FUn::Sin,
            "cos" => FUn::Cos,
            "lg2" => FUn::Lg2,
            _ => FUn::Ex2,
        };
        if approx == given.is_some() {
            return self.err("either .approx or a rounding mode is expected");
        }
        let exact = matches!(op, FUn::Sqrt | FUn::Rcp);
        let f64_approx = matches!(op, FUn::Rsqrt) || (matches!(op, FUn::Rcp) && mode.ftz);
        if (!exact && !approx) || (ty == FltTy::F64 && ((approx && !f64_approx) || (!approx && mode.ftz))) {
            return self.err("this form does not exist");
        }
        i.class = match (approx, ty) {
            (true, _) => Class::Special,
            (false, FltTy::F32) => Class::Fp32Div,
            _ => Class::Fp64,
        };
        i.op = Op::FUn(op, mode);
        self.regular(args, 2, if ty == FltTy::F64 { 64 } else { 32 }, true, i)
    }
}

fn type_name(t: Ty) -> &'static str {
    match (t, t.bits()) {
        (Ty::S(_), 32) => "s32",
        (Ty::S(_), 64) => "s64",
        (Ty::U(_) | Ty::B(_), 64) => "u64",
        (Ty::S(_), _) => "s16",
        (_, 32) => "u32",
        _ => "u16",
    }
}
