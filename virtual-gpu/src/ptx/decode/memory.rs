//! Loads, stores, atomics, address conversions.

use super::super::PtxError;
use super::super::inst::*;
use super::super::operand::{Arg, Body, Name};
use super::{Mods, Ty};
use crate::counters::Class;

impl<'a> Body<'a, '_> {
    pub(super) fn memory(
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
                    return self.err("this width does not exist");
                }
                self.count(args, 2..=2)?;
                let load = base != "st";
                let (data, addr) = if load { (&args[0], &args[1]) } else { (&args[1], &args[0]) };
                let (row, addr_wide, imm, name) = self.address(addr)?;
                let space = match (space.unwrap_or(Space::Generic), name) {
                    // `.param` variables of functions and call sites are in local memory.
                    (Space::Param, Some(Name::Local(_))) => Space::Local,
                    (Space::Param, Some(Name::KernelParam(_))) if load => Space::Param,
                    (Space::Param, None) if !self.entry => Space::Local,
                    (Space::Param, _) => return self.err("this parameter cannot be accessed this way"),
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
                    _ => return self.err("the vector's length is not the instruction's"),
                }
                let wide = rows[0].1;
                // A `_` has the type's width, so it cannot be in a vector of wider registers.
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

    pub(super) fn atomic(
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
            return self.err("this atomic operation does not exist");
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

    pub(super) fn space(&self, m: &mut Mods<'a>) -> Result<Option<Space>, PtxError> {
        Ok(m.first(|s| {
            Some(match s {
                // Constant variables are in global memory here.
                "global" | "const" => Space::Global,
                "shared" | "shared::cta" => Space::Shared,
                "local" => Space::Local,
                "param" => Space::Param,
                _ => return None,
            })
        }))
    }
}
