//! The seam under [cust](https://docs.rs/cust): the CUDA driver API's functions, served by the installed driver
//! or by the virtual GPU.
//!
//! # Why it exists
//!
//! cust links against `libcuda`. A program that uses it therefore builds only where a CUDA toolkit is found, and
//! starts only where a driver is installed. This crate defines forwarders under the driver's own names and opens the
//! driver library when the first of them is called. One binary
//!
//! * builds without a toolkit and starts without a driver; there every call answers `CUDA_ERROR_NO_DEVICE`;
//! * uses the driver where there is one; a function that an older driver lacks answers `CUDA_ERROR_NOT_SUPPORTED`;
//! * runs on the virtual sm_61 GPU instead, if [`select`] or `PASCALINE_DEVICE=virtual` says so (feature `virtual-gpu`, on by
//!   default);
//! * never meets a result code that cust's enum does not list, which would be undefined behaviour: such a code
//!   arrives as `CUDA_ERROR_UNKNOWN`, and [`last_failure`] still has its number;
//! * can be made to fail at any driver call, see [`faults`];
//! * plans on one thread without any device, beside the driver of the others, see [`planning`].
//!
//! A call costs a load, a test and an indirect call on top of the driver's own time.
//!
//! # How to use it
//!
//! Depend on this crate and on cust, and name this crate once, or its functions are not linked:
//!
//! ```
//! use pascaline_driver as _;
//!
//! match cust::init(cust::CudaFlags::empty()) {
//!     Ok(()) => println!("{:?} devices", cust::device::Device::num_devices()),
//!     Err(error) => println!("no CUDA: {error} (code {})", pascaline_driver::last_raw_code()),
//! }
//! ```
//!
//! cust's build script still asks `find_cuda_helper` for a toolkit. Where none is installed, the replacement in
//! `driver/find_cuda_helper` answers it. Cargo does not take patches from dependencies, so the `Cargo.toml` of the
//! program (or of its workspace) must contain:
//!
//! ```toml
//! [patch.crates-io]
//! find_cuda_helper = { path = "driver/find_cuda_helper" } # or { git = … }
//! ```
//!
//! A driver function that `table.rs` does not list is a link error in the program that calls it.
//!
//! # Values newer than the bindings
//!
//! `cust_raw` declares attributes, limits and options as closed enums too. A caller that needs a value which they
//! lack declares the function itself with an integer in that place; the forwarders take any:
//!
//! ```
//! # use pascaline_driver as _;
//! use std::ffi::c_int;
//! unsafe extern "C" {
//!     fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> u32;
//! }
//! let mut value = 0;
//! // SAFETY: `value` outlives the call.
//! let code = unsafe { cuDeviceGetAttribute(&mut value, 120, 0) };
//! assert_ne!(code, 0, "the driver has not been initialised");
//! ```
//!
//! # One driver per process
//!
//! The symbols are hidden, so that in a dynamic library or plug-in they stay inside it and never take the place
//! of the driver's in other libraries of the process.

mod backend;
mod code_texts;
mod codes;
pub mod faults;
mod forward;
pub mod planning;
mod table;
#[cfg(test)]
mod tests;

pub use backend::{
    AlreadySelected, Attempt, Backend, HAS_VIRTUAL_GPU, LibraryStatus, backend, library, real_devices, select,
};
pub use codes::{Failure, code_name, code_text, last_failure, last_raw_code};
pub use forward::device_attribute;
