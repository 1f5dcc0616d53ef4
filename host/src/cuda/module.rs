//! The kernels' modules. A module is loaded into a context when one of its kernels is first used.

use super::archive::{ptx_modules, ptx_of};
use super::compiling::Compiling;
use super::fault::{check, ensure_alive};
use super::parameters::agree_all;
use crate::{Error, Result};
use cuda_std::KernelInfo;
use cust::sys;
use pascaline_driver as driver;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The resources that a kernel takes on a multiprocessor, as the driver compiled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Registers per thread.
    pub registers: u32,
    /// Bytes of static shared memory per block.
    pub shared_bytes: u32,
}

/// A kernel of a loaded module.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(super) function: sys::CUfunction,
    /// The resources that it takes on a multiprocessor; set by the first query.
    pub(super) resources: OnceLock<Resources>,
}

/// A kernel, and its function once the module is loaded.
#[derive(Debug)]
struct Slot {
    info: KernelInfo,
    kernel: OnceLock<Kernel>,
}

/// All kernels of the program by name, and the lock of each module.
#[derive(Debug)]
pub(crate) struct Modules {
    kernels: HashMap<&'static str, Slot>,
    /// Locked while a module is loaded: other threads wait for the same module, not for other modules.
    loading: HashMap<&'static str, Mutex<()>>,
    /// Of a planned device, the modules whose kernels it was given, in the order of their first use.
    planned: Option<Mutex<Vec<&'static str>>>,
}

// SAFETY: function handles name code of the context, which lives as long as the process; the driver lets any thread launch
// them.
unsafe impl Send for Modules {}
// SAFETY: the map is not changed after `new`; each slot is a `OnceLock`, and loading has locks.
unsafe impl Sync for Modules {}

impl Modules {
    /// The kernels of a context into which nothing has been loaded.
    pub(crate) fn new() -> Self {
        let slot = |info: &KernelInfo| (info.name, Slot { info: *info, kernel: OnceLock::new() });
        Self {
            kernels: kernels_gpu::KERNELS.iter().copied().flatten().map(slot).collect(),
            loading: ptx_modules().map(|name| (name, Mutex::new(()))).collect(),
            planned: None,
        }
    }

    /// Those of a planned device, which are written down and not loaded.
    pub(super) fn planned() -> Self {
        Self { planned: Some(Mutex::default()), ..Self::new() }
    }

    /// The modules that a planned device would have loaded, in the order of their first use.
    pub(crate) fn of_plan(&self) -> Vec<&'static str> {
        let written =
            self.planned.as_ref().map(|names| names.lock().unwrap_or_else(PoisonError::into_inner).clone());
        written.unwrap_or_default()
    }

    /// The kernel; loads its module at the first use. The context is current.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the program has no such kernel, [`Error::ModuleLoad`] if the driver rejects its module.
    pub(crate) fn kernel(&self, name: &str) -> Result<&Kernel> {
        let slot = self.kernels.get(name).ok_or_else(|| Error::Unsupported {
            op: "launch",
            argument: "kernel",
            value: name.to_owned(),
            reason: "this program has no such kernel".into(),
        })?;
        if slot.kernel.get().is_none() {
            self.load(slot.info.module)?;
        }
        slot.kernel.get().ok_or_else(|| Error::ModuleLoad {
            code: 500,
            log: format!("kernel {name} is not in PTX module {}", slot.info.module),
        })
    }

    /// Whether the module has been loaded; false for a module without kernels.
    pub(super) fn is_loaded(&self, module: &str) -> bool {
        self.slots_of(module).any(|slot| slot.kernel.get().is_some())
    }

    fn slots_of(&self, module: &str) -> impl Iterator<Item = &Slot> {
        self.kernels.values().filter(move |slot| slot.info.module == module)
    }

    /// Loads a module into the current context and looks up its kernels, unless this was done before.
    ///
    /// Modules are never unloaded: they live as long as the primary context, which is until the process ends.
    pub(super) fn load(&self, name: &str) -> Result<()> {
        let _lock = self.loading.get(name).map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
        if self.is_loaded(name) {
            return Ok(());
        }
        if let Some(names) = &self.planned {
            let kernel = |slot: &Slot| {
                // what it takes decides about the blocks of its grid, and not about memory
                let resources = Resources { registers: 32, shared_bytes: 0 };
                let _ = slot.kernel.set(Kernel { function: ptr::null_mut(), resources: resources.into() });
                slot.info.module
            };
            if let Some(module) = self.slots_of(name).map(kernel).last() {
                names.lock().unwrap_or_else(PoisonError::into_inner).push(module);
            }
            return Ok(());
        }
        let text = ptx_of(name)?;
        agree_all(&text, self.slots_of(name).map(|slot| &slot.info))?;
        let module = {
            let _compiling = Compiling::begin();
            // where a kernel leaves the number of registers open, as others' may, the linker takes more of them than the driver's compiler;
            // the virtual GPU has no compiler
            let is_bounded = self.slots_of(name).all(|slot| slot.info.min_blocks > 0);
            match is_bounded && driver::backend() != Some(driver::Backend::Virtual) {
                true => load_linked(&text)?,
                false => load_ptx(&text)?,
            }
        };
        let mut functions = Vec::new();
        for slot in self.slots_of(name) {
            let symbol = CString::new(slot.info.name).unwrap_or_default();
            let mut function = ptr::null_mut();
            // SAFETY: `module` was just loaded into the current context; the name is a C string.
            let result = unsafe { sys::cuModuleGetFunction(&mut function, module, symbol.as_ptr()) };
            check("cuModuleGetFunction", result)?;
            functions.push((slot, function));
        }
        for (slot, function) in functions {
            // not set yet, and only the holder of the lock sets it
            let _ = slot.kernel.set(Kernel { function, resources: OnceLock::new() });
        }
        Ok(())
    }
}

/// A buffer for the compiler's errors, and the options that name it.
struct Log {
    text: Vec<u8>,
    options: [sys::CUjit_option; 2],
    values: [*mut c_void; 2],
}

impl Log {
    fn new() -> Self {
        use sys::CUjit_option::{CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        let mut text = vec![0u8; 16 << 10];
        let values = [text.as_mut_ptr().cast::<c_void>(), text.len() as *mut c_void];
        let options = [CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        Self { text, options, values }
    }

    /// The error of a module, with what the compiler wrote.
    fn explain(&self, error: Error) -> Error {
        let Error::Driver { code, text, .. } = error else { return error };
        let end = self.text.iter().position(|&byte| byte == 0).unwrap_or(self.text.len());
        let log = String::from_utf8_lossy(&self.text[..end]).trim().to_owned();
        Error::ModuleLoad { code, log: if log.is_empty() { text } else { log } }
    }
}

/// The text with the NUL byte that the driver wants.
fn terminated(ptx: &str) -> Result<CString> {
    let log = "the PTX holds a NUL byte".to_owned();
    CString::new(ptx).map_err(|_| Error::ModuleLoad { code: 218, log })
}

/// A linker of the driver.
struct Linker(sys::CUlinkState);

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: made by `load_linked` and destroyed once. An error can't be reported from here.
        let _ = check("cuLinkDestroy", unsafe { sys::cuLinkDestroy(self.0) });
    }
}

/// Loads PTX text that calls nothing outside it, compiled by the driver's linker: unlike [`load_ptx`] it compiles on several threads at
/// once, and other calls of the driver go on meanwhile. (Driver 580 on an H200, 48 kernels: 13.4 s by one thread, 2.4 by eight, 1.6 by
/// sixteen; by `load_ptx` 13.5 and 14.3 s, and an allocation waited up to 4.4 s.) The driver's cache has the result of either. Registers
/// are those of `load_ptx`, or as many as let the same number of blocks be resident, for kernels that state one (`min_blocks`); others have
/// up to twice as many. An error contains the compiler's log.
fn load_linked(ptx: &str) -> Result<sys::CUmodule> {
    ensure_alive("cuLinkCreate")?;
    let (text, mut log, mut state) = (terminated(ptx)?, Log::new(), ptr::null_mut());
    let count = log.options.len() as u32;
    // SAFETY: the caller has made a context current. Options and values are parallel arrays of two, and the log's buffer is as long as
    // the second value says and outlives the linker.
    let result =
        unsafe { sys::cuLinkCreate_v2(count, log.options.as_mut_ptr(), log.values.as_mut_ptr(), &mut state) };
    check("cuLinkCreate", result)?;
    let linker = Linker(state);
    let (kind, bytes) = (sys::CUjitInputType::CU_JIT_INPUT_PTX, text.as_bytes_with_nul());
    let (mut code, mut size, mut module) = (ptr::null_mut(), 0, ptr::null_mut());
    // SAFETY: the linker was made above. The text is NUL-terminated, as long as its size says, and not written to; there are no options.
    let added = unsafe {
        let (data, name) = (bytes.as_ptr().cast_mut().cast(), c"module".as_ptr());
        sys::cuLinkAddData_v2(linker.0, kind, data, bytes.len(), name, 0, ptr::null_mut(), ptr::null_mut())
    };
    check("cuLinkAddData", added).map_err(|error| log.explain(error))?;
    // SAFETY: the linker was made above, and the code lives as long as it.
    check("cuLinkComplete", unsafe { sys::cuLinkComplete(linker.0, &mut code, &mut size) })
        .map_err(|error| log.explain(error))?;
    // SAFETY: the linker's code, which the driver copies.
    check("cuModuleLoadData", unsafe { sys::cuModuleLoadData(&mut module, code) })
        .map_err(|error| log.explain(error))?;
    Ok(module)
}

/// Loads PTX text by the driver's compiler. An error contains the compiler's log.
pub(super) fn load_ptx(ptx: &str) -> Result<sys::CUmodule> {
    ensure_alive("cuModuleLoadDataEx")?;
    let (text, mut log) = (terminated(ptx)?, Log::new());
    let mut module = ptr::null_mut();
    // SAFETY: the caller has made a context current. The text is NUL-terminated; options and values are parallel
    // arrays of two, and the log buffer is as long as the second value says and outlives the call.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            log.options.len() as u32,
            log.options.as_mut_ptr(),
            log.values.as_mut_ptr(),
        )
    };
    check("cuModuleLoadDataEx", result).map_err(|error| log.explain(error))?;
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    /// The linker takes what the compiler takes, and its errors have a log too.
    #[test]
    fn the_linker_loads_modules() -> Result<()> {
        let Device::Cuda(device) = Device::virtual_gpu()? else {
            panic!("the virtual GPU is no CUDA device")
        };
        device.bind()?;
        for name in ["quant_vector1_q4_0", "quant_lora_q4_0"] {
            let text = ptx_of(name)?;
            for load in [load_linked, load_ptx] {
                let (module, symbol) = (load(&text)?, CString::new(name).unwrap_or_default());
                let mut function = ptr::null_mut();
                // SAFETY: the module was just loaded into the current context; the name is a C string.
                let result = unsafe { sys::cuModuleGetFunction(&mut function, module, symbol.as_ptr()) };
                check("cuModuleGetFunction", result)?;
                assert!(!function.is_null(), "{name}");
            }
        }
        for load in [load_linked, load_ptx] {
            let found = load(".version 6.4\n.target sm_61\n.address_size 64\n.entry none( { }\n");
            assert!(matches!(&found, Err(Error::ModuleLoad { log, .. }) if !log.is_empty()), "{found:?}");
        }
        Ok(())
    }
}
