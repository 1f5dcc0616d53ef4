//! Blocks whose weights are in host memory and are copied to the device one after the other.
//!
//! A block's tensors are contiguous in pinned memory, and in the same order in each of the two places of a [`LayerStream`].
//! For each layout of tensors there are two sets of modules, one per place. So whichever layer is in a place, its kernels
//! find the weights at the same addresses.

use super::attention::Rope;
use super::block::TransformerBlock;
use super::cache::Cache;
use super::matrix::{Change, Matrix};
use crate::cuda::{CudaDevice, count_host_bytes};
use crate::memory::{LayerStream, PinnedBuffer};
use crate::quant::Format;
use crate::{DType, Error, Result, Shape, Tensor};
use std::sync::{Mutex, PoisonError};

/// Tensors begin at multiples of this, like allocations.
const ALIGNMENT: usize = 256;

/// Blocks of equal shapes, of which two at a time are on the device. Their matrices may be stored in different formats, as
/// in files of mixed precision.
///
/// ```
/// # #[cfg(feature = "virtual-gpu")] {
/// use pascaline::nn::{Attention, Linear, Mlp, Norm, RmsNorm, Rope, StreamedBlocks, TransformerBlock};
/// use pascaline::ops::Activation;
/// use pascaline::{DType, Device, Tensor};
/// let gpu = Device::virtual_gpu()?;
/// let Device::Cuda(cuda) = &gpu else { unreachable!() };
/// let random = |shape: [usize; 2], seed| Linear::new(Tensor::randn(shape, DType::F32, seed, &gpu)?, None);
/// let block = |seed| {
///     let norm = Norm::Rms(RmsNorm::new(Tensor::ones([16], DType::F32, &gpu)?, 1e-6)?);
///     let attention = Attention::new(random([48, 16], seed)?, None, random([16, 16], seed + 1)?, [1, 1, 16], true)?;
///     let mlp = Mlp::new(random([32, 16], seed + 2)?, Activation::Silu, random([16, 32], seed + 3)?)?;
///     Ok::<_, pascaline::Error>(TransformerBlock { norm1: norm.clone(), attention, norm2: norm, mlp })
/// };
/// let (first, second) = (block(1)?, block(5)?);
/// let mut blocks = StreamedBlocks::like(&first, cuda)?;
/// blocks.push(&first)?;
/// blocks.push(&second)?;
/// let angles = Tensor::zeros([2, 8], DType::F32, &gpu)?;
/// let rope = Rope::new(angles.clone(), angles, 0, 0)?;
/// let x = Tensor::ones([2, 16], DType::F32, &gpu)?;
/// let y = blocks.forward(1, &blocks.forward(0, &x, &rope, None)?, &rope, None)?;
/// let expected = second.forward(&first.forward(&x, &rope, None)?, &rope, None)?;
/// assert_eq!(y.to_vec::<f32>()?, expected.to_vec::<f32>()?);
/// # }
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Debug)]
pub struct StreamedBlocks {
    device: CudaDevice,
    /// The different layouts of the blocks' tensors; most models have one or two.
    layouts: Vec<Layout>,
    /// The index of each block's layout.
    layout_of: Vec<usize>,
    stream: Mutex<LayerStream>,
}

/// How the tensors of a block are stored, and modules whose tensors are in the places.
#[derive(Debug)]
struct Layout {
    parts: Vec<PlacedPart>,
    bytes: usize,
    /// The formats of the matrices, which may differ where shapes do not.
    formats: Vec<Option<Format>>,
    /// One block for each place.
    blocks: [TransformerBlock; 2],
}

/// One of a block's tensors, and its offset in the block's bytes.
#[derive(Clone, Debug, PartialEq)]
struct PlacedPart {
    at: usize,
    dtype: DType,
    shape: Shape,
}

impl PlacedPart {
    fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size()
    }
}

/// The parts of a block, and their total bytes.
fn parts(block: &TransformerBlock) -> Result<(Vec<PlacedPart>, usize)> {
    let (mut parts, mut bytes) = (Vec::new(), 0);
    block.map(&mut |tensor| {
        let part = PlacedPart { at: bytes, dtype: tensor.dtype(), shape: tensor.shape().clone() };
        bytes += part.bytes().next_multiple_of(ALIGNMENT);
        parts.push(part);
        Ok(tensor.clone())
    })?;
    Ok((parts, bytes))
}

/// The error for a block that differs from the others.
fn unlike(found: &Tensor) -> Error {
    let expected = "a block with the first one's types and shapes".into();
    Error::Shape { op: "StreamedBlocks", argument: "block", expected, found: found.shape().clone() }
}

fn formats(block: &TransformerBlock) -> Vec<Option<Format>> {
    block.matrices().into_iter().flat_map(Matrix::formats).collect()
}

/// The widths of the linear maps.
fn widths(block: &TransformerBlock) -> Vec<Vec<usize>> {
    block.matrices().into_iter().map(|matrix| matrix.dims().to_vec()).collect()
}

/// The block with its tensors in a place.
fn in_place(block: &TransformerBlock, parts: &[PlacedPart], place: &Tensor) -> Result<TransformerBlock> {
    let mut parts = parts.iter();
    block.map(&mut |tensor| {
        let part = parts.next().and_then(|part| place.within(part.at, part.dtype, &part.shape));
        part.ok_or_else(|| unlike(tensor))
    })
}

impl StreamedBlocks {
    /// No blocks yet, with room on the device for blocks of this one's shapes. They run on this handle's stream.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if the device has no room for two blocks.
    pub fn like(block: &TransformerBlock, device: &CudaDevice) -> Result<Self> {
        let stream = LayerStream::new(device, parts(block)?.1)?;
        let (layouts, layout_of) = (Vec::new(), Vec::new());
        let mut blocks = Self { device: device.clone(), layouts, layout_of, stream: Mutex::new(stream) };
        blocks.layout(block)?;
        Ok(blocks)
    }

    fn stream(&mut self) -> &mut LayerStream {
        self.stream.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The index of the layout of a block's tensors; adds a new layout. Places that are too small for it are replaced, and
    /// the modules move to the new ones.
    fn layout(&mut self, block: &TransformerBlock) -> Result<usize> {
        let ((parts, bytes), formats) = (parts(block)?, formats(block));
        let known = |layout: &Layout| layout.parts == parts && layout.formats == formats;
        if let Some(known) = self.layouts.iter().position(known) {
            return Ok(known);
        }
        let grown = self.stream().reserve(bytes)?;
        let [a, b] = self.stream().places()?.map(Tensor::of_buffer);
        let places = [a?, b?];
        if grown {
            for layout in &mut self.layouts {
                let moved = |place| in_place(&layout.blocks[0], &layout.parts, place);
                layout.blocks = [moved(&places[0])?, moved(&places[1])?];
            }
        }
        let blocks = [in_place(block, &parts, &places[0])?, in_place(block, &parts, &places[1])?];
        self.layouts.push(Layout { parts, bytes, formats, blocks });
        Ok(self.layouts.len() - 1)
    }

    /// Appends a block: its weights are copied to host memory.
    ///
    /// # Errors
    /// [`Error::Shape`] if its widths differ from the first one's, [`Error::Layout`] for weights that are not
    /// contiguous.
    pub fn push(&mut self, block: &TransformerBlock) -> Result<()> {
        if widths(block) != widths(&self.layouts[0].blocks[0]) {
            let expected = "a block with the first one's widths".into();
            let found = widths(block).swap_remove(0).into();
            return Err(Error::Shape { op: "StreamedBlocks", argument: "block", expected, found });
        }
        let number = self.layout(block)?;
        let layout = &self.layouts[number];
        if self.device.is_planned() {
            count_host_bytes(layout.bytes);
            let none = PinnedBuffer::new(&self.device, 0)?;
            self.stream().push(none)?;
            self.layout_of.push(number);
            return Ok(());
        }
        let mut host = PinnedBuffer::new(&self.device, layout.bytes)?;
        let mut parts = layout.parts.iter();
        block.map(&mut |tensor| {
            let part = parts.next().ok_or_else(|| unlike(tensor))?;
            if !tensor.is_contiguous() {
                let (op, argument, needed) = ("StreamedBlocks", "block", "contiguous");
                return Err(Error::Layout { op, argument, needed });
            }
            tensor.read_bytes(&mut host[part.at..part.at + part.bytes()])?;
            Ok(tensor.clone())
        })?;
        self.stream().push(host)?;
        self.layout_of.push(number);
        Ok(())
    }

    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.layout_of.len()
    }

    /// Whether there are no blocks.
    pub fn is_empty(&self) -> bool {
        self.layout_of.is_empty()
    }

    /// As [`TransformerBlock::forward`] of block `index`; also begins to copy the next block's weights.
    ///
    /// # Errors
    /// As [`TransformerBlock::forward`]. [`Error::Unsupported`] if there is no such block, or while the stream is being
    /// captured into a graph, which can't hold copies from the host.
    pub fn forward(&self, index: usize, x: &Tensor, rope: &Rope, cache: Option<Cache>) -> Result<Tensor> {
        self.forward_adapted(index, &[], x, rope, cache)
    }

    /// As [`forward`](Self::forward), with low-rank changes beside the block's matrices, as [`TransformerBlock::adapted`] takes them; an
    /// empty slice has none. They stay on the device.
    ///
    /// # Errors
    /// As [`forward`](Self::forward) and [`TransformerBlock::adapted`].
    pub fn forward_adapted(
        &self,
        index: usize,
        changes: &[Change],
        x: &Tensor,
        rope: &Rope,
        cache: Option<Cache>,
    ) -> Result<Tensor> {
        // until its kernels are queued, no other thread may have another layer copied to this layer's place
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let place = stream.layer(index)?;
        // `layer` has rejected an index out of range
        let block = &self.layouts[self.layout_of[index]].blocks[place];
        match changes {
            [] => block.forward(x, rope, cache),
            changes => block.adapted(changes)?.forward(x, rope, cache),
        }
    }

    /// Bytes of the matrices, in host memory.
    pub fn weight_bytes(&self) -> usize {
        self.layout_of.iter().map(|&layout| self.layouts[layout].blocks[0].weight_bytes()).sum()
    }
}
