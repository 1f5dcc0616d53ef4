//! The forwarders: every function of the [table](super::table), exported under its name, calls the backend's.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::mem::{self, MaybeUninit};
use std::ptr;
use std::sync::atomic::Ordering;

use cust_raw::*;

use crate::table::{FUNCTIONS, Function, Index, for_each_function};
use crate::{backend, code_texts, codes, faults, planning};

impl Function {
    /// The backend's function to call now, or the code to return without a call.
    #[inline(always)]
    fn enter(&'static self) -> Result<*mut c_void, u32> {
        let address = self.address.load(Ordering::Acquire);
        if address.is_null() || faults::active() || planning::active() {
            self.enter_slowly(address)
        } else {
            Ok(address)
        }
    }

    #[cold]
    fn enter_slowly(&'static self, mut address: *mut c_void) -> Result<*mut c_void, u32> {
        if let Some(planned) = planning::address_of(self.name) {
            return planned; // scripted faults are the device's
        }
        let mut resolved = Ok(address);
        if address.is_null() {
            resolved = backend::address_of(self.name);
            address = resolved.unwrap_or(ptr::null_mut());
            self.address.store(address, Ordering::Release);
        }
        match faults::before(self) {
            Some(code) => Err(code),
            None => resolved,
        }
    }

    /// Makes the backend's answer safe for the caller's closed enum and records a failure.
    #[inline(always)]
    fn leave(&'static self, code: u32) -> CUresult {
        if code == 0 { CUresult::CUDA_SUCCESS } else { codes::failed(self.name, code) }
    }
}

/// The type in which a parameter travels: as declared, or, for `#[open]`, with any bit pattern allowed.
/// `MaybeUninit<T>` has the ABI of `T`.
macro_rules! travels_as {
    (#[open] $ty:ty) => { MaybeUninit<$ty> };
    ($ty:ty) => { $ty };
}

/// Keeps a symbol inside the program or dynamic library that contains it. Exported, it would take the place of the
/// driver's own in every other library of the process.
macro_rules! hide {
    ($name:ident) => {
        #[cfg(target_os = "linux")]
        std::arch::global_asm!(concat!(".hidden ", stringify!($name)));
    };
}

macro_rules! forwarders {
    ($($reach:ident { $( $name:ident( $( $(#[$open:ident])? $arg:ident : $ty:ty ),* ); )* })*) => {
        $($(
            const _: unsafe extern "C" fn($($ty),*) -> CUresult = cust_raw::$name;

            hide!($name);

            #[unsafe(no_mangle)]
            #[allow(non_snake_case, clippy::too_many_arguments)]
            unsafe extern "C" fn $name($($arg: travels_as!($(#[$open])? $ty)),*) -> CUresult {
                type Backend = unsafe extern "C" fn($(travels_as!($(#[$open])? $ty)),*) -> u32;
                let function = &FUNCTIONS[Index::$name as usize];
                match function.enter() {
                    Err(code) => function.leave(code),
                    Ok(address) => {
                        // SAFETY: `enter` gives the non-null address under which the backend exports this name,
                        // and the constant above proves the argument types against `cust_raw`'s binding of it.
                        // A CUresult is 32 bits wide; read as u32 it may hold any value.
                        let backend = unsafe { mem::transmute::<*mut c_void, Backend>(address) };
                        // SAFETY: the arguments are the caller's, passed on unchanged; the caller keeps to the
                        // driver API's contract for this function.
                        function.leave(unsafe { backend($($arg),*) })
                    }
                }
            }
        )*)*
    };
}

for_each_function!(forwarders);

const _: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult = cust_raw::cuGetErrorName;
const _: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult = cust_raw::cuGetErrorString;

hide!(cuGetErrorName);
hide!(cuGetErrorString);

/// Answered here, never by the backend: every code has a name, so printing an error can't fail.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: u32, name: *mut *const c_char) -> CUresult {
    // SAFETY: the caller passes null or a pointer to write to, as the driver API asks.
    unsafe { give_text(name, code_texts::name_and_text(error).0.as_ptr()) }
}

/// Answered here, never by the backend: cust's `Display` panics where this fails.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: u32, text: *mut *const c_char) -> CUresult {
    // SAFETY: the caller passes null or a pointer to write to, as the driver API asks.
    unsafe { give_text(text, code_texts::name_and_text(error).1.as_ptr()) }
}

/// An attribute of a device by its number in `CUdevice_attribute`, of which `cust_raw` lacks the newer ones.
///
/// # Errors
/// The driver's code; 1 for a number that it does not know.
pub fn device_attribute(device: CUdevice, number: u32) -> Result<c_int, u32> {
    let mut value = 0;
    // SAFETY: both have 32 bits, of which a `MaybeUninit` may hold any.
    let attribute = unsafe { mem::transmute::<u32, MaybeUninit<CUdevice_attribute>>(number) };
    // SAFETY: `value` outlives the call, and the attribute is an int for the driver, which answers any number.
    match unsafe { cuDeviceGetAttribute(&mut value, attribute, device) } {
        CUresult::CUDA_SUCCESS => Ok(value),
        _ => Err(codes::last_raw_code()),
    }
}

/// # Safety
/// `out` is null or valid for a write.
unsafe fn give_text(out: *mut *const c_char, text: *const c_char) -> CUresult {
    if out.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: not null, so valid for a write, as this function's contract says.
    unsafe { out.write(text) };
    CUresult::CUDA_SUCCESS
}
