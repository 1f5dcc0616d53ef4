//! One PTX instruction, as written, to one [`Inst`].
//!
//! Strict: every modifier must be consumed by its instruction, every operand must have the width
//! that the type asks for.

mod arithmetic;
mod compare;
mod control;
mod integer;
mod matrix;
mod memory;
mod texture;
mod video;

use std::ops::RangeInclusive;

use super::PtxError;
use super::inst::*;
use super::operand::{Arg, Body};
use crate::arch::Arch;
use crate::counters::Class;

type Result<T> = std::result::Result<T, PtxError>;

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
        let kind = match (s, s.bytes().next()?) {
            ("pred", _) => return Some(Ty::Pred),
            ("f16x2", _) => return Some(Ty::F16x2),
            (_, b'b') => Ty::B,
            (_, b'u') => Ty::U,
            (_, b's') => Ty::S,
            (_, b'f') => Ty::F,
            _ => return None,
        };
        let ty = kind(s[1..].parse().ok()?);
        ty.num().map(|_| ty)
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

/// The architecture that an instruction is from, if it is newer than sm_61.
fn newer(base: &str, mods: &[&str]) -> Option<&'static str> {
    let any = |words: &str| mods.iter().any(|m| words.split(' ').any(|word| word == *m));
    let half = mods.iter().any(|m| m.starts_with("f16"));
    Some(match base {
        "nanosleep" | "match" | "wmma" | "fence" | "bmsk" | "szext" | "mma" => "sm_70",
        "ldmatrix" | "tanh" => "sm_75",
        "redux" | "mbarrier" | "createpolicy" | "discard" | "applypriority" | "stmatrix" | "cp" => "sm_80",
        "elect" | "wgmma" | "griddepcontrol" | "setmaxnreg" | "mapa" | "getctarank" => "sm_90",
        "set" | "setp" if any("bf16 bf16x2") => "sm_90",
        "multimem" | "tensormap" | "clusterlaunchcontrol" => "sm_90",
        "tcgen05" => "sm_100",
        _ if any("bf16 bf16x2 tf32 NaN xorsign") => "sm_80",
        _ if any("relaxed acquire release acq_rel sc mmio") => "sm_70",
        _ if any("e4m3x2 e5m2x2 cluster b128") => "sm_89",
        "ex2" if half => "sm_75",
        "min" | "max" if half => "sm_80",
        "atom" | "red" if any("b16 f16") => "sm_70",
        _ => return None,
    })
}

impl<'a> Body<'a, '_> {
    /// Refuses an instruction by its name alone, before its operands, which may have forms of their own.
    pub(in crate::ptx) fn admit(&self, opcode: &str) -> Result<()> {
        let mut parts = opcode.split('.');
        let base = parts.next().unwrap_or("");
        let mods = parts.collect::<Vec<_>>();
        let target = self.target.arch;
        if let Some(arch) = newer(base, &mods)
            && Arch::by_name(arch).is_none_or(|arch| arch > target)
        {
            return self.err(format!("`{opcode}` needs {arch} or newer, the target is {}", target.name()));
        }
        let without_sync = matches!(base, "shfl" | "vote") && !mods.contains(&"sync");
        if without_sync && target >= Arch::Sm70 && self.target.version >= (6, 4) {
            let name = target.name();
            return self.err(format!("`{opcode}`: for {name} PTX 6.4 and later have {base}.sync alone"));
        }
        if matches!(base, "sured" | "istypep") {
            return self.err(format!("`{opcode}`: of surfaces there are loads and stores alone"));
        }
        Ok(())
    }

    /// Decodes and appends one instruction.
    pub(in crate::ptx) fn instruction(
        &mut self,
        guard: Row,
        opcode: &'a str,
        args: &[Arg<'a>],
    ) -> Result<()> {
        let mut parts = opcode.split('.');
        let base = parts.next().unwrap_or("");
        let i = Inst::new(Op::Nop, Class::Other, guard, self.line);
        let mut decoder = Decoder { base, mods: parts.collect(), args, i, body: self };
        decoder.decode().map_err(|mut e| {
            e.reason = format!("`{opcode}`: {}", e.reason);
            e
        })?;
        let Decoder { i, mods, .. } = decoder;
        if !mods.is_empty() {
            return self.err(format!("`{opcode}`: modifier .{} is not supported here", mods.join(" .")));
        }
        self.f.code.push(i);
        Ok(())
    }
}

/// An instruction whose modifiers and operands are being consumed.
struct Decoder<'a, 'm, 'b> {
    /// The opcode before its first dot, and the dotted parts that are not consumed yet.
    base: &'a str,
    mods: Vec<&'a str>,
    args: &'b [Arg<'a>],
    i: Inst,
    body: &'b mut Body<'a, 'm>,
}

impl<'a> Decoder<'a, '_, '_> {
    fn err<T>(&self, reason: impl Into<String>) -> Result<T> {
        self.body.err(reason)
    }

    /// Consumes a modifier; whether it is there.
    fn take(&mut self, m: &str) -> bool {
        self.first(|part| (part == m).then_some(())).is_some()
    }

    /// Consumes the first of these modifiers that is there.
    fn take_one(&mut self, words: &[&str]) -> bool {
        words.iter().any(|word| self.take(word))
    }

    /// Consumes the first modifier that means something here.
    fn first<T>(&mut self, meaning: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, meaning) = self.mods.iter().enumerate().find_map(|(at, m)| Some((at, meaning(m)?)))?;
        self.mods.remove(at);
        Some(meaning)
    }

    /// As [`first`](Self::first); an error if there is none.
    fn need<T>(&mut self, meaning: impl Fn(&str) -> Option<T>, error: &str) -> Result<T> {
        self.first(meaning).ok_or_else(|| PtxError::new(self.body.line, error))
    }

    fn ty(&mut self) -> Result<Ty> {
        self.need(Ty::parse, "a type is missing")
    }

    /// An integer type, and its bits.
    fn int_ty(&mut self) -> Result<(IntTy, u32)> {
        let ty = self.ty()?;
        match ty.int() {
            Some(t) => Ok((t, ty.bits())),
            None => self.err("an integer type is expected"),
        }
    }

    /// Consumes the type, which can only be b32.
    fn b32(&mut self) -> Result<()> {
        if self.ty()? == Ty::B(32) { Ok(()) } else { self.err("the type is b32") }
    }

    fn count(&self, n: RangeInclusive<usize>) -> Result<()> {
        match self.args.len() {
            found if n.contains(&found) => Ok(()),
            found => self.err(format!("{found} operands do not fit")),
        }
    }

    /// Operand `n` as a source.
    fn src(&mut self, n: usize, bits: u32) -> Result<Row> {
        self.body.src(&self.args[n], bits, false)
    }

    fn pred(&mut self, n: usize) -> Result<Row> {
        self.body.pred(&self.args[n])
    }

    /// Operand 0 as the destination.
    fn dst(&mut self, bits: u32) -> Result<()> {
        self.i.d = self.body.dst(&self.args[0], bits)?;
        Ok(())
    }

    fn pred_dst(&mut self) -> Result<()> {
        self.i.d = self.body.pred_dst(&self.args[0])?;
        Ok(())
    }

    /// The lanes that a `.sync` names in operand `n`.
    fn lanes(&mut self, n: usize, sync: bool) -> Result<()> {
        self.i.imm = if sync { self.src(n, 32)? as i64 } else { -1 };
        Ok(())
    }

    /// d and as many of a, b, c, e as there are `sources`, with these bits; all operands.
    fn operands(&mut self, d: u32, sources: &[u32]) -> Result<()> {
        self.count(sources.len() + 1..=sources.len() + 1)?;
        self.leading(d, sources, false)
    }

    /// As [`operands`](Self::operands), of the leading operands.
    fn leading(&mut self, d: u32, sources: &[u32], float: bool) -> Result<()> {
        self.dst(d)?;
        let Inst { a, b, c, e, .. } = &mut self.i;
        for ((place, &bits), arg) in [a, b, c, e].into_iter().zip(sources).zip(&self.args[1..]) {
            *place = self.body.src(arg, bits, float)?;
        }
        Ok(())
    }

    /// d, a (, b (, c)) all of `bits`.
    fn regular(&mut self, n: usize, bits: u32, float: bool) -> Result<()> {
        self.count(n..=n)?;
        self.leading(bits, &[bits; 3][..n - 1], float)
    }

    fn decode(&mut self) -> Result<()> {
        match self.base {
            "mov" => self.mov(),
            "add" | "sub" | "mul" | "div" | "min" | "max" | "neg" | "abs" | "mad" | "fma" => {
                self.arithmetic()
            }
            "addc" | "subc" | "madc" => {
                let ty = self.ty()?;
                self.carry(ty, true)
            }
            "sqrt" | "rcp" | "rsqrt" | "sin" | "cos" | "lg2" | "ex2" | "tanh" => self.special_function(),
            "rem" | "mul24" | "mad24" | "sad" | "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr"
            | "shf" | "bfe" | "bfi" | "bfind" | "brev" | "clz" | "popc" | "prmt" | "lop3" | "dp4a"
            | "dp2a" | "bmsk" | "szext" => self.integer(),
            "setp" | "set" | "selp" | "slct" | "testp" | "copysign" => self.compare(),
            "cvt" => self.cvt(),
            "cvta" | "isspacep" | "ld" | "ldu" | "st" | "atom" | "red" | "prefetch" | "prefetchu" => {
                self.memory()
            }
            "shfl" | "vote" | "activemask" | "match" | "bar" | "barrier" | "membar" | "fence"
            | "nanosleep" => self.warp(),
            "mma" | "ldmatrix" => self.matrix(),
            "tex" | "tld4" | "txq" | "suld" | "sust" | "suq" => self.texture(),
            "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "pmevent" => self.control(),
            base if base.starts_with('v') => self.video(),
            _ => self.err("unknown or unsupported instruction"),
        }
    }
}
