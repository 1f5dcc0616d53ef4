//! Block-sparse attention, and the choice of its blocks.

use super::attention::{check, check_head_dim, extents, strides};
use super::check::Check;
use crate::block_mask::{BlockGrid, BlockMask, Choose};
use crate::gpu::attention_backward::Listed;
use crate::gpu::sparse_attention::{Lists, listed_bytes};
use crate::kv::KvView;
use crate::problem::attention::{Attention, Problem};
use crate::{DType, Device, Result, Tensor, TensorMut, cpu, gpu};
use std::sync::{Arc, OnceLock};

const CHECK: Check = Check("sparse_attention");

/// The kernels that [`sparse_attention`] runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Path {
    /// The dense kernels if the mask is dense or plainly causal, else the sparse kernels.
    #[default]
    Auto,
    /// The sparse kernels.
    Sparse,
}

/// A [`BlockMask`] on a device, in the kernels' form, for any number of calls.
///
/// ```
/// use pascaline::block_mask::{BlockGrid, BlockMask};
/// use pascaline::ops::{Path, PreparedMask};
/// use pascaline::Device;
/// let grid = BlockGrid::new(16, 64, 64)?; // blocks of 16 × 16
/// let causal = PreparedMask::new(BlockMask::causal(grid)?, Path::Auto, &Device::Cpu)?;
/// assert!(causal.is_dense()); // the dense kernels have a causal form
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PreparedMask {
    pub(crate) mask: BlockMask,
    device: Device,
    /// Whether the dense kernels compute the same, and if so whether causally.
    plain: Option<bool>,
    lists: Option<Lists>,
    /// Of the gradients, made when they are first asked for.
    pub(super) backward: Arc<OnceLock<Listed>>,
}

impl PreparedMask {
    /// Builds the lists of blocks and copies them to `device`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(mask: BlockMask, path: Path, device: &Device) -> Result<Self> {
        Self::with_warps(mask, path, None, device)
    }

    /// [`new`](Self::new) with the number of warps of the prefill kernels' blocks: 1, 2 or 4.
    pub(crate) fn with_warps(
        mask: BlockMask,
        path: Path,
        warps: Option<usize>,
        device: &Device,
    ) -> Result<Self> {
        let plain = if path == Path::Auto { mask.plain() } else { None };
        let lists = match (device, plain) {
            (Device::Cuda(_), None) => Some(Lists::new(&mask, warps, device)?),
            _ => None,
        };
        Ok(Self { mask, device: device.clone(), plain, lists, backward: Arc::default() })
    }

    /// The mask.
    pub fn mask(&self) -> &BlockMask {
        &self.mask
    }

    /// Whether the dense kernels are used.
    pub fn is_dense(&self) -> bool {
        self.plain.is_some()
    }

    /// Bytes of the lists on a GPU, which grow with the number of blocks. Those of the gradients are counted once they are made.
    pub fn bytes(&self) -> usize {
        self.lists.as_ref().map_or(0, Lists::bytes) + self.backward.get().map_or(0, listed_bytes)
    }

    /// The options of plain attention for this mask, where the dense kernels take it.
    pub(super) fn options(&self, scale: Option<f32>) -> Attention {
        Attention { scale, causal: self.plain == Some(true) }
    }

    /// Refuses a mask of other sizes or on another device.
    pub(super) fn check(
        &self,
        check: Check,
        q: &Tensor,
        k: &Tensor,
        problem: &Problem,
        device: &Device,
    ) -> Result<()> {
        check_mask(check, q, k, problem, &self.mask)?;
        match self.device.same(device) {
            true => Ok(()),
            false => Err(crate::Error::DeviceMismatch {
                op: check.0,
                argument: "mask",
                expected: device.to_string(),
                found: self.device.to_string(),
            }),
        }
    }
}

/// out = softmax(scale · q kᵀ) v for each head, over the keys that `mask` selects for each query.
///
/// Shapes, types, layouts and `scale` (`None` for 1/√head_dim) are those of [`attention`](super::attention()); the mask also
/// determines causality. The number of the mask's heads divides num_q_heads; consecutive query heads share one. A query that
/// attends to no key gives 0. Keys and values must be finite. Blocks that are not listed are not read; but a NaN at a key
/// that a query does not attend to may reach it, if that key is within 16 keys of one that it attends to.
///
/// ```
/// use pascaline::block_mask::{BlockGrid, BlockMask};
/// use pascaline::ops::{self, Path, PreparedMask};
/// use pascaline::{DType, Device, Tensor};
/// let cpu = Device::Cpu;
/// let mask = BlockMask::causal(BlockGrid::new(16, 32, 32)?)?;
/// let mask = PreparedMask::new(mask, Path::Sparse, &cpu)?;
/// let (q, k) = (Tensor::ones([1, 32, 16], DType::F32, &cpu)?, Tensor::ones([1, 32, 16], DType::F32, &cpu)?);
/// let v = ops::cat(&[Tensor::full(1.0f32, [1, 16, 16], &cpu)?, Tensor::full(3.0f32, [1, 16, 16], &cpu)?], 1)?;
/// let out = ops::sparse_attention(&q, &k, &v, &mask, None)?;
/// let last = out.narrow(1, 31, 1)?.to_vec::<f32>()?;
/// assert!(last.iter().all(|x| (x - 2.0).abs() < 1e-6)); // the last query attends to as many ones as threes
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// Those of [`attention`](super::attention()); [`Error::Shape`](crate::Error::Shape) if `q` or `k` do not have the mask's
/// lengths, [`Error::Unsupported`](crate::Error::Unsupported) if the numbers of heads do not divide, and
/// [`Error::DeviceMismatch`](crate::Error::DeviceMismatch) if the mask was prepared for another device.
pub fn sparse_attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: &PreparedMask,
    scale: Option<f32>,
) -> Result<Tensor> {
    let mut out = Tensor::uninitialized(q.shape(), q.dtype(), &q.device())?;
    sparse_attention_into(out.view_mut()?, q, k, v, mask, scale)?;
    Ok(out)
}

/// [`sparse_attention`] into `out`, of `q`'s shape and type, with strides under the same conditions.
pub fn sparse_attention_into(
    out: TensorMut,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: &PreparedMask,
    scale: Option<f32>,
) -> Result<()> {
    let problem = check(CHECK, &out, q, k, v, &mask.options(scale))?;
    let device = CHECK.device(&out, &[("q", q), ("k", k), ("v", v)])?;
    mask.check(CHECK, q, k, &problem, &device)?;
    match (device, &mask.lists) {
        (Device::Cpu, _) => cpu::sparse_attention::attention(out, q, k, v, &problem, &mask.mask),
        (Device::Cuda(device), None) => {
            let kv = [KvView::plain(k), KvView::plain(v)];
            gpu::attention::attention(&device, out, q, kv, None, &problem)
        }
        (Device::Cuda(device), Some(lists)) => {
            gpu::sparse_attention::attention(&device, out, q, k, v, &problem, lists)
        }
    }
}

fn check_mask(check: Check, q: &Tensor, k: &Tensor, problem: &Problem, mask: &BlockMask) -> Result<()> {
    let grid = mask.grid();
    for (argument, x, found, len) in
        [("q", q, problem.q_len, grid.q_len()), ("k", k, problem.kv_len, grid.kv_len())]
    {
        if found != len {
            return Err(check.bad_shape(argument, x, format!("the mask's {len} rows a head")));
        }
    }
    let (heads, num_q_heads) = (mask.heads(), problem.num_q_heads);
    let units = heads.max(problem.num_kv_heads);
    let even = |parts: usize| units.checked_rem(parts) == Some(0);
    if num_q_heads > 0 && !(even(heads) && even(problem.num_kv_heads) && num_q_heads.is_multiple_of(units)) {
        let reason =
            format!("{num_q_heads} query heads on {} kv heads can't share them", problem.num_kv_heads);
        return Err(check.unsupported("mask's heads", heads, reason));
    }
    Ok(())
}

/// y[h, c, :] = the mean of rows c · block … of x[h, :, :], in f32; the last block may be shorter.
///
/// `x`: [b, heads, rows, head_dim] or without b, f32 or f16, in a layout that [`attention`](super::attention()) supports;
/// the result is [.., heads, ceil(rows / block), head_dim].
///
/// ```
/// use pascaline::{Device, Tensor, ops};
/// let x = Tensor::arange(0.0f32, 48.0, &Device::Cpu)?.reshape([1, 3, 16])?; // rows 0 …, 16 …, 32 …
/// let y = ops::block_mean(&x, 2)?; // of rows 0 and 1, and of row 2
/// assert_eq!(y.dims(), [1, 2, 16]);
/// assert_eq!(y.narrow(2, 0, 1)?.to_vec::<f32>()?, [8.0, 32.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`](crate::Error::Unsupported) for a block of 0 and for a head_dim that
/// [`attention`](super::attention()) does not take.
pub fn block_mean(x: &Tensor, block: usize) -> Result<Tensor> {
    let mut dims = x.dims().to_vec();
    if let Some(rows) = dims.len().checked_sub(2) {
        dims[rows] = dims[rows].div_ceil(block.max(1));
    }
    let mut y = Tensor::uninitialized(dims, DType::F32, &x.device())?;
    block_mean_into(y.view_mut()?, x, block)?;
    Ok(y)
}

/// [`block_mean`] into `y`, which is contiguous.
pub fn block_mean_into(y: TensorMut, x: &Tensor, block: usize) -> Result<()> {
    const CHECK: Check = Check("block_mean");
    CHECK.float("x", x)?;
    CHECK.dtype("y", &y, DType::F32)?;
    let letters = "[b, heads, rows, head_dim], or without b";
    let [batch, heads, rows, head_dim] = extents(x).ok_or_else(|| CHECK.bad_shape("x", x, letters))?;
    check_head_dim(CHECK, head_dim)?;
    if block == 0 {
        return Err(CHECK.unsupported("block", block, "it must be at least 1"));
    }
    let blocks = rows.div_ceil(block);
    let whole = [batch, heads, blocks, head_dim];
    let shape = if x.shape().rank() == 4 { &whole[..] } else { &whole[1..] };
    CHECK.shape("y", &y, shape, format!("{shape:?}: x's, with a row for each block"))?;
    CHECK.contiguous("y", &y)?;
    let strides = strides(CHECK, "x", x)?;
    if y.shape().elements() == 0 {
        return Ok(());
    }
    let extents = [heads, rows, head_dim];
    match CHECK.device(&y, &[("x", x)])? {
        Device::Cpu => cpu::sparse_attention::block_mean(y, x, strides, extents, block),
        Device::Cuda(device) => {
            gpu::sparse_attention::block_mean(&device, y, x, strides, [batch, heads, rows, head_dim], block)
        }
    }
}

/// The share of blocks from which [`choose_blocks`] returns the mask of plain attention.
///
/// Measured: on an NVIDIA H200 a mask that lists every block takes 1.11 times as long as the dense kernels, and the time is
/// proportional to the number of blocks (blocks of 64, 16 heads of 128, lengths 4096 and 8192).
pub const DENSE_FROM: f64 = 0.9;

/// A mask for this `q` and `k`, chosen for each query head from the scores between the means of their blocks.
///
/// `q`: [num_q_heads, q_len, head_dim] and `k`: [num_kv_heads, kv_len, head_dim], or with a leading batch dimension of 1. If
/// the choice is [`DENSE_FROM`] of the blocks or more, the result is the mask of plain attention, which the dense kernels
/// compute. Waits for the GPU, because the host chooses.
///
/// Source of the pooled scores: Jiang et al. 2024, "MInference 1.0", section 3.2 (block-sparse heads); of the
/// threshold on their sum: Lai et al. 2025, "FlexPrefill", section 3.2.
///
/// ```
/// use pascaline::block_mask::Choose;
/// use pascaline::ops::{self, Attention};
/// use pascaline::{DType, Device, Tensor};
/// let (q, k) = (randn([2, 256, 64], 1)?, randn([1, 256, 64], 2)?); // two query heads share a kv head
/// let causal = Attention { causal: true, ..Attention::default() };
/// let mask = ops::choose_blocks(&q, &k, 32, Choose::TopK(3), &causal)?;
/// assert_eq!(mask.heads(), 2);
/// assert!(mask.blocks() < 2 * 36); // of the 36 blocks at or below the diagonal, in each head
/// # fn randn(shape: [usize; 3], seed: u64) -> pascaline::Result<Tensor> {
/// #     Tensor::randn(shape, DType::F32, seed, &Device::Cpu)
/// # }
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// # Errors
/// Those of [`block_mean`], [`matmul`](super::matmul()) and [`BlockMask::from_scores`];
/// [`Error::Shape`](crate::Error::Shape) for more than one batch entry, or if num_kv_heads does not divide num_q_heads.
pub fn choose_blocks(
    q: &Tensor,
    k: &Tensor,
    block: usize,
    choose: Choose,
    options: &Attention,
) -> Result<BlockMask> {
    const CHECK: Check = Check("choose_blocks");
    let letters = "[num_q_heads, q_len, head_dim], for one batch entry";
    let (Some([1, num_q_heads, q_len, head_dim]), Some([1, num_kv_heads, kv_len, _])) =
        (extents(q), extents(k))
    else {
        return Err(CHECK.bad_shape("q", q, letters));
    };
    if num_q_heads.checked_rem(num_kv_heads) != Some(0) {
        return Err(CHECK.bad_shape("k", k, format!("a number of heads that divides q's {num_q_heads}")));
    }
    let grid = BlockGrid::new(block, q_len, kv_len)?;
    let plain = if options.causal { BlockMask::causal(grid)? } else { BlockMask::dense(grid)? };
    let (rows, columns) = (grid.rows(), grid.columns());
    let group = num_q_heads / num_kv_heads;
    let q = block_mean(q, block)?.reshape([num_kv_heads, group * rows, head_dim])?;
    let k = block_mean(k, block)?.reshape([num_kv_heads, columns, head_dim])?;
    let scale = options.scale_for(head_dim);
    let scores = super::matmul(&q, &k.swap_dims(1, 2)?)?.to_vec::<f32>()?;
    let scores: Vec<f32> = scores.into_iter().map(|score| score * scale).collect();
    let mask = BlockMask::from_scores(grid, num_q_heads, &scores, choose, options.causal)?;
    let share = mask.blocks() as f64 / (num_q_heads * plain.blocks()).max(1) as f64;
    Ok(if share >= DENSE_FROM { plain } else { mask })
}
