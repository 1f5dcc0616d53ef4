//! Where divergent paths reconverge: the immediate post-dominator of each branch.
//!
//! Source: Cooper, Harvey and Kennedy 2001, "A Simple, Fast Dominance Algorithm", on the reversed graph.

use super::inst::{Function, NONE, Op};

const EXIT: u32 = u32::MAX;

/// For each instruction the index where the paths that leave it meet, `u32::MAX` if only at the end.
/// Only branches need it; other instructions hold `u32::MAX`.
///
/// A lane that exits is not waited for: where paths do not meet because some of them exit, the others meet as if these were not there. So ptxas
/// for sm_61 places its `SSY`, for example around a bounds check whose failure ends the thread.
pub(super) fn reconvergence(f: &Function) -> Vec<u32> {
    let mut meets = post_dominators(f, &[Op::Ret, Op::Exit]);
    if f.code.iter().any(|inst| inst.op == Op::Exit) {
        let of_others = post_dominators(f, &[Op::Ret]);
        for (meet, other) in meets.iter_mut().zip(of_others).filter(|(meet, _)| **meet == EXIT) {
            *meet = other;
        }
    }
    meets
}

/// As [`reconvergence`], where only paths that end with one of these instructions count. A trap ends the launch, so none of those does.
fn post_dominators(f: &Function, last: &[Op]) -> Vec<u32> {
    let n = f.code.len();
    let mut leader = vec![false; n + 1];
    leader[0] = true;
    for (i, inst) in f.code.iter().enumerate() {
        let targets = targets(f, i);
        if !targets.is_empty() || ends(inst.op) {
            leader[i + 1] = true;
        }
        for t in targets {
            leader[t as usize] = true;
        }
    }
    // Blocks in program order; block b covers starts[b]..starts[b + 1].
    let starts: Vec<usize> = (0..n).filter(|&i| leader[i]).collect();
    let mut block_of = vec![0u32; n + 1];
    let mut b = 0;
    for (i, slot) in block_of.iter_mut().enumerate().take(n) {
        if i > 0 && leader[i] {
            b += 1;
        }
        *slot = b as u32;
    }
    let count = starts.len();
    let exit = count as u32;
    let mut successors: Vec<Vec<u32>> = Vec::with_capacity(count);
    for b in 0..count {
        let end = starts.get(b + 1).copied().unwrap_or(n);
        let inst = &f.code[end - 1];
        let mut out: Vec<u32> = targets(f, end - 1)
            .into_iter()
            .map(|t| if (t as usize) < n { block_of[t as usize] } else { exit })
            .collect();
        if last.contains(&inst.op) {
            out.push(exit);
        }
        let falls = !ends(inst.op) && !matches!(inst.op, Op::Bra | Op::Brx) || inst.guard != NONE;
        if falls {
            out.push(if end < n { block_of[end] } else { exit });
        }
        successors.push(out);
    }
    // Post-order of the reversed graph from the exit.
    let mut predecessors = vec![Vec::new(); count + 1];
    for (b, out) in successors.iter().enumerate() {
        for &s in out {
            predecessors[s as usize].push(b as u32);
        }
    }
    let mut order = Vec::with_capacity(count + 1);
    let mut number = vec![u32::MAX; count + 1];
    let mut visited = vec![false; count + 1];
    let mut stack = vec![(exit, 0usize)];
    visited[exit as usize] = true;
    while let Some((node, next)) = stack.pop() {
        if let Some(&p) = predecessors[node as usize].get(next) {
            stack.push((node, next + 1));
            if !visited[p as usize] {
                visited[p as usize] = true;
                stack.push((p, 0));
            }
        } else {
            number[node as usize] = order.len() as u32;
            order.push(node);
        }
    }
    let mut ipdom = vec![u32::MAX; count + 1];
    ipdom[exit as usize] = exit;
    let mut changed = true;
    while changed {
        changed = false;
        for &b in order.iter().rev().filter(|&&b| b != exit) {
            let mut new = u32::MAX;
            for &s in &successors[b as usize] {
                if ipdom[s as usize] == u32::MAX {
                    continue;
                }
                new = if new == u32::MAX { s } else { intersect(new, s, &ipdom, &number) };
            }
            if new != ipdom[b as usize] {
                ipdom[b as usize] = new;
                changed = true;
            }
        }
    }
    let mut out = vec![EXIT; n];
    for (b, &p) in ipdom.iter().enumerate().take(count) {
        let last = starts.get(b + 1).copied().unwrap_or(n) - 1;
        if matches!(f.code[last].op, Op::Bra | Op::Brx) {
            out[last] = if p == exit || p == u32::MAX { EXIT } else { starts[p as usize] as u32 };
        }
    }
    out
}

/// The nearest common post-dominator of two blocks.
fn intersect(mut a: u32, mut b: u32, ipdom: &[u32], number: &[u32]) -> u32 {
    while a != b {
        while number[a as usize] < number[b as usize] {
            a = ipdom[a as usize];
        }
        while number[b as usize] < number[a as usize] {
            b = ipdom[b as usize];
        }
    }
    a
}

fn ends(op: Op) -> bool {
    matches!(op, Op::Ret | Op::Exit | Op::Trap)
}

fn targets(f: &Function, i: usize) -> Vec<u32> {
    let inst = &f.code[i];
    match inst.op {
        Op::Bra => vec![inst.imm as u32],
        Op::Brx => f.lists[inst.b as usize..][..inst.imm as usize].to_vec(),
        _ => Vec::new(),
    }
}
