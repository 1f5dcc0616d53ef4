//! Tokens → rows of a table.

use super::{Linear, misfit};
use crate::{Result, Tensor, ops};

/// A learned vector per token.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// [vocab, hidden]
    table: Tensor,
}

impl Embedding {
    /// `table`: [vocab, hidden] f32 or f16.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if it is no matrix.
    pub fn new(table: Tensor) -> Result<Self> {
        match table.shape().rank() {
            2 => Ok(Self { table }),
            _ => Err(misfit("Embedding", "table", "[vocab, hidden]", &table)),
        }
    }

    /// `ids`: [n] u32 → [n, hidden] f32.
    ///
    /// # Errors
    /// As [`ops::embedding`].
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        ops::embedding(&self.table, ids)
    }

    /// The output projection that shares this table (tied embeddings).
    ///
    /// # Errors
    /// None in practice: the table is a matrix.
    pub fn tied(&self) -> Result<Linear> {
        Linear::new(self.table.clone(), None)
    }
}
