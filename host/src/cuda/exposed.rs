//! Memory whose address was handed out, so that a capture finds the owner of an address that a launch takes.

use super::stream::{Kept, Stream};
use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Addresses, and what owns the memory there.
type Owners = HashMap<usize, (Range<u64>, Weak<dyn Any + Send + Sync>)>;

fn owners() -> MutexGuard<'static, Owners> {
    static OWNERS: OnceLock<Mutex<Owners>> = OnceLock::new();
    OWNERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on a captured launch that takes one of these addresses keeps `owner` alive, until [`conceal`] is called with the
/// owner's address.
pub(crate) fn expose(addresses: Range<u64>, owner: &Kept) {
    owners().insert(Arc::as_ptr(owner).addr(), (addresses, Arc::downgrade(owner)));
}

/// Forgets an owner that is being dropped.
pub(crate) fn conceal(owner: usize) {
    owners().remove(&owner);
}

impl Stream {
    /// Keeps the memory alive that a captured launch takes by address. `parameters` are the launch's, each with its size.
    ///
    /// # Safety
    /// Each pointer is to a value of that many bytes.
    pub(super) unsafe fn keep_exposed(&self, parameters: impl Iterator<Item = (*const c_void, usize)>) {
        if !self.is_capturing() {
            return;
        }
        let words = parameters.flat_map(|(value, bytes)| {
            (0..bytes / size_of::<u64>()).map(move |word| {
                // SAFETY: the word is inside the value, by this function's contract; values need not be aligned to words.
                unsafe { value.cast::<u64>().add(word).read_unaligned() }
            })
        });
        let words: Vec<u64> = words.collect();
        let is_taken = |range: &Range<u64>| words.iter().any(|word| range.contains(word));
        let taken: Vec<Kept> = {
            let owners = owners(); // unlocked before an owner can be dropped here, which conceals it
            owners
                .values()
                .filter(|(range, _)| is_taken(range))
                .filter_map(|(_, owner)| owner.upgrade())
                .collect()
        };
        taken.iter().for_each(|owner| self.keep(owner));
    }
}
