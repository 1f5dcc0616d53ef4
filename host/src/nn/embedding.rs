//! Token ids → rows of a table.

use super::linear::Linear;
use super::matrix::Matrix;
use crate::{Error, Result, Tensor};

/// A learned vector per token.
///
/// ```
/// use pascaline::nn::Embedding;
/// use pascaline::{Device, Tensor};
/// let table = Tensor::from_slice(&[0.0f32, 1.0, 10.0, 11.0, 20.0, 21.0], [3, 2], &Device::Cpu)?;
/// let embedding = Embedding::new(table)?;
/// let ids = Tensor::from_slice(&[2u32, 1], [2], &Device::Cpu)?;
/// let x = embedding.forward(&ids)?;
/// assert_eq!(x.to_vec::<f32>()?, [20.0, 21.0, 10.0, 11.0]);
/// let logits = embedding.tied()?.forward(&x)?; // the products with each row of the table
/// assert_eq!(logits.dims(), [2, 3]);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    /// [vocab, hidden]
    table: Matrix,
}

impl Embedding {
    /// `table`: [vocab, hidden] f32, f16 or quantised.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if it is not a matrix.
    pub fn new(table: impl Into<Matrix>) -> Result<Self> {
        let table = table.into();
        if table.dims().len() == 2 {
            return Ok(Self { table });
        }
        let (expected, found) = ("[vocab, hidden]".into(), table.dims().into());
        Err(Error::Shape { op: "Embedding", argument: "table", expected, found })
    }

    /// `ids`: `[n]` u32 → [n, hidden] f32.
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        self.table.rows(ids)
    }

    /// The table.
    pub fn table(&self) -> &Matrix {
        &self.table
    }

    /// The output projection that shares this table (tied embeddings).
    ///
    /// # Errors
    /// Never fails: the table is a matrix.
    pub fn tied(&self) -> Result<Linear> {
        Linear::new(self.table.clone(), None)
    }
}
