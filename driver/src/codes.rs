//! Result codes as callers see them, and the record of the last failure.

use std::cell::Cell;

use cust_raw::CUresult;

use crate::code_texts::{known, name_and_text};

/// A driver call that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The driver function, under the name it is exported by (`cuMemFree_v2`).
    pub function: &'static str,
    /// The driver's result code, also one that `CUresult` lacks.
    pub code: u32,
}

thread_local! {
    static LAST: Cell<Option<Failure>> = const { Cell::new(None) };
}

/// This thread's most recent driver call that did not succeed; later successes do not clear it.
/// A query that answers "not ready" (600) counts.
pub fn last_failure() -> Option<Failure> {
    LAST.get()
}

/// The code of [`last_failure`], 0 before the first. Read it directly after a call has failed: it tells apart
/// the codes that cust folds into `UnknownError`.
pub fn last_raw_code() -> u32 {
    LAST.get().map_or(0, |failure| failure.code)
}

/// The name of a result code as in cuda.h (`CUDA_ERROR_NO_DEVICE`), `CUDA_ERROR_UNKNOWN` for a number not known.
pub fn code_name(code: u32) -> &'static str {
    name_and_text(code).0.to_str().unwrap_or("CUDA_ERROR_UNKNOWN")
}

/// The meaning of a result code, in a few words.
pub fn code_text(code: u32) -> &'static str {
    name_and_text(code).1.to_str().unwrap_or("unknown error")
}

/// Records a call's failure and gives the code as the closed enum; a code that this lacks becomes
/// `CUDA_ERROR_UNKNOWN`.
#[cold]
pub(crate) fn failed(function: &'static str, code: u32) -> CUresult {
    LAST.set(Some(Failure { function, code }));
    known(code).unwrap_or(CUresult::CUDA_ERROR_UNKNOWN)
}
