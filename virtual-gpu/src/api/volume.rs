//! Memory in two and three dimensions: allocation by pitch, copies of volumes, rows set to a value.

use std::ffi::{c_uchar, c_uint, c_ushort};

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::entry::enter;
use super::memory::{set, set_at_once};
use super::rows::{Side, Slice, check_kinds, copy_slices};

/// Bytes to which rows are aligned.
const PITCH: usize = 512;

/// On a stream, or without one as [`set_at_once`].
fn set_rows(
    stream: Option<CUstream>,
    at: u64,
    pitch: usize,
    value: u64,
    size: u8,
    width: usize,
    rows: usize,
) -> Answer {
    let row = width.checked_mul(size as usize).ok_or(INVALID_VALUE)?;
    if rows > 1 && pitch < row {
        return Err(INVALID_VALUE);
    }
    for n in 0..rows {
        let at = at + (n * pitch) as u64;
        match stream {
            Some(stream) => set(enter()?, stream, at, value, size, width)?,
            None => set_at_once(at, value, size, width)?,
        }
    }
    Ok(())
}

/// The slices of a volume's copy, one after the other; `between` devices that the caller has named.
///
/// # Safety
/// `p` is null or a valid descriptor, but for the values of its enums.
pub(super) unsafe fn slices(p: *const CUDA_MEMCPY3D, between: bool) -> Result<Vec<Slice>, u32> {
    if p.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, so the caller's descriptor.
    unsafe { check_kinds([&raw const (*p).srcMemoryType, &raw const (*p).dstMemoryType])? };
    // SAFETY: not null, so the caller's valid descriptor, whose enums have been checked.
    let p = unsafe { &*p };
    if p.srcLOD != 0 || p.dstLOD != 0 {
        return Err(INVALID_VALUE);
    }
    let or = |n: usize, least: usize| if n == 0 { least } else { n };
    let (src_pitch, dst_pitch) = (or(p.srcPitch, p.WidthInBytes), or(p.dstPitch, p.WidthInBytes));
    let (src_height, dst_height) = (or(p.srcHeight, p.Height), or(p.dstHeight, p.Height));
    let is_array = |kind| kind == CUmemorytype::CU_MEMORYTYPE_ARRAY;
    let is_low = |kind, height: usize| !is_array(kind) && height < p.Height;
    if is_low(p.srcMemoryType, src_height) || is_low(p.dstMemoryType, dst_height) {
        return Err(INVALID_VALUE);
    }
    let slice = |n: usize| {
        Ok(Slice {
            src: Side {
                kind: p.srcMemoryType,
                host: p.srcHost,
                device: p.srcDevice,
                array: p.srcArray,
                x: p.srcXInBytes,
                y: p.srcY,
                z: p.srcZ.checked_add(n).ok_or(INVALID_VALUE)?,
                pitch: src_pitch,
                height: src_height,
            },
            dst: Side {
                kind: p.dstMemoryType,
                host: p.dstHost.cast_const(),
                device: p.dstDevice,
                array: p.dstArray,
                x: p.dstXInBytes,
                y: p.dstY,
                z: p.dstZ.checked_add(n).ok_or(INVALID_VALUE)?,
                pitch: dst_pitch,
                height: dst_height,
            },
            width: p.WidthInBytes,
            rows: p.Height,
            between,
        })
    };
    (0..p.Depth).map(slice).collect()
}

/// Copies a volume.
fn copy_volume(p: *const CUDA_MEMCPY3D, stream: CUstream, synchronous: bool) -> Answer {
    // SAFETY: the caller promised the driver API a descriptor.
    let slices = unsafe { slices(p, false)? };
    copy_slices(&slices, stream, synchronous)
}

api! {
    fn cuMemAllocPitch_v2(
        ptr: *mut CUdeviceptr => Out<CUdeviceptr>, pitch: *mut usize => Out<usize>, width: usize, height: usize, element: c_uint,
    ) {
        if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
            return Err(INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(OUT_OF_MEMORY)?;
        let bytes = row.checked_mul(height).ok_or(OUT_OF_MEMORY)?;
        let at = super::memory::allocate(&mut *enter()?, bytes)?;
        ptr.write(at)?;
        pitch.write(row)
    }

    fn cuMemcpy3D_v2(p: *const CUDA_MEMCPY3D) {
        copy_volume(p, std::ptr::null_mut(), true)
    }

    fn cuMemcpy3DAsync_v2(p: *const CUDA_MEMCPY3D, stream: CUstream) {
        copy_volume(p, stream, false)
    }

    fn cuMemsetD2D8_v2(dst: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize) {
        set_rows(None, dst, pitch, value as u64, 1, width, height)
    }

    fn cuMemsetD2D16_v2(dst: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize) {
        set_rows(None, dst, pitch, value as u64, 2, width, height)
    }

    fn cuMemsetD2D32_v2(dst: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize) {
        set_rows(None, dst, pitch, value as u64, 4, width, height)
    }

    fn cuMemsetD2D8Async(dst: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream) {
        set_rows(Some(stream), dst, pitch, value as u64, 1, width, height)
    }

    fn cuMemsetD2D16Async(dst: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream) {
        set_rows(Some(stream), dst, pitch, value as u64, 2, width, height)
    }

    fn cuMemsetD2D32Async(dst: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream) {
        set_rows(Some(stream), dst, pitch, value as u64, 4, width, height)
    }
}
