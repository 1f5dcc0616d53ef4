//! The instruction loop of a warp.
//!
//! Divergence is handled as on chips before Volta: a branch on which lanes disagree pushes one entry per side,
//! which run one after the other until they reach the branch's immediate post-dominator. `independent` has what later chips add.

use super::access;
use super::alu;
use super::atomic;
use super::block::{Block, Check};
use super::exchange;
use super::independent::{self, Met};
use super::line_costs;
use super::matrix;
use super::order;
use super::print;
use super::regs::{FULL, LANES, lanes, store_wide};
use super::surface;
use super::texture;
use super::warp::{Entry, Frame, Stop, Wait, Warp};
use crate::finding::FindingKind;
use crate::ptx::SourceLine;
use crate::ptx::inst::*;

const NOWHERE: u32 = u32::MAX;

impl Warp {
    /// PTX line of the warp's next instruction.
    pub fn line(&self, b: &Block<'_>) -> u32 {
        let (Some(f), Some(e)) = (self.frames.last(), self.stack.last()) else { return 0 };
        b.job.functions[f.function as usize].code.get(e.pc as usize).map_or(0, |i| i.line)
    }

    /// Begins a function for the lanes of `mask`.
    pub fn enter(&mut self, b: &Block<'_>, function: u32, mask: u32) {
        let mut local_base = 0;
        if let Some(top) = self.frames.last() {
            let caller = &b.job.functions[top.function as usize];
            self.regs.base32 += caller.rows32 as usize;
            self.regs.base64 += caller.rows64 as usize;
            self.regs.base_pred += caller.preds as usize;
            local_base = top.local_base + caller.local_bytes.next_multiple_of(16);
        }
        let f = &b.job.functions[function as usize];
        let r = &mut self.regs;
        grow(&mut r.r32, r.base32 + f.rows32 as usize);
        grow(&mut r.r64, r.base64 + f.rows64 as usize);
        grow(&mut r.preds, r.base_pred + f.preds as usize);
        // lanes of other paths may be in a function of their own
        let lanes = if self.parked.is_empty() { FULL } else { mask };
        r.preds[r.base_pred] &= !lanes;
        // a warp of an earlier block has left what does not depend on the block
        let is_entry = self.frames.is_empty();
        let again = is_entry && self.entered;
        self.entered |= is_entry;
        for &(row, wide, init) in f.inits.iter().filter(|&&(.., init)| !again || Block::varies(init)) {
            let value = |lane| b.init_value(init, self.id, lane, local_base as i64);
            let values = match Block::uniform(init) {
                true => [value(0); LANES],
                false => std::array::from_fn(|lane| value(lane as u32)),
            };
            store_wide(&mut self.regs, row, wide, &values, lanes);
        }
        self.frames.push(Frame { function, floor: self.stack.len(), local_base, mask });
        self.stack.push(Entry { pc: 0, rpc: NOWHERE, mask });
    }

    /// Pops the top frame and copies its results to the caller.
    fn leave(&mut self, b: &Block<'_>) {
        let Some(frame) = self.frames.pop() else { return };
        let Some(caller) = self.frames.last() else { return };
        let function = &b.job.functions[caller.function as usize];
        self.regs.base32 -= function.rows32 as usize;
        self.regs.base64 -= function.rows64 as usize;
        self.regs.base_pred -= function.preds as usize;
        let Some(e) = self.stack.last() else { return };
        let site = &function.calls[function.code[e.pc as usize - 1].imm as usize];
        let (caller_base, callee_base) = (caller.local_base as usize, frame.local_base as usize);
        for lane in lanes(frame.mask & self.live) {
            let stride = lane * self.local_bytes;
            // a function that was called by pointer may have its results elsewhere than the prototype
            let places = &b.job.functions[frame.function as usize].signature.returns;
            for (&(from, _), &(_, to, bytes)) in places.iter().zip(&site.rets) {
                let at = stride + callee_base + from as usize;
                match to {
                    Value::Local(offset) => {
                        self.copy_local(at, stride + caller_base + offset as usize, bytes as usize)
                    }
                    Value::Row32(row) => {
                        self.regs.row32_mut(row)[lane] = read_le(&self.local[at..][..bytes as usize]) as u32
                    }
                    Value::Row64(row) => self.regs.row64_mut(row)[lane] = read_le(&self.local[at..][..8]),
                }
            }
        }
    }

    /// Calls a function, whose parameters have the bytes that the call's have.
    pub fn call(&mut self, b: &Block<'_>, f: &Function, site: &CallSite, callee: u32, mask: u32) {
        let Some(frame) = self.frames.last() else { return };
        let caller_base = frame.local_base as usize;
        let callee_base = caller_base + f.local_bytes.next_multiple_of(16) as usize;
        let Function { signature, local_bytes, .. } = &b.job.functions[callee as usize];
        let callee_bytes = *local_bytes as usize;
        for lane in lanes(mask) {
            let stride = lane * self.local_bytes;
            if !self.local_written.is_empty() {
                self.local_written[stride + callee_base..][..callee_bytes].fill(0);
            }
            for (&(value, ..), &(to, bytes)) in site.args.iter().zip(&signature.formals) {
                let (to, bytes) = (stride + callee_base + to as usize, bytes as usize);
                let v = match value {
                    Value::Local(from) => {
                        self.copy_local(stride + caller_base + from as usize, to, bytes);
                        continue;
                    }
                    Value::Row32(row) => self.regs.row32(row)[lane] as u64,
                    Value::Row64(row) => self.regs.row64(row)[lane],
                };
                self.local[to..to + bytes].copy_from_slice(&v.to_le_bytes()[..bytes]);
                if !self.local_written.is_empty() {
                    self.local_written[to..to + bytes].fill(1);
                }
            }
        }
        self.enter(b, callee, mask);
    }

    /// Runs until the warp ends, waits, or has used up its quantum.
    pub fn run(&mut self, b: &mut Block<'_>, quantum: u32) -> Check<Stop> {
        let stop = match b.job.independent {
            true => self.run_paths(b, quantum),
            false => self.run_instructions(b, quantum),
        };
        stop.map_err(|mut finding| {
            finding.source.extend(self.calls(b));
            finding
        })
    }

    /// The places of the calls that lead to the running function, from the inside out.
    fn calls(&self, b: &Block<'_>) -> Vec<SourceLine> {
        let callers = self.frames.iter().zip(self.frames.iter().skip(1)).rev();
        let lines = callers.filter_map(|(caller, frame)| {
            let entry = self.stack.get(frame.floor.checked_sub(1)?)?;
            b.job.functions[caller.function as usize]
                .code
                .get(entry.pc.checked_sub(1)? as usize)
                .map(|inst| inst.line)
        });
        lines.flat_map(|line| b.job.lines.find(line)).collect()
    }

    /// On x86-64 the same code is compiled a second time for AVX2 and FMA.
    pub(super) fn run_instructions(&mut self, b: &mut Block<'_>, quantum: u32) -> Check<Stop> {
        #[cfg(target_arch = "x86_64")]
        if b.job.fast.is_there() {
            // SAFETY: `Fast::detect` saw the features on this CPU.
            return unsafe { self.run_fast(b, quantum) };
        }
        self.run_any(b, quantum)
    }

    /// # Safety
    /// The CPU has the features.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    unsafe fn run_fast(&mut self, b: &mut Block<'_>, quantum: u32) -> Check<Stop> {
        self.run_any(b, quantum)
    }

    #[inline(always)]
    fn run_any(&mut self, b: &mut Block<'_>, quantum: u32) -> Check<Stop> {
        let job = b.job;
        let mut left = quantum;
        'entry: loop {
            while let Some(frame) = self.frames.last()
                && self.stack.len() <= frame.floor
            {
                if self.frames.len() == 1 {
                    return Ok(Stop::Done);
                }
                self.leave(b);
            }
            let (Some(&frame), Some(&Entry { mut pc, rpc, mask: active })) =
                (self.frames.last(), self.stack.last())
            else {
                return Ok(Stop::Done);
            };
            if active == 0 {
                self.stack.pop();
                continue;
            }
            let f = &job.functions[frame.function as usize];
            let top = self.stack.len() - 1;
            let start = job.starts[frame.function as usize];
            loop {
                let end = if rpc < pc { f.code.len() as u32 } else { rpc.min(f.code.len() as u32) };
                let range = pc..end.min(pc.saturating_add(left));
                let counts = (&mut b.counters, b.costs.get_mut(start..).unwrap_or_default());
                let to = alu::run(job.fast, &mut self.regs, f, range, active, counts);
                left -= to - pc;
                b.steps += u64::from(to - pc);
                self.step += to - pc;
                pc = to;
                if pc == rpc {
                    self.stack.pop();
                    continue 'entry;
                }
                if left == 0 {
                    self.stack[top].pc = pc;
                    return Ok(Stop::Quantum);
                }
                left -= 1;
                let inst = &f.code[pc as usize];
                let mask = if inst.guard == NONE { active } else { active & self.regs.pred(inst.guard) };
                b.steps += 1;
                b.counters.warp_instructions[inst.class as usize] += 1;
                if let Some(cost) = b.costs.get_mut(start + pc as usize) {
                    cost.warp_instructions += 1;
                }
                b.counters.thread_instructions[inst.class as usize] += mask.count_ones() as u64;
                self.step += 1;
                if job.independent
                    && mask != 0
                    && independent::meets(inst.op)
                    && let Met::Groups(groups) = self.meet(b, pc, inst, mask)?
                {
                    for group in groups {
                        self.exchange(b, f, (inst, start + pc as usize), group)?;
                    }
                    self.stack[top].pc = pc + 1;
                    self.join(b);
                    if self.waiting.is_some() {
                        return Ok(Stop::Barrier);
                    }
                    continue 'entry;
                }
                match inst.op {
                    Op::Bra if mask == 0 => b.counters.branches += 1,
                    _ if mask == 0 => {}
                    Op::Bra => {
                        b.counters.branches += 1;
                        if mask == active {
                            pc = inst.imm as u32;
                            continue;
                        }
                        b.counters.divergent_branches += 1;
                        let sides = [(inst.imm as u32, mask), (pc + 1, active & !mask)];
                        self.diverge(f.reconverge[pc as usize], &sides);
                        continue 'entry;
                    }
                    Op::Brx => {
                        self.branch_table(b, f, pc, active, mask)?;
                        continue 'entry;
                    }
                    Op::Call => {
                        self.stack[top].pc = pc + 1;
                        let site = &f.calls[inst.imm as usize];
                        if let Some(callee) = site.callee {
                            self.call(b, f, site, callee, mask);
                        }
                        continue 'entry;
                    }
                    Op::CallAgain => {
                        self.call_again(b, f, pc, mask)?;
                        continue 'entry;
                    }
                    Op::CallPointer => {
                        self.call_pointer(b, f, pc, mask)?;
                        continue 'entry;
                    }
                    Op::Print => print::vprintf(b, self, &f.calls[inst.imm as usize], inst, mask)?,
                    Op::AssertFail => {
                        return print::assert_fail(b, self, &f.calls[inst.imm as usize], inst, mask);
                    }
                    Op::Ret | Op::Exit => {
                        self.stack[top].pc = pc + 1;
                        let kernel = inst.op == Op::Exit || self.frames.len() == 1;
                        if kernel {
                            self.live &= !mask;
                        }
                        self.remove(mask, if kernel { 0 } else { frame.floor });
                        continue 'entry;
                    }
                    Op::Trap => {
                        let thread = self.id * 32 + mask.trailing_zeros();
                        return Err(b.finding(FindingKind::Trap, inst.line, thread, "trap"));
                    }
                    Op::Bar { .. } => {
                        self.stack[top].pc = pc + 1;
                        self.exchange(b, f, (inst, start + pc as usize), mask)?;
                        return Ok(Stop::Barrier);
                    }
                    Op::Ld(_)
                    | Op::St(_)
                    | Op::Atom { .. }
                    | Op::Fetch(_)
                    | Op::SurfaceLoad(_)
                    | Op::SurfaceStore(_)
                        if !b.costs.is_empty() =>
                    {
                        let before = line_costs::traffic(&b.counters);
                        self.access(b, f, (inst, start + pc as usize), mask)?;
                        b.costs[start + pc as usize].add_traffic(before, &b.counters);
                    }
                    Op::Ld(_) | Op::St(_) | Op::Atom { .. } => {
                        self.access(b, f, (inst, start + pc as usize), mask)?
                    }
                    Op::Fetch(_) | Op::SurfaceLoad(_) | Op::SurfaceStore(_) => {
                        self.access(b, f, (inst, start + pc as usize), mask)?
                    }
                    Op::Query { query, surface } => texture::query(b, self, inst, query, surface, mask)?,
                    Op::Cvta { .. } | Op::IsSpace { .. } => access::address(self, inst, mask),
                    Op::Shfl { .. }
                    | Op::Vote { .. }
                    | Op::Match { .. }
                    | Op::WarpSync
                    | Op::Mma(_)
                    | Op::LoadMatrix(_) => self.exchange(b, f, (inst, start + pc as usize), mask)?,
                    Op::Sleep => {
                        self.stack[top].pc = pc + 1;
                        return Ok(Stop::Quantum);
                    }
                    Op::Activemask => {
                        for lane in lanes(mask) {
                            self.regs.row32_mut(inst.d)[lane] = mask;
                        }
                    }
                    Op::Clock(c) => {
                        let t = b.steps;
                        for lane in lanes(mask) {
                            match c {
                                Clock::Clock32 => self.regs.row32_mut(inst.d)[lane] = t as u32,
                                Clock::Clock32Hi => self.regs.row32_mut(inst.d)[lane] = (t >> 32) as u32,
                                Clock::Clock64 | Clock::Globaltimer => self.regs.row64_mut(inst.d)[lane] = t,
                            }
                        }
                    }
                    Op::Fence => {
                        self.fence(b);
                        if job.orders {
                            order::fence(self);
                        }
                    }
                    Op::Nop => {}
                    _ => unreachable!("a register instruction"),
                }
                pc += 1;
            }
        }
    }

    /// Instructions of several lanes together.
    #[inline(always)]
    fn exchange(&mut self, b: &mut Block<'_>, f: &Function, at: (&Inst, usize), mask: u32) -> Check {
        let inst = at.0;
        match inst.op {
            Op::Mma(mma) => matrix::multiply(b, self, f, inst, mma, mask),
            Op::LoadMatrix(load) => matrix::load(b, self, f, at, load, mask),
            Op::Shfl { mode, sync } => exchange::shuffle(b, self, inst, mode, sync, mask),
            Op::Vote { mode, sync } => exchange::vote(b, self, inst, mode, sync, mask),
            Op::Match { wide } => exchange::equal_lanes(b, self, inst, wide, mask),
            Op::Bar { red, arrive } => self.barrier(b, inst, red, arrive, mask),
            Op::WarpSync => {
                exchange::converged(b, self, inst, mask)?;
                self.sync += 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn fence(&mut self, b: &Block<'_>) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        self.sync += 1;
        b.fence();
    }

    #[inline(always)]
    fn access(&mut self, b: &mut Block<'_>, f: &Function, at: (&Inst, usize), mask: u32) -> Check {
        let inst = at.0;
        let order = match inst.op {
            Op::Ld(Access { order, .. }) | Op::St(Access { order, .. }) | Op::Atom { order, .. } => order,
            _ => Order::Relaxed,
        };
        if order.releases() {
            self.fence(b);
        }
        match inst.op {
            Op::Ld(a) => access::load(b, self, f, at, a, mask),
            Op::St(a) => access::store(b, self, f, at, a, mask),
            Op::Atom { op, ty, space, addr_wide, order } => {
                atomic::atomic(b, self, at, (op, ty, order), (space, addr_wide), mask)
            }
            Op::Fetch(fetch) => texture::fetch(b, self, f, at, fetch, mask),
            Op::SurfaceLoad(a) => surface::access(b, self, f, at, (a, true), mask),
            Op::SurfaceStore(a) => surface::access(b, self, f, at, (a, false), mask),
            _ => Ok(()),
        }?;
        if order.acquires() {
            self.fence(b);
        }
        Ok(())
    }

    /// Replaces the top entry by one per side, each with some lanes; they reconverge at `rpc`.
    fn diverge(&mut self, rpc: u32, sides: &[(u32, u32)]) {
        let Some(top) = self.stack.last_mut() else { return };
        if top.rpc == rpc {
            // The entry below reconverges at the same place, so one of the two is enough, and loops stay shallow.
            self.stack.pop();
        } else {
            top.pc = rpc;
        }
        for &(pc, mask) in sides {
            if pc != rpc {
                self.stack.push(Entry { pc, rpc, mask });
            }
        }
    }

    fn branch_table(&mut self, b: &mut Block<'_>, f: &Function, pc: u32, active: u32, mask: u32) -> Check {
        let inst = &f.code[pc as usize];
        let table = &f.lists[inst.b as usize..][..inst.imm as usize];
        let index = *self.regs.row32(inst.a);
        b.counters.branches += 1;
        let mut sides: Vec<(u32, u32)> = Vec::new();
        if active & !mask != 0 {
            sides.push((pc + 1, active & !mask));
        }
        for lane in lanes(mask) {
            let Some(&target) = table.get(index[lane] as usize) else {
                let message = format!("branch index {} of {} targets", index[lane], table.len());
                return Err(b.finding(
                    FindingKind::OutOfBounds,
                    inst.line,
                    self.id * 32 + lane as u32,
                    message,
                ));
            };
            match sides.iter_mut().find(|s| s.0 == target) {
                Some(s) => s.1 |= 1 << lane,
                None => sides.push((target, 1 << lane)),
            }
        }
        if let [(target, _)] = sides[..] {
            if let Some(top) = self.stack.last_mut() {
                top.pc = target;
            }
        } else {
            b.counters.divergent_branches += 1;
            self.diverge(f.reconverge[pc as usize], &sides);
        }
        Ok(())
    }

    fn barrier(&mut self, b: &mut Block<'_>, inst: &Inst, red: BarRed, arrive: bool, mask: u32) -> Check {
        let lane = mask.trailing_zeros();
        let thread = self.id * 32 + lane;
        b.counters.barriers += 1;
        if b.job.config.checks.convergence && mask != self.live {
            let missing = (self.live & !mask).trailing_zeros();
            let [x, y, z] = b.thread(self.id * 32 + missing);
            let message = format!("thread ({x},{y},{z}) of the same warp is not at this barrier");
            return Err(b.finding(FindingKind::BarrierDivergence, inst.line, thread, message));
        }
        let barrier = self.regs.row32(inst.a)[lane as usize];
        if barrier > 15 {
            let message = format!("barrier {barrier}: there are 16");
            return Err(b.finding(FindingKind::BarrierDivergence, inst.line, thread, message));
        }
        let threads = (inst.b != NONE).then(|| self.regs.row32(inst.b)[lane as usize]);
        if let Some(n) = threads
            && (n == 0 || n % 32 != 0)
        {
            let message = format!("a barrier of {n} threads: a multiple of 32 is expected");
            return Err(b.finding(FindingKind::BarrierDivergence, inst.line, thread, message));
        }
        self.waiting = Some(Wait {
            barrier: barrier as usize,
            // A count of all threads means the same as no count.
            threads: threads.filter(|&n| n != b.threads.next_multiple_of(32)),
            red,
            arrive,
            predicate: if inst.c == NONE { 0 } else { self.regs.pred(inst.c) },
            mask,
            dst: inst.d,
            line: inst.line,
        });
        Ok(())
    }
}

fn grow<T: Clone + Default>(v: &mut Vec<T>, n: usize) {
    if v.is_empty() {
        *v = vec![T::default(); n]; // of zeros, which the allocator has
    } else if v.len() < n {
        v.resize(n, T::default());
    }
}

fn read_le(bytes: &[u8]) -> u64 {
    let mut b = [0; 8];
    b[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(b)
}
