//! Loading modules before their first launch.

use super::device::CudaDevice;
use crate::Result;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// The result of [`CudaDevice::load_modules`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Number of modules that were loaded.
    pub modules: usize,
    /// Number of modules that had been loaded before.
    pub before: usize,
}

/// Modules that are being loaded on threads of their own. They end, after the modules that they are loading, when this is dropped.
#[derive(Debug)]
pub struct Preload {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Preload {
    /// Waits until all have been loaded.
    pub fn finish(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic there leaves modules to their first launch
        }
    }
}

impl Drop for Preload {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.join();
    }
}

impl CudaDevice {
    /// Loads modules on threads of their own, in this order. An error of a module is that of its first launch.
    pub fn preload(&self, modules: Vec<&'static str>) -> Preload {
        let (stop, device) = (Arc::new(AtomicBool::new(false)), self.clone());
        let stopped = Arc::clone(&stop);
        let work = move || drop(device.load_until(&modules, &stopped));
        // without the thread each module is loaded at its first launch
        let thread = thread::Builder::new().name("modules".into()).spawn(work).ok();
        Preload { stop, thread }
    }

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
        self.load_until(modules, &AtomicBool::new(false))?;
        Ok(Loaded { modules: modules.len() - before, before })
    }

    /// As [`load_modules`](Self::load_modules); begins none after `stop`.
    fn load_until(&self, modules: &[&str], stop: &AtomicBool) -> Result<()> {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(modules.len());
        let (next, first_error) = (AtomicUsize::new(0), Mutex::new(None));
        let work = || {
            let mut result = self.bind();
            while let (Ok(()), Some(name)) = (&result, modules.get(next.fetch_add(1, Ordering::Relaxed))) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
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
        first_error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
