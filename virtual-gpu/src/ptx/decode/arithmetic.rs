//! Moves, arithmetic and special functions.

use super::super::inst::*;
use super::super::operand::Arg;
use super::{Decoder, Result, Ty};
use crate::counters::Class;

impl Decoder<'_, '_, '_> {
    pub(super) fn mov(&mut self) -> Result<()> {
        let ty = self.ty()?;
        let args = self.args;
        self.count(2..=2)?;
        self.i.class = Class::Move;
        if ty == Ty::Pred {
            self.pred_dst()?;
            self.i.a = self.pred(1)?;
            self.i.b = self.i.a;
            self.i.op = Op::PredLogic(Logic::Or);
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
            let b = &mut *self.body;
            self.i.b = b.f.lists.len() as u32;
            self.i.imm = n as i64;
            let pack = matches!(args[1], Arg::Vector(_));
            let rows = parts.iter().map(|p| if pack { b.src(p, part, false) } else { b.dst(p, part) });
            let rows = rows.collect::<Result<Vec<_>>>()?;
            b.f.lists.extend(rows);
            let (wide, part_bits) = (bits == 64, part as u8);
            if pack {
                self.dst(bits)?;
                self.i.op = Op::Pack { wide, part_bits };
            } else {
                self.i.a = self.src(1, bits)?;
                self.i.op = Op::Unpack { wide, part_bits };
            }
            return Ok(());
        }
        self.dst(bits)?;
        if let Arg::Word(word) = args[1]
            && let Some(clock) = Clock::word(word)
        {
            if (bits == 64) != matches!(clock, Clock::Clock64 | Clock::Globaltimer) {
                return self.err("the clock register has another width");
            }
            self.i.op = Op::Clock(clock);
            return Ok(());
        }
        self.i.a = self.body.src(&args[1], bits, ty.float())?;
        self.i.op = if bits == 64 { Op::Mov64 } else { Op::Mov32 };
        Ok(())
    }

    pub(super) fn arithmetic(&mut self) -> Result<()> {
        let ty = self.ty()?;
        if let Some(flt) = ty.flt() {
            return self.float_arithmetic(flt);
        }
        if self.mods.contains(&"cc") {
            return self.carry(ty, false);
        }
        let Some(t) = ty.int() else { return self.err("an arithmetic type is expected") };
        let (base, bits) = (self.base, ty.bits());
        let sat = self.take("sat");
        if sat && (t != IntTy::S32 || !matches!(base, "add" | "sub" | "mad")) {
            return self.err(".sat needs .s32");
        }
        self.i.class = if base == "div" { Class::IntDiv } else { Class::Int };
        let (mad, suffix) = (base == "mad", if sat { ".sat" } else { "" });
        if mad || base == "mul" {
            self.i.class = Class::IntMul;
            let parts = ["wide", "hi", "lo"];
            let Some(part) = parts.into_iter().find(|part| self.take(part)) else {
                return self.err(".lo, .hi or .wide is missing");
            };
            if part == "wide" && bits == 64 {
                return self.err(".wide needs 16- or 32-bit operands");
            }
            if sat && part != "hi" {
                return self.err(".sat goes with .hi only");
            }
            let word = format!("{base}.{part}{suffix}");
            let binary = IBin::word(&word).map(|op| Op::IBin(op, t));
            let Some(op) = binary.or_else(|| ITri::word(&word).map(|op| Op::ITri(op, t))) else {
                return self.err("this product does not exist");
            };
            self.i.op = op;
            let wide = if part == "wide" { 2 * bits } else { bits };
            return self.operands(wide, &[bits, bits, wide][..2 + usize::from(mad)]);
        }
        if let Some(op) = IBin::word(&format!("{base}{suffix}")) {
            self.i.op = Op::IBin(op, t);
            self.regular(3, bits, false)
        } else if let Some(op) = IUn::word(base) {
            self.i.op = Op::IUn(op, t);
            self.regular(2, bits, false)
        } else {
            self.err("this instruction needs a floating-point type")
        }
    }

    /// With a carry in (`addc`), out (`.cc`) or both.
    pub(super) fn carry(&mut self, ty: Ty, carry_in: bool) -> Result<()> {
        let Some(ty) = ty.int() else { return self.err("an integer type is expected") };
        let carry_out = self.take("cc");
        if matches!(ty, IntTy::U16 | IntTy::S16) {
            return self.err("there is no 16-bit carry arithmetic");
        }
        let mad = self.base.starts_with("mad");
        self.i.class = if mad { Class::IntMul } else { Class::Int };
        let op = match self.base {
            "add" | "addc" => Carry::Add,
            "sub" | "subc" => Carry::Sub,
            _ if !mad => return self.err(".cc does not belong here"),
            _ => self.need(|m| Carry::word(&format!("mad.{m}")), ".lo or .hi is missing")?,
        };
        self.i.op = Op::Carry { op, ty, carry_in, carry_out };
        self.regular(if mad { 4 } else { 3 }, if ty.wide() { 64 } else { 32 }, false)
    }

    fn float_arithmetic(&mut self, ty: FltTy) -> Result<()> {
        let given = self.first(Round::word);
        let (ftz, sat) = (self.take("ftz"), self.take("sat"));
        let mut mode = FMode { ty, round: given.unwrap_or(Round::Near), ftz, sat, approx: false };
        let (bits, half, plain) = match ty {
            FltTy::F16 => (16, true, Class::Fp16),
            FltTy::F16x2 => (32, true, Class::Fp16),
            FltTy::F32 => (32, false, Class::Fp32),
            FltTy::F64 => (64, false, Class::Fp64),
        };
        if ty == FltTy::F64 && (ftz || sat) {
            return self.err(".ftz and .sat are not for f64");
        }
        if half && mode.round != Round::Near {
            return self.err("f16 arithmetic rounds to nearest");
        }
        let base = self.base;
        if matches!(base, "neg" | "abs" | "min" | "max") && (given.is_some() || sat) {
            return self.err("no rounding or .sat here");
        }
        self.i.class = plain;
        // mad.f32 with a rounding mode is fma on every target since sm_20.
        if matches!(base, "fma" | "mad") {
            if given.is_none() {
                return self.err("a rounding mode is missing");
            }
            if ty == FltTy::F32 {
                self.i.class = Class::Ffma;
            }
            self.i.op = Op::Fma(mode);
            return self.regular(4, bits, !half);
        }
        if base == "div" {
            if half {
                return self.err("there is no f16 division");
            }
            let (approx, full) = (self.take("approx"), self.take("full"));
            if approx || full {
                if ty == FltTy::F64 || given.is_some() {
                    return self.err(".approx and .full are for f32, without a rounding mode");
                }
                mode.approx = approx;
                self.i.class = Class::Special;
            } else if given.is_none() {
                return self.err("a rounding mode is missing");
            } else if ty == FltTy::F32 {
                self.i.class = Class::Fp32Div;
            }
        }
        if let Some(op) = FBin::word(base) {
            self.i.op = Op::FBin(op, mode);
            return self.regular(3, bits, !half);
        }
        self.i.op = Op::FUn(if base == "neg" { FUn::Neg } else { FUn::Abs }, mode);
        self.regular(2, bits, !half)
    }

    pub(super) fn special_function(&mut self) -> Result<()> {
        let (Some(ty), Some(op)) = (self.ty()?.flt(), FUn::word(self.base)) else {
            return self.err("f32 or f64 is expected");
        };
        let approx = self.take("approx");
        let given = self.first(Round::word);
        let ftz = self.take("ftz");
        let mode = FMode { ty, round: given.unwrap_or(Round::Near), ftz, sat: false, approx };
        let half = matches!(ty, FltTy::F16 | FltTy::F16x2);
        if half && !matches!(op, FUn::Ex2 | FUn::Tanh) {
            return self.err("f32 or f64 is expected");
        }
        if (half || op == FUn::Tanh) && (ftz || !approx) {
            return self.err("this form does not exist");
        }
        if approx == given.is_some() {
            return self.err("either .approx or a rounding mode is expected");
        }
        let exact = matches!(op, FUn::Sqrt | FUn::Rcp);
        let f64_approx = op == FUn::Rsqrt || (op == FUn::Rcp && ftz);
        let double = ty == FltTy::F64;
        if (!exact && !approx) || (double && ((approx && !f64_approx) || (!approx && ftz))) {
            return self.err("this form does not exist");
        }
        self.i.class = match (approx, double) {
            (true, _) => Class::Special,
            (false, false) => Class::Fp32Div,
            (false, true) => Class::Fp64,
        };
        self.i.op = Op::FUn(op, mode);
        let bits = match ty {
            FltTy::F16 => 16,
            FltTy::F64 => 64,
            FltTy::F16x2 | FltTy::F32 => 32,
        };
        self.regular(2, bits, !half)
    }
}
