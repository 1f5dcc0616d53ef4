//! `bmsk` and `szext` in one thread, as the PTX ISA's pseudocode has them.

/// Ones in `width` bits from bit `start` on.
pub(super) fn bit_mask(start: u32, width: u32, clamp: bool) -> u32 {
    if clamp && start >= 32 {
        return 0;
    }
    let from = start & 31;
    let low = u32::MAX << from;
    let is_wide = clamp && width >= 32 || from + (width & 31) >= 32;
    if is_wide { low } else { low & !(u32::MAX << (from + (width & 31))) }
}

/// The low `bits` of x, extended with zeros or their sign.
pub(super) fn extend_bits(x: u32, bits: u32, signed: bool, clamp: bool) -> u32 {
    if clamp && bits >= 32 {
        return x;
    }
    let bits = bits & 31;
    let above = u32::MAX << bits;
    let is_negative = signed && bits != 0 && x >> (bits - 1) & 1 != 0;
    x & !above | if is_negative { above } else { 0 }
}
