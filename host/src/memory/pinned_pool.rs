//! Pinned host memory for reuse.

use crate::Result;
use crate::cuda::{CudaDevice, Event, check};
use crate::mutation::{Wait, left_out};
use cust::sys;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of a staging chunk. A larger chunk hides the cost of the calls better, a smaller one starts the GPU earlier. At
/// PCIe's 12 GB/s this one takes 170 µs, and the calls about 10 µs.
pub const CHUNK: usize = 2 << 20;
/// The size of the smallest block: small copies share one size, so that a free block usually exists.
const SMALLEST: usize = 64 << 10;
/// The most bytes that the pool keeps; more is returned to the system, since pinned memory is unavailable to all other
/// processes.
const KEEP: usize = 64 << 20;

/// Pinned memory for reuse.
#[derive(Debug)]
pub(super) struct PinnedPool {
    device: CudaDevice,
    free: Mutex<Vec<Block>>,
}

/// Page-locked memory with the event of the last copy from or to it.
#[derive(Debug)]
pub(super) struct Block {
    pub at: NonNull<u8>,
    pub bytes: usize,
    pub copied: Event,
}

// SAFETY: a block owns its memory, which the driver allows any thread to use.
unsafe impl Send for Block {}
// SAFETY: shared references do not access the memory.
unsafe impl Sync for Block {}

impl PinnedPool {
    pub fn new(device: &CudaDevice) -> Self {
        Self { device: device.clone(), free: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Block>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block that no copy uses.
    pub fn take(&self, bytes: usize) -> Result<Block> {
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
        if !self.device.is_planned() {
            // SAFETY: just allocated, `bytes` long and not shared. Zeroed so that it may be read as bytes, as a plan's memory is.
            unsafe { ptr::write_bytes(at.cast::<u8>(), 0, bytes) };
        }
        match NonNull::new(at.cast()) {
            Some(at) => Ok(Block { at, bytes, copied }),
            None => check("cuMemHostAlloc", sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)
                .and_then(|()| self.take(bytes)),
        }
    }

    /// Frees the blocks that nobody has; for a plan, in which no copy uses them.
    pub fn free_all(&self) {
        if self.device.is_planned() && self.device.bind().is_ok() {
            for block in self.lock().drain(..) {
                // SAFETY: allocated by `take`, freed once, and used by no copy, as a plan makes none.
                let _ = check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(block.at.as_ptr().cast()) });
            }
        }
    }

    /// Returns a block to the pool; a copy may still use it.
    pub fn give(&self, block: Block) {
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
                // SAFETY: allocated by `take`, freed once, and no copy uses it: its last one has just been waited for. An
                // error can't be reported from a drop.
                let _ = check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(block.at.as_ptr().cast()) });
            }
        }
    }
}
