//! Copies of rows between host memory, device memory and arrays, as descriptors describe them.

use std::ffi::{c_int, c_void};

use cust_raw::*;

use super::call::api;
use super::codes::*;
use super::entry::enter;
use super::memory::{Copy, check_places, copy, no_node_of_array, place};
use super::state::Driver;
use super::work::{Place, Work};

/// One side of a copy of rows: the type of memory, its address or array, and where in it the rows begin.
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub kind: CUmemorytype,
    pub host: *const c_void,
    pub device: CUdeviceptr,
    pub array: CUarray,
    /// Bytes to skip in each row, rows and slices to skip.
    pub x: usize,
    pub y: usize,
    pub z: usize,
    /// Bytes of a row and rows of a slice; an array has its own.
    pub pitch: usize,
    pub height: usize,
}

impl Side {
    /// To be filled.
    pub fn nowhere() -> Self {
        let (host, array) = (std::ptr::null(), std::ptr::null_mut());
        let kind = CUmemorytype::CU_MEMORYTYPE_HOST;
        Self { kind, host, device: 0, array, x: 0, y: 0, z: 0, pitch: 0, height: 0 }
    }
}

/// A copy of rows as the driver API describes it.
pub(super) struct Slice {
    pub src: Side,
    pub dst: Side,
    pub width: usize,
    pub rows: usize,
    /// Of `cuMemcpy3DPeer`, which names both devices and needs no peer access.
    pub between: bool,
}

/// The place and the pitch of rows of an array; all are inside it.
fn rows_of_array(d: &Driver, side: &Side, width: usize, rows: usize) -> Result<(Place, u64), u32> {
    let image = d.array(side.array)?.image;
    let [x, y, z, width, rows] = [side.x, side.y, side.z, width, rows].map(|n| n as u64);
    let ends_within = |from: u64, n: u64, most: u64| from.checked_add(n).is_some_and(|end| end <= most);
    let [_, height, depth] = image.counts();
    let is_inside =
        ends_within(x, width, image.row_bytes()) && ends_within(y, rows, height) && ends_within(z, 1, depth);
    let texel = image.format.bytes();
    if !is_inside || !x.is_multiple_of(texel) || !width.is_multiple_of(texel) {
        return Err(INVALID_VALUE);
    }
    Ok((Place::Device(image.address(x, y, z)), image.pitch))
}

/// The copy that a slice describes.
fn copy_of(d: &Driver, slice: &Slice) -> Result<Copy, u32> {
    let &Slice { src, dst, width, rows, between } = slice;
    let side = |side: &Side| {
        if side.kind == CUmemorytype::CU_MEMORYTYPE_ARRAY {
            return rows_of_array(d, side, width, rows);
        }
        let row = side.z.checked_mul(side.height).and_then(|n| n.checked_add(side.y));
        let bytes = row.and_then(|row| row.checked_mul(side.pitch)).and_then(|n| n.checked_add(side.x));
        let offset = bytes.ok_or(INVALID_VALUE)?;
        if side.pitch < width || side.pitch.checked_mul(rows).is_none() {
            return Err(INVALID_VALUE);
        }
        let place = match side.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => Place::Host((side.host as usize).wrapping_add(offset)),
            CUmemorytype::CU_MEMORYTYPE_DEVICE => Place::Device(side.device.wrapping_add(offset as u64)),
            _ => place(d, side.device.wrapping_add(offset as u64)),
        };
        Ok((place, side.pitch as u64))
    };
    let ((dst, dst_pitch), (src, src_pitch)) = (side(&dst)?, side(&src)?);
    let of_array = slice.of_array();
    Ok(Copy { dst, src, width: width as u64, rows: rows as u64, dst_pitch, src_pitch, between, of_array })
}

impl Slice {
    fn of_array(&self) -> bool {
        [self.src.kind, self.dst.kind].contains(&CUmemorytype::CU_MEMORYTYPE_ARRAY)
    }
}

/// Queues the copy of a slice, and waits for it if `synchronous`.
pub(super) fn copy_slice(slice: &Slice, stream: CUstream, synchronous: bool) -> Answer {
    copy_slices(std::slice::from_ref(slice), stream, synchronous)
}

/// Queues the copies of slices one after the other, once all are found to be right.
pub(super) fn copy_slices(slices: &[Slice], stream: CUstream, synchronous: bool) -> Answer {
    let guard = enter()?;
    let copies = slices.iter().map(|slice| copy_of(&guard, slice)).collect::<Result<Vec<_>, _>>()?;
    drop(guard);
    copies.into_iter().try_for_each(|c| copy(enter()?, stream, c, synchronous))
}

/// The work of a slice as a node of a graph for a device; host memory is read when the node runs.
pub(super) fn slice_work(d: &Driver, device: usize, slice: &Slice) -> Result<Work, u32> {
    if slice.of_array() {
        return Err(no_node_of_array());
    }
    let mut c = copy_of(d, slice)?;
    if c.width == 0 || c.rows == 0 {
        return Err(INVALID_VALUE);
    }
    check_places(d, device, &mut c)?;
    Ok(c.work())
}

/// Checks types of memory, which may be no value of the enum, before a reference to them is made.
///
/// # Safety
/// The pointers are valid for reads.
pub(super) unsafe fn check_kinds(kinds: [*const CUmemorytype; 2]) -> Answer {
    // SAFETY: this function's contract; any number is an integer.
    let are_known = kinds.iter().all(|kind| matches!(unsafe { kind.cast::<c_int>().read() }, 1..=4));
    if are_known { Ok(()) } else { Err(INVALID_VALUE) }
}

fn copy_2d(p: *const CUDA_MEMCPY2D, stream: CUstream, synchronous: bool) -> Answer {
    if p.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller's descriptor.
    unsafe { check_kinds([&raw const (*p).srcMemoryType, &raw const (*p).dstMemoryType])? };
    // SAFETY: not null, so the caller's valid descriptor, whose enums have been checked.
    let p = unsafe { &*p };
    let pitch = |n: usize| if n == 0 { p.WidthInBytes } else { n };
    let slice = Slice {
        src: Side {
            kind: p.srcMemoryType,
            host: p.srcHost,
            device: p.srcDevice,
            array: p.srcArray,
            x: p.srcXInBytes,
            y: p.srcY,
            z: 0,
            pitch: pitch(p.srcPitch),
            height: p.Height,
        },
        dst: Side {
            kind: p.dstMemoryType,
            host: p.dstHost.cast_const(),
            device: p.dstDevice,
            array: p.dstArray,
            x: p.dstXInBytes,
            y: p.dstY,
            z: 0,
            pitch: pitch(p.dstPitch),
            height: p.Height,
        },
        width: p.WidthInBytes,
        rows: p.Height,
        between: false,
    };
    copy_slice(&slice, stream, synchronous)
}

api! {
    fn cuMemcpy2D_v2(p: *const CUDA_MEMCPY2D) {
        copy_2d(p, std::ptr::null_mut(), true)
    }

    fn cuMemcpy2DUnaligned_v2(p: *const CUDA_MEMCPY2D) {
        copy_2d(p, std::ptr::null_mut(), true)
    }

    fn cuMemcpy2DAsync_v2(p: *const CUDA_MEMCPY2D, stream: CUstream) {
        copy_2d(p, stream, false)
    }
}
