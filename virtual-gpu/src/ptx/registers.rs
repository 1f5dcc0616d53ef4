//! The number of registers that a kernel needs, estimated from the liveness of its PTX registers.
//!
//! ptxas reorders and rematerialises, so on unrolled kernels the estimate may be wrong by about 20 %. Where ptxas is
//! available, use its number instead.

use super::inst::*;
use super::{Kernel, Module};

/// Registers that the ABI and address arithmetic take beyond the live values.
const OVERHEAD: u32 = 6;

impl Module {
    /// Estimated registers per thread, as ptxas would allocate them.
    pub fn registers(&self, kernel: &Kernel) -> u32 {
        let most = kernel.max_registers.unwrap_or(255).clamp(16, 255);
        let bound = kernel.max_ntid.map_or(255, |n| {
            // ptxas keeps as many blocks resident as .minnctapersm asks for.
            let threads = n.iter().product::<u32>().max(1) * kernel.min_blocks_per_sm.unwrap_or(1).max(1);
            ((64 << 10) / threads.next_multiple_of(32)) & !7
        });
        // those of a caller are kept on the stack
        let most_live = kernel.reached.iter().map(|&f| {
            let f = &self.functions[f as usize];
            *f.live.get_or_init(|| live(f))
        });
        let most_live = most_live.max().unwrap_or(0);
        (most_live + OVERHEAD).next_multiple_of(2).clamp(16, most.min(bound.max(16)))
    }
}

/// Largest number of 32-bit registers live at once.
fn live(f: &Function) -> u32 {
    let n = f.code.len();
    let constants: std::collections::HashSet<(bool, Row)> =
        f.inits.iter().map(|&(row, wide, _)| (wide, row)).collect();
    let words = (f.rows32 + f.rows64) as usize / 64 + 1;
    let slot = |wide: bool, row: Row| (if wide { f.rows32 + row } else { row }) as usize;
    // Per instruction: (slot, 64-bit, written).
    let operands: Vec<Vec<(usize, bool, bool)>> = f
        .code
        .iter()
        .map(|i| {
            let mut out = Vec::new();
            visit(i, f, |wide, row, written| {
                if !constants.contains(&(wide, row)) {
                    out.push((slot(wide, row), wide, written));
                }
            });
            out
        })
        .collect();
    // Live sets at the start of each jump target, iterated until nothing changes.
    let mut at_target: std::collections::HashMap<u32, Vec<u64>> = std::collections::HashMap::new();
    for i in &f.code {
        for t in targets(i, f) {
            at_target.entry(t).or_insert_with(|| vec![0; words]);
        }
    }
    let mut most = 0;
    let mut changed = true;
    while changed {
        changed = false;
        most = 0;
        let mut set = vec![0u64; words];
        for k in (0..n).rev() {
            let i = &f.code[k];
            if i.guard == NONE && matches!(i.op, Op::Bra | Op::Brx | Op::Ret | Op::Exit | Op::Trap) {
                set.fill(0);
            }
            for t in targets(i, f) {
                if let Some(o) = at_target.get(&t) {
                    set.iter_mut().zip(o).for_each(|(a, b)| *a |= b);
                }
            }
            for &(s, _, written) in &operands[k] {
                // A guarded write keeps the old value alive.
                if written && i.guard == NONE {
                    set[s / 64] &= !(1 << (s % 64));
                }
            }
            for &(s, _, written) in &operands[k] {
                if !written {
                    set[s / 64] |= 1 << (s % 64);
                }
            }
            let first_wide = f.rows32 as usize;
            let count: u32 = set
                .iter()
                .enumerate()
                .map(|(w, &bits)| {
                    let wide = match (w * 64, w * 64 + 64) {
                        (lo, _) if lo >= first_wide => u64::MAX,
                        (_, hi) if hi <= first_wide => 0,
                        (lo, _) => u64::MAX << (first_wide - lo),
                    };
                    bits.count_ones() + (bits & wide).count_ones()
                })
                .sum();
            most = most.max(count);
            if let Some(o) = at_target.get_mut(&(k as u32))
                && *o != set
            {
                o.iter_mut().zip(&set).for_each(|(a, b)| *a |= b);
                changed = true;
            }
        }
    }
    most
}

fn targets(i: &Inst, f: &Function) -> Vec<u32> {
    match i.op {
        Op::Bra => vec![i.imm as u32],
        Op::Brx => f.lists[i.b as usize..][..i.imm as usize].to_vec(),
        _ => Vec::new(),
    }
}

/// Calls `see(64-bit, row, written)` for each register operand outside the predicate file.
fn visit(i: &Inst, f: &Function, mut see: impl FnMut(bool, Row, bool)) {
    let list = |at: Row, n: i64| &f.lists[at as usize..][..n as usize];
    let mut all = |wide: [bool; 4]| {
        for (row, wide, written) in
            [(i.d, wide[0], true), (i.a, wide[1], false), (i.b, wide[2], false), (i.c, wide[3], false)]
        {
            if row != NONE {
                see(wide, row, written);
            }
        }
    };
    match i.op {
        Op::Mov64 => all([true; 4]),
        Op::Pack { wide, .. } => {
            list(i.b, i.imm).iter().for_each(|&r| see(false, r, false));
            see(wide, i.d, true);
        }
        Op::Unpack { wide, .. } => {
            see(wide, i.a, false);
            list(i.b, i.imm).iter().for_each(|&r| see(false, r, true));
        }
        Op::IBin(IBin::Shl | IBin::Shr, t) => all([t.wide(), t.wide(), false, false]),
        Op::IBin(IBin::MulWide, t) => all([matches!(t, IntTy::U32 | IntTy::S32), false, false, false]),
        Op::ITri(ITri::MadWide, t) => {
            let w = matches!(t, IntTy::U32 | IntTy::S32);
            all([w, false, false, w]);
        }
        Op::ITri(ITri::Bfe, t) => all([t.wide(), t.wide(), false, false]),
        Op::IUn(IUn::Clz | IUn::Popc | IUn::Bfind | IUn::BfindShift, t) => {
            all([false, t.wide(), false, false])
        }
        Op::IBin(_, t) | Op::IUn(_, t) | Op::ITri(_, t) | Op::Carry { ty: t, .. } => all([t.wide(); 4]),
        Op::Bfi { wide } => {
            all([wide, wide, wide, false]);
            see(false, i.e, false);
        }
        Op::Sel64 => {
            see(true, i.a, false);
            see(true, i.b, false);
            see(true, i.d, true);
        }
        Op::Sel32 => {
            see(false, i.a, false);
            see(false, i.b, false);
            see(false, i.d, true);
        }
        Op::Slct { wide, .. } => all([wide, wide, wide, false]),
        Op::Setp { ty, .. } => {
            see(ty.bits() == 64, i.a, false);
            see(ty.bits() == 64, i.b, false);
        }
        Op::Set { ty, .. } => {
            see(ty.bits() == 64, i.a, false);
            see(ty.bits() == 64, i.b, false);
            see(false, i.d, true);
        }
        Op::FBin(_, m) | Op::FUn(_, m) | Op::Fma(m) => all([m.ty == FltTy::F64; 4]),
        Op::Testp { wide, .. } => see(wide, i.a, false),
        Op::IsSpace { .. } => see(true, i.a, false),
        Op::Copysign { wide } | Op::Cvta { wide, .. } => all([wide; 4]),
        Op::Cvt(m) => all([m.to_wide, m.from_wide, false, false]),
        Op::Ld(a) | Op::St(a) => {
            if i.a != NONE {
                see(a.addr_wide, i.a, false);
            }
            let load = matches!(i.op, Op::Ld(_));
            let data = if load { &i.d } else { &i.b };
            let rows = if a.count == 1 { std::slice::from_ref(data) } else { list(*data, a.count as i64) };
            rows.iter().for_each(|&r| see(a.wide, r, load));
        }
        Op::Atom { ty, addr_wide, .. } => {
            let wide = ty.bits() == 64;
            see(addr_wide, i.a, false);
            for (row, written) in [(i.b, false), (i.c, false), (i.d, true)] {
                if row != NONE {
                    see(wide, row, written);
                }
            }
        }
        Op::Shfl { .. } => all([false; 4]),
        Op::Vote { mode: Vote::Ballot, .. } | Op::Activemask => see(false, i.d, true),
        Op::Clock(c) => see(matches!(c, Clock::Clock64 | Clock::Globaltimer), i.d, true),
        Op::Brx => see(false, i.a, false),
        Op::CallPointer => see(true, i.a, false),
        Op::Mov32 | Op::Shf { .. } | Op::Lop3 | Op::Prmt(_) | Op::Dp4a | Op::Dp2a { .. } => all([false; 4]),
        _ => {}
    }
}
