//! Functions that call each other in a circle by name.

use super::Module;
use super::inst::Op;

/// Makes the call that closes each circle one whose depth is checked when it is made. Without these calls no function reaches itself by
/// name.
pub(super) fn mark(m: &mut Module) {
    #[derive(Clone, Copy, PartialEq)]
    enum Seen {
        No,
        Open,
        Done,
    }
    let mut seen = vec![Seen::No; m.functions.len()];
    for first in 0..m.functions.len() {
        if seen[first] != Seen::No {
            continue;
        }
        seen[first] = Seen::Open;
        let mut path = vec![(first, 0)];
        while let Some((function, from)) = path.last_mut() {
            let f = &mut m.functions[*function];
            let Some(found) = f.code[*from..].iter().position(|inst| inst.op == Op::Call) else {
                seen[*function] = Seen::Done;
                path.pop();
                continue;
            };
            let inst = &mut f.code[*from + found];
            *from += found + 1;
            let Some(callee) = f.calls[inst.imm as usize].callee.map(|callee| callee as usize) else {
                continue;
            };
            match seen[callee] {
                Seen::Open => {
                    inst.op = Op::CallAgain;
                    m.functions[callee].called_again = true;
                }
                Seen::No => {
                    seen[callee] = Seen::Open;
                    path.push((callee, 0));
                }
                Seen::Done => {}
            }
        }
    }
}
