//! A kernel of PTX that is not this program's own.

use super::module::load_ptx;
use super::{CudaDevice, check};
use crate::{Error, Result};
use cust::sys;
use std::ffi::{CString, c_void};
use std::ptr;

/// A kernel of a module that was loaded from someone's PTX; the module lives as long as the process.
pub struct ForeignKernel {
    device: CudaDevice,
    function: sys::CUfunction,
}

impl ForeignKernel {
    /// Loads PTX text on a device and looks the kernel up.
    ///
    /// # Errors
    /// [`Error::ModuleLoad`] with the driver's log, or without such a kernel.
    pub fn load(device: &CudaDevice, ptx: &str, kernel: &str) -> Result<Self> {
        device.bind()?;
        let module = load_ptx(ptx)?;
        let missing =
            |reason: String| Error::ModuleLoad { code: 500, log: format!("kernel {kernel}: {reason}") };
        let name = CString::new(kernel).map_err(|error| missing(error.to_string()))?;
        let mut function = ptr::null_mut();
        // SAFETY: `module` was just loaded into the bound context; the name is a C string.
        let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
        check("cuModuleGetFunction", result).map_err(|error| missing(error.to_string()))?;
        Ok(Self { device: device.clone(), function })
    }

    /// Queues a launch on the device's stream, with `shared` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// A driver error; a fault of the kernel comes with the next synchronisation.
    ///
    /// # Safety
    /// `arguments` are as many as the kernel has parameters, none of which is larger than 8 bytes.
    pub unsafe fn launch(
        &self,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        arguments: &[u64],
    ) -> Result<()> {
        self.device.bind()?;
        let mut values: Vec<*mut c_void> =
            arguments.iter().map(|argument| ptr::from_ref(argument).cast_mut().cast()).collect();
        // SAFETY: the function belongs to the bound context. `values` points to one value of 8 bytes for each
        // parameter (the caller's promise), which the driver copies before it returns. What the kernel does to device
        // memory can't touch the host's.
        let result = unsafe {
            sys::cuLaunchKernel(
                self.function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared,
                self.device.stream().raw(),
                values.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernel", result)
    }
}
