//! Initialisation, the device, contexts.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicBool, Ordering};

use cust_raw::*;

use super::codes::*;
use super::engine::{Driver, Guard, lock, run_until};
use super::{Answer, api, enter, enter_faulted, give, inside};
use crate::config::Config;

static INITIALISED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// This thread's stack of contexts; the last one is current, 0 means none.
    static CONTEXTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The calling thread's current context, 0 if none.
pub(super) fn current() -> u64 {
    CONTEXTS.with_borrow(|c| c.last().copied().unwrap_or(0))
}

pub(super) fn forget_contexts() {
    CONTEXTS.with_borrow_mut(Vec::clear);
}

pub(super) fn initialised() {
    INITIALISED.store(true, Ordering::Release);
}

/// The device, if `cuInit` was called.
pub(super) fn guard() -> Result<Guard, u32> {
    if INITIALISED.load(Ordering::Acquire) { Ok(lock()) } else { Err(NOT_INITIALIZED) }
}

fn check_device(dev: CUdevice) -> Answer {
    drop(guard()?);
    if dev == 0 { Ok(()) } else { Err(INVALID_DEVICE) }
}

const PCI_ID: &str = "0000:01:00.0";

/// A device attribute by its number; 0 for features that sm_61 lacks.
fn attribute(d: &Driver, n: c_int) -> Result<c_int, u32> {
    let c = d.gpu.config();
    let card = c.card;
    Ok(match n {
        1 => 1024,
        2 | 3 => 1024,
        4 => 64,
        5 => 0x7fff_ffff,
        6 | 7 => 65535,
        8 | 97 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => 0x7fff_ffff,
        12 => 64 << 10,
        13 => card.boost_mhz as c_int * 1000,
        14 => 512,
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 99 => 1,
        16 => card.sms as c_int,
        30 => 512,
        33 => 1,
        36 => card.memory_mhz as c_int * 1000,
        37 => card.bus_bits as c_int,
        38 => card.l2_bytes as c_int,
        39 => 2048,
        40 => 2,
        51 => 32,
        75 => 6,
        76 => 1,
        81 => 96 << 10,
        82 => 64 << 10,
        87 => 32,
        91 => 1,
        106 => 32,
        115 => c.pools as c_int,
        n if (1..=200).contains(&n) => 0,
        _ => return Err(INVALID_VALUE),
    })
}

/// Writes a C string into the caller's buffer, cut to its length.
///
/// # Safety
/// `out` is null or valid for writes of `len` bytes.
unsafe fn give_text(out: *mut c_char, len: c_int, text: &str) -> Answer {
    if out.is_null() || len < 1 {
        return Err(INVALID_VALUE);
    }
    let n = text.len().min(len as usize - 1);
    // SAFETY: n + 1 bytes are at most `len`, which the caller promised; text has n bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), n);
        out.add(n).write(0);
    }
    Ok(())
}

fn make_current(context: u64) {
    CONTEXTS.with_borrow_mut(|c| {
        c.pop();
        if context != 0 {
            c.push(context);
        }
    });
}

// SAFETY of the unsafe blocks below: each out-pointer is the caller's, who promised the driver API that it is
// null or valid.
api! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut guard = lock();
        if guard.is_none() {
            let config = Config::from_env().map_err(|e| {
                crate::finding::say(&e);
                INVALID_VALUE
            })?;
            *guard = Some(Driver::new(config));
        }
        initialised();
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        // CUDA 11.4, the version of the bindings.
        // SAFETY: as above.
        unsafe { give(version, 11040) }
    }

    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) {
        check_device(ordinal)?;
        // SAFETY: as above.
        unsafe { give(device, 0) }
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        drop(guard()?);
        // SAFETY: as above.
        unsafe { give(count, 1) }
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attr: CUdevice_attribute => c_int, dev: CUdevice) {
        check_device(dev)?;
        let mut guard = guard()?;
        let v = attribute(inside(&mut guard)?, attr)?;
        // SAFETY: as above.
        unsafe { give(value, v) }
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) {
        check_device(dev)?;
        let mut guard = guard()?;
        let text = format!("Virtual {}", inside(&mut guard)?.gpu.config().card.name);
        // SAFETY: as above.
        unsafe { give_text(name, len, &text) }
    }

    fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, dev: CUdevice) {
        check_device(dev)?;
        // SAFETY: as above.
        unsafe { give_text(id, len, PCI_ID) }
    }

    fn cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice) {
        check_device(dev)?;
        let bytes = b"virtual-sm61-gpu".map(|b| b as c_char);
        // SAFETY: as above.
        unsafe { give(uuid, CUuuid { bytes }) }
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) {
        check_device(dev)?;
        let mut guard = guard()?;
        let n = inside(&mut guard)?.gpu.memory.limit() as usize;
        // SAFETY: as above.
        unsafe { give(bytes, n) }
    }

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, dev: CUdevice) {
        check_device(dev)?;
        let mut guard = guard()?;
        let d = inside(&mut guard)?;
        if d.primary == 0 {
            d.primary = d.handle();
            d.contexts.insert(d.primary, d.primary_flags);
        }
        d.primary_count += 1;
        // SAFETY: as above.
        unsafe { give(context, d.primary as CUcontext) }
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) {
        check_device(dev)?;
        let mut guard = guard()?;
        let d = inside(&mut guard)?;
        if d.primary_count == 0 {
            return Err(INVALID_CONTEXT);
        }
        d.primary_count -= 1;
        if d.primary_count == 0 {
            d.contexts.remove(&d.primary);
            d.primary = 0;
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) {
        check_device(dev)?;
        let config = inside(&mut guard()?)?.gpu.config().clone();
        super::restart(config);
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint) {
        check_device(dev)?;
        inside(&mut guard()?)?.primary_flags = flags;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int) {
        check_device(dev)?;
        let mut guard = guard()?;
        let d = inside(&mut guard)?;
        // SAFETY: as above.
        unsafe {
            give(flags, d.primary_flags)?;
            give(active, (d.primary_count > 0) as c_int)
        }
    }

    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, dev: CUdevice) {
        check_device(dev)?;
        let mut guard = guard()?;
        let d = inside(&mut guard)?;
        let id = d.handle();
        d.contexts.insert(id, flags);
        CONTEXTS.with_borrow_mut(|c| c.push(id));
        // SAFETY: as above.
        unsafe { give(context, id as CUcontext) }
    }

    fn cuCtxDestroy_v2(context: CUcontext) {
        let mut guard = guard()?;
        let id = context as u64;
        if inside(&mut guard)?.contexts.remove(&id).is_none() {
            return Err(INVALID_CONTEXT);
        }
        if current() == id {
            CONTEXTS.with_borrow_mut(|c| c.pop());
        }
        Ok(())
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        let mut guard = guard()?;
        let id = context as u64;
        if id != 0 && !inside(&mut guard)?.contexts.contains_key(&id) {
            return Err(INVALID_CONTEXT);
        }
        make_current(id);
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut CUcontext) {
        drop(guard()?);
        // SAFETY: as above.
        unsafe { give(context, current() as CUcontext) }
    }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        let mut guard = guard()?;
        if !inside(&mut guard)?.contexts.contains_key(&(context as u64)) {
            return Err(INVALID_CONTEXT);
        }
        CONTEXTS.with_borrow_mut(|c| c.push(context as u64));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut CUcontext) {
        drop(guard()?);
        let Some(id) = CONTEXTS.with_borrow_mut(|c| c.pop()) else { return Err(INVALID_CONTEXT) };
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { give(context, id as CUcontext) }
    }

    fn cuCtxGetDevice(device: *mut CUdevice) {
        drop(enter_faulted()?);
        // SAFETY: as above.
        unsafe { give(device, 0) }
    }

    fn cuCtxGetFlags(flags: *mut c_uint) {
        let mut guard = enter_faulted()?;
        let f = inside(&mut guard)?.contexts.get(&current()).copied().unwrap_or(0);
        // SAFETY: as above.
        unsafe { give(flags, f) }
    }

    fn cuCtxGetApiVersion(_context: CUcontext, version: *mut c_uint) {
        drop(guard()?);
        // SAFETY: as above.
        unsafe { give(version, 3020) }
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) {
        drop(enter()?);
        // SAFETY: as above; both may be null.
        unsafe {
            if !least.is_null() {
                give(least, 0)?;
            }
            if !greatest.is_null() {
                give(greatest, -1)?;
            }
        }
        Ok(())
    }

    fn cuCtxGetCacheConfig(config: *mut CUfunc_cache) {
        drop(enter()?);
        // SAFETY: as above.
        unsafe { give(config, CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE) }
    }

    /// A hint that this chip ignores.
    fn cuCtxSetCacheConfig(_config: CUfunc_cache => c_int) {
        enter().map(|_| ())
    }

    fn cuCtxGetSharedMemConfig(config: *mut CUsharedconfig) {
        drop(enter()?);
        // SAFETY: as above.
        unsafe { give(config, CUsharedconfig::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE) }
    }

    /// A hint that this chip ignores.
    fn cuCtxSetSharedMemConfig(_config: CUsharedconfig => c_int) {
        enter().map(|_| ())
    }

    fn cuCtxSynchronize() {
        let mut guard = enter()?;
        if !inside(&mut guard)?.captures.is_empty() {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let guard = run_until(guard, Driver::idle)?;
        guard.as_ref().and_then(|d| d.sticky).map_or(Ok(()), Err)
    }
}
