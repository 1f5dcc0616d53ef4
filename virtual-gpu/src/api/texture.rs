//! Texture and surface objects: their making from arrays and memory, and what they were made with.

use std::ffi::{c_int, c_uint};
use std::mem::MaybeUninit;

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::descriptors::{
    MemoryDescriptor, Pad, ResourceDescriptor, TextureDescriptor, ViewDescriptor, format,
};
use super::entry::enter;
use super::limits;
use super::memory::device_range;
use super::resource::Resource;
use super::state::{Array, Driver, Object};
use crate::image::{Channel, Format, Geometry, Image};
use crate::refusal::refuse;
use crate::texture::{AddressMode, Object as Seen, Texture};

const ARRAY: c_int = 0;
const MIPMAPPED_ARRAY: c_int = 1;
const LINEAR: c_int = 2;
const PITCH_2D: c_int = 3;

pub(super) const READ_AS_INTEGER: c_uint = 1;
pub(super) const NORMALIZED: c_uint = 2;
pub(super) const SRGB: c_uint = 0x10;
pub(super) const NO_TRILINEAR_OPTIMIZATION: c_uint = 0x20;
const SEAMLESS_CUBEMAP: c_uint = 0x40;

pub(super) fn refused<T>(what: &str) -> Result<T, u32> {
    refuse(what);
    Err(NOT_SUPPORTED)
}

/// The memory of device memory as a texture: its address is aligned and its bytes are those of one allocation.
fn memory_of(d: &Driver, at: u64, bytes: u64) -> Answer {
    if at == 0 || !at.is_multiple_of(limits::TEXTURE_ALIGNMENT) {
        return Err(INVALID_VALUE);
    }
    device_range(d, at, bytes)
}

/// Linear memory as a texture.
pub(super) fn linear(d: &Driver, at: u64, format: Format, bytes: u64) -> Result<(Resource, Image), u32> {
    let width = bytes / format.bytes();
    if width == 0 || width > limits::LINEAR_WIDTH {
        return Err(INVALID_VALUE);
    }
    memory_of(d, at, bytes)?;
    let (geometry, extent) = (Geometry::D1, [width, 0, 0]);
    let image = Image { base: at, format, geometry, extent, pitch: bytes };
    Ok((Resource::Linear { at, format, bytes }, image))
}

/// Rows of memory as a texture: width and height in texels, pitch in bytes.
pub(super) fn pitched(
    d: &Driver,
    at: u64,
    format: Format,
    [width, height, pitch]: [u64; 3],
) -> Result<(Resource, Image), u32> {
    let [most_width, most_height] = limits::PITCH_2D;
    let fits = (1..=most_width).contains(&width) && (1..=most_height).contains(&height);
    if !fits || pitch > limits::MOST_PITCH || !pitch.is_multiple_of(limits::PITCH_ALIGNMENT) {
        return Err(INVALID_VALUE);
    }
    let row = width * format.bytes();
    if pitch < row {
        return Err(INVALID_VALUE);
    }
    memory_of(d, at, pitch * (height - 1) + row)?;
    let (geometry, extent) = (Geometry::D2, [width, height, 0]);
    let image = Image { base: at, format, geometry, extent, pitch };
    Ok((Resource::Pitch2d { at, format, width, height, pitch }, image))
}

/// What a descriptor of a resource names.
///
/// # Safety
/// `p` is null or a valid descriptor, whose union has the fields of its kind.
unsafe fn resource(d: &Driver, p: *const CUDA_RESOURCE_DESC) -> Result<(Resource, Image), u32> {
    // SAFETY: null or a descriptor: this function's contract. The mirror has plain numbers, and a union that may be unwritten.
    let p = unsafe { p.cast::<ResourceDescriptor>().as_ref() }.ok_or(INVALID_VALUE)?;
    if p.flags != 0 {
        return Err(INVALID_VALUE);
    }
    match p.kind {
        ARRAY => {
            // SAFETY: an array's union has its handle: this function's contract.
            let handle = unsafe { p.of.as_ptr().cast::<u64>().read() };
            let array = d.array(handle as CUarray).map_err(|_| INVALID_VALUE)?;
            if array.device != d.current {
                return Err(INVALID_VALUE);
            }
            Ok((Resource::Array(handle), array.image))
        }
        MIPMAPPED_ARRAY => refused("a texture or surface of a mipmapped array"),
        LINEAR => {
            // SAFETY: the union of linear memory has these fields: this function's contract.
            let of = unsafe { p.of.as_ptr().cast::<MemoryDescriptor<1>>().read() };
            linear(d, of.at, format(of.format, of.channels)?, of.extent[0] as u64)
        }
        PITCH_2D => {
            // SAFETY: the union of pitched memory has these fields: this function's contract.
            let of = unsafe { p.of.as_ptr().cast::<MemoryDescriptor<3>>().read() };
            pitched(d, of.at, format(of.format, of.channels)?, of.extent.map(|n| n as u64))
        }
        _ => Err(INVALID_VALUE),
    }
}

/// The format of a view by the number of `CUresourceViewFormat`; `None` is the array's own.
fn view_format(number: c_int) -> Result<Option<Format>, u32> {
    use Channel::*;
    match number {
        0 => Ok(None),
        1..=24 => {
            let n = number as usize - 1;
            let channel = [U8, S8, U16, S16, U32, S32, F16, F32][n / 3];
            Ok(Format::new(channel, [1, 2, 4][n % 3]))
        }
        25..=34 => refused("a view of block-compressed texels"),
        _ => Err(INVALID_VALUE),
    }
}

/// An array's image as a view shows it.
fn viewed(image: Image, view: &ViewDescriptor) -> Result<Image, u32> {
    let format = view_format(view.format)?.unwrap_or(image.format);
    let layered = image.geometry.is_layered();
    let [first, last] = view.layers.map(u64::from);
    let fits = format.bytes() == image.format.bytes()
        && view.extent.map(|n| n as u64) == image.extent
        && view.levels == [0, 0]
        && if layered { first <= last && last < image.extent[2] } else { first == 0 && last == 0 };
    if !fits {
        return Err(INVALID_VALUE);
    }
    let mut seen = Image { format, ..image };
    if layered {
        seen.base += first * image.slice_bytes();
        seen.extent[2] = last - first + 1;
    }
    Ok(seen)
}

/// A texture as its descriptor says that it is sampled; `array` is what it was made of, if that is an array.
pub(super) fn sampled(
    of: &TextureDescriptor,
    image: Image,
    resource: Resource,
    array: Option<&Array>,
) -> Result<Texture, u32> {
    let known = READ_AS_INTEGER | NORMALIZED | SRGB | NO_TRILINEAR_OPTIMIZATION | SEAMLESS_CUBEMAP;
    if of.flags & !known != 0 || !matches!(of.mipmap_filter, 0 | 1) {
        return Err(INVALID_VALUE);
    }
    if of.flags & SEAMLESS_CUBEMAP != 0 {
        return match array.is_some_and(|array| array.is_cubemap) {
            true => refused("a texture with seamless filters of a cubemap"),
            false => Err(INVALID_VALUE),
        };
    }
    if of.flags & SRGB != 0 {
        return refused("a texture with conversion from sRGB");
    }
    if of.anisotropy > 1 {
        return refused("a texture with an anisotropic filter");
    }
    let normalized = of.flags & NORMALIZED != 0;
    let mut address = [AddressMode::Clamp; 3];
    let mut linear = false;
    // linear memory has neither modes nor filters, whatever is said of them
    if !matches!(resource, Resource::Linear { .. }) {
        for (mode, &number) in address.iter_mut().zip(&of.address) {
            *mode = match AddressMode::by_number(number).ok_or(INVALID_VALUE)? {
                AddressMode::Wrap | AddressMode::Mirror if !normalized => AddressMode::Clamp,
                mode => mode,
            };
        }
        linear = match of.filter {
            0 => false,
            1 => true,
            _ => return Err(INVALID_VALUE),
        };
    }
    let promotes = of.flags & READ_AS_INTEGER == 0 && image.format.channel.is_promoted();
    let border = of.border;
    let for_gathers = array.is_none_or(|array| array.for_gathers);
    let texture = Texture { image, address, linear, normalized, promotes, border, for_gathers };
    if linear && !texture.gives_floats() {
        return Err(INVALID_VALUE); // a filter's result is a float
    }
    Ok(texture)
}

/// The object of a handle, if it is a texture, or a surface.
fn object(d: &Driver, handle: u64, texture: bool) -> Result<&Object, u32> {
    d.objects.get(&handle).filter(|object| object.sampling.is_some() == texture).ok_or(INVALID_VALUE)
}

fn destroy(handle: u64, texture: bool) -> Answer {
    let d = &mut *enter()?;
    object(d, handle, texture)?;
    d.objects.remove(&handle);
    Ok(())
}

fn write_resource(out: *mut CUDA_RESOURCE_DESC, handle: u64, texture: bool) -> Answer {
    let resource = object(&*enter()?, handle, texture)?.resource;
    let mut words = [0u64; 16];
    let format_word = |format: Format| format.channel as u64 | u64::from(format.channels) << 32;
    let kind = match resource {
        Resource::Array(array) => {
            words[0] = array;
            ARRAY
        }
        Resource::Linear { at, format, bytes } => {
            words[..3].copy_from_slice(&[at, format_word(format), bytes]);
            LINEAR
        }
        Resource::Pitch2d { at, format, width, height, pitch } => {
            words[..5].copy_from_slice(&[at, format_word(format), width, height, pitch]);
            PITCH_2D
        }
    };
    Out(out.cast::<ResourceDescriptor>()).write(ResourceDescriptor {
        kind,
        pad: Pad::zeroed(),
        of: MaybeUninit::new(words),
        flags: 0,
        pad_end: Pad::zeroed(),
    })
}

fn sampling(handle: u64) -> Result<(TextureDescriptor, Option<ViewDescriptor>), u32> {
    object(&*enter()?, handle, true)?.sampling.ok_or(INVALID_VALUE)
}

api! {
    fn cuTexObjectCreate(
        out: *mut CUtexObject => Out<CUtexObject>, of: *const CUDA_RESOURCE_DESC, texture: *const CUDA_TEXTURE_DESC,
        view: *const CUDA_RESOURCE_VIEW_DESC,
    ) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API a descriptor.
        let (resource, image) = unsafe { resource(d, of)? };
        // SAFETY: null or the caller's descriptor, of plain numbers here.
        let texture = *unsafe { texture.cast::<TextureDescriptor>().as_ref() }.ok_or(INVALID_VALUE)?;
        // SAFETY: null or the caller's descriptor, of plain numbers here.
        let view = unsafe { view.cast::<ViewDescriptor>().as_ref() }.copied();
        let array = d.array_of_resource(resource);
        let image = match (&view, array) {
            (Some(view), Some(_)) => viewed(image, view)?,
            (Some(_), None) => return Err(INVALID_VALUE),
            (None, _) => image,
        };
        let seen = sampled(&texture, image, resource, array)?;
        let (device, handle) = (d.current, d.handle());
        let (sampling, seen) = (Some((texture, view)), Seen::Texture(seen));
        d.objects.insert(handle, Object { device, resource, sampling, seen });
        out.write(handle)
    }

    /// Work that is queued and names the object is a finding when it runs: nothing is documented to wait for it.
    fn cuTexObjectDestroy(texture: CUtexObject) {
        destroy(texture, true)
    }

    fn cuTexObjectGetResourceDesc(out: *mut CUDA_RESOURCE_DESC, texture: CUtexObject) {
        write_resource(out, texture, true)
    }

    fn cuTexObjectGetTextureDesc(out: *mut CUDA_TEXTURE_DESC, texture: CUtexObject) {
        let (descriptor, _) = sampling(texture)?;
        Out(out.cast::<TextureDescriptor>()).write(descriptor)
    }

    fn cuTexObjectGetResourceViewDesc(out: *mut CUDA_RESOURCE_VIEW_DESC, texture: CUtexObject) {
        let view = sampling(texture)?.1.ok_or(INVALID_VALUE)?;
        Out(out.cast::<ViewDescriptor>()).write(view)
    }

    fn cuSurfObjectCreate(out: *mut CUsurfObject => Out<CUsurfObject>, of: *const CUDA_RESOURCE_DESC) {
        let d = &mut *enter()?;
        // SAFETY: the caller promised the driver API a descriptor.
        let (resource, image) = unsafe { resource(d, of)? };
        let Resource::Array(array) = resource else { return Err(INVALID_VALUE) };
        if !d.arrays.get(&array).is_some_and(|array| array.for_surfaces) {
            return Err(INVALID_VALUE);
        }
        let (device, handle) = (d.current, d.handle());
        d.objects.insert(handle, Object { device, resource, sampling: None, seen: Seen::Surface(image) });
        out.write(handle)
    }

    fn cuSurfObjectDestroy(surface: CUsurfObject) {
        destroy(surface, false)
    }

    fn cuSurfObjectGetResourceDesc(out: *mut CUDA_RESOURCE_DESC, surface: CUsurfObject) {
        write_resource(out, surface, false)
    }
}
