//! Bit operations, shifts, dot products.

use super::super::PtxError;
use super::super::inst::*;
use super::super::operand::{Arg, Body, Imm};
use super::{Mods, Ty, logic};
use crate::counters::Class;

impl<'a> Body<'a, '_> {
    pub(super) fn integer(
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
}
