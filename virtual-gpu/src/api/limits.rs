//! The largest arrays, textures and surfaces, as device attributes. Compute capabilities 6.0 to 7.5 have the same ones.
//!
//! Source: "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide, and the attributes of a Tesla P100.

use std::ffi::c_int;

pub(super) const TEXTURE_ALIGNMENT: u64 = 512;
pub(super) const PITCH_ALIGNMENT: u64 = 32;

pub(super) const WIDTH_1D: u64 = 131_072;
pub(super) const EXTENT_2D: [u64; 2] = [131_072, 65_536];
pub(super) const SIDE_3D: u64 = 16_384;
pub(super) const ALTERNATE_3D: [u64; 3] = [8_192, 8_192, 32_768];
/// Of an image with layers, a cubemap, and an array for gathers.
pub(super) const SIDE: u64 = 32_768;
pub(super) const LAYERS: u64 = 2_048;
pub(super) const CUBEMAP_LAYERS: u64 = 2_046;
/// Of linear memory, in texels.
pub(super) const LINEAR_WIDTH: u64 = 1 << 27;
pub(super) const PITCH_2D: [u64; 2] = [131_072, 65_000];
pub(super) const MOST_PITCH: u64 = 2_097_120;

/// The limit of an attribute's number, if it is one of these.
pub(super) fn attribute(n: c_int) -> Option<c_int> {
    let limit = match n {
        14 | 30 => TEXTURE_ALIGNMENT,
        51 => PITCH_ALIGNMENT,
        21 => WIDTH_1D,
        22 | 56 => EXTENT_2D[0],
        23 | 57 => EXTENT_2D[1],
        24..=26 | 58..=60 => SIDE_3D,
        27 | 28 | 42 | 45 | 46 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 => SIDE,
        29 | 43 | 62 | 65 => LAYERS,
        54 | 68 => CUBEMAP_LAYERS,
        44 => 1, // gathers exist
        47..=49 => ALTERNATE_3D[n as usize - 47],
        69 => LINEAR_WIDTH,
        70 | 71 => PITCH_2D[n as usize - 70],
        72 => MOST_PITCH,
        _ => return None,
    };
    Some(limit as c_int)
}
