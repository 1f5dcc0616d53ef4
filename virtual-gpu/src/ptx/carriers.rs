//! Registers that carry bytes from memory to memory, as compilers write it where a structure is moved with its padding.

use super::inst::*;
use super::registers::visit;

#[derive(Clone, Copy, PartialEq)]
enum Use {
    None,
    Stored,
    Other,
}

/// By row, those of 32 bits first: whether loads without sign extension are all that writes it, and stores to local memory or through
/// generic addresses all that reads it.
pub(crate) fn carriers(f: &Function) -> Box<[bool]> {
    let mut uses = vec![Use::None; (f.rows32 + f.rows64) as usize];
    let mut note = |wide: bool, row: Row, to: Use| {
        if let Some(known) = uses.get_mut((if wide { f.rows32 + row } else { row }) as usize)
            && *known != Use::Other
        {
            *known = to;
        }
    };
    for i in &f.code {
        let (access, data, to) = match i.op {
            Op::Ld(a) => (a, &i.d, if a.signed { Use::Other } else { Use::None }),
            // a result may end in a register, which has no note of unwritten bytes
            Op::St(a @ Access { space: Space::Local | Space::Generic, of_call: false, .. }) => {
                (a, &i.b, Use::Stored)
            }
            _ => {
                visit(i, f, |wide, row, _| note(wide, row, Use::Other));
                continue;
            }
        };
        if i.a != NONE {
            note(access.addr_wide, i.a, Use::Other);
        }
        if to != Use::None {
            access.rows(f, data).iter().for_each(|&row| note(access.wide, row, to));
        }
    }
    let values = f.calls.iter().flat_map(|site| {
        let (args, rets) = (site.args.iter().map(|arg| arg.0), site.rets.iter().map(|ret| ret.1));
        args.chain(rets)
    });
    for value in values {
        match value {
            Value::Local(_) => {}
            Value::Row32(row) => note(false, row, Use::Other),
            Value::Row64(row) => note(true, row, Use::Other),
        }
    }
    uses.iter().map(|&to| to == Use::Stored).collect()
}
