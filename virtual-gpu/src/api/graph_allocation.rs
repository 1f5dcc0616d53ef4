//! What is known of memory that nodes of graphs allocate.

use std::collections::BTreeSet;
use std::ffi::c_int;
use std::sync::Arc;

use crate::memory::Allocation;

/// Type of place, device, flags: `CUmemAccessDesc`, as numbers, since a caller may pass values that the enums lack.
pub(super) type Access = [c_int; 3];

/// The memory of one node. Its address is the same in all launches.
pub(super) struct GraphAllocation {
    pub allocation: Arc<Allocation>,
    pub device: usize,
    /// The graph that has the node.
    pub owner: u64,
    /// The graphs that have a node which frees it.
    pub freed_by: BTreeSet<u64>,
    /// Of other devices, as it was made with.
    pub accesses: Vec<Access>,
    /// Whether it has memory of the device; it has an address before.
    pub is_mapped: bool,
    /// Whether it is allocated when all that is queued has run.
    pub is_allocated: bool,
}

/// Bytes of a device that graphs have, and those kept for them; the most of each since it was reset.
#[derive(Default)]
pub(super) struct GraphMemory {
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
}

impl GraphMemory {
    /// Bytes that the device has to give for so many more.
    pub fn missing(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.reserved - self.used)
    }

    pub fn take(&mut self, bytes: u64) {
        self.reserved += self.missing(bytes);
        self.used += bytes;
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.reserved);
    }
}
