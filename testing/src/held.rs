//! Operands that a case makes when it first runs on a device, as a model does when it loads, so that a bench times the op alone.

use pascaline::{Device, Result};
use std::sync::{Mutex, PoisonError};

pub struct Held<T>(Mutex<Option<(Device, T)>>);

impl<T> Default for Held<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> Held<T> {
    /// Calls `f` with what was made for this device, or is made now.
    pub fn with<R>(
        &self,
        device: &Device,
        make: impl FnOnce() -> Result<T>,
        f: impl FnOnce(&T) -> Result<R>,
    ) -> Result<R> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = held.take().filter(|(of, _)| of.same(device)); // freed before another is made, which may need its memory
        let (_, value) = held.insert(match known {
            Some(known) => known,
            None => (device.clone(), make()?),
        });
        f(value)
    }
}
