//! The part of a matrix that one of several devices takes.

use std::ops::Range;

/// The part of a matrix that a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of it.
    Whole,
    /// Equal runs of rows, of which it takes number `index` of `of`.
    Rows {
        /// From 0 on.
        index: usize,
        /// How many there are.
        of: usize,
    },
    /// Equal runs of columns, likewise.
    Columns {
        /// From 0 on.
        index: usize,
        /// How many there are.
        of: usize,
    },
}

/// Part `index` of `of` of so many; of what does not divide the first parts are shorter.
pub fn share(count: usize, index: usize, of: usize) -> Range<usize> {
    count * index / of..count * (index + 1) / of
}

impl Cut {
    /// The rows and columns that are taken of a matrix [rows, columns].
    pub fn ranges(self, [rows, columns]: [usize; 2]) -> [Range<usize>; 2] {
        match self {
            Self::Whole => [0..rows, 0..columns],
            Self::Rows { index, of } => [share(rows, index, of), 0..columns],
            Self::Columns { index, of } => [0..rows, share(columns, index, of)],
        }
    }
}
