//! An API function's frame: its declaration, its out-parameters, its result.

use std::ffi::c_void;

use super::codes::*;
use super::stream_id;

/// A function of the driver API and its name.
pub(super) struct Symbol(pub &'static str, pub *const c_void);

// SAFETY: the pointer is the address of a function, which all threads may share.
unsafe impl Sync for Symbol {}

/// Runs an API function's body; a panic becomes `CUDA_ERROR_UNKNOWN`.
pub(super) fn answer(body: impl FnOnce() -> Answer) -> u32 {
    let mut body = Some(body);
    caught(&mut || body.take().map_or(Err(UNKNOWN), |body| body()))
}

/// Compiled once, and not for each function.
fn caught(body: &mut dyn FnMut() -> Answer) -> u32 {
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    stream_id::NULL_IS_PER_THREAD.set(false);
    match result {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => UNKNOWN,
    }
}

/// An out-parameter of an API function, null or valid for a write: the driver API asks that of its callers, and only they
/// make one.
#[repr(transparent)]
pub(super) struct Out<T>(pub *mut T);

impl<T> Out<T> {
    pub fn write(self, value: T) -> Answer {
        // SAFETY: null or valid for a write: what an `Out` is.
        unsafe { write_out(self.0, value) }
    }

    /// For a result that the caller need not take.
    pub fn write_unless_null(self, value: T) {
        let _ = self.write(value); // null is no error
    }
}

/// Writes an out-parameter.
///
/// # Safety
/// `out` is null or valid for a write, as the driver API asks of its callers.
pub(super) unsafe fn write_out<T>(out: *mut T, value: T) -> Answer {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so it is valid for a write: this function's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// Defines API functions, proves their types against `cust_raw`, and lists them in `SYMBOLS`.
///
/// `arg: Type => Raw` takes an argument that `cust_raw` declares as a closed enum as a plain number, so that
/// a value which the bindings lack is not undefined behaviour.
macro_rules! api {
    (@raw $ty:ty) => { $ty };
    (@raw $ty:ty, $raw:ty) => { $raw };
    // functions that `cust_raw` lacks
    (newer $($(#[$doc:meta])* fn $name:ident( $($arg:ident : $ty:ty $(=> $raw:ty)?),* $(,)? ) $body:block)*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case, clippy::too_many_arguments)]
            unsafe extern "C" fn $name($($arg: $crate::api::call::api!(@raw $ty $(, $raw)?)),*) -> u32 {
                $crate::api::call::answer(|| $body)
            }
        )*
        pub(super) static SYMBOLS: &[$crate::api::call::Symbol] =
            &[$($crate::api::call::Symbol(stringify!($name), $name as *const std::ffi::c_void)),*];
    };
    ($($(#[$doc:meta])* fn $name:ident( $($arg:ident : $ty:ty $(=> $raw:ty)?),* $(,)? ) $body:block)*) => {
        $(
            const _: unsafe extern "C" fn($($ty),*) -> cust_raw::CUresult = cust_raw::$name;
            $(#[$doc])*
            #[allow(non_snake_case, clippy::too_many_arguments)]
            unsafe extern "C" fn $name($($arg: $crate::api::call::api!(@raw $ty $(, $raw)?)),*) -> u32 {
                $crate::api::call::answer(|| $body)
            }
        )*
        pub(super) static SYMBOLS: &[$crate::api::call::Symbol] =
            &[$($crate::api::call::Symbol(stringify!($name), $name as *const std::ffi::c_void)),*];
    };
}
pub(super) use api;
