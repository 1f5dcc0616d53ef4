//! Libraries: code that belongs to no context, and its kernels. A device loads a library when it first needs it there.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use cust_raw::*;

use super::call::{Out, api, write_out};
use super::codes::*;
use super::engine::run_until;
use super::entry::enter;
use super::launch::{Logs, compile, file_text, image_text, load_on, name_of, new_function};
use super::state::{Driver, Library, LibraryKernel};

pub(super) enum LibraryHandle {}
pub(super) enum KernelHandle {}
/// Handles that `cust_raw` lacks.
pub(super) type CUlibrary = *mut LibraryHandle;
pub(super) type CUkernel = *mut KernelHandle;

impl Driver {
    /// The function that a handle means: itself, or for a kernel of a library its function on the current device.
    pub(super) fn resolve(&mut self, handle: u64) -> Result<u64, u32> {
        let Some(kernel) = self.kernels.get(&handle) else { return Ok(handle) };
        if let Some(&f) = kernel.functions.get(&self.current) {
            return Ok(f);
        }
        let (library, name) = (kernel.library, kernel.name.clone());
        let module = self.library_module(library)?;
        let f = new_function(self, module, &name)?;
        if let Some(kernel) = self.kernels.get_mut(&handle) {
            kernel.functions.insert(self.current, f);
        }
        Ok(f)
    }

    /// A library's module on the current device.
    fn library_module(&mut self, library: u64) -> Result<u64, u32> {
        let l = self.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        if let Some(&module) = l.loaded.get(&self.current) {
            return Ok(module);
        }
        let code = Arc::clone(&l.module);
        let module = load_on(self, &code)?;
        if let Some(l) = self.libraries.get_mut(&library) {
            l.loaded.insert(self.current, module);
        }
        Ok(module)
    }

    /// The handle of a library's kernel, always the same.
    fn library_kernel(&mut self, library: u64, name: &str) -> Result<u64, u32> {
        let l = self.libraries.get(&library).ok_or(INVALID_HANDLE)?;
        l.module.kernel(name).ok_or(NOT_FOUND)?;
        let same = |(_, k): &(&u64, &LibraryKernel)| k.library == library && k.name == name;
        if let Some((&handle, _)) = self.kernels.iter().find(same) {
            return Ok(handle);
        }
        let handle = self.handle();
        let (name, functions) = (name.to_owned(), BTreeMap::new());
        self.kernels.insert(handle, LibraryKernel { library, name, functions });
        Ok(handle)
    }
}

fn load(out: Out<CUlibrary>, image: &[u8], logs: &Logs) -> Answer {
    let d = &mut *super::entry::guard()?;
    let read = compile(image, Some(logs), d.arch())?;
    let id = d.handle();
    d.libraries.insert(id, Library { module: Arc::clone(&read.module), loaded: BTreeMap::new() });
    out.write(id as CUlibrary)
}

api! {
    newer

    fn cuLibraryLoadData(
        library: *mut CUlibrary => Out<CUlibrary>, code: *const c_void, jit: *const c_int, jit_values: *mut *mut c_void,
        jit_count: c_uint, _options: *const c_int, _values: *mut *mut c_void, _count: c_uint,
    ) {
        // SAFETY: the caller promised the driver API `jit_count` options and values.
        let logs = unsafe { Logs::read(jit_count, jit, jit_values)? };
        // SAFETY: the caller promised the driver API a null pointer or an image.
        load(library, unsafe { image_text(code)? }, &logs)
    }

    fn cuLibraryLoadFromFile(
        library: *mut CUlibrary => Out<CUlibrary>, path: *const c_char, jit: *const c_int, jit_values: *mut *mut c_void,
        jit_count: c_uint, _options: *const c_int, _values: *mut *mut c_void, _count: c_uint,
    ) {
        // SAFETY: the caller promised the driver API `jit_count` options and values.
        let logs = unsafe { Logs::read(jit_count, jit, jit_values)? };
        let bytes = std::fs::read(name_of(path)?).map_err(|_| FILE_NOT_FOUND)?;
        load(library, file_text(&bytes)?, &logs)
    }

    /// Waits for all devices first: any of them may run its kernels.
    fn cuLibraryUnload(library: CUlibrary) {
        let guard = super::entry::guard()?;
        let mut guard = run_until(guard, Driver::idle)?;
        let d = &mut *guard;
        let library = library as u64;
        let l = d.libraries.remove(&library).ok_or(INVALID_HANDLE)?;
        d.kernels.retain(|_, kernel| kernel.library != library);
        for (device, module) in l.loaded {
            let Some(m) = d.modules.remove(&module) else { continue };
            d.devices[device].gpu.unload(&m.loaded).map_err(memory_code)?;
        }
        Ok(())
    }

    fn cuLibraryGetKernel(kernel: *mut CUkernel => Out<CUkernel>, library: CUlibrary, name: *const c_char) {
        let d = &mut *super::entry::guard()?;
        let handle = d.library_kernel(library as u64, name_of(name)?)?;
        kernel.write(handle as CUkernel)
    }

    fn cuLibraryGetKernelCount(count: *mut c_uint => Out<c_uint>, library: CUlibrary) {
        let d = &mut *super::entry::guard()?;
        let n = d.libraries.get(&(library as u64)).ok_or(INVALID_HANDLE)?.module.kernels().len();
        count.write(n as c_uint)
    }

    fn cuLibraryEnumerateKernels(kernels: *mut CUkernel, count: c_uint, library: CUlibrary) {
        let d = &mut *super::entry::guard()?;
        let all = d.libraries.get(&(library as u64)).ok_or(INVALID_HANDLE)?.module.kernels();
        let names: Vec<String> = all.iter().take(count as usize).map(|k| k.name.clone()).collect();
        for (i, name) in names.iter().enumerate() {
            let handle = d.library_kernel(library as u64, name)?;
            // SAFETY: the caller's array is null or has `count` entries.
            unsafe { write_out(kernels.wrapping_add(i), handle as CUkernel)? };
        }
        Ok(())
    }

    fn cuLibraryGetModule(module: *mut CUmodule => Out<CUmodule>, library: CUlibrary) {
        let id = enter()?.library_module(library as u64)?;
        module.write(id as CUmodule)
    }

    fn cuLibraryGetGlobal(
        ptr: *mut CUdeviceptr => Out<CUdeviceptr>, bytes: *mut usize => Out<usize>, library: CUlibrary, name: *const c_char,
    ) {
        let d = &mut *enter()?;
        let module = d.library_module(library as u64)?;
        let (at, size) = d.module(module)?.loaded.global(name_of(name)?).ok_or(NOT_FOUND)?;
        ptr.write_unless_null(at);
        bytes.write_unless_null(size as usize);
        Ok(())
    }

    /// PTX has no managed variables here.
    fn cuLibraryGetManaged(_ptr: *mut CUdeviceptr, _bytes: *mut usize, _library: CUlibrary, _name: *const c_char) {
        enter().and(Err(NOT_FOUND))
    }

    /// PTX has no functions that host and device share.
    fn cuLibraryGetUnifiedFunction(_function: *mut *mut c_void, library: CUlibrary, _name: *const c_char) {
        let d = super::entry::guard()?;
        Err(if d.libraries.contains_key(&(library as u64)) { NOT_FOUND } else { INVALID_HANDLE })
    }

    fn cuKernelGetFunction(f: *mut CUfunction => Out<CUfunction>, kernel: CUkernel) {
        let d = &mut *enter()?;
        if !d.kernels.contains_key(&(kernel as u64)) {
            return Err(INVALID_HANDLE);
        }
        let handle = d.resolve(kernel as u64)?;
        f.write(handle as CUfunction)
    }

    fn cuKernelGetLibrary(library: *mut CUlibrary => Out<CUlibrary>, kernel: CUkernel) {
        let of = super::entry::guard()?.kernels.get(&(kernel as u64)).ok_or(INVALID_HANDLE)?.library;
        library.write(of as CUlibrary)
    }
}
