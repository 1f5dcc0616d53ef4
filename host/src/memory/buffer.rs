//! A block of device memory, allocated and freed in the order of a stream.

use super::adaptor::{Entry, Recorder};
use super::device::{DevicePool, StreamHandle, pool_for};
use super::pinned_pool::CHUNK;
use crate::cuda::{CudaDevice, DevicePtr, DevicePtrMut, Kept, check, conceal, expose};
use crate::mutation::{Wait, left_out};
use crate::parallel::Write;
use crate::{Element, Error, Result};
use bytemuck::Pod;
use cust::sys;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a chunk of [`DeviceBuffer::upload_by`]: pieces for many threads.
const WRITTEN: usize = 4 * CHUNK;

/// Device memory that belongs to one stream: work queued on it may use the memory from the allocation on, and reuse it after
/// the drop. Zero bytes have no memory and address 0.
///
/// It comes from the device's [pool](super::pool()) and returns there. Other streams get the memory only after the work that
/// this stream had queued at the drop, and after that of every stream recorded by [`used_on`](Self::used_on).
#[derive(Debug)]
pub struct DeviceBuffer {
    device: CudaDevice,
    memory: Arc<Allocation>,
}

/// The memory itself. A graph that uses it also keeps it alive.
struct Allocation {
    source: Source,
    address: u64,
    bytes: usize,
    /// Whether [`DeviceBuffer::address`] has told the address.
    is_exposed: AtomicBool,
}

/// Where the memory is allocated and freed.
enum Source {
    Pool {
        pool: Arc<DevicePool>,
        stream: StreamHandle,
    },
    /// Memory of another device's buffer, which a kernel of this one reads.
    Peer(DeviceBuffer),
    /// The memory is valid until this is dropped.
    Foreign(#[expect(dead_code, reason = "held for its drop")] Box<dyn Any + Send + Sync>),
}

thread_local! {
    static REFUSE: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    static TRACE: RefCell<Option<Recorder<StreamHandle>>> = const { RefCell::new(None) };
}

/// Runs `work`. Returns its result and a trace of what this thread allocated and freed in it, for
/// [replay](super::adaptor::replay).
pub fn trace<R>(work: impl FnOnce() -> R) -> (R, Vec<Entry>) {
    TRACE.with(|trace| *trace.borrow_mut() = Some(Recorder::new()));
    let result = work();
    let recorder = TRACE.with(|trace| trace.borrow_mut().take());
    (result, recorder.map(|recorder| recorder.entries).unwrap_or_default())
}

/// Runs `work` and fails this thread's allocation number `which` in it, from 1 on, as if the device were out of memory.
/// Returns also the number of allocations. For tests that everything is still correct after a failed allocation.
pub fn refusing<R>(which: u64, work: impl FnOnce() -> R) -> (R, u64) {
    REFUSE.set(Some((0, which)));
    let result = work();
    let asked = REFUSE.take().map_or(0, |(asked, _)| asked);
    (result, asked)
}

/// The error of an allocation that [`refusing`] fails.
pub(super) fn refused(bytes: usize) -> Result<()> {
    let Some((asked, which)) = REFUSE.get() else { return Ok(()) };
    REFUSE.set(Some((asked + 1, which)));
    match asked + 1 == which {
        true => Err(Error::OutOfMemory { device: "a test".into(), requested: bytes, free: 0, total: 0 }),
        false => Ok(()),
    }
}

fn traced(note: impl FnOnce(&mut Recorder<StreamHandle>)) {
    // The trace of a thread that is ending is already destroyed.
    let _ = TRACE.try_with(|trace| trace.borrow_mut().as_mut().map(note));
}

impl DeviceBuffer {
    /// Memory with undefined contents, 256-byte aligned.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if every step of the [pool](super::MemoryPool) has failed, or another driver error.
    #[track_caller]
    pub fn uninitialized(device: &CudaDevice, bytes: usize) -> Result<Self> {
        device.bind()?;
        let _lock = device.stream().lock_to_enqueue();
        let (pool, stream) = (pool_for(device)?, StreamHandle::new(device));
        if bytes > 0 {
            refused(bytes)?;
        }
        let address = pool.allocate(bytes, &stream)?;
        if bytes > 0 {
            traced(|trace| trace.allocated(address, bytes, &stream));
        }
        let source = Source::Pool { pool, stream };
        Ok(Self { device: device.clone(), memory: Arc::new(Allocation::new(source, address, bytes)) })
    }

    /// Memory of another library. In the order of the device's stream it is valid until `owner` is dropped. That happens
    /// with the last buffer or graph that uses it; work that was queued before may still be running then.
    ///
    /// # Safety
    /// `bytes` bytes from `address` on are memory of this device, valid as stated above. Nobody else writes them while work
    /// here reads them, or accesses them while work here writes them.
    pub(crate) unsafe fn foreign(
        device: &CudaDevice,
        address: u64,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let memory = Allocation::new(Source::Foreign(owner), address, bytes);
        Self { device: device.clone(), memory: Arc::new(memory) }
    }

    /// The same memory as kernels of another device address it.
    ///
    /// # Safety
    /// [`reach`](super::link::reach) was true for them. A read there follows the work that wrote it, and the work that
    /// writes or frees it follows every read there.
    pub(crate) unsafe fn seen_from(&self, device: &CudaDevice) -> Self {
        let (address, bytes) = (self.memory.address, self.memory.bytes);
        let of = Self { device: self.device.clone(), memory: Arc::clone(&self.memory) };
        let memory = Allocation::new(Source::Peer(of), address, bytes);
        Self { device: device.clone(), memory: Arc::new(memory) }
    }

    /// Records that work queued so far on another stream of the device uses the memory, so that it is not reused before that
    /// work is done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub fn used_on(&self, device: &CudaDevice) -> Result<()> {
        match &self.memory.source {
            _ if self.memory.bytes == 0 => Ok(()),
            Source::Pool { pool, .. } => pool.record_use(self.memory.address, &StreamHandle::new(device)),
            // The owner is freed in the order of the buffer's stream only, so that stream waits for the other one.
            Source::Foreign(_) | Source::Peer(_) => {
                let used = device.event()?;
                used.record(device.stream())?;
                self.device.stream().wait(&used)
            }
        }
    }

    /// The same memory for work on another stream of the device; it is free after the work of both. The caller orders writes
    /// on one stream and reads on the other.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub(super) fn on(&self, device: &CudaDevice) -> Result<Self> {
        self.used_on(device)?;
        Ok(Self { device: device.clone(), memory: Arc::clone(&self.memory) })
    }

    /// The device and stream it belongs to.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The device address of its first byte. A graph that captures a launch with this address, or one inside the buffer, keeps the
    /// memory.
    pub fn address(&self) -> u64 {
        if self.memory.bytes > 0 && !self.memory.is_exposed.swap(true, Ordering::Relaxed) {
            let memory: Kept = self.memory.clone();
            let start = self.memory.address;
            expose(start..start + self.memory.bytes as u64, &memory, self.device.stream());
        }
        self.address_to_queue()
    }

    /// Its elements from `range.start` to `range.end`, for a kernel of your own that reads them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the range is not inside the buffer or not aligned for `T`.
    pub fn device_ptr<T: Pod>(&self, range: Range<usize>) -> Result<DevicePtr<'_, T>> {
        let address = self.address_of::<T>(range)?;
        // SAFETY: the elements are inside the buffer, which is borrowed; any bytes are a `T`. Its memory is reused after the work
        // that its stream has, and a launch on another one is refused.
        Ok(unsafe { DevicePtr::from_address(address) })
    }

    /// As [`device_ptr`](Self::device_ptr), for a kernel that writes them.
    ///
    /// # Errors
    /// As there.
    pub fn device_ptr_mut<T: Pod>(&mut self, range: Range<usize>) -> Result<DevicePtrMut<'_, T>> {
        let address = self.address_of::<T>(range)?;
        // SAFETY: the elements are inside the buffer, which is borrowed exclusively; any bytes are a `T`. Its memory is reused after the
        // work that its stream has, and a launch on another one is refused.
        Ok(unsafe { DevicePtrMut::from_address(address) })
    }

    fn address_of<T>(&self, range: Range<usize>) -> Result<u64> {
        let end = range.end.checked_mul(size_of::<T>()).filter(|&end| end <= self.bytes());
        let offset = end.filter(|_| range.start <= range.end).map(|_| range.start * size_of::<T>());
        let address = offset.map(|offset| self.address() + offset as u64);
        address.filter(|address| address % align_of::<T>() as u64 == 0).ok_or_else(|| Error::Unsupported {
            op: "device_ptr",
            argument: "range",
            value: format!("{range:?} of {} bytes each", size_of::<T>()),
            reason: format!("the buffer has {} bytes", self.bytes()),
        })
    }

    /// The device address of its first byte, for work that is queued before this buffer is dropped. While the stream is being
    /// captured, this call adds the memory to the objects that the graph keeps alive.
    pub(crate) fn address_to_queue(&self) -> u64 {
        let stream = self.device.stream();
        if let Source::Peer(of) = &self.memory.source {
            return of.address_to_queue(); // a graph over both devices keeps what it keeps of the other's
        }
        if stream.is_capturing() {
            // memory that the capture itself allocated stays with the graph in any case, and may be reused within it
            let own = stream.kept_of::<DevicePool>();
            let is_own = |own| match &self.memory.source {
                Source::Pool { pool, .. } => Arc::ptr_eq(&own, pool),
                Source::Foreign(_) | Source::Peer(_) => false,
            };
            if !own.is_some_and(is_own) {
                let memory: Kept = self.memory.clone();
                stream.keep(&memory);
            }
        }
        self.memory.address
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.memory.bytes
    }

    /// Copies host bytes to `offset` through pinned memory. The source may be changed after the return; the last chunks may
    /// still be in flight on the stream.
    ///
    /// # Errors
    /// A driver error, or [`Error::Unsupported`] if the range exceeds the buffer.
    pub fn upload(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        drop(self.device.stream().lock_to_copy("upload")?);
        self.range("upload", offset, source.len())?;
        if source.is_empty() || self.device.is_planned() {
            return Ok(());
        }
        self.upload_staged(offset, source.len(), CHUNK, &|at, piece| {
            piece.copy_from_slice(&source[at..at + piece.len()]);
            Ok(())
        })
    }

    /// As [`upload`](Self::upload), with the `bytes` bytes that `write` writes into pinned memory itself: in pieces, on several threads,
    /// each called with the number of its first byte. Pieces begin at multiples of 16.
    ///
    /// # Errors
    /// As there, and the first error of a piece.
    pub(crate) fn upload_by(&mut self, bytes: usize, write: &Write<Error>) -> Result<()> {
        drop(self.device.stream().lock_to_copy("upload")?);
        self.range("upload", 0, bytes)?;
        if bytes == 0 || self.device.is_planned() {
            return Ok(());
        }
        self.upload_staged(0, bytes, WRITTEN, write)
    }

    /// Waits for all work queued on the stream, then copies from `offset` to host memory.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] if a kernel on the stream faulted, another driver error, or [`Error::Unsupported`] if the range
    /// exceeds the buffer.
    pub fn download(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        drop(self.device.stream().lock_to_copy("download")?);
        self.range("download", offset, target.len())?;
        if self.device.is_planned() {
            target.fill(0);
        }
        if target.is_empty() || self.device.is_planned() {
            return self.device.synchronize();
        }
        self.download_staged(offset, target)?;
        self.device.synchronize() // the bytes are valid only after a checked wait for the stream
    }

    /// Queues a copy of `bytes` bytes of another buffer of this device on this buffer's stream. If the source is on another
    /// stream, the copy waits for the work queued there; later work of that stream, and any reuse of the source's memory,
    /// wait for the copy.
    ///
    /// # Errors
    /// A driver error, or [`Error::Unsupported`] if a range exceeds its buffer or the source is on another device.
    pub fn copy_from(&mut self, offset: usize, source: &DeviceBuffer, at: usize, bytes: usize) -> Result<()> {
        let (from, to) = (source.device(), self.device.clone());
        if from.properties().ordinal != to.properties().ordinal {
            let (argument, value) = ("source", format!("on {from:?}"));
            let reason = format!("the buffer is on {to:?}; `copy_across` copies between devices");
            return Err(Error::Unsupported { op: "copy", argument, value, reason });
        }
        if bytes == 0 || from.same_stream(&to) {
            return self.queue_copy(offset, source, at, bytes);
        }
        let (written, copied) = (from.event()?, to.event()?);
        written.record(from.stream())?;
        if !left_out(Wait::CopyAfterWriter) {
            to.stream().wait(&written)?;
        }
        self.queue_copy(offset, source, at, bytes)?;
        if left_out(Wait::WriterAfterCopy) {
            return Ok(());
        }
        let ordered = copied.record(to.stream()).and_then(|()| from.stream().wait(&copied));
        if ordered.is_err() {
            to.stream().synchronize()?; // the source may be freed after the return
        }
        ordered
    }

    /// Queues only the copy, without ordering it against work of other streams.
    fn queue_copy(&mut self, offset: usize, source: &DeviceBuffer, at: usize, bytes: usize) -> Result<()> {
        let to = self.range("copy", offset, bytes)?;
        let from = source.range("copy", at, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        let _lock = self.device.stream().lock_to_enqueue();
        // SAFETY: both ranges are inside their buffers (checked above), and the buffers are different allocations. This
        // buffer is freed after the copy in its stream's order; the caller orders the source's free after it too.
        let result = unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, self.device.stream().raw()) };
        check("cuMemcpyDtoDAsync", result)
    }

    /// Copies the start of this buffer from another one of any stream or device, ordered as by
    /// [`copy_from`](Self::copy_from). From another device it goes through host memory and is waited for.
    ///
    /// # Errors
    /// A driver error, or [`Error::Unsupported`] if a range exceeds its buffer.
    pub fn copy_across(&mut self, source: &DeviceBuffer, at: usize, bytes: usize) -> Result<()> {
        if source.device().properties().ordinal == self.device.properties().ordinal {
            return self.copy_from(0, source, at, bytes);
        }
        if self.device.is_planned() {
            return Ok(());
        }
        let mut staged = vec![0u8; bytes];
        source.download(at, &mut staged)?;
        self.upload(0, &staged)
    }

    /// Queues a fill of every byte.
    ///
    /// # Errors
    /// A driver error.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        self.queue_fill("cuMemsetD8Async", |address, bytes, stream| {
            // SAFETY: `queue_fill` passes the whole buffer and a live stream of its device.
            unsafe { sys::cuMemsetD8Async(address, byte, bytes, stream) }
        })
    }

    /// Queues a fill of every element. The buffer's size is a multiple of the element's.
    ///
    /// # Errors
    /// A driver error.
    pub(crate) fn fill_elements<T: Element>(&mut self, value: T) -> Result<()> {
        match *bytemuck::bytes_of(&value) {
            [a, b] => self.queue_fill("cuMemsetD16Async", |address, bytes, stream| {
                // SAFETY: `queue_fill` passes the whole buffer, which the pool has aligned to 256 bytes, and a live stream of its device.
                unsafe { sys::cuMemsetD16Async(address, u16::from_ne_bytes([a, b]), bytes / 2, stream) }
            }),
            [a, b, c, d] => self.queue_fill("cuMemsetD32Async", |address, bytes, stream| {
                // SAFETY: `queue_fill` passes the whole buffer, which the pool has aligned to 256 bytes, and a live stream of its device.
                unsafe { sys::cuMemsetD32Async(address, u32::from_ne_bytes([a, b, c, d]), bytes / 4, stream) }
            }),
            _ => unreachable!("elements have two or four bytes"),
        }
    }

    /// Calls `fill` with the buffer's address, bytes and stream, unless it is empty.
    fn queue_fill(
        &mut self,
        call: &'static str,
        fill: impl FnOnce(u64, usize, sys::CUstream) -> sys::CUresult,
    ) -> Result<()> {
        if self.memory.bytes == 0 {
            return Ok(());
        }
        self.device.bind()?;
        let _lock = self.device.stream().lock_to_enqueue();
        check(call, fill(self.address_to_queue(), self.memory.bytes, self.device.stream().raw()))
    }

    pub(super) fn range(&self, op: &'static str, offset: usize, bytes: usize) -> Result<u64> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.memory.bytes => Ok(self.address_to_queue() + offset as u64),
            _ => Err(Error::Unsupported {
                op,
                argument: "range",
                value: format!("{bytes} bytes at {offset}"),
                reason: format!("the buffer has {} bytes", self.memory.bytes),
            }),
        }
    }
}

impl Allocation {
    fn new(source: Source, address: u64, bytes: usize) -> Self {
        Self { source, address, bytes, is_exposed: AtomicBool::new(false) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if *self.is_exposed.get_mut() {
            conceal(ptr::from_ref(self).addr());
        }
        let Source::Pool { pool, stream } = &self.source else { return };
        traced(|trace| trace.freed(self.address, stream));
        // SAFETY: `uninitialized` took the block from this pool for this allocation, whose last handle is dropped. Work on other
        // streams was recorded by `used_on`.
        let _ = unsafe { pool.free(self.address, self.bytes) }; // it is live, so that succeeds, without a driver call
    }
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes at {:#x}", self.bytes, self.address)
    }
}
