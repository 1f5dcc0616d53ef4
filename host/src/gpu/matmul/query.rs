//! Everything that the choice of a matmul kernel depends on.

use serde::Serialize;
use std::fmt;

/// Element types, in the order of the kernels' tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Types {
    F32,
    F16,
    /// a f32, b f16, c f32.
    Mixed,
}

/// Which of a and b are transposed, in the order of the kernels' tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Layouts {
    Nn,
    Nt,
    Tn,
}

/// Everything that the choice depends on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Query {
    pub batch: u32,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    /// Layouts for the kernels that load 16 bytes (f16: 8) at a time; `None` if strides or alignment do not allow it.
    pub tile_layouts: Option<Layouts>,
    /// Layouts for the few-row kernels; `None` if a is not contiguous along k, or b is not contiguous along either
    /// dimension.
    pub vector_layouts: Option<Layouts>,
    pub types: Types,
    pub multiprocessors: u32,
    /// Whether to prefer less energy to a little time.
    pub low_power: bool,
}

impl Query {
    /// A single f32 product of aligned operands.
    pub fn plain(layouts: Layouts, [m, n, k]: [u32; 3], multiprocessors: u32) -> Self {
        let layouts = Some(layouts);
        Self {
            batch: 1,
            m,
            n,
            k,
            tile_layouts: layouts,
            vector_layouts: layouts,
            types: Types::F32,
            multiprocessors,
            low_power: false,
        }
    }
}

impl fmt::Display for Query {
    /// `nt 16 × 2048 × 2048`: m, n and k.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { m, n, k, .. } = self;
        let layouts =
            self.tile_layouts.map_or_else(String::new, |layouts| format!("{layouts:?}").to_lowercase());
        write!(f, "{layouts} {m} × {n} × {k}")
    }
}
