//! Streams and events.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::engine::{after_enqueue, run_some, run_until};
use super::entry::enter;
use super::state::{Driver, Event};
use super::stream_id::{StreamId, is_null, is_per_thread};
use super::work::{Callback, Work};

/// `CU_EVENT_DISABLE_TIMING`
const DISABLE_TIMING: c_uint = 2;

fn create(out: Out<CUstream>, flags: c_uint, priority: c_int) -> Answer {
    let mut guard = enter()?;
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let d = &mut *guard;
    let id = d.add_stream(d.current, flags, priority.clamp(-1, 0));
    out.write(id as CUstream)
}

fn record(event: CUevent, stream: CUstream) -> Answer {
    let mut guard = enter()?;
    let d = &mut *guard;
    let (event, stream) = (event as u64, d.id(stream));
    let device = d.stream(stream)?.device;
    // an event is recorded on its own device; streams of all devices may wait for it
    if d.events.get(&event).is_none_or(|event| event.device != device) {
        return Err(INVALID_HANDLE);
    }
    if let Some(capture) = d.stream(stream)?.capture {
        let tail = d.stream(stream)?.capture_tail.clone();
        if let Some(e) = d.events.get_mut(&event) {
            e.captured = Some((capture, tail));
        }
        return Ok(());
    }
    let mark = d.enqueue(stream, Work::Record(event))?;
    if let Some(e) = d.events.get_mut(&event) {
        e.recorded = Some(mark);
        e.captured = None;
    }
    after_enqueue(guard)
}

fn event(d: &Driver, id: CUevent) -> Result<&Event, u32> {
    d.events.get(&(id as u64)).ok_or(INVALID_HANDLE)
}

/// Refuses a call that a capturing stream does not allow.
fn not_capturing(d: &mut Driver, id: StreamId) -> Answer {
    if d.stream(id)?.capture.is_some() { Err(STREAM_CAPTURE_UNSUPPORTED) } else { Ok(()) }
}

/// Model time between two events.
pub(super) fn elapsed(milliseconds: Out<f32>, start: CUevent, end: CUevent) -> Answer {
    let d = &mut *enter()?;
    let (s, e) = (event(d, start)?, event(d, end)?);
    let (Some(a), Some(b)) = (s.recorded, e.recorded) else { return Err(INVALID_HANDLE) };
    if (s.flags | e.flags) & DISABLE_TIMING != 0 {
        return Err(INVALID_HANDLE);
    }
    if !d.done(a) || !d.done(b) {
        return Err(NOT_READY);
    }
    milliseconds.write(((e.time - s.time) * 1e3) as f32)
}

api! {
    fn cuStreamCreate(stream: *mut CUstream => Out<CUstream>, flags: c_uint) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: *mut CUstream => Out<CUstream>, flags: c_uint, priority: c_int) {
        create(stream, flags, priority)
    }

    /// Work already queued still runs.
    fn cuStreamDestroy_v2(stream: CUstream) {
        let d = &mut *enter()?;
        let id = d.id(stream);
        if is_null(id) || is_per_thread(id) {
            return Err(INVALID_HANDLE);
        }
        let s = d.stream(id)?;
        if s.capture.is_some() {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        s.destroyed = true;
        if s.finished == s.queued {
            d.streams.remove(&id);
        }
        Ok(())
    }

    fn cuStreamSynchronize(stream: CUstream) {
        let mut guard = enter()?;
        let d = &mut *guard;
        let id = d.id(stream);
        not_capturing(d, id)?;
        let device = d.stream(id)?.device;
        // The legacy default stream waits for all blocking streams.
        let marks: Vec<_> = if is_null(id) {
            let blocking = d.streams.iter().filter(|(_, s)| s.device == device && s.flags & 1 == 0);
            blocking.map(|(i, s)| (*i, s.queued)).collect()
        } else {
            vec![(id, d.stream(id)?.queued)]
        };
        let mut guard = run_until(guard, |d| marks.iter().all(|&m| d.done(m)))?;
        let d = &mut *guard;
        marks.into_iter().for_each(|mark| d.observe(mark));
        d.trim_pools(device);
        d.fault_of(device)
    }

    /// Runs some work first, so that a loop of queries ends.
    fn cuStreamQuery(stream: CUstream) {
        let mut guard = enter()?;
        let d = &mut *guard;
        let id = d.id(stream);
        not_capturing(d, id)?;
        let (device, mark) = (d.stream(id)?.device, (id, d.stream(id)?.queued));
        let mut guard = if d.done(mark) { guard } else { run_some(guard, 1)? };
        let d = &mut *guard;
        d.fault_of(device)?;
        if !d.done(mark) {
            return Err(NOT_READY);
        }
        d.observe(mark);
        Ok(())
    }

    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext => Out<CUcontext>) {
        let d = &mut *enter()?;
        let device = d.stream(d.id(stream))?.device;
        let own = d.devices[device].primary;
        let own = if own == 0 { super::entry::current() } else { own };
        context.write(own as CUcontext)
    }

    fn cuStreamGetFlags(stream: CUstream, flags: *mut c_uint => Out<c_uint>) {
        let d = &mut *enter()?;
        let f = d.stream(d.id(stream))?.flags;
        flags.write(f)
    }

    fn cuStreamGetPriority(stream: CUstream, priority: *mut c_int => Out<c_int>) {
        let d = &mut *enter()?;
        let p = d.stream(d.id(stream))?.priority;
        priority.write(p)
    }

    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) {
        let mut guard = enter()?;
        let d = &mut *guard;
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let e = d.events.get(&(event as u64)).ok_or(INVALID_HANDLE)?;
        let (recorded, captured) = (e.recorded, e.captured.clone());
        let id = d.id(stream);
        match (d.stream(id)?.capture, captured) {
            (_, Some((capture, after))) => d.join_capture(id, capture, after),
            (Some(_), None) => Err(STREAM_CAPTURE_ISOLATION),
            (None, None) => match recorded {
                Some(mark) => {
                    d.follow(id, mark)?;
                    after_enqueue(guard)
                }
                // An event never recorded counts as complete.
                None => Ok(()),
            },
        }
    }

    fn cuLaunchHostFunc(stream: CUstream, function: CUhostFn, data: *mut c_void) {
        let mut guard = enter()?;
        let d = &mut *guard;
        let Some(f) = function else { return Err(INVALID_VALUE) };
        let id = d.id(stream);
        let function = Arc::new(Callback::Host(f));
        d.enqueue(id, Work::Call { function, stream: stream as u64, data: data as usize })?;
        after_enqueue(guard)
    }

    /// Managed memory is reachable from all streams in any case.
    fn cuStreamAttachMemAsync(stream: CUstream, ptr: CUdeviceptr, _bytes: usize, flags: c_uint) {
        let d = &mut *enter()?;
        d.stream(d.id(stream))?;
        if !matches!(flags, 1 | 2 | 4) || !d.managed.contains(&ptr) {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }

    fn cuStreamAddCallback(stream: CUstream, callback: CUstreamCallback, data: *mut c_void, flags: c_uint) {
        let mut guard = enter()?;
        let d = &mut *guard;
        let (Some(f), 0) = (callback, flags) else { return Err(INVALID_VALUE) };
        let id = d.id(stream);
        not_capturing(d, id)?;
        let function = Arc::new(Callback::Stream(f));
        d.enqueue(id, Work::Call { function, stream: stream as u64, data: data as usize })?;
        after_enqueue(guard)
    }

    fn cuEventCreate(event: *mut CUevent => Out<CUevent>, flags: c_uint) {
        let mut guard = enter()?;
        if flags > 7 {
            return Err(INVALID_VALUE);
        }
        let d = &mut *guard;
        let id = d.handle();
        d.events.insert(id, Event { device: d.current, flags, recorded: None, time: 0.0, captured: None });
        event.write(id as CUevent)
    }

    fn cuEventDestroy_v2(event: CUevent) {
        enter()?.events.remove(&(event as u64)).map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuEventRecord(event: CUevent, stream: CUstream) {
        record(event, stream)
    }

    /// The flag that makes the record an external node is of captures alone, and refused there.
    fn cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint) {
        match flags {
            0 => record(event, stream),
            1 => Err(NOT_SUPPORTED),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuEventQuery(event: CUevent) {
        let guard = enter()?;
        let e = self::event(&guard, event)?;
        if e.captured.is_some() {
            return Err(CAPTURED_EVENT);
        }
        let (Some(mark), device) = (e.recorded, e.device) else { return Ok(()) };
        let mut guard = if guard.done(mark) { guard } else { run_some(guard, 1)? };
        let d = &mut *guard;
        d.fault_of(device)?;
        if !d.done(mark) {
            return Err(NOT_READY);
        }
        d.observe(mark);
        Ok(())
    }

    fn cuEventSynchronize(event: CUevent) {
        let guard = enter()?;
        let e = self::event(&guard, event)?;
        if e.captured.is_some() {
            return Err(CAPTURED_EVENT);
        }
        let (Some(mark), device) = (e.recorded, e.device) else { return Ok(()) };
        let mut guard = run_until(guard, |d| d.done(mark))?;
        let d = &mut *guard;
        d.observe(mark);
        d.trim_pools(device);
        d.fault_of(device)
    }

    fn cuEventElapsedTime(milliseconds: *mut f32 => Out<f32>, start: CUevent, end: CUevent) {
        elapsed(milliseconds, start, end)
    }
}
