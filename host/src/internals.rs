//! Parts of the library outside its API, for the program and the case table only. They may change with every version.

/// The choice of matmul kernels.
pub mod select {
    pub use crate::gpu::matmul::select::{
        LOW_POWER_SLOWER, Layouts, Query, Types, candidates, scratch_bytes,
    };
}

/// The device address of a view's first element; 0 on the CPU and for views without elements.
pub fn address(x: &crate::Tensor) -> u64 {
    x.address()
}

/// How the modules divide their work, for planning memory.
pub mod pieces {
    pub use crate::gpu::quant::unfused_gate_rows;
    pub use crate::problem::pieces::{MLP_ROWS, QUANTIZE_PIECE, even_pieces, rows_per_launch};
}

/// The tables for that choice.
pub mod table {
    pub use crate::gpu::matmul::table::{Sample, Table, for_card, user_file};
}

/// Kernels that measure a device.
pub mod peak {
    pub use crate::gpu::peak::{Instruction, Peak, launch_nothing};
}

/// The choice of block-sparse attention's kernels.
#[cfg(feature = "sparse")]
pub mod sparse {
    use crate::block_mask::BlockMask;
    use crate::ops::{Path, PreparedMask};
    use crate::{Device, Result};
    pub use kernels_gpu::attention::sparse::WARPS;

    /// A mask for kernels whose blocks have so many warps, one of [`WARPS`].
    pub fn prepared(mask: BlockMask, warps: usize, device: &Device) -> Result<PreparedMask> {
        PreparedMask::with_warps(mask, Path::Sparse, Some(warps), device)
    }
}

/// Kernels that ask a device what the cost model assumes.
pub mod probe {
    pub use crate::gpu::probe::{COUNTED, Finding, run};
}

/// For `testing/interleavings`.
#[cfg(feature = "shuttle")]
pub use crate::parallel::Team;
