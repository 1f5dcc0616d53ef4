//! NCCL, NVIDIA's sums over GPUs, opened at run time where its library is there.
//!
//! Signatures and numbers are those of `nccl.h` 2.x. The library is the user's; nothing of it is linked.

use super::current::forget_current;
use super::device::CudaDevice;
use crate::{Error, Result};
use libloading::Library;
use std::ffi::{CStr, OsString, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::{env, ptr};

const SUCCESS: c_int = 0;
/// `ncclFloat32`
const F32: c_int = 7;
/// `ncclSum`
const SUM: c_int = 0;
/// Where the loader finds it.
const NAME: &str = "libnccl.so.2";
/// Names another file.
const VARIABLE: &str = "PASCALINE_NCCL";

type Comm = *mut c_void;
/// Of a part into a sum: so many values of a type, by an operation, on a communicator's device and stream.
type Reduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;

/// The functions that are used.
struct Api {
    comm_init_all: unsafe extern "C" fn(*mut Comm, c_int, *const c_int) -> c_int,
    comm_destroy: unsafe extern "C" fn(Comm) -> c_int,
    comm_abort: unsafe extern "C" fn(Comm) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_reduce: Reduce,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    /// The library that has the functions; none for a test's own.
    _library: Option<Library>,
}

/// Sums over these devices by NCCL.
pub(crate) struct Nccl {
    api: Api,
    devices: Vec<CudaDevice>,
    /// Of each device. A sum of all is queued under the lock, as all must see sums in one order.
    comms: Mutex<Vec<Comm>>,
}

// SAFETY: NCCL lets any thread call for a communicator as long as calls do not overlap, which the lock sees to.
unsafe impl Send for Nccl {}
// SAFETY: communicators are used with `comms` locked, so that calls do not overlap.
unsafe impl Sync for Nccl {}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NCCL over {:?}", self.devices)
    }
}

impl Api {
    /// The library's; `None` if it is not there.
    fn open() -> Result<Option<Self>> {
        let named = env::var_os(VARIABLE);
        if named.is_none() && cfg!(windows) {
            return Ok(None);
        }
        let file = named.clone().unwrap_or_else(|| OsString::from(NAME));
        let refused = |error: libloading::Error| unusable(&file.to_string_lossy(), &error.to_string());
        // SAFETY: NVIDIA's library, which the user has installed or named; its load-time code is trusted by that.
        let library = match unsafe { Library::new(&file) } {
            Ok(library) => library,
            Err(error) if named.is_none() && error.to_string().contains("cannot open") => return Ok(None),
            Err(error) => return Err(refused(error)),
        };
        // SAFETY: the types are those of these functions in nccl.h since version 2.4; the functions live as long as the library,
        // which the table keeps.
        unsafe {
            Ok(Some(Self {
                comm_init_all: *library.get(b"ncclCommInitAll").map_err(refused)?,
                comm_destroy: *library.get(b"ncclCommDestroy").map_err(refused)?,
                comm_abort: *library.get(b"ncclCommAbort").map_err(refused)?,
                group_start: *library.get(b"ncclGroupStart").map_err(refused)?,
                group_end: *library.get(b"ncclGroupEnd").map_err(refused)?,
                all_reduce: *library.get(b"ncclAllReduce").map_err(refused)?,
                error_string: *library.get(b"ncclGetErrorString").map_err(refused)?,
                _library: Some(library),
            }))
        }
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: it gives a text that lives as long as the library for any code.
        let text = unsafe { (self.error_string)(code) };
        let text = match text.is_null() {
            true => "an error without a text".to_owned(),
            // SAFETY: not null, and ends with a zero byte, as nccl.h promises.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
        };
        Err(Error::Driver { call, code: code.unsigned_abs(), text })
    }
}

fn unusable(file: &str, reason: &str) -> Error {
    let reason = format!("{reason}; values can go as peer or pinned copies instead");
    Error::Unsupported { op: "NCCL", argument: "library", value: file.to_owned(), reason }
}

impl Nccl {
    /// Over these devices; `None` if the library is not there, or they are virtual, which it does not know.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a library that can't be used, or NCCL's own.
    pub fn open(devices: &[CudaDevice]) -> Result<Option<Self>> {
        if devices.iter().any(CudaDevice::is_virtual) {
            return Ok(None);
        }
        Api::open()?.map(|api| Self::with(api, devices)).transpose()
    }

    /// Whether the library is there.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn is_there() -> Result<bool> {
        Ok(Api::open()?.is_some())
    }

    fn with(api: Api, devices: &[CudaDevice]) -> Result<Self> {
        let ordinals: Vec<_> = devices.iter().map(|device| device.properties().ordinal as c_int).collect();
        let mut comms = vec![ptr::null_mut(); devices.len()];
        // SAFETY: both arrays have `devices.len()` entries; the devices' contexts are primary ones, which NCCL uses too.
        let code =
            unsafe { (api.comm_init_all)(comms.as_mut_ptr(), comms.len() as c_int, ordinals.as_ptr()) };
        forget_current();
        api.check("ncclCommInitAll", code)?;
        let (devices, comms) = (devices.to_vec(), Mutex::new(comms));
        Ok(Self { api, devices, comms })
    }

    /// Queues on each device's stream the sum of `count` floats of all `parts`, into `sums`.
    ///
    /// # Safety
    /// Both have an address for each device, of so many floats there that live until the work queued on its stream is done; sums
    /// do not overlap anything.
    pub unsafe fn sum(&self, parts: &[u64], sums: &[u64], count: usize) -> Result<()> {
        let comms = self.comms.lock().unwrap_or_else(PoisonError::into_inner);
        // nothing is captured meanwhile
        let locks: Option<Vec<_>> =
            self.devices.iter().map(|device| device.stream().lock_to_enqueue()).collect();
        let Some(_locks) = locks else {
            let (argument, value) = ("stream", "being captured into a graph".to_owned());
            let reason = "sums over devices are no part of a graph".into();
            return Err(Error::Unsupported { op: "AllReduce", argument, value, reason });
        };
        self.devices.iter().try_for_each(CudaDevice::bind)?; // fails after a fault
        // SAFETY: it takes nothing.
        let mut result = self.api.check("ncclGroupStart", unsafe { (self.api.group_start)() });
        if result.is_ok() {
            for (index, device) in self.devices.iter().enumerate() {
                let (part, sum) = (parts[index] as *const c_void, sums[index] as *mut c_void);
                let stream = device.stream().raw().cast();
                // SAFETY: parts and sums are on the devices and of `count` floats (this function's contract); communicator and stream live and are of this device.
                let code = unsafe { (self.api.all_reduce)(part, sum, count, F32, SUM, comms[index], stream) };
                result = result.and(self.api.check("ncclAllReduce", code));
            }
            // SAFETY: it takes nothing, and ends the group that was begun.
            result = result.and(self.api.check("ncclGroupEnd", unsafe { (self.api.group_end)() }));
        }
        forget_current();
        drop(comms);
        result.inspect_err(|_| self.abort())
    }

    /// Waits for all that is queued on the devices. If one of them is lost, sums that the others make with it are ended: they would
    /// wait for it for ever.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn wait(&self) -> Result<()> {
        let wait = || {
            let queued = |device: &CudaDevice| {
                let event = device.event()?;
                event.record(device.stream())?;
                Ok(event)
            };
            let mut open = self.devices.iter().map(queued).collect::<Result<Vec<_>>>()?;
            while !open.is_empty() {
                let mut still = Vec::with_capacity(open.len());
                for event in open {
                    if !event.is_done()? {
                        still.push(event);
                    }
                }
                open = still;
                std::thread::yield_now();
            }
            Ok(())
        };
        wait().inspect_err(|_| self.abort())
    }

    /// Ends what is under way; further sums fail.
    fn abort(&self) {
        let mut comms = self.comms.lock().unwrap_or_else(PoisonError::into_inner);
        for comm in comms.iter_mut().filter(|comm| !comm.is_null()) {
            // SAFETY: made by `with`, and not named any more after this. An error can't be reported beside the first.
            let _ = unsafe { (self.api.comm_abort)(*comm) };
            *comm = ptr::null_mut();
        }
        forget_current();
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let comms = std::mem::take(self.comms.get_mut().unwrap_or_else(PoisonError::into_inner));
        for comm in comms.into_iter().filter(|comm| !comm.is_null()) {
            // SAFETY: made by `with` and destroyed once. An error can't be reported from here.
            let _ = unsafe { (self.api.comm_destroy)(comm) };
        }
        forget_current();
    }
}

#[cfg(test)]
pub(crate) mod stand_in {
    //! A library that adds in host memory, for virtual devices.

    use super::*;
    use crate::cuda::check;
    use cust::sys;
    use std::cell::RefCell;

    struct Call {
        part: u64,
        sum: u64,
        count: usize,
        ordinal: usize,
        stream: usize,
    }

    thread_local! {
        static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
        /// Which function answers which code.
        pub static FAILS: RefCell<Option<(&'static str, c_int)>> = const { RefCell::new(None) };
        /// Calls so far, by name.
        pub static LOG: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
    }

    fn called(name: &'static str) -> c_int {
        LOG.with_borrow_mut(|log| log.push(name));
        FAILS.with_borrow(|fails| fails.filter(|(of, _)| *of == name).map_or(SUCCESS, |(_, code)| code))
    }

    unsafe extern "C" fn init_all(comms: *mut Comm, count: c_int, ordinals: *const c_int) -> c_int {
        for index in 0..count as usize {
            // SAFETY: both arrays have `count` entries, as `with` says.
            unsafe { *comms.add(index) = (*ordinals.add(index) as usize + 1) as Comm };
        }
        called("init_all")
    }

    unsafe extern "C" fn destroy(_: Comm) -> c_int {
        called("destroy")
    }

    unsafe extern "C" fn abort(_: Comm) -> c_int {
        called("abort")
    }

    unsafe extern "C" fn group_start() -> c_int {
        called("group_start")
    }

    unsafe extern "C" fn all_reduce(
        part: *const c_void,
        sum: *mut c_void,
        count: usize,
        ty: c_int,
        op: c_int,
        comm: Comm,
        stream: *mut c_void,
    ) -> c_int {
        assert_eq!((ty, op), (F32, SUM));
        let (part, sum, ordinal, stream) = (part as u64, sum as u64, comm as usize - 1, stream as usize);
        CALLS.with_borrow_mut(|calls| calls.push(Call { part, sum, count, ordinal, stream }));
        called("all_reduce")
    }

    unsafe extern "C" fn group_end() -> c_int {
        let calls = CALLS.take();
        let add = || -> Result<()> {
            let mut total = vec![0f32; calls[0].count];
            for call in &calls {
                let mut part = vec![0f32; call.count];
                crate::cuda::context::bind_ordinal(Some(call.ordinal as u32))?;
                let bytes = size_of_val(&part[..]);
                // SAFETY: stream and address are those of a live tensor of so many floats.
                check("wait", unsafe { sys::cuStreamSynchronize(call.stream as sys::CUstream) })?;
                // SAFETY: `call.part` is the address of a live tensor of so many floats, as `part` has.
                check("read", unsafe { sys::cuMemcpyDtoH_v2(part.as_mut_ptr().cast(), call.part, bytes) })?;
                total.iter_mut().zip(part).for_each(|(total, part)| *total += part);
            }
            for call in &calls {
                crate::cuda::context::bind_ordinal(Some(call.ordinal as u32))?;
                let bytes = size_of_val(&total[..]);
                // SAFETY: `call.sum` is the address of a live tensor of so many floats, as `total` has.
                check("write", unsafe { sys::cuMemcpyHtoD_v2(call.sum, total.as_ptr().cast(), bytes) })?;
            }
            Ok(())
        };
        if calls.is_empty() || add().is_ok() { called("group_end") } else { 1 }
    }

    unsafe extern "C" fn error_string(code: c_int) -> *const c_char {
        if code == 5 { c"invalid usage".as_ptr() } else { ptr::null() }
    }

    impl Nccl {
        /// The stand-in over these devices.
        pub fn stand_in(devices: &[CudaDevice]) -> Result<Self> {
            let api = Api {
                comm_init_all: init_all,
                comm_destroy: destroy,
                comm_abort: abort,
                group_start,
                group_end,
                all_reduce,
                error_string,
                _library: None,
            };
            Self::with(api, devices)
        }
    }
}
