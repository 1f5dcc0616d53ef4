//! The vision tower: patches → embeddings that take image tokens' places, and the deepstack features that are added to
//! the first decoder layers. [`VisionModules`] is the tower for any run, [`VisionTower`] that of inference.

use super::config::VisionConfig;
use super::names::{Merging, TowerSpec};
use super::positions::{position_embeddings, vision_rope};
use language::forward::{Load, Modules, Run};
use language::inference::{Inference, Loader, Pass};
use language::media::{Patches, VisionOutput, VisionProgress};
use language::rope::RopeTables;
use language::seam::{Progress, Tensors, Tower, VisionScores};
use language::spec::TableSpec;
use pascaline::ops;
use pascaline::{DType, Device, Error, Result, Tensor};

/// The vision tower's modules, for any run.
pub struct VisionModules<M: Modules> {
    config: VisionConfig,
    patch_embed: M::Linear,
    /// [side², hidden]: it is interpolated for each image size.
    pos_embed: M::Table,
    blocks: M::Blocks,
    merger: Merger<M>,
    deepstack_mergers: Vec<Merger<M>>,
}

/// Joins the patches of a merge block into one token.
struct Merger<M: Modules> {
    norm: M::Norm,
    /// Whether the norm is over the joined patches, as in the deepstack mergers, or over each patch before.
    norm_joined: bool,
    mlp: M::Mlp,
    joined: usize,
}

impl<M: Modules> Merger<M> {
    fn load(load: &mut impl Load<M>, Merging { norm, norm_joined, mlp, joined }: Merging) -> Result<Self> {
        Ok(Self { mlp: load.mlp(mlp)?, norm: load.norm(norm)?, norm_joined, joined })
    }

    /// [patches, hidden] → [patches / merge², text hidden]
    fn forward(&self, run: &mut impl Run<M>, x: &M::Value) -> Result<M::Value> {
        let normed = match self.norm_joined {
            true => {
                let x = run.in_rows_of(x, self.joined)?;
                run.norm(&self.norm, &x)?
            }
            false => {
                let normed = run.norm(&self.norm, x)?;
                run.in_rows_of(&normed, self.joined)?
            }
        };
        run.mlp(&self.mlp, &normed)
    }
}

/// A group of frames on its way.
pub struct Group<M: Modules> {
    place: M::Place,
    /// [patches, hidden]
    h: M::Value,
    /// How many blocks it has passed.
    blocks: usize,
    deepstack: Vec<M::Value>,
}

impl<M: Modules> VisionModules<M> {
    /// Makes the tower's modules.
    ///
    /// # Errors
    /// Those of `load`.
    pub fn load(load: &mut impl Load<M>, config: &VisionConfig) -> Result<Self> {
        let spec = TowerSpec::new(config);
        let mut blocks = M::Blocks::default();
        spec.blocks.into_iter().try_for_each(|block| load.push(&mut blocks, block))?;
        let mut merger = |merging| Merger::load(load, merging);
        let deepstack_mergers = spec.deepstack_mergers.into_iter().map(&mut merger).collect::<Result<_>>()?;
        let merger = merger(spec.merger)?;
        Ok(Self {
            patch_embed: load.linear(spec.patch_embed)?,
            pos_embed: load.table(spec.pos_embed)?,
            merger,
            deepstack_mergers,
            blocks,
            config: config.clone(),
        })
    }

    /// Image or group of frames number `group` of `patches` before the first block.
    ///
    /// # Errors
    /// [`Error::Shape`] if the patches are not the tower's, or those of the run.
    pub fn begin(
        &self,
        run: &mut impl Run<M>,
        patches: &Patches,
        group: usize,
        device: &Device,
    ) -> Result<Group<M>> {
        patches.tokens(&self.config.sizes())?;
        let [_, rows, cols] = patches.grid;
        let (grid, count) = ([1, rows, cols], rows * cols);
        let len = count * self.config.patch_len();
        let Some(values) = patches.values.chunks_exact(len.max(1)).nth(group) else {
            let (expected, found) = (format!("a group number below {}", patches.grid[0]), [group].into());
            return Err(Error::Shape { op: "VisionTower", argument: "group", expected, found });
        };
        let on_device = |values: &[f32], cols| Tensor::from_slice(values, [count, cols], device);
        let half = self.config.head_dim() / 2;
        let tables = match device.is_planned() {
            true => RopeTables::unknown(count * half),
            false => vision_rope(&self.config, &[grid]),
        };
        let place = run.place([on_device(&tables.cos, half)?, on_device(&tables.sin, half)?])?;
        let values = on_device(values, self.config.patch_len())?;
        let values = run.constant(values);
        let embedded = run.linear(&self.patch_embed, &values)?;
        drop(values);
        let mix = |table: &[f32]| position_embeddings(&self.config, table, &[grid]);
        let positions = run.mixed(&self.pos_embed, count, &mix)?;
        let h = run.add(&embedded, &positions)?;
        Ok(Group { place, h, blocks: 0, deepstack: Vec::with_capacity(self.deepstack_mergers.len()) })
    }

    /// Whether a group has blocks to pass.
    fn is_under_way(&self, group: &Group<M>) -> bool {
        group.blocks < self.config.depth
    }

    /// Passes the next block.
    fn pass_block(&self, run: &mut impl Run<M>, group: &mut Group<M>) -> Result<()> {
        group.h = run.block(&self.blocks, group.blocks, &group.h, &group.place)?;
        let merger = self.config.deepstack_visual_indexes.iter().position(|&at| at == group.blocks);
        if let Some(merger) = merger.and_then(|i| self.deepstack_mergers.get(i)) {
            group.deepstack.push(merger.forward(run, &group.h)?);
        }
        group.blocks += 1;
        Ok(())
    }

    /// Passes the blocks that are left.
    ///
    /// # Errors
    /// Those of the run.
    pub fn finish(&self, run: &mut impl Run<M>, mut group: Group<M>) -> Result<VisionOutput<M::Value>> {
        while self.is_under_way(&group) {
            self.pass_block(run, &mut group)?;
        }
        Ok(VisionOutput { embeddings: self.merger.forward(run, &group.h)?, deepstack: group.deepstack })
    }
}

/// The vision tower.
pub struct VisionTower {
    modules: VisionModules<Inference>,
    device: Device,
}

impl VisionTower {
    /// Takes the tower's tensors; with `passing`, those of the blocks and mergers stay there, in host memory. `done` is called after
    /// each block.
    pub(super) fn load(
        tensors: &mut dyn Tensors,
        config: &VisionConfig,
        device: &Device,
        passing: Option<&Device>,
        scores: VisionScores,
        done: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let modules = VisionModules::load(&mut Loader { tensors, device, passing, scores, done }, config)?;
        done(tensors.progress());
        Ok(Self { modules, device: device.clone() })
    }

    /// The groups' outputs, one after the other.
    fn joined(&self, mut all: Vec<VisionOutput>) -> Result<VisionOutput> {
        if all.len() == 1 {
            return Ok(all.swap_remove(0));
        }
        let stacked = |of: &dyn Fn(&VisionOutput) -> Tensor| stack(&all.iter().map(of).collect::<Vec<_>>());
        Ok(VisionOutput {
            embeddings: stacked(&|output| output.embeddings.clone())?,
            deepstack: (0..self.modules.deepstack_mergers.len())
                .map(|i| stacked(&|output| output.deepstack[i].clone()))
                .collect::<Result<_>>()?,
        })
    }
}

/// The state of an image between blocks.
#[derive(Default)]
struct State {
    /// The outputs of the groups of frames that are through.
    through: Vec<VisionOutput>,
    group: Option<Group<Inference>>,
}

/// Each group of frames passes alone, since patches see only those of their own group: that bounds the memory too.
impl Tower for VisionTower {
    fn advance(
        &self,
        patches: &Patches,
        progress: &mut VisionProgress,
        blocks: usize,
    ) -> Result<Option<VisionOutput>> {
        let state = progress.state.take().and_then(|state| state.downcast::<State>().ok());
        let mut state = state.unwrap_or_default();
        let (modules, pass) = (&self.modules, &mut Pass::new(&self.device));
        let mut left = blocks.max(1);
        while left > 0 {
            let mut group = match state.group.take() {
                Some(group) => group,
                None => modules.begin(pass, patches, state.through.len(), &self.device)?,
            };
            while left > 0 && modules.is_under_way(&group) {
                modules.pass_block(pass, &mut group)?;
                (left, progress.passed) = (left - 1, progress.passed + 1);
            }
            if modules.is_under_way(&group) {
                state.group = Some(group);
                break;
            }
            state.through.push(modules.finish(pass, group)?);
            if state.through.len() >= patches.grid[0] {
                return self.joined(state.through).map(Some);
            }
        }
        progress.state = Some(state);
        Ok(None)
    }

    fn depth(&self) -> usize {
        self.modules.config.depth
    }

    fn device(&self) -> &Device {
        &self.device
    }
}

/// The learned grid of position embeddings.
pub fn position_table(config: &VisionConfig) -> TableSpec {
    TowerSpec::new(config).pos_embed
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
