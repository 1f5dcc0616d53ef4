//! A model's loss over a tape, in f32, with the parameters of a checkpoint under their published names.
//!
//! The forward pass is the model's own, recorded: `modules.rs` has its modules over the tape. Here are the parameters as it
//! has them, the examples, and the loss.

use crate::files;
use crate::functions::{cross_entropy, embedding};
use crate::lora::Lora;
use crate::modules::{Place, Recording, Specs, Taped};
use crate::parameters::Parameters;
use crate::quantize_aware::{Learned, QuantizeAware};
use crate::tape::{Tape, Var};
use crate::values::Values;
use pascaline::nn::Matrix;
use pascaline::ops;
use pascaline::quant::{Format, QuantTensor};
use pascaline::{DType, Device, Error, Result, Tensor};
use qwen3_vl::config::{Config, VisionConfig, seeing};
use qwen3_vl::forward::{self, ImageRun, Images};
use qwen3_vl::gguf::{PlannedTensor, encode};
use qwen3_vl::positions::{KnownAngles, positions};
use qwen3_vl::preprocess::Patches;
use qwen3_vl::seam::{is_of_layers, is_of_vision};
use qwen3_vl::vision::{VisionModules, position_table};
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
        matches!(self, Self::Quantized(_)) && is_of_layers(name) && shape.len() == 2
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
    known_angles: KnownAngles,
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
        Self::load_tensors(dir, storage, device, |_| true)
    }

    /// As [`load_frozen`](Self::load_frozen) without the vision tower, for examples without pictures. Others are errors then, and so is
    /// [`save`](Self::save).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_text(dir: &Path, storage: Frozen, device: &Device) -> Result<Self> {
        Self::load_tensors(dir, storage, device, |name| !is_of_vision(name))
    }

    /// The tensors of these names.
    fn load_tensors(
        dir: &Path,
        storage: Frozen,
        device: &Device,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self> {
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
        for (name, shape) in config.tensors().into_iter().filter(|(name, _)| is_wanted(name)) {
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
        let known_angles = KnownAngles::default();
        Self { config, device, parameters, lora, checkpoint_layers: false, quantize_aware, known_angles }
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
        let mut tables = vec![self.config.embedding()];
        tables.extend(seeing(&self.config).map(|seeing| position_table(&seeing.tower).name));
        for (number, name) in names.iter().enumerate() {
            let value = self.parameters.get(number).value();
            let (shape, device) = (value.shape().clone(), value.device());
            let new = match *shape.dims() {
                [_] if name.ends_with(".bias") => Tensor::zeros(shape, DType::F32, &device),
                [_] => Tensor::ones(shape, DType::F32, &device),
                _ => {
                    let is_embedding = tables.contains(name);
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
        let learned = forward::Run::norm(&mut self.recording(tape), &self.config.norm(), &learned)?;
        let head = self.values().parameter(tape, &self.config.output())?;
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
        let tables = self.known_angles.at(text, axes);
        let table =
            |values: &[f32]| Tensor::from_slice(values, [axes.len(), text.head_dim / 2], &self.device);
        let place =
            Place { angles: [table(&tables.cos)?, table(&tables.sin)?], sequences: sequences.to_vec() };
        let (mut outputs, mut image_runs) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
        if !runs.is_empty() {
            let tower = VisionModules::<Taped>::load(&mut Specs, self.tower()?)?;
            let mut recording = self.recording(tape);
            for (output, Run { patches, group, rows }) in runs.iter().enumerate() {
                let group = tower.begin(&mut recording, patches, *group, &self.device)?;
                outputs.push(tower.finish(&mut recording, group)?);
                image_runs.push(ImageRun { start: rows.start, len: rows.len(), output, row: 0 });
            }
        }
        let images = Images { outputs: &outputs, runs: &image_runs };

        let embeddings = self.values().parameter(tape, &self.config.embedding())?;
        let tokens = embedding(tape, &embeddings, &Tensor::from_slice(ids, [ids.len()], &self.device)?)?;
        let layers: Vec<_> = (0..text.num_hidden_layers).map(|layer| self.config.block(layer)).collect();
        let mut recording = self.recording(tape);
        let h = forward::embed(&mut recording, tokens, images)?;
        forward::decode(&mut recording, &layers, 0..layers.len(), h, &place, images, &mut |_, _| Ok(()))
    }

    /// The values of a parameter as the forward pass has them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none of this name, or a device error.
    pub fn seen(&self, name: &str) -> Result<Tensor> {
        Ok(self.values().parameter(&mut Tape::silent(), name)?.value().clone())
    }

    /// A tensor's bytes in a file of the plan that the model is trained for: the values that [`seen`](Self::seen) gives, bit for bit.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is none of this name or for values beyond f16's range, or a device error.
    pub fn encoded(&self, tensor: &PlannedTensor) -> Result<Vec<u8>> {
        let whole = self.values().whole(&mut Tape::silent(), &tensor.published)?;
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
            if !is_trained && self.values().adapter_of(&name).is_none() {
                continue;
            }
            let first = Learned::first(self.values().whole(&mut Tape::silent(), &name)?.value(), format)?;
            // of one dimension, so that they do not decay
            let factors = Tensor::ones([first.shape().elements()], DType::F32, &self.device)?;
            let factors = self.parameters.add(format!("{name}.scale_factors"), factors, true)?;
            self.quantize_aware.learn(name, Learned { format, first, factors });
        }
        Ok(())
    }

    /// The parameters as the forward pass has them.
    fn values(&self) -> Values<'_> {
        let Self { parameters, lora, quantize_aware, device, .. } = self;
        Values { parameters, lora, quantize_aware, device }
    }

    /// A pass that is recorded.
    fn recording<'a>(&'a self, tape: &'a mut Tape) -> Recording<'a> {
        Recording { values: self.values(), tape, checkpoint_layers: self.checkpoint_layers }
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
