//! How a texture is sampled: addressing, filters, conversion of texels.
//!
//! Source: "Texture Fetching" of the CUDA C++ Programming Guide. Weights of a filter have 8 bits after the point. What a filter adds is
//! exact here and rounded once; hardware's last bits differ.

use std::collections::BTreeMap;

use crate::image::Image;

/// What becomes of a coordinate outside of a texture, by the numbers of `CUaddress_mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddressMode {
    Wrap,
    Clamp,
    Mirror,
    Border,
}

impl AddressMode {
    pub fn by_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::Wrap,
            1 => Self::Clamp,
            2 => Self::Mirror,
            3 => Self::Border,
            _ => return None,
        })
    }
}

/// An image and how it is sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Texture {
    pub image: Image,
    pub address: [AddressMode; 3],
    pub linear: bool,
    pub normalized: bool,
    /// Integers are read as numbers of [0, 1] or [-1, 1].
    pub promotes: bool,
    pub border: [f32; 4],
    /// Whether `tld4` may gather from it.
    pub for_gathers: bool,
}

/// An object of the driver API, as a launch sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Object {
    Texture(Texture),
    Surface(Image),
    /// Its array was destroyed.
    WithoutArray,
    /// A texture or surface reference to which nothing is bound.
    Unbound,
}

/// Objects by their handles.
pub(crate) type Objects = BTreeMap<u64, Object>;

/// Along one dimension: the texels that a sample reads, `None` for the border, and the weight of the second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Taps {
    pub texels: [Option<u64>; 2],
    pub weight: f64,
}

impl Texture {
    /// Whether instructions give floats.
    pub fn gives_floats(&self) -> bool {
        self.image.format.channel.is_float() || self.promotes
    }

    /// The texels that a coordinate of a dimension names: two neighbours, or the nearest one as the first.
    pub fn taps(&self, dimension: usize, x: f32, neighbours: bool) -> Taps {
        let count = self.image.counts()[dimension];
        let mode = self.address[dimension];
        let texels = f64::from(x) * if self.normalized { count as f64 } else { 1.0 };
        let x = match mode {
            AddressMode::Wrap => fraction(f64::from(x)) * count as f64,
            AddressMode::Mirror => {
                let (x, turn) = (fraction(f64::from(x)), f64::from(x).floor());
                let is_odd = turn.rem_euclid(2.0) == 1.0;
                (if is_odd { 1.0 - x } else { x }) * count as f64
            }
            AddressMode::Clamp | AddressMode::Border => texels,
        };
        let x = if x.is_nan() { 0.0 } else { x };
        let place = |texel: i64| match mode {
            AddressMode::Wrap => Some(texel.rem_euclid(count as i64) as u64),
            AddressMode::Clamp | AddressMode::Mirror => Some(texel.clamp(0, count as i64 - 1) as u64),
            AddressMode::Border => u64::try_from(texel).ok().filter(|&texel| texel < count),
        };
        if !neighbours {
            // 1 - frac(x) may be 1 in the mirror, whose last texel that is
            return Taps { texels: [place(x.floor() as i64); 2], weight: 0.0 };
        }
        let x = x - 0.5;
        let first = x.floor() as i64;
        let weight = if x.is_finite() { (fraction(x) * 256.0).round() / 256.0 } else { 0.0 };
        Taps { texels: [place(first), place(first.saturating_add(1))], weight }
    }

    /// As [`Self::taps`], of a texel's number: outside of the texture there is nothing.
    pub fn texel(&self, dimension: usize, x: i32) -> Option<u64> {
        u64::try_from(x).ok().filter(|&x| x < self.image.counts()[dimension])
    }

    /// The layer of an index; the last one beyond it.
    pub fn layer(&self, index: u32) -> u64 {
        u64::from(index).min(self.image.counts()[2] - 1)
    }

    /// A channel of a texel, as an instruction gives it. Channels that the format lacks are 0.
    pub fn channel(&self, texel: &[u8; 16], channel: usize) -> u32 {
        let bits = self.bits(texel, channel);
        let of = self.image.format.channel;
        match self.promotes && channel < self.image.format.channels.into() {
            true => of.to_float(bits).to_bits(),
            false => of.extend(bits),
        }
    }

    /// A channel of the border.
    pub fn border_channel(&self, channel: usize) -> u32 {
        let of = self.image.format;
        let value = if channel < of.channels.into() { self.border[channel] } else { 0.0 };
        match self.gives_floats() {
            true => value.to_bits(),
            false if matches!(of.channel, crate::image::Channel::U32) => value as u32,
            false => value as i32 as u32,
        }
    }

    fn bits(&self, texel: &[u8; 16], channel: usize) -> u32 {
        let format = self.image.format;
        if channel >= format.channels.into() {
            return 0;
        }
        let bytes = format.channel.bytes() as usize;
        let mut bits = [0; 4];
        bits[..bytes].copy_from_slice(&texel[channel * bytes..][..bytes]);
        u32::from_le_bytes(bits)
    }
}

/// x - floor(x)
fn fraction(x: f64) -> f64 {
    x - x.floor()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Channel, Format, Geometry};

    fn texture(count: u64, mode: AddressMode, normalized: bool) -> Texture {
        let format = Format { channel: Channel::F32, channels: 1 };
        let image = Image { base: 0, format, geometry: Geometry::D1, extent: [count, 0, 0], pitch: 64 };
        Texture {
            image,
            address: [mode; 3],
            linear: true,
            normalized,
            promotes: false,
            border: [0.0; 4],
            for_gathers: false,
        }
    }

    #[test]
    fn coordinates_outside_follow_their_mode() {
        use AddressMode::*;
        for (mode, normalized, x, want) in [
            (Clamp, false, -5.0, Some(0)),
            (Clamp, false, 2.99, Some(2)),
            (Clamp, false, 9.0, Some(2)),
            (Clamp, true, 1.5, Some(2)),
            (Clamp, false, f32::INFINITY, Some(2)),
            (Clamp, false, f32::NEG_INFINITY, Some(0)),
            (Clamp, false, f32::NAN, Some(0)),
            (Border, false, -0.01, None),
            (Border, false, 0.0, Some(0)),
            (Border, false, 3.0, None),
            (Border, false, f32::INFINITY, None),
            (Wrap, true, 1.0, Some(0)),
            (Wrap, true, -0.01, Some(2)),
            (Wrap, true, 7.4, Some(1)),
            (Wrap, true, f32::INFINITY, Some(0)),
            (Mirror, true, 1.0, Some(2)),
            (Mirror, true, 1.1, Some(2)),
            (Mirror, true, 1.9, Some(0)),
            (Mirror, true, -0.1, Some(0)),
            (Mirror, true, -0.9, Some(2)),
            (Mirror, true, 2.1, Some(0)),
        ] {
            let found = texture(3, mode, normalized).taps(0, x, false).texels[0];
            assert_eq!(found, want, "{mode:?} {x}");
        }
    }

    #[test]
    fn a_weight_has_eight_bits_and_may_be_one() {
        let t = texture(7, AddressMode::Clamp, false);
        assert_eq!(t.taps(0, 1.0, true), Taps { texels: [Some(0), Some(1)], weight: 0.5 });
        assert_eq!(t.taps(0, 1.5 + 1.0 / 1024.0, true).weight, 0.0);
        assert_eq!(t.taps(0, 1.5 + 3.0 / 1024.0, true).weight, 1.0 / 256.0);
        assert_eq!(t.taps(0, 2.499, true), Taps { texels: [Some(1), Some(2)], weight: 1.0 });
        assert_eq!(t.taps(0, 0.0, true), Taps { texels: [Some(0), Some(0)], weight: 0.5 });
        assert_eq!(t.taps(0, f32::INFINITY, true), Taps { texels: [Some(6), Some(6)], weight: 0.0 });
    }
}
