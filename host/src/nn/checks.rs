//! What constructors check of their weights.

use crate::{Error, Result, Tensor};

/// The error for a weight that does not match its module.
pub(super) fn misfit(
    op: &'static str,
    argument: &'static str,
    expected: impl Into<String>,
    found: &Tensor,
) -> Error {
    Error::Shape { op, argument, expected: expected.into(), found: found.shape().clone() }
}

/// Requires a vector of this length.
pub(super) fn expect_len(op: &'static str, argument: &'static str, x: &Tensor, len: usize) -> Result<()> {
    match x.dims() == [len] {
        true => Ok(()),
        false => Err(misfit(op, argument, format!("[{len}]"), x)),
    }
}
