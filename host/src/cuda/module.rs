//! The kernels' PTX, loaded into a context.

use super::occupancy::Resources;
use super::{check, ensure_alive};
use crate::{Error, Result};
use cust::sys;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::OnceLock;

/// The PTX of all kernels, as `build.rs` made it.
pub const PTX: &str = include_str!(env!("PASCALINE_PTX"));

/// A kernel's handle and what its parameters look like.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(super) function: sys::CUfunction,
    /// What it takes of a multiprocessor, once asked for.
    pub(super) resources: OnceLock<Resources>,
}

/// All kernels of [`PTX`] by name.
#[derive(Debug)]
pub(crate) struct Module {
    kernels: HashMap<&'static str, Kernel>,
}

// SAFETY: function handles name code of the context, which outlives this; the driver lets any thread launch them.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// A module without kernels, for a context that has none loaded yet.
    pub(crate) fn empty() -> Self {
        Self { kernels: HashMap::new() }
    }

    /// Loads [`PTX`] into the current context and looks up every kernel that `kernels-gpu` declares.
    ///
    /// The module is never unloaded: it lives as long as the primary context, which lives as long as the process.
    pub(crate) fn load() -> Result<Self> {
        let module = load_ptx(PTX)?;
        let mut kernels = HashMap::new();
        for spec in kernels_gpu::KERNELS.iter().copied().flatten() {
            let name = CString::new(spec.name).unwrap_or_default();
            let mut function = ptr::null_mut();
            // SAFETY: `module` was just loaded into the current context; the name is a C string.
            let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
            check("cuModuleGetFunction", result).map_err(|error| Error::ModuleLoad {
                code: 500,
                log: format!("kernel {} is not in the PTX: {error}", spec.name),
            })?;
            kernels.insert(spec.name, Kernel { function, resources: OnceLock::new() });
        }
        Ok(Self { kernels })
    }

    pub(crate) fn kernel(&self, name: &str) -> Result<&Kernel> {
        self.kernels.get(name).ok_or_else(|| Error::Unsupported {
            op: "launch",
            argument: "kernel",
            value: name.to_owned(),
            reason: "it is not in the PTX".into(),
        })
    }
}

/// Loads PTX text with the driver's compiler, whose log comes back in the error.
pub(super) fn load_ptx(ptx: &str) -> Result<sys::CUmodule> {
    ensure_alive("cuModuleLoadDataEx")?;
    let malformed = |log: &str| Error::ModuleLoad { code: 218, log: log.to_owned() };
    let text = CString::new(ptx).map_err(|_| malformed("the PTX holds a NUL byte"))?;
    let mut log = vec![0u8; 16 << 10];
    let mut options =
        [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
    let mut module = ptr::null_mut();
    // SAFETY: the caller has made a context current. The text is NUL-terminated; options and values are parallel
    // arrays of two, and the log buffer is as long as the second value says and outlives the call.
    let result = unsafe {
        sys::cuModuleLoadDataEx(
            &mut module,
            text.as_ptr().cast(),
            options.len() as u32,
            options.as_mut_ptr(),
            values.as_mut_ptr(),
        )
    };
    match check("cuModuleLoadDataEx", result) {
        Ok(()) => Ok(module),
        Err(Error::Driver { code, text, .. }) => {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            let log = String::from_utf8_lossy(&log[..end]).trim().to_owned();
            Err(Error::ModuleLoad { code, log: if log.is_empty() { text } else { log } })
        }
        Err(other) => Err(other),
    }
}
