//! Reductions of rows.

/// What a row becomes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduction {
    Sum,
    Max,
    Argmax,
}
