//! Block masks and block-sparse attention.

use crate::device::detached;
use crate::error::{Result, unsupported};
use crate::tensor::{PyTensor, argument, tensor};
use pascaline::Device;
use pascaline::block_mask::{BlockGrid, BlockMask, Choose};
use pascaline::ops::{self, Attention, Path, PreparedMask};
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

type Any<'a, 'py> = &'a Bound<'py, PyAny>;

/// Which blocks of keys each block of queries attends to, and which pairs within them.
///
/// Made by ``BlockMask.causal(block, q_len, kv_len)`` and its siblings; block is 16, 32, 64 or 128. Queries are aligned with the end of the
/// keys: query i is at position i + kv_len − q_len.
#[pyclass(frozen, name = "BlockMask", module = "pascaline")]
pub struct PyBlockMask {
    pub inner: BlockMask,
    /// The mask as the kernels of each device read it.
    prepared: Mutex<Vec<(Device, PreparedMask)>>,
}

impl From<BlockMask> for PyBlockMask {
    fn from(inner: BlockMask) -> Self {
        Self { inner, prepared: Mutex::new(Vec::new()) }
    }
}

impl PyBlockMask {
    /// The mask as the kernels of this device and stream read it; made once.
    pub fn on(&self, device: &Device) -> pascaline::Result<PreparedMask> {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mask)) = prepared.iter().find(|(of, _)| of.same(device)) {
            return Ok(mask.clone());
        }
        let mask = PreparedMask::new(self.inner.clone(), Path::Auto, device)?;
        prepared.push((device.clone(), mask.clone()));
        Ok(mask)
    }
}

#[pymethods]
impl PyBlockMask {
    /// Every query attends to every key.
    #[staticmethod]
    fn dense(block: usize, q_len: usize, kv_len: usize) -> Result<Self> {
        Ok(BlockMask::dense(BlockGrid::new(block, q_len, kv_len)?)?.into())
    }

    /// Query i attends to the keys up to its position.
    #[staticmethod]
    fn causal(block: usize, q_len: usize, kv_len: usize) -> Result<Self> {
        Ok(BlockMask::causal(BlockGrid::new(block, q_len, kv_len)?)?.into())
    }

    /// A query attends to the key at its position, `before` keys before and `after` keys after it.
    #[staticmethod]
    #[pyo3(signature = (block, q_len, kv_len, before, after = 0))]
    fn sliding_window(
        block: usize,
        q_len: usize,
        kv_len: usize,
        before: usize,
        after: usize,
    ) -> Result<Self> {
        Ok(BlockMask::sliding_window(BlockGrid::new(block, q_len, kv_len)?, before, after)?.into())
    }

    /// As ``sliding_window``, and all attend to, and are attended to by, the first `global_tokens` tokens.
    #[staticmethod]
    #[pyo3(signature = (block, q_len, kv_len, global_tokens, before, after = 0))]
    fn global_window(
        block: usize,
        q_len: usize,
        kv_len: usize,
        global_tokens: usize,
        before: usize,
        after: usize,
    ) -> Result<Self> {
        let grid = BlockGrid::new(block, q_len, kv_len)?;
        Ok(BlockMask::global_window(grid, global_tokens, before, after)?.into())
    }

    /// Causal: the last `stride` keys, and every key whose distance is a multiple of it.
    #[staticmethod]
    fn strided(block: usize, q_len: usize, kv_len: usize, stride: usize) -> Result<Self> {
        Ok(BlockMask::strided(BlockGrid::new(block, q_len, kv_len)?, stride)?.into())
    }

    /// The pairs for which a matrix of bools [q_len, kv_len] or [heads, q_len, kv_len] is true.
    #[staticmethod]
    fn from_matrix(matrix: Any, block: usize) -> Result<Self> {
        let array = matrix.py().import("numpy")?.call_method1("asarray", (matrix, "bool"))?;
        let shape: Vec<usize> = array.getattr("shape")?.extract()?;
        let (heads, q_len, kv_len) = match shape[..] {
            [q_len, kv_len] => (1, q_len, kv_len),
            [heads, q_len, kv_len] => (heads, q_len, kv_len),
            _ => {
                let reason = "it must be [q_len, kv_len] or [heads, q_len, kv_len]";
                return Err(unsupported("block_mask", "matrix", format!("{shape:?}"), reason));
            }
        };
        let bytes: Vec<u8> = array.call_method0("tobytes")?.extract()?;
        let bits: Vec<bool> = bytes.into_iter().map(|byte| byte != 0).collect();
        Ok(BlockMask::from_matrix(BlockGrid::new(block, q_len, kv_len)?, heads, &bits)?.into())
    }

    /// Whether query i of a head attends to key j.
    fn attends(&self, head: usize, i: usize, j: usize) -> bool {
        self.inner.attends(head, i, j)
    }

    /// The share of all blocks that is listed. The run time is about proportional to it.
    #[getter]
    fn density(&self) -> f64 {
        self.inner.density()
    }

    /// Heads with a list of their own; 1 if all share one.
    #[getter]
    fn heads(&self) -> usize {
        self.inner.heads()
    }

    /// How many blocks are listed, over all heads.
    #[getter]
    fn blocks(&self) -> usize {
        self.inner.blocks()
    }

    fn __repr__(&self) -> String {
        format!("BlockMask({})", self.inner)
    }
}

/// softmax(scale · q kᵀ) v for each head, over the keys that the mask lets each query see; shapes as for ``attention``.
///
/// Raises ShapeError, DTypeError, LayoutError, UnsupportedError.
#[pyfunction]
#[pyo3(signature = (q, k, v, mask, *, scale = None))]
fn sparse_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: &Bound<'_, PyBlockMask>,
    scale: Option<f32>,
) -> Result<PyTensor> {
    let (py, q, mask) = (q.py(), tensor(q)?, mask.get());
    let device = q.device();
    let (k, v) = (argument(k, &device)?, argument(v, &device)?);
    let made = detached(py, move || ops::sparse_attention(&q, &k, &v, &mask.on(&device)?, scale))?;
    Ok(made.into())
}

/// A mask of the blocks that are worth computing, by the products of the blocks' mean queries and keys: `top_k` blocks of a row,
/// or the fewest whose shares of the softmax add up to `mass`.
///
/// q: [num_q_heads, q_len, head_dim]; k: [num_kv_heads, kv_len, head_dim], float32. Raises ShapeError, UnsupportedError.
#[pyfunction]
#[pyo3(signature = (q, k, block, *, top_k = None, mass = None, causal = true, scale = None))]
fn choose_blocks(
    q: Any,
    k: Any,
    block: usize,
    top_k: Option<usize>,
    mass: Option<f32>,
    causal: bool,
    scale: Option<f32>,
) -> Result<PyBlockMask> {
    let choose = match (top_k, mass) {
        (Some(count), None) => Choose::TopK(count),
        (None, Some(mass)) => Choose::Mass(mass),
        _ => return Err(unsupported("choose_blocks", "top_k", "both or none", "give one of top_k and mass")),
    };
    let (py, q) = (q.py(), tensor(q)?);
    let k = argument(k, &q.device())?;
    let options = Attention { scale, causal };
    Ok(detached(py, move || ops::choose_blocks(&q, &k, block, choose, &options))?.into())
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyBlockMask>()?;
    module.add_function(wrap_pyfunction!(sparse_attention, module)?)?;
    module.add_function(wrap_pyfunction!(choose_blocks, module)?)
}
