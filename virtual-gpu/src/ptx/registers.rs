//! The number of registers that a kernel needs, estimated from the liveness of its PTX registers.
//!
//! ptxas reorders and rematerialises, so on unrolled kernels the estimate may be wrong by about 20 %. Where ptxas is
//! available, use its number instead.

use super::inst::*;
use super::texture::coordinates;
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

/// A register operand of an instruction.
struct Operand {
    slot: u32,
    written: bool,
}

/// A set of registers by their slots: rows of 32 bits, then those of 64.
struct Live {
    set: Vec<u64>,
    /// The first slot of 64 bits.
    first_wide: u32,
    /// 32-bit registers of the set.
    count: u32,
}

impl Live {
    fn size(&self, slot: u32) -> u32 {
        1 + u32::from(slot >= self.first_wide)
    }

    fn insert(&mut self, slot: u32) {
        let (word, bit) = (&mut self.set[slot as usize / 64], 1 << (slot % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        self.count += if is_new { self.size(slot) } else { 0 };
    }

    fn remove(&mut self, slot: u32) {
        let (word, bit) = (&mut self.set[slot as usize / 64], 1 << (slot % 64));
        let was_there = *word & bit != 0;
        *word &= !bit;
        self.count -= if was_there { self.size(slot) } else { 0 };
    }

    fn clear(&mut self) {
        self.set.fill(0);
        self.count = 0;
    }

    fn insert_all(&mut self, other: &[u64]) {
        for (word, &bits) in other.iter().enumerate() {
            let mut new = bits & !self.set[word];
            while new != 0 {
                self.insert(word as u32 * 64 + new.trailing_zeros());
                new &= new - 1;
            }
        }
    }
}

/// Largest number of 32-bit registers live at once.
fn live(f: &Function) -> u32 {
    let n = f.code.len();
    let slot = |wide: bool, row: Row| if wide { f.rows32 + row } else { row };
    let slots = (f.rows32 + f.rows64) as usize;
    let mut is_constant = vec![false; slots];
    for &(row, wide, _) in &f.inits {
        is_constant[slot(wide, row) as usize] = true;
    }
    let (mut operands, mut ends) = (Vec::new(), Vec::with_capacity(n));
    for i in &f.code {
        visit(i, f, |wide, row, written| {
            let slot = slot(wide, row);
            if !is_constant[slot as usize] {
                operands.push(Operand { slot, written });
            }
        });
        ends.push(operands.len());
    }
    // Live sets at the start of each jump target, iterated until nothing changes.
    const NO_TARGET: u32 = u32::MAX;
    let mut place = vec![NO_TARGET; n + 1];
    let mut at_target: Vec<Vec<u64>> = Vec::new();
    let words = slots / 64 + 1;
    for t in f.code.iter().flat_map(|i| targets(i, f)) {
        if let Some(place) = place.get_mut(t as usize).filter(|place| **place == NO_TARGET) {
            *place = at_target.len() as u32;
            at_target.push(vec![0; words]);
        }
    }
    let mut live = Live { set: vec![0; words], first_wide: f.rows32, count: 0 };
    let mut most = 0;
    let mut changed = true;
    while changed {
        changed = false;
        most = 0;
        live.clear();
        for k in (0..n).rev() {
            let i = &f.code[k];
            if i.guard == NONE && matches!(i.op, Op::Bra | Op::Brx | Op::Ret | Op::Exit | Op::Trap) {
                live.clear();
            }
            for t in targets(i, f) {
                if let Some(of) = place.get(t as usize).and_then(|&place| at_target.get(place as usize)) {
                    live.insert_all(of);
                }
            }
            let operands = &operands[if k == 0 { 0 } else { ends[k - 1] }..ends[k]];
            // A guarded write keeps the old value alive.
            if i.guard == NONE {
                operands.iter().filter(|o| o.written).for_each(|o| live.remove(o.slot));
            }
            operands.iter().filter(|o| !o.written).for_each(|o| live.insert(o.slot));
            most = most.max(live.count);
            if let Some(of) = at_target.get_mut(place[k] as usize)
                && *of != live.set
            {
                of.iter_mut().zip(&live.set).for_each(|(a, b)| *a |= b);
                changed = true;
            }
        }
    }
    most
}

fn targets(i: &Inst, f: &Function) -> impl Iterator<Item = u32> {
    let (one, several) = match i.op {
        Op::Bra => (Some(i.imm as u32), &[][..]),
        Op::Brx => (None, &f.lists[i.b as usize..][..i.imm as usize]),
        _ => (None, &[][..]),
    };
    one.into_iter().chain(several.iter().copied())
}

/// Calls `see(64-bit, row, written)` for each register operand outside the predicate file.
pub(super) fn visit(i: &Inst, f: &Function, mut see: impl FnMut(bool, Row, bool)) {
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
        Op::SetpHalves { .. } | Op::SetHalves { .. } => {
            see(false, i.a, false);
            see(false, i.b, false);
            if matches!(i.op, Op::SetHalves { .. }) {
                see(false, i.d, true);
            }
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
        Op::Fetch(fetch) => {
            see(true, i.a, false);
            list(i.c, coordinates(fetch.geometry) as i64).iter().for_each(|&r| see(false, r, false));
            list(i.d, 4).iter().for_each(|&r| see(false, r, true));
        }
        Op::SurfaceLoad(a) | Op::SurfaceStore(a) => {
            see(true, i.a, false);
            list(i.c, coordinates(a.geometry) as i64).iter().for_each(|&r| see(false, r, false));
            let load = matches!(i.op, Op::SurfaceLoad(_));
            let data = if load { &i.d } else { &i.b };
            let rows = if a.count == 1 { std::slice::from_ref(data) } else { list(*data, a.count as i64) };
            rows.iter().for_each(|&r| see(a.wide, r, load));
        }
        Op::Query { .. } => {
            see(true, i.a, false);
            see(false, i.d, true);
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
        Op::Mma(mma) => {
            let [d, a, b, c] = mma.registers().map(|n| n as i64);
            let sources = [(i.a, a), (i.b, b), (i.c, c)];
            sources.iter().for_each(|&(at, n)| list(at, n).iter().for_each(|&r| see(false, r, false)));
            list(i.d, d).iter().for_each(|&r| see(false, r, true));
        }
        Op::LoadMatrix(load) => {
            see(load.addr_wide, i.a, false);
            list(i.d, load.matrices.into()).iter().for_each(|&r| see(false, r, true));
        }
        Op::Match { wide } => {
            see(wide, i.a, false);
            see(false, i.d, true);
        }
        Op::Clock(c) => see(matches!(c, Clock::Clock64 | Clock::Globaltimer), i.d, true),
        Op::Brx => see(false, i.a, false),
        Op::CallPointer => see(true, i.a, false),
        Op::Mov32 | Op::Shf { .. } | Op::Lop3 | Op::Prmt(_) | Op::Dp4a | Op::Dp2a { .. } | Op::Video(_) => {
            all([false; 4])
        }
        _ => {}
    }
}
