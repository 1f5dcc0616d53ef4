//! The descriptors of arrays, textures and surfaces as cuda.h lays them out, with plain numbers for its enums: a caller's number may
//! be no value of an enum.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use cust_raw::*;

use super::codes::*;
use crate::image::{Channel, Format};

/// Bytes between fields: a caller's are unwritten, those given to a caller are 0.
pub(super) type Pad = MaybeUninit<u32>;

/// `CUDA_ARRAY_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ArrayDescriptor {
    pub width: usize,
    pub height: usize,
    pub format: c_int,
    pub channels: c_uint,
}

/// `CUDA_ARRAY3D_DESCRIPTOR`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Array3dDescriptor {
    pub width: usize,
    pub height: usize,
    pub depth: usize,
    pub format: c_int,
    pub channels: c_uint,
    pub flags: c_uint,
    pub pad: Pad,
}

/// `CUDA_TEXTURE_DESC`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct TextureDescriptor {
    pub address: [c_int; 3],
    pub filter: c_int,
    pub flags: c_uint,
    pub anisotropy: c_uint,
    pub mipmap_filter: c_int,
    pub mipmap_bias: f32,
    pub mipmap_levels: [f32; 2],
    pub border: [f32; 4],
    pub reserved: [c_int; 12],
}

/// `CUDA_RESOURCE_VIEW_DESC`
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ViewDescriptor {
    pub format: c_int,
    pub extent: [usize; 3],
    pub levels: [c_uint; 2],
    pub layers: [c_uint; 2],
    pub reserved: [c_uint; 16],
}

/// `CUDA_RESOURCE_DESC`, whose union begins with the fields of its kind.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ResourceDescriptor {
    pub kind: c_int,
    pub pad: Pad,
    pub of: MaybeUninit<[u64; 16]>,
    pub flags: c_uint,
    pub pad_end: Pad,
}

/// `CUDA_RESOURCE_DESC::res.pitch2D`, and `res.linear`, whose extent has the bytes alone.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MemoryDescriptor<const N: usize> {
    pub at: u64,
    pub format: c_int,
    pub channels: c_uint,
    pub extent: [usize; N],
}

const _: () = assert!(size_of::<TextureDescriptor>() == size_of::<CUDA_TEXTURE_DESC>());
const _: () = assert!(size_of::<ViewDescriptor>() == size_of::<CUDA_RESOURCE_VIEW_DESC>());
const _: () = assert!(size_of::<ResourceDescriptor>() == size_of::<CUDA_RESOURCE_DESC>());
const _: () = assert!(size_of::<ArrayDescriptor>() == size_of::<CUDA_ARRAY_DESCRIPTOR>());
const _: () = assert!(size_of::<Array3dDescriptor>() == size_of::<CUDA_ARRAY3D_DESCRIPTOR>());

/// A texel's format by its numbers. A format of cuda.h that is not there is refused by its number.
pub(super) fn format(channel: c_int, channels: c_uint) -> Result<Format, u32> {
    /// Multiplanar, normalised and block-compressed formats.
    const OTHERS: std::ops::RangeInclusive<c_int> = 0x40..=0xff;
    match Channel::by_number(channel) {
        Some(channel) => Format::new(channel, channels).ok_or(INVALID_VALUE),
        None if OTHERS.contains(&channel) => {
            crate::refusal::refuse(&format!("an array of CUarray_format 0x{channel:x}"));
            Err(NOT_SUPPORTED)
        }
        None => Err(INVALID_VALUE),
    }
}
