//! CUDA arrays: their making, their descriptors, and copies of one dimension. An array is an allocation of its device.

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::descriptors::{Array3dDescriptor, ArrayDescriptor, Pad, format};
use super::engine::run_until;
use super::entry::enter;
use super::limits;
use super::memory::allocate;
use super::rows::{Side, Slice, copy_slice};
use super::state::{Array, Driver};
use crate::image::{Geometry, Image};
use crate::refusal::refuse;

const LAYERED: c_uint = 1;
const SURFACE: c_uint = 2;
const CUBEMAP: c_uint = 4;
const GATHER: c_uint = 8;
/// Depth textures, colour attachments, sparse arrays, and arrays whose memory is mapped later.
const OTHER_FLAGS: c_uint = 16 | 32 | 64 | 128;

/// Bytes to which an array's rows are aligned: those of the largest access to a surface.
const ROW_ALIGNMENT: u64 = 16;

/// Whether the flags and extents are those of a kind of array, and which geometry it has. Width, height, depth; 0 for a dimension that
/// an array lacks.
fn geometry([width, height, depth]: [u64; 3], flags: c_uint) -> Option<Geometry> {
    let [layered, surface, cubemap, gather] =
        [LAYERED, SURFACE, CUBEMAP, GATHER].map(|flag| flags & flag != 0);
    let within = |most: [u64; 3]| {
        let fits = |(n, most): (u64, u64)| if most == 0 { n == 0 } else { (1..=most).contains(&n) };
        [width, height, depth].into_iter().zip(most).all(fits)
    };
    let [wide_2d, high_2d] = limits::EXTENT_2D;
    let (fits, geometry) = match (cubemap, layered, height, depth) {
        (true, false, ..) => {
            (width == height && within([limits::SIDE, limits::SIDE, 6]) && depth == 6, Geometry::A2d)
        }
        (true, true, ..) => {
            let fits = within([limits::SIDE, limits::SIDE, limits::CUBEMAP_LAYERS]);
            (width == height && fits && depth.is_multiple_of(6), Geometry::A2d)
        }
        (false, true, 0, _) => (within([limits::SIDE, 0, limits::LAYERS]), Geometry::A1d),
        (false, true, ..) => (within([limits::SIDE, limits::SIDE, limits::LAYERS]), Geometry::A2d),
        (false, false, 0, 0) => {
            let most = if surface { limits::SIDE } else { limits::WIDTH_1D };
            (within([most, 0, 0]), Geometry::D1)
        }
        (false, false, _, 0) if gather => (within([limits::SIDE, limits::SIDE, 0]), Geometry::D2),
        (false, false, _, 0) => (within([wide_2d, high_2d, 0]), Geometry::D2),
        (false, false, ..) => {
            (within([limits::SIDE_3D; 3]) || !surface && within(limits::ALTERNATE_3D), Geometry::D3)
        }
    };
    (fits && (!gather || geometry == Geometry::D2)).then_some(geometry)
}

fn create(out: Out<CUarray>, of: Array3dDescriptor) -> Answer {
    let d = &mut *enter()?;
    let flags = of.flags;
    if flags & OTHER_FLAGS != 0 {
        refuse(&format!("an array with the flags 0x{:x}", flags & OTHER_FLAGS));
        return Err(NOT_SUPPORTED);
    }
    if flags & !(LAYERED | SURFACE | CUBEMAP | GATHER) != 0 {
        return Err(INVALID_VALUE);
    }
    let format = format(of.format, of.channels)?;
    let extent = [of.width, of.height, of.depth].map(|n| n as u64);
    let geometry = geometry(extent, flags).ok_or(INVALID_VALUE)?;
    let pitch = (extent[0] * format.bytes()).next_multiple_of(ROW_ALIGNMENT);
    let mut image = Image { base: 0, format, geometry, extent, pitch };
    let bytes = image.slice_bytes().checked_mul(image.counts()[2]).ok_or(OUT_OF_MEMORY)?;
    image.base = allocate(d, usize::try_from(bytes).map_err(|_| OUT_OF_MEMORY)?)?;
    let (device, handle) = (d.current, d.handle());
    let [for_surfaces, for_gathers, is_cubemap] = [SURFACE, GATHER, CUBEMAP].map(|flag| flags & flag != 0);
    d.arrays.insert(handle, Array { device, image, flags, for_surfaces, for_gathers, is_cubemap });
    out.write(handle as CUarray)
}

/// The descriptor of an array.
fn describe(d: &Driver, array: CUarray) -> Result<Array3dDescriptor, u32> {
    let Array { image, flags, .. } = *d.array(array)?;
    let [width, height, depth] = image.extent.map(|n| n as usize);
    let (format, channels) = (image.format.channel as i32, image.format.channels.into());
    Ok(Array3dDescriptor { width, height, depth, format, channels, flags, pad: Pad::zeroed() })
}

/// Of an array of one dimension, from a byte on.
fn row(array: CUarray, x: usize) -> Side {
    Side { kind: CUmemorytype::CU_MEMORYTYPE_ARRAY, array, x, ..Side::nowhere() }
}

fn host(at: *const c_void) -> Side {
    Side { kind: CUmemorytype::CU_MEMORYTYPE_HOST, host: at, ..Side::nowhere() }
}

fn device(at: CUdeviceptr) -> Side {
    Side { kind: CUmemorytype::CU_MEMORYTYPE_DEVICE, device: at, ..Side::nowhere() }
}

/// Copies bytes of one row.
fn copy_row(dst: Side, src: Side, bytes: usize, stream: CUstream, synchronous: bool) -> Answer {
    let guard = enter()?;
    for side in [&dst, &src].into_iter().filter(|side| side.kind == CUmemorytype::CU_MEMORYTYPE_ARRAY) {
        if guard.array(side.array)?.image.geometry != Geometry::D1 {
            return Err(INVALID_VALUE);
        }
    }
    drop(guard);
    let at_pitch = |side: Side| Side { pitch: bytes, height: 1, ..side };
    let slice = Slice { src: at_pitch(src), dst: at_pitch(dst), width: bytes, rows: 1, between: false };
    copy_slice(&slice, stream, synchronous)
}

api! {
    fn cuArrayCreate_v2(out: *mut CUarray => Out<CUarray>, of: *const CUDA_ARRAY_DESCRIPTOR) {
        // SAFETY: null or the caller's descriptor, of plain numbers here.
        let of = unsafe { of.cast::<ArrayDescriptor>().as_ref() }.ok_or(INVALID_VALUE)?;
        let &ArrayDescriptor { width, height, format, channels } = of;
        create(out, Array3dDescriptor { width, height, depth: 0, format, channels, flags: 0, pad: Pad::zeroed() })
    }

    fn cuArray3DCreate_v2(out: *mut CUarray => Out<CUarray>, of: *const CUDA_ARRAY3D_DESCRIPTOR) {
        // SAFETY: null or the caller's descriptor, of plain numbers here.
        let of = unsafe { of.cast::<Array3dDescriptor>().as_ref() }.ok_or(INVALID_VALUE)?;
        create(out, *of)
    }

    fn cuArrayGetDescriptor_v2(out: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) {
        let Array3dDescriptor { width, height, format, channels, .. } = describe(&*enter()?, array)?;
        Out(out.cast::<ArrayDescriptor>()).write(ArrayDescriptor { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(out: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) {
        let descriptor = describe(&*enter()?, array)?;
        Out(out.cast::<Array3dDescriptor>()).write(descriptor)
    }

    /// Waits for the whole device first, as `cuMemFree` does.
    fn cuArrayDestroy(array: CUarray) {
        let guard = enter()?;
        let device = guard.array(array)?.device;
        if guard.captures.values().any(|c| !c.relaxed) {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let mut guard = run_until(guard, |d| d.is_idle(device))?;
        let d = &mut *guard;
        d.observe_device(device);
        let array = d.arrays.remove(&(array as u64)).ok_or(INVALID_HANDLE)?;
        d.devices[device].gpu.memory.free(array.image.base).map_err(memory_code)?;
        d.fault_of(device)
    }

    fn cuMemcpyHtoA_v2(dst: CUarray, offset: usize, src: *const c_void, bytes: usize) {
        copy_row(row(dst, offset), host(src), bytes, null_mut(), true)
    }

    fn cuMemcpyAtoH_v2(dst: *mut c_void, src: CUarray, offset: usize, bytes: usize) {
        copy_row(host(dst), row(src, offset), bytes, null_mut(), true)
    }

    /// Between memory of the device the driver does not wait, so neither does this.
    fn cuMemcpyDtoA_v2(dst: CUarray, offset: usize, src: CUdeviceptr, bytes: usize) {
        copy_row(row(dst, offset), device(src), bytes, null_mut(), false)
    }

    fn cuMemcpyAtoD_v2(dst: CUdeviceptr, src: CUarray, offset: usize, bytes: usize) {
        copy_row(device(dst), row(src, offset), bytes, null_mut(), false)
    }

    fn cuMemcpyAtoA_v2(dst: CUarray, dst_offset: usize, src: CUarray, src_offset: usize, bytes: usize) {
        copy_row(row(dst, dst_offset), row(src, src_offset), bytes, null_mut(), false)
    }

    fn cuMemcpyHtoAAsync_v2(dst: CUarray, offset: usize, src: *const c_void, bytes: usize, stream: CUstream) {
        copy_row(row(dst, offset), host(src), bytes, stream, false)
    }

    fn cuMemcpyAtoHAsync_v2(dst: *mut c_void, src: CUarray, offset: usize, bytes: usize, stream: CUstream) {
        copy_row(host(dst), row(src, offset), bytes, stream, false)
    }
}
