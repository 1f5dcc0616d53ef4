//! The pool of a CUDA device: its upstream and timeline, and the one instance per device.

use super::adaptor::Limit;
use super::pinned_pool::PinnedPool;
use super::pool::MemoryPool;
use super::upstream::{Timeline, Upstream};
use crate::cuda::{CudaDevice, Event, Stream, check, ensure_alive};
use crate::mutation::{Wait, left_out};
use crate::{Error, Result};
use cust::sys;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// A stream of a CUDA device, compared by identity.
#[derive(Clone, Debug)]
pub struct StreamHandle(Arc<Stream>);

impl StreamHandle {
    /// The stream that a device handle queues its work on.
    pub fn new(device: &CudaDevice) -> Self {
        Self(Arc::clone(device.stream_handle()))
    }
}

impl PartialEq for StreamHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The streams and events of a CUDA device.
#[derive(Debug)]
pub struct CudaTimeline(CudaDevice);

impl CudaTimeline {
    /// The streams and events of this device.
    pub fn new(device: &CudaDevice) -> Self {
        Self(device.clone())
    }
}

impl Timeline for CudaTimeline {
    type Stream = StreamHandle;
    type Event = Event;

    fn alive(&self) -> Result<()> {
        ensure_alive("the memory pool")
    }

    fn event(&self) -> Result<Event> {
        self.0.bind()?;
        Event::untimed()
    }

    fn record(&self, event: &Event, stream: &StreamHandle) -> Result<bool> {
        self.0.bind()?;
        stream.0.outside_capture(|| event.record_in(None, &stream.0)).map(|done| done.is_some())
    }

    fn is_done(&self, event: &Event) -> Result<bool> {
        self.0.bind()?;
        event.is_done()
    }

    fn wait(&self, stream: &StreamHandle, event: &Event) -> Result<bool> {
        self.0.bind()?;
        stream.0.outside_capture(|| stream.0.wait_in(None, event)).map(|done| done.is_some())
    }

    fn is_abandoned(&self, stream: &StreamHandle) -> bool {
        Arc::strong_count(&stream.0) == 1
    }
}

/// Memory by `cuMemAlloc` and `cuMemFree`, for devices and drivers without memory pools.
#[derive(Debug)]
pub struct PlainMemory(CudaDevice);

impl PlainMemory {
    /// The memory of this device.
    pub fn new(device: &CudaDevice) -> Self {
        Self(device.clone())
    }
}

impl Upstream<StreamHandle> for PlainMemory {
    fn allocate(&self, bytes: usize, _stream: &StreamHandle) -> Result<u64> {
        self.0.bind()?;
        let mut address = 0;
        // SAFETY: the context is current; `address` is written before it is used.
        let result = check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) });
        out_of_memory(&self.0, bytes, result).map(|()| address)
    }

    unsafe fn free(&self, address: u64, _bytes: usize, stream: &StreamHandle) -> Result<()> {
        self.0.bind()?;
        if !left_out(Wait::PlainFree) {
            stream.0.synchronize()?; // the call below frees at once, even while work is running
        }
        // SAFETY: the caller owns the block and has ordered its uses before the stream that was just waited for. The driver
        // answers an address that it has not allocated with an error.
        check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
    }
}

/// A memory pool of the driver. Its release threshold is above all memory, so that it returns memory when trimmed and not at
/// every synchronisation.
#[derive(Debug)]
pub struct DriverPool {
    device: CudaDevice,
    pool: sys::CUmemoryPool,
    /// Where memory was last freed: the driver keeps it until the stream gets there.
    freed_on: Mutex<Option<StreamHandle>>,
}

// SAFETY: the driver API lets any thread use a pool, and the handle owns no memory of this process.
unsafe impl Send for DriverPool {}
// SAFETY: the driver serialises calls on one pool, and `freed_on` has a lock.
unsafe impl Sync for DriverPool {}

impl DriverPool {
    /// A new pool.
    ///
    /// # Errors
    /// A driver error; [`Error::Unsupported`] if the device has no memory pools.
    pub fn new(device: &CudaDevice) -> Result<Self> {
        if !device.properties().memory_pools {
            return Err(Error::Unsupported {
                op: "DriverPool",
                argument: "device",
                value: device.properties().name.clone(),
                reason: "the device or its driver has no memory pools".into(),
            });
        }
        device.bind()?;
        let ordinal = device.properties().ordinal as i32;
        let properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: ordinal,
            },
            win32SecurityAttributes: ptr::null_mut(),
            reserved: [0; 64],
        };
        let mut pool = ptr::null_mut();
        // SAFETY: the properties outlive the call; `pool` is written before it is used.
        check("cuMemPoolCreate", unsafe { sys::cuMemPoolCreate(&mut pool, &properties) })?;
        let this = Self { device: device.clone(), pool, freed_on: Mutex::new(None) };
        let mut threshold = u64::MAX;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value = ptr::from_mut(&mut threshold).cast::<c_void>();
        // SAFETY: the attribute is a u64, which `value` points to.
        let result = unsafe { sys::cuMemPoolSetAttribute(pool, attribute, value) };
        check("cuMemPoolSetAttribute", result)?;
        Ok(this)
    }
}

impl DriverPool {
    /// Lets kernels of another device reach the pool's memory; false if the driver refuses.
    fn let_reach(&self, reader: &CudaDevice) -> Result<bool> {
        self.device.bind()?;
        let location = sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: reader.properties().ordinal as i32,
        };
        let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location, flags };
        // SAFETY: the pool lives as long as `self`; the count is 1, and `access` is one description that outlives the call.
        match check("cuMemPoolSetAccess", unsafe { sys::cuMemPoolSetAccess(self.pool, &access, 1) }) {
            Ok(()) => Ok(true),
            Err(lost @ Error::DeviceLost { .. }) => Err(lost),
            Err(_) => Ok(false),
        }
    }
}

impl Upstream<StreamHandle> for DriverPool {
    fn allocate(&self, bytes: usize, stream: &StreamHandle) -> Result<u64> {
        self.device.bind()?;
        let mut address = 0;
        let result = stream.0.outside_capture(|| {
            // SAFETY: pool and stream are alive; `address` is written before it is used.
            let result =
                unsafe { sys::cuMemAllocFromPoolAsync(&mut address, bytes, self.pool, stream.0.raw()) };
            check("cuMemAllocFromPoolAsync", result)
        });
        // In a capture the call would become part of the graph and allocate nothing now.
        let result = result.and_then(|done| {
            done.ok_or_else(|| Error::Unsupported {
                op: "allocate",
                argument: "stream",
                value: "being captured into a graph".into(),
                reason: "the capture began on another thread meanwhile".into(),
            })
        });
        out_of_memory(&self.device, bytes, result).map(|()| address)
    }

    unsafe fn free(&self, address: u64, _bytes: usize, stream: &StreamHandle) -> Result<()> {
        self.device.bind()?;
        // SAFETY: the caller owns the block and has ordered its uses before the free on the stream. The driver answers an
        // address that it has not allocated with an error.
        check("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(address, stream.0.raw()) })?;
        *self.freed_on.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream.clone());
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        self.device.bind()?;
        let freed_on = self.freed_on.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stream) = freed_on {
            // otherwise what is freed stays taken beside what is allocated next, beyond a limit
            stream.0.outside_capture(|| stream.0.synchronize())?;
        }
        // SAFETY: the pool is alive until `self` is dropped.
        check("cuMemPoolTrimTo", unsafe { sys::cuMemPoolTrimTo(self.pool, 0) })
    }
}

impl Drop for DriverPool {
    fn drop(&mut self) {
        if self.device.bind().is_ok() {
            // SAFETY: created by `new` and destroyed once. The driver keeps memory that is still in use. An error can't be
            // reported from a drop.
            let _ = check("cuMemPoolDestroy", unsafe { sys::cuMemPoolDestroy(self.pool) });
        }
    }
}

/// Distinguishes out of memory from other errors.
pub(super) fn out_of_memory(device: &CudaDevice, requested: usize, result: Result<()>) -> Result<()> {
    match result {
        Err(Error::Driver { code: 2, .. }) => {
            let (free, total) = device.memory_info()?;
            Err(Error::OutOfMemory { device: device.properties().name.clone(), requested, free, total })
        }
        other => other,
    }
}

/// Memory of the device's pool for a graph. It may be used without an event, because the host has waited for its last use.
struct Settled {
    pool: Arc<DevicePool>,
    service: CudaDevice,
}

impl Upstream<StreamHandle> for Settled {
    fn allocate(&self, bytes: usize, _stream: &StreamHandle) -> Result<u64> {
        let service = StreamHandle::new(&self.service);
        let address = MemoryPool::allocate(&self.pool, bytes, &service)?;
        // A captured stream can't wait for an event outside the graph, so the host waits for the memory's last uses here.
        if !left_out(Wait::GraphMemory)
            && let Err(error) = self.service.synchronize()
        {
            // SAFETY: allocated above, and no work that uses it was queued.
            unsafe { MemoryPool::free(&self.pool, address, bytes) }?;
            return Err(error);
        }
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: usize, stream: &StreamHandle) -> Result<()> {
        // SAFETY: the caller owns the block, which `allocate` took from this pool.
        unsafe { Upstream::free(&*self.pool, address, bytes, stream) }
    }
}

/// The pool of a CUDA device.
pub type DevicePool = MemoryPool<CudaTimeline, Box<dyn Upstream<StreamHandle>>>;

struct Entry {
    pool: Arc<DevicePool>,
    limit: Arc<Limit<Box<dyn Upstream<StreamHandle>>>>,
    /// A stream for work that no other work waits for.
    service: CudaDevice,
    /// Where the pool's segments come from, unless from `cuMemAlloc`.
    driver_pool: Option<Arc<DriverPool>>,
    pinned: Arc<PinnedPool>,
}

/// By ordinal. Never dropped, so that no driver call is made when the process ends.
static POOLS: Mutex<Vec<Option<Arc<Entry>>>> = Mutex::new(Vec::new());

thread_local! {
    /// Those of the plan that this thread makes, by ordinal.
    static PLANNED: RefCell<BTreeMap<u32, Arc<Entry>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Ends the pools of a plan.
pub(crate) fn forget_planned() {
    for entry in PLANNED.take().into_values() {
        entry.pinned.free_all();
    }
}

fn entry(device: &CudaDevice) -> Result<Arc<Entry>> {
    if device.is_planned() {
        let ordinal = device.properties().ordinal;
        if let Some(entry) = PLANNED.with_borrow(|pools| pools.get(&ordinal).cloned()) {
            return Ok(entry);
        }
        let entry = Arc::new(new_entry(device)?);
        PLANNED.with_borrow_mut(|pools| pools.insert(ordinal, Arc::clone(&entry)));
        return Ok(entry);
    }
    let index = device.properties().ordinal as usize;
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Some(entry)) = pools.get(index) {
        return Ok(Arc::clone(entry));
    }
    let entry = Arc::new(new_entry(device)?);
    if pools.len() <= index {
        pools.resize(index + 1, None);
    }
    pools[index] = Some(Arc::clone(&entry));
    Ok(entry)
}

fn new_entry(device: &CudaDevice) -> Result<Entry> {
    let driver_pool = match DriverPool::new(device) {
        Ok(pool) => Some(Arc::new(pool)),
        Err(error @ Error::DeviceLost { .. }) => return Err(error),
        Err(_) => None,
    };
    let upstream: Box<dyn Upstream<StreamHandle>> = match &driver_pool {
        Some(pool) => Box::new(Arc::clone(pool)),
        None => Box::new(PlainMemory::new(device)),
    };
    let service = device.with_new_stream()?;
    let limit = Arc::new(Limit::new(upstream, usize::MAX));
    let stream = StreamHandle::new(&service);
    let pool = MemoryPool::new(CudaTimeline::new(&service), Box::new(Arc::clone(&limit)) as Box<_>, stream);
    let pinned = Arc::new(PinnedPool::new(&service));
    Ok(Entry { pool: Arc::new(pool), limit, service, driver_pool, pinned })
}

/// The pool of all memory of this device, shared by all its handles and streams.
///
/// # Errors
/// A driver error when the pool is created.
pub fn pool(device: &CudaDevice) -> Result<Arc<DevicePool>> {
    entry(device).map(|entry| Arc::clone(&entry.pool))
}

/// The device's pinned host memory.
pub(super) fn pinned(device: &CudaDevice) -> Result<Arc<PinnedPool>> {
    entry(device).map(|entry| Arc::clone(&entry.pinned))
}

/// The name of the source of the pool's segments.
///
/// # Errors
/// As [`pool`].
pub fn source(device: &CudaDevice) -> Result<&'static str> {
    let name = |entry: Arc<Entry>| match entry.driver_pool {
        Some(_) => "the driver's memory pool",
        None => "cuMemAlloc",
    };
    entry(device).map(name)
}

/// Lets kernels of `reader`, which has peer access to the device, reach what its pool gives out; false if the driver refuses.
pub(super) fn let_reach(device: &CudaDevice, reader: &CudaDevice) -> Result<bool> {
    let entry = entry(device)?;
    entry.driver_pool.as_ref().map_or(Ok(true), |pool| pool.let_reach(reader))
}

/// Waits for the work queued on the handle's stream. Memory that it has freed is then free for all streams, so that a graph that is
/// captured next takes no new memory for what fits there, however fast the device is.
///
/// # Errors
/// As [`pool`], and [`Error::DeviceLost`].
pub fn settle(device: &CudaDevice) -> Result<()> {
    device.synchronize()?;
    pool(device)?.settle()
}

/// Limits the bytes that the device's pool reserves from now on.
///
/// # Errors
/// As [`pool`].
pub fn set_limit(device: &CudaDevice, bytes: usize) -> Result<()> {
    entry(device).map(|entry| entry.limit.set_limit(bytes))
}

/// Bytes that can still be allocated, not counting fragmentation: what the pool may still take from the device, and its
/// unused memory.
///
/// # Errors
/// As [`pool`], and a driver error.
pub fn available(device: &CudaDevice) -> Result<usize> {
    let (entry, (free, _)) = (entry(device)?, device.memory_info()?);
    let (limit, books) = (&entry.limit, entry.pool.statistics());
    let more = free.min(limit.limit().saturating_sub(limit.used()));
    Ok(more + books.reserved.saturating_sub(books.live))
}

/// The pool that serves the handle's stream now: the device's. While the stream is being captured, it is a pool of the
/// graph; its memory is not reused until the graph and all tensors in it are dropped.
pub(super) fn pool_for(device: &CudaDevice) -> Result<Arc<DevicePool>> {
    let entry = entry(device)?;
    if !device.stream().is_capturing() {
        return Ok(Arc::clone(&entry.pool));
    }
    if let Some(own) = device.stream().kept_of::<DevicePool>() {
        return Ok(own);
    }
    let upstream = Settled { pool: Arc::clone(&entry.pool), service: entry.service.clone() };
    let timeline = CudaTimeline::new(&entry.service);
    let own: Arc<DevicePool> =
        Arc::new(MemoryPool::new(timeline, Box::new(upstream) as Box<_>, StreamHandle::new(device)));
    let kept: crate::cuda::Kept = own.clone();
    device.stream().keep(&kept);
    Ok(own)
}
