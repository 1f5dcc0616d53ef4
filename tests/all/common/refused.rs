//! Tells which argument an op has refused.

use pascaline::{Error, Result};

/// The argument that an error is about, and the error's kind.
#[track_caller]
pub fn refused<T>(result: Result<T>) -> (&'static str, &'static str) {
    match result {
        Err(Error::Shape { argument, .. }) => ("shape", argument),
        Err(Error::DType { argument, .. }) => ("dtype", argument),
        Err(Error::Layout { argument, .. }) => ("layout", argument),
        Err(Error::Unsupported { argument, .. }) => ("unsupported", argument),
        Err(Error::TooLarge { argument, .. }) => ("too large", argument),
        Err(Error::DeviceMismatch { argument, .. }) => ("device", argument),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it is accepted"),
    }
}
