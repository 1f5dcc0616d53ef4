//! A stack of transformer blocks: the first ones resident on the device, the others streamed from host memory.

use pascaline::cuda::CudaDevice;
use pascaline::nn::{Cache, Change, Hits, Rope, StreamedBlocks, TransformerBlock};
use pascaline::{Error, Result, Tensor};
use std::sync::Arc;

/// The blocks, in the order in which they were pushed.
#[derive(Default)]
pub struct Layers {
    resident: Vec<TransformerBlock>,
    /// The blocks after them, in pinned host memory.
    streamed: Option<Arc<StreamedBlocks>>,
    /// What an adapter adds to the matrices of the streamed blocks, for each; empty without an adapter. It stays on the device.
    changes: Vec<Vec<Change>>,
}

impl Layers {
    /// Appends a resident block.
    pub fn push(&mut self, block: TransformerBlock) {
        self.resident.push(block);
    }

    /// Appends a streamed block: its weights move to host memory and are copied to `device` for each pass. All blocks after
    /// it must be streamed, too.
    pub fn push_streamed(&mut self, block: &TransformerBlock, device: &CudaDevice) -> Result<()> {
        let streamed = match &mut self.streamed {
            Some(streamed) => streamed,
            None => self.streamed.insert(Arc::new(StreamedBlocks::like(block, device)?)),
        };
        let shared = || Error::Unsupported {
            op: "load",
            argument: "block",
            value: "one more streamed block".into(),
            reason: "an adapter shares those that are there".into(),
        };
        Arc::get_mut(streamed).ok_or_else(shared)?.push(block)
    }

    /// The same blocks, whose memory both share, with low-rank changes beside their matrices: for each block those that
    /// [`TransformerBlock::adapted`] takes.
    ///
    /// # Errors
    /// As there.
    pub(super) fn adapted(&self, changes: Vec<Vec<Change>>) -> Result<Self> {
        let mut changes = changes.into_iter();
        let blocks = self.resident.iter().zip(changes.by_ref());
        let resident = blocks.map(|(block, changes)| block.adapted(&changes)).collect::<Result<_>>()?;
        Ok(Self { resident, streamed: self.streamed.clone(), changes: changes.collect() })
    }

    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.resident.len() + self.streamed()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of streamed blocks.
    pub fn streamed(&self) -> usize {
        self.streamed.as_ref().map_or(0, |streamed| streamed.len())
    }

    /// The number of resident blocks whose experts are in host memory.
    pub fn host_experts(&self) -> usize {
        self.resident.iter().filter(|block| block.mlp.has_experts_in_host_memory()).count()
    }

    /// How often the router's choice was in device memory, of experts in host memory.
    pub fn expert_hits(&self) -> Hits {
        self.resident.iter().map(|block| block.mlp.expert_hits()).sum()
    }

    /// Block `index`, if it is resident.
    pub fn resident(&self, index: usize) -> Option<&TransformerBlock> {
        self.resident.get(index)
    }

    /// Applies block `index`, which is below [`len`](Self::len), to `x`.
    pub fn forward(&self, index: usize, x: &Tensor, rope: &Rope, cache: Option<Cache>) -> Result<Tensor> {
        match (self.resident.get(index), &self.streamed) {
            (Some(block), _) => block.forward(x, rope, cache),
            (None, Some(streamed)) => {
                let index = index - self.resident.len();
                let changes = self.changes.get(index).map_or(&[][..], Vec::as_slice);
                streamed.forward_adapted(index, changes, x, rope, cache)
            }
            (None, None) => Ok(x.clone()), // callers count by `len`
        }
    }

    /// Bytes of the matrices.
    pub fn weight_bytes(&self) -> usize {
        let resident: usize = self.resident.iter().map(TransformerBlock::weight_bytes).sum();
        resident + self.streamed.as_ref().map_or(0, |streamed| streamed.weight_bytes())
    }
}
