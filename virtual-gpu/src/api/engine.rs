//! The device under the driver API: handles, streams as queues, and the seeded order in which work runs.
//!
//! Work is queued with its dependencies. It runs when something waits for it, together with other work that may
//! run, in an order that the seed decides. Code that forgets an edge between streams so meets an order in which the
//! edge was needed.
//!
//! Long because the queue, the kinds of work and the state they change are one machine.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::codes::*;
use super::graph::{Capture, Graph, Node};
use crate::config::Config;
use crate::cost;
use crate::exec::{Gpu, Launch, LoadedModule};
use crate::finding::{self, Finding, FindingKind};
use crate::memory::{Allocation, Kind, MemoryError};
use crate::reports;

pub(super) type StreamId = u64;
/// The legacy default stream.
pub(super) const NULL: StreamId = 0;
/// Beyond this many, queued work runs at once: a driver's queue is finite too.
const QUEUE_LIMIT: usize = 1024;

/// A host function to call in stream order.
pub(super) enum Callback {
    Host(unsafe extern "C" fn(*mut c_void)),
    Stream(unsafe extern "C" fn(cust_raw::CUstream, cust_raw::CUresult, *mut c_void)),
}

/// Host or device memory named in a copy.
#[derive(Clone)]
pub(super) enum Place {
    /// A device address, or a host address that the device can reach.
    Device(u64),
    /// Pageable host memory.
    Host(usize),
    /// Host bytes taken when the copy was queued.
    Bytes(Arc<[u8]>),
}

#[derive(Clone)]
pub(super) enum Work {
    Launch(Arc<KernelLaunch>),
    /// Rows of `width` bytes at the two pitches.
    Copy {
        dst: Place,
        src: Place,
        width: u64,
        rows: u64,
        dst_pitch: u64,
        src_pitch: u64,
    },
    Set {
        at: u64,
        value: u32,
        size: u8,
        count: u64,
    },
    /// Makes a stream-ordered allocation usable.
    Alloc(Arc<Allocation>),
    Free {
        base: u64,
    },
    Record(u64),
    /// Only waits.
    Wait,
    Call {
        function: Arc<Callback>,
        stream: StreamId,
        data: usize,
    },
    Graph(Arc<Vec<Node>>),
}

pub(super) struct KernelLaunch {
    pub module: Arc<LoadedModule>,
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: Vec<u8>,
    pub registers: u32,
}

/// Work number `n` of a stream.
pub(super) type Mark = (StreamId, u64);

struct Queued {
    work: Work,
    after: Vec<Mark>,
}

#[derive(Default)]
pub(super) struct Stream {
    pub flags: u32,
    pub priority: i32,
    queue: VecDeque<Queued>,
    /// Work ever queued and finished.
    pub queued: u64,
    pub finished: u64,
    /// A host function of this stream is being called.
    busy: bool,
    pub destroyed: bool,
    pub capture: Option<u64>,
    /// Nodes that the next captured work follows.
    pub capture_tail: Vec<usize>,
    /// Model time at which its last work ended, in seconds.
    time: f64,
    /// Work of other streams that the next work must follow.
    pending_waits: Vec<Mark>,
}

impl Stream {
    pub fn new(flags: u32, priority: i32) -> Self {
        Self { flags, priority, ..Self::default() }
    }
}

pub(super) struct Event {
    pub flags: u32,
    pub recorded: Option<Mark>,
    /// Model time of the last record that ran.
    pub time: f64,
    /// Captured record: capture and the nodes it follows.
    pub captured: Option<(u64, Vec<usize>)>,
}

pub(super) struct Pool {
    pub threshold: u64,
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    pub reuse: [i32; 3],
}

impl Pool {
    pub fn new() -> Self {
        Self { threshold: 0, used: 0, used_high: 0, reserved: 0, reserved_high: 0, reuse: [1; 3] }
    }

    pub fn trim(&mut self, keep: u64) {
        self.reserved = self.reserved.min(keep.max(self.used));
    }
}

pub(super) struct Function {
    pub module: u64,
    pub kernel: String,
    pub registers: u32,
    pub max_dynamic_shared: u32,
}

pub(super) struct Driver {
    pub gpu: Gpu,
    pub streams: HashMap<StreamId, Stream>,
    pub events: HashMap<u64, Event>,
    pub modules: HashMap<u64, Arc<LoadedModule>>,
    pub functions: HashMap<u64, Function>,
    pub graphs: HashMap<u64, Graph>,
    pub execs: HashMap<u64, Arc<Vec<Node>>>,
    pub captures: HashMap<u64, Capture>,
    pub pools: BTreeMap<u64, Pool>,
    pub current_pool: u64,
    /// Stream-ordered allocations: pool of each.
    pub pool_of: HashMap<u64, u64>,
    /// Addresses whose stream-ordered free is queued.
    pub freeing: HashSet<u64>,
    pub contexts: HashMap<u64, u32>,
    pub primary: u64,
    pub primary_count: u32,
    pub primary_flags: u32,
    /// The device fault that every later call returns.
    pub sticky: Option<u32>,
    next_handle: u64,
    random: u64,
    /// Model time at which the device is free.
    device_time: f64,
    last_null: u64,
}

pub(super) const DEFAULT_POOL: u64 = 8;

impl Driver {
    pub fn new(config: Config) -> Self {
        let random = config.seed ^ 0x9e37_79b9_7f4a_7c15;
        let mut d = Self {
            gpu: Gpu::new(config),
            streams: HashMap::new(),
            events: HashMap::new(),
            modules: HashMap::new(),
            functions: HashMap::new(),
            graphs: HashMap::new(),
            execs: HashMap::new(),
            captures: HashMap::new(),
            pools: BTreeMap::from([(DEFAULT_POOL, Pool::new())]),
            current_pool: DEFAULT_POOL,
            pool_of: HashMap::new(),
            freeing: HashSet::new(),
            contexts: HashMap::new(),
            primary: 0,
            primary_count: 0,
            primary_flags: 0,
            sticky: None,
            next_handle: 0x1000,
            random,
            device_time: 0.0,
            last_null: 0,
        };
        d.streams.insert(NULL, Stream::default());
        d
    }

    /// A value for a new handle; none is used twice, so that a stale handle is always detected.
    pub fn handle(&mut self) -> u64 {
        self.next_handle += 16;
        self.next_handle
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.pick(one_in) == 0
    }

    /// Source: Marsaglia 2003, xorshift64.
    pub fn pick(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % n.max(1)
    }

    pub fn stream(&mut self, id: StreamId) -> Result<&mut Stream, u32> {
        match self.streams.get_mut(&id) {
            Some(s) if !s.destroyed => Ok(s),
            _ => Err(INVALID_HANDLE),
        }
    }

    fn blocking(s: &Stream) -> bool {
        s.flags & 1 == 0
    }

    /// Queues work on a stream, or records it if the stream is being captured. Returns its mark.
    pub fn enqueue(&mut self, id: StreamId, work: Work) -> Result<Mark, u32> {
        if self.stream(id)?.capture.is_some() {
            self.capture_work(id, work)?;
            return Ok((id, 0));
        }
        let mut after = Vec::new();
        if id == NULL {
            if self.captures.values().any(|c| !c.relaxed) {
                return Err(STREAM_CAPTURE_IMPLICIT);
            }
            // The legacy default stream follows all earlier work of blocking streams …
            after.extend(
                self.streams
                    .iter()
                    .filter(|(i, s)| **i != NULL && Self::blocking(s))
                    .map(|(i, s)| (*i, s.queued)),
            );
        } else if Self::blocking(self.stream(id)?) {
            // … and all later work of theirs follows it.
            after.push((NULL, self.last_null));
        }
        let s = self.stream(id)?;
        after.append(&mut s.pending_waits);
        s.queued += 1;
        let mark = (id, s.queued);
        s.queue.push_back(Queued { work, after });
        if id == NULL {
            self.last_null = mark.1;
        }
        Ok(mark)
    }

    /// Makes the stream's next work wait for a mark.
    pub fn follow(&mut self, id: StreamId, mark: Mark) -> Result<(), u32> {
        self.stream(id)?.pending_waits.push(mark);
        // Queued as work of its own, so that whoever waits for the stream waits for the mark too.
        self.enqueue(id, Work::Wait).map(|_| ())
    }

    pub fn done(&self, (stream, n): Mark) -> bool {
        self.streams.get(&stream).is_none_or(|s| s.finished >= n)
    }

    pub fn idle(&self) -> bool {
        self.streams.values().all(|s| s.finished == s.queued)
    }

    fn ready(&self) -> Vec<StreamId> {
        let mut ids: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, s)| {
                !s.busy && s.queue.front().is_some_and(|q| q.after.iter().all(|&m| self.done(m)))
            })
            .map(|(id, _)| *id)
            .collect();
        ids.sort_unstable();
        ids
    }

    /// Takes one piece of work that may run, at random; `None` if there is none.
    fn take(&mut self) -> Option<(StreamId, Work)> {
        let ready = self.ready();
        if ready.is_empty() {
            return None;
        }
        let id = ready[self.pick(ready.len() as u64) as usize];
        let s = self.streams.get_mut(&id)?;
        let q = s.queue.pop_front()?;
        let waited =
            q.after.iter().filter_map(|(o, _)| self.streams.get(o)).fold(0.0f64, |t, o| t.max(o.time));
        let s = self.streams.get_mut(&id)?;
        s.time = s.time.max(waited);
        Some((id, q.work))
    }

    fn finish(&mut self, id: StreamId) {
        if let Some(s) = self.streams.get_mut(&id) {
            s.finished += 1;
            s.busy = false;
            if s.destroyed && s.finished == s.queued {
                self.streams.remove(&id);
            }
        }
    }

    fn fault(&mut self, finding: Finding) {
        self.sticky.get_or_insert(finding.kind.code());
        finding::report(finding);
    }

    fn memory_fault(&mut self, what: &str, at: u64, bytes: u64) {
        let (freed, near) = self.gpu.memory.describe(at);
        let kind = if freed { FindingKind::UseAfterFree } else { FindingKind::OutOfBounds };
        let message = format!("{bytes} bytes at 0x{at:x}, {near}");
        self.fault(Finding {
            kind,
            kernel: what.to_owned(),
            line: 0,
            block: [0; 3],
            thread: [0; 3],
            message,
        });
    }

    /// Runs work other than host calls.
    fn execute(&mut self, id: StreamId, work: &Work) {
        if self.sticky.is_some() && !matches!(work, Work::Record(_)) {
            return;
        }
        let card = self.gpu.config().card;
        let mut seconds = 0.0;
        match work {
            Work::Launch(l) => {
                let launch =
                    Launch { grid: l.grid, block: l.block, dynamic_shared: l.shared, params: &l.params };
                match self.gpu.launch(&l.module, &l.kernel, launch) {
                    Ok(report) => {
                        seconds = cost::estimate(&report, card, l.registers).time;
                        reports::keep(report);
                    }
                    Err(f) => self.fault(f),
                }
            }
            Work::Copy { dst, src, width, rows, dst_pitch, src_pitch } => {
                for r in 0..*rows {
                    self.copy(dst, r * dst_pitch, src, r * src_pitch, *width);
                }
                // PCI Express 3.0 with 16 lanes moves about 12 GB/s.
                let device = matches!((dst, src), (Place::Device(_), Place::Device(_)));
                let rate = if device { card.bandwidth * 1e9 * 0.4 } else { 12e9 };
                seconds = 2e-6 + (width * rows) as f64 / rate;
            }
            Work::Set { at, value, size, count } => {
                let bytes = count * *size as u64;
                match self.gpu.memory.locate(*at, bytes) {
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
                            let _ = self.gpu.memory.write(at + done, &row[..n as usize]);
                            done += n;
                        }
                    }
                    _ => self.memory_fault("memset", *at, bytes),
                }
                seconds = 2e-6 + bytes as f64 / (card.bandwidth * 1e9 * 0.8);
            }
            Work::Alloc(a) => a.set_live(true),
            Work::Free { base } => {
                self.freeing.remove(base);
                let bytes = self.gpu.memory.locate(*base, 1).map_or(0, |a| a.size);
                if self.gpu.memory.free(*base).is_err() {
                    self.memory_fault("cuMemFreeAsync", *base, 0);
                }
                self.forget_pooled(*base, bytes);
            }
            Work::Record(event) => {
                let time = self.streams.get(&id).map_or(0.0, |s| s.time);
                if let Some(e) = self.events.get_mut(event) {
                    e.time = time;
                }
            }
            Work::Graph(nodes) => {
                // Any order that the edges allow.
                let mut done = vec![false; nodes.len()];
                let overhead = cost::LAUNCH_SECONDS - cost::GRAPH_LAUNCH_SECONDS;
                for _ in 0..nodes.len() {
                    let ready: Vec<usize> = (0..nodes.len())
                        .filter(|&n| !done[n] && nodes[n].after.iter().all(|&a| done[a]))
                        .collect();
                    let n = ready[self.pick(ready.len() as u64) as usize];
                    done[n] = true;
                    self.execute(id, &nodes[n].work);
                    if let (Work::Launch(_), Some(s)) = (&nodes[n].work, self.streams.get_mut(&id)) {
                        s.time -= overhead;
                    }
                }
            }
            Work::Wait | Work::Call { .. } => {}
        }
        let serial = seconds > 0.0;
        let device_time = self.device_time;
        if let Some(s) = self.streams.get_mut(&id) {
            // The model does not overlap kernels and copies.
            if serial {
                s.time = s.time.max(device_time) + seconds;
                self.device_time = s.time;
            }
        }
    }

    /// Host pointer to a place's bytes, marked as written or checked as readable.
    fn reach(&mut self, place: &Place, offset: u64, bytes: u64) -> Option<*mut u8> {
        match place {
            Place::Device(at) => match self.gpu.memory.locate(at + offset, bytes) {
                Ok(a) if a.is_live() => Some(a.host(at + offset)),
                _ => {
                    self.memory_fault("memcpy", at + offset, bytes);
                    None
                }
            },
            Place::Host(p) => Some((*p as *mut u8).wrapping_add(offset as usize)),
            Place::Bytes(b) => Some(b.as_ptr().wrapping_add(offset as usize).cast_mut()),
        }
    }

    fn copy(&mut self, dst: &Place, dst_offset: u64, src: &Place, src_offset: u64, bytes: u64) {
        let (Some(s), Some(d)) = (self.reach(src, src_offset, bytes), self.reach(dst, dst_offset, bytes))
        else {
            return;
        };
        // SAFETY: device places were located as live ranges of `bytes`; host places are the caller's, who
        // promised the driver API that they are valid until the copy has run; `Bytes` is only ever a source
        // and as long as the copy. `copy` allows overlap.
        unsafe { std::ptr::copy(s, d, bytes as usize) };
        if let Place::Device(to) = dst
            && let Ok(to_allocation) = self.gpu.memory.locate(to + dst_offset, bytes)
        {
            let from = match src {
                Place::Device(from) => {
                    self.gpu.memory.locate(from + src_offset, bytes).ok().map(|a| (a, from + src_offset))
                }
                _ => None,
            };
            // Bytes that were never written count as unwritten in the copy too.
            match from.as_ref().and_then(|(a, at)| a.shadow(*at)).zip(to_allocation.shadow(to + dst_offset)) {
                // SAFETY: both shadows are as long as the ranges located.
                Some((s, d)) => unsafe { std::ptr::copy(s, d, bytes as usize) },
                None => to_allocation.mark(to + dst_offset, bytes),
            }
        }
    }

    /// Whether an address is page-locked host memory.
    pub fn pinned(&self, address: u64, bytes: u64) -> bool {
        self.gpu.memory.locate(address, bytes).is_ok_and(|a| a.kind != Kind::Device)
    }

    pub fn module(&self, id: u64) -> Result<&Arc<LoadedModule>, u32> {
        self.modules.get(&id).ok_or(INVALID_HANDLE)
    }
}

pub(super) static DRIVER: Mutex<Option<Driver>> = Mutex::new(None);
/// Signalled whenever a host function has returned.
static RETURNED: Condvar = Condvar::new();

pub(super) type Guard = MutexGuard<'static, Option<Driver>>;

pub(super) fn lock() -> Guard {
    DRIVER.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs queued work, in a seeded order, until `until` holds. Returns the guard, which is released while a host
/// function runs.
pub(super) fn run_until(mut guard: Guard, until: impl Fn(&Driver) -> bool) -> Result<Guard, u32> {
    loop {
        let Some(d) = guard.as_mut() else { return Err(NOT_INITIALIZED) };
        if until(d) {
            return Ok(guard);
        }
        match d.take() {
            None if d.streams.values().any(|s| s.busy) => {
                guard = RETURNED.wait(guard).unwrap_or_else(|e| e.into_inner());
            }
            // Nothing can run, so the wait would never end.
            None => return Err(LAUNCH_TIMEOUT),
            Some((id, Work::Call { function, stream, data })) => {
                let failed = d.sticky.is_some();
                if let Some(s) = d.streams.get_mut(&id) {
                    s.busy = true;
                }
                drop(guard);
                // SAFETY: the caller of cuLaunchHostFunc or cuStreamAddCallback promised that function and
                // data are valid until the call; host functions are not called after a device fault.
                unsafe {
                    match *function {
                        Callback::Host(f) if !failed => f(data as *mut c_void),
                        Callback::Stream(f) => {
                            let status = if failed {
                                cust_raw::CUresult::CUDA_ERROR_LAUNCH_FAILED
                            } else {
                                cust_raw::CUresult::CUDA_SUCCESS
                            };
                            f(stream as cust_raw::CUstream, status, data as *mut c_void);
                        }
                        Callback::Host(_) => {}
                    }
                }
                guard = lock();
                if let Some(d) = guard.as_mut() {
                    d.finish(id);
                }
                RETURNED.notify_all();
            }
            Some((id, work)) => {
                d.execute(id, &work);
                d.finish(id);
            }
        }
    }
}

/// Called after work was queued: runs none, some or all of it, as the configuration and the seed say.
pub(super) fn after_enqueue(mut guard: Guard) -> Result<(), u32> {
    let Some(d) = guard.as_mut() else { return Err(NOT_INITIALIZED) };
    let waiting: usize = d.streams.values().map(|s| s.queue.len()).sum();
    if !d.gpu.config().late {
        drop(run_until(guard, Driver::idle)?);
    } else if waiting > QUEUE_LIMIT || d.chance(8) {
        drop(run_some(guard, 1 + waiting as u64 / 2)?);
    }
    Ok(())
}

/// Runs up to `n` pieces of work.
pub(super) fn run_some(mut guard: Guard, n: u64) -> Result<Guard, u32> {
    for _ in 0..n {
        let Some(d) = guard.as_mut() else { return Err(NOT_INITIALIZED) };
        if d.ready().is_empty() {
            break;
        }
        let before: u64 = d.streams.values().map(|s| s.finished).sum();
        // A destroyed stream takes its count with it, so a piece may have run though the sum is as before.
        let ran = move |d: &Driver| d.streams.values().map(|s| s.finished).sum::<u64>() != before;
        guard = run_until(guard, |d| ran(d) || d.ready().is_empty())?;
    }
    Ok(guard)
}

pub(super) fn memory_code(e: MemoryError) -> u32 {
    match e {
        MemoryError::OutOfMemory => OUT_OF_MEMORY,
        _ => INVALID_VALUE,
    }
}
