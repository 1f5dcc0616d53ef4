//! Tokens → rows of a table.

use super::{Linear, Matrix};
use crate::{Error, Result, Tensor};

/// A learned vector per token.
#[derive(Clone, Debug)]
pub struct Embedding {
    /// [vocab, hidden]
    table: Matrix,
}

impl Embedding {
    /// `table`: [vocab, hidden] f32, f16 or quantised.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if it is no matrix.
    pub fn new(table: impl Into<Matrix>) -> Result<Self> {
        let table = table.into();
        if table.dims().len() == 2 {
            return Ok(Self { table });
        }
        let (expected, found) = ("[vocab, hidden]".into(), table.dims().into());
        Err(Error::Shape { op: "Embedding", argument: "table", expected, found })
    }

    /// `ids`: `[n]` u32 → [n, hidden] f32.
    ///
    /// # Errors
    /// As [`ops::embedding`](crate::ops::embedding).
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.table.rows(ids)
    }

    /// The output projection that shares this table (tied embeddings).
    ///
    /// # Errors
    /// None in practice: the table is a matrix.
    pub fn tied(&self) -> Result<Linear> {
        Linear::new(self.table.clone(), None)
    }
}
