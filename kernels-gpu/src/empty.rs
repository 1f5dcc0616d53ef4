//! Nothing, by one warp: what a launch costs at least. Benches measure small work against it.

use cuda_std::prelude::*;

/// grid = [1]
///
/// # Safety
/// None is needed.
#[kernel(block = 32)]
pub unsafe fn empty() {}
