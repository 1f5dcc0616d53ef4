//! Per kernel: the functions it reaches, the layout of its shared variables, the size of its local memory.

use super::inst::{Init, MAX_LOCAL, Op};
use super::pointers::{self, Candidates};
use super::recursion;
use super::{Module, PtxError, VarSpace};

/// The most bytes of all .global variables: with what is known of each byte they take twice that.
const MAX_GLOBAL: u64 = 1 << 30;
/// How deep functions may call each other.
const MAX_CALLS: usize = 256;
/// The most functions and calls that are gone through, over all kernels.
const MAX_VISITS: usize = 1 << 24;

pub(super) fn link(mut m: Module) -> Result<Module, PtxError> {
    let const_bytes: u64 = m.variables.iter().filter(|v| v.space == VarSpace::Const).map(|v| v.bytes).sum();
    if const_bytes > 64 << 10 {
        return Err(PtxError::new(
            1,
            format!("{const_bytes} bytes of constant memory, {} has 65536", m.arch.name()),
        ));
    }
    own_functions(&mut m);
    pointers::mark(&mut m)?;
    recursion::mark(&mut m);
    let global_bytes: u64 = m.variables.iter().filter(|v| v.space == VarSpace::Global).map(|v| v.bytes).sum();
    if global_bytes > MAX_GLOBAL {
        let reason = format!("{global_bytes} bytes of .global variables, at most {MAX_GLOBAL} are supported");
        return Err(PtxError::new(1, reason));
    }
    let mut kernels = std::mem::take(&mut m.kernels);
    let mut calls = Calls::new(&m);
    for k in &mut kernels {
        k.const_bytes = const_bytes as u32;
        k.local_bytes = calls.measure(k.function, k.line)?.local_bytes;
        let mut used = Vec::new();
        k.reached = calls.reached(k.function, k.line)?;
        for &f in &k.reached {
            let f = &m.functions[f as usize];
            k.granule = k.granule.min(f.granule);
            k.store_granule = k.store_granule.min(f.store_granule);
            k.prints |= f.code.iter().any(|inst| inst.op == Op::Print);
            used.extend(f.inits.iter().filter_map(|(_, _, init)| match *init {
                Init::Shared(v, _) => Some(v),
                _ => None,
            }));
        }
        used.sort_unstable();
        used.dedup();
        let mut at = 0u64;
        let mut dynamic = Vec::new();
        for id in used {
            let v = &m.variables[id as usize];
            if v.dynamic {
                dynamic.push((id, v.align));
                continue;
            }
            at = at.next_multiple_of(v.align.max(1));
            k.shared_layout.push((id, at as u32));
            at += v.bytes;
        }
        if at > 48 << 10 {
            return Err(PtxError::new(
                k.line,
                format!(
                    "`{}` has {at} bytes of shared memory, {} has 49152 per block",
                    k.name,
                    m.arch.name()
                ),
            ));
        }
        k.shared_bytes = at as u32;
        k.dynamic_shared = !dynamic.is_empty();
        // All dynamic arrays begin at the same offset, after the static ones.
        let align = dynamic.iter().map(|d| d.1).max().unwrap_or(1).max(16);
        let start = at.next_multiple_of(align) as u32;
        k.dynamic_start = if k.dynamic_shared { start } else { k.shared_bytes };
        k.shared_layout.extend(dynamic.iter().map(|d| (d.0, start)));
    }
    let mut stack_bytes = Vec::new();
    for id in
        (0..m.functions.len()).filter(|&id| m.functions[id].address_taken || m.functions[id].called_again)
    {
        stack_bytes.push((id, calls.measure(id, 1)?.local_bytes));
    }
    for (id, bytes) in stack_bytes {
        m.functions[id].stack_bytes = bytes;
    }
    m.kernels = kernels;
    Ok(m)
}

/// `vprintf`, with a format and arguments in memory, and `__assertfail` are the device's own, unless the module defines them.
fn own_functions(m: &mut Module) {
    let bytes = |places: &[(u32, u32)]| places.iter().map(|&(_, bytes)| bytes).collect::<Vec<_>>();
    // name, bytes of the parameters and of the result
    let own: [(&str, &[u32], &[u32], Op); 2] =
        [("vprintf", &[8, 8], &[4], Op::Print), ("__assertfail", &[8, 8, 4, 8, 8], &[], Op::AssertFail)];
    for (name, parameters, result, op) in own {
        let function = m.functions.iter().position(|f| {
            !f.defined
                && f.name == name
                && bytes(&f.signature.formals) == parameters
                && bytes(&f.signature.returns) == result
        });
        let Some(function) = function else { continue };
        for f in &mut m.functions {
            for inst in f.code.iter_mut().filter(|inst| inst.op == Op::Call) {
                if f.calls[inst.imm as usize].callee == Some(function as u32) {
                    inst.op = op;
                }
            }
        }
    }
}

/// Which functions call which, and what was found out about each.
struct Calls<'m> {
    m: &'m Module,
    candidates: Candidates,
    measured: Vec<Option<Measured>>,
    /// By function, the kernel for which it was last reached.
    stamp: Vec<u32>,
    stamps: u32,
    visits: usize,
}

/// A function and all that it calls.
#[derive(Clone, Copy)]
struct Measured {
    local_bytes: u32,
    /// Calls inside each other, itself included.
    depth: u32,
}

/// A function whose calls are being followed: its number, the line of its call, its next instruction, and the most that its calls need.
struct Open {
    function: usize,
    line: u32,
    at: usize,
    deepest: Measured,
}

impl<'m> Calls<'m> {
    fn new(m: &'m Module) -> Self {
        let functions = m.functions.len();
        Self {
            m,
            candidates: Candidates::new(m),
            measured: vec![None; functions],
            stamp: vec![0; functions],
            stamps: 0,
            visits: 0,
        }
    }

    /// The next call by name of a function from an instruction on: where it is, its line and its callee.
    fn next_call(&self, function: usize, from: usize) -> Option<(usize, u32, usize)> {
        let f = &self.m.functions[function];
        let found = f.code[from..].iter().position(|inst| inst.op == Op::Call)?;
        let inst = &f.code[from + found];
        Some((from + found, inst.line, f.calls[inst.imm as usize].callee? as usize))
    }

    /// Goes through each function once, without recursion. Calls by pointer, and those that close a circle, are measured when they are
    /// made.
    fn measure(&mut self, function: usize, line: u32) -> Result<Measured, PtxError> {
        const LEAF: Measured = Measured { local_bytes: 0, depth: 0 };
        if let Some(found) = self.measured[function] {
            return Ok(found);
        }
        let m = self.m;
        let mut path = vec![Open { function, line, at: 0, deepest: LEAF }];
        let mut returned: Option<Measured> = None;
        while let Some(open) = path.last_mut() {
            let f = &m.functions[open.function];
            let wrong = |reason: &str| PtxError::new(open.line, format!("function `{}` {reason}", f.name));
            if let Some(found) = returned.take() {
                open.deepest.local_bytes = open.deepest.local_bytes.max(found.local_bytes);
                open.deepest.depth = open.deepest.depth.max(found.depth);
            } else if !f.defined {
                return Err(wrong("is called but defined nowhere"));
            } else if path.len() > MAX_CALLS {
                let Open { line, .. } = path[path.len() - 1];
                return Err(PtxError::new(line, format!("calls are more than {MAX_CALLS} deep")));
            }
            let Some(open) = path.last_mut() else { break };
            match self.next_call(open.function, open.at) {
                Some((at, line, callee)) => {
                    open.at = at + 1;
                    match self.measured[callee] {
                        Some(found) => returned = Some(found),
                        None => path.push(Open { function: callee, line, at: 0, deepest: LEAF }),
                    }
                }
                None => {
                    let Open { function, line, deepest, .. } = *open;
                    let local_bytes = m.functions[function].local_bytes.next_multiple_of(16);
                    let local_bytes =
                        local_bytes.checked_add(deepest.local_bytes).filter(|bytes| *bytes <= MAX_LOCAL);
                    let Some(local_bytes) = local_bytes else {
                        let reason =
                            format!("calls take more than {MAX_LOCAL} bytes of local memory per thread");
                        return Err(PtxError::new(line, reason));
                    };
                    let depth = deepest.depth + 1;
                    if depth as usize > MAX_CALLS {
                        return Err(PtxError::new(line, format!("calls are more than {MAX_CALLS} deep")));
                    }
                    let found = Measured { local_bytes, depth };
                    self.measured[function] = Some(found);
                    path.pop();
                    returned = Some(found);
                }
            }
        }
        self.measured[function].ok_or_else(|| PtxError::new(line, "the kernel has no body"))
    }

    /// The functions that a kernel may reach, itself first.
    fn reached(&mut self, kernel: usize, line: u32) -> Result<Vec<u32>, PtxError> {
        self.stamps += 1;
        let mut all = vec![kernel as u32];
        self.stamp[kernel] = self.stamps;
        let mut next = 0;
        while let Some(&f) = all.get(next) {
            next += 1;
            let f = &self.m.functions[f as usize];
            self.visits += 1;
            for site in &f.calls {
                let callees = site.callee.as_ref().map_or(self.candidates.of(site), std::slice::from_ref);
                self.visits += callees.len();
                if self.visits > MAX_VISITS {
                    return Err(PtxError::new(line, "the kernels call too many functions"));
                }
                for &callee in callees {
                    // those which are called but not defined are the device's own
                    if self.m.functions[callee as usize].defined && self.stamp[callee as usize] != self.stamps
                    {
                        self.stamp[callee as usize] = self.stamps;
                        all.push(callee);
                    }
                }
            }
        }
        Ok(all)
    }
}
