//! Block-sparse attention masks: which blocks of keys each block of queries attends to, and which pairs within them.
//!
//! The queries are the last positions of the sequence, as in causal attention: query i is at position i + kv_len − q_len. A
//! head attends to a block in full or in part. A part is a pattern of block × block bits. Equal patterns are stored once, so
//! the diagonal of a causal mask costs one pattern.
//!
//! ```
//! use pascaline::block_mask::{BlockGrid, BlockMask};
//!
//! # fn main() -> pascaline::Result<()> {
//! let grid = BlockGrid::new(64, 512, 512)?; // blocks of 64 × 64, 512 queries, 512 keys
//! let mask = BlockMask::sliding_window(grid, 127, 0)?; // a query's own key and the 127 before
//! assert_eq!(mask.text(0).lines().nth(3), Some("·░█░····"));
//! # Ok(()) }
//! ```

mod builders;
mod choose;
mod draw;
mod lists;
mod mask;
mod sets;

pub use choose::Choose;
pub(crate) use lists::{BackwardLists, DecodeLists, PrefillLists, TileList};
pub use mask::{BlockGrid, BlockMask, Cost};
