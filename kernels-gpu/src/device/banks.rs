//! Operands in different banks of the register file.
//!
//! sm_61 has four banks, and an instruction that reads two registers of one bank takes two issue slots. A 16-byte load fills four consecutive
//! registers, which are in the four banks in order; so are four sums that one instruction stores. If factors and sums begin with the same
//! column, most multiply-adds read two registers of one bank. So factors are turned by one in shared memory: their fours begin with the second
//! column and end with the first.
//!
//! Source of the banks: maxas' documentation, "register banks and reuse".

/// Four neighbours as they are in memory.
#[inline(always)]
pub fn turn<T>([a, b, c, d]: [T; 4]) -> [T; 4] {
    [b, c, d, a]
}

/// The inverse of [`turn`].
#[inline(always)]
pub fn turn_back<T>([b, c, d, a]: [T; 4]) -> [T; 4] {
    [a, b, c, d]
}

/// The place of element `index` where all fours are turned.
#[inline(always)]
pub const fn turned(index: u32) -> u32 {
    index & !3 | (index + 3) & 3
}
