//! The vision tower: patches → embeddings that take image tokens' places, and the deepstack features that are added to
//! the first decoder layers.

use super::config::VisionConfig;
use super::positions::{position_embeddings, vision_rope};
use language::layers::Layers;
use language::media::{Patches, VisionOutput, VisionProgress};
use language::rope::RopeTables;
use language::seam::{Progress, Tensors, Tower};
use pascaline::nn::{Attention, LayerNorm, Linear, Mlp, Norm, Rope, TransformerBlock};
use pascaline::ops::{self, Activation};
use pascaline::{DType, Device, Result, Tensor};

/// In the reference a constant and not part of the configuration.
pub(crate) const LAYER_NORM_EPS: f32 = 1e-6;

/// The vision tower.
pub struct VisionTower {
    config: VisionConfig,
    device: Device,
    patch_embed: Linear,
    /// [side², hidden], in host memory: it is interpolated for each image size.
    pos_embed: Vec<f32>,
    blocks: Layers,
    merger: Merger,
    deepstack_mergers: Vec<Merger>,
}

/// Joins the patches of a merge block into one token.
struct Merger {
    norm: LayerNorm,
    /// Whether the norm is over the joined patches, as in the deepstack mergers, or over each patch before.
    norm_joined: bool,
    mlp: Mlp,
    joined: usize,
}

impl Merger {
    fn load(tensors: &mut dyn Tensors, name: &str, norm_joined: bool, joined: usize) -> Result<Self> {
        let mlp = Mlp::new(
            linear(tensors, &format!("{name}.linear_fc1"))?,
            Activation::GeluErf,
            linear(tensors, &format!("{name}.linear_fc2"))?,
        )?;
        Ok(Self { norm: layer_norm(tensors, &format!("{name}.norm"))?, norm_joined, mlp, joined })
    }

    /// With its weights on `device`: copies where they are elsewhere.
    fn on(&self, device: &Device) -> Result<Self> {
        Ok(Self { norm: self.norm.to_device(device)?, mlp: self.mlp.to_device(device)?, ..*self })
    }

    /// [patches, hidden] → [patches / merge², text hidden]
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let joined = [x.shape().elements() / self.joined, self.joined];
        let normed = match self.norm_joined {
            true => self.norm.forward(&x.reshape(joined)?)?,
            false => self.norm.forward(x)?.reshape(joined)?,
        };
        self.mlp.forward(&normed)
    }
}

fn linear(tensors: &mut dyn Tensors, name: &str) -> Result<Linear> {
    let weight = tensors.weight(&format!("{name}.weight"))?;
    Linear::new(weight, Some(tensors.vector(&format!("{name}.bias"))?))
}

fn layer_norm(tensors: &mut dyn Tensors, name: &str) -> Result<LayerNorm> {
    let weight = tensors.vector(&format!("{name}.weight"))?;
    LayerNorm::new(weight, tensors.vector(&format!("{name}.bias"))?, LAYER_NORM_EPS)
}

impl VisionTower {
    /// Takes the tower's tensors; with `passing`, those of the blocks and mergers stay there, in host memory. `done` is called after
    /// each block.
    pub(super) fn load(
        tensors: &mut dyn Tensors,
        config: &VisionConfig,
        device: &Device,
        passing: Option<&Device>,
        done: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let joined = config.hidden_size * config.merge_len();
        let mut blocks = Layers::default();
        for index in 0..config.depth {
            let name = |part: &str| format!("model.visual.blocks.{index}.{part}");
            let (heads, head_dim) = (config.num_heads, config.head_dim());
            let block = TransformerBlock {
                norm1: Norm::Layer(layer_norm(tensors, &name("norm1"))?),
                attention: Attention::new(
                    linear(tensors, &name("attn.qkv"))?,
                    None,
                    linear(tensors, &name("attn.proj"))?,
                    [heads, heads, head_dim],
                    false,
                )?,
                norm2: Norm::Layer(layer_norm(tensors, &name("norm2"))?),
                mlp: Mlp::new(
                    linear(tensors, &name("mlp.linear_fc1"))?,
                    Activation::GeluTanh,
                    linear(tensors, &name("mlp.linear_fc2"))?,
                )?,
            };
            match device {
                Device::Cuda(device) if passing.is_some() => blocks.push_streamed(&block, device)?,
                _ => blocks.push(block),
            }
            done(tensors.progress());
        }
        let mut merger = |name: &str, norm_joined| {
            let merger = Merger::load(tensors, &format!("model.visual.{name}"), norm_joined, joined)?;
            match passing {
                Some(host) => merger.on(host),
                None => Ok(merger),
            }
        };
        let deepstack_mergers = (0..config.deepstack_visual_indexes.len())
            .map(|i| merger(&format!("deepstack_merger_list.{i}"), true))
            .collect::<Result<_>>()?;
        let merger = merger("merger", false)?;
        let tower = Self {
            patch_embed: linear(tensors, "model.visual.patch_embed.proj")?,
            pos_embed: tensors.host("model.visual.pos_embed.weight")?,
            merger,
            deepstack_mergers,
            blocks,
            device: device.clone(),
            config: config.clone(),
        };
        done(tensors.progress());
        Ok(tower)
    }

    /// The groups' outputs, one after the other.
    fn joined(&self, mut all: Vec<VisionOutput>) -> Result<VisionOutput> {
        if all.len() == 1 {
            return Ok(all.swap_remove(0));
        }
        let stacked = |of: &dyn Fn(&VisionOutput) -> Tensor| stack(&all.iter().map(of).collect::<Vec<_>>());
        Ok(VisionOutput {
            embeddings: stacked(&|output| output.embeddings.clone())?,
            deepstack: (0..self.deepstack_mergers.len())
                .map(|i| stacked(&|output| output.deepstack[i].clone()))
                .collect::<Result<_>>()?,
        })
    }

    /// A group of frames before the first block.
    fn begin(&self, values: &[f32], grid: [usize; 3]) -> Result<Group> {
        let patches = grid.iter().product::<usize>();
        let on_device = |values: &[f32], cols| Tensor::from_slice(values, [patches, cols], &self.device);
        let half = self.config.head_dim() / 2;
        let (tables, positions) = match self.device.is_planned() {
            true => (RopeTables::unknown(patches * half), vec![0.0; patches * self.config.hidden_size]),
            false => {
                let positions = position_embeddings(&self.config, &self.pos_embed, &[grid]);
                (vision_rope(&self.config, &[grid]), positions)
            }
        };
        let rope = Rope::new(on_device(&tables.cos, half)?, on_device(&tables.sin, half)?, 0, 0)?;
        let embedded = self.patch_embed.forward(&on_device(values, self.config.patch_len())?)?;
        let h = ops::add(&embedded, &on_device(&positions, self.config.hidden_size)?)?;
        let deepstack = Vec::with_capacity(self.deepstack_mergers.len());
        Ok(Group { rope, h, blocks: 0, deepstack })
    }

    fn pass_block(&self, group: &mut Group) -> Result<()> {
        group.h = self.blocks.forward(group.blocks, &group.h, &group.rope, None)?;
        let merger = self.config.deepstack_visual_indexes.iter().position(|&at| at == group.blocks);
        if let Some(i) = merger {
            group.deepstack.push(self.deepstack_mergers[i].on(&self.device)?.forward(&group.h)?);
        }
        group.blocks += 1;
        Ok(())
    }
}

/// The state of an image between blocks.
#[derive(Default)]
struct State {
    /// The outputs of the groups of frames that are through.
    through: Vec<VisionOutput>,
    group: Option<Group>,
}

/// Each group of frames passes alone, since patches see only those of their own group: that bounds the memory too.
impl Tower for VisionTower {
    fn advance(
        &self,
        patches: &Patches,
        progress: &mut VisionProgress,
        blocks: usize,
    ) -> Result<Option<VisionOutput>> {
        patches.tokens(&self.config.sizes())?;
        let state = progress.state.take().and_then(|state| state.downcast::<State>().ok());
        let mut state = state.unwrap_or_default();
        let [groups, rows, cols] = patches.grid;
        let count = rows * cols * self.config.patch_len();
        let mut left = blocks.max(1);
        while left > 0 {
            let mut group = match state.group.take() {
                Some(group) => group,
                None => match patches.values.chunks_exact(count.max(1)).nth(state.through.len()) {
                    Some(values) => self.begin(values, [1, rows, cols])?,
                    None => self.begin(&[], [1, 0, 0])?,
                },
            };
            while left > 0 && group.blocks < self.blocks.len() {
                self.pass_block(&mut group)?;
                (left, progress.passed) = (left - 1, progress.passed + 1);
            }
            if group.blocks < self.blocks.len() {
                state.group = Some(group);
                break;
            }
            let embeddings = self.merger.on(&self.device)?.forward(&group.h)?;
            state.through.push(VisionOutput { embeddings, deepstack: group.deepstack });
            if state.through.len() >= groups {
                return self.joined(state.through).map(Some);
            }
        }
        progress.state = Some(state);
        Ok(None)
    }
}

/// A group of frames on its way.
struct Group {
    rope: Rope,
    /// [patches, hidden]
    h: Tensor,
    /// How many blocks it has passed.
    blocks: usize,
    deepstack: Vec<Tensor>,
}

/// Matrices of equal width, one above the other.
fn stack(parts: &[Tensor]) -> Result<Tensor> {
    let rows: usize = parts.iter().map(|part| part.dims()[0]).sum();
    let cols = parts.first().map_or(0, |part| part.dims()[1]);
    let device = parts.first().map_or(Device::Cpu, Tensor::device);
    let mut whole = Tensor::uninitialized([rows, cols], DType::F32, &device)?;
    let mut at = 0;
    for part in parts {
        let len = part.dims()[0];
        ops::copy_into(whole.view_mut()?.narrow(0, at, len)?, part)?;
        at += len;
    }
    Ok(whole)
}
