//! Nothing, by one warp: what a launch costs at least. Benches measure small work against it.

use crate::spec::KernelSpec;
use cuda_std::prelude::*;

const BLOCK: u32 = 32;

/// grid = [1]
pub const EMPTY: KernelSpec = KernelSpec::new("empty", BLOCK);

/// # Safety
/// None is needed.
#[kernel(launch_bounds(BLOCK))]
pub unsafe fn empty() {}
