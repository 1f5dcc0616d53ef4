//! Loading modules before their first launch.

use super::device::CudaDevice;
use crate::Result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The result of [`CudaDevice::load_modules`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Number of modules that were loaded.
    pub modules: usize,
    /// Number of modules that had been loaded before.
    pub before: usize,
}

impl CudaDevice {
    /// Loads modules before their first launch, on several threads: with an empty cache the driver compiles each module,
    /// which takes up to a second.
    ///
    /// `modules` are names of [`ptx_modules`](super::ptx_modules); names that this program does not have are errors.
    ///
    /// # Errors
    /// The first error of a module: [`Error::ModuleLoad`](crate::Error::ModuleLoad) or a driver error. The other modules are loaded nevertheless.
    pub fn load_modules(&self, modules: &[&str]) -> Result<Loaded> {
        self.bind()?;
        let before = modules.iter().filter(|name| self.modules().is_loaded(name)).count();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(modules.len());
        let (next, first_error) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            let mut result = self.bind();
            while let (Ok(()), Some(name)) = (&result, modules.get(next.fetch_add(1, Ordering::Relaxed))) {
                result = self.modules().load(name);
                if let Err(error) = std::mem::replace(&mut result, Ok(())) {
                    first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
            if let Err(error) = result {
                first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        match first_error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(Loaded { modules: modules.len() - before, before }),
            Some(error) => Err(error),
        }
    }
}
