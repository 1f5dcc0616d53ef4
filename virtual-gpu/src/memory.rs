//! Device memory: fake 49-bit addresses over host buffers.
//!
//! No address is used twice, and all lie where no host pointer can, so that a stale or mixed-up pointer is always
//! detected. Guard gaps separate allocations. Each device has a range of its own, so an address tells whose memory it is.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// First device address: above every address that x86-64 and AArch64 hosts give to processes.
const FIRST: u64 = 1 << 48;
/// Windows of shared and local memory in the generic address space.
pub(crate) const SHARED_WINDOW: u64 = 0x1_f000_0000_0000;
pub(crate) const LOCAL_WINDOW: u64 = 0x1_f100_0000_0000;
/// Addresses of functions, of which no memory lies there: those of each device, and the bytes between two functions.
pub(crate) const CODE: u64 = 0x1_f200_0000_0000;
pub(crate) const CODE_SPAN: u64 = 1 << 40;
pub(crate) const CODE_STEP: u64 = 16;
pub(crate) const WINDOW_BYTES: u64 = 1 << 24;
/// Addresses of each device.
const SPAN: u64 = 1 << 44;
/// The most devices: their ranges end before the windows.
pub(crate) const MAX_DEVICES: usize = 8;
const GUARD: u64 = 4096;
const ALIGN: u64 = 512;
/// Fills fresh and freed memory where checks are on: NaN as f32, f16 and f64, and a bad index.
pub const POISON: u8 = 0xff;
/// The shadow of bytes that were written, by work that is not told apart.
pub(crate) const WRITTEN: u8 = 1;

/// The device in whose range an address lies; `None` for host addresses and the windows.
pub(crate) fn device_of(address: u64) -> Option<usize> {
    let device = (address.checked_sub(FIRST)? / SPAN) as usize;
    (device < MAX_DEVICES).then_some(device)
}

/// Why memory cannot be allocated or accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryError {
    /// Beyond the card's or the configured limit, or the host's memory.
    OutOfMemory,
    /// Not the start of a live allocation.
    UnknownPointer,
    /// The range is not inside one live allocation.
    OutOfBounds,
}

/// Where an allocation's bytes live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Device,
    /// Page-locked host memory that the driver API allocated; its address is the host's.
    Pinned,
    /// The caller's own memory, page-locked by the driver API.
    Registered,
}

/// One live range of addresses.
pub(crate) struct Allocation {
    pub base: u64,
    pub size: u64,
    pub kind: Kind,
    data: NonNull<u8>,
    /// One byte per byte of data: 0 until that is written, then who wrote it ([`WRITTEN`] or a unit of work). `None` where
    /// writes cannot be tracked.
    shadow: Option<NonNull<u8>>,
    /// Bytes obtained from the host's allocator (not for registered memory).
    layout: Option<Layout>,
    /// False until the stream reaches the allocation, and again after the stream freed it.
    live: AtomicBool,
}

// SAFETY: `data` and `shadow` are only reached through atomic or raw accesses inside the bounds; the buffers
// live as long as the Allocation, and no reference to their bytes is ever made by this crate.
unsafe impl Send for Allocation {}
// SAFETY: threads reach `data` and `shadow` by atomic accesses, or by raw ones while no kernel runs.
unsafe impl Sync for Allocation {}

fn zeroed(bytes: u64) -> Option<(NonNull<u8>, Layout)> {
    let layout = Layout::from_size_align(usize::try_from(bytes.max(1)).ok()?, ALIGN as usize).ok()?;
    // SAFETY: the layout has a size above zero.
    NonNull::new(unsafe { alloc_zeroed(layout) }).map(|p| (p, layout))
}

impl Allocation {
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Relaxed)
    }

    pub fn set_live(&self, live: bool) {
        self.live.store(live, Ordering::Relaxed);
    }

    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        address.wrapping_sub(self.base) <= self.size && self.size - (address - self.base) >= bytes
    }

    /// Host pointer of a device address inside this allocation.
    #[inline(always)]
    pub fn host(&self, address: u64) -> *mut u8 {
        debug_assert!(address - self.base <= self.size);
        self.data.as_ptr().wrapping_add((address - self.base) as usize)
    }

    #[inline(always)]
    pub fn shadow(&self, address: u64) -> Option<*mut u8> {
        self.shadow.map(|s| s.as_ptr().wrapping_add((address - self.base) as usize))
    }

    /// Marks bytes as written by `writer`.
    pub fn mark(&self, address: u64, bytes: u64, writer: u8) {
        if let Some(s) = self.shadow(address) {
            // SAFETY: callers pass ranges that `contains` accepted, the shadow is as long as the data, and no
            // kernel runs while the host copies (the owner of the memory is borrowed mutably for both).
            unsafe { s.write_bytes(writer, bytes as usize) };
        }
    }

    /// Who wrote each of these bytes; none where writes are not tracked.
    pub fn writers(&self, address: u64, bytes: u64) -> &[u8] {
        match self.shadow(address) {
            // SAFETY: the range is inside the shadow, and no kernel runs while the driver looks at it.
            Some(s) => unsafe { std::slice::from_raw_parts(s, bytes as usize) },
            None => &[],
        }
    }

    /// Replaces these units of work in the shadow by [`WRITTEN`].
    pub fn forget_writers(&self, units: std::ops::RangeInclusive<u8>) {
        let Some(s) = self.shadow else { return };
        // SAFETY: the shadow has `size` bytes, and no kernel runs while the driver changes it.
        let shadow = unsafe { std::slice::from_raw_parts_mut(s.as_ptr(), self.size as usize) };
        for writer in shadow {
            *writer = if units.contains(writer) { WRITTEN } else { *writer };
        }
    }

    /// A graph's allocation is made anew at its address.
    pub fn begin(&self) {
        if let Some(s) = self.shadow {
            // SAFETY: the shadow has `size` bytes, and no kernel runs while the driver changes it.
            unsafe { s.as_ptr().write_bytes(0, self.size as usize) };
            self.poison();
        }
        self.set_live(true);
    }

    /// It is freed; its address stays its own.
    pub fn end(&self) {
        self.set_live(false);
        if self.shadow.is_some() {
            self.poison();
        }
    }

    fn poison(&self) {
        // SAFETY: the buffer has `size` bytes and no launch runs during an allocation or a free.
        unsafe { self.data.as_ptr().write_bytes(POISON, self.size as usize) };
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        for (p, layout) in [(Some(self.data), self.layout), (self.shadow, self.layout)] {
            if let (Some(p), Some(layout)) = (p, layout) {
                // SAFETY: data and shadow came from `zeroed` with this same layout; registered memory has none.
                unsafe { dealloc(p.as_ptr(), layout) };
            }
        }
    }
}

#[derive(Default)]
struct Inner {
    live: BTreeMap<u64, Arc<Allocation>>,
    /// Freed ranges: base → size.
    freed: BTreeMap<u64, u64>,
    next: u64,
    used: u64,
}

/// The memory of one device.
pub struct Memory {
    inner: Mutex<Inner>,
    /// The first address of the device's range.
    first: u64,
    limit: u64,
    /// Poison memory, and track which bytes were written.
    track: bool,
}

/// The allocations that were live when a launch began.
pub(crate) struct Snapshot {
    pub live: Vec<Arc<Allocation>>,
}

impl Snapshot {
    #[inline]
    pub fn find(&self, address: u64) -> Option<usize> {
        let i = self.live.partition_point(|a| a.base <= address).checked_sub(1)?;
        self.live[i].contains(address, 1).then_some(i)
    }
}

impl Memory {
    /// The memory of device number `device`.
    pub fn new(device: usize, limit: u64, track: bool) -> Self {
        let first = FIRST + SPAN * device as u64;
        Self { inner: Mutex::new(Inner { next: first, ..Inner::default() }), first, limit, track }
    }

    /// The other device in whose range an address lies, if there is one.
    pub(crate) fn foreign(&self, address: u64) -> Option<usize> {
        device_of(address).filter(|_| !(self.first..self.first + SPAN).contains(&address))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Allocates `bytes` (more than zero) at a 512-byte aligned device address.
    pub fn alloc(&self, bytes: u64) -> Result<u64, MemoryError> {
        self.insert(bytes, true).map(|a| a.base)
    }

    /// As [`Self::alloc`]. Without `live` it cannot be accessed until the allocating stream reaches it.
    pub(crate) fn insert(&self, bytes: u64, live: bool) -> Result<Arc<Allocation>, MemoryError> {
        if bytes == 0 {
            return Err(MemoryError::OutOfMemory);
        }
        self.reserve(bytes)?;
        self.place(bytes, live).inspect_err(|_| self.release(bytes))
    }

    /// An address for memory that is counted by [`reserve`](Self::reserve) alone.
    pub(crate) fn insert_unmapped(&self, bytes: u64) -> Result<Arc<Allocation>, MemoryError> {
        if bytes > self.limit {
            return Err(MemoryError::OutOfMemory);
        }
        self.place(bytes, false)
    }

    /// Removes what [`insert_unmapped`](Self::insert_unmapped) has made.
    pub(crate) fn discard(&self, base: u64) {
        let mut inner = self.lock();
        if let Some(a) = inner.live.remove(&base) {
            a.set_live(false);
            inner.freed.insert(base, a.size);
        }
    }

    /// Counts bytes as used.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), MemoryError> {
        let mut inner = self.lock();
        if bytes > self.limit - inner.used.min(self.limit) {
            return Err(MemoryError::OutOfMemory);
        }
        inner.used += bytes;
        Ok(())
    }

    /// No longer counts bytes as used.
    pub(crate) fn release(&self, bytes: u64) {
        self.lock().used -= bytes;
    }

    /// Bytes that are not in use.
    pub(crate) fn available(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    fn place(&self, bytes: u64, live: bool) -> Result<Arc<Allocation>, MemoryError> {
        let mut inner = self.lock();
        if bytes > (self.first + SPAN).saturating_sub(GUARD + inner.next) {
            return Err(MemoryError::OutOfMemory); // no address is used twice
        }
        let (data, layout) = zeroed(bytes).ok_or(MemoryError::OutOfMemory)?;
        let base = inner.next;
        let live = AtomicBool::new(live);
        let mut a = Allocation {
            base,
            size: bytes,
            kind: Kind::Device,
            data,
            shadow: None,
            layout: Some(layout),
            live,
        };
        if self.track {
            a.shadow = Some(zeroed(bytes).ok_or(MemoryError::OutOfMemory)?.0);
            a.poison();
        }
        let a = Arc::new(a);
        inner.next = (base + bytes + GUARD).next_multiple_of(ALIGN);
        inner.live.insert(base, a.clone());
        Ok(a)
    }

    /// Leaks all page-locked memory: the host may still hold references into it.
    pub(crate) fn leave_pinned(&self) {
        for allocation in
            self.lock().live.values().filter(|allocation| matches!(allocation.kind, Kind::Pinned))
        {
            std::mem::forget(Arc::clone(allocation));
        }
    }

    /// Page-locked host memory, which kernels reach under its host address; with `track` its shadow holds who wrote it.
    pub(crate) fn insert_pinned(&self, bytes: u64, track: bool) -> Result<Arc<Allocation>, MemoryError> {
        let (data, layout) = zeroed(bytes).ok_or(MemoryError::OutOfMemory)?;
        let base = data.as_ptr() as u64;
        let live = AtomicBool::new(true);
        let mut a = Allocation {
            base,
            size: bytes,
            kind: Kind::Pinned,
            data,
            shadow: None,
            layout: Some(layout),
            live,
        };
        if track {
            a.shadow = Some(zeroed(bytes).ok_or(MemoryError::OutOfMemory)?.0);
            a.mark(base, bytes, WRITTEN); // the host may write it at any time
        }
        let a = Arc::new(a);
        self.share(&a);
        Ok(a)
    }

    /// Makes host memory that was allocated through another device accessible to this one.
    pub(crate) fn share(&self, allocation: &Arc<Allocation>) {
        self.lock().live.insert(allocation.base, Arc::clone(allocation));
    }

    /// As [`Allocation::forget_writers`], for all live allocations.
    pub(crate) fn forget_writers(&self, units: std::ops::RangeInclusive<u8>) {
        self.lock().live.values().for_each(|a| a.forget_writers(units.clone()));
    }

    /// The caller's own memory, made reachable from kernels.
    ///
    /// # Safety
    /// `pointer` is valid for reads and writes of `bytes` until it is removed again.
    pub(crate) unsafe fn register(
        &self,
        pointer: NonNull<u8>,
        bytes: u64,
    ) -> Result<Arc<Allocation>, MemoryError> {
        let base = pointer.as_ptr() as u64;
        let mut inner = self.lock();
        let before = inner.live.range(..base + bytes).next_back();
        if before.is_some_and(|(_, a)| a.base + a.size > base) {
            return Err(MemoryError::UnknownPointer);
        }
        let live = AtomicBool::new(true);
        let kind = Kind::Registered;
        let a = Allocation { base, size: bytes, kind, data: pointer, shadow: None, layout: None, live };
        let a = Arc::new(a);
        inner.live.insert(base, Arc::clone(&a));
        Ok(a)
    }

    pub(crate) fn remove(&self, base: u64, kind: Kind) -> Result<(), MemoryError> {
        let mut inner = self.lock();
        match inner.live.get(&base) {
            Some(a) if a.kind == kind => {
                let size = a.size;
                a.set_live(false);
                if kind == Kind::Device {
                    if self.track {
                        a.poison();
                    }
                    inner.used -= size;
                    inner.freed.insert(base, size);
                }
                inner.live.remove(&base);
                Ok(())
            }
            _ => Err(MemoryError::UnknownPointer),
        }
    }

    /// Frees an allocation by its first address.
    pub fn free(&self, base: u64) -> Result<(), MemoryError> {
        self.remove(base, Kind::Device)
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.lock().used
    }

    /// Bytes the device has.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The live allocation that holds the whole range.
    pub(crate) fn locate(&self, address: u64, bytes: u64) -> Result<Arc<Allocation>, MemoryError> {
        let inner = self.lock();
        match inner.live.range(..=address).next_back() {
            Some((_, a)) if a.contains(address, bytes) => Ok(a.clone()),
            _ => Err(MemoryError::OutOfBounds),
        }
    }

    /// Copies host bytes to the device.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), MemoryError> {
        let a = self.locate(address, bytes.len() as u64)?;
        // SAFETY: `locate` found the range inside one buffer; a device buffer and a host slice do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), a.host(address), bytes.len()) };
        a.mark(address, bytes.len() as u64, WRITTEN);
        Ok(())
    }

    /// Copies device bytes to the host.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let a = self.locate(address, bytes.len() as u64)?;
        // SAFETY: `locate` found the range inside one buffer; a device buffer and a host slice do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(a.host(address), bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Whether a bad address is in memory that is not live, and a description of what it is near.
    pub(crate) fn describe(&self, address: u64) -> (bool, String) {
        let inner = self.lock();
        if let Some((base, size)) = inner.freed.range(..=address).next_back()
            && address - base < *size
        {
            return (true, format!("{} bytes into a freed allocation of {size} bytes", address - base));
        }
        if let Some((base, a)) = inner.live.range(..=address).next_back() {
            if address - base < a.size {
                return if a.is_live() {
                    (false, format!("which crosses the end of an allocation of {} bytes", a.size))
                } else {
                    (
                        true,
                        format!(
                            "{} bytes into an allocation that its stream has not reached or has freed",
                            address - base
                        ),
                    )
                };
            }
            let past = address - base - a.size;
            if past < 1 << 20 {
                return (false, format!("{past} bytes past the end of an allocation of {} bytes", a.size));
            }
        }
        if let Some((base, a)) = inner.live.range(address..).next()
            && base - address < 1 << 20
        {
            return (false, format!("{} bytes before an allocation of {} bytes", base - address, a.size));
        }
        (false, "near no allocation".to_owned())
    }

    /// The live allocations of the device's own memory.
    pub(crate) fn device_allocations(&self) -> Vec<Arc<Allocation>> {
        self.lock().live.values().filter(|a| a.kind == Kind::Device).cloned().collect()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot { live: self.lock().live.values().cloned().collect() }
    }
}

#[cfg(test)]
mod tests;
