//! The decoded form of instructions on textures and surfaces. The object's handle is row `a` (64-bit), the coordinates are list `c`,
//! a layer before the others.

use super::words::words;
use crate::image::Geometry;

words! {
    /// What a surface instruction does with an address outside of the surface.
    Outside { Trap "trap" Clamp "clamp" Zero "zero" }
    /// An attribute of a texture or surface.
    Query {
        Width "width" Height "height" Depth "depth" ArraySize "array_size" NormalizedCoords "normalized_coords"
        FilterMode "filter_mode" AddressMode0 "addr_mode_0" AddressMode1 "addr_mode_1" AddressMode2 "addr_mode_2"
        MipmapLevels "num_mipmap_levels" Samples "num_samples" MemoryLayout "memory_layout"
    }
}

/// `tex`, and `tld4`: d is a list of four registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub geometry: Geometry,
    /// Coordinates are texels' numbers, not floats.
    pub integer: bool,
    /// The channel that `tld4` gathers of four texels.
    pub gather: Option<u8>,
}

/// `suld` and `sust`: the data is d or b, as of loads and stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SurfaceAccess {
    pub geometry: Geometry,
    pub outside: Outside,
    /// Bytes of one element, elements, and whether the registers are 64-bit ones.
    pub size: u8,
    pub count: u8,
    pub wide: bool,
}

/// Rows of coordinates of a geometry, the layer included.
pub(crate) fn coordinates(geometry: Geometry) -> usize {
    geometry.dimensions() + usize::from(geometry.is_layered())
}
