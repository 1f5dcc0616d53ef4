//! Contexts and devices: limits, identities, and the functions that came with newer versions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::context_limits::ContextLimits;
use super::device::{attribute, create, pci_id, synchronize, uuid, with_device};
use super::engine::after_enqueue;
use super::entry::{current, enter, enter_faulted, guard};
use super::state::Driver;
use super::work::Work;
use crate::exec::LaunchLimits;

/// `CUctxCreateParams`: whether there are affinities, and whether it is shared with graphics; all zero for a plain context.
type Wishes = [u64; 3];

/// The device of a context, the current one if it is null.
fn device_of_context(context: CUcontext) -> Result<usize, u32> {
    if context.is_null() {
        return Ok(enter_faulted()?.current);
    }
    guard()?.contexts.get(&(context as u64)).map(|context| context.device).ok_or(INVALID_CONTEXT)
}

impl Driver {
    fn context_limits(&mut self) -> Result<&mut ContextLimits, u32> {
        self.contexts.get_mut(&current()).map(|context| &mut context.limits).ok_or(INVALID_CONTEXT)
    }

    /// What limits the launches that are made now.
    pub(super) fn launch_limits(&mut self) -> Result<LaunchLimits, u32> {
        self.context_limits().map(|limits| limits.of_launch())
    }

    /// Notes whether launched work prints.
    pub(super) fn note_printing(&mut self, work: &Work) {
        let prints = |work: &Work| match work {
            Work::Launch(l) => l.module.module.kernel(&l.kernel).is_some_and(|kernel| kernel.prints),
            _ => false,
        };
        let any = match work {
            Work::Graph(exec) => {
                exec.nodes.iter().filter(|node| node.enabled).flat_map(|node| &node.work).any(prints)
            }
            work => prints(work),
        };
        if any && let Ok(limits) = self.context_limits() {
            limits.has_printed = true;
        }
    }
}

api! {
    newer

    fn cuCtxCreate_v3(
        context: *mut CUcontext => Out<CUcontext>, _affinities: *mut c_void, count: c_int, flags: c_uint, dev: CUdevice,
    ) {
        if count != 0 {
            return Err(NOT_SUPPORTED);
        }
        create(context, flags, dev)
    }

    fn cuCtxCreate_v4(context: *mut CUcontext => Out<CUcontext>, wishes: *const Wishes, flags: c_uint, dev: CUdevice) {
        // SAFETY: null or the caller's valid description.
        if unsafe { wishes.as_ref() }.is_some_and(|wishes| wishes.iter().any(|&wish| wish != 0)) {
            return Err(NOT_SUPPORTED);
        }
        create(context, flags, dev)
    }

    fn cuCtxGetDevice_v2(device: *mut CUdevice => Out<CUdevice>, context: CUcontext) {
        device.write(device_of_context(context)? as CUdevice)
    }

    fn cuCtxSynchronize_v2(context: CUcontext) {
        let device = device_of_context(context)?;
        synchronize(enter()?, device)
    }

    fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong => Out<c_ulonglong>) {
        let context = if context.is_null() { current() } else { context as u64 };
        if !guard()?.contexts.contains_key(&context) {
            return Err(INVALID_CONTEXT);
        }
        id.write(context)
    }

    fn cuCtxSetFlags(flags: c_uint) {
        let d = &mut *enter()?;
        let context = d.contexts.get_mut(&current()).ok_or(INVALID_CONTEXT)?;
        context.flags = flags;
        Ok(())
    }

    fn cuCtxGetLimit(value: *mut usize => Out<usize>, limit: c_uint) {
        let set = *enter()?.context_limits()?.value(limit)?;
        value.write(set)
    }

    fn cuCtxSetLimit(limit: c_uint, value: usize) {
        enter()?.context_limits()?.set(limit, value)
    }

    fn cuCtxResetPersistingL2Cache() {
        enter().map(|_| ())
    }

    fn cuDeviceGetUuid_v2(out: *mut CUuuid => Out<CUuuid>, dev: CUdevice) {
        uuid(out, dev)
    }

    fn cuDeviceComputeCapability(major: *mut c_int => Out<c_int>, minor: *mut c_int => Out<c_int>, dev: CUdevice) {
        let (guard, device) = with_device(dev)?;
        major.write(attribute(&guard, device, 75)?)?;
        minor.write(attribute(&guard, device, 76)?)
    }

    fn cuDeviceGetProperties(properties: *mut CUdevprop => Out<CUdevprop>, dev: CUdevice) {
        let (guard, device) = with_device(dev)?;
        let of = |n| attribute(&guard, device, n);
        properties.write(CUdevprop {
            maxThreadsPerBlock: of(1)?,
            maxThreadsDim: [of(2)?, of(3)?, of(4)?],
            maxGridSize: [of(5)?, of(6)?, of(7)?],
            sharedMemPerBlock: of(8)?,
            totalConstantMemory: of(9)?,
            SIMDWidth: of(10)?,
            memPitch: of(11)?,
            regsPerBlock: of(12)?,
            clockRate: of(13)?,
            textureAlign: of(14)?,
        })
    }

    fn cuDeviceGetByPCIBusId(dev: *mut CUdevice => Out<CUdevice>, id: *const c_char) {
        if id.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's NUL-terminated text.
        let id = unsafe { CStr::from_ptr(id) }.to_bytes();
        let same = |device: &usize| pci_id(*device).as_bytes().ends_with(id) && id.len() >= 7;
        let device = (0..guard()?.devices.len()).find(same).ok_or(INVALID_DEVICE)?;
        dev.write(device as CUdevice)
    }

    fn cuDeviceGetExecAffinitySupport(supported: *mut c_int => Out<c_int>, _kind: c_int, dev: CUdevice) {
        drop(with_device(dev)?);
        supported.write(0)
    }

    fn cuCtxAttach(context: *mut CUcontext => Out<CUcontext>, flags: c_uint) {
        let d = &mut *enter()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let id = current();
        d.contexts.get_mut(&id).ok_or(INVALID_CONTEXT)?.uses += 1;
        context.write(id as CUcontext)
    }

    fn cuCtxDetach(context: CUcontext) {
        let mut guard = guard()?;
        let id = context as u64;
        let uses = &mut guard.contexts.get_mut(&id).ok_or(INVALID_CONTEXT)?.uses;
        if *uses > 0 {
            *uses -= 1;
            return Ok(());
        }
        drop(guard);
        super::device::destroy(id)
    }

    /// The event is complete when all work of the context's device that was queued before is.
    fn cuCtxRecordEvent(context: CUcontext, event: CUevent) {
        let device = device_of_context(context)?;
        let mut guard = enter()?;
        let d = &mut *guard;
        if d.events.get(&(event as u64)).is_none_or(|event| event.device != device) {
            return Err(INVALID_HANDLE);
        }
        if d.streams.values().any(|s| s.device == device && s.capture.is_some()) {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let mark = d.record_device(device, event as u64)?;
        if let Some(event) = d.events.get_mut(&(event as u64)) {
            (event.recorded, event.captured) = (Some(mark), None);
        }
        after_enqueue(guard)
    }

    /// All later work of the context's device waits, also that of streams made later.
    fn cuCtxWaitEvent(context: CUcontext, event: CUevent) {
        let device = device_of_context(context)?;
        let mut guard = enter()?;
        let d = &mut *guard;
        let Some(mark) = d.events.get(&(event as u64)).ok_or(INVALID_HANDLE)?.recorded else { return Ok(()) };
        if d.streams.values().any(|s| s.device == device && s.capture.is_some()) {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        d.follow_on_device(device, mark)?;
        after_enqueue(guard)
    }

    /// Nothing profiles this device from outside.
    fn cuProfilerStart() {
        enter().map(|_| ())
    }

    fn cuProfilerStop() {
        enter().map(|_| ())
    }
}
