//! What the instructions of each source line cost, for PTX that holds lines.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use crate::counters::Counters;
use crate::finding::own;
use crate::ptx::inst::Function;
use crate::ptx::{Lines, SourceLine};

/// What a launch did for one line of the kernel's source. Instructions of inlined library functions count for the line that
/// calls them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineCost {
    /// Its column is 0: a line counts as a whole.
    pub line: SourceLine,
    pub warp_instructions: u64,
    /// 32-byte sectors of global loads, stores and atomics; counted under [`Config::traffic`](crate::Config::traffic).
    pub sectors: u64,
    /// Bank-conflict wavefronts of shared memory; counted under [`Config::traffic`](crate::Config::traffic).
    pub bank_conflicts: u64,
}

/// The counts of one instruction of the PTX.
#[derive(Clone, Copy, Default)]
pub(super) struct InstructionCost {
    pub warp_instructions: u64,
    sectors: u64,
    bank_conflicts: u64,
}

impl InstructionCost {
    /// Adds the traffic since `before`.
    pub fn add_traffic(&mut self, before: (u64, u64), counters: &Counters) {
        let now = traffic(counters);
        self.sectors += now.0 - before.0;
        self.bank_conflicts += now.1 - before.1;
    }
}

/// Sectors and bank conflicts so far.
pub(super) fn traffic(counters: &Counters) -> (u64, u64) {
    (counters.global_bytes() / 32, counters.bank_conflicts)
}

impl AddAssign for InstructionCost {
    fn add_assign(&mut self, o: Self) {
        self.warp_instructions += o.warp_instructions;
        self.sectors += o.sectors;
        self.bank_conflicts += o.bank_conflicts;
    }
}

/// Sums by source line, the most instructions first. `costs` has the instructions of all functions in their order.
pub(super) fn by_line(functions: &[Function], lines: &Lines, costs: &[InstructionCost]) -> Vec<LineCost> {
    let mut sums: BTreeMap<SourceLine, InstructionCost> = BTreeMap::new();
    for (inst, cost) in functions.iter().flat_map(|f| &f.code).zip(costs) {
        if cost.warp_instructions > 0
            && let Some(place) = own(&lines.find(inst.line))
        {
            *sums.entry(SourceLine { column: 0, ..place.clone() }).or_default() += *cost;
        }
    }
    let mut lines: Vec<_> = sums
        .into_iter()
        .map(|(line, InstructionCost { warp_instructions, sectors, bank_conflicts })| LineCost {
            line,
            warp_instructions,
            sectors,
            bank_conflicts,
        })
        .collect();
    lines.sort_by_key(|cost| std::cmp::Reverse(cost.warp_instructions));
    lines
}
