//! Keys and values of many sequences, in pages of one pool.

use super::sparse_prompt::SparsePrompt;
use crate::kv::{KvFormat, KvTensor};
use crate::ops::PAGE;
use crate::{Device, Result, Tensor};

/// The pages that the rows of a pass attend to. First come rows that are each the last of a sequence, then the rows of
/// prompts. Tables and lengths are in device memory, so a captured pass serves other sequences when they are overwritten.
///
/// ```
/// use pascaline::nn::{PagedRows, PromptRows};
/// use pascaline::{Device, Tensor};
/// let table = Tensor::from_slice(&[7u32, 2], [2], &Device::Cpu)?;
/// // five rows, of a sequence with 16 tokens in page 7 and then 4 in page 2
/// let rows = PagedRows { each: None, prompts: vec![PromptRows { rows: 5, table, len: 20, sparse: None }] };
/// assert_eq!(rows.len(), 5);
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PagedRows {
    /// For the rows that are the last of their sequences: the page tables [rows, width] u32, and the number of tokens of
    /// each sequence, including this row, \[rows\] u32.
    pub each: Option<[Tensor; 2]>,
    /// The rows of prompts, which follow.
    pub prompts: Vec<PromptRows>,
}

/// The last rows of one sequence, part of [`PagedRows`].
///
/// ```
/// use pascaline::nn::PromptRows;
/// use pascaline::{Device, Tensor};
/// let table = Tensor::from_slice(&[7u32, 2], [2], &Device::Cpu)?;
/// let last_five = PromptRows { rows: 5, table, len: 20, sparse: None };
/// # let _ = last_five;
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PromptRows {
    /// Number of rows.
    pub rows: usize,
    /// \[pages\] u32, the sequence's pages in order.
    pub table: Tensor,
    /// Number of tokens of the sequence, including these rows.
    pub len: usize,
    /// How they read a part of the keys only.
    pub sparse: Option<SparsePrompt>,
}

impl PagedRows {
    /// Total number of rows.
    pub fn len(&self) -> usize {
        let each = self.each.as_ref().and_then(|[_, lens]| lens.dims().first().copied());
        self.prompts.iter().fold(each.unwrap_or(0), |rows, prompt| rows.saturating_add(prompt.rows))
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The pages of every layer. The caller decides which page belongs to which sequence.
///
/// ```
/// use pascaline::Device;
/// use pascaline::kv::KvFormat;
/// use pascaline::nn::{Attention, KvPages, Linear, PagedRows, Rope};
/// use pascaline::{DType, Tensor, ops};
/// # let cpu = Device::Cpu;
/// # let eye = Tensor::from_slice(&std::array::from_fn::<f32, 256, _>(|i| (i % 17 == 0) as u8 as f32), [16, 16], &cpu)?;
/// # let qkv = ops::cat(&[Tensor::zeros([32, 16], DType::F32, &cpu)?, eye.clone()], 0)?; // q = k = 0, v = x
/// # let attention = Attention::new(Linear::new(qkv, None)?, None, Linear::new(eye, None)?, [1, 1, 16], true)?;
/// # let (cos, sin) = (Tensor::ones([1, 8], DType::F32, &cpu)?, Tensor::zeros([1, 8], DType::F32, &cpu)?);
/// // `attention` gives the mean of a sequence's rows; 4 pages, of which two sequences have one each
/// let mut pages = KvPages::new(1, 4, 1, 16, KvFormat::F32, &cpu)?; // 1 layer, 4 pages, 1 kv head of 16
/// let tables = Tensor::from_slice(&[3u32, 1], [2, 1], &cpu)?;
/// for token in 0..2u32 {
///     let x = Tensor::from_slice(&[[token as f32; 16], [10.0; 16]].concat(), [2, 16], &cpu)?;
///     let lens = Tensor::from_slice(&[token + 1; 2], [2], &cpu)?;
///     let rows = PagedRows { each: Some([tables.clone(), lens]), prompts: vec![] };
///     let at = Tensor::from_slice(&[3 * 16 + token, 16 + token, 0, 0], [2, 2], &cpu)?; // places, angles
///     let rope = Rope { cos: cos.clone(), sin: sin.clone(), at };
///     let y = attention.forward(&x, &rope, pages.caches(&rows).next())?;
///     assert_eq!(y.to_vec::<f32>()?, [[token as f32 / 2.0; 16], [10.0; 16]].concat());
/// }
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Debug)]
pub struct KvPages {
    pub(super) layers: Vec<LayerPages>,
    pages: usize,
}

/// The pages of one layer of [`KvPages`].
///
/// ```
/// use pascaline::Device;
/// use pascaline::kv::KvFormat;
/// use pascaline::nn::{KvPages, PagedRows};
/// let mut pages = KvPages::new(2, 8, 1, 16, KvFormat::Q8_0, &Device::Cpu)?;
/// let rows = PagedRows::default();
/// for layer in pages.caches(&rows) {
///     // x = block.forward(&x, &rope, Some(layer))?, one block after the other
/// #   let _ = layer;
/// }
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Debug)]
pub struct LayerPages {
    /// [pages · PAGE, num_kv_heads, head_dim]
    k: KvTensor,
    /// [pages · PAGE, num_kv_heads, head_dim]
    v: KvTensor,
}

impl KvPages {
    /// Allocates `pages` pages of [`PAGE`] tokens in every layer, for keys and values in `format`; their contents are
    /// undefined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), [`Error::Unsupported`](crate::Error::Unsupported) for a number of
    /// exponent bits without a format, or another device error.
    pub fn new(
        layers: usize,
        pages: usize,
        num_kv_heads: usize,
        head_dim: usize,
        format: KvFormat,
        device: &Device,
    ) -> Result<Self> {
        Self::across(std::iter::repeat_n(device, layers), pages, num_kv_heads, head_dim, format)
    }

    /// As [`new`](Self::new), with each layer on its own device.
    pub fn across<'d>(
        devices: impl IntoIterator<Item = &'d Device>,
        pages: usize,
        num_kv_heads: usize,
        head_dim: usize,
        format: KvFormat,
    ) -> Result<Self> {
        let dims = [pages.saturating_mul(PAGE), num_kv_heads, head_dim];
        let room = |device| KvTensor::uninitialized(dims, format, device);
        let layer = |device| Ok(LayerPages { k: room(device)?, v: room(device)? });
        Ok(Self { layers: devices.into_iter().map(layer).collect::<Result<_>>()?, pages })
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.k.bytes() + layer.v.bytes()).sum()
    }
}

impl LayerPages {
    /// Keys and values, for reading.
    pub(super) fn parts(&self) -> [&KvTensor; 2] {
        [&self.k, &self.v]
    }

    /// Keys and values, for writing.
    pub(super) fn parts_mut(&mut self) -> [&mut KvTensor; 2] {
        [&mut self.k, &mut self.v]
    }
}
