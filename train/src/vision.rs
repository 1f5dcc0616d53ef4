//! The vision tower over a tape.

use crate::functions::{
    activate, add, attention, layer_norm, linear, matrix_times, reshape, rope, some_heads,
};
use crate::model::{Map, Model};
use crate::tape::{Tape, Var};
use pascaline::ops::{Activation, Attention};
use pascaline::{Result, Tensor};
use qwen3_vl::config::VisionConfig;
use qwen3_vl::positions::{position_embeddings, vision_rope};
use qwen3_vl::preprocess::Patches;

/// A constant in the reference implementation, not part of the configuration.
const LAYER_NORM_EPS: f32 = 1e-6;

/// The learned grid of position embeddings.
pub(crate) const POSITIONS: &str = "model.visual.pos_embed.weight";

/// The tower's output for an image.
pub(crate) struct VisionOutput {
    /// [tokens, text hidden]
    pub embeddings: Var,
    /// For each of the first decoder layers: [tokens, text hidden].
    pub deepstack: Vec<Var>,
}

/// One image, or one group of a video's frames.
pub(crate) fn forward(
    model: &Model,
    tape: &mut Tape,
    patches: &Patches,
    group: usize,
) -> Result<VisionOutput> {
    let config = model.tower()?;
    patches.tokens(&config.sizes())?;
    let [_, rows, cols] = patches.grid;
    let (grid, count) = ([1, rows, cols], rows * cols);
    let on_device = |values: &[f32], width: usize| Tensor::from_slice(values, [count, width], model.device());
    let values = &patches.values[group * count * config.patch_len()..][..count * config.patch_len()];
    let (tables, half) = (vision_rope(config, &[grid]), config.head_dim() / 2);
    let angles = [on_device(&tables.cos, half)?, on_device(&tables.sin, half)?];

    let values = tape.constant(on_device(values, config.patch_len())?);
    let [weight, bias] = ["weight", "bias"].map(|part| format!("model.visual.patch_embed.proj.{part}"));
    let (weight, bias) = (model.parameter(tape, &weight)?, model.parameter(tape, &bias)?);
    let embedded = linear(tape, &values, &weight, Some(&bias))?;
    let table = model.parameter(tape, POSITIONS)?;
    let places = matrix_times(
        tape,
        &on_device(&interpolation(config, grid), config.num_position_embeddings)?,
        &table,
    )?;
    let mut h = add(tape, &embedded, &places)?;

    let mut deepstack = Vec::with_capacity(config.deepstack_visual_indexes.len());
    for index in 0..config.depth {
        let block = Block::new(model, tape, index)?;
        h = match model.checkpoint_layers {
            false => block.forward(tape, &h, &angles)?,
            true => {
                let (input, angles) = (h.clone(), angles.clone());
                tape.checkpoint(move |tape| block.forward(tape, &input, &angles))?
            }
        };
        if let Some(i) = config.deepstack_visual_indexes.iter().position(|&at| at == index) {
            deepstack.push(merge(model, tape, &h, &format!("model.visual.deepstack_merger_list.{i}"), true)?);
        }
    }
    Ok(VisionOutput { embeddings: merge(model, tape, &h, "model.visual.merger", false)?, deepstack })
}

/// The position embeddings of an image as a linear map of the learned grid: [patches, side²].
fn interpolation(config: &VisionConfig, grid: [usize; 3]) -> Vec<f32> {
    let places = config.num_position_embeddings;
    let mut identity = vec![0.0; places * places];
    identity.iter_mut().step_by(places + 1).for_each(|x| *x = 1.0);
    let of_places = VisionConfig { hidden_size: places, ..config.clone() };
    position_embeddings(&of_places, &identity, &[grid])
}

/// Joins the patches of a merge block into one token. `norm_joined`: the norm is over the joined patches.
fn merge(model: &Model, tape: &mut Tape, x: &Var, name: &str, norm_joined: bool) -> Result<Var> {
    let config = model.tower()?;
    let width = config.hidden_size * config.merge_len();
    let joined = [x.value().shape().elements() / width, width];
    let norm = Norm::new(model, tape, &format!("{name}.norm"))?;
    let normed = match norm_joined {
        true => {
            let x = reshape(tape, x, joined)?;
            norm.forward(tape, &x)?
        }
        false => {
            let normed = norm.forward(tape, x)?;
            reshape(tape, &normed, joined)?
        }
    };
    let [fc1, fc2] = mlp(model, tape, name)?;
    let hidden = fc1.forward(tape, &normed)?;
    let hidden = activate(tape, &hidden, Activation::GeluErf)?;
    fc2.forward(tape, &hidden)
}

fn mlp(model: &Model, tape: &mut Tape, name: &str) -> Result<[Map; 2]> {
    let mut map = |part: &str| model.linear(tape, &format!("{name}.{part}"), true);
    Ok([map("linear_fc1")?, map("linear_fc2")?])
}

#[derive(Clone)]
struct Norm {
    weight: Var,
    bias: Var,
}

impl Norm {
    fn new(model: &Model, tape: &mut Tape, name: &str) -> Result<Self> {
        let mut part = |part: &str| model.parameter(tape, &format!("{name}.{part}"));
        Ok(Self { weight: part("weight")?, bias: part("bias")? })
    }

    fn forward(&self, tape: &mut Tape, x: &Var) -> Result<Var> {
        layer_norm(tape, x, &self.weight, &self.bias, LAYER_NORM_EPS)
    }
}

/// The parameters of a block, on a tape.
struct Block {
    heads: usize,
    head_dim: usize,
    norms: [Norm; 2],
    qkv: Map,
    proj: Map,
    mlp: [Map; 2],
}

impl Block {
    fn new(model: &Model, tape: &mut Tape, index: usize) -> Result<Self> {
        let config = model.tower()?;
        let name = |part: &str| format!("model.visual.blocks.{index}.{part}");
        Ok(Self {
            heads: config.num_heads,
            head_dim: config.head_dim(),
            norms: [Norm::new(model, tape, &name("norm1"))?, Norm::new(model, tape, &name("norm2"))?],
            qkv: model.linear(tape, &name("attn.qkv"), true)?,
            proj: model.linear(tape, &name("attn.proj"), true)?,
            mlp: mlp(model, tape, &name("mlp"))?,
        })
    }

    /// x: [patches, hidden] → [patches, hidden]
    fn forward(&self, tape: &mut Tape, x: &Var, angles: &[Tensor; 2]) -> Result<Var> {
        let (patches, heads) = (x.value().dims()[0], self.heads);
        let normed = self.norms[0].forward(tape, x)?;
        let qkv = self.qkv.forward(tape, &normed)?;
        let qkv = reshape(tape, &qkv, [patches, 3 * heads, self.head_dim])?;
        let mut part = |i: usize| some_heads(tape, &qkv, i * heads, heads);
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let (q, k) = (rope(tape, &q, angles)?, rope(tape, &k, angles)?);
        let whole = 0..patches;
        let attended = attention(tape, [&q, &k, &v], std::slice::from_ref(&whole), Attention::default())?;
        let attended = reshape(tape, &attended, [patches, heads * self.head_dim])?;
        let attended = self.proj.forward(tape, &attended)?;
        let x = add(tape, x, &attended)?;

        let normed = self.norms[1].forward(tape, &x)?;
        let hidden = self.mlp[0].forward(tape, &normed)?;
        let hidden = activate(tape, &hidden, Activation::GeluTanh)?;
        let y = self.mlp[1].forward(tape, &hidden)?;
        add(tape, &x, &y)
    }
}
