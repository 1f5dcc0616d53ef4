//! Initialisation, the device, contexts.

use std::ffi::{c_char, c_int, c_uint};

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::engine::run_until;
use super::entry::{CONTEXTS, current, enter, enter_faulted, guard, initialised, make_current};
use super::limits;
use super::state::{Context, Driver, Guard, lock};
use crate::config::Config;

/// The driver and the number of a device, if there is one of that number.
pub(super) fn with_device(dev: CUdevice) -> Result<(Guard, usize), u32> {
    let guard = guard()?;
    let device = usize::try_from(dev).ok();
    let device = device.filter(|&device| device < guard.devices.len());
    Ok((guard, device.ok_or(INVALID_DEVICE)?))
}

pub(super) fn pci_id(device: usize) -> String {
    format!("0000:{:02x}:00.0", device + 1)
}

/// A device attribute by its number; 0 for features that the device lacks.
pub(super) fn attribute(d: &Driver, device: usize, n: c_int) -> Result<c_int, u32> {
    let c = d.devices[device].gpu.config();
    let card = c.card;
    let arch = card.arch;
    if let Some(limit) = limits::attribute(n) {
        return Ok(limit);
    }
    Ok(match n {
        1 => 1024,
        2 | 3 => 1024,
        4 => 64,
        5 => 0x7fff_ffff,
        6 | 7 => 65535,
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        11 => 0x7fff_ffff,
        12 => 64 << 10,
        13 => card.boost_mhz as c_int * 1000,
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 83 | 89 | 99 => 1,
        16 => card.sms as c_int,
        33 => device as c_int + 1,
        36 => card.memory_mhz as c_int * 1000,
        37 => card.bus_bits as c_int,
        38 => card.l2_bytes as c_int,
        39 => (32 * arch.multiprocessor().warps) as c_int,
        40 => 2,
        75 => arch.capability().0 as c_int,
        76 => arch.capability().1 as c_int,
        81 => arch.multiprocessor().shared_bytes as c_int,
        82 => arch.multiprocessor().registers as c_int,
        87 => arch.single_to_double() as c_int,
        91..=95 | 122 | 123 => 1,
        97 => arch.multiprocessor().shared_bytes_per_block as c_int,
        106 => arch.multiprocessor().blocks as c_int,
        115 => c.pools as c_int,
        n if (1..=200).contains(&n) => 0,
        _ => return Err(INVALID_VALUE),
    })
}

/// Writes a C string into the caller's buffer, cut to its length.
///
/// # Safety
/// `out` is null or valid for writes of `len` bytes.
unsafe fn write_text(out: *mut c_char, len: c_int, text: &str) -> Answer {
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

pub(super) fn uuid(out: Out<CUuuid>, dev: CUdevice) -> Answer {
    let (guard, device) = with_device(dev)?;
    drop(guard);
    let mut bytes = b"virtual-sm61-gpu".map(|b| b as c_char);
    bytes[15] += device as c_char;
    out.write(CUuuid { bytes })
}

/// Makes a context and pushes it.
pub(super) fn create(context: Out<CUcontext>, flags: c_uint, dev: CUdevice) -> Answer {
    let (mut guard, device) = with_device(dev)?;
    let d = &mut *guard;
    let id = d.handle();
    d.contexts.insert(id, Context { device, flags, ..Context::default() });
    CONTEXTS.with_borrow_mut(|c| c.push(id));
    context.write(id as CUcontext)
}

/// Destroys a context, and takes it from the calling thread if it is current there.
pub(super) fn destroy(id: u64) -> Answer {
    if guard()?.contexts.remove(&id).is_none() {
        return Err(INVALID_CONTEXT);
    }
    if current() == id {
        CONTEXTS.with_borrow_mut(|c| c.pop());
    }
    Ok(())
}

/// Waits for all work of a device and returns its fault, if there is one.
pub(super) fn synchronize(guard: Guard, device: usize) -> Answer {
    if !guard.captures.is_empty() {
        return Err(STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut guard = run_until(guard, |d| d.is_idle(device))?;
    let d = &mut *guard;
    d.observe_device(device);
    d.trim_pools(device);
    d.collect_graph_memory();
    d.fault_of(device)
}

api! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if lock().is_err() {
            let config = Config::from_env().map_err(|e| {
                crate::finding::say(&e);
                INVALID_VALUE
            })?;
            let _ = super::configure(config); // another thread may have been first
        }
        initialised();
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int => Out<c_int>) {
        // CUDA 11.4, the version of the bindings.
        version.write(11040)
    }

    fn cuDeviceGet(device: *mut CUdevice => Out<CUdevice>, ordinal: c_int) {
        drop(with_device(ordinal)?);
        device.write(ordinal)
    }

    fn cuDeviceGetCount(count: *mut c_int => Out<c_int>) {
        let devices = guard()?.devices.len();
        count.write(devices as c_int)
    }

    fn cuDeviceGetAttribute(value: *mut c_int => Out<c_int>, attr: CUdevice_attribute => c_int, dev: CUdevice) {
        let (guard, device) = with_device(dev)?;
        let v = attribute(&guard, device, attr)?;
        value.write(v)
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice) {
        let (guard, device) = with_device(dev)?;
        let text = format!("Virtual {}", guard.devices[device].gpu.config().card.name);
        // SAFETY: the caller promised the driver API that its buffer is null or has `len` bytes.
        unsafe { write_text(name, len, &text) }
    }

    fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, dev: CUdevice) {
        let (guard, device) = with_device(dev)?;
        drop(guard);
        // SAFETY: the caller promised the driver API that its buffer is null or has `len` bytes.
        unsafe { write_text(id, len, &pci_id(device)) }
    }

    fn cuDeviceGetUuid(uuid: *mut CUuuid => Out<CUuuid>, dev: CUdevice) {
        self::uuid(uuid, dev)
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize => Out<usize>, dev: CUdevice) {
        let (guard, device) = with_device(dev)?;
        let n = guard.devices[device].gpu.memory.limit() as usize;
        bytes.write(n)
    }

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext => Out<CUcontext>, dev: CUdevice) {
        let (mut guard, device) = with_device(dev)?;
        let d = &mut *guard;
        if d.devices[device].primary == 0 {
            let primary = d.handle();
            d.devices[device].primary = primary;
            let flags = d.devices[device].primary_flags;
            d.contexts.insert(primary, Context { device, flags, ..Context::default() });
        }
        let of = &mut d.devices[device];
        of.primary_count += 1;
        context.write(of.primary as CUcontext)
    }

    fn cuDevicePrimaryCtxRelease_v2(dev: CUdevice) {
        let (mut guard, device) = with_device(dev)?;
        let d = &mut *guard;
        let of = &mut d.devices[device];
        if of.primary_count == 0 {
            return Err(INVALID_CONTEXT);
        }
        of.primary_count -= 1;
        if of.primary_count == 0 {
            d.contexts.remove(&std::mem::take(&mut of.primary));
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(dev: CUdevice) {
        let (mut guard, _) = with_device(dev)?;
        let d = &mut *guard;
        if d.devices.len() > 1 {
            return Err(NOT_SUPPORTED); // the others would have to stay as they are
        }
        let config = d.gpu().config().clone();
        drop(guard);
        super::restart(config);
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint) {
        let (mut guard, device) = with_device(dev)?;
        guard.devices[device].primary_flags = flags;
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint => Out<c_uint>, active: *mut c_int => Out<c_int>) {
        let (guard, device) = with_device(dev)?;
        let d = &guard.devices[device];
        flags.write(d.primary_flags)?;
        active.write((d.primary_count > 0) as c_int)
    }

    fn cuCtxCreate_v2(context: *mut CUcontext => Out<CUcontext>, flags: c_uint, dev: CUdevice) {
        create(context, flags, dev)
    }

    fn cuCtxDestroy_v2(context: CUcontext) {
        destroy(context as u64)
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        let id = context as u64;
        if id != 0 && !guard()?.contexts.contains_key(&id) {
            return Err(INVALID_CONTEXT);
        }
        make_current(id);
        Ok(())
    }

    fn cuCtxGetCurrent(context: *mut CUcontext => Out<CUcontext>) {
        drop(guard()?);
        context.write(current() as CUcontext)
    }

    fn cuCtxPushCurrent_v2(context: CUcontext) {
        if !guard()?.contexts.contains_key(&(context as u64)) {
            return Err(INVALID_CONTEXT);
        }
        CONTEXTS.with_borrow_mut(|c| c.push(context as u64));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut CUcontext => Out<CUcontext>) {
        drop(guard()?);
        let Some(id) = CONTEXTS.with_borrow_mut(|c| c.pop()) else { return Err(INVALID_CONTEXT) };
        context.write_unless_null(id as CUcontext);
        Ok(())
    }

    fn cuCtxGetDevice(device: *mut CUdevice => Out<CUdevice>) {
        let current = enter_faulted()?.current;
        device.write(current as CUdevice)
    }

    fn cuCtxGetFlags(flags: *mut c_uint => Out<c_uint>) {
        let f = enter_faulted()?.contexts.get(&current()).map_or(0, |context| context.flags);
        flags.write(f)
    }

    fn cuCtxGetApiVersion(_context: CUcontext, version: *mut c_uint => Out<c_uint>) {
        drop(guard()?);
        version.write(3020)
    }

    fn cuCtxGetStreamPriorityRange(least: *mut c_int => Out<c_int>, greatest: *mut c_int => Out<c_int>) {
        drop(enter()?);
        least.write_unless_null(0);
        greatest.write_unless_null(-1);
        Ok(())
    }

    fn cuCtxGetCacheConfig(config: *mut CUfunc_cache => Out<CUfunc_cache>) {
        drop(enter()?);
        config.write(CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE)
    }

    /// A hint that this chip ignores.
    fn cuCtxSetCacheConfig(_config: CUfunc_cache => c_int) {
        enter().map(|_| ())
    }

    fn cuCtxGetSharedMemConfig(config: *mut CUsharedconfig => Out<CUsharedconfig>) {
        drop(enter()?);
        config.write(CUsharedconfig::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE)
    }

    /// A hint that this chip ignores.
    fn cuCtxSetSharedMemConfig(_config: CUsharedconfig => c_int) {
        enter().map(|_| ())
    }

    fn cuCtxSynchronize() {
        let guard = enter()?;
        let device = guard.current;
        synchronize(guard, device)
    }
}
