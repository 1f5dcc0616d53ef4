//! The seam under cust.
mod backend;
mod codes;
pub mod faults;
mod table;
#[cfg(test)]
mod tests;

pub use backend::{AlreadySelected, Attempt, Backend, LibraryStatus, backend, library, select};
pub use codes::{Failure, code_name, code_text, last_failure, last_raw_code};
