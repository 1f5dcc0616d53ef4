//! Reductions of rows.

/// The value that a row is reduced to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction {
    Sum,
    Max,
    Argmax,
}
