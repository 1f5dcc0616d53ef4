//! Exchange between lanes, barriers, branches, calls.

use super::super::PtxError;
use super::super::inst::*;
use super::super::operand::{Arg, Body, Name, Width};
use super::{Mods, Ty};
use crate::counters::Class;

impl<'a> Body<'a, '_> {
    pub(super) fn warp(
        &mut self,
        base: &str,
        m: &mut Mods<'a>,
        args: &[Arg<'a>],
        i: &mut Inst,
    ) -> Result<(), PtxError> {
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

    pub(super) fn control(
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

    /// `call{.uni} (ret), callee, (args)`; `signature` gives a function's formal parameters and results.
    pub(in crate::ptx) fn call(
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
