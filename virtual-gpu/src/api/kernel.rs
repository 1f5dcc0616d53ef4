//! Functions and kernels: launches with attributes, what is asked about them, modules' lists of functions.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};

use cust_raw::*;

use super::call::{Out, api, write_out};
use super::codes::*;
use super::entry::enter;
use super::launch::{attribute, function, launch, name_of, new_function, set_attribute};
use super::library::CUkernel;
use super::references::reference;
use super::state::Driver;
use crate::ptx::VarSpace;
use crate::refusal::refuse;

/// `CUlaunchConfig`
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    stream: CUstream,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// `CUlaunchAttribute`
#[repr(C)]
struct LaunchAttribute {
    id: c_uint,
    pad: c_uint,
    value: [c_uint; 16],
}

/// A name as a C string that lives as long as the driver.
fn c_name(d: &mut Driver, name: String) -> Result<*const c_char, u32> {
    let c = CString::new(name.clone()).map_err(|_| INVALID_VALUE)?;
    Ok(d.names.entry(name).or_insert(c).as_ptr())
}

fn parameter(f: CUfunction, n: usize, offset: Out<usize>, size: *mut usize) -> Answer {
    let d = &mut *enter()?;
    let (_, k) = function(d, f)?;
    let p = k.params.get(n).ok_or(INVALID_VALUE)?;
    if !size.is_null() {
        // SAFETY: not null, so the caller's.
        unsafe { write_out(size, p.bytes as usize)? };
    }
    offset.write(p.offset as usize)
}

fn name(out: Out<*const c_char>, f: CUfunction) -> Answer {
    let d = &mut *enter()?;
    let name = function(d, f)?.0.kernel.clone();
    let name = c_name(d, name)?;
    out.write(name)
}

/// Checks that a kernel is asked about on the current device.
fn here(d: &Driver, dev: CUdevice) -> Answer {
    if usize::try_from(dev).ok() == Some(d.current) { Ok(()) } else { Err(NOT_SUPPORTED) }
}

api! {
    newer

    /// Programmatic launches are ordered as plain ones.
    fn cuLaunchKernelEx(config: *const LaunchConfig, f: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void) {
        if config.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's valid description.
        let c = unsafe { &*config };
        let mut cooperative = false;
        for i in 0..c.count as usize {
            if c.attributes.is_null() {
                return Err(INVALID_VALUE);
            }
            // SAFETY: the caller's list has `count` entries.
            let a = unsafe { &*c.attributes.add(i) };
            match a.id {
                // nothing; hints on L2, synchronisation, scheduling, overlap, priority and fences
                0 | 1 | 3 | 5 | 6 | 8 | 9 | 10 | 14 => {}
                2 if a.value[0] == 0 => {}
                2 => cooperative = true,
                4 | 11 if a.value[..3] == [1, 1, 1] => {}
                4 | 11 => {
                    refuse("a launch in clusters, which sm_61 lacks");
                    return Err(NOT_SUPPORTED);
                }
                _ => {
                    refuse(&format!("a launch with attribute {}", a.id));
                    return Err(NOT_SUPPORTED);
                }
            }
        }
        // SAFETY: the caller promised the driver API parameters as the kernel has them.
        unsafe { launch(f, [c.grid, c.block], c.shared, c.stream, params, extra, cooperative) }
    }

    fn cuLaunchCooperativeKernel(
        f: CUfunction, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared: c_uint,
        stream: CUstream, params: *mut *mut c_void,
    ) {
        // SAFETY: the caller promised the driver API parameters as the kernel has them.
        unsafe { launch(f, [[gx, gy, gz], [bx, by, bz]], shared, stream, params, std::ptr::null_mut(), true) }
    }

    fn cuFuncGetModule(module: *mut CUmodule => Out<CUmodule>, f: CUfunction) {
        let of = function(&mut *enter()?, f)?.0.module;
        module.write(of as CUmodule)
    }

    fn cuFuncGetName(out: *mut *const c_char => Out<*const c_char>, f: CUfunction) {
        name(out, f)
    }

    fn cuFuncGetParamInfo(f: CUfunction, n: usize, offset: *mut usize => Out<usize>, size: *mut usize) {
        parameter(f, n, offset, size)
    }

    fn cuFuncGetParamCount(f: CUfunction, count: *mut usize => Out<usize>) {
        let n = function(&mut *enter()?, f)?.1.params.len();
        count.write(n)
    }

    fn cuKernelGetParamCount(kernel: CUkernel, count: *mut usize => Out<usize>) {
        let n = function(&mut *enter()?, kernel.cast())?.1.params.len();
        count.write(n)
    }

    /// All functions are loaded with their modules.
    fn cuFuncIsLoaded(state: *mut c_int => Out<c_int>, f: CUfunction) {
        function(&mut *enter()?, f)?;
        state.write(1)
    }

    fn cuFuncLoad(f: CUfunction) {
        function(&mut *enter()?, f).map(|_| ())
    }

    fn cuKernelGetName(out: *mut *const c_char => Out<*const c_char>, kernel: CUkernel) {
        name(out, kernel.cast())
    }

    fn cuKernelGetParamInfo(kernel: CUkernel, n: usize, offset: *mut usize => Out<usize>, size: *mut usize) {
        parameter(kernel.cast(), n, offset, size)
    }

    fn cuKernelGetAttribute(value: *mut c_int => Out<c_int>, attr: c_int, kernel: CUkernel, dev: CUdevice) {
        let d = &mut *enter()?;
        here(d, dev)?;
        let v = attribute(d, kernel as u64, attr)?;
        value.write(v)
    }

    fn cuKernelSetAttribute(attr: c_int, value: c_int, kernel: CUkernel, dev: CUdevice) {
        let d = &mut *enter()?;
        here(d, dev)?;
        set_attribute(d, kernel as u64, attr, value)
    }

    /// A hint that this chip ignores.
    fn cuKernelSetCacheConfig(kernel: CUkernel, _config: c_int, dev: CUdevice) {
        let d = &mut *enter()?;
        here(d, dev)?;
        function(d, kernel.cast()).map(|_| ())
    }

    /// Eager.
    fn cuModuleGetLoadingMode(mode: *mut c_int => Out<c_int>) {
        mode.write(1)
    }

    fn cuModuleGetFunctionCount(count: *mut c_uint => Out<c_uint>, module: CUmodule) {
        let n = enter()?.module(module as u64)?.loaded.module.kernels().len();
        count.write(n as c_uint)
    }

    fn cuModuleEnumerateFunctions(functions: *mut CUfunction, count: c_uint, module: CUmodule) {
        let d = &mut *enter()?;
        let kernels = d.module(module as u64)?.loaded.module.kernels();
        let names: Vec<String> = kernels.iter().take(count as usize).map(|k| k.name.clone()).collect();
        for (i, name) in names.iter().enumerate() {
            let f = new_function(d, module as u64, name)?;
            // SAFETY: the caller's array is null or has `count` entries.
            unsafe { write_out(functions.wrapping_add(i), f as CUfunction)? };
        }
        Ok(())
    }

    fn cuModuleGetTexRef(out: *mut CUtexref => Out<CUtexref>, module: CUmodule, name: *const c_char) {
        let at = reference(&mut *enter()?, module, name_of(name)?, VarSpace::Texture)?;
        out.write(at as CUtexref)
    }

    fn cuModuleGetSurfRef(out: *mut CUsurfref => Out<CUsurfref>, module: CUmodule, name: *const c_char) {
        let at = reference(&mut *enter()?, module, name_of(name)?, VarSpace::Surface)?;
        out.write(at as CUsurfref)
    }
}
