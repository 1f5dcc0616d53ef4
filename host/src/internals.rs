//! The parts of the library outside its API that the program and the case table need, and nobody else. It may change with every
//! version.

/// The choice of matmul's kernels.
pub mod select {
    pub use crate::gpu::matmul::select::{
        LOW_POWER_SLOWER, Layouts, Query, Types, candidates, scratch_bytes,
    };
}

/// How the modules cut their work, for plans of memory.
pub mod pieces {
    pub use crate::problem::pieces::{MLP_ROWS, QUANTIZE_PIECE, rows_per_launch};
}

/// The tables that the choice is made by.
pub mod table {
    pub use crate::gpu::matmul::table::{Sample, Table, of, user_file};
}

/// Kernels that measure a device.
pub mod peak {
    pub use crate::gpu::peak::{Instruction, Peak, launch_nothing};
}

/// The kernels that benches hold the others against.
pub mod textbook {
    pub use crate::ops::textbook::{
        attention_into, layer_norm_into, rms_norm_into, softmax_into, transpose_into,
    };
}
