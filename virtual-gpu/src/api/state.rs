//! The state of the devices under the driver API: handles, streams as queues, and what belongs to each device.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ffi::{CString, c_uint};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use super::clock::{Clock, Order};
use super::codes::*;
use super::context_limits::ContextLimits;
use super::descriptors::{TextureDescriptor, ViewDescriptor};
use super::graph_allocation::{GraphAllocation, GraphMemory};
use super::resource::Resource;
use super::stream_id::{Mark, NULL_IS_PER_THREAD, StreamId, is_null, is_per_thread, own_stream};
use super::work::{Exec, Graph, Work};
use crate::arch::Arch;
use crate::config::Config;
use crate::exec::{Gpu, LoadedModule};
use crate::finding::{self, Finding};
use crate::image::{Format, Image};
use crate::memory::{Kind, WRITTEN, device_of};
use crate::ptx::Module;
use crate::texture::Object as Seen;

pub(super) struct Queued {
    pub work: Work,
    pub after: Vec<Mark>,
    /// The host's clock when it queued this.
    pub host: Arc<Clock>,
}

#[derive(Default)]
pub(super) struct Stream {
    pub device: usize,
    pub flags: u32,
    pub priority: i32,
    pub queue: VecDeque<Queued>,
    /// Work ever queued and finished.
    pub queued: u64,
    pub finished: u64,
    /// A host function of this stream is being called.
    pub busy: bool,
    pub destroyed: bool,
    pub capture: Option<u64>,
    /// Nodes that the next captured work follows.
    pub capture_tail: Vec<usize>,
    /// Model time at which its last work ended, in seconds.
    pub time: f64,
    /// Work of other streams that the next work must follow.
    pub pending_waits: Vec<Mark>,
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
    pub max_dynamic_shared: u32,
}

/// Code that belongs to no context; each device loads it at the first use there.
pub(super) struct Library {
    pub module: Arc<Module>,
    /// The modules that it was loaded as, by device.
    pub loaded: BTreeMap<usize, u64>,
}

/// A CUDA array.
pub(super) struct Array {
    pub device: usize,
    pub image: Image,
    /// As it was made with.
    pub flags: u32,
    pub for_surfaces: bool,
    pub for_gathers: bool,
    pub is_cubemap: bool,
}

/// A texture object, or a surface object, which has no sampling.
pub(super) struct Object {
    pub device: usize,
    pub resource: Resource,
    /// As it was made with.
    pub sampling: Option<(TextureDescriptor, Option<ViewDescriptor>)>,
    pub seen: Seen,
}

/// A texture or surface reference of a module.
pub(super) struct Reference {
    pub module: u64,
    pub is_surface: bool,
    /// Of linear memory; an array has its own.
    pub format: Option<Format>,
    pub sampling: TextureDescriptor,
    pub bound: Option<(Resource, Image)>,
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
    pub gpu: Gpu,
    pub graph_memory: GraphMemory,
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
    pub time: f64,
    pub last_null: u64,
    /// Work that all streams made from now on follow.
    pub waits: Vec<Mark>,
}

/// A context.
#[derive(Clone, Copy, Default)]
pub(super) struct Context {
    pub device: usize,
    pub flags: u32,
    /// Uses by `cuCtxAttach`.
    pub uses: u32,
    pub limits: ContextLimits,
}

/// A capture in progress.
pub(super) struct Capture {
    pub origin: StreamId,
    /// `CU_STREAM_CAPTURE_MODE_RELAXED`: potentially unsafe API calls are allowed during the capture.
    pub relaxed: bool,
    pub joined: Vec<StreamId>,
    /// The graph that it adds to.
    pub graph: u64,
    /// Whether that graph was there before.
    pub appends: bool,
    pub nodes: Vec<usize>,
    /// What a caller was last told that its stream's next work follows.
    pub told: Vec<u64>,
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
    /// By address.
    pub graph_allocations: BTreeMap<u64, GraphAllocation>,
    /// Kernel names as C strings, for as long as the driver lives.
    pub names: HashMap<String, CString>,
    /// Managed allocations: page-locked host memory.
    pub managed: HashSet<u64>,
    /// Addresses whose stream-ordered free is queued.
    pub freeing: HashSet<u64>,
    pub contexts: HashMap<u64, Context>,
    pub libraries: HashMap<u64, Library>,
    pub kernels: HashMap<u64, LibraryKernel>,
    pub arrays: HashMap<u64, Array>,
    pub objects: HashMap<u64, Object>,
    /// Those of modules that were asked for, by the addresses of their variables, which are their handles.
    pub references: HashMap<u64, Reference>,
    pub next_handle: u64,
    pub random: u64,
    /// Whether the running work is part of a graph.
    pub in_graph: bool,
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
            graph_memory: GraphMemory::default(),
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

    /// The architecture of all devices.
    pub fn arch(&self) -> Arch {
        self.devices[0].gpu.config().card.arch
    }

    /// Shared memory that a kernel may opt in to.
    pub fn most_shared(&self) -> u32 {
        self.arch().multiprocessor().shared_bytes_per_block
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
        let own = || own_stream(self.current);
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

    /// A new stream of a device; gives its handle.
    pub fn add_stream(&mut self, device: usize, flags: u32, priority: i32) -> StreamId {
        let id = self.handle();
        let pending_waits = self.devices[device].waits.clone();
        self.streams.insert(id, Stream { pending_waits, ..Stream::new(device, flags, priority) });
        id
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

    /// Whether an address is page-locked host memory.
    pub fn pinned(&self, address: u64, bytes: u64) -> bool {
        device_of(address).is_none()
            && self.holder(address).memory.locate(address, bytes).is_ok_and(|a| a.kind != Kind::Device)
    }

    pub fn array(&self, handle: cust_raw::CUarray) -> Result<&Array, u32> {
        self.arrays.get(&(handle as u64)).ok_or(INVALID_HANDLE)
    }

    /// The array of a texture or surface, if it is of one that is not destroyed.
    pub fn array_of_resource(&self, resource: Resource) -> Option<&Array> {
        match resource {
            Resource::Array(array) => self.arrays.get(&array),
            _ => None,
        }
    }

    pub fn module(&self, id: u64) -> Result<&OnDevice, u32> {
        self.modules.get(&id).ok_or(INVALID_HANDLE)
    }
}

pub(super) static DRIVER: OnceLock<Mutex<Driver>> = OnceLock::new();

pub(super) type Guard = MutexGuard<'static, Driver>;

/// The driver, if it is configured.
pub(super) fn lock() -> Result<Guard, u32> {
    let driver = DRIVER.get().ok_or(NOT_INITIALIZED)?;
    Ok(driver.lock().unwrap_or_else(|e| e.into_inner()))
}
