//! Calls by pointer, and of functions that may be running already: their depth is checked when they are made. Lanes that call
//! different functions by pointer do so one function after the other, and go on together.

use super::block::{Block, Check};
use super::regs::{LANES, lanes};
use super::warp::{Entry, Warp};
use crate::finding::FindingKind;
use crate::memory::{CODE_STEP, POISON};
use crate::ptx::inst::{CallSite, Function, MAX_LOCAL};

/// How deep functions may call each other where a call is by pointer or closes a circle.
const MAX_DEPTH: usize = 1024;
/// The most rows of registers of all running functions of a warp.
const MAX_ROWS: usize = 1 << 18;

impl Warp {
    /// Begins the call at `pc` for the lanes of `mask` that call what the first one calls. The others come back to it later.
    pub fn call_pointer(&mut self, b: &mut Block<'_>, f: &Function, pc: u32, mask: u32) -> Check {
        let inst = &f.code[pc as usize];
        let site = &f.calls[inst.imm as usize];
        let addresses = self.regs.row64(inst.a);
        let first = mask.trailing_zeros() as usize;
        let address = addresses[first];
        let same =
            lanes(mask).filter(|&lane| addresses[lane] == address).fold(0, |all, lane| all | 1u32 << lane);
        let thread = self.id * 32 + first as u32;
        let wrong = |b: &Block<'_>, kind, message: String| Err(b.finding(kind, inst.line, thread, message));
        let callee = match function(b, site, address) {
            Ok(callee) => callee,
            Err(message) => return wrong(b, FindingKind::WrongCall, message),
        };
        if let Err(message) = self.make_room(b, f, callee) {
            return wrong(b, FindingKind::StackOverflow, message);
        }
        if let Some(top) = self.stack.last_mut() {
            top.pc = pc + 1;
        }
        if same != mask {
            b.counters.divergent_branches += 1;
            self.stack.push(Entry { pc, rpc: pc + 1, mask: mask & !same });
            self.stack.push(Entry { pc: pc + 1, rpc: pc + 1, mask: same });
        }
        self.call(b, f, site, callee, same);
        Ok(())
    }

    /// Calls a function that may be running already.
    pub(super) fn call_again(&mut self, b: &Block<'_>, f: &Function, pc: u32, mask: u32) -> Check {
        let inst = &f.code[pc as usize];
        let site = &f.calls[inst.imm as usize];
        if let Some(top) = self.stack.last_mut() {
            top.pc = pc + 1;
        }
        let Some(callee) = site.callee else { return Ok(()) };
        if let Err(message) = self.make_room(b, f, callee) {
            let thread = self.id * 32 + mask.trailing_zeros();
            return Err(b.finding(FindingKind::StackOverflow, inst.line, thread, message));
        }
        self.call(b, f, site, callee, mask);
        Ok(())
    }

    /// Makes local memory for a call from `f`, or says what is too much.
    fn make_room(&mut self, b: &Block<'_>, f: &Function, callee: u32) -> Result<(), String> {
        let Some(frame) = self.frames.last() else { return Ok(()) };
        let function = &b.job.functions[callee as usize];
        let rows = self.regs.base32 + self.regs.base64;
        let rows = rows
            + [f.rows32, f.rows64, function.rows32, function.rows64]
                .map(|n| n as usize)
                .iter()
                .sum::<usize>();
        if self.frames.len() >= MAX_DEPTH || rows > MAX_ROWS {
            return Err(format!("`{}` is called {} calls deep", function.name, self.frames.len()));
        }
        let end = frame.local_base + f.local_bytes.next_multiple_of(16) + function.stack_bytes;
        let stack = b.job.limits.stack.max(b.job.kernel.local_bytes);
        if end > stack {
            let of = if stack == MAX_LOCAL { "local memory" } else { "stack (CU_LIMIT_STACK_SIZE)" };
            let (name, depth) = (&function.name, self.frames.len());
            return Err(format!(
                "`{name}`, {depth} calls deep, needs {end} bytes of {of}: a thread has {stack}"
            ));
        }
        self.grow_local(end as usize, b.job.config.checks.uninitialized);
        Ok(())
    }

    /// Makes local memory at least `bytes` long for each lane.
    fn grow_local(&mut self, bytes: usize, track: bool) {
        let old = self.local_bytes;
        if bytes <= old {
            return;
        }
        let new = bytes.max(2 * old).min(MAX_LOCAL as usize);
        let grown = |from: &[u8], fill| {
            let mut to = vec![fill; new * LANES];
            for lane in 0..LANES {
                to[lane * new..][..old].copy_from_slice(&from[lane * old..][..old]);
            }
            to
        };
        self.local = grown(&self.local, POISON);
        if track {
            self.local_written = grown(&self.local_written, 0);
        }
        self.local_bytes = new;
    }
}

/// The function that a call by pointer reaches, or what is wrong with it.
fn function(b: &Block<'_>, site: &CallSite, address: u64) -> Result<u32, String> {
    if address == 0 {
        return Err("a null pointer".to_owned());
    }
    let at = address.wrapping_sub(b.job.code);
    let f = usize::try_from(at / CODE_STEP).ok().and_then(|id| b.job.functions.get(id));
    let Some(f) = f.filter(|f| f.address_taken && at.is_multiple_of(CODE_STEP)) else {
        return Err(format!("no function of the module begins at {address:#x}"));
    };
    let id = (at / CODE_STEP) as u32;
    let parameters = f.signature.formals.iter().map(|place| place.1);
    let results = f.signature.returns.iter().map(|place| place.1);
    if !parameters.eq(site.args.iter().map(|arg| arg.2)) || !results.eq(site.rets.iter().map(|ret| ret.2)) {
        return Err(format!("`{}` is called with other parameters or results than it has", f.name));
    }
    if !site.targets.is_empty() && !site.targets.contains(&id) {
        return Err(format!("`{}` is not among the call's targets", f.name));
    }
    Ok(id)
}
