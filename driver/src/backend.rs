//! Where the functions come from: the driver library, opened when first needed, or the virtual GPU.

use std::env;
use std::ffi::{c_int, c_uint, c_void};
use std::mem;
use std::sync::{LazyLock, OnceLock};

use libloading::Library;

/// The implementation of the driver API in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The installed driver's library.
    Real,
    /// The virtual sm_61 GPU.
    Virtual,
}

/// The requested backend is not available, because the other one is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0:?} backend of the CUDA driver API is in use in this process and cannot be changed any more")]
pub struct AlreadySelected(
    /// The backend in use.
    pub Backend,
);

static SELECTED: OnceLock<Backend> = OnceLock::new();

/// Selects the backend for the whole process, permanently. Call it before the first driver call, which otherwise decides by
/// the environment: `PASCALINE_DEVICE=virtual`, or `virtual:N`, means [`Backend::Virtual`], all else [`Backend::Real`].
/// Selecting the backend that is in use already is not an error.
pub fn select(backend: Backend) -> Result<(), AlreadySelected> {
    match *SELECTED.get_or_init(|| backend) {
        selected if selected == backend => Ok(()),
        selected => Err(AlreadySelected(selected)),
    }
}

/// The backend in use; `None` before [`select`] and before the first driver call.
pub fn backend() -> Option<Backend> {
    SELECTED.get().copied()
}

/// How the search for the driver library went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryStatus {
    /// The attempts, in order; the search ends at the first that loads.
    pub attempts: Vec<Attempt>,
}

/// One name or path under which the driver library was looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// A bare name is searched by the system's loader.
    pub path: &'static str,
    /// Why it could not be used; `None` means that it was loaded.
    pub error: Option<String>,
}

impl LibraryStatus {
    /// The name or path that was loaded.
    pub fn loaded(&self) -> Option<&'static str> {
        self.attempts.iter().find(|attempt| attempt.error.is_none()).map(|attempt| attempt.path)
    }
}

/// Where the driver library was looked for and with what result. Opens it if no call has done so yet (which
/// neither initialises the driver nor selects a backend).
pub fn library() -> &'static LibraryStatus {
    &REAL.status
}

/// How many devices the installed driver reports, or the code with which it fails to start (100 without a driver). Selects
/// no backend, so that a program may look first and then choose.
pub fn real_devices() -> Result<u32, u32> {
    const NO_DEVICE: u32 = 100;
    const NOT_FOUND: u32 = 500;
    let library = REAL.library.as_ref().ok_or(NO_DEVICE)?;
    let (init, count) =
        (symbol(library, "cuInit").ok_or(NOT_FOUND)?, symbol(library, "cuDeviceGetCount").ok_or(NOT_FOUND)?);
    let mut devices = 0;
    // SAFETY: the driver API declares `CUresult cuInit(unsigned)` and `CUresult cuDeviceGetCount(int *)`; the codes are
    // taken as plain integers.
    unsafe {
        let init = mem::transmute::<*const c_void, unsafe extern "C" fn(c_uint) -> u32>(init);
        let count = mem::transmute::<*const c_void, unsafe extern "C" fn(*mut c_int) -> u32>(count);
        match init(0) {
            0 => {}
            code => return Err(code),
        }
        match count(&mut devices) {
            0 => Ok(devices.max(0) as u32),
            code => Err(code),
        }
    }
}

/// The backend's function `name`, or the code that a call to it returns: no device if there is no driver library, not
/// supported if the backend lacks the function.
pub(crate) fn address_of(name: &str) -> Result<*mut c_void, u32> {
    const NO_DEVICE: u32 = 100;
    const NOT_SUPPORTED: u32 = 801;
    let address = match SELECTED.get_or_init(from_environment) {
        Backend::Real => symbol(REAL.library.as_ref().ok_or(NO_DEVICE)?, name),
        Backend::Virtual => virtual_symbol(name),
    };
    address.filter(|address| !address.is_null()).map(<*const c_void>::cast_mut).ok_or(NOT_SUPPORTED)
}

/// `virtual`, or `virtual:N`.
fn is_virtual(device: &str) -> bool {
    device == "virtual" || device.starts_with("virtual:")
}

fn from_environment() -> Backend {
    match env::var_os("PASCALINE_DEVICE") {
        Some(device) if device.to_str().is_some_and(is_virtual) => Backend::Virtual,
        _ => Backend::Real,
    }
}

/// Whether the virtual GPU is linked. Without it [`Backend::Virtual`] can be selected, and each call answers that it is not
/// supported.
pub const HAS_VIRTUAL_GPU: bool = cfg!(feature = "virtual-gpu");

/// The virtual GPU's function `name`.
#[cfg(all(not(test), feature = "virtual-gpu"))]
fn virtual_symbol(name: &str) -> Option<*const c_void> {
    pascaline_virtual_gpu::symbol(name)
}

#[cfg(all(not(test), not(feature = "virtual-gpu")))]
fn virtual_symbol(_: &str) -> Option<*const c_void> {
    None
}

/// This crate's unit tests run on a table of their own.
#[cfg(test)]
use crate::tests::virtual_symbol;

/// The names, in order. Never `libcuda.so`: toolkits ship a stub under it that answers every call with an error.
#[cfg(not(windows))]
const PATHS: &[&str] = &["libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"];
#[cfg(windows)]
const PATHS: &[&str] = &["nvcuda.dll"];

struct Real {
    /// Never closed: the driver runs threads of its own, and calls may come until the process ends.
    library: Option<Library>,
    status: LibraryStatus,
}

static REAL: LazyLock<Real> = LazyLock::new(|| {
    let mut attempts = Vec::new();
    for &path in PATHS {
        let opened = open(path).map_err(|error| error.to_string()).and_then(|library| {
            match symbol(&library, "cuInit") {
                Some(_) => Ok(library),
                None => Err("it does not export cuInit".to_string()),
            }
        });
        let (library, error) = match opened {
            Ok(library) => (Some(library), None),
            Err(error) => (None, Some(error)),
        };
        attempts.push(Attempt { path, error });
        if library.is_some() {
            return Real { library, status: LibraryStatus { attempts } };
        }
    }
    Real { library: None, status: LibraryStatus { attempts } }
});

#[cfg(not(windows))]
fn open(path: &str) -> Result<Library, libloading::Error> {
    // SAFETY: the file names the system's CUDA driver, whose load-time code the user trusts by having installed it.
    unsafe { Library::new(path) }
}

/// From the system's folder alone, so that a file of that name in the current folder is not picked up.
#[cfg(windows)]
fn open(path: &str) -> Result<Library, libloading::Error> {
    use libloading::os::windows::{LOAD_LIBRARY_SEARCH_SYSTEM32, Library as System};
    // SAFETY: the file names the system's CUDA driver, whose load-time code the user trusts by having installed it.
    unsafe { System::load_with_flags(path, LOAD_LIBRARY_SEARCH_SYSTEM32) }.map(Library::from)
}

fn symbol(library: &Library, name: &str) -> Option<*const c_void> {
    // SAFETY: the symbol is taken as a bare address; its type is claimed where it is called.
    unsafe { library.get::<*const c_void>(name.as_bytes()) }.ok().map(|symbol| *symbol)
}
