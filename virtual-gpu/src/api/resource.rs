//! What textures and surfaces are made of.

use crate::image::Format;
use crate::texture::Object;

/// The memory of a texture or surface.
#[derive(Clone, Copy)]
pub(super) enum Resource {
    /// By its handle.
    Array(u64),
    Linear {
        at: u64,
        format: Format,
        bytes: u64,
    },
    Pitch2d {
        at: u64,
        format: Format,
        width: u64,
        height: u64,
        pitch: u64,
    },
}

/// A reference of a module as a launch sees it.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    /// Address of the reference's variable.
    pub at: u64,
    pub resource: Option<Resource>,
    pub seen: Object,
}
