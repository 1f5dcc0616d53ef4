//! Stream-ordered memory and its pools.

use std::ffi::{c_int, c_void};

use cust_raw::*;

use super::call::{Out, api, write_out};
use super::codes::*;
use super::device::with_device;
use super::engine::after_enqueue;
use super::entry::enter;
use super::state::{Driver, Pool, default_pool};
use super::work::Work;

impl Driver {
    /// Bytes reported as free. Those that a pool retains count as used, though it releases them on demand.
    pub(super) fn free_memory(&self) -> u64 {
        self.gpu().memory.limit().saturating_sub(self.used_memory(self.current))
    }

    /// Bytes of a device that are allocated or retained by a pool.
    fn used_memory(&self, device: usize) -> u64 {
        let own = self.pools.values().filter(|p| p.device == device);
        self.devices[device].gpu.memory.used() + own.map(|p| p.reserved - p.used).sum::<u64>()
    }

    /// Notes what a device uses now, after an allocation.
    pub(super) fn note_peak(&mut self, device: usize) {
        let used = self.used_memory(device);
        let peak = &mut self.devices[device].peak;
        *peak = used.max(*peak);
    }

    /// Returns the most bytes of a device in use since the last call, and restarts from what is in use now.
    pub(super) fn take_peak(&mut self, device: usize) -> u64 {
        let used = self.used_memory(device);
        self.devices.get_mut(device).map_or(0, |device| std::mem::replace(&mut device.peak, used))
    }

    /// Subtracts a freed allocation from its pool's counts.
    pub(super) fn forget_pooled(&mut self, base: u64, bytes: u64) {
        if let Some(p) = self.pool_of.remove(&base).and_then(|p| self.pools.get_mut(&p)) {
            p.used -= bytes.min(p.used);
        }
    }

    fn pools_exist(&self) -> Answer {
        if self.gpu().config().pools { Ok(()) } else { Err(NOT_SUPPORTED) }
    }

    fn pool(&mut self, id: u64) -> Result<&mut Pool, u32> {
        self.pools_exist()?;
        self.pools.get_mut(&id).ok_or(INVALID_VALUE)
    }

    /// At a synchronisation the device's pools release the bytes above their threshold.
    pub(super) fn trim_pools(&mut self, device: usize) {
        for p in self.pools.values_mut().filter(|p| p.device == device) {
            p.trim(p.threshold);
        }
    }

    fn alloc_async(&mut self, bytes: u64, pool: u64, stream: CUstream) -> Result<u64, u32> {
        let stream = self.id(stream);
        let device = self.pool(pool)?.device;
        if bytes == 0 || self.stream(stream)?.device != device {
            return Err(INVALID_VALUE);
        }
        if self.stream(stream)?.capture.is_some() {
            return self.capture_alloc(stream, bytes, pool);
        }
        let a = self.devices[device].gpu.memory.insert(bytes, false).map_err(memory_code)?;
        let base = a.base;
        self.enqueue(stream, Work::Alloc(a))?;
        self.pool_of.insert(base, pool);
        let p = self.pool(pool)?;
        p.used += bytes;
        p.used_high = p.used_high.max(p.used);
        p.reserved = p.reserved.max(p.used);
        p.reserved_high = p.reserved_high.max(p.reserved);
        self.note_peak(device);
        Ok(base)
    }
}

api! {
    fn cuMemAllocAsync(ptr: *mut CUdeviceptr => Out<CUdeviceptr>, bytes: usize, stream: CUstream) {
        let mut guard = enter()?;
        let d = &mut *guard;
        let pool = d.here().current_pool;
        let at = d.alloc_async(bytes as u64, pool, stream)?;
        ptr.write(at)?;
        after_enqueue(guard)
    }

    fn cuMemAllocFromPoolAsync(ptr: *mut CUdeviceptr => Out<CUdeviceptr>, bytes: usize, pool: CUmemoryPool, stream: CUstream) {
        let mut guard = enter()?;
        let at = guard.alloc_async(bytes as u64, pool as u64, stream)?;
        ptr.write(at)?;
        after_enqueue(guard)
    }

    /// Frees any allocation, whether it came from a pool or not.
    fn cuMemFreeAsync(ptr: CUdeviceptr, stream: CUstream) {
        let mut guard = enter()?;
        let d = &mut *guard;
        d.pools_exist()?;
        let stream = d.id(stream);
        let device = d.stream(stream)?.device;
        let a = d.devices[device].gpu.memory.locate(ptr, 1).map_err(memory_code)?;
        if a.base != ptr {
            return Err(INVALID_VALUE);
        }
        if d.stream(stream)?.capture.is_some() {
            return d.capture_free(stream, ptr);
        }
        if let Some(answer) = d.free_graph_allocation(ptr) {
            answer?;
            d.enqueue(stream, Work::GraphFree { base: ptr })?;
            return after_enqueue(guard);
        }
        if !d.freeing.insert(ptr) {
            // A second free of the same address while the first is still queued.
            return Err(INVALID_VALUE);
        }
        d.enqueue(stream, Work::Free { base: ptr })?;
        after_enqueue(guard)
    }

    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool => Out<CUmemoryPool>, dev: CUdevice) {
        let (guard, device) = with_device(dev)?;
        guard.pools_exist()?;
        pool.write(default_pool(device) as CUmemoryPool)
    }

    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool => Out<CUmemoryPool>, dev: CUdevice) {
        let (mut guard, device) = with_device(dev)?;
        let d = &mut *guard;
        d.pools_exist()?;
        pool.write(d.devices[device].current_pool as CUmemoryPool)
    }

    fn cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) {
        drop(enter()?);
        let (mut guard, device) = with_device(dev)?;
        let d = &mut *guard;
        if d.pool(pool as u64)?.device != device {
            return Err(INVALID_VALUE);
        }
        d.devices[device].current_pool = pool as u64;
        Ok(())
    }

    fn cuMemPoolCreate(pool: *mut CUmemoryPool => Out<CUmemoryPool>, props: *const CUmemPoolProps) {
        let d = &mut *enter()?;
        d.pools_exist()?;
        if props.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's valid description.
        let location = unsafe { &(*props).location };
        let device = usize::try_from(location.id).ok().filter(|&device| device < d.devices.len());
        let device = device.ok_or(INVALID_DEVICE)?;
        let id = d.handle();
        d.pools.insert(id, Pool::new(device));
        pool.write(id as CUmemoryPool)
    }

    fn cuMemPoolDestroy(pool: CUmemoryPool) {
        let d = &mut *enter()?;
        let id = pool as u64;
        let device = d.pool(id)?.device;
        if id == default_pool(device) {
            return Err(INVALID_VALUE);
        }
        d.pools.remove(&id);
        let current = &mut d.devices[device].current_pool;
        if *current == id {
            *current = default_pool(device);
        }
        Ok(())
    }

    /// Grants or revokes other devices' access to the pool's memory.
    fn cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) {
        let d = &mut *enter()?;
        if map.is_null() {
            return Err(INVALID_VALUE);
        }
        let (devices, peers, own) = (d.devices.len(), d.gpu().config().peers, d.pool(pool as u64)?.device);
        for i in 0..count {
            // Type of place, device, flags: as numbers, since the caller may pass values that the enums lack.
            // SAFETY: not null, so the caller's; there are `count` entries of three 32-bit fields.
            let [place, device, flags] = unsafe { map.add(i).cast::<[c_int; 3]>().read() };
            let device = usize::try_from(device).ok().filter(|&device| place == 1 && device < devices);
            let device = device.ok_or(INVALID_VALUE)?;
            match flags {
                0 if device != own => d.pool(pool as u64)?.access.remove(&device),
                3 if device != own && peers => d.pool(pool as u64)?.access.insert(device),
                3 if device == own => true,
                _ => return Err(INVALID_VALUE),
            };
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: *mut CUmemAccess_flags => Out<c_int>, pool: CUmemoryPool, location: *mut CUmemLocation) {
        let d = &mut *enter()?;
        if location.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so the caller's: type of place and device, as numbers.
        let [place, device] = unsafe { location.cast::<[c_int; 2]>().read() };
        let devices = d.devices.len();
        let device = usize::try_from(device).ok().filter(|&device| place == 1 && device < devices);
        let device = device.ok_or(INVALID_VALUE)?;
        let pool = d.pool(pool as u64)?;
        flags.write(if device == pool.device || pool.access.contains(&device) { 3 } else { 0 })
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) {
        enter()?.pool(pool as u64)?.trim(keep as u64);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute => c_int, value: *mut c_void) {
        let mut guard = enter()?;
        let p = guard.pool(pool as u64)?;
        let bytes = match attr {
            // SAFETY: the attribute decides the type, as the documentation gives it.
            1..=3 => return unsafe { write_out(value.cast(), p.reuse[attr as usize - 1]) },
            4 => p.threshold,
            5 => p.reserved,
            6 => p.reserved_high,
            7 => p.used,
            8 => p.used_high,
            _ => return Err(INVALID_VALUE),
        };
        // SAFETY: the attribute decides the type, as the documentation gives it.
        unsafe { write_out(value.cast(), bytes) }
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute => c_int, value: *mut c_void) {
        let mut guard = enter()?;
        let p = guard.pool(pool as u64)?;
        if value.is_null() {
            return Err(INVALID_VALUE);
        }
        match attr {
            // SAFETY: not null, so the caller's value of the type that the documentation gives this attribute.
            1..=3 => p.reuse[attr as usize - 1] = unsafe { value.cast::<c_int>().read() },
            // SAFETY: not null, so the caller's value of the type that the documentation gives this attribute.
            4 => p.threshold = unsafe { value.cast::<u64>().read() },
            // The high-water marks can only be reset.
            // SAFETY: not null, so the caller's value of the type that the documentation gives this attribute.
            6 | 8 if unsafe { value.cast::<u64>().read() } != 0 => return Err(INVALID_VALUE),
            6 => p.reserved_high = p.reserved,
            8 => p.used_high = p.used,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}
