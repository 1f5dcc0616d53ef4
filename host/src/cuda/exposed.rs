//! Memory whose address was handed out, so that a capture finds the owner of an address that a launch takes.

use super::device::CudaDevice;
use super::stream::{Kept, Stream};
use crate::{Error, Result};
use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Addresses, what owns the memory there, and the handle of the stream in whose order it is valid.
type Owners = HashMap<usize, (Range<u64>, Weak<dyn Any + Send + Sync>, usize)>;

fn owners() -> MutexGuard<'static, Owners> {
    static OWNERS: OnceLock<Mutex<Owners>> = OnceLock::new();
    OWNERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on a captured launch that takes one of these addresses keeps `owner` alive, until [`conceal`] is called with the
/// owner's address. The memory is valid in the order of `stream`.
pub(crate) fn expose(addresses: Range<u64>, owner: &Kept, stream: &Stream) {
    let stream = stream.raw().addr();
    owners().insert(Arc::as_ptr(owner).addr(), (addresses, Arc::downgrade(owner), stream));
}

/// Forgets an owner that is being dropped.
pub(crate) fn conceal(owner: usize) {
    owners().remove(&owner);
}

/// The device addresses that parameters may be: each word of each value.
///
/// # Safety
/// Each pointer is to a value of that many bytes.
unsafe fn words(parameters: impl Iterator<Item = (*const (), usize)>) -> Vec<u64> {
    let words = parameters.flat_map(|(value, bytes)| {
        (0..bytes / size_of::<u64>()).map(move |word| {
            // SAFETY: the word is inside the value, by this function's contract; values need not be aligned to words.
            unsafe { value.cast::<u64>().add(word).read_unaligned() }
        })
    });
    words.collect()
}

impl Stream {
    /// Keeps the memory alive that a captured launch takes by address. `parameters` are the launch's, each with its size.
    ///
    /// # Safety
    /// Each pointer is to a value of that many bytes.
    pub(super) unsafe fn keep_exposed(&self, parameters: impl Iterator<Item = (*const (), usize)>) {
        if !self.is_capturing() {
            return;
        }
        // SAFETY: this function's contract.
        let words = unsafe { words(parameters) };
        let is_taken = |range: &Range<u64>| words.iter().any(|word| range.contains(word));
        let taken: Vec<Kept> = {
            let owners = owners(); // unlocked before an owner can be dropped here, which conceals it
            owners
                .values()
                .filter(|(range, ..)| is_taken(range))
                .filter_map(|(_, owner, _)| owner.upgrade())
                .collect()
        };
        taken.iter().for_each(|owner| self.keep(owner));
    }
}

impl CudaDevice {
    /// Fails if a launch on this device's stream takes memory of another device or stream, whose work it would not wait for.
    ///
    /// # Safety
    /// Each pointer is to a value of that many bytes.
    pub(super) unsafe fn ensure_own(
        &self,
        op: &'static str,
        parameters: impl Iterator<Item = (*const (), usize)>,
    ) -> Result<()> {
        // SAFETY: this function's contract.
        let words = unsafe { words(parameters) };
        let own = self.stream().raw().addr();
        let is_other = |(range, _, stream): &(Range<u64>, _, usize)| {
            *stream != own && words.iter().any(|word| range.contains(word))
        };
        if !owners().values().any(is_other) {
            return Ok(());
        }
        let reason =
            "the kernel would not wait for the work that writes it; launch it there, or copy by `to_device`";
        Err(Error::Unsupported {
            op,
            argument: "parameters",
            value: "memory of another device or stream".into(),
            reason: reason.into(),
        })
    }
}
