//! Exchange between lanes, barriers, branches, calls.

use super::super::inst::*;
use super::super::operand::{Arg, Body, Name, Width};
use super::memory::SCOPES;
use super::{Decoder, Result, Ty};
use crate::counters::Class;

impl Decoder<'_, '_, '_> {
    pub(super) fn warp(&mut self) -> Result<()> {
        match self.base {
            "shfl" => {
                let sync = self.take("sync");
                let (Some(mode), Ty::B(32)) = (self.first(Shfl::word), self.ty()?) else {
                    return self.err("the form is shfl{.sync}.<mode>.b32");
                };
                let n = 4 + sync as usize;
                self.count(n..=n)?;
                match self.args[0] {
                    Arg::Pair(d, p) => {
                        self.i.d = self.body.dst(&Arg::Word(d), 32)?;
                        self.i.e = self.body.pred_dst(&Arg::Word(p))?;
                    }
                    _ => self.dst(32)?,
                }
                self.i.a = self.src(1, 32)?;
                self.i.b = self.src(2, 32)?;
                self.i.c = self.src(3, 32)?;
                self.i.class = Class::Shuffle;
                self.i.op = Op::Shfl { mode, sync };
                self.lanes(4, sync)
            }
            "vote" => {
                let sync = self.take("sync");
                let mode = self.need(Vote::word, "the vote's mode is missing")?;
                let ballot = mode == Vote::Ballot;
                if self.ty()? != if ballot { Ty::B(32) } else { Ty::Pred } {
                    return self.err("the type does not fit the vote");
                }
                let n = 2 + sync as usize;
                self.count(n..=n)?;
                if ballot {
                    self.dst(32)?
                } else {
                    self.pred_dst()?
                }
                self.i.a = self.pred(1)?;
                self.i.class = Class::Vote;
                self.i.op = Op::Vote { mode, sync };
                self.lanes(2, sync)
            }
            "activemask" => {
                self.i.class = Class::Vote;
                self.i.op = Op::Activemask;
                self.b32()?;
                self.operands(32, &[])
            }
            "membar" => {
                self.i.op = Op::Fence;
                if self.take_one(&["cta", "gl", "sys"]) { Ok(()) } else { self.err("the level is missing") }
            }
            "fence" => {
                self.i.op = Op::Fence;
                self.count(0..=0)?;
                self.take_one(&["sc", "acq_rel"]);
                if self.take_one(&SCOPES) {
                    Ok(())
                } else {
                    self.err("the form is fence{.sc,.acq_rel}.<scope>")
                }
            }
            "nanosleep" => {
                self.count(1..=1)?;
                if self.ty()? != Ty::U(32) {
                    return self.err("the type is u32");
                }
                self.src(0, 32)?;
                self.i.class = Class::Control;
                self.i.op = Op::Sleep;
                Ok(())
            }
            "match" => self.equal_lanes(),
            _ => self.barrier(),
        }
    }

    /// `match.any.sync`, `match.all.sync`
    fn equal_lanes(&mut self) -> Result<()> {
        let all = self.take("all");
        if !all && !self.take("any") || !self.take("sync") {
            return self.err("the form is match.{any,all}.sync");
        }
        let Ty::B(bits @ (32 | 64)) = self.ty()? else { return self.err("the types are b32 and b64") };
        self.count(3..=3)?;
        match self.args[0] {
            Arg::Pair(d, p) if all => {
                self.i.d = self.body.dst(&Arg::Word(d), 32)?;
                self.i.e = self.body.pred_dst(&Arg::Word(p))?;
            }
            _ => self.dst(32)?,
        }
        if all && self.i.e == NONE {
            self.i.e = self.body.pred_dst(&Arg::Word("_"))?;
        }
        self.i.a = self.src(1, bits)?;
        self.i.class = Class::Vote;
        self.i.op = Op::Match { wide: bits == 64 };
        self.lanes(2, true)
    }

    fn barrier(&mut self) -> Result<()> {
        self.take("cta");
        if self.take("warp") {
            if !self.take("sync") {
                return self.err("the form is bar.warp.sync");
            }
            self.count(1..=1)?;
            self.i.op = Op::WarpSync;
            return self.lanes(0, true);
        }
        self.i.class = Class::Barrier;
        self.take("aligned");
        let mut red = BarRed::None;
        let arrive = self.mods.contains(&"arrive");
        if self.take("sync") {
            self.count(1..=2)?;
        } else if self.take("arrive") {
            self.count(2..=2)?;
        } else if self.take("red") {
            self.count(3..=4)?;
            red = self.need(BarRed::word, "the reduction is missing")?;
            match (red, self.ty()?) {
                (BarRed::Popc, Ty::U(32)) => self.dst(32)?,
                (BarRed::And | BarRed::Or, Ty::Pred) => self.pred_dst()?,
                _ => return self.err("the type does not fit the reduction"),
            }
            self.i.c = self.pred(self.args.len() - 1)?;
        } else {
            return self.err("the form is bar.sync, bar.arrive or bar.red");
        }
        self.i.op = Op::Bar { red, arrive };
        // the barrier, and how many threads, before a reduction's predicate and after its result
        let (first, end) = match red {
            BarRed::None => (0, self.args.len()),
            _ => (1, self.args.len() - 1),
        };
        self.i.a = self.src(first, 32)?;
        if end - first == 2 {
            self.i.b = self.src(first + 1, 32)?;
        }
        Ok(())
    }

    pub(super) fn control(&mut self) -> Result<()> {
        self.i.class = Class::Control;
        self.take("uni");
        let (at, line) = (self.body.f.code.len(), self.body.line);
        match self.base {
            "bra" => {
                self.count(1..=1)?;
                let Arg::Word(label) = self.args[0] else { return self.err("a label is expected") };
                self.i.op = Op::Bra;
                self.body.scope().pending.push((at, label, line));
            }
            "brx" => {
                self.count(2..=2)?;
                let (true, Arg::Word(table)) = (self.take("idx"), &self.args[1]) else {
                    return self.err("the form is brx.idx index, table");
                };
                self.i.a = self.src(0, 32)?;
                self.i.op = Op::Brx;
                self.body.scope().pending_tables.push((at, table, line));
            }
            base => {
                self.count(0..=(base == "pmevent") as usize)?;
                self.i.op = match base {
                    "ret" => Op::Ret,
                    "exit" => Op::Exit,
                    "trap" => Op::Trap,
                    _ => Op::Nop,
                };
            }
        }
        Ok(())
    }
}

impl<'a> Body<'a, '_> {
    /// `call{.uni} (ret), callee, (args)`, with a prototype if the callee is a pointer.
    pub(in crate::ptx) fn call(
        &mut self,
        guard: Row,
        rets: &[Arg<'a>],
        (callee, prototype): (&'a str, Option<&'a str>),
        args: &[Arg<'a>],
        functions: &[Function],
    ) -> Result<()> {
        let mut inst = Inst::new(Op::Call, Class::Control, guard, self.line);
        let (function, Prototype { signature, targets }) = match (self.lookup(callee), prototype) {
            (Some(Name::Function(id)), None) => {
                let signature = functions[id as usize].signature.clone();
                (Some(id), Prototype { signature, targets: Vec::new() })
            }
            (Some(Name::Reg(row, Width::B64)), Some(label)) => {
                let mut scopes = self.scopes.iter().rev();
                let Some(found) = scopes.find_map(|scope| scope.prototypes.get(label)).cloned() else {
                    return self.err(format!("prototype `{label}` is not defined"));
                };
                (inst.op, inst.a) = (Op::CallPointer, row);
                (None, found)
            }
            (Some(Name::Reg(_, Width::B64)), None) => {
                return self.err(format!("call of `{callee}`: a call by pointer names a prototype"));
            }
            _ => {
                return self.err(format!(
                    "call of `{callee}`: it is neither a declared function nor a register of 64 bits with a prototype"
                ));
            }
        };
        let Signature { formals, returns } = signature;
        if formals.len() != args.len() || returns.len() != rets.len() {
            return self
                .err(format!("call of `{callee}`: the number of parameters differs from its declaration"));
        }
        let mut site = CallSite { callee: function, args: Vec::new(), rets: Vec::new(), targets };
        for (arg, &(at, bytes)) in args.iter().zip(&formals) {
            let name = match arg {
                Arg::Word(w) => self.lookup(w),
                _ => None,
            };
            let value = match name {
                Some(Name::Local(from)) => Value::Local(from),
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
        inst.imm = self.f.calls.len() as i64;
        self.f.calls.push(site);
        self.f.code.push(inst);
        Ok(())
    }
}
