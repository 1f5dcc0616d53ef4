//! Per kernel: the functions it reaches, the layout of its shared variables, the size of its local memory.

use super::inst::{Init, Op};
use super::{Module, PtxError, VarSpace};

pub(super) fn link(mut m: Module) -> Result<Module, PtxError> {
    let const_bytes: u64 = m.variables.iter().filter(|v| v.space == VarSpace::Const).map(|v| v.bytes).sum();
    if const_bytes > 64 << 10 {
        return Err(PtxError::new(1, format!("{const_bytes} bytes of constant memory, sm_61 has 65536")));
    }
    print_by_vprintf(&mut m);
    let mut kernels = std::mem::take(&mut m.kernels);
    for k in &mut kernels {
        k.const_bytes = const_bytes as u32;
        let mut reached = vec![false; m.functions.len()];
        k.local_bytes = reach(&m, k.function, k.line, &mut vec![false; m.functions.len()], &mut reached)?;
        let mut used = vec![false; m.variables.len()];
        for f in m.functions.iter().zip(&reached).filter(|(_, r)| **r).map(|(f, _)| f) {
            k.granule = k.granule.min(f.granule);
            for (_, _, init) in &f.inits {
                if let Init::Shared(v, _) = *init {
                    used[v as usize] = true;
                }
            }
        }
        let mut at = 0u64;
        let mut dynamic = Vec::new();
        for (id, v) in
            m.variables.iter().enumerate().filter(|(id, v)| v.space == VarSpace::Shared && used[*id])
        {
            if v.dynamic {
                dynamic.push((id as u32, v.align));
                continue;
            }
            at = at.next_multiple_of(v.align.max(1));
            k.shared_layout.push((id as u32, at as u32));
            at += v.bytes;
        }
        if at > 48 << 10 {
            return Err(PtxError::new(
                k.line,
                format!("`{}` has {at} bytes of shared memory, sm_61 has 49152 per block", k.name),
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
    m.kernels = kernels;
    Ok(m)
}

/// `vprintf`, with a format and arguments in memory, is the device's own, unless the module defines it.
fn print_by_vprintf(m: &mut Module) {
    let bytes = |places: &[(u32, u32)]| places.iter().map(|&(_, bytes)| bytes).collect::<Vec<_>>();
    let vprintf = m.functions.iter().position(|f| {
        !f.defined && f.name == "vprintf" && bytes(&f.formals) == [8, 8] && bytes(&f.returns) == [4]
    });
    let Some(vprintf) = vprintf else { return };
    for f in &mut m.functions {
        for inst in f.code.iter_mut().filter(|inst| inst.op == Op::Call) {
            if f.calls[inst.imm as usize].callee as usize == vprintf {
                inst.op = Op::Print;
            }
        }
    }
}

/// Local bytes from function `f` down.
fn reach(
    m: &Module,
    f: usize,
    line: u32,
    path: &mut Vec<bool>,
    reached: &mut Vec<bool>,
) -> Result<u32, PtxError> {
    let function = &m.functions[f];
    if !function.defined {
        return Err(PtxError::new(
            line,
            format!("function `{}` is called but defined nowhere", function.name),
        ));
    }
    if path[f] {
        return Err(PtxError::new(
            line,
            format!("function `{}` is recursive, which is not supported", function.name),
        ));
    }
    path[f] = true;
    reached[f] = true;
    let mut deepest = 0;
    for inst in function.code.iter().filter(|i| i.op == Op::Call) {
        let callee = function.calls[inst.imm as usize].callee;
        deepest = deepest.max(reach(m, callee as usize, inst.line, path, reached)?);
    }
    path[f] = false;
    Ok(function.local_bytes.next_multiple_of(16) + deepest)
}
