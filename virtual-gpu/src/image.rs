//! The images that arrays, textures and surfaces are made of: the format of a texel, extents, and where a texel lies in memory.
//!
//! Images are memory like any other: rows of texels one after the other, then slices. Hardware lays arrays out in blocks, which no
//! program sees.

use half::f16;

/// The type of a channel, by the numbers of `CUarray_format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Channel {
    U8 = 1,
    U16 = 2,
    U32 = 3,
    S8 = 8,
    S16 = 9,
    S32 = 10,
    F16 = 16,
    F32 = 32,
}

impl Channel {
    pub fn by_number(number: i32) -> Option<Self> {
        use Channel::*;
        [U8, U16, U32, S8, S16, S32, F16, F32].into_iter().find(|channel| *channel as i32 == number)
    }

    pub fn bytes(self) -> u64 {
        match self {
            Self::U8 | Self::S8 => 1,
            Self::U16 | Self::S16 | Self::F16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::F32)
    }

    /// Whether it may be read as a number of [0, 1] or [-1, 1].
    pub fn is_promoted(self) -> bool {
        matches!(self, Self::U8 | Self::U16 | Self::S8 | Self::S16)
    }

    /// A channel's bits as an instruction gives them: extended to 32 bits, floats as f32.
    pub fn extend(self, bits: u32) -> u32 {
        match self {
            Self::S8 => bits as i8 as u32,
            Self::S16 => bits as i16 as u32,
            Self::F16 => f16::from_bits(bits as u16).to_f32().to_bits(),
            Self::U8 | Self::U16 | Self::U32 | Self::S32 | Self::F32 => bits,
        }
    }

    /// A channel's bits as a float; integers of up to 16 bits are promoted.
    pub fn to_float(self, bits: u32) -> f32 {
        let most = match self {
            Self::F16 | Self::F32 => return f32::from_bits(self.extend(bits)),
            Self::U32 => return bits as f32,
            Self::S32 => return bits as i32 as f32,
            Self::U8 => 255.0,
            Self::U16 => 65535.0,
            Self::S8 => 127.0,
            Self::S16 => 32767.0,
        };
        (self.extend(bits) as i32 as f32 / most).max(-1.0)
    }
}

/// The format of a texel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    pub channel: Channel,
    /// 1, 2 or 4.
    pub channels: u8,
}

impl Format {
    pub fn new(channel: Channel, channels: u32) -> Option<Self> {
        matches!(channels, 1 | 2 | 4).then_some(Self { channel, channels: channels as u8 })
    }

    /// Bytes of a texel: 1 to 16, a power of two.
    pub fn bytes(self) -> u64 {
        self.channel.bytes() * u64::from(self.channels)
    }
}

/// The dimensions of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Geometry {
    D1,
    D2,
    D3,
    /// Layers of one dimension.
    A1d,
    A2d,
}

impl Geometry {
    pub fn is_layered(self) -> bool {
        matches!(self, Self::A1d | Self::A2d)
    }

    /// Coordinates of a texel besides the layer.
    pub fn dimensions(self) -> usize {
        match self {
            Self::D1 | Self::A1d => 1,
            Self::D2 | Self::A2d => 2,
            Self::D3 => 3,
        }
    }

    /// As messages name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::D1 => "one dimension",
            Self::D2 => "two dimensions",
            Self::D3 => "three dimensions",
            Self::A1d => "layers of one dimension",
            Self::A2d => "layers of two dimensions",
        }
    }
}

/// Texels in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// Address of the first texel.
    pub base: u64,
    pub format: Format,
    pub geometry: Geometry,
    /// Texels, rows and slices or layers; a dimension that the image lacks is 0.
    pub extent: [u64; 3],
    /// Bytes from one row to the next.
    pub pitch: u64,
}

impl Image {
    /// Texels, rows and slices or layers, each at least 1.
    pub fn counts(&self) -> [u64; 3] {
        self.extent.map(|n| n.max(1))
    }

    /// Bytes of the texels of a row.
    pub fn row_bytes(&self) -> u64 {
        self.extent[0] * self.format.bytes()
    }

    /// Bytes from one slice or layer to the next.
    pub fn slice_bytes(&self) -> u64 {
        self.counts()[1] * self.pitch
    }

    /// Address of a byte of a row; all three are inside the image.
    pub fn address(&self, x_bytes: u64, y: u64, z: u64) -> u64 {
        self.base + z * self.slice_bytes() + y * self.pitch + x_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_extended_and_promoted() {
        for (channel, bits, extended, promoted) in [
            (Channel::U8, 0xff, 0xff, 1.0),
            (Channel::S8, 0x80, 0xffff_ff80, -1.0),
            (Channel::S8, 0x81, 0xffff_ff81, -1.0),
            (Channel::U16, 0xffff, 0xffff, 1.0),
            (Channel::S16, 0x7fff, 0x7fff, 1.0),
            (Channel::S16, 0x8000, 0xffff_8000, -1.0),
            (Channel::F16, 0x3c00, 0x3f80_0000, 1.0),
            (Channel::F32, 0x4000_0000, 0x4000_0000, 2.0),
            (Channel::S32, u32::MAX, u32::MAX, -1.0),
            (Channel::U32, 3, 3, 3.0),
        ] {
            assert_eq!(channel.extend(bits), extended, "{channel:?}");
            assert_eq!(channel.to_float(bits), promoted, "{channel:?}");
        }
    }
}
