//! Bit operations, shifts, dot products.

use super::super::inst::*;
use super::super::operand::{Arg, Imm};
use super::{Decoder, Result, Ty};
use crate::counters::Class;

impl Decoder<'_, '_, '_> {
    pub(super) fn integer(&mut self) -> Result<()> {
        let base = self.base;
        self.i.class = Class::Int;
        match base {
            "and" | "or" | "xor" | "not" => {
                let ty = self.ty()?;
                let logic = Logic::word(base);
                let n = 2 + usize::from(logic.is_some());
                if ty == Ty::Pred {
                    self.count(n..=n)?;
                    self.pred_dst()?;
                    self.i.a = self.pred(1)?;
                    if logic.is_some() {
                        self.i.b = self.pred(2)?;
                    } else {
                        self.i.a ^= NEG;
                        self.i.b = self.i.a;
                    }
                    self.i.op = Op::PredLogic(logic.unwrap_or(Logic::Or));
                    return Ok(());
                }
                let (Ty::B(_), Some(t)) = (ty, ty.int()) else { return self.err("a .b type is expected") };
                self.i.op = IBin::word(base).map_or(Op::IUn(IUn::Not, t), |op| Op::IBin(op, t));
                self.regular(n, ty.bits(), false)
            }
            "rem" => {
                let (t, bits) = self.int_ty()?;
                self.i.class = Class::IntDiv;
                self.i.op = Op::IBin(IBin::Rem, t);
                self.regular(3, bits, false)
            }
            "cnot" => {
                let (t, bits) = self.int_ty()?;
                self.i.op = Op::IUn(IUn::CNot, t);
                self.regular(2, bits, false)
            }
            "shl" | "shr" => {
                let (t, bits) = self.int_ty()?;
                self.i.op = Op::IBin(if base == "shl" { IBin::Shl } else { IBin::Shr }, t);
                self.operands(bits, &[bits, 32])
            }
            "shf" => {
                let left = self.take("l");
                if !left && !self.take("r") {
                    return self.err(".l or .r is missing");
                }
                let clamp = self.take("clamp");
                if (!clamp && !self.take("wrap")) || self.ty()? != Ty::B(32) {
                    return self.err("the form is shf.{l,r}.{clamp,wrap}.b32");
                }
                self.i.op = Op::Shf { left, clamp };
                self.regular(4, 32, false)
            }
            "mul24" | "mad24" => {
                let (t, _) = self.int_ty()?;
                let op = self.first(|m| {
                    let word = format!("{base}.{m}");
                    let binary = IBin::word(&word).map(|op| Op::IBin(op, t));
                    binary.or_else(|| ITri::word(&word).map(|op| Op::ITri(op, t)))
                });
                let (Some(op), IntTy::U32 | IntTy::S32) = (op, t) else {
                    return self.err("the form is .lo or .hi with .u32 or .s32");
                };
                self.i.class = Class::IntMul;
                self.i.op = op;
                self.regular(if base == "mul24" { 3 } else { 4 }, 32, false)
            }
            "bmsk" | "szext" => {
                let mode = self.need(
                    |m| ["clamp", "wrap"].iter().find(|&&mode| mode == m),
                    ".clamp or .wrap is missing",
                )?;
                let t = match (base, self.ty()?) {
                    ("bmsk", Ty::B(32)) | ("szext", Ty::U(32)) => IntTy::U32,
                    ("szext", Ty::S(32)) => IntTy::S32,
                    _ => return self.err("the types are b32 of bmsk, u32 and s32 of szext"),
                };
                let Some(op) = IBin::word(&format!("{base}.{mode}")) else {
                    return self.err("this form does not exist");
                };
                self.i.op = Op::IBin(op, t);
                self.regular(3, 32, false)
            }
            "sad" => {
                let (t, bits) = self.int_ty()?;
                self.i.op = Op::ITri(ITri::Sad, t);
                self.regular(4, bits, false)
            }
            "bfe" => {
                let ty = self.ty()?;
                let (Ty::U(bits @ (32 | 64)) | Ty::S(bits @ (32 | 64)), Some(t)) = (ty, ty.int()) else {
                    return self.err("the types are u32, s32, u64, s64");
                };
                self.i.op = Op::ITri(ITri::Bfe, t);
                self.operands(bits, &[bits, 32, 32])
            }
            "bfi" => {
                let Ty::B(bits @ (32 | 64)) = self.ty()? else {
                    return self.err("the types are b32 and b64");
                };
                self.i.op = Op::Bfi { wide: bits == 64 };
                self.operands(bits, &[bits, bits, 32, 32])
            }
            "clz" | "popc" | "brev" | "bfind" => {
                let shift = self.take("shiftamt");
                let ty = self.ty()?;
                let (Some(t), bits @ (32 | 64)) = (ty.int(), ty.bits()) else {
                    return self.err("32 or 64 bits are expected");
                };
                let op = if shift { IUn::word(&format!("{base}.shiftamt")) } else { IUn::word(base) };
                let Some(op) = op else { return self.err(".shiftamt belongs to bfind") };
                self.i.op = Op::IUn(op, t);
                self.operands(if op == IUn::Brev { bits } else { 32 }, &[bits])
            }
            "prmt" => {
                self.b32()?;
                let modes = ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"];
                let mode = self.first(|s| modes.iter().position(|&mode| mode == s));
                self.i.op = Op::Prmt(mode.map_or(0, |p| p as u8 + 1));
                self.regular(4, 32, false)
            }
            "lop3" => {
                self.b32()?;
                self.count(5..=5)?;
                let Arg::Imm(Imm::Int(table @ 0..=255)) = self.args[4] else {
                    return self.err("the last operand is a constant from 0 to 255");
                };
                self.i.imm = table as i64;
                self.i.op = Op::Lop3;
                self.leading(32, &[32; 3], false)
            }
            _ => {
                let hi = self.take("hi");
                if base == "dp2a" && !hi && !self.take("lo") {
                    return self.err(".lo or .hi is missing");
                }
                let (a, b) = (self.ty()?, self.ty()?);
                let (Ty::U(32) | Ty::S(32), Ty::U(32) | Ty::S(32)) = (a, b) else {
                    return self.err("the types are u32 and s32");
                };
                self.i.imm = (a == Ty::S(32)) as i64 | ((b == Ty::S(32)) as i64) << 1;
                self.i.class = Class::Dp4a;
                self.i.op = match (base, hi) {
                    ("dp4a", false) => Op::Dp4a,
                    ("dp2a", _) => Op::Dp2a { hi },
                    _ => return self.err(".hi belongs to dp2a"),
                };
                self.regular(4, 32, false)
            }
        }
    }
}
