//! Loads, stores, atomics, address conversions.

use super::super::inst::*;
use super::super::operand::{Arg, Name};
use super::{Decoder, Result, Ty};
use crate::counters::Class;

pub(super) const SCOPES: [&str; 3] = ["cta", "gpu", "sys"];

impl Decoder<'_, '_, '_> {
    pub(super) fn memory(&mut self) -> Result<()> {
        let constant = self.mods.contains(&"const");
        let space = self.first(|s| match s {
            // Constant variables are in global memory here.
            "global" | "const" => Some(Space::Global),
            "shared" | "shared::cta" => Some(Space::Shared),
            "local" => Some(Space::Local),
            "param" => Some(Space::Param),
            _ => None,
        });
        match self.base {
            "cvta" => {
                let to = self.take("to");
                let (Ty::U(bits @ (32 | 64)), Some(space)) = (self.ty()?, space) else {
                    return self.err("the form is cvta{.to}.<space>.u64");
                };
                if space == Space::Param {
                    return self.err("cvta.param is newer than ISA 6.4");
                }
                if bits == 32 {
                    return self.err("32-bit addressing is not supported");
                }
                self.i.class = Class::Int;
                self.i.op = Op::Cvta { space, to, wide: true };
                self.regular(2, bits, false)
            }
            "isspacep" => {
                let Some(space) = space else { return self.err("the space is missing") };
                self.count(2..=2)?;
                self.i.class = Class::Int;
                self.pred_dst()?;
                self.i.a = self.src(1, 64)?;
                self.i.op = Op::IsSpace { space };
                Ok(())
            }
            "prefetch" | "prefetchu" => {
                if !self.take_one(&["L1", "L2"]) {
                    return self.err("the cache level is missing");
                }
                self.count(1..=1)?;
                self.body.address(&self.args[0]).map(|_| ())
            }
            "ld" | "ldu" | "st" => self.access(space, constant),
            _ => self.atomic(space.unwrap_or(Space::Generic)),
        }
    }

    fn access(&mut self, space: Option<Space>, constant: bool) -> Result<()> {
        let volatile = self.take("volatile");
        let order = if volatile { None } else { self.order()? };
        for hint in ["weak", "nc"] {
            self.take(hint);
        }
        if order.is_none() {
            self.take_one(&["ca", "cg", "cs", "lu", "cv", "wb", "wt"]);
        }
        let vectors = |s: &str| [("v2", 2), ("v4", 4)].into_iter().find(|v| v.0 == s).map(|v| v.1);
        let count = self.first(vectors).unwrap_or(1);
        let ty = self.ty()?;
        let bits = ty.bits();
        if ty == Ty::Pred || bits * count > 128 {
            return self.err("this width does not exist");
        }
        self.count(2..=2)?;
        let load = self.base != "st";
        let args = self.args;
        let (data, addr) = if load { (&args[0], &args[1]) } else { (&args[1], &args[0]) };
        let (row, addr_wide, imm, name) = self.body.address(addr)?;
        let of_call = space == Some(Space::Param);
        let space = match (space.unwrap_or(Space::Generic), name) {
            // `.param` variables of functions and call sites are in local memory.
            (Space::Param, Some(Name::Local(_))) => Space::Local,
            (Space::Param, Some(Name::KernelParam(_))) if load => Space::Param,
            (Space::Param, None) if !self.body.entry => Space::Local,
            (Space::Param, None) if load => Space::Param,
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
        match order {
            Some(order) if order.acquires() && !load || order.releases() && load => {
                return self.err("loads acquire and stores release");
            }
            Some(_) if constant || !matches!(space, Space::Generic | Space::Global | Space::Shared) => {
                return self.err("an order is for global and shared memory");
            }
            _ => {}
        }
        let float = ty.float() && bits > 16;
        let parts = match data {
            Arg::Vector(parts) if parts.len() == count as usize => parts.as_slice(),
            data if count == 1 => std::slice::from_ref(data),
            _ => return self.err("the vector's length is not the instruction's"),
        };
        let b = &mut *self.body;
        let rows = parts.iter().map(|p| if load { b.dst_any(p, bits) } else { b.src_any(p, bits, float) });
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let wide = rows[0].1;
        // A `_` has the type's width, so it cannot be in a vector of wider registers.
        if rows.iter().any(|r| r.1 != wide) {
            return self.err("the vector's registers have different widths");
        }
        (self.i.a, self.i.imm) = (row, imm);
        let f = &mut self.body.f;
        let register = if count == 1 { rows[0].0 } else { f.lists.len() as u32 };
        if count > 1 {
            f.lists.extend(rows.iter().map(|r| r.0));
        }
        let (size, count, signed) = ((bits / 8) as u8, count as u8, matches!(ty, Ty::S(_)));
        let (strong, order) = (volatile || order.is_some(), order.unwrap_or(Order::Relaxed));
        let access = Access { space, size, count, signed, wide, addr_wide, of_call, strong, order };
        if matches!(space, Space::Shared | Space::Generic) {
            f.granule = f.granule.min(size);
        }
        if !load && matches!(space, Space::Global | Space::Generic) {
            f.store_granule = f.store_granule.min(size * count);
        }
        if load {
            self.i.d = register;
            self.i.op = Op::Ld(access);
        } else {
            if constant {
                return self.err("constant memory cannot be written");
            }
            self.i.b = register;
            self.i.op = Op::St(access);
        }
        self.i.class = match (space, load) {
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

    /// Consumes an access's order and the scope that belongs to it, if there is one.
    fn order(&mut self) -> Result<Option<Order>> {
        let order = self.first(Order::word);
        if order.is_some() && !self.take_one(&SCOPES) {
            return self.err("the scope is missing");
        }
        Ok(order)
    }

    fn atomic(&mut self, space: Space) -> Result<()> {
        if !matches!(space, Space::Generic | Space::Global | Space::Shared) {
            return self.err("atomics are for global and shared memory");
        }
        let order = match self.order()? {
            Some(order) => order,
            None => {
                self.take_one(&SCOPES);
                Order::Relaxed
            }
        };
        let op = self.need(Atom::word, "the operation is missing")?;
        let without_flush = self.take("noftz");
        let ty = self.ty()?;
        let bits = ty.bits();
        let Some(num) = ty.num() else { return self.err("this type has no atomics here") };
        let fits = match op {
            Atom::Cas if ty == Ty::B(16) => true,
            Atom::Add if ty == Ty::F(16) => without_flush,
            _ if without_flush => false,
            Atom::And | Atom::Or | Atom::Xor | Atom::Exch | Atom::Cas => matches!(ty, Ty::B(32 | 64)),
            Atom::Inc | Atom::Dec => ty == Ty::U(32),
            Atom::Min | Atom::Max => matches!(ty, Ty::U(32 | 64) | Ty::S(32 | 64)),
            Atom::Add => matches!(ty, Ty::U(32 | 64) | Ty::S(32) | Ty::F(32 | 64)),
        };
        let red = self.base == "red";
        if !fits || red && (matches!(op, Atom::Exch | Atom::Cas) || order.acquires()) {
            return self.err("this atomic operation does not exist");
        }
        // `red` has no old value to give
        let first = usize::from(!red);
        let n = first + 2 + (op == Atom::Cas) as usize;
        self.count(n..=n)?;
        if !red {
            self.dst(bits)?;
        }
        let (row, addr_wide, imm, name) = self.body.address(&self.args[first])?;
        if matches!(name, Some(Name::KernelParam(_) | Name::Local(_)))
            || (!addr_wide && space != Space::Shared)
        {
            return self.err("this address is not for atomics");
        }
        (self.i.a, self.i.imm) = (row, imm);
        self.i.b = self.body.src(&self.args[first + 1], bits, ty.float() && bits > 16)?;
        if op == Atom::Cas {
            self.i.c = self.src(first + 2, bits)?;
        }
        self.i.class = if space == Space::Shared { Class::AtomicShared } else { Class::AtomicGlobal };
        self.i.op = Op::Atom { op, ty: num, space, addr_wide, order };
        if space != Space::Global {
            self.body.f.granule = self.body.f.granule.min((bits / 8) as u8);
        }
        Ok(())
    }
}
