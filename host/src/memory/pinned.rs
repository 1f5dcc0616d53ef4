//! Pinned host memory, and copies through it that overlap with other work.
//!
//! The GPU copies straight from and to page-locked memory, so a copy does not hold up the host. Copies from ordinary
//! memory go through two chunks in turn: while the GPU copies one, the host fills or empties the other. A chunk is
//! used again only after the event of its last copy.

use super::{DeviceBuffer, buffer, device};
use crate::Result;
use crate::cuda::{CudaDevice, Event, check};
use crate::mutation::{Wait, left_out};
use cust::sys;
use rayon::prelude::*;
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a staging chunk. Larger ones hide the cost of a call better, smaller ones start the GPU earlier; at
/// PCIe's 12 GB/s this is 170 µs, against about 10 µs for the calls.
pub const CHUNK: usize = 2 << 20;
/// Bytes of a chunk that one thread fills: one alone copies slower than a fast bus, and less is not worth waking another.
const PIECE: usize = 512 << 10;
/// The smallest block: small copies share one size, so that a block is always at hand.
const SMALLEST: usize = 64 << 10;
/// The most that the pool keeps for later; more goes back to the system. Pinned memory is taken from everyone on the machine.
const KEEP: usize = 64 << 20;

/// Pinned memory that is used again.
#[derive(Debug)]
pub(super) struct PinnedPool {
    device: CudaDevice,
    free: Mutex<Vec<Block>>,
}

/// Page-locked memory with the event of the last copy from or to it.
#[derive(Debug)]
struct Block {
    at: NonNull<u8>,
    bytes: usize,
    copied: Event,
}

// SAFETY: a block owns its memory, which the driver allows any thread to use.
unsafe impl Send for Block {}
// SAFETY: shared references give no access to the memory.
unsafe impl Sync for Block {}

/// Pinned host memory: copies from and to it overlap with other work.
#[derive(Debug)]
pub struct PinnedBuffer {
    pool: Arc<PinnedPool>,
    /// `None` only while being dropped or handed to a copy.
    block: Option<Block>,
    bytes: usize,
}

/// A copy to the host that may not be done yet.
#[derive(Debug)]
pub struct Download(PinnedBuffer);

impl PinnedPool {
    pub fn new(device: &CudaDevice) -> Self {
        Self { device: device.clone(), free: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Block>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block that no copy uses any more.
    fn take(&self, bytes: usize) -> Result<Block> {
        let bytes = match bytes > CHUNK {
            true => bytes.checked_next_multiple_of(CHUNK).unwrap_or(bytes),
            false => bytes.max(SMALLEST).next_power_of_two(),
        };
        self.device.bind()?;
        let mut free = self.lock();
        for index in 0..free.len() {
            let block = &free[index];
            if block.bytes == bytes && (left_out(Wait::PinnedReuse) || block.copied.is_done()?) {
                return Ok(free.swap_remove(index));
            }
        }
        drop(free);
        let copied = Event::untimed()?;
        let mut at = ptr::null_mut();
        // SAFETY: a context is current; `at` is written before it is used.
        let result = unsafe { sys::cuMemHostAlloc(&mut at, bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        check("cuMemHostAlloc", result)?;
        // SAFETY: just allocated, `bytes` long, ours alone. Zeroed so that it may be read as bytes.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 0, bytes) };
        match NonNull::new(at.cast()) {
            Some(at) => Ok(Block { at, bytes, copied }),
            None => check("cuMemHostAlloc", sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)
                .and_then(|()| self.take(bytes)),
        }
    }

    /// Takes a block back; a copy may still use it.
    fn give(&self, block: Block) {
        let mut free = self.lock();
        let kept: usize = free.iter().map(|block| block.bytes).sum();
        if self.device.is_lost() {
            std::mem::forget(block); // the GPU may still write into it
        } else if kept + block.bytes <= KEEP {
            free.push(block);
        } else {
            drop(free);
            let bound = self.device.bind().is_ok();
            if bound && (left_out(Wait::PinnedFree) || block.copied.synchronize().is_ok()) {
                // SAFETY: allocated by `take`, freed once, and no copy uses it: its last one has just been waited for.
                // An error can't be reported from here.
                let _ = check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(block.at.as_ptr().cast()) });
            }
        }
    }
}

impl PinnedBuffer {
    /// Memory for `bytes` bytes; what it holds is undefined but initialised.
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

    /// Lets the memory stay for ever: a copy may use it whose end nobody can tell.
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

    /// Marks the block as in use up to here of the stream.
    fn copied_on(&self, device: &CudaDevice) -> Result<()> {
        self.block.as_ref().map_or(Ok(()), |block| block.copied.record(device.stream()))
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = if self.block.is_some() { self.bytes } else { 0 };
        // SAFETY: the block is at least `bytes` long, initialised, and no copy writes to it: one that did was waited
        // for when the block was taken, or by `Download::wait`.
        unsafe { slice::from_raw_parts(self.address(), bytes) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = if self.block.is_some() { self.bytes } else { 0 };
        // SAFETY: as above; and copies that read it own the buffer, so none is under way.
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

/// Pinned memory that kernels read where it is.
struct Mapped {
    device: CudaDevice,
    host: PinnedBuffer,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.device.synchronize().is_err() {
            self.host.leak(); // kernels may still read it
        }
    }
}

impl DeviceBuffer {
    /// Pinned memory, for kernels on the handle's stream to read over the bus. It takes no memory of the device.
    pub(crate) fn in_host_memory(device: &CudaDevice, host: PinnedBuffer) -> Self {
        let (address, bytes) = (host.address() as u64, host.len());
        let owner = Box::new(Mapped { device: device.clone(), host });
        // SAFETY: drivers of 64-bit systems have unified addressing, under which pinned memory has one address for the host and
        // the devices. `Mapped` keeps it for itself until the work that was queued on the stream before its drop is done.
        unsafe { Self::foreign(device, address, bytes, owner) }
    }

    /// Queues a copy of pinned memory to `offset` on the buffer's stream and returns at once.
    ///
    /// # Errors
    /// A driver error, or [`Error::Unsupported`](crate::Error::Unsupported) if the range is outside or the stream is
    /// being captured.
    pub fn upload_async(&mut self, offset: usize, source: PinnedBuffer) -> Result<()> {
        let bytes = source.len();
        self.queue_upload(offset, source, bytes).map(drop)
    }

    /// Gives the source back, in use by the copy up to its event.
    pub(super) fn queue_upload(
        &mut self,
        offset: usize,
        source: PinnedBuffer,
        bytes: usize,
    ) -> Result<PinnedBuffer> {
        let _turn = self.outside_capture("upload")?;
        let bytes = bytes.min(source.len());
        let address = self.range("upload", offset, bytes)?;
        if bytes == 0 {
            return Ok(source);
        }
        self.device().bind()?;
        let from = source.address().cast_const().cast::<c_void>();
        // SAFETY: both ranges are at least `bytes` long (checked above). The source is pinned, and nobody writes to it
        // before the event recorded next: it goes back to its pool after it, or `upload_staged` waits for it.
        let result = unsafe { sys::cuMemcpyHtoDAsync_v2(address, from, bytes, self.device().stream().raw()) };
        let queued = check("cuMemcpyHtoDAsync", result);
        settle(self.device(), source, queued)
    }

    /// Queues a copy of `bytes` bytes from `offset` to pinned memory on the buffer's stream and returns at once.
    ///
    /// # Errors
    /// As [`upload_async`](Self::upload_async).
    pub fn download_async(&self, offset: usize, bytes: usize) -> Result<Download> {
        let _turn = self.outside_capture("download")?;
        let address = self.range("download", offset, bytes)?;
        let target = PinnedBuffer::new(self.device(), bytes)?;
        if bytes == 0 {
            return Ok(Download(target));
        }
        let to = target.address().cast::<c_void>();
        // SAFETY: both ranges are `bytes` long; the target is owned by the `Download` until the copy has been waited
        // for, or goes back to its pool after the event recorded next.
        let result = unsafe { sys::cuMemcpyDtoHAsync_v2(to, address, bytes, self.device().stream().raw()) };
        let queued = check("cuMemcpyDtoHAsync", result);
        settle(self.device(), target, queued).map(Download)
    }

    /// Copies host bytes to `offset`; when it returns the source may be changed, and the last chunks may still be
    /// in flight on the buffer's stream.
    pub(super) fn upload_staged(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let mut chunks: [Option<PinnedBuffer>; 2] = [None, None];
        for (index, part) in source.chunks(CHUNK).enumerate() {
            let mut chunk = match chunks[index % 2].take() {
                Some(chunk) => chunk.settled(Wait::ChunkReuse)?, // its copy of two rounds ago
                None => PinnedBuffer::new(self.device(), part.len())?,
            };
            let pieces = chunk[..part.len()].par_chunks_mut(PIECE).zip(part.par_chunks(PIECE));
            pieces.for_each(|(to, from)| to.copy_from_slice(from));
            chunks[index % 2] = Some(self.queue_upload(offset + index * CHUNK, chunk, part.len())?);
        }
        Ok(())
    }

    /// Copies from `offset` to host memory and waits; the GPU fills one chunk while the host empties the other.
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

    /// Copies host bytes to `offset` without staging: what the driver does with ordinary memory. For comparison.
    ///
    /// # Errors
    /// As [`upload_async`](Self::upload_async).
    pub fn upload_pageable(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        let _turn = self.outside_capture("upload")?;
        let address = self.range("upload", offset, source.len())?;
        self.device().stream().synchronize()?; // the copy below is on no stream of ours
        // SAFETY: the range is inside this buffer (checked above); the call returns when the copy is done.
        check("cuMemcpyHtoD", unsafe { sys::cuMemcpyHtoD_v2(address, source.as_ptr().cast(), source.len()) })
    }
}

/// Lets pinned memory that a copy uses wait for the copy's event.
fn settle(device: &CudaDevice, buffer: PinnedBuffer, queued: Result<()>) -> Result<PinnedBuffer> {
    if let Err(error) = queued.and_then(|()| buffer.copied_on(device)) {
        // The copy may be under way without an event that says when it ends.
        if device.stream().synchronize().is_err() {
            std::mem::forget(buffer);
        }
        return Err(error);
    }
    Ok(buffer)
}
