//! The decoded form of PTX's video instructions: one whole word, or two or four lanes of one.

use super::words::words;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VideoOp {
    Add,
    Sub,
    AbsDiff,
    /// The average, a half rounded up unless the sum is negative.
    Avrg,
    Min,
    Max,
    /// `.clamp`, else `.wrap`
    Shl {
        clamp: bool,
    },
    Shr {
        clamp: bool,
    },
    Mad,
    Set(Relation),
}

words! {
    Relation { Eq "eq" Ne "ne" Lt "lt" Le "le" Gt "gt" Ge "ge" }
}

/// What is done with the result and operand c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    /// Written at the destination's selector or mask; c elsewhere.
    Merge,
    Add,
    Min,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Video {
    pub op: VideoOp,
    /// 1, 2, 4
    pub lanes: u8,
    pub d_signed: bool,
    pub a_signed: bool,
    pub b_signed: bool,
    pub sat: bool,
    pub second: Second,
}

/// Selectors and the options of `vmad`, in the instruction's `imm`.
///
/// One word: a, b and d are 0 to 3 for a byte, 4 and 5 for a half, [`WHOLE`]. Lanes: a and b have for lane n, in bits 4·n on, the
/// lane of the pair (a, b) that it reads; bit n of d says that lane n is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Selectors {
    pub a: u16,
    pub b: u16,
    pub d: u8,
    /// `vmad`: the product and c are negated; `.po`, which adds one.
    pub negate_product: bool,
    pub negate_c: bool,
    pub plus_one: bool,
    /// `vmad`: bits that the sum is shifted to the right.
    pub scale: u8,
}

pub(crate) const WHOLE: u8 = 6;

impl Selectors {
    pub fn pack(self) -> i64 {
        let flags = self.negate_product as u64 | (self.negate_c as u64) << 1 | (self.plus_one as u64) << 2;
        let low = u64::from(self.a) | u64::from(self.b) << 16 | u64::from(self.d) << 32;
        (low | flags << 40 | u64::from(self.scale) << 48) as i64
    }

    pub fn unpack(imm: i64) -> Self {
        let bit = |n: u32| imm >> n & 1 != 0;
        Self {
            a: imm as u16,
            b: (imm >> 16) as u16,
            d: (imm >> 32) as u8,
            negate_product: bit(40),
            negate_c: bit(41),
            plus_one: bit(42),
            scale: (imm >> 48) as u8,
        }
    }
}
