//! The register files of one warp: rows of 32 lanes.

use std::collections::HashMap;

use crate::ptx::inst::{NEG, Row};

pub(crate) const LANES: usize = 32;
pub(crate) const FULL: u32 = u32::MAX;

/// The rows of the top frame begin at the bases.
#[derive(Default)]
pub(crate) struct Regs {
    pub r32: Vec<[u32; LANES]>,
    pub r64: Vec<[u64; LANES]>,
    pub preds: Vec<u32>,
    pub base32: usize,
    pub base64: usize,
    pub base_pred: usize,
    /// The carry flag of each lane.
    pub carry: u32,
    /// For registers (64 bits, row of all frames), by lane which of their bytes nothing has written, the lowest first: see `carried`.
    pub unwritten: HashMap<(bool, usize), [u8; LANES]>,
}

impl Regs {
    #[inline(always)]
    pub fn row32(&self, row: Row) -> &[u32; LANES] {
        &self.r32[self.base32 + row as usize]
    }

    #[inline(always)]
    pub fn row64(&self, row: Row) -> &[u64; LANES] {
        &self.r64[self.base64 + row as usize]
    }

    #[inline(always)]
    pub fn row32_mut(&mut self, row: Row) -> &mut [u32; LANES] {
        &mut self.r32[self.base32 + row as usize]
    }

    #[inline(always)]
    pub fn row64_mut(&mut self, row: Row) -> &mut [u64; LANES] {
        &mut self.r64[self.base64 + row as usize]
    }

    /// Lanes in which a predicate operand, possibly negated, holds.
    #[inline(always)]
    pub fn pred(&self, row: Row) -> u32 {
        let v = self.preds[self.base_pred + (row & !NEG) as usize];
        if row & NEG != 0 { !v } else { v }
    }

    #[inline(always)]
    pub fn set_pred(&mut self, row: Row, value: u32, mask: u32) {
        let p = &mut self.preds[self.base_pred + row as usize];
        *p = (*p & !mask) | (value & mask);
    }
}

/// A value type with its place in the register files. The loops of `map1` to `map3` read registers and write bits: each loop more is
/// compiled for some hundred instructions, in the largest function of the crate.
pub(crate) trait Scalar: Copy + Default {
    type Bits: Copy + Default;

    fn row(r: &Regs, row: Row) -> &[Self::Bits; LANES];
    fn store_bits(r: &mut Regs, row: Row, bits: &[Self::Bits; LANES], mask: u32);
    fn from_bits(bits: Self::Bits) -> Self;
    fn into_bits(self) -> Self::Bits;

    #[inline(always)]
    fn load(r: &Regs, row: Row) -> [Self; LANES] {
        let bits = Self::row(r, row);
        let mut out = [Self::default(); LANES];
        for i in 0..LANES {
            out[i] = Self::from_bits(bits[i]);
        }
        out
    }

    #[inline(always)]
    fn store(r: &mut Regs, row: Row, v: &[Self; LANES], mask: u32) {
        let mut bits = [Self::Bits::default(); LANES];
        for i in 0..LANES {
            bits[i] = v[i].into_bits();
        }
        Self::store_bits(r, row, &bits, mask);
    }
}

macro_rules! scalar {
    ($t:ty, $row:ident, $row_mut:ident, $bits:ty, |$x:ident| $from:expr, |$y:ident| $to:expr) => {
        impl Scalar for $t {
            type Bits = $bits;

            #[inline(always)]
            fn row(r: &Regs, row: Row) -> &[$bits; LANES] {
                r.$row(row)
            }

            #[inline(always)]
            fn store_bits(r: &mut Regs, row: Row, bits: &[$bits; LANES], mask: u32) {
                let to = r.$row_mut(row);
                if mask == FULL {
                    *to = *bits;
                } else {
                    for i in 0..LANES {
                        let keep = ((mask >> i & 1) as $bits).wrapping_sub(1);
                        to[i] = (to[i] & keep) | (bits[i] & !keep);
                    }
                }
            }

            #[inline(always)]
            fn from_bits($x: $bits) -> Self {
                $from
            }

            #[inline(always)]
            fn into_bits(self) -> $bits {
                let $y = self;
                $to
            }
        }
    };
}

scalar!(u16, row32, row32_mut, u32, |x| x as u16, |y| y as u32);
scalar!(i16, row32, row32_mut, u32, |x| x as i16, |y| y as u16 as u32);
scalar!(u32, row32, row32_mut, u32, |x| x, |y| y);
scalar!(i32, row32, row32_mut, u32, |x| x as i32, |y| y as u32);
scalar!(f32, row32, row32_mut, u32, |x| f32::from_bits(x), |y| y.to_bits());
scalar!(u64, row64, row64_mut, u64, |x| x, |y| y);
scalar!(i64, row64, row64_mut, u64, |x| x as i64, |y| y as u64);
scalar!(f64, row64, row64_mut, u64, |x| f64::from_bits(x), |y| y.to_bits());

/// A row of the 64-bit file, or one of the 32-bit file extended with zeros.
#[inline(always)]
pub(crate) fn load_wide(r: &Regs, row: Row, wide: bool) -> [u64; LANES] {
    if wide { u64::load(r, row) } else { u32::load(r, row).map(u64::from) }
}

/// Stores to the 64-bit file, or the lower halves to the 32-bit file.
#[inline(always)]
pub(crate) fn store_wide(r: &mut Regs, row: Row, wide: bool, v: &[u64; LANES], mask: u32) {
    if wide { u64::store(r, row, v, mask) } else { u32::store(r, row, &v.map(|v| v as u32), mask) }
}

#[inline(always)]
pub(crate) fn map1<A: Scalar, D: Scalar>(r: &mut Regs, d: Row, a: Row, mask: u32, f: impl Fn(A) -> D) {
    let x = A::row(r, a);
    let mut out = [D::Bits::default(); LANES];
    for i in 0..LANES {
        out[i] = f(A::from_bits(x[i])).into_bits();
    }
    D::store_bits(r, d, &out, mask);
}

#[inline(always)]
pub(crate) fn map2<A: Scalar, B: Scalar, D: Scalar>(
    r: &mut Regs,
    [d, a, b]: [Row; 3],
    mask: u32,
    f: impl Fn(A, B) -> D,
) {
    let (x, y) = (A::row(r, a), B::row(r, b));
    let mut out = [D::Bits::default(); LANES];
    for i in 0..LANES {
        out[i] = f(A::from_bits(x[i]), B::from_bits(y[i])).into_bits();
    }
    D::store_bits(r, d, &out, mask);
}

#[inline(always)]
pub(crate) fn map3<A: Scalar, B: Scalar, C: Scalar, D: Scalar>(
    r: &mut Regs,
    [d, a, b, c]: [Row; 4],
    mask: u32,
    f: impl Fn(A, B, C) -> D,
) {
    let (x, y, z) = (A::row(r, a), B::row(r, b), C::row(r, c));
    let mut out = [D::Bits::default(); LANES];
    for i in 0..LANES {
        out[i] = f(A::from_bits(x[i]), B::from_bits(y[i]), C::from_bits(z[i])).into_bits();
    }
    D::store_bits(r, d, &out, mask);
}

/// A test in all lanes: bit l is lane l's result.
#[inline(always)]
pub(crate) fn test2<A: Scalar>(r: &Regs, a: Row, b: Row, f: impl Fn(A, A) -> bool) -> u32 {
    let (x, y) = (A::row(r, a), A::row(r, b));
    let mut out = 0;
    for i in 0..LANES {
        out |= (f(A::from_bits(x[i]), A::from_bits(y[i])) as u32) << i;
    }
    out
}

/// The set bits of a lane mask.
#[inline]
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let l = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(l)
    })
}

/// Calls `f` for the set bits of a lane mask; without branches if all are.
#[inline(always)]
pub(crate) fn each(mask: u32, mut f: impl FnMut(usize)) {
    if mask == FULL {
        for l in 0..LANES {
            f(l);
        }
    } else {
        for l in lanes(mask) {
            f(l);
        }
    }
}
