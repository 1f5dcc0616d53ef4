//! One PTX instruction, as written, to one [`Inst`].
//!
//! Strict: every modifier must be consumed by its instruction, every operand must have the width
//! that the type asks for.

mod arithmetic;
mod compare;
mod control;
mod integer;
mod memory;

use super::PtxError;
use super::inst::*;
use super::operand::{Arg, Body};
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

fn logic(s: &str) -> Option<Logic> {
    Some(match s {
        "and" => Logic::And,
        "or" => Logic::Or,
        "xor" => Logic::Xor,
        _ => return None,
    })
}

impl<'a> Body<'a, '_> {
    /// Refuses an instruction by its name alone, before its operands, which may have forms of their own.
    pub(in crate::ptx) fn admit(&self, opcode: &str) -> Result<(), PtxError> {
        let mut parts = opcode.split('.');
        let base = parts.next().unwrap_or("");
        if let Some(arch) = newer(base, &parts.collect::<Vec<_>>()) {
            return self.err(format!("`{opcode}` needs {arch} or newer, the target is sm_61"));
        }
        if matches!(base, "tex" | "tld4" | "txq" | "suld" | "sust" | "sured" | "suq") {
            return self.err(format!("`{opcode}`: textures and surfaces are not supported"));
        }
        Ok(())
    }

    /// Decodes and appends one instruction.
    pub(in crate::ptx) fn instruction(
        &mut self,
        guard: Row,
        opcode: &'a str,
        args: &[Arg<'a>],
    ) -> Result<(), PtxError> {
        let mut parts = opcode.split('.');
        let base = parts.next().unwrap_or("");
        let mut mods = Mods { parts: parts.collect() };
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
}
