//! Which keys the rows of a long prompt read.

use crate::Tensor;

/// How the rows of a long prompt read a part of the keys: of each block of 64 rows, each head reads the fewest tiles of keys that have a share
/// of the softmax, as [`choose_tiles`](crate::ops::choose_tiles) chooses them.
///
/// ```
/// use pascaline::nn::SparsePrompt;
/// use pascaline::{Device, Tensor};
/// // rows 4096 to 4223: each block reads the 256 keys before its first row in any case
/// let local = Tensor::from_slice(&[3840u32, 3904], [2], &Device::Cpu)?;
/// let sparse = SparsePrompt { share: 0.95, local };
/// # let _ = sparse;
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SparsePrompt {
    /// From 0 to 1.
    pub share: f32,
    /// For each block of [`QUERIES_PER_CHOICE`](crate::ops::QUERIES_PER_CHOICE) rows the first of the keys before its own that it reads in any
    /// case: \[ceil(rows / 64)\] u32
    pub local: Tensor,
}
