//! The devices under the driver API: handles, streams as queues, and the seeded order in which work runs.
//!
//! Work is queued with its dependencies. It runs when something waits for it, together with other work that may
//! run, in an order that the seed decides. So code that lacks an edge between streams will run in an order that needs it
//! under some seeds.
//!
//! Long because the queue, the kinds of work and the state that they change belong together.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{CString, c_uint, c_void};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use super::codes::*;
use super::graph::{Capture, Exec, Graph};
use super::order::{Clock, Order, join};
use crate::config::Config;
use crate::cost;
use crate::exec::{Gpu, Launch, LaunchContext, LaunchReport, LoadedModule, RemoteReads};
use crate::finding::{self, Finding, FindingKind};
use crate::memory::{Allocation, Kind, MAX_DEVICES, Memory, MemoryError, WRITTEN, device_of};
use crate::ptx::Module;
use crate::reports::{self, LaunchKey};

pub(super) type StreamId = u64;
/// The legacy default stream of a device has the device's number. No handle is so small.
pub(super) fn is_null(id: StreamId) -> bool {
    id < MAX_DEVICES as u64
}

/// Marks a thread's own default stream on a device, whose number is in the lowest byte and the thread's above it.
const PER_THREAD: StreamId = 1 << 62;

pub(super) fn is_per_thread(id: StreamId) -> bool {
    id & PER_THREAD != 0 && id >> 63 == 0
}

thread_local! {
    /// Whether the call that this thread makes takes a null stream for the thread's own default stream.
    pub(super) static NULL_IS_PER_THREAD: Cell<bool> = const { Cell::new(false) };
    static THREAD_NUMBER: u64 = {
        static THREADS: AtomicU64 = AtomicU64::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed)
    };
}

/// Beyond this many, queued work runs at once: a driver's queue is finite too.
const QUEUE_LIMIT: usize = 1024;

/// Between two looks at a value that a stream waits for.
const POLL: Duration = Duration::from_millis(1);

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
        value: u64,
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
    /// Waits until the 4 or 8 bytes at an address compare with a value as the flags of `cuStreamWaitValue32` say.
    WaitValue {
        at: u64,
        value: u64,
        size: u8,
        flags: u32,
    },
    Call {
        function: Arc<Callback>,
        stream: StreamId,
        data: usize,
    },
    Graph(Arc<Exec>),
}

pub(super) struct KernelLaunch {
    /// The handle of the function or the library's kernel.
    pub function: u64,
    pub module: Arc<LoadedModule>,
    pub kernel: String,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub params: Vec<u8>,
    pub registers: u32,
    /// Whether its blocks may wait for each other.
    pub cooperative: bool,
}

impl KernelLaunch {
    /// All that a launch's counts depend on, except the contents and the addresses of its memory.
    fn without_addresses(&self, memory: &Memory) -> LaunchKey {
        let mut params = self.params.clone();
        let kernel = self.module.module.kernel(&self.kernel);
        for p in kernel.iter().flat_map(|k| &k.params) {
            let bytes = &mut params[p.offset as usize..][..p.bytes as usize];
            for word in bytes.chunks_exact_mut(8) {
                let address = word.iter().rev().fold(0, |high, &byte| high << 8 | u64::from(byte));
                if memory.locate(address, 1).is_ok() {
                    word.fill(0xff);
                }
            }
        }
        LaunchKey {
            kernel: self.kernel.clone(),
            grid: self.grid,
            block: self.block,
            shared: self.shared,
            params,
        }
    }
}

/// Writes a kernel's `printf` output to stdout, as the driver does.
fn print(text: &str) {
    if !text.is_empty() {
        let mut out = std::io::stdout().lock();
        // nowhere to report that stdout is closed
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

/// Work number `n` of a stream.
pub(super) type Mark = (StreamId, u64);

struct Queued {
    work: Work,
    after: Vec<Mark>,
    /// The host's clock when it queued this.
    host: Arc<Clock>,
}

#[derive(Default)]
pub(super) struct Stream {
    pub device: usize,
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
    pub time: f64,
    /// Work of other streams that the next work must follow.
    pending_waits: Vec<Mark>,
    /// The clock of its last work, that work included.
    pub clock: Clock,
    /// The attributes that were set, by their numbers: hints, of which all but the priority change nothing here.
    pub attributes: BTreeMap<c_uint, [u8; 32]>,
}

impl Stream {
    pub fn new(device: usize, flags: u32, priority: i32) -> Self {
        Self { device, flags, priority, ..Self::default() }
    }
}

pub(super) struct Event {
    pub device: usize,
    pub flags: u32,
    pub recorded: Option<Mark>,
    /// Model time of the last record that ran.
    pub time: f64,
    /// Captured record: capture and the nodes it follows.
    pub captured: Option<(u64, Vec<usize>)>,
}

pub(super) struct Pool {
    pub device: usize,
    pub threshold: u64,
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    pub reuse: [i32; 3],
    /// Other devices that may access its memory.
    pub access: BTreeSet<usize>,
}

impl Pool {
    pub fn new(device: usize) -> Self {
        let (used, reserved) = (0, 0);
        let access = BTreeSet::new();
        Self { device, threshold: 0, used, used_high: 0, reserved, reserved_high: 0, reuse: [1; 3], access }
    }

    pub fn trim(&mut self, keep: u64) {
        self.reserved = self.reserved.min(keep.max(self.used));
    }
}

/// A module and the device that it is loaded on.
pub(super) struct OnDevice {
    pub device: usize,
    pub loaded: Arc<LoadedModule>,
}

pub(super) struct Function {
    pub module: u64,
    pub kernel: String,
    pub registers: u32,
    pub max_dynamic_shared: u32,
}

/// Code that belongs to no context; each device loads it at the first use there.
pub(super) struct Library {
    pub module: Arc<Module>,
    /// The modules that it was loaded as, by device.
    pub loaded: BTreeMap<usize, u64>,
}

/// A kernel of a library.
pub(super) struct LibraryKernel {
    pub library: u64,
    pub name: String,
    /// Its functions, by device.
    pub functions: BTreeMap<usize, u64>,
}

/// The state of one device.
pub(super) struct Device {
    /// What `cuCtxSetLimit` has set.
    pub limits: BTreeMap<u32, usize>,
    pub gpu: Gpu,
    pub current_pool: u64,
    pub primary: u64,
    pub primary_count: u32,
    pub primary_flags: u32,
    /// The most bytes in use since it was last taken.
    pub peak: u64,
    /// Devices to whose memory it has peer access.
    pub peers: BTreeSet<usize>,
    /// The fault that every later call on the device returns.
    pub sticky: Option<u32>,
    /// Model time at which it is free.
    time: f64,
    last_null: u64,
    /// Work that all streams made from now on follow.
    waits: Vec<Mark>,
}

/// A context.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub device: usize,
    pub flags: u32,
    /// Uses by `cuCtxAttach`.
    pub uses: u32,
}

#[derive(Default)]
pub(super) struct Driver {
    pub devices: Vec<Device>,
    /// The device of the context that is current in the call being answered.
    pub current: usize,
    pub order: Order,
    pub streams: HashMap<StreamId, Stream>,
    pub events: HashMap<u64, Event>,
    pub modules: HashMap<u64, OnDevice>,
    pub functions: HashMap<u64, Function>,
    pub graphs: HashMap<u64, Graph>,
    pub execs: HashMap<u64, Arc<Exec>>,
    pub captures: HashMap<u64, Capture>,
    pub pools: BTreeMap<u64, Pool>,
    /// Stream-ordered allocations: pool of each.
    pub pool_of: HashMap<u64, u64>,
    /// Kernel names as C strings, for as long as the driver lives.
    pub names: HashMap<String, CString>,
    /// Managed allocations: page-locked host memory.
    pub managed: HashSet<u64>,
    /// Addresses whose stream-ordered free is queued.
    pub freeing: HashSet<u64>,
    pub contexts: HashMap<u64, Context>,
    pub libraries: HashMap<u64, Library>,
    pub kernels: HashMap<u64, LibraryKernel>,
    next_handle: u64,
    random: u64,
    /// Whether the running work is part of a graph.
    in_graph: bool,
}

/// The handle of a device's default pool.
pub(super) const fn default_pool(device: usize) -> u64 {
    8 + 16 * device as u64
}

impl Driver {
    pub fn new(config: Config) -> Self {
        let random = config.seed ^ 0x9e37_79b9_7f4a_7c15;
        let device = |number| Device {
            gpu: Gpu::numbered(number, config.of_device(number)),
            limits: BTreeMap::new(),
            current_pool: default_pool(number),
            primary: 0,
            primary_count: 0,
            primary_flags: 0,
            peak: 0,
            peers: BTreeSet::new(),
            sticky: None,
            time: 0.0,
            last_null: 0,
            waits: Vec::new(),
        };
        let numbers = 0..config.devices();
        let pools = numbers.clone().map(|number| (default_pool(number), Pool::new(number))).collect();
        let devices = numbers.clone().map(device).collect();
        let mut d = Self { devices, pools, random, next_handle: 0x1000, ..Self::default() };
        d.streams.extend(numbers.map(|number| (number as u64, Stream::new(number, 0, 0))));
        d
    }

    /// The device whose context is current.
    pub fn here(&mut self) -> &mut Device {
        &mut self.devices[self.current]
    }

    /// The GPU of that device.
    pub fn gpu(&self) -> &Gpu {
        &self.devices[self.current].gpu
    }

    /// The stream that a call names: by its handle, `CU_STREAM_LEGACY` (1), `CU_STREAM_PER_THREAD` (2), or none for the default
    /// one of the current device.
    pub fn id(&self, handle: cust_raw::CUstream) -> StreamId {
        let own = || PER_THREAD | THREAD_NUMBER.with(|number| number << 8) | self.current as u64;
        match handle as u64 {
            0 if NULL_IS_PER_THREAD.get() => own(),
            0 | 1 => self.current as u64,
            2 => own(),
            id if is_null(id) => u64::MAX, // which no stream has
            id => id,
        }
    }

    /// The device of a stream.
    pub fn device_of_stream(&self, id: StreamId) -> usize {
        self.streams.get(&id).map_or(self.current, |s| s.device)
    }

    /// The GPU whose memory has an address: its owner, or for host memory the first, as all devices have it.
    pub fn holder(&self, address: u64) -> &Gpu {
        let device = device_of(address).filter(|&device| device < self.devices.len());
        &self.devices[device.unwrap_or(0)].gpu
    }

    /// The fault of a device as an error.
    pub fn fault_of(&self, device: usize) -> Result<(), u32> {
        self.devices.get(device).and_then(|d| d.sticky).map_or(Ok(()), Err)
    }

    /// A value for a new handle; none is used twice, so that a stale handle is always detected.
    pub fn handle(&mut self) -> u64 {
        self.next_handle += 16;
        self.next_handle
    }

    pub fn chance(&mut self, one_in: u64) -> bool {
        self.pick(one_in) == 0
    }

    /// A pseudo-random number below `n`. Source: Marsaglia 2003, xorshift64.
    pub fn pick(&mut self, n: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % n.max(1)
    }

    pub fn stream(&mut self, id: StreamId) -> Result<&mut Stream, u32> {
        let device = (id & 0xff) as usize;
        if is_per_thread(id) && device < self.devices.len() {
            // at its first use
            self.streams.entry(id).or_insert_with(|| Stream {
                pending_waits: self.devices[device].waits.clone(),
                ..Stream::new(device, 0, 0)
            });
        }
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
        let device = self.stream(id)?.device;
        if is_null(id) {
            if self.captures.values().any(|c| !c.relaxed) {
                return Err(STREAM_CAPTURE_IMPLICIT);
            }
            // The legacy default stream follows all earlier work of blocking streams …
            after.extend(
                self.streams
                    .iter()
                    .filter(|(i, s)| **i != id && s.device == device && Self::blocking(s))
                    .map(|(i, s)| (*i, s.queued)),
            );
        } else if Self::blocking(self.stream(id)?) {
            // … and all later work of theirs follows it.
            after.push((device as u64, self.devices[device].last_null));
        }
        let host = self.order.host();
        let s = self.stream(id)?;
        after.append(&mut s.pending_waits);
        s.queued += 1;
        let mark = (id, s.queued);
        s.queue.push_back(Queued { work, after, host });
        if is_null(id) {
            self.devices[device].last_null = mark.1;
        }
        Ok(mark)
    }

    /// Makes the stream's next work wait for a mark.
    pub fn follow(&mut self, id: StreamId, mark: Mark) -> Result<(), u32> {
        self.stream(id)?.pending_waits.push(mark);
        // Queued as work of its own, so that whoever waits for the stream waits for the mark too.
        self.enqueue(id, Work::Wait).map(|_| ())
    }

    /// A new stream of a device; gives its handle.
    pub fn add_stream(&mut self, device: usize, flags: u32, priority: i32) -> StreamId {
        let id = self.handle();
        let pending_waits = self.devices[device].waits.clone();
        self.streams.insert(id, Stream { pending_waits, ..Stream::new(device, flags, priority) });
        id
    }

    /// Records an event behind all work of a device that is queued, on a stream of its own.
    pub fn record_device(&mut self, device: usize, event: u64) -> Result<Mark, u32> {
        let of_device = self.streams.iter().filter(|(_, s)| s.device == device);
        let marks = of_device.map(|(id, s)| (*id, s.queued)).collect();
        let id = self.handle();
        self.streams.insert(id, Stream { pending_waits: marks, ..Stream::new(device, 1, 0) });
        let mark = self.enqueue(id, Work::Record(event))?;
        self.stream(id)?.destroyed = true;
        Ok(mark)
    }

    /// Makes all later work of a device wait for a mark.
    pub fn follow_on_device(&mut self, device: usize, mark: Mark) -> Result<(), u32> {
        let mut streams: Vec<_> = self
            .streams
            .iter()
            .filter(|(_, s)| s.device == device && !s.destroyed)
            .map(|(id, _)| *id)
            .collect();
        streams.sort_unstable();
        streams.into_iter().try_for_each(|id| self.follow(id, mark))?;
        let done = |mark: &Mark| self.streams.get(&mark.0).is_none_or(|s| s.finished >= mark.1);
        let mut waits = std::mem::take(&mut self.devices[device].waits);
        waits.retain(|mark| !done(mark));
        waits.push(mark);
        self.devices[device].waits = waits;
        Ok(())
    }

    pub fn done(&self, (stream, n): Mark) -> bool {
        self.streams.get(&stream).is_none_or(|s| s.finished >= n)
    }

    pub fn idle(&self) -> bool {
        self.streams.values().all(|s| s.finished == s.queued)
    }

    /// Whether all work of a device is done.
    pub fn is_idle(&self, device: usize) -> bool {
        self.streams.values().filter(|s| s.device == device).all(|s| s.finished == s.queued)
    }

    fn follows(&self, q: &Queued) -> bool {
        q.after.iter().all(|&mark| self.done(mark))
    }

    /// Whether all that could run waits for values, which the host or another thread's work may write.
    fn waits_for_values(&self) -> bool {
        let waits = |q: &Queued| matches!(q.work, Work::WaitValue { .. }) && self.follows(q);
        self.ready().is_empty() && self.streams.values().any(|s| s.queue.front().is_some_and(waits))
    }

    fn ready(&self) -> Vec<StreamId> {
        let mut ids: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, s)| {
                !s.busy && s.queue.front().is_some_and(|q| self.follows(q) && self.may_run(&q.work))
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
        let mut clock = Clock::new();
        if self.ordered() {
            clock = (*q.host).clone();
            q.after.iter().for_each(|&mark| join(&mut clock, &self.clock_at(mark)));
        }
        let s = self.streams.get_mut(&id)?;
        s.time = s.time.max(waited);
        join(&mut s.clock, &clock);
        s.clock.insert(id, s.finished + 1);
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

    pub(super) fn fault(&mut self, device: usize, finding: Finding) {
        if self.devices[device].sticky.is_none() {
            self.devices[device].sticky = Some(finding.kind.code());
            // others may read what this device will now never write: that is no missing wait of theirs
            self.devices[device]
                .gpu
                .memory
                .device_allocations()
                .iter()
                .for_each(|a| a.mark(a.base, a.size, WRITTEN));
        }
        finding::report(finding);
    }

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
                let context = LaunchContext { peers, writer, unordered, remote: remote.clone(), cooperative };
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

    /// Memory of other devices that a device's kernels may access: a pool's by the pool's access list, other memory with peer
    /// access.
    fn reached_from(&self, device: usize) -> Vec<Arc<Allocation>> {
        let others = (0..self.devices.len()).filter(|&other| other != device);
        let reached = others.flat_map(|other| {
            let peer = self.devices[device].peers.contains(&other);
            let may = move |a: &Arc<Allocation>| match self.pool_of.get(&a.base) {
                Some(pool) => self.pools.get(pool).is_some_and(|pool| pool.access.contains(&device)),
                None => peer,
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

    /// Whether an address is page-locked host memory.
    pub fn pinned(&self, address: u64, bytes: u64) -> bool {
        device_of(address).is_none()
            && self.holder(address).memory.locate(address, bytes).is_ok_and(|a| a.kind != Kind::Device)
    }

    pub fn module(&self, id: u64) -> Result<&OnDevice, u32> {
        self.modules.get(&id).ok_or(INVALID_HANDLE)
    }
}

pub(super) static DRIVER: OnceLock<Mutex<Driver>> = OnceLock::new();
/// Signalled whenever a host function has returned.
static RETURNED: Condvar = Condvar::new();

pub(super) type Guard = MutexGuard<'static, Driver>;

/// The driver, if it is configured.
pub(super) fn lock() -> Result<Guard, u32> {
    let driver = DRIVER.get().ok_or(NOT_INITIALIZED)?;
    Ok(driver.lock().unwrap_or_else(|e| e.into_inner()))
}

/// Runs queued work, in a seeded order, until `until` holds. Returns the guard, which is released while a host
/// function runs.
pub(super) fn run_until(guard: Guard, until: impl Fn(&Driver) -> bool) -> Result<Guard, u32> {
    run_work(guard, until, true)
}

/// As [`run_until`]. A call that does not wait has host functions run on a thread of their own, as one may wait for what the
/// caller does next.
fn run_work(mut guard: Guard, until: impl Fn(&Driver) -> bool, waits: bool) -> Result<Guard, u32> {
    loop {
        let d = &mut *guard;
        if until(d) {
            return Ok(guard);
        }
        match d.take() {
            None if d.streams.values().any(|s| s.busy) => {
                guard = RETURNED.wait(guard).unwrap_or_else(|e| e.into_inner());
            }
            None if d.waits_for_values() => {
                drop(guard);
                std::thread::sleep(POLL);
                guard = lock()?;
            }
            // Nothing can run, so the wait would never end.
            None => return Err(LAUNCH_TIMEOUT),
            Some((id, work @ Work::Call { .. })) if !waits => {
                d.streams.entry(id).and_modify(|s| s.busy = true);
                std::thread::spawn(move || {
                    let called = lock().and_then(|guard| call_host(guard, id, &work));
                    called.into_iter().for_each(|mut guard| guard.finish(id));
                    RETURNED.notify_all();
                });
            }
            Some((id, work @ Work::Call { .. })) => {
                guard = call_host(guard, id, &work)?;
                guard.finish(id);
            }
            Some((id, Work::Graph(exec))) => {
                guard = super::graph::run(guard, id, &exec)?;
                guard.finish(id);
            }
            Some((id, work)) => {
                d.execute(id, &work);
                d.finish(id);
            }
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

/// Called after work was queued: runs none, some or all of it, as the configuration and the seed say.
pub(super) fn after_enqueue(mut guard: Guard) -> Result<(), u32> {
    let d = &mut *guard;
    let waiting: usize = d.streams.values().map(|s| s.queue.len()).sum();
    if !d.gpu().config().late {
        drop(run_until(guard, |d| d.idle() || d.waits_for_values())?);
    } else if waiting > QUEUE_LIMIT || d.chance(8) {
        drop(run_some(guard, 1 + waiting as u64 / 2)?);
    }
    Ok(())
}

/// Runs up to `n` pieces of work.
pub(super) fn run_some(mut guard: Guard, n: u64) -> Result<Guard, u32> {
    for _ in 0..n {
        let d = &*guard;
        if d.ready().is_empty() {
            break;
        }
        let before: u64 = d.streams.values().map(|s| s.finished).sum();
        // A destroyed stream takes its count with it, so a piece may have run though the sum is as before.
        let ran = move |d: &Driver| d.streams.values().map(|s| s.finished).sum::<u64>() != before;
        guard = run_work(guard, |d| ran(d) || d.ready().is_empty(), false)?;
    }
    Ok(guard)
}

pub(super) fn memory_code(e: MemoryError) -> u32 {
    match e {
        MemoryError::OutOfMemory => OUT_OF_MEMORY,
        _ => INVALID_VALUE,
    }
}
