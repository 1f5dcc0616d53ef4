//! An empty kernel of one warp: the cost of a launch. Benches compare small work with it.

use cuda_std::prelude::*;

/// grid = [1]
///
/// # Safety
/// None is needed.
#[kernel(block = 32, min_blocks = 16)]
pub unsafe fn empty() {}
