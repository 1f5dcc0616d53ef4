//! The shape of a warp's access: what follows from the lanes' addresses relative to each other, such as its sectors and
//! its bank conflicts. An instruction mostly repeats its shape, so the last one of each is kept.

use super::regs::{FULL, LANES, each, lanes};
use super::traffic;

/// What a shape tells.
#[derive(Clone, Copy, Default)]
pub(super) struct Facts {
    /// From the lowest address down to which the first lane's is: its distance.
    below: u64,
    /// Bytes from the lowest address to the end of the highest access.
    pub span: u64,
    /// All are naturally aligned.
    pub aligned: bool,
    /// The last lane at each address.
    pub last: u32,
    /// Sectors from the lowest address on, a bit for each. 0 if they are more than 64, or not counted.
    pub sector_bits: u64,
    /// Distinct sectors of an access to global memory, wavefronts of one to shared memory.
    pub units: u32,
    pub conflicts: u32,
}

impl Facts {
    /// The lowest address.
    #[inline(always)]
    pub fn low(&self, at: &[u64; LANES], mask: u32) -> u64 {
        at[first(mask)].wrapping_sub(self.below)
    }
}

/// What an access is counted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Count {
    Nothing,
    Sectors,
    Wavefronts,
}

#[derive(Clone)]
struct Shape {
    /// Addresses minus that of the first lane of the mask; 0 for lanes outside of it.
    offsets: [u64; LANES],
    mask: u32,
    /// The first lane's address modulo a sector's bytes. Sectors depend on it. Wavefronts do not depend on more: other
    /// addresses are in other banks, but as many.
    phase: u64,
    count: Count,
    facts: Facts,
}

/// The last shape of each instruction.
pub(super) struct Shapes {
    /// By instruction: its place in `shapes` + 1, 0 for none.
    places: Vec<u32>,
    shapes: Vec<Shape>,
}

#[inline(always)]
fn first(mask: u32) -> usize {
    (mask.trailing_zeros() % 32) as usize
}

impl Shapes {
    pub fn new(instructions: usize) -> Self {
        Self { places: vec![0; instructions], shapes: Vec::new() }
    }

    /// The facts of instruction `n`'s access, of `bytes` by each lane of `mask`.
    #[inline(always)]
    pub fn facts(&mut self, n: usize, at: &[u64; LANES], mask: u32, bytes: u32, count: Count) -> Facts {
        let from = at[first(mask)];
        let mut offsets = at.map(|a| a.wrapping_sub(from));
        if mask != FULL {
            for (l, offset) in offsets.iter_mut().enumerate() {
                *offset &= u64::from(mask >> l & 1).wrapping_neg();
            }
        }
        if let Some(shape) = (self.places[n] as usize).checked_sub(1).map(|place| &self.shapes[place]) {
            let mut differ = (shape.phase ^ from & 31) | u64::from(shape.mask ^ mask);
            for (a, b) in shape.offsets.iter().zip(&offsets) {
                differ |= a ^ b;
            }
            if differ == 0 && shape.count == count {
                return shape.facts;
            }
        }
        self.keep(n, at, offsets, mask, bytes, count)
    }

    #[inline(always)]
    fn keep(
        &mut self,
        n: usize,
        at: &[u64; LANES],
        offsets: [u64; LANES],
        mask: u32,
        bytes: u32,
        count: Count,
    ) -> Facts {
        let facts = measure(at, &offsets, mask, bytes, count);
        let shape = Shape { offsets, mask, phase: at[first(mask)] & 31, count, facts };
        match (self.places[n] as usize).checked_sub(1) {
            Some(place) => self.shapes[place] = shape,
            None => {
                self.shapes.push(shape);
                self.places[n] = self.shapes.len() as u32;
            }
        }
        facts
    }
}

#[inline(always)]
fn measure(at: &[u64; LANES], offsets: &[u64; LANES], mask: u32, bytes: u32, count: Count) -> Facts {
    let (mut low, mut high, mut all) = (u64::MAX, 0, 0);
    each(mask, |l| (low, high, all) = (low.min(at[l]), high.max(at[l]), all | at[l]));
    let aligned = all & u64::from(bytes - 1) == 0;
    let near = high - low < 1 << 31;
    let [mut last, mut last_of_half] = [0; 2];
    let short = offsets.map(|offset| offset as u32);
    each(mask, |l| {
        let mut again = 0;
        for (other, &offset) in short.iter().enumerate() {
            again |= u32::from(offset == short[l]) << other;
        }
        if !near {
            again = lanes(mask).filter(|&other| at[other] == at[l]).fold(0, |all, other| all | 1 << other);
        }
        let after = again & mask & (FULL << l << 1);
        last |= u32::from(after == 0) << l;
        last_of_half |= u32::from(after & (0xffff << (l & 16)) == 0) << l;
    });
    let (units, conflicts) = match count {
        Count::Nothing => (0, 0),
        Count::Sectors => (traffic::sectors(at, mask, bytes), 0),
        Count::Wavefronts if aligned && bytes == 16 => {
            let halves = [0xffff, 0xffff_0000].map(|half| traffic::aligned(at, last_of_half & half, bytes));
            (halves[0].0 + halves[1].0, halves[0].1 + halves[1].1)
        }
        Count::Wavefronts if aligned && bytes >= 4 => traffic::aligned(at, last, bytes),
        Count::Wavefronts => traffic::wavefronts(at, mask, bytes),
    };
    let mut sector_bits = 0;
    if count == Count::Sectors && (high >> 5) - (low >> 5) < 64 {
        each(mask, |l| sector_bits |= 1 << ((at[l] >> 5) - (low >> 5)));
    }
    Facts {
        below: at[first(mask)].wrapping_sub(low),
        span: (high - low).saturating_add(bytes.into()),
        aligned,
        last,
        sector_bits,
        units,
        conflicts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is kept of an instruction's last access is taken for no other access.
    #[test]
    fn facts_are_those_of_the_access_at_hand() {
        let mut accesses = Vec::new();
        for from in [0u64, 1, 16, 31, 32, 60] {
            for stride in [0u64, 1, 3, 4, 8, 128] {
                for mask in [FULL, 0xf, 0x0f0f_0f0f, 1 << 31] {
                    // lanes outside of the mask have addresses that say nothing
                    let at: [u64; LANES] = std::array::from_fn(|l| {
                        if mask >> l & 1 == 1 { from + stride * l as u64 } else { 7 << l }
                    });
                    accesses.push((at, mask));
                }
            }
        }
        let all = |f: Facts| (f.below, f.span, f.aligned, f.last, f.sector_bits, f.units, f.conflicts);
        for count in [Count::Sectors, Count::Wavefronts] {
            for (before, before_mask) in &accesses {
                let mut kept = Shapes::new(1);
                kept.facts(0, before, *before_mask, 1, count);
                for (at, mask) in &accesses {
                    let mut kept = Shapes { places: kept.places.clone(), shapes: kept.shapes.clone() };
                    let wanted = all(Shapes::new(1).facts(0, at, *mask, 1, count));
                    assert_eq!(
                        all(kept.facts(0, at, *mask, 1, count)),
                        wanted,
                        "{at:?} {mask:#x} after {before:?} {before_mask:#x}"
                    );
                }
            }
        }
    }
}
