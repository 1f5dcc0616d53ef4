//! Pinned host memory, and copies through it that overlap with other work.
//!
//! The GPU copies directly from and to page-locked memory, so the host need not wait for a copy. Copies from ordinary memory
//! use two chunks in turn: while the GPU copies one, the host fills or empties the other. A chunk is reused only after the
//! event of its last copy.

use super::buffer::{self, DeviceBuffer};
use super::device;
use super::pinned_pool::{Block, CHUNK, PinnedPool};
use crate::cuda::{CudaDevice, Kept, check};
use crate::mutation::{Wait, left_out};
use crate::parallel::{Write, try_pieces};
use crate::{Error, Result};
use cust::sys;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

/// Bytes of a chunk that one thread fills. A single thread copies slower than a fast bus; smaller pieces do not justify
/// waking another thread.
const PIECE: usize = 512 << 10;
/// Pinned host memory. Copies from and to it overlap with other work.
#[derive(Debug)]
pub struct PinnedBuffer {
    pool: Arc<PinnedPool>,
    /// `None` only while it is dropped or used by a copy.
    block: Option<Block>,
    bytes: usize,
}

/// A copy to the host that may still be in flight.
#[derive(Debug)]
pub struct Download(PinnedBuffer);

impl PinnedBuffer {
    /// Memory for `bytes` bytes; the contents are undefined but initialised.
    ///
    /// # Errors
    /// A driver error.
    pub fn new(device: &CudaDevice, bytes: usize) -> Result<Self> {
        let pool = device::pinned(device)?;
        buffer::refused(bytes)?;
        let block = pool.take(bytes)?;
        Ok(Self { pool, block: Some(block), bytes })
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.block.as_ref().map_or(NonNull::dangling(), |block| block.at).as_ptr()
    }

    /// Never frees the memory: a copy may use it for an unknown time.
    pub(super) fn leak(&mut self) {
        std::mem::forget(self.block.take());
    }

    /// Waits for the last copy from or to it.
    fn settled(self, wait: Wait) -> Result<Self> {
        match &self.block {
            Some(block) if !left_out(wait) => block.copied.synchronize()?,
            _ => {}
        }
        Ok(self)
    }

    /// Marks the block as in use by the work queued on the stream so far. The caller holds the stream's lock to enqueue.
    fn copied_on(&self, device: &CudaDevice) -> Result<()> {
        self.block.as_ref().map_or(Ok(()), |block| block.copied.record_locked(device.stream()))
    }
}

/// Pinned memory that one device fills and kernels of all devices read. Who drops the last handle has waited for them.
#[derive(Debug)]
pub(crate) struct Posted(PinnedBuffer);

impl Posted {
    /// Room for `bytes` bytes of this device.
    ///
    /// # Errors
    /// A driver error.
    pub fn new(device: &CudaDevice, bytes: usize) -> Result<Self> {
        PinnedBuffer::new(device, bytes).map(Self)
    }

    /// How much it holds.
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// Queues a copy of `bytes` bytes of a buffer on its stream, also into a graph, which keeps the memory then. Gives the
    /// address at which kernels read them.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if there is no room for them, a driver error.
    pub fn fill(self: &Arc<Self>, source: &DeviceBuffer, at: usize, bytes: usize) -> Result<u64> {
        let from = source.range("post", at, bytes)?;
        let (device, to) = (source.device(), self.0.address());
        let _lock = device.stream().lock_to_enqueue();
        device.stream().keep(&(Arc::clone(self) as Kept));
        if bytes > self.bytes() {
            let (argument, value) = ("bytes", bytes.to_string());
            let reason = format!("there is room for {}", self.bytes());
            return Err(Error::Unsupported { op: "post", argument, value, reason });
        }
        if bytes > 0 {
            device.bind()?;
            // SAFETY: both ranges are `bytes` long (checked above). This memory goes only after the work that uses it: the caller
            // that drops the last handle has waited, or the graph that has one.
            let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, device.stream().raw()) };
            check("cuMemcpyDtoHAsync", result)?;
        }
        Ok(to as u64)
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = if self.block.is_some() { self.bytes } else { 0 };
        // SAFETY: the block is at least `bytes` long and initialised, and no copy writes to it: the last one that did was
        // waited for when the block was taken, or by `Download::wait`.
        unsafe { slice::from_raw_parts(self.address(), bytes) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = if self.block.is_some() { self.bytes } else { 0 };
        // SAFETY: the block is at least `bytes` long and initialised; copies that read or write it own the buffer, so none is in
        // flight.
        unsafe { slice::from_raw_parts_mut(self.address(), bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.give(block);
        }
    }
}

impl Download {
    /// Waits for the copy.
    ///
    /// # Errors
    /// [`Error::DeviceLost`](crate::Error::DeviceLost) if a kernel before it faulted.
    pub fn wait(self) -> Result<PinnedBuffer> {
        self.0.settled(Wait::Download)
    }
}

/// Pinned memory that kernels and copies read where it is.
#[derive(Debug)]
struct Mapped {
    /// The streams that may read it.
    readers: Vec<CudaDevice>,
    host: PinnedBuffer,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.readers.iter().any(|reader| reader.synchronize().is_err()) {
            self.host.leak(); // kernels may still read it
        }
    }
}

/// Pinned memory whose bytes are final: the CPU, kernels and copies read it side by side, and nobody writes. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct SharedHost(Arc<Mapped>);

impl SharedHost {
    /// Takes memory that work on the streams of `readers`, and no others, will read.
    pub fn new(host: PinnedBuffer, readers: Vec<CudaDevice>) -> Self {
        Self(Arc::new(Mapped { readers, host }))
    }

    /// How much it holds.
    pub fn len(&self) -> usize {
        self.0.host.len()
    }

    /// The address of its first byte, for the host and for kernels.
    pub fn address(&self) -> u64 {
        self.0.host.address() as u64
    }

    /// The same memory for kernels on one of the readers' streams.
    pub fn seen_from(&self, device: &CudaDevice) -> DeviceBuffer {
        // SAFETY: pinned memory has one address for the host and the devices. The owner keeps it until the readers' work is done,
        // and no function here writes it.
        unsafe { DeviceBuffer::foreign(device, self.address(), self.len(), Box::new(self.clone())) }
    }
}

impl DeviceBuffer {
    /// Pinned memory, for kernels on the handle's stream to read over the bus. It takes no memory of the device.
    pub(crate) fn in_host_memory(device: &CudaDevice, host: PinnedBuffer) -> Self {
        let (address, bytes) = (host.address() as u64, host.len());
        let owner = Box::new(Mapped { readers: vec![device.clone()], host });
        // SAFETY: drivers of 64-bit systems have unified addressing, under which pinned memory has one address for the host and
        // the devices. `Mapped` keeps it for itself until the work that was queued on the stream before its drop is done.
        unsafe { Self::foreign(device, address, bytes, owner) }
    }

    /// Queues a copy of pinned memory to `offset` on the buffer's stream and returns at once.
    ///
    /// # Errors
    /// A driver error, or [`Error::Unsupported`](crate::Error::Unsupported) if the range exceeds the buffer or the stream is
    /// being captured.
    pub fn upload_async(&mut self, offset: usize, source: PinnedBuffer) -> Result<()> {
        let bytes = source.len();
        self.queue_upload(offset, source, bytes).map(drop)
    }

    /// Returns the source, which the copy uses until its event.
    pub(super) fn queue_upload(
        &mut self,
        offset: usize,
        source: PinnedBuffer,
        bytes: usize,
    ) -> Result<PinnedBuffer> {
        let _lock = self.device().stream().lock_to_copy("upload")?;
        let bytes = bytes.min(source.len());
        let address = self.range("upload", offset, bytes)?;
        if bytes == 0 {
            return Ok(source);
        }
        self.device().bind()?;
        let from = source.address().cast_const().cast::<c_void>();
        // SAFETY: both ranges are at least `bytes` long (checked above). The source is pinned, and nobody writes to it
        // before the event recorded next: it returns to its pool after it, or `upload_staged` waits for it.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(address, from, bytes, self.device().stream().raw()) };
        let queued = check("cuMemcpyHtoDAsync", result);
        settle(self.device(), source, queued)
    }

    /// Queues a copy of a range of shared pinned memory to `offset`. The buffer's stream is one of its readers.
    ///
    /// # Errors
    /// As [`upload_async`](Self::upload_async).
    pub(crate) fn upload_shared(
        &mut self,
        offset: usize,
        source: &SharedHost,
        range: Range<usize>,
    ) -> Result<()> {
        let _lock = self.device().stream().lock_to_copy("upload")?;
        let bytes = range.len();
        let address = self.range("upload", offset, bytes)?;
        if bytes == 0 || self.device().is_planned() {
            return Ok(());
        }
        if range.end > source.len() {
            let (argument, value) = ("source", format!("{range:?}"));
            let reason = format!("it has {} bytes", source.len());
            return Err(Error::Unsupported { op: "upload", argument, value, reason });
        }
        self.device().bind()?;
        let from = (source.address() + range.start as u64) as *const c_void;
        // SAFETY: both ranges are `bytes` long (checked above). The source is written by nobody, and freed after a wait for its
        // readers' streams, of which this is one.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(address, from, bytes, self.device().stream().raw()) };
        check("cuMemcpyHtoDAsync", result)
    }

    /// Queues a copy of `bytes` bytes from `offset` to pinned memory on the buffer's stream and returns at once.
    ///
    /// # Errors
    /// As [`upload_async`](Self::upload_async).
    pub fn download_async(&self, offset: usize, bytes: usize) -> Result<Download> {
        let _lock = self.device().stream().lock_to_copy("download")?;
        let address = self.range("download", offset, bytes)?;
        let target = PinnedBuffer::new(self.device(), bytes)?;
        if bytes == 0 {
            return Ok(Download(target));
        }
        let to = target.address().cast::<c_void>();
        // SAFETY: both ranges are `bytes` long. The `Download` owns the target until the copy has been waited for, or it
        // returns to its pool after the event recorded next.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to, address, bytes, self.device().stream().raw()) };
        let queued = check("cuMemcpyDtoHAsync", result);
        settle(self.device(), target, queued).map(Download)
    }

    /// Copies `bytes` bytes to `offset`, in chunks of at most `most`. Threads write them in pieces, each called with the number of its first byte; the last chunks
    /// may still be in flight on the buffer's stream after the return.
    pub(super) fn upload_staged(
        &mut self,
        offset: usize,
        bytes: usize,
        most: usize,
        write: &Write<Error>,
    ) -> Result<()> {
        let mut chunks: [Option<PinnedBuffer>; 2] = [None, None];
        for (index, at) in (0..bytes).step_by(most).enumerate() {
            let len = most.min(bytes - at);
            let mut chunk = match chunks[index % 2].take() {
                Some(chunk) => chunk.settled(Wait::ChunkReuse)?, // its copy of two rounds ago
                None => PinnedBuffer::new(self.device(), len)?,
            };
            try_pieces(&mut chunk[..len], PIECE, &|from, piece| write(at + from, piece))?;
            chunks[index % 2] = Some(self.queue_upload(offset + at, chunk, len)?);
        }
        Ok(())
    }

    /// Copies from `offset` to host memory and waits. The GPU fills one chunk while the host empties the other.
    pub(super) fn download_staged(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let mut last: Option<(Download, &mut [u8])> = None;
        for (index, part) in target.chunks_mut(CHUNK).enumerate() {
            let next = self.download_async(offset + index * CHUNK, part.len())?;
            if let Some((download, part)) = last.replace((next, part)) {
                part.copy_from_slice(&download.wait()?);
            }
        }
        match last {
            Some((download, part)) => part.copy_from_slice(&download.wait()?),
            None => return Ok(()),
        }
        Ok(())
    }

    /// Copies host bytes to `offset` without staging, as the driver does from ordinary memory. For comparison.
    ///
    /// # Errors
    /// As [`upload_async`](Self::upload_async).
    pub fn upload_pageable(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let _lock = self.device().stream().lock_to_copy("upload")?;
        let address = self.range("upload", offset, source.len())?;
        self.device().stream().synchronize()?; // the copy below is not queued on this stream
        // SAFETY: the range is inside this buffer (checked above); the call returns when the copy is done.
        check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(address, source.as_ptr().cast(), source.len()) })
    }
}

/// Makes pinned memory that a copy uses wait for the copy's event.
fn settle(device: &CudaDevice, buffer: PinnedBuffer, queued: Result<()>) -> Result<PinnedBuffer> {
    if let Err(error) = queued.and_then(|()| buffer.copied_on(device)) {
        // The copy may be in flight without an event that tells its end.
        if device.stream().synchronize().is_err() {
            std::mem::forget(buffer);
        }
        return Err(error);
    }
    Ok(buffer)
}
