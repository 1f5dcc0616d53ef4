//! Training as a whole, and its memory.

mod common;
mod learning;
mod memory;
