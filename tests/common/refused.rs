//! What an op refuses.

use pascaline::{Error, Result};

/// Which argument an error is about, and of what kind it is.
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
        Ok(_) => panic!("it was done"),
    }
}
