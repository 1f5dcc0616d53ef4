//! The interface of a model; all else is written once, in this crate.
//!
//! A [`Model`] reads configurations. Its decoder is a pre-norm transformer with grouped-query attention, RMSNorm on queries and keys,
//! SwiGLU and rotary positions, which [`TextConfig`] sizes. A model that sees has a [`Vision`] part in
//! its configuration: that names its tensors, loads its [`Tower`] and prepares [`Pictures`].

use super::chat::Media;
use super::config::TextConfig;
use super::cut::Cut;
use super::gguf::{Field, Gguf};
use super::json::Fields;
use super::media::{
    ImagePlan, Patches, PixelLimits, Positions, VisionOutput, VisionProgress, VisionSizes, Visual,
};
use super::picture::PictureHeader;
use super::spec::{
    AttentionSpec, BlockSpec, ExpertsSpec, FeedForwardSpec, LinearSpec, MlpSpec, NormKind, NormSpec,
};
use pascaline::nn::Matrix;
use pascaline::ops::Activation;
use pascaline::{Device, Error, Result, Tensor};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

/// A family of models of one architecture.
pub trait Model: Debug + Sync {
    /// `model_type` in `config.json`.
    fn model_type(&self) -> &'static str;

    /// `general.architecture` in GGUF files.
    fn architecture(&self) -> &'static str;

    /// The beginning of the names of the decoder's tensors.
    fn prefix(&self) -> &'static str;

    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with file and field.
    fn config(&'static self, fields: Fields) -> Result<Config>;

    /// Reads and checks the metadata of GGUF files.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with file and key.
    fn gguf_config(&'static self, text: &Gguf, vision: Option<&Gguf>) -> Result<Config>;

    /// The file of the part that sees, beside a text file; `None` for a model of text alone.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if the model needs one and there is none, or more than one.
    fn vision_file(&self, text: &Gguf) -> Result<Option<Gguf>>;

    /// The keys of a text file that only this architecture has, without its name.
    fn gguf_keys(&self, config: &Config) -> Vec<(&'static str, Field)>;
}

/// A checkpoint's model and its sizes.
#[derive(Clone, Debug)]
pub struct Config {
    /// The model that has these sizes.
    pub model: &'static dyn Model,
    /// The decoder.
    pub text: TextConfig,
    /// Whether the output projection is the token embedding.
    pub tie_word_embeddings: bool,
    /// The part that sees; `None` for a model of text alone.
    pub vision: Option<Arc<dyn Vision>>,
    /// Rows and columns of the blocks that have a scale each, of a checkpoint with FP8 matrices.
    pub fp8_block: Option<[usize; 2]>,
}

/// A matrix of the experts of a layer; the tensor has all experts', [experts, rows, columns].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertPart {
    /// Before the activation.
    Gate,
    /// Multiplied by the activated gate.
    Up,
    /// Back to the hidden width.
    Down,
}

impl ExpertPart {
    /// All.
    pub const ALL: [Self; 3] = [Self::Gate, Self::Up, Self::Down];

    /// The name of its linear map.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gate => "gate_proj",
            Self::Up => "up_proj",
            Self::Down => "down_proj",
        }
    }

    /// Of a tensor's name, if it is experts': what stands before the linear map's name, and the part.
    pub fn of(name: &str) -> Option<(&str, Self)> {
        let (before, part) = name.strip_suffix(".weight")?.rsplit_once('.')?;
        let prefix = name.get(..before.len() + 1).filter(|_| before.ends_with(".mlp.experts"))?;
        Some((prefix, Self::ALL.into_iter().find(|one| one.name() == part)?))
    }
}

/// The output projection's name, where it is not the embedding.
pub const LM_HEAD: &str = "lm_head.weight";
/// The beginning of the names of the tensors of the part that sees.
pub const VISION: &str = "model.visual.";
/// Tensors of a decoder layer with a dense MLP, and with experts.
const PER_LAYER: [usize; 2] = [11, 12];

/// If the configuration has this many tensors more than the files, the missing ones are not listed.
pub const MANY: usize = 10_000;

/// The tensors of decoder layers, behind a model's prefix.
const LAYERS: &str = "layers.";

/// Whether a tensor belongs to the part that sees.
pub fn is_of_vision(name: &str) -> bool {
    name.starts_with(VISION)
}

/// Whether a tensor belongs to a decoder layer.
pub fn is_of_layers(name: &str) -> bool {
    !is_of_vision(name) && name.contains(&format!(".{LAYERS}"))
}

fn rms_norm(name: String, len: usize, eps: f32) -> NormSpec {
    NormSpec { name, len, eps, kind: NormKind::Rms }
}

impl Config {
    /// The published name of a tensor of the decoder, such as `norm.weight`.
    pub fn text_name(&self, part: &str) -> String {
        format!("{}{part}", self.model.prefix())
    }

    /// The beginning of the names of a decoder layer's tensors.
    pub fn layer_prefix(&self, layer: usize) -> String {
        self.text_name(&format!("{LAYERS}{layer}."))
    }

    /// A decoder layer.
    pub fn block(&self, layer: usize) -> BlockSpec {
        let text = &self.text;
        let (hidden, inner, head) = (text.hidden_size, text.intermediate_size, text.head_dim);
        let [q, kv] = [text.num_attention_heads, text.num_key_value_heads].map(|heads| heads * head);
        let prefix = self.layer_prefix(layer);
        let norm = |part: &str, len| rms_norm(format!("{prefix}{part}"), len, text.rms_norm_eps);
        let map = |parts: &[(&str, usize)], columns| LinearSpec {
            parts: parts.iter().map(|(part, rows)| (format!("{prefix}{part}"), *rows)).collect(),
            columns,
            has_bias: false,
        };
        BlockSpec {
            norm1: norm("input_layernorm", hidden),
            attention: AttentionSpec {
                qkv: map(
                    &[("self_attn.q_proj", q), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv)],
                    hidden,
                ),
                norms: Some([norm("self_attn.q_norm", head), norm("self_attn.k_norm", head)]),
                out: map(&[("self_attn.o_proj", hidden)], q),
                heads: [text.num_attention_heads, text.num_key_value_heads, head],
                causal: true,
            },
            norm2: norm("post_attention_layernorm", hidden),
            mlp: match text.experts_of(layer) {
                None => FeedForwardSpec::Dense(MlpSpec {
                    fc1: map(&[("mlp.gate_proj", inner), ("mlp.up_proj", inner)], hidden),
                    activation: Activation::SwiGlu,
                    fc2: map(&[("mlp.down_proj", hidden)], inner),
                }),
                Some(experts) => FeedForwardSpec::Experts(ExpertsSpec {
                    router: format!("{prefix}mlp.gate.weight"),
                    matrices: ExpertPart::ALL
                        .map(|part| format!("{prefix}mlp.experts.{}.weight", part.name())),
                    hidden,
                    experts: experts.clone(),
                }),
            },
        }
    }

    /// The norm after the last layer.
    pub fn norm(&self) -> NormSpec {
        rms_norm(self.text_name("norm"), self.text.hidden_size, self.text.rms_norm_eps)
    }

    /// The token embedding's published name.
    pub fn embedding(&self) -> String {
        self.text_name("embed_tokens.weight")
    }

    /// The published name of the matrix that gives the logits.
    pub fn output(&self) -> String {
        if self.tie_word_embeddings { self.embedding() } else { LM_HEAD.to_owned() }
    }

    /// The names and shapes of the tensors of a model of this configuration. Experts' matrices are a tensor for each [`ExpertPart`],
    /// whatever the layout of the files.
    pub fn tensors(&self) -> BTreeMap<String, Vec<usize>> {
        let mut tensors = self.vision.as_ref().map_or_else(BTreeMap::new, |vision| vision.tensors());
        let mut add = |name: String, shape: &[usize]| drop(tensors.insert(name, shape.to_vec()));
        let matrix = [self.text.vocab_size, self.text.hidden_size];
        add(self.embedding(), &matrix);
        add(self.output(), &matrix); // the same, if it is tied
        self.norm().tensors(&mut add);
        (0..self.text.num_hidden_layers).for_each(|layer| self.block(layer).tensors(&mut add));
        tensors
    }

    /// The names and shapes of the tensors in a directory as published: experts' matrices are two stacks a layer, each matrix transposed.
    pub fn published_tensors(&self) -> BTreeMap<String, Vec<usize>> {
        let mut tensors = BTreeMap::new();
        for (name, shape) in self.tensors() {
            match ExpertPart::of(&name) {
                None => drop(tensors.insert(name, shape)),
                Some((_, ExpertPart::Gate)) => {} // with the ups
                Some((prefix, ExpertPart::Up)) => {
                    let [experts, inner, hidden] = [shape[0], shape[1], shape[2]];
                    tensors.insert(format!("{prefix}gate_up_proj"), vec![experts, hidden, 2 * inner]);
                }
                Some((prefix, ExpertPart::Down)) => {
                    let [experts, hidden, inner] = [shape[0], shape[1], shape[2]];
                    tensors.insert(format!("{prefix}down_proj"), vec![experts, inner, hidden]);
                }
            }
        }
        tensors
    }

    /// The number of [`tensors`](Self::tensors), without the list.
    pub fn tensor_count(&self) -> usize {
        let outside = 2 + usize::from(!self.tie_word_embeddings);
        let vision = self.vision.as_ref().map_or(0, |vision| vision.tensor_count());
        let layers = self.text.num_hidden_layers;
        let sparse = self.text.experts.as_ref().map_or(0, |experts| experts.sparse_layers(layers));
        outside + PER_LAYER[0] * (layers - sparse) + PER_LAYER[1] * sparse + vision
    }

    /// The number of tensors, if it is too far above the `held` tensors of the files to list the missing ones.
    pub fn far_more_than(&self, held: usize) -> Option<usize> {
        Some(self.tensor_count()).filter(|&count| count > MANY.saturating_add(held))
    }

    /// Tokens and patches of a picture of width × height pixels that is not resized; none for a model of text alone.
    pub fn picture(&self, [width, height]: [usize; 2]) -> (usize, usize) {
        let Some(sizes) = self.vision.as_ref().map(|vision| vision.sizes()) else { return (0, 0) };
        let tokens = width.div_ceil(sizes.token_side()) * height.div_ceil(sizes.token_side());
        (tokens, tokens * sizes.merge_len())
    }

    /// Blocks of the part that sees; none for a model of text alone.
    pub fn vision_depth(&self) -> usize {
        self.vision.as_ref().map_or(0, |vision| vision.sizes().depth)
    }

    /// The error for pictures, if the model is of text alone.
    pub(crate) fn blind(&self) -> Error {
        Error::Unsupported {
            op: "load",
            argument: "pictures",
            value: self.model.model_type().to_owned(),
            reason: "it is a model of text alone, which takes no pictures or videos".into(),
        }
    }
}

/// The models that a program knows.
pub type Models = &'static [&'static dyn Model];

/// The files that say how pictures are prepared.
#[derive(Clone, Copy, Debug)]
pub enum VisionFiles<'a> {
    /// A directory as published.
    Directory(&'a Path),
    /// The vision file of a GGUF model.
    Gguf(&'a Gguf),
}

/// Where the vision tower's weights are, and where it computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VisionPlace {
    /// On the model's device.
    #[default]
    Resident,
    /// In host memory: they pass through the GPU while a picture is encoded, and leave it again. The embeddings are the same.
    Streamed,
    /// In host memory, and the CPU encodes pictures.
    Cpu,
}

/// How the vision tower multiplies queries and keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VisionScores {
    /// In f32.
    #[default]
    F32,
    /// In 8-bit integers ([`pascaline::ops::int8_attention`]): less time for large pictures, and results that differ.
    Int8,
}

/// The configuration of the part of a model that sees pictures and videos.
pub trait Vision: Any + Debug + Send + Sync {
    /// Its sizes.
    fn sizes(&self) -> VisionSizes;

    /// The names and shapes of its tensors; the names begin with [`VISION`].
    fn tensors(&self) -> BTreeMap<String, Vec<usize>>;

    /// The number of [`tensors`](Self::tensors), without the list.
    fn tensor_count(&self) -> usize;

    /// The name in a GGUF file of a tensor. A tensor with a dimension of frames is split there, and this is the first part's.
    fn gguf_name(&self, published: &str) -> Option<String>;

    /// Tokens that a vocabulary must have: their fields in `config.json`, and their ids.
    fn special_tokens(&self) -> Vec<(&'static str, u32)>;

    /// How pictures are prepared.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with file and field.
    fn pictures(&self, files: VisionFiles) -> Result<Box<dyn Pictures>>;

    /// Takes the tower's tensors; with `passing`, those of the blocks and mergers stay there, in host memory. `done` is called
    /// after each block.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], or a device error.
    fn tower(
        &self,
        tensors: &mut dyn Tensors,
        device: &Device,
        passing: Option<&Device>,
        scores: VisionScores,
        done: &mut dyn FnMut(Progress),
    ) -> Result<Box<dyn Tower>>;
}

/// The progress of loading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Tensors loaded so far.
    pub loaded: usize,
    /// Tensors of the model.
    pub total: usize,
}

/// The tensors of a checkpoint, by their published names, each taken once.
pub trait Tensors {
    /// The part of each of these matrices that `cut` takes, on the device that is loaded onto, each above the next.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], or a device error.
    fn weight(&mut self, names: &[String], cut: Cut) -> Result<Matrix>;

    /// A norm's weight or a bias: always f32.
    ///
    /// # Errors
    /// As [`weight`](Self::weight).
    fn vector(&mut self, name: &str) -> Result<Tensor>;

    /// A table that stays in host memory, in f32.
    ///
    /// # Errors
    /// As [`weight`](Self::weight).
    fn host(&mut self, name: &str) -> Result<Vec<f32>>;

    /// How many were taken.
    fn progress(&self) -> Progress;
}

/// The network that turns patches into embeddings.
pub trait Tower: Send + Sync {
    /// Passes an image or video through the next `blocks` blocks, one at least. Gives the output after the last one. All calls for
    /// one image have the same patches.
    ///
    /// # Errors
    /// [`Error::Shape`] if the patches are not the tower's, or a device error; `progress` is of no use then.
    fn advance(
        &self,
        patches: &Patches,
        progress: &mut VisionProgress,
        blocks: usize,
    ) -> Result<Option<VisionOutput>>;

    /// The blocks that each group of frames passes.
    fn depth(&self) -> usize;

    /// The device that computes.
    fn device(&self) -> &Device;
}

/// How pictures and videos become tokens and patches.
pub trait Pictures: Any + Send + Sync {
    /// The patches of an image or video.
    ///
    /// # Errors
    /// [`Error::Image`].
    fn patches(&self, visual: &Visual) -> Result<Patches>;

    /// Resizes a visual to the size that its patches are cut from, so that those of later calls need no resize. They are the same.
    ///
    /// # Errors
    /// As [`patches`](Self::patches); the visual is as it was.
    fn shrink(&self, visual: &mut Visual) -> Result<()>;

    /// The same with other limits of pixels.
    fn within(&self, limits: PixelLimits) -> Box<dyn Pictures>;

    /// The tokens and the memory of a picture with this header, or of a video of so many decoded frames with it.
    ///
    /// # Errors
    /// [`Error::Image`].
    fn plan(&self, name: &str, header: PictureHeader, frames: Option<usize>) -> Result<ImagePlan>;

    /// The tokens that an image or video becomes whose patches have this grid.
    fn media(&self, visual: &Visual, grid: [usize; 3]) -> Media;

    /// The prompt with its placeholders replaced by pad tokens, which `spelling` spells.
    ///
    /// # Errors
    /// [`Error::Prompt`] if placeholders and media do not fit each other.
    fn expand(
        &self,
        prompt: &str,
        media: &[Media],
        spelling: &dyn Fn(u32) -> Option<String>,
    ) -> Result<String>;

    /// The positions of tokens that include the pads of these grids.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the tokens and the grids do not fit each other.
    fn positions(&self, ids: &[u32], grids: &mut dyn Iterator<Item = [usize; 3]>) -> Result<Positions>;

    /// Whether an image's or video's embedding replaces this token's.
    fn is_pad(&self, id: u32) -> bool;

    /// The difference of pixel values that one step of an 8-bit value makes, in the first channel.
    fn pixel_step(&self) -> f64;
}
