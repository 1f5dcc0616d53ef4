//! Qwen3-VL's loss over a tape, in f32, with the parameters of a checkpoint under their published names.
//!
//! It computes what the `qwen3_vl` crate's modules compute. Those are made for inference: projections are stacked, keys and values go
//! to a cache, and what a gradient needs is not kept.

use crate::files;
use crate::functions::{
    adapted, add, add_rows, attention, cross_entropy, embedding, fake_quantize, fake_quantize_learned,
    linear, quantized_linear, replace_rows, reshape, rms_norm, rope, scale, silu_mul,
};
use crate::lora::{Adapter, Lora, is_of_vision};
use crate::parameters::Parameters;
use crate::quantize_aware::{Learned, QuantizeAware};
use crate::tape::{Tape, Var};
use crate::vision;
use pascaline::nn::Matrix;
use pascaline::ops::{self, Attention};
use pascaline::quant::{Format, QuantTensor};
use pascaline::{DType, Device, Error, Result, Tensor};
use qwen3_vl::config::{Config, VisionConfig, seeing};
use qwen3_vl::gguf::{PlannedTensor, encode};
use qwen3_vl::positions::{positions, text_rope};
use qwen3_vl::preprocess::Patches;
use qwen3_vl::weights::Weights;
use std::ops::Range;
use std::path::Path;

/// A sequence to learn from.
#[derive(Clone, Debug, Default)]
pub struct Example {
    /// The tokens, with a pad for each token of an image.
    pub ids: Vec<u32>,
    /// For each token, whether it is a target: to be predicted from those before it.
    pub is_answer: Vec<bool>,
    /// The images and videos, in order.
    pub visuals: Vec<Patches>,
}

impl Example {
    /// The number of targets. The first token of a sequence is none, as no token is before it.
    pub fn targets(&self) -> usize {
        self.is_answer.iter().skip(1).filter(|is_answer| **is_answer).count()
    }
}

/// A loss on a tape.
pub struct Loss {
    /// The loss of each target.
    pub each: Var,
}

impl Loss {
    /// The sum over the tokens. Reading it waits for the device.
    ///
    /// # Errors
    /// A device error.
    pub fn sum(&self) -> Result<f64> {
        Ok(self.each.value().to_vec::<f32>()?.into_iter().map(f64::from).sum())
    }
}

/// How weights that are not trained are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Frozen {
    /// In f32 or f16.
    Float(DType),
    /// The decoder layers' matrices in this format, all others in f16 (Dettmers et al. 2023, "QLoRA"). Products are with the dequantised
    /// values, in f32.
    Quantized(Format),
}

impl Frozen {
    /// Whether the tensor of this published name and shape is quantised.
    fn quantizes(self, name: &str, shape: &[usize]) -> bool {
        let of_layers = !is_of_vision(name) && name.contains(".layers.") && shape.len() == 2;
        matches!(self, Self::Quantized(_)) && of_layers
    }

    /// Bytes of a tensor of this published name and shape.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn bytes(self, name: &str, shape: &[usize]) -> Result<usize> {
        let values: usize = shape.iter().product();
        Ok(match (self, shape) {
            (Self::Quantized(format), &[n, k]) if self.quantizes(name, shape) => {
                QuantTensor::part_bytes(format, [n, k])?.iter().sum()
            }
            (_, [_]) => DType::F32.size() * values,
            (Self::Float(dtype), _) => dtype.size() * values,
            (Self::Quantized(_), _) => DType::F16.size() * values,
        })
    }
}

/// The model: its configuration and its parameters.
pub struct Model {
    config: Config,
    device: Device,
    /// The tensors of the checkpoint, and of adapters.
    pub parameters: Parameters,
    /// Adapters of linear maps.
    pub lora: Lora,
    /// Whether layers are computed again in the backward pass instead of being kept.
    pub checkpoint_layers: bool,
    /// How weights are rounded in the forward pass.
    pub quantize_aware: QuantizeAware,
}

impl Model {
    /// Reads a directory of safetensors, in f32, with all parameters to be trained.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], or a device error.
    pub fn load(dir: &Path, device: &Device) -> Result<Self> {
        Self::load_frozen(dir, Frozen::Float(DType::F32), device)
    }

    /// Reads a directory of safetensors and stores its weights by `storage`. Parameters in f32 are marked to be trained; smaller types can
    /// only carry adapters.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_frozen(dir: &Path, storage: Frozen, device: &Device) -> Result<Self> {
        let config = qwen3_vl::config::load(dir)?;
        if config.text.experts.is_some() {
            return Err(Error::Unsupported {
                op: "train",
                argument: "model",
                value: config.model.model_type().to_owned(),
                reason: "a mixture of experts can't be trained; take a dense model".into(),
            });
        }
        let (dtype, format) = match storage {
            Frozen::Float(dtype) => (dtype, None),
            Frozen::Quantized(format) => (DType::F16, Some(format)),
        };
        let mut weights = Weights::open(dir, &config, dtype, device)?;
        if let Some(format) = format {
            weights = weights.quantized(format);
        }
        let mut parameters = Parameters::default();
        for (name, shape) in config.tensors() {
            if format.is_some() && storage.quantizes(&name, &shape) {
                match weights.weight(&[&name])? {
                    Matrix::Quantized(matrix) => parameters.add_quantized(name, matrix),
                    Matrix::Plain(value) => drop(parameters.add(name, value, false)?),
                    Matrix::Stacked(_) | Matrix::Adapted(_) => {
                        let reason = "is stored in several types".into();
                        return Err(Error::Checkpoint {
                            file: dir.display().to_string(),
                            item: Some(name),
                            reason,
                        });
                    }
                }
                continue;
            }
            let value = match shape.len() {
                1 => weights.vector(&name)?,
                _ => weights.matrix(&name)?,
            };
            let is_trained = value.dtype() == DType::F32;
            parameters.add(name, value, is_trained)?;
        }
        Ok(Self::new(config, device, parameters))
    }

    /// A model with these parameters, which have the published names; convolutions are matrices whose rows are output channels.
    pub fn new(config: Config, device: &Device, parameters: Parameters) -> Self {
        let (device, lora) = (device.clone(), Lora::default());
        let quantize_aware = QuantizeAware::default();
        Self { config, device, parameters, lora, checkpoint_layers: false, quantize_aware }
    }

    /// Writes the tensors as `model.safetensors` of a directory that has the rest of a checkpoint. Adapters are not written.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file, or a device error.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let shapes = self.config.tensors();
        let of =
            |name: &String| Ok((name.clone(), self.parameters.get(self.parameters.required(name)?).value()));
        let tensors = shapes.keys().map(of).collect::<Result<Vec<_>>>()?;
        files::write_tensors(&dir.join("model.safetensors"), &tensors, |name, _| shapes[name].clone())
    }

    /// Gives all parameters random values, for training from scratch. Linear maps get normal ones with a deviation of 1/√(inputs), so that
    /// their outputs are as large as their inputs, and embeddings normal ones with a deviation of 0.02. Biases become 0, and norms' weights 1.
    ///
    /// # Errors
    /// A device error.
    pub fn randomize(&mut self, seed: u64) -> Result<()> {
        let names: Vec<String> =
            self.parameters.iter().map(|parameter| parameter.name().to_owned()).collect();
        for (number, name) in names.iter().enumerate() {
            let value = self.parameters.get(number).value();
            let (shape, device) = (value.shape().clone(), value.device());
            let new = match *shape.dims() {
                [_] if name.ends_with(".bias") => Tensor::zeros(shape, DType::F32, &device),
                [_] => Tensor::ones(shape, DType::F32, &device),
                _ => {
                    let is_embedding = *name == self.config.embedding() || name == vision::POSITIONS;
                    let deviation =
                        if is_embedding { 0.02 } else { 1.0 / (value.shape().rows_cols().1 as f32).sqrt() };
                    let seed = seed.wrapping_add(number as u64);
                    ops::scale(&Tensor::randn(shape, DType::F32, seed, &device)?, deviation)
                }
            };
            self.parameters.set(number, new?)?;
        }
        Ok(())
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The sizes of the vision tower.
    pub(crate) fn tower(&self) -> Result<&VisionConfig> {
        let tower = seeing(&self.config).map(|seeing| &seeing.tower);
        tower.ok_or_else(|| Error::Prompt { reason: "the model is of text alone".into() })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The loss of examples that are packed into one sequence of rows, each of which sees only itself. Gradients are multiplied by
    /// `factor`, usually 1 / the number of targets of all examples of a step.
    ///
    /// # Errors
    /// [`Error::Prompt`] if tokens and images do not match, [`Error::Unsupported`] if there is no target, or a device
    /// error.
    pub fn loss(&self, tape: &mut Tape, examples: &[Example], factor: f32) -> Result<Loss> {
        let (learned, head, labels) = self.learned(tape, examples)?;
        let labels = Tensor::from_slice(&labels, [labels.len()], &self.device)?;
        Ok(Loss { each: cross_entropy(tape, &learned, &head, &labels, factor)? })
    }

    /// The normalised rows from which targets are predicted, the output matrix, and the targets.
    fn learned(&self, tape: &mut Tape, examples: &[Example]) -> Result<(Var, Var, Vec<u32>)> {
        let ids: Vec<u32> = examples.iter().flat_map(|example| example.ids.iter().copied()).collect();
        let targets = targets(examples)?;
        let (mut axes, mut sequences, mut runs) = (Vec::with_capacity(ids.len()), Vec::new(), Vec::new());
        let seeing = seeing(&self.config);
        let is_pad = |id: u32| seeing.is_some_and(|it| id == it.image_token_id || id == it.video_token_id);
        let merge = seeing.map_or(1, |seeing| seeing.tower.spatial_merge_size);
        for example in examples {
            let start = axes.len();
            let grids = grids(&example.visuals);
            axes.extend(positions(&example.ids, is_pad, &grids, merge)?.axes);
            sequences.push(start..axes.len());
            let mut pads = (start..axes.len()).filter(|&i| is_pad(ids[i]));
            for patches in &example.visuals {
                // `positions` has found each grid's tokens; those of a video's groups have text between them
                let [groups, rows, cols] = patches.grid;
                for group in 0..groups {
                    let len = rows * cols / (merge * merge);
                    let first = pads.next().unwrap_or(start);
                    pads.by_ref().take(len.saturating_sub(1)).for_each(drop);
                    runs.push(Run { patches, group, rows: first..first + len });
                }
            }
        }
        let hidden = self.hidden(tape, &ids, &axes, &sequences, &runs)?;
        let rows: Vec<u32> = targets.iter().map(|&target| target as u32 - 1).collect();
        let labels: Vec<u32> = targets.iter().map(|&target| ids[target]).collect();
        let learned = embedding(tape, &hidden, &Tensor::from_slice(&rows, [rows.len()], &self.device)?)?;
        let norm = self.parameter(tape, &self.config.text_name("norm.weight"))?;
        let learned = rms_norm(tape, &learned, &norm, self.config.text.rms_norm_eps)?;
        let head = self.parameter(tape, &self.config.output())?;
        Ok((learned, head, labels))
    }

    /// For each target, whether it is the likeliest token after those before it. If all of an answer's are, greedy generation gives that
    /// answer.
    ///
    /// # Errors
    /// As [`loss`](Self::loss).
    pub fn predicts(&self, example: &Example) -> Result<Vec<bool>> {
        let mut tape = Tape::silent();
        let (learned, head, labels) = self.learned(&mut tape, std::slice::from_ref(example))?;
        let logits = ops::matmul(learned.value(), &head.value().swap_dims(0, 1)?)?;
        let likeliest = ops::argmax(&logits)?.to_vec::<u32>()?;
        Ok(likeliest.iter().zip(&labels).map(|(likeliest, label)| likeliest == label).collect())
    }

    /// The last layer's output, not normalised: [tokens, hidden].
    fn hidden(
        &self,
        tape: &mut Tape,
        ids: &[u32],
        axes: &[[u32; 3]],
        sequences: &[Range<usize>],
        runs: &[Run],
    ) -> Result<Var> {
        let text = &self.config.text;
        let tables = text_rope(text, axes);
        let table =
            |values: &[f32]| Tensor::from_slice(values, [axes.len(), text.head_dim / 2], &self.device);
        let rope = [table(&tables.cos)?, table(&tables.sin)?];
        let seen = runs
            .iter()
            .map(|run| vision::forward(self, tape, run.patches, run.group))
            .collect::<Result<Vec<_>>>()?;

        let embeddings = self.parameter(tape, &self.config.embedding())?;
        let mut h = embedding(tape, &embeddings, &Tensor::from_slice(ids, [ids.len()], &self.device)?)?;
        for (run, seen) in runs.iter().zip(&seen) {
            h = replace_rows(tape, &h, &seen.embeddings, run.rows.start)?;
        }
        for index in 0..text.num_hidden_layers {
            let layer = Layer::new(self, tape, index)?;
            h = match self.checkpoint_layers {
                false => layer.forward(tape, &h, &rope, sequences)?,
                true => {
                    let (input, rope, sequences) = (h.clone(), rope.clone(), sequences.to_vec());
                    tape.checkpoint(move |tape| layer.forward(tape, &input, &rope, &sequences))?
                }
            };
            for (run, seen) in runs.iter().zip(&seen) {
                if let Some(features) = seen.deepstack.get(index) {
                    h = add_rows(tape, &h, features, run.rows.start)?;
                }
            }
        }
        Ok(h)
    }

    /// The values of a parameter as the forward pass has them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none of this name, or a device error.
    pub fn seen(&self, name: &str) -> Result<Tensor> {
        Ok(self.parameter(&mut Tape::silent(), name)?.value().clone())
    }

    /// A tensor's bytes in a file of the plan that the model is trained for: the values that [`seen`](Self::seen) gives, bit for bit.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none of this name or for values beyond f16's range, or a device error.
    pub fn encoded(&self, tensor: &PlannedTensor) -> Result<Vec<u8>> {
        let whole = self.whole(&mut Tape::silent(), &tensor.published)?;
        if let Some(learned) = self.quantize_aware.learned(&tensor.published) {
            let scales = learned.scales(self.parameters.get(learned.factors).value())?;
            return ops::quantize_scaled(whole.value(), &scales, learned.format)?.to_gguf_bytes();
        }
        encode(tensor.ty, &tensor.values(whole.value().to_vec()?), tensor.matrix(), &self.device)
    }

    /// Adds trained parameters for the block scales of the weights that are rounded to quants and are trained or carry adapters.
    ///
    /// # Errors
    /// A device error.
    pub fn learn_scales(&mut self) -> Result<()> {
        for (name, format) in self.quantize_aware.scaled() {
            let is_trained = self.parameters.get(self.parameters.required(&name)?).is_trained();
            if !is_trained && self.adapter_of(&name).is_none() {
                continue;
            }
            let first = Learned::first(self.whole(&mut Tape::silent(), &name)?.value(), format)?;
            // of one dimension, so that they do not decay
            let factors = Tensor::ones([first.shape().elements()], DType::F32, &self.device)?;
            let factors = self.parameters.add(format!("{name}.scale_factors"), factors, true)?;
            self.quantize_aware.learn(name, Learned { format, first, factors });
        }
        Ok(())
    }

    /// A parameter by its name, as the forward pass has it.
    pub(crate) fn parameter(&self, tape: &mut Tape, name: &str) -> Result<Var> {
        let whole = self.whole(tape, name)?;
        match (self.quantize_aware.learned(name), self.quantize_aware.ty(name)) {
            (Some(learned), _) => {
                let factors = tape.parameter(&self.parameters, learned.factors);
                fake_quantize_learned(tape, &whole, &factors, learned)
            }
            (None, Some(ty)) => fake_quantize(tape, &whole, ty),
            (None, None) => Ok(whole),
        }
    }

    /// A parameter before it is rounded. Where weights are rounded, adapters are merged with theirs, as in the files.
    fn whole(&self, tape: &mut Tape, name: &str) -> Result<Var> {
        let weight = tape.parameter(&self.parameters, self.parameters.required(name)?);
        match self.adapter_of(name) {
            Some(adapter) if !self.quantize_aware.is_empty() => {
                let [a, b] = [adapter.a, adapter.b].map(|number| tape.parameter(&self.parameters, number));
                adapted(tape, &weight, [&a, &b], self.lora.scale())
            }
            _ => Ok(weight),
        }
    }

    /// The adapter of a linear map's weight.
    fn adapter_of(&self, name: &str) -> Option<Adapter> {
        self.lora.adapter(name.strip_suffix(".weight")?)
    }

    /// A linear map, with its adapter if it has one. `name` is the module's.
    pub(crate) fn linear(&self, tape: &mut Tape, name: &str, has_bias: bool) -> Result<Map> {
        let weight = match self.parameters.quantized(&format!("{name}.weight")) {
            Some(matrix) => Weight::Quantized(matrix.clone()),
            None => Weight::Plain(self.parameter(tape, &format!("{name}.weight"))?),
        };
        let bias = match has_bias {
            true => Some(self.parameter(tape, &format!("{name}.bias"))?),
            false => None,
        };
        let beside = self.lora.adapter(name).filter(|_| self.quantize_aware.is_empty());
        let adapter = beside.map(|adapter| {
            let [a, b] = [adapter.a, adapter.b].map(|number| tape.parameter(&self.parameters, number));
            (a, b, self.lora.scale())
        });
        Ok(Map { weight, bias, adapter })
    }
}

/// The tokens of an image, or of a group of a video's frames.
struct Run<'a> {
    patches: &'a Patches,
    group: usize,
    rows: Range<usize>,
}

/// The grids of runs of image tokens: a video's groups have text between them, so each is a run of its own.
fn grids(visuals: &[Patches]) -> Vec<[usize; 3]> {
    let each = |patches: &Patches| {
        let [groups, rows, cols] = patches.grid;
        std::iter::repeat_n([1, rows, cols], groups)
    };
    visuals.iter().flat_map(each).collect()
}

/// The indices of the targets in the packed sequence.
fn targets(examples: &[Example]) -> Result<Vec<usize>> {
    let (mut targets, mut start) = (Vec::new(), 0);
    for Example { ids, is_answer, .. } in examples {
        if ids.len() != is_answer.len() {
            let reason = format!("{} tokens and {} marks of answers", ids.len(), is_answer.len());
            return Err(Error::Prompt { reason });
        }
        targets.extend((1..ids.len()).filter(|&i| is_answer[i]).map(|i| start + i));
        start += ids.len();
    }
    match targets.is_empty() {
        false => Ok(targets),
        true => {
            let reason = "none of their tokens is to be learned".into();
            Err(Error::Unsupported {
                op: "loss",
                argument: "examples",
                value: examples.len().to_string(),
                reason,
            })
        }
    }
}

#[derive(Clone)]
enum Weight {
    Plain(Var),
    Quantized(QuantTensor),
}

/// A linear map on a tape.
#[derive(Clone)]
pub(crate) struct Map {
    weight: Weight,
    bias: Option<Var>,
    /// A, B and the factor of B·A.
    adapter: Option<(Var, Var, f32)>,
}

impl Map {
    pub fn forward(&self, tape: &mut Tape, x: &Var) -> Result<Var> {
        let y = match &self.weight {
            Weight::Plain(weight) => linear(tape, x, weight, self.bias.as_ref())?,
            Weight::Quantized(weight) => quantized_linear(tape, x, weight, self.bias.as_ref())?,
        };
        let Some((a, b, factor)) = &self.adapter else { return Ok(y) };
        let low = linear(tape, x, a, None)?;
        let low = scale(tape, &low, *factor)?;
        let change = linear(tape, &low, b, None)?;
        add(tape, &y, &change)
    }
}

/// The parameters of a decoder layer, on a tape.
struct Layer {
    heads: [usize; 2],
    head_dim: usize,
    eps: f32,
    norms: [Var; 2],
    head_norms: [Var; 2],
    qkvo: [Map; 4],
    gate_up_down: [Map; 3],
}

impl Layer {
    fn new(model: &Model, tape: &mut Tape, index: usize) -> Result<Self> {
        let text = &model.config.text;
        let name = |part: &str| model.config.text_name(&format!("layers.{index}.{part}"));
        let mut norm = |part: &str| model.parameter(tape, &name(&format!("{part}.weight")));
        let norms = [norm("input_layernorm")?, norm("post_attention_layernorm")?];
        let head_norms = [norm("self_attn.q_norm")?, norm("self_attn.k_norm")?];
        let mut map = |part: &str| model.linear(tape, &name(part), false);
        Ok(Self {
            heads: [text.num_attention_heads, text.num_key_value_heads],
            head_dim: text.head_dim,
            eps: text.rms_norm_eps,
            norms,
            head_norms,
            qkvo: [
                map("self_attn.q_proj")?,
                map("self_attn.k_proj")?,
                map("self_attn.v_proj")?,
                map("self_attn.o_proj")?,
            ],
            gate_up_down: [map("mlp.gate_proj")?, map("mlp.up_proj")?, map("mlp.down_proj")?],
        })
    }

    /// x: [tokens, hidden] → [tokens, hidden]
    fn forward(
        &self,
        tape: &mut Tape,
        x: &Var,
        angles: &[Tensor; 2],
        sequences: &[Range<usize>],
    ) -> Result<Var> {
        let (tokens, [q_heads, kv_heads]) = (x.value().dims()[0], self.heads);
        let [wq, wk, wv, wo] = &self.qkvo;
        let normed = rms_norm(tape, x, &self.norms[0], self.eps)?;
        let project = |tape: &mut Tape, map: &Map, heads: usize| {
            let y = map.forward(tape, &normed)?;
            reshape(tape, &y, [tokens, heads, self.head_dim])
        };
        let (q, k, v) =
            (project(tape, wq, q_heads)?, project(tape, wk, kv_heads)?, project(tape, wv, kv_heads)?);
        let q = rms_norm(tape, &q, &self.head_norms[0], self.eps)?;
        let k = rms_norm(tape, &k, &self.head_norms[1], self.eps)?;
        let (q, k) = (rope(tape, &q, angles)?, rope(tape, &k, angles)?);
        let causal = Attention { causal: true, ..Attention::default() };
        let attended = attention(tape, [&q, &k, &v], sequences, causal)?;
        let attended = reshape(tape, &attended, [tokens, q_heads * self.head_dim])?;
        let attended = wo.forward(tape, &attended)?;
        let x = add(tape, x, &attended)?;

        let [gate, up, down] = &self.gate_up_down;
        let normed = rms_norm(tape, &x, &self.norms[1], self.eps)?;
        let (gate, up) = (gate.forward(tape, &normed)?, up.forward(tape, &normed)?);
        let gated = silu_mul(tape, &gate, &up)?;
        let y = down.forward(tape, &gated)?;
        add(tape, &x, &y)
    }
}
