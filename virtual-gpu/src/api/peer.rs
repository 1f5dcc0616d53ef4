//! Devices that reach each other's memory, and copies between them.

use std::ffi::{c_int, c_uint};

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::device::with_device;
use super::entry::enter;
use super::memory::{Copy, copy};
use super::rows::{Side, Slice, copy_slices};
use super::state::{Driver, Guard};
use super::volume::slices;
use crate::memory::device_of;

fn can_access(dev: CUdevice, peer: CUdevice) -> Result<bool, u32> {
    let (guard, device) = with_device(dev)?;
    let peers = guard.gpu().config().peers;
    drop(guard);
    let (guard, peer) = with_device(peer)?;
    drop(guard);
    Ok(peers && device != peer)
}

/// The device of a context.
fn device_in(d: &Driver, context: CUcontext) -> Result<usize, u32> {
    d.contexts.get(&(context as u64)).map(|context| context.device).ok_or(INVALID_CONTEXT)
}

/// Checks that each pointer is memory of the device whose context goes with it.
fn check_owners<const N: usize>(guard: &mut Guard, sides: [(CUdeviceptr, CUcontext); N]) -> Answer {
    let d = guard;
    for (at, context) in sides {
        let named = device_in(d, context)?;
        if let Some(owner) = device_of(at).filter(|&owner| owner != named) {
            super::memory::wrong_device(
                "cuMemcpyPeer",
                format!("0x{at:x} is memory of device {owner} and named with a context of device {named}"),
            );
            return Err(INVALID_VALUE);
        }
    }
    Ok(())
}

const _: () = assert!(size_of::<CUDA_MEMCPY3D_PEER>() == size_of::<CUDA_MEMCPY3D>());

/// The slices of a copy between devices, whose memory is checked against the contexts named.
///
/// # Safety
/// `p` is null or a valid descriptor, but for the values of its enums.
unsafe fn slices_between(p: *const CUDA_MEMCPY3D_PEER) -> Result<Vec<Slice>, u32> {
    // SAFETY: the two have the same fields in the same places, but that contexts are where the other has reserved pointers.
    let slices = unsafe { slices(p.cast::<CUDA_MEMCPY3D>(), true)? };
    let mut guard = enter()?;
    // SAFETY: `slices` refuses null.
    let contexts = unsafe { [(*p).dstContext, (*p).srcContext] };
    for slice in &slices {
        for (side, context) in [&slice.dst, &slice.src].into_iter().zip(contexts) {
            check_side(&mut guard, side, context)?;
        }
    }
    Ok(slices)
}

/// Checks that one side of a copy is memory of the device of its context.
fn check_side(guard: &mut Guard, side: &Side, context: CUcontext) -> Answer {
    match side.kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => Ok(()),
        CUmemorytype::CU_MEMORYTYPE_ARRAY => {
            let base = guard.array(side.array)?.image.base;
            check_owners(guard, [(base, context)])
        }
        _ => check_owners(guard, [(side.device, context)]),
    }
}

api! {
    fn cuDeviceCanAccessPeer(can: *mut c_int => Out<c_int>, dev: CUdevice, peer: CUdevice) {
        let answer = can_access(dev, peer)?;
        can.write(answer as c_int)
    }

    fn cuDeviceGetP2PAttribute(value: *mut c_int => Out<c_int>, attr: CUdevice_P2PAttribute => c_int, src: CUdevice, dst: CUdevice) {
        if src == dst {
            return Err(INVALID_DEVICE);
        }
        let can = can_access(src, dst)?;
        let answer = match attr {
            2 => can as c_int,
            1 | 3 | 4 => 0,
            _ => return Err(INVALID_VALUE),
        };
        value.write(answer)
    }

    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint) {
        let d = &mut *enter()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let peer = device_in(d, peer)?;
        if peer == d.current {
            return Err(INVALID_DEVICE);
        }
        if !d.gpu().config().peers {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        if d.here().peers.insert(peer) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    }

    fn cuCtxDisablePeerAccess(peer: CUcontext) {
        let d = &mut *enter()?;
        let peer = device_in(d, peer)?;
        if d.here().peers.remove(&peer) { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    }

    fn cuMemcpyPeer(dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext, bytes: usize) {
        let mut guard = enter()?;
        check_owners(&mut guard, [(dst, dst_context), (src, src_context)])?;
        copy(guard, std::ptr::null_mut(), Copy::between(dst, src, bytes as u64), false)
    }

    fn cuMemcpyPeerAsync(
        dst: CUdeviceptr, dst_context: CUcontext, src: CUdeviceptr, src_context: CUcontext, bytes: usize, stream: CUstream,
    ) {
        let mut guard = enter()?;
        check_owners(&mut guard, [(dst, dst_context), (src, src_context)])?;
        copy(guard, stream, Copy::between(dst, src, bytes as u64), false)
    }

    fn cuMemcpy3DPeer(p: *const CUDA_MEMCPY3D_PEER) {
        // SAFETY: the caller promised the driver API a descriptor.
        let slices = unsafe { slices_between(p)? };
        copy_slices(&slices, std::ptr::null_mut(), false)
    }

    fn cuMemcpy3DPeerAsync(p: *const CUDA_MEMCPY3D_PEER, stream: CUstream) {
        // SAFETY: the caller promised the driver API a descriptor.
        let slices = unsafe { slices_between(p)? };
        copy_slices(&slices, stream, false)
    }
}
