//! Where the shared arrays of a block lie. Between them is space that hardware does not have, so that an overrun from one into the
//! next is found.

use std::fmt;

use crate::ptx::{Kernel, Variable};

/// Bytes between two arrays: a multiple of 128, so that every word stays in its bank.
const GUARD: u32 = 256;

#[derive(Default)]
pub(super) struct SharedArrays {
    /// (variable, offset), by variable.
    offsets: Vec<(u32, u32)>,
    /// (offset, bytes), by offset.
    arrays: Vec<(usize, usize)>,
    /// Whether each byte is outside of all arrays; empty for less than two arrays.
    guard: Vec<bool>,
    /// The space that all take.
    pub bytes: usize,
}

impl SharedArrays {
    pub fn new(kernel: &Kernel, variables: &[Variable], dynamic_bytes: u32) -> Self {
        let gap = kernel.shared_layout.iter().map(|&(v, _)| variables[v as usize].align as u32);
        let gap = gap.chain([GUARD]).max().unwrap_or(GUARD);
        let mut this = Self::default();
        let mut shift = 0;
        // dynamic arrays come last and begin at one place
        let is_dynamic = |v: u32| variables[v as usize].dynamic;
        let dynamic = kernel.shared_layout.iter().any(|&(v, _)| is_dynamic(v));
        for &(v, at) in &kernel.shared_layout {
            this.offsets.push((v, at + shift));
            if !is_dynamic(v) {
                this.arrays.push(((at + shift) as usize, variables[v as usize].bytes as usize));
                shift += gap;
            }
        }
        // no space behind the last array
        if !dynamic && shift > 0 {
            shift -= gap;
        }
        let end = kernel.dynamic_start + shift;
        this.bytes = (end + dynamic_bytes) as usize;
        if dynamic || dynamic_bytes > 0 {
            this.arrays.push((end as usize, dynamic_bytes as usize));
        }
        if this.arrays.len() > 1 {
            this.guard = vec![true; this.bytes];
            for &(at, bytes) in &this.arrays {
                this.guard[at..at + bytes].fill(false);
            }
        }
        this.offsets.sort_unstable();
        this
    }

    /// The offset of a variable; 0 for one that is not in shared memory.
    pub fn offset(&self, variable: u32) -> u32 {
        let found = self.offsets.binary_search_by_key(&variable, |&(v, _)| v);
        found.map_or(0, |at| self.offsets[at].1)
    }

    /// Whether all these bytes are in one array, or there is but one.
    #[inline(always)]
    pub fn has(&self, at: u64, bytes: u64) -> bool {
        let within = |from: usize, length: usize| {
            let (from, length) = (from as u64, length as u64);
            at >= from && at - from <= length && length - (at - from) >= bytes
        };
        match self.guard.is_empty() {
            true => within(0, self.bytes),
            false => self.arrays.iter().any(|&(from, length)| within(from, length)),
        }
    }

    /// The array beside the access, if that is outside of all. The access is inside the block's memory.
    #[inline(always)]
    pub fn beside(&self, at: usize, bytes: usize) -> Option<Beside> {
        match self.guard.is_empty() || !self.guard[at] && !self.guard[at + bytes - 1] {
            true => None,
            false => Some(self.nearest(at)),
        }
    }

    #[cold]
    fn nearest(&self, at: usize) -> Beside {
        let distance = |&(from, bytes): &(usize, usize)| match at < from {
            true => (from - at, bytes, false),
            false => (at.saturating_sub(from + bytes), bytes, true),
        };
        let (distance, bytes, is_behind) = self.arrays.iter().map(distance).min().unwrap_or_default();
        Beside { distance, bytes, is_behind }
    }
}

/// Where an access lies that is in no array.
pub(super) struct Beside {
    distance: usize,
    bytes: usize,
    is_behind: bool,
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { distance, bytes, is_behind } = self;
        match is_behind {
            true => write!(f, "{distance} bytes past the end of a shared array of {bytes} bytes"),
            false => write!(f, "{distance} bytes before a shared array of {bytes} bytes"),
        }
    }
}
