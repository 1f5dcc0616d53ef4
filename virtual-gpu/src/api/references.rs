//! Texture and surface references of modules: what is bound to them, and how they are sampled. A launch takes both as they are when
//! it is queued.

use std::ffi::{c_int, c_uint};

use cust_raw::*;

use super::call::{Out, api};
use super::codes::*;
use super::descriptors::{ArrayDescriptor, TextureDescriptor, format};
use super::entry::enter;
use super::limits;
use super::resource::{Bound, Resource};
use super::state::{Driver, Reference};
use super::texture::{
    NO_TRILINEAR_OPTIMIZATION, NORMALIZED, READ_AS_INTEGER, SRGB, linear, pitched, refused, sampled,
};
use crate::exec::LoadedModule;
use crate::image::Image;
use crate::ptx::VarSpace;
use crate::texture::Object as Seen;

/// `CU_TRSA_OVERRIDE_FORMAT`, which a binding must say: the reference takes the array's format.
const OVERRIDE_FORMAT: c_uint = 1;

/// A reference that nothing was said of: coordinates are clamped, the nearest texel is read.
const DEFAULT: TextureDescriptor = TextureDescriptor {
    address: [1; 3],
    filter: 0,
    flags: 0,
    anisotropy: 1,
    mipmap_filter: 0,
    mipmap_bias: 0.0,
    mipmap_levels: [0.0; 2],
    border: [0.0; 4],
    reserved: [0; 12],
};

/// The handle of a module's reference: its variable's address.
pub(super) fn reference(d: &mut Driver, module: CUmodule, name: &str, space: VarSpace) -> Result<u64, u32> {
    let module = module as u64;
    let (at, _) = d.module(module)?.loaded.variable(name, &[space]).ok_or(NOT_FOUND)?;
    let is_surface = space == VarSpace::Surface;
    let fresh = Reference { module, is_surface, format: None, sampling: DEFAULT, bound: None };
    d.references.entry(at).or_insert(fresh);
    Ok(at)
}

/// A live texture reference, or a surface reference, and its device.
fn live(d: &mut Driver, handle: u64, is_surface: bool) -> Result<(&mut Reference, usize), u32> {
    let reference =
        d.references.get_mut(&handle).filter(|r| r.is_surface == is_surface).ok_or(INVALID_VALUE)?;
    // those of an unloaded module are none
    let device = d.modules.get(&reference.module).ok_or(INVALID_VALUE)?.device;
    Ok((reference, device))
}

fn texture(d: &mut Driver, handle: CUtexref) -> Result<&mut Reference, u32> {
    live(d, handle as u64, false).map(|(reference, _)| reference)
}

/// Changes how a texture reference is sampled.
fn set(handle: CUtexref, change: impl FnOnce(&mut TextureDescriptor)) -> Answer {
    change(&mut texture(&mut *enter()?, handle)?.sampling);
    Ok(())
}

/// How a texture reference is sampled.
fn get(handle: CUtexref) -> Result<TextureDescriptor, u32> {
    texture(&mut *enter()?, handle).map(|reference| reference.sampling)
}

fn dimension(dimension: c_int) -> Result<usize, u32> {
    usize::try_from(dimension).ok().filter(|&n| n < 3).ok_or(INVALID_VALUE)
}

/// Binds memory or an array.
fn bind(d: &mut Driver, handle: u64, is_surface: bool, bound: (Resource, Image)) -> Answer {
    live(d, handle, is_surface)?.0.bound = Some(bound);
    Ok(())
}

fn bind_array(handle: u64, is_surface: bool, array: CUarray) -> Answer {
    let d = &mut *enter()?;
    let (_, device) = live(d, handle, is_surface)?;
    let of = d.array(array).map_err(|_| INVALID_VALUE)?;
    if of.device != device || is_surface && !of.for_surfaces {
        return Err(INVALID_VALUE);
    }
    let image = of.image;
    bind(d, handle, is_surface, (Resource::Array(array as u64), image))
}

fn array_of(handle: u64, is_surface: bool) -> Result<u64, u32> {
    match live(&mut *enter()?, handle, is_surface)?.0.bound {
        Some((Resource::Array(array), _)) => Ok(array),
        _ => Err(INVALID_VALUE),
    }
}

impl Driver {
    /// What a launch of a module sees of its references.
    pub(super) fn bound_references(&self, loaded: &LoadedModule) -> Result<Vec<Bound>, u32> {
        let of = |at: u64| {
            let Some((reference, (resource, image))) =
                self.references.get(&at).and_then(|reference| Some((reference, reference.bound?)))
            else {
                return Ok(Bound { at, resource: None, seen: Seen::Unbound });
            };
            let seen = match reference.is_surface {
                true => Seen::Surface(image),
                false => Seen::Texture(sampled(
                    &reference.sampling,
                    image,
                    resource,
                    self.array_of_resource(resource),
                )?),
            };
            Ok(Bound { at, resource: Some(resource), seen })
        };
        loaded.references().map(of).collect()
    }
}

api! {
    fn cuTexRefSetArray(reference: CUtexref, array: CUarray, flags: c_uint) {
        if flags != OVERRIDE_FORMAT {
            return Err(INVALID_VALUE);
        }
        bind_array(reference as u64, false, array)
    }

    /// Memory at an address that is not aligned is bound from the aligned one below; the bytes between are told.
    fn cuTexRefSetAddress_v2(offset: *mut usize => Out<usize>, reference: CUtexref, at: CUdeviceptr, bytes: usize) {
        let d = &mut *enter()?;
        let format = texture(d, reference)?.format.ok_or(INVALID_VALUE)?;
        let below = at % limits::TEXTURE_ALIGNMENT;
        if !below.is_multiple_of(format.bytes()) || below != 0 && offset.0.is_null() {
            return Err(INVALID_VALUE);
        }
        let bytes = (bytes as u64).checked_add(below).ok_or(INVALID_VALUE)?;
        let bound = linear(d, at - below, format, bytes)?;
        bind(d, reference as u64, false, bound)?;
        offset.write_unless_null(below as usize);
        Ok(())
    }

    fn cuTexRefSetAddress2D_v3(reference: CUtexref, of: *const CUDA_ARRAY_DESCRIPTOR, at: CUdeviceptr, pitch: usize) {
        let d = &mut *enter()?;
        // SAFETY: null or the caller's descriptor, of plain numbers here.
        let of = unsafe { of.cast::<ArrayDescriptor>().as_ref() }.ok_or(INVALID_VALUE)?;
        let format = format(of.format, of.channels)?;
        let bound = pitched(d, at, format, [of.width, of.height, pitch].map(|n| n as u64))?;
        texture(d, reference)?.format = Some(format);
        bind(d, reference as u64, false, bound)
    }

    fn cuTexRefSetFormat(reference: CUtexref, channel: CUarray_format => c_int, channels: c_int) {
        let format = format(channel, c_uint::try_from(channels).map_err(|_| INVALID_VALUE)?)?;
        texture(&mut *enter()?, reference)?.format = Some(format);
        Ok(())
    }

    fn cuTexRefSetAddressMode(reference: CUtexref, of: c_int, mode: CUaddress_mode => c_int) {
        let n = dimension(of)?;
        if !(0..=3).contains(&mode) {
            return Err(INVALID_VALUE);
        }
        set(reference, |sampling| sampling.address[n] = mode)
    }

    fn cuTexRefSetFilterMode(reference: CUtexref, mode: CUfilter_mode => c_int) {
        if !(0..=1).contains(&mode) {
            return Err(INVALID_VALUE);
        }
        set(reference, |sampling| sampling.filter = mode)
    }

    /// Of mipmaps, which no texture here has.
    fn cuTexRefSetMipmapFilterMode(reference: CUtexref, mode: CUfilter_mode => c_int) {
        if !(0..=1).contains(&mode) {
            return Err(INVALID_VALUE);
        }
        set(reference, |sampling| sampling.mipmap_filter = mode)
    }

    fn cuTexRefSetMipmapLevelBias(reference: CUtexref, bias: f32) {
        set(reference, |sampling| sampling.mipmap_bias = bias)
    }

    fn cuTexRefSetMipmapLevelClamp(reference: CUtexref, least: f32, most: f32) {
        set(reference, |sampling| sampling.mipmap_levels = [least, most])
    }

    fn cuTexRefSetMaxAnisotropy(reference: CUtexref, most: c_uint) {
        if most > 1 {
            return refused("a texture reference with an anisotropic filter");
        }
        set(reference, |sampling| sampling.anisotropy = most)
    }

    fn cuTexRefSetBorderColor(reference: CUtexref, color: *mut f32) {
        // SAFETY: null or the caller's four channels.
        let color = *unsafe { color.cast::<[f32; 4]>().as_ref() }.ok_or(INVALID_VALUE)?;
        set(reference, |sampling| sampling.border = color)
    }

    fn cuTexRefSetFlags(reference: CUtexref, flags: c_uint) {
        if flags & !(READ_AS_INTEGER | NORMALIZED | SRGB | NO_TRILINEAR_OPTIMIZATION) != 0 {
            return Err(INVALID_VALUE);
        }
        if flags & SRGB != 0 {
            return refused("a texture reference with conversion from sRGB");
        }
        set(reference, |sampling| sampling.flags = flags)
    }

    fn cuTexRefGetAddress_v2(out: *mut CUdeviceptr => Out<CUdeviceptr>, reference: CUtexref) {
        match texture(&mut *enter()?, reference)?.bound {
            Some((Resource::Linear { at, .. } | Resource::Pitch2d { at, .. }, _)) => out.write(at),
            _ => Err(INVALID_VALUE),
        }
    }

    fn cuTexRefGetArray(out: *mut CUarray => Out<CUarray>, reference: CUtexref) {
        let array = array_of(reference as u64, false)?;
        out.write(array as CUarray)
    }

    fn cuTexRefGetAddressMode(mode: *mut CUaddress_mode => Out<c_int>, reference: CUtexref, of: c_int) {
        let n = dimension(of)?;
        mode.write(get(reference)?.address[n])
    }

    fn cuTexRefGetFilterMode(mode: *mut CUfilter_mode => Out<c_int>, reference: CUtexref) {
        mode.write(get(reference)?.filter)
    }

    fn cuTexRefGetMipmapFilterMode(mode: *mut CUfilter_mode => Out<c_int>, reference: CUtexref) {
        mode.write(get(reference)?.mipmap_filter)
    }

    fn cuTexRefGetMipmapLevelBias(bias: *mut f32 => Out<f32>, reference: CUtexref) {
        bias.write(get(reference)?.mipmap_bias)
    }

    fn cuTexRefGetMipmapLevelClamp(least: *mut f32 => Out<f32>, most: *mut f32 => Out<f32>, reference: CUtexref) {
        let levels = get(reference)?.mipmap_levels;
        least.write(levels[0])?;
        most.write(levels[1])
    }

    fn cuTexRefGetMaxAnisotropy(most: *mut c_int => Out<c_int>, reference: CUtexref) {
        most.write(get(reference)?.anisotropy as c_int)
    }

    fn cuTexRefGetBorderColor(color: *mut f32, reference: CUtexref) {
        Out(color.cast::<[f32; 4]>()).write(get(reference)?.border)
    }

    fn cuTexRefGetFlags(flags: *mut c_uint => Out<c_uint>, reference: CUtexref) {
        flags.write(get(reference)?.flags)
    }

    fn cuTexRefGetFormat(channel: *mut CUarray_format => Out<c_int>, channels: *mut c_int => Out<c_int>, reference: CUtexref) {
        let d = &mut *enter()?;
        let reference = texture(d, reference)?;
        let format = match reference.bound {
            Some((Resource::Array(_), image)) => Some(image.format),
            _ => reference.format,
        };
        let format = format.ok_or(INVALID_VALUE)?;
        channel.write_unless_null(format.channel as c_int);
        channels.write_unless_null(format.channels.into());
        Ok(())
    }

    fn cuSurfRefSetArray(reference: CUsurfref, array: CUarray, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        bind_array(reference as u64, true, array)
    }

    fn cuSurfRefGetArray(out: *mut CUarray => Out<CUarray>, reference: CUsurfref) {
        let array = array_of(reference as u64, true)?;
        out.write(array as CUarray)
    }
}
