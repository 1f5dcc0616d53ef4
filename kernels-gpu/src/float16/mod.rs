//! 16-bit floating-point formats with E exponent bits and 15 − E mantissa bits.
//!
//! E = 5 is IEEE 754 half precision and E = 8 is bfloat16, both bit for bit. Below 5 there is more precision and less range
//! than in half precision. The layout is that of IEEE 754: sign, biased exponent, fraction. An exponent of zeros is
//! subnormal, one of ones is infinity or NaN. The same code runs on host and device and uses only integers and exact f32
//! operations.
//!
//! A format is a type's parameter or, for kernels too large for an instance of each, a number: [`encode`] and [`Decoder`].

use cuda_std::inlined;

pub mod convert;

/// The smallest number of exponent bits.
pub const MIN_EXPONENT_BITS: u32 = 2;
/// The largest: with more, values would exceed f32's range.
pub const MAX_EXPONENT_BITS: u32 = 8;

/// A number with `E` exponent bits (2 to 8) and 15 − `E` mantissa bits, as its code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Float16<const E: u32>(pub u16);

const _: () = assert!(size_of::<Float16<5>>() == 2 && align_of::<Float16<5>>() == 2);

#[inlined]
impl<const E: u32> Float16<E> {
    /// Bits of the fraction.
    pub const MANTISSA_BITS: u32 = {
        assert!(E >= MIN_EXPONENT_BITS && E <= MAX_EXPONENT_BITS, "2 to 8 exponent bits");
        15 - E
    };
    /// The bias of stored exponents.
    pub const BIAS: u32 = (1 << (E - 1)) - 1;
    /// Positive infinity; magnitudes above it are NaN.
    pub const INFINITY: Self = Self(((1 << E) - 1) << Self::MANTISSA_BITS);
    /// The largest finite number.
    pub const MAX: Self = Self(Self::INFINITY.0 - 1);

    /// Fraction bits that f32 has in addition.
    const SHIFT: u32 = 23 - Self::MANTISSA_BITS;
    /// The smallest normal number, as f32's bits.
    const MIN_NORMAL: u32 = (128 - Self::BIAS) << 23;

    /// The value, exactly. NaNs keep their sign and payload.
    pub const fn to_f32(self) -> f32 {
        let sign = ((self.0 & 0x8000) as u32) << 16;
        let magnitude = (self.0 & 0x7fff) as u32;
        let fraction = magnitude << Self::SHIFT;
        let bits = if magnitude >= Self::INFINITY.0 as u32 {
            0x7f80_0000 | (fraction & 0x007f_ffff)
        } else if magnitude >> Self::MANTISSA_BITS != 0 {
            fraction + ((127 - Self::BIAS) << 23)
        } else {
            // with the smallest normal exponent the fraction is in the subnormals' unit; subtract the implicit one
            (f32::from_bits(Self::MIN_NORMAL | fraction) - f32::from_bits(Self::MIN_NORMAL)).to_bits()
        };
        f32::from_bits(sign | bits)
    }

    /// The nearest number, ties to even; infinity beyond the largest finite one. NaNs become quiet NaNs.
    pub const fn from_f32(value: f32) -> Self {
        Self(encode(value, E, false))
    }

    /// As [`from_f32`](Self::from_f32), but values that are too large, including infinities, become the largest finite
    /// number.
    pub const fn from_f32_saturating(value: f32) -> Self {
        Self(encode(value, E, true))
    }
}

/// The code of the nearest number with `exponent_bits`, as by [`Float16::from_f32`] or, if `saturate`, as by
/// [`Float16::from_f32_saturating`].
#[inline(always)]
pub const fn encode(value: f32, exponent_bits: u32, saturate: bool) -> u16 {
    let (mantissa_bits, bias) = (15 - exponent_bits, (1 << (exponent_bits - 1)) - 1);
    let (least_shift, min_normal) = (23 - mantissa_bits, (128 - bias) << 23);
    let infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
    let sign = value.to_bits() >> 16 & 0x8000;
    let bits = value.to_bits() & 0x7fff_ffff;
    if bits > 0x7f80_0000 {
        let payload = bits >> least_shift & ((1 << mantissa_bits) - 1);
        return (sign | infinity | 1 << (mantissa_bits - 1) | payload) as u16;
    }
    // The bits above `shift` are kept; a carry out of the fraction goes into the exponent, as it should.
    let (significand, shift) = if bits >= min_normal || exponent_bits == MAX_EXPONENT_BITS {
        (bits.wrapping_sub((127 - bias) << 23), least_shift)
    } else {
        let down = (min_normal >> 23) - (bits >> 23) + least_shift;
        (bits & 0x007f_ffff | 0x0080_0000, if down > 25 { 25 } else { down })
    };
    let rounded = (significand + (1 << (shift - 1)) - 1 + (significand >> shift & 1)) >> shift;
    let largest = if saturate { infinity - 1 } else { infinity };
    (sign | if rounded >= infinity { largest } else { rounded }) as u16
}

/// Decodes a format that is known only at run time, by a few instructions that are the same for all formats: the exponent
/// moves to its place in f32, and a multiplication applies the difference of the biases.
#[derive(Clone, Copy)]
pub struct Decoder {
    /// Exponent bits that f32 has in addition.
    shift: u32,
    factor: f32,
    /// The value of infinity's code before it is corrected; NaNs give more.
    infinity: f32,
}

#[inlined]
impl Decoder {
    /// For a format with `exponent_bits` (2 to 8).
    pub const fn new(exponent_bits: u32) -> Self {
        let bias = (1 << (exponent_bits - 1)) - 1;
        Self {
            shift: MAX_EXPONENT_BITS - exponent_bits,
            factor: f32::from_bits((254 - bias) << 23),
            infinity: f32::from_bits((128 + bias) << 23),
        }
    }

    /// The value of the code in the upper half of `word`, as [`Float16::to_f32`]. Exact, because the product with a power of
    /// two is exact, also for a subnormal.
    pub const fn upper(self, word: u32) -> f32 {
        let magnitude = (word & 0x7fff_0000) >> self.shift;
        let value = f32::from_bits(magnitude) * self.factor;
        let bits = if value < self.infinity { value.to_bits() } else { magnitude | 0x7f80_0000 };
        f32::from_bits(word & 0x8000_0000 | bits)
    }

    /// The values of both codes in `word`, the lower half's first.
    pub const fn both(self, word: u32) -> [f32; 2] {
        [self.upper(word << 16), self.upper(word)]
    }
}
