//! One PTX instruction, as written, to one [`Inst`].
//!
//! Strict: every modifier must be consumed by the instruction that has it, every operand must have the width
//! that the type asks for. This file is one long table by nature: the instruction set.

use super::PtxError;
use super::inst::*;
use super::operand::{Arg, Body, Imm, Name, Width};
use crate::counters::Class;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ty {
    B(u32),
    U(u32),
    S(u32),
    F(u32),
    F16x2,
    Pred,
}

impl Ty {
    fn parse(s: &str) -> Option<Self> {
        Some(match s {
            "pred" => Ty::Pred,
            "f16x2" => Ty::F16x2,
            _ => {
                let bits: u32 = s.get(1..)?.parse().ok()?;
                match (s.as_bytes()[0], bits) {
                    (b'b', 8 | 16 | 32 | 64) => Ty::B(bits),
                    (b'u', 8 | 16 | 32 | 64) => Ty::U(bits),
                    (b's', 8 | 16 | 32 | 64) => Ty::S(bits),
                    (b'f', 16 | 32 | 64) => Ty::F(bits),
                    _ => return None,
                }
            }
        })
    }

    fn bits(self) -> u32 {
        match self {
            Ty::B(n) | Ty::U(n) | Ty::S(n) | Ty::F(n) => n,
            Ty::F16x2 => 32,
            Ty::Pred => 1,
        }
    }

    fn float(self) -> bool {
        matches!(self, Ty::F(_))
    }

    fn int(self) -> Option<IntTy> {
        Some(match self {
            Ty::B(16) | Ty::U(16) => IntTy::U16,
            Ty::S(16) => IntTy::S16,
            Ty::B(32) | Ty::U(32) => IntTy::U32,
            Ty::S(32) => IntTy::S32,
            Ty::B(64) | Ty::U(64) => IntTy::U64,
            Ty::S(64) => IntTy::S64,
            _ => return None,
        })
    }

    fn flt(self) -> Option<FltTy> {
        Some(match self {
            Ty::F(16) => FltTy::F16,
            Ty::F16x2 => FltTy::F16x2,
            Ty::F(32) => FltTy::F32,
            Ty::F(64) => FltTy::F64,
            _ => return None,
        })
    }

    fn num(self) -> Option<Num> {
        Some(match self {
            Ty::B(8) | Ty::U(8) => Num::U8,
            Ty::S(8) => Num::S8,
            Ty::B(16) | Ty::U(16) => Num::U16,
            Ty::S(16) => Num::S16,
            Ty::B(32) | Ty::U(32) => Num::U32,
            Ty::S(32) => Num::S32,
            Ty::B(64) | Ty::U(64) => Num::U64,
            Ty::S(64) => Num::S64,
            Ty::F(16) => Num::F16,
            Ty::F(32) => Num::F32,
            Ty::F(64) => Num::F64,
            _ => return None,
        })
    }
}

/// The dotted parts of an opcode that are not consumed yet.
struct Mods<'a> {
    parts: Vec<&'a str>,
}

impl<'a> Mods<'a> {
    fn take(&mut self, m: &str) -> bool {
        match self.parts.iter().position(|&p| p == m) {
            Some(i) => {
                self.parts.remove(i);
                true
            }
            None => false,
        }
    }

    fn first<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        let i = self.parts.iter().position(|&p| f(p).is_some())?;
        f(self.parts.remove(i))
    }

    fn round(&mut self) -> Option<Round> {
        self.first(|m| match m {
            "rn" => Some(Round::Near),
            "rz" => Some(Round::Zero),
            "rm" => Some(Round::Down),
            "rp" => Some(Round::Up),
            _ => None,
        })
    }
}

fn newer(base: &str, mods: &[&str]) -> Option<&'static str> {
    Some(match base {
        "nanosleep" | "match" | "wmma" | "fence" | "bmsk" | "szext" => "sm_70",
        "ldmatrix" | "tanh" => "sm_75",
        "mma" => "sm_70",
        "redux" | "mbarrier" | "createpolicy" | "discard" | "applypriority" | "stmatrix" => "sm_80",
        "elect"
        | "wgmma"
        | "griddepcontrol"
        | "setmaxnreg"
        | "mapa"
        | "getctarank"
        | "multimem"
        | "tensormap"
        | "clusterlaunchcontrol" => "sm_90",
        "tcgen05" => "sm_100",
        "cp" => "sm_80",
        _ if mods.iter().any(|m| matches!(*m, "bf16" | "bf16x2" | "tf32" | "NaN" | "xorsign")) => "sm_80",
        _ if mods
            .iter()
            .any(|m| matches!(*m, "relaxed" | "acquire" | "release" | "acq_rel" | "sc" | "mmio")) =>
        {
            "sm_70"
        }
        _ if mods.iter().any(|m| matches!(*m, "e4m3x2" | "e5m2x2" | "cluster" | "b128")) => "sm_89",
        "ex2" if mods.iter().any(|m| m.starts_with("f16")) => "sm_75",
        "min" | "max" | "abs" if mods.iter().any(|m| m.starts_with("f16")) => "sm_80",
        "atom" | "red" if mods.iter().any(|m| matches!(*m, "b16" | "f16")) => "sm_70",
        _ => return None,
    })
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

fn logic(s: &str) -> Option<Logic> {
    Some(match s {
        "and" => Logic::And,
        "or" => Logic::Or,
        "xor" => Logic::Xor,
        _ => return None,
    })
}

impl<'a> Body<'a, '_> {
    /// Decodes and appends one instruction.
    pub(super) fn instruction(
        &mut self,
        guard: Row,
        opcode: &'a str,
        args: &[Arg<'a>],
    ) -> Result<(), PtxError> {
        let mut parts = opcode.split('.');
        let base = parts.next().unwrap_or("");
        let mut mods = Mods { parts: parts.collect() };
        if let Some(arch) = newer(base, &mods.parts) {
            return self.err(format!("`{opcode}` needs {arch} or newer, the target is sm_61"));
        }
        let mut inst = Inst {
            op: Op::Nop,
            class: Class::Other,
            guard,
            d: NONE,
            e: NONE,
            a: NONE,
            b: NONE,
            c: NONE,
            imm: 0,
            line: self.line,
        };
        self.decode(base, &mut mods, args, &mut inst).map_err(|mut e| {
            e.reason = format!("`{opcode}`: {}", e.reason);
            e
        })?;
        if !mods.parts.is_empty() {
            return self
                .err(format!("`{opcode}`: modifier .{} is not supported here", mods.parts.join(" .")));
        }
        self.f.code.push(inst);
        Ok(())
    }

    fn count(&self, args: &[Arg<'a>], n: impl std::ops::RangeBounds<usize>) -> Result<(), PtxError> {
        if n.contains(&args.len()) { Ok(()) } else { self.err(format!("{} operands do not fit", args.len())) }
    }

    fn ty(&self, mods: &mut Mods<'a>) -> Result<Ty, PtxError> {
        match mods.first(Ty::parse) {
            Some(t) => Ok(t),
            None => self.err("a type is missing"),
        }
    }

    fn int_ty(&self, mods: &mut Mods<'a>) -> Result<IntTy, PtxError> {
        match self.ty(mods)?.int() {
            Some(t) => Ok(t),
            None => self.err("an integer type is expected"),
        }
    }

    /// d, a (, b (, c)) all of `bits`.
    fn regular(
        &mut self,
        args: &[Arg<'a>],
        n: usize,
        bits: u32,
        float: bool,
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        self.count(args, n..=n)?;
        i.d = self.dst(&args[0], bits)?;
        i.a = self.src(&args[1], bits, float)?;
        if n > 2 {
            i.b = self.src(&args[2], bits, float)?;
        }
        if n > 3 {
            i.c = self.src(&args[3], bits, float)?;
        }
        Ok(())
    }

    fn decode(
        &mut self,
        base: &'a str,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        match base {
            "mov" => self.mov(m, args, i),
            "add" | "sub" | "mul" | "div" | "min" | "max" | "neg" | "abs" | "mad" | "fma" => {
                self.arithmetic(base, m, args, i)
            }
            "addc" | "subc" | "madc" => self.carry(base, m, args, i, true),
            "sqrt" | "rcp" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" => {
                self.special_function(base, m, args, i)
            }
            "rem" | "mul24" | "mad24" | "sad" | "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr"
            | "shf" | "bfe" | "bfi" | "bfind" | "brev" | "clz" | "popc" | "prmt" | "lop3" | "dp4a"
            | "dp2a" => self.integer(base, m, args, i),
            "setp" | "set" | "selp" | "slct" | "testp" | "copysign" => self.compare(base, m, args, i),
            "cvt" => self.cvt(m, args, i),
            "cvta" | "isspacep" | "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" => {
                self.memory(base, m, args, i)
            }
            "shfl" | "vote" | "activemask" | "bar" | "barrier" | "membar" => self.warp(base, m, args, i),
            "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "pmevent" => self.control(base, m, args, i),
            _ => self.err("unknown or unsupported instruction"),
        }
    }

    fn mov(&mut self, m: &mut Mods<'a>, args: &[Arg<'a>], i: &mut Inst) -> Result<(), PtxError> {
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
                return self.err("the parts do not make up the whole");
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
                return self.err("the clock has another width");
            }
            i.op = Op::Clock(c);
            return Ok(());
        }
        i.a = self.src(&args[1], bits, ty.float())?;
        i.op = if bits == 64 { Op::Mov64 } else { Op::Mov32 };
        Ok(())
    }

    fn arithmetic(
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
            return self.err(".sat wants .s32");
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
                        return self.err(".wide wants 16- or 32-bit operands");
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
            _ => self.err("this instruction wants a floating-point type"),
        }
    }

    fn carry(
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

    fn float_arithmetic(
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

    fn special_function(
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
            return self.err("no such form");
        }
        i.class = match (approx, ty) {
            (true, _) => Class::Special,
            (false, FltTy::F32) => Class::Fp32Div,
            _ => Class::Fp64,
        };
        i.op = Op::FUn(op, mode);
        self.regular(args, 2, if ty == FltTy::F64 { 64 } else { 32 }, true, i)
    }

    fn integer(
        &mut self,
        base: &str,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        i.class = Class::Int;
        match base {
            "and" | "or" | "xor" | "not" => {
                let ty = self.ty(m)?;
                if ty == Ty::Pred {
                    let n = if base == "not" { 2 } else { 3 };
                    self.count(args, n..=n)?;
                    i.d = self.pred_dst(&args[0])?;
                    i.a = self.pred(&args[1])?;
                    if base == "not" {
                        i.a ^= NEG;
                        i.b = i.a;
                        i.op = Op::PredLogic(Logic::Or);
                    } else {
                        i.b = self.pred(&args[2])?;
                        i.op = Op::PredLogic(logic(base).unwrap_or(Logic::Xor));
                    }
                    return Ok(());
                }
                let Ty::B(16 | 32 | 64) = ty else { return self.err("a .b type is expected") };
                let Some(t) = ty.int() else { return self.err("a .b type is expected") };
                i.op = match base {
                    "and" => Op::IBin(IBin::And, t),
                    "or" => Op::IBin(IBin::Or, t),
                    "xor" => Op::IBin(IBin::Xor, t),
                    _ => Op::IUn(IUn::Not, t),
                };
                self.regular(args, if base == "not" { 2 } else { 3 }, ty.bits(), false, i)
            }
            "rem" => {
                let ty = self.ty(m)?;
                let Some(t) = ty.int() else { return self.err("an integer type is expected") };
                i.class = Class::IntDiv;
                i.op = Op::IBin(IBin::Rem, t);
                self.regular(args, 3, ty.bits(), false, i)
            }
            "cnot" => {
                let ty = self.ty(m)?;
                let Some(t) = ty.int() else { return self.err("a .b type is expected") };
                i.op = Op::IUn(IUn::CNot, t);
                self.regular(args, 2, ty.bits(), false, i)
            }
            "shl" | "shr" => {
                let ty = self.ty(m)?;
                let Some(t) = ty.int() else { return self.err("an integer type is expected") };
                self.count(args, 3..=3)?;
                i.d = self.dst(&args[0], ty.bits())?;
                i.a = self.src(&args[1], ty.bits(), false)?;
                i.b = self.src(&args[2], 32, false)?;
                i.op = Op::IBin(if base == "shl" { IBin::Shl } else { IBin::Shr }, t);
                Ok(())
            }
            "shf" => {
                let left = m.take("l");
                if !left && !m.take("r") {
                    return self.err(".l or .r is missing");
                }
                let clamp = m.take("clamp");
                if (!clamp && !m.take("wrap")) || self.ty(m)? != Ty::B(32) {
                    return self.err("the form is shf.{l,r}.{clamp,wrap}.b32");
                }
                i.op = Op::Shf { left, clamp };
                self.regular(args, 4, 32, false, i)
            }
            "mul24" | "mad24" => {
                let t = self.int_ty(m)?;
                let hi = m.take("hi");
                if (!hi && !m.take("lo")) || !matches!(t, IntTy::U32 | IntTy::S32) {
                    return self.err("the form is .lo or .hi with .u32 or .s32");
                }
                i.class = Class::IntMul;
                i.op = match (base, hi) {
                    ("mul24", false) => Op::IBin(IBin::Mul24, t),
                    ("mul24", true) => Op::IBin(IBin::Mul24Hi, t),
                    (_, false) => Op::ITri(ITri::Mad24, t),
                    (_, true) => Op::ITri(ITri::Mad24Hi, t),
                };
                self.regular(args, if base == "mul24" { 3 } else { 4 }, 32, false, i)
            }
            "sad" => {
                let ty = self.ty(m)?;
                let Some(t) = ty.int() else { return self.err("an integer type is expected") };
                i.op = Op::ITri(ITri::Sad, t);
                self.regular(args, 4, ty.bits(), false, i)
            }
            "bfe" => {
                let ty = self.ty(m)?;
                let (Ty::U(32 | 64) | Ty::S(32 | 64), Some(t)) = (ty, ty.int()) else {
                    return self.err("the types are u32, s32, u64, s64");
                };
                self.count(args, 4..=4)?;
                i.d = self.dst(&args[0], ty.bits())?;
                i.a = self.src(&args[1], ty.bits(), false)?;
                i.b = self.src(&args[2], 32, false)?;
                i.c = self.src(&args[3], 32, false)?;
                i.op = Op::ITri(ITri::Bfe, t);
                Ok(())
            }
            "bfi" => {
                let Ty::B(bits @ (32 | 64)) = self.ty(m)? else {
                    return self.err("the types are b32 and b64");
                };
                self.count(args, 5..=5)?;
                i.d = self.dst(&args[0], bits)?;
                i.a = self.src(&args[1], bits, false)?;
                i.b = self.src(&args[2], bits, false)?;
                i.c = self.src(&args[3], 32, false)?;
                i.e = self.src(&args[4], 32, false)?;
                i.op = Op::Bfi { wide: bits == 64 };
                Ok(())
            }
            "clz" | "popc" | "brev" | "bfind" => {
                let shift = m.take("shiftamt");
                let ty = self.ty(m)?;
                let bits = ty.bits();
                let (Some(t), 32 | 64) = (ty.int(), bits) else {
                    return self.err("32 or 64 bits are expected");
                };
                self.count(args, 2..=2)?;
                i.d = self.dst(&args[0], if base == "brev" { bits } else { 32 })?;
                i.a = self.src(&args[1], bits, false)?;
                i.op = Op::IUn(
                    match (base, shift) {
                        ("clz", false) => IUn::Clz,
                        ("popc", false) => IUn::Popc,
                        ("brev", false) => IUn::Brev,
                        ("bfind", false) => IUn::Bfind,
                        ("bfind", true) => IUn::BfindShift,
                        _ => return self.err(".shiftamt belongs to bfind"),
                    },
                    t,
                );
                Ok(())
            }
            "prmt" => {
                if self.ty(m)? != Ty::B(32) {
                    return self.err("the type is b32");
                }
                let mode =
                    m.first(|s| ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"].iter().position(|&x| x == s));
                i.op = Op::Prmt(mode.map_or(0, |p| p as u8 + 1));
                self.regular(args, 4, 32, false, i)
            }
            "lop3" => {
                if self.ty(m)? != Ty::B(32) {
                    return self.err("the type is b32");
                }
                self.count(args, 5..=5)?;
                let Arg::Imm(Imm::Int(table @ 0..=255)) = args[4] else {
                    return self.err("the last operand is a constant from 0 to 255");
                };
                i.imm = table as i64;
                i.op = Op::Lop3;
                self.regular(&args[..4], 4, 32, false, i)
            }
            _ => {
                let hi = m.take("hi");
                if base == "dp2a" && !hi && !m.take("lo") {
                    return self.err(".lo or .hi is missing");
                }
                let (a, b) = (self.ty(m)?, self.ty(m)?);
                let (Ty::U(32) | Ty::S(32), Ty::U(32) | Ty::S(32)) = (a, b) else {
                    return self.err("the types are u32 and s32");
                };
                i.imm = (a == Ty::S(32)) as i64 | ((b == Ty::S(32)) as i64) << 1;
                i.class = Class::Dp4a;
                i.op = match (base, hi) {
                    ("dp4a", false) => Op::Dp4a,
                    ("dp2a", _) => Op::Dp2a { hi },
                    _ => return self.err(".hi belongs to dp2a"),
                };
                self.regular(args, 4, 32, false, i)
            }
        }
    }

    fn compare(
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
                    return self.err("no such types");
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

    fn cvt(&mut self, m: &mut Mods<'a>, args: &[Arg<'a>], i: &mut Inst) -> Result<(), PtxError> {
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
        let (Some(to), Some(from)) = (dt.num(), st.num()) else { return self.err("no such conversion") };
        if matches!(dt, Ty::B(_)) || matches!(st, Ty::B(_)) {
            return self.err("cvt wants .u, .s or .f types");
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

    fn space(&self, m: &mut Mods<'a>) -> Result<Option<Space>, PtxError> {
        Ok(m.first(|s| {
            Some(match s {
                // Constant variables lie in global memory here.
                "global" | "const" => Space::Global,
                "shared" | "shared::cta" => Space::Shared,
                "local" => Space::Local,
                "param" => Space::Param,
                _ => return None,
            })
        }))
    }

    fn memory(
        &mut self,
        base: &str,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        let constant = m.parts.contains(&"const");
        let space = self.space(m)?;
        match base {
            "cvta" => {
                let to = m.take("to");
                let ty = self.ty(m)?;
                let (Ty::U(bits @ (32 | 64)), Some(space)) = (ty, space) else {
                    return self.err("the form is cvta{.to}.<space>.u64");
                };
                if space == Space::Param {
                    return self.err("cvta.param is newer than ISA 6.4");
                }
                i.class = Class::Int;
                i.op = Op::Cvta { space, to, wide: bits == 64 };
                if bits == 32 {
                    return self.err("32-bit addressing is not supported");
                }
                self.regular(args, 2, bits, false, i)
            }
            "isspacep" => {
                let Some(space) = space else { return self.err("the space is missing") };
                self.count(args, 2..=2)?;
                i.class = Class::Int;
                i.d = self.pred_dst(&args[0])?;
                i.a = self.src(&args[1], 64, false)?;
                i.op = Op::IsSpace { space };
                Ok(())
            }
            "prefetch" | "prefetchu" => {
                if !m.take("L1") && !m.take("L2") {
                    return self.err("the cache level is missing");
                }
                self.count(args, 1..=1)?;
                self.address(&args[0])?;
                Ok(())
            }
            "ld" | "ldu" | "st" => {
                m.take("volatile");
                m.take("weak");
                m.take("nc");
                for cache in ["ca", "cg", "cs", "lu", "cv", "wb", "wt"] {
                    if m.take(cache) {
                        break;
                    }
                }
                let count = if m.take("v2") {
                    2
                } else if m.take("v4") {
                    4
                } else {
                    1
                };
                let ty = self.ty(m)?;
                let bits = ty.bits();
                if ty == Ty::Pred || bits * count > 128 {
                    return self.err("no such access");
                }
                self.count(args, 2..=2)?;
                let load = base != "st";
                let (data, addr) = if load { (&args[0], &args[1]) } else { (&args[1], &args[0]) };
                let (row, addr_wide, imm, name) = self.address(addr)?;
                let space = match (space.unwrap_or(Space::Generic), name) {
                    // `.param` variables of functions and call sites lie in local memory.
                    (Space::Param, Some(Name::Local(_))) => Space::Local,
                    (Space::Param, Some(Name::KernelParam(_))) if load => Space::Param,
                    (Space::Param, None) if !self.entry => Space::Local,
                    (Space::Param, _) => return self.err("not a parameter that can be accessed so"),
                    (_, Some(Name::KernelParam(_))) => {
                        return self.err("a kernel parameter is read with ld.param");
                    }
                    (Space::Generic, Some(_)) => return self.err("a variable is accessed in its own space"),
                    (Space::Global, Some(n)) if !matches!(n, Name::Global(_)) => {
                        return self.err("the variable is not in this space");
                    }
                    (Space::Shared, Some(n)) if !matches!(n, Name::Shared(_)) => {
                        return self.err("the variable is not in this space");
                    }
                    (s, _) => s,
                };
                if !addr_wide && !matches!(space, Space::Shared | Space::Local) {
                    return self.err("the address has 64 bits");
                }
                let float = ty.float() && bits > 16;
                let mut rows = Vec::new();
                match data {
                    Arg::Vector(parts) if parts.len() == count as usize && count > 1 => {
                        for p in parts {
                            rows.push(if load {
                                self.dst_any(p, bits)?
                            } else {
                                self.src_any(p, bits, float)?
                            });
                        }
                    }
                    Arg::Vector(parts) if count == 1 && parts.len() == 1 => {
                        rows.push(if load {
                            self.dst_any(&parts[0], bits)?
                        } else {
                            self.src_any(&parts[0], bits, float)?
                        });
                    }
                    _ if count == 1 => {
                        rows.push(if load {
                            self.dst_any(data, bits)?
                        } else {
                            self.src_any(data, bits, float)?
                        });
                    }
                    _ => return self.err("the vector has another length"),
                }
                let wide = rows[0].1;
                // A `_` in a vector takes the width of its neighbours.
                if rows.iter().any(|r| r.1 != wide) {
                    return self.err("the vector's registers have different widths");
                }
                i.a = row;
                i.imm = imm;
                let register = if count == 1 {
                    rows[0].0
                } else {
                    let at = self.f.lists.len() as u32;
                    self.f.lists.extend(rows.iter().map(|r| r.0));
                    at
                };
                let size = (bits / 8) as u8;
                let access = Access {
                    space,
                    size,
                    count: count as u8,
                    signed: matches!(ty, Ty::S(_)),
                    wide,
                    addr_wide,
                };
                if matches!(space, Space::Shared | Space::Generic) {
                    self.f.granule = self.f.granule.min(size);
                }
                if load {
                    i.d = register;
                    i.op = Op::Ld(access);
                } else {
                    if constant {
                        return self.err("constant memory cannot be written");
                    }
                    i.b = register;
                    i.op = Op::St(access);
                }
                i.class = match (space, load) {
                    _ if constant => Class::Constant,
                    (Space::Param, _) => Class::Constant,
                    (Space::Local, _) => Class::Local,
                    (Space::Shared, true) => Class::LoadShared,
                    (Space::Shared, false) => Class::StoreShared,
                    (_, true) => Class::LoadGlobal,
                    (_, false) => Class::StoreGlobal,
                };
                Ok(())
            }
            _ => self.atomic(base, space, m, args, i),
        }
    }

    fn atomic(
        &mut self,
        base: &str,
        space: Option<Space>,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        let space = match space.unwrap_or(Space::Generic) {
            s @ (Space::Generic | Space::Global | Space::Shared) => s,
            _ => return self.err("atomics are for global and shared memory"),
        };
        for scope in ["cta", "gpu", "sys"] {
            if m.take(scope) {
                break;
            }
        }
        let op = m.first(|s| {
            Some(match s {
                "and" => Atom::And,
                "or" => Atom::Or,
                "xor" => Atom::Xor,
                "exch" => Atom::Exch,
                "cas" => Atom::Cas,
                "add" => Atom::Add,
                "inc" => Atom::Inc,
                "dec" => Atom::Dec,
                "min" => Atom::Min,
                "max" => Atom::Max,
                _ => return None,
            })
        });
        let Some(op) = op else { return self.err("the operation is missing") };
        let ty = self.ty(m)?;
        let Some(num) = ty.num() else { return self.err("this type has no atomics here") };
        let fits = match op {
            Atom::And | Atom::Or | Atom::Xor | Atom::Exch | Atom::Cas => matches!(ty, Ty::B(32 | 64)),
            Atom::Inc | Atom::Dec => ty == Ty::U(32),
            Atom::Min | Atom::Max => matches!(ty, Ty::U(32 | 64) | Ty::S(32 | 64)),
            Atom::Add => matches!(ty, Ty::U(32 | 64) | Ty::S(32) | Ty::F(32 | 64)),
        };
        let red = base == "red";
        if !fits || red && matches!(op, Atom::Exch | Atom::Cas) {
            return self.err("no such atomic operation");
        }
        let n = if red { 2 } else { 3 } + (op == Atom::Cas) as usize;
        self.count(args, n..=n)?;
        let rest = if red {
            args
        } else {
            i.d = self.dst(&args[0], ty.bits())?;
            &args[1..]
        };
        let (row, addr_wide, imm, name) = self.address(&rest[0])?;
        if matches!(name, Some(Name::KernelParam(_) | Name::Local(_)))
            || (!addr_wide && space != Space::Shared)
        {
            return self.err("this address is not for atomics");
        }
        i.a = row;
        i.imm = imm;
        i.b = self.src(&rest[1], ty.bits(), ty.float())?;
        if op == Atom::Cas {
            i.c = self.src(&rest[2], ty.bits(), false)?;
        }
        i.class = if space == Space::Shared { Class::AtomicShared } else { Class::AtomicGlobal };
        i.op = Op::Atom { op, ty: num, space, addr_wide };
        if space != Space::Global {
            self.f.granule = self.f.granule.min((ty.bits() / 8) as u8);
        }
        Ok(())
    }

    fn warp(&mut self, base: &str, m: &mut Mods<'a>, args: &[Arg<'a>], i: &mut Inst) -> Result<(), PtxError> {
        match base {
            "shfl" => {
                let sync = m.take("sync");
                let mode = m.first(|s| {
                    Some(match s {
                        "up" => Shfl::Up,
                        "down" => Shfl::Down,
                        "bfly" => Shfl::Bfly,
                        "idx" => Shfl::Idx,
                        _ => return None,
                    })
                });
                let (Some(mode), Ty::B(32)) = (mode, self.ty(m)?) else {
                    return self.err("the form is shfl{.sync}.<mode>.b32");
                };
                let n = 4 + sync as usize;
                self.count(args, n..=n)?;
                match args[0] {
                    Arg::Pair(d, p) => {
                        i.d = self.dst(&Arg::Word(d), 32)?;
                        i.e = self.pred_dst(&Arg::Word(p))?;
                    }
                    _ => i.d = self.dst(&args[0], 32)?,
                }
                i.a = self.src(&args[1], 32, false)?;
                i.b = self.src(&args[2], 32, false)?;
                i.c = self.src(&args[3], 32, false)?;
                i.imm = if sync { self.src(&args[4], 32, false)? as i64 } else { -1 };
                i.class = Class::Shuffle;
                i.op = Op::Shfl { mode, sync };
                Ok(())
            }
            "vote" => {
                let sync = m.take("sync");
                let mode = m.first(|s| {
                    Some(match s {
                        "all" => Vote::All,
                        "any" => Vote::Any,
                        "uni" => Vote::Uni,
                        "ballot" => Vote::Ballot,
                        _ => return None,
                    })
                });
                let Some(mode) = mode else { return self.err("the vote's mode is missing") };
                let want = if mode == Vote::Ballot { Ty::B(32) } else { Ty::Pred };
                if self.ty(m)? != want {
                    return self.err("the type does not fit the vote");
                }
                let n = 2 + sync as usize;
                self.count(args, n..=n)?;
                i.d = if mode == Vote::Ballot { self.dst(&args[0], 32)? } else { self.pred_dst(&args[0])? };
                i.a = self.pred(&args[1])?;
                i.imm = if sync { self.src(&args[2], 32, false)? as i64 } else { -1 };
                i.class = Class::Vote;
                i.op = Op::Vote { mode, sync };
                Ok(())
            }
            "activemask" => {
                self.count(args, 1..=1)?;
                if self.ty(m)? != Ty::B(32) {
                    return self.err("the type is b32");
                }
                i.d = self.dst(&args[0], 32)?;
                i.class = Class::Vote;
                i.op = Op::Activemask;
                Ok(())
            }
            "membar" => {
                if !["cta", "gl", "sys"].iter().any(|s| m.take(s)) {
                    return self.err("the level is missing");
                }
                i.op = Op::Fence;
                Ok(())
            }
            _ => {
                m.take("cta");
                i.class = Class::Barrier;
                if m.take("warp") {
                    if !m.take("sync") {
                        return self.err("the form is bar.warp.sync");
                    }
                    self.count(args, 1..=1)?;
                    i.class = Class::Other;
                    i.imm = self.src(&args[0], 32, false)? as i64;
                    i.op = Op::WarpSync;
                    return Ok(());
                }
                m.take("aligned");
                if m.take("sync") {
                    self.count(args, 1..=2)?;
                    i.op = Op::Bar { red: BarRed::None, arrive: false };
                } else if m.take("arrive") {
                    self.count(args, 2..=2)?;
                    i.op = Op::Bar { red: BarRed::None, arrive: true };
                } else if m.take("red") {
                    self.count(args, 3..=4)?;
                    let op = m.first(|s| {
                        Some(match s {
                            "popc" => BarRed::Popc,
                            "and" => BarRed::And,
                            "or" => BarRed::Or,
                            _ => return None,
                        })
                    });
                    let Some(red) = op else { return self.err("the reduction is missing") };
                    match (red, self.ty(m)?) {
                        (BarRed::Popc, Ty::U(32)) => i.d = self.dst(&args[0], 32)?,
                        (BarRed::And | BarRed::Or, Ty::Pred) => i.d = self.pred_dst(&args[0])?,
                        _ => return self.err("the type does not fit the reduction"),
                    }
                    i.a = self.src(&args[1], 32, false)?;
                    if args.len() == 4 {
                        i.b = self.src(&args[2], 32, false)?;
                    }
                    i.c = self.pred(&args[args.len() - 1])?;
                    i.op = Op::Bar { red, arrive: false };
                    return Ok(());
                } else {
                    return self.err("the form is bar.sync, bar.arrive or bar.red");
                }
                i.a = self.src(&args[0], 32, false)?;
                if args.len() == 2 {
                    i.b = self.src(&args[1], 32, false)?;
                }
                Ok(())
            }
        }
    }

    fn control(
        &mut self,
        base: &str,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
        i.class = Class::Control;
        m.take("uni");
        match base {
            "bra" => {
                self.count(args, 1..=1)?;
                let Arg::Word(label) = args[0] else { return self.err("a label is expected") };
                i.op = Op::Bra;
                let (at, line) = (self.f.code.len(), self.line);
                self.scope().pending.push((at, label, line));
                Ok(())
            }
            "brx" => {
                self.count(args, 2..=2)?;
                let (true, Arg::Word(table)) = (m.take("idx"), &args[1]) else {
                    return self.err("the form is brx.idx index, table");
                };
                i.a = self.src(&args[0], 32, false)?;
                i.op = Op::Brx;
                let (at, line) = (self.f.code.len(), self.line);
                self.scope().pending_tables.push((at, table, line));
                Ok(())
            }
            _ => {
                self.count(args, 0..=(base == "pmevent") as usize)?;
                i.op = match base {
                    "ret" => Op::Ret,
                    "exit" => Op::Exit,
                    "trap" => Op::Trap,
                    _ => Op::Nop,
                };
                Ok(())
            }
        }
    }

    /// `call{.uni} (ret), callee, (args)`; `callees` gives the formals of a function.
    pub(super) fn call(
        &mut self,
        guard: Row,
        rets: &[Arg<'a>],
        callee: &'a str,
        args: &[Arg<'a>],
        signature: impl Fn(u32) -> (Vec<(u32, u32)>, Vec<(u32, u32)>),
    ) -> Result<(), PtxError> {
        let Some(Name::Function(id)) = self.lookup(callee) else {
            return self.err(format!("call of `{callee}`: only calls of declared functions are supported"));
        };
        let (formals, returns) = signature(id);
        if formals.len() != args.len() || returns.len() != rets.len() {
            return self
                .err(format!("call of `{callee}`: the number of parameters differs from its declaration"));
        }
        let mut site = CallSite { callee: id, args: Vec::new(), rets: Vec::new() };
        for (arg, &(at, bytes)) in args.iter().zip(&formals) {
            let value = match arg {
                Arg::Word(w) if matches!(self.lookup(w), Some(Name::Local(_))) => match self.lookup(w) {
                    Some(Name::Local(from)) => Value::Local(from),
                    _ => return self.err("not a parameter"),
                },
                _ if bytes == 8 => Value::Row64(self.src_any(arg, 64, false)?.0),
                _ => Value::Row32(self.src_any(arg, (bytes * 8).min(32), false)?.0),
            };
            site.args.push((value, at, bytes));
        }
        for (ret, &(at, bytes)) in rets.iter().zip(&returns) {
            let value = match ret {
                Arg::Word(w) => match self.lookup(w) {
                    Some(Name::Local(to)) => Value::Local(to),
                    Some(Name::Reg(row, Width::B64)) if bytes == 8 => Value::Row64(row),
                    Some(Name::Reg(row, Width::B32 | Width::B16)) if bytes <= 4 => Value::Row32(row),
                    _ => return self.err("the return value does not fit its place"),
                },
                _ => return self.err("the return value's place is expected"),
            };
            site.rets.push((at, value, bytes));
        }
        let imm = self.f.calls.len() as i64;
        self.f.calls.push(site);
        self.f.code.push(Inst {
            op: Op::Call,
            class: Class::Control,
            guard,
            d: NONE,
            e: NONE,
            a: NONE,
            b: NONE,
            c: NONE,
            imm,
            line: self.line,
        });
        Ok(())
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
