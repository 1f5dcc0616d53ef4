//! 16-bit floating-point formats with E exponent bits and 15 − E mantissa bits.
//!
//! E = 5 is IEEE 754 half precision and E = 8 is bfloat16, both bit for bit. The formats between trade range for
//! precision in steps; below 5 there is more precision and less range than half precision has. They are laid out as
//! IEEE 754 lays out its own: sign, biased exponent, fraction; an exponent of zeros is subnormal, one of ones is
//! infinity or NaN. The same code runs on host and device and uses integers and exact f32 operations only.

pub mod convert;

/// The smallest number of exponent bits.
pub const MIN_EXPONENT_BITS: u32 = 2;
/// The largest: with more, values would lie outside f32.
pub const MAX_EXPONENT_BITS: u32 = 8;

/// A number with `E` exponent bits (2 to 8) and 15 − `E` mantissa bits, as its code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Float16<const E: u32>(pub u16);

const _: () = assert!(size_of::<Float16<5>>() == 2 && align_of::<Float16<5>>() == 2);

impl<const E: u32> Float16<E> {
    /// Bits of the fraction.
    pub const MANTISSA_BITS: u32 = {
        assert!(E >= MIN_EXPONENT_BITS && E <= MAX_EXPONENT_BITS, "2 to 8 exponent bits");
        15 - E
    };
    /// What is added to an exponent to store it.
    pub const BIAS: u32 = (1 << (E - 1)) - 1;
    /// Positive infinity; magnitudes above it are NaN.
    pub const INFINITY: Self = Self(((1 << E) - 1) << Self::MANTISSA_BITS);
    /// The largest finite number.
    pub const MAX: Self = Self(Self::INFINITY.0 - 1);

    /// Fraction bits that f32 has more.
    const SHIFT: u32 = 23 - Self::MANTISSA_BITS;
    /// The smallest normal number, as f32's bits.
    const MIN_NORMAL: u32 = (128 - Self::BIAS) << 23;

    /// The value; exact. NaNs keep their sign and payload.
    #[inline(always)]
    pub const fn to_f32(self) -> f32 {
        let sign = ((self.0 & 0x8000) as u32) << 16;
        let magnitude = (self.0 & 0x7fff) as u32;
        let fraction = magnitude << Self::SHIFT;
        let bits = if magnitude >= Self::INFINITY.0 as u32 {
            0x7f80_0000 | (fraction & 0x007f_ffff)
        } else if magnitude >> Self::MANTISSA_BITS != 0 {
            fraction + ((127 - Self::BIAS) << 23)
        } else {
            // with the smallest normal exponent the fraction counts in the subnormals' unit; the one before it goes
            (f32::from_bits(Self::MIN_NORMAL | fraction) - f32::from_bits(Self::MIN_NORMAL)).to_bits()
        };
        f32::from_bits(sign | bits)
    }

    /// The nearest number, ties to even; beyond the largest finite one infinity. NaNs stay NaNs, made quiet.
    #[inline(always)]
    pub const fn from_f32(value: f32) -> Self {
        Self::round(value, Self::INFINITY)
    }

    /// As [`from_f32`](Self::from_f32), but what is too large, infinities included, becomes the largest finite number.
    #[inline(always)]
    pub const fn from_f32_saturating(value: f32) -> Self {
        Self::round(value, Self::MAX)
    }

    #[inline(always)]
    const fn round(value: f32, too_large: Self) -> Self {
        let sign = (value.to_bits() >> 16 & 0x8000) as u16;
        let bits = value.to_bits() & 0x7fff_ffff;
        if bits > 0x7f80_0000 {
            let payload = (bits >> Self::SHIFT) as u16 & ((1 << Self::MANTISSA_BITS) - 1);
            return Self(sign | Self::INFINITY.0 | 1 << (Self::MANTISSA_BITS - 1) | payload);
        }
        // What is kept lies above `shift`; a carry out of the fraction goes into the exponent, as it should.
        let (significand, shift) = if bits >= Self::MIN_NORMAL || E == MAX_EXPONENT_BITS {
            (bits - ((127 - Self::BIAS) << 23), Self::SHIFT)
        } else {
            let down = (Self::MIN_NORMAL >> 23) - (bits >> 23) + Self::SHIFT;
            (bits & 0x007f_ffff | 0x0080_0000, if down > 25 { 25 } else { down })
        };
        let rounded = (significand + (1 << (shift - 1)) - 1 + (significand >> shift & 1)) >> shift;
        Self(sign | if rounded >= Self::INFINITY.0 as u32 { too_large.0 } else { rounded as u16 })
    }
}
