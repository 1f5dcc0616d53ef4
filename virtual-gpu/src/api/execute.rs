//! Runs one piece of work: launches, copies, sets, and host functions.

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::sync::{Arc, Condvar};

use super::resource::{Bound, Resource};
use super::state::{Driver, Guard, lock};
use super::stream_id::{Mark, StreamId};
use super::work::{Callback, Place, Work};
use crate::cost;
use crate::exec::{Launch, LaunchContext, LaunchReport, RemoteReads};
use crate::finding::{Finding, FindingKind};
use crate::memory::{Allocation, Kind};
use crate::reports;
use crate::texture::{Object as Seen, Objects};

/// Signalled whenever a host function has returned.
pub(super) static RETURNED: Condvar = Condvar::new();

/// Writes a kernel's `printf` output to stdout, as the driver does.
fn print(text: &str) {
    if !text.is_empty() {
        let mut out = std::io::stdout().lock();
        // nowhere to report that stdout is closed
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Driver {
    fn memory_fault(&mut self, device: usize, what: &str, at: u64, bytes: u64) {
        let (freed, near) = self.holder(at).memory.describe(at);
        let kind = if freed { FindingKind::UseAfterFree } else { FindingKind::OutOfBounds };
        self.bad_memory(device, kind, what, format!("{bytes} bytes at 0x{at:x}, {near}"));
    }

    fn bad_memory(&mut self, device: usize, kind: FindingKind, what: &str, message: String) {
        self.fault(device, Finding::new(kind, what, message));
    }

    /// Runs work of a graph.
    pub(super) fn execute_in_graph(&mut self, id: StreamId, work: &Work) {
        self.in_graph = true;
        self.execute(id, work);
        self.in_graph = false;
    }

    /// Runs work other than host calls and graphs.
    pub(super) fn execute(&mut self, id: StreamId, work: &Work) {
        let device = self.device_of_stream(id);
        if self.devices[device].sticky.is_some() && !matches!(work, Work::Record(_)) {
            return;
        }
        let mark = (id, self.streams.get(&id).map_or(0, |s| s.finished + 1));
        let card = self.devices[device].gpu.config().card;
        let mut seconds = 0.0;
        match work {
            Work::Launch(_) if self.devices[device].gpu.config().skip => {}
            Work::Launch(l) => {
                let launch =
                    Launch { grid: l.grid, block: l.block, dynamic_shared: l.shared, params: &l.params };
                let peers = self.reached_from(device);
                let remote = self
                    .ordered()
                    .then(|| Arc::new(RemoteReads::new(&peers, &self.devices[device].gpu.memory)));
                let (writer, unordered) = (self.new_unit(mark), self.unordered_writers(id));
                let cooperative = l.cooperative;
                let objects = self.objects_of(device, &l.references);
                let context = LaunchContext {
                    peers,
                    writer,
                    unordered,
                    remote: remote.clone(),
                    cooperative,
                    objects,
                    limits: l.limits,
                };
                let gpu = &mut self.devices[device].gpu;
                let key = gpu.config().once.then(|| l.without_addresses(&gpu.memory));
                let counted = key.as_ref().and_then(reports::counted).map(Ok);
                let run = || gpu.launch_in(&l.module, &l.kernel, launch, context);
                let result = counted.unwrap_or_else(run);
                print(&gpu.take_printed());
                match result {
                    Ok(report) => {
                        let report = LaunchReport { in_graph: self.in_graph, ..report };
                        let estimate = cost::estimate(&report, card, l.registers);
                        seconds = estimate.time;
                        reports::launched(&report, card, &estimate);
                        reports::keep(key, report);
                        self.check_writes(mark, writer, &l.kernel);
                        remote.iter().for_each(|remote| self.note_remote_reads(mark, remote));
                    }
                    Err(f) => self.fault(device, f),
                }
            }
            Work::Copy { dst, src, width, rows, dst_pitch, src_pitch } => {
                let unit = self.new_unit(mark);
                for r in 0..*rows {
                    self.copy(mark, unit, [dst, src], [r * dst_pitch, r * src_pitch], *width);
                }
                self.check_writes(mark, unit, "memcpy");
                // PCI Express 3.0 with 16 lanes moves about 12 GB/s.
                let device = matches!((dst, src), (Place::Device(_), Place::Device(_)));
                let rate = if device { card.bandwidth * 1e9 * 0.4 } else { 12e9 };
                seconds = 2e-6 + (width * rows) as f64 / rate;
            }
            Work::Set { at, value, size, count } => {
                let bytes = count * *size as u64;
                let unit = self.new_unit(mark);
                match self.devices[device].gpu.memory.locate(*at, bytes) {
                    Ok(a) if a.is_live() => {
                        let pattern = value.to_le_bytes();
                        let row: Vec<u8> = pattern[..*size as usize]
                            .iter()
                            .copied()
                            .cycle()
                            .take(bytes.min(1 << 20) as usize)
                            .collect();
                        let mut done = 0;
                        while done < bytes {
                            let n = (bytes - done).min(row.len() as u64);
                            // Inside the allocation just located.
                            let _ = self.devices[device].gpu.memory.write(at + done, &row[..n as usize]);
                            done += n;
                        }
                        a.mark(*at, bytes, unit);
                        self.check_writes(mark, unit, "memset");
                    }
                    _ => self.memory_fault(device, "memset", *at, bytes),
                }
                seconds = 2e-6 + bytes as f64 / (card.bandwidth * 1e9 * 0.8);
            }
            Work::Alloc(a) => a.set_live(true),
            Work::Free { base } => {
                self.freeing.remove(base);
                let bytes = self.holder(*base).memory.locate(*base, 1).map_or(0, |a| a.size);
                if self.holder(*base).memory.free(*base).is_err() {
                    self.memory_fault(device, "cuMemFreeAsync", *base, 0);
                }
                self.forget_pooled(*base, bytes);
            }
            Work::GraphAlloc(a) if a.is_live() => {
                let message = format!(
                    "0x{:x} is allocated by a graph, and what frees the allocation before has not run",
                    a.base
                );
                self.bad_memory(device, FindingKind::InvalidLaunch, "cuGraphLaunch", message);
            }
            Work::GraphAlloc(a) => a.begin(),
            Work::GraphFree { base } => {
                match self.graph_allocations.get(base).filter(|of| of.allocation.is_live()) {
                    Some(of) => of.allocation.end(),
                    None => self.memory_fault(device, "free of a graph's memory", *base, 0),
                }
            }
            Work::Record(event) => {
                let time = self.streams.get(&id).map_or(0.0, |s| s.time);
                if let Some(e) = self.events.get_mut(event) {
                    e.time = time;
                }
                self.note_record(mark);
            }
            Work::WaitValue { at, size, .. } => self.follow_writer(mark, *at, u64::from(*size)),
            Work::Wait | Work::Call { .. } | Work::Graph(_) => {}
        }
        let serial = seconds > 0.0;
        let device_time = self.devices[device].time;
        if let Some(s) = self.streams.get_mut(&id) {
            // The model does not overlap kernels and copies.
            if serial {
                s.time = s.time.max(device_time) + seconds;
                self.devices[device].time = s.time;
            }
        }
    }

    /// The textures and surfaces that a launch may name: the device's objects, and what is bound to references.
    fn objects_of(&self, device: usize, references: &[Bound]) -> Objects {
        let own = self.objects.iter().filter(|(_, object)| object.device == device);
        let objects = own.map(|(&handle, object)| (handle, Some(object.resource), object.seen));
        let references = references.iter().map(|bound| (bound.at, bound.resource, bound.seen));
        let seen = objects.chain(references).map(|(handle, resource, seen)| match resource {
            Some(Resource::Array(array)) if !self.arrays.contains_key(&array) => (handle, Seen::WithoutArray),
            _ => (handle, seen),
        });
        seen.collect()
    }

    /// Memory of other devices that a device's kernels may access: a pool's by the pool's access list, other memory with peer
    /// access.
    fn reached_from(&self, device: usize) -> Vec<Arc<Allocation>> {
        let others = (0..self.devices.len()).filter(|&other| other != device);
        let reached = others.flat_map(|other| {
            let peer = self.devices[device].peers.contains(&other);
            let may = move |a: &Arc<Allocation>| {
                if let Some(of) = self.graph_allocations.get(&a.base) {
                    return of.accesses.contains(&[1, device as c_int, 3]);
                }
                match self.pool_of.get(&a.base) {
                    Some(pool) => self.pools.get(pool).is_some_and(|pool| pool.access.contains(&device)),
                    None => peer,
                }
            };
            self.devices[other].gpu.memory.device_allocations().into_iter().filter(may)
        });
        reached.collect()
    }

    /// Host pointer to a place's bytes, checked as live.
    fn reach(&mut self, device: usize, place: &Place, offset: u64, bytes: u64) -> Option<*mut u8> {
        match place {
            Place::Device(at) => match self.holder(at + offset).memory.locate(at + offset, bytes) {
                Ok(a) if a.is_live() => Some(a.host(at + offset)),
                _ => {
                    self.memory_fault(device, "memcpy", at + offset, bytes);
                    None
                }
            },
            Place::Host(p) => Some((*p as *mut u8).wrapping_add(offset as usize)),
            Place::Bytes(b) => Some(b.as_ptr().wrapping_add(offset as usize).cast_mut()),
        }
    }

    fn copy(
        &mut self,
        mark: Mark,
        unit: u8,
        [dst, src]: [&Place; 2],
        [dst_offset, src_offset]: [u64; 2],
        bytes: u64,
    ) {
        let device = self.device_of_stream(mark.0);
        let (Some(s), Some(d)) =
            (self.reach(device, src, src_offset, bytes), self.reach(device, dst, dst_offset, bytes))
        else {
            return;
        };
        let located = |place: &Place, offset: u64| match place {
            Place::Device(at) => {
                let allocation = self.holder(at + offset).memory.locate(at + offset, bytes).ok();
                allocation.map(|a| (a, at + offset))
            }
            _ => None,
        };
        let (from, to) = (located(src, src_offset), located(dst, dst_offset));
        self.check_copy(
            mark,
            from.as_ref().map(|(a, at)| (a, *at)),
            to.as_ref().map(|(a, at)| (a, *at)),
            bytes,
        );
        // SAFETY: device places were located as live ranges of `bytes`; host places are the caller's, who
        // promised the driver API that they are valid until the copy has run; `Bytes` is only ever a source
        // and as long as the copy. `copy` allows overlap.
        unsafe { std::ptr::copy(s, d, bytes as usize) };
        let Some((to, at)) = to else { return };
        match from.as_ref().and_then(|(a, at)| a.shadow(*at)).zip(to.shadow(at)) {
            // Bytes that were never written count as unwritten in the copy too.
            Some((s, d)) if to.kind == Kind::Device => {
                // SAFETY: both shadows are as long as the ranges located. `copy` allows overlap.
                unsafe { std::ptr::copy(s, d, bytes as usize) };
                // SAFETY: the shadow is as long as the range located, and no kernel runs while the driver has the engine.
                let shadow = unsafe { std::slice::from_raw_parts_mut(d, bytes as usize) };
                shadow.iter_mut().filter(|writer| **writer != 0).for_each(|writer| *writer = unit);
            }
            // The host may have written the rest of it.
            _ => to.mark(at, bytes, unit),
        }
    }
}

/// Calls a host function in the order of a stream, with the guard released.
pub(super) fn call_host(mut guard: Guard, id: StreamId, work: &Work) -> Result<Guard, u32> {
    let Work::Call { function, stream, data } = work else { return Ok(guard) };
    let d = &mut *guard;
    let failed = d.fault_of(d.device_of_stream(id)).is_err();
    if let Some(s) = d.streams.get_mut(&id) {
        s.busy = true;
    }
    drop(guard);
    // SAFETY: the caller of cuLaunchHostFunc or cuStreamAddCallback, or who added a host node, promised that function and
    // data are valid until the call; host functions are not called after a device fault.
    unsafe {
        match **function {
            Callback::Host(f) if !failed => f(*data as *mut c_void),
            Callback::Stream(f) => {
                let status = if failed {
                    cust_raw::CUresult::CUDA_ERROR_LAUNCH_FAILED
                } else {
                    cust_raw::CUresult::CUDA_SUCCESS
                };
                f(*stream as cust_raw::CUstream, status, *data as *mut c_void);
            }
            Callback::Host(_) => {}
        }
    }
    let mut guard = lock()?;
    if let Some(s) = guard.streams.get_mut(&id) {
        s.busy = false;
    }
    RETURNED.notify_all();
    Ok(guard)
}
