//! Parts of the library outside its API, for the program and the case table only. They may change with every version.

/// The choice of matmul kernels.
pub mod select {
    pub use crate::gpu::matmul::select::{
        LOW_POWER_SLOWER, Layouts, Query, Types, candidates, scratch_bytes,
    };
}

/// How the modules divide their work, for planning memory.
pub mod pieces {
    pub use crate::problem::pieces::{MLP_ROWS, QUANTIZE_PIECE, rows_per_launch};
}

/// The tables for that choice.
pub mod table {
    pub use crate::gpu::matmul::table::{Sample, Table, of, user_file};
}

/// Kernels that measure a device.
pub mod peak {
    pub use crate::gpu::peak::{Instruction, Peak, launch_nothing};
}

/// Kernels that ask a device what the cost model assumes.
pub mod probe {
    pub use crate::gpu::probe::{COUNTED, Finding, run};
}

/// The kernels that benches compare the others with.
pub mod textbook {
    pub use crate::ops::textbook::{
        attention_into, layer_norm_into, rms_norm_into, softmax_into, transpose_into,
    };
}
