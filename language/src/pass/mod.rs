//! A forward pass over rows of several sequences, as a batch runs it, and those that a plan runs.

mod rehearsal;
mod rows;

pub(crate) use rehearsal::{Rehearsed, rehearse};
pub(crate) use rows::{BatchLogits, Last, MOST_BY_ROWS, Part, Passes, Row, Work, pages_of};
