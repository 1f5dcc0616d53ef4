//! A model's configuration: the decoder's sizes, and which model it is.

use super::json::{self, Fields, MAX_CONFIG};
use super::seam::{Model, Vision};
use pascaline::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The largest dimension or count; products of two stay far from overflow.
pub const MAX_DIMENSION: u64 = 1 << 24;

/// What a checkpoint says of its model.
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
}

/// The decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rows of the token embedding.
    pub vocab_size: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f32,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// How many frequencies belong to time, height and width; all to time in a model of text alone.
    pub mrope_section: [usize; 3],
    /// The longest sequence that the model supports.
    pub max_position_embeddings: usize,
    /// The end of a turn, where `generation_config.json` does not say.
    pub eos_token_id: Option<u32>,
}

/// The output projection's name, where it is not the embedding.
pub const LM_HEAD: &str = "lm_head.weight";
/// The beginning of the names of the tensors of the part that sees.
pub const VISION: &str = "model.visual.";
/// Tensors of a decoder layer.
const PER_LAYER: usize = 11;

impl Config {
    /// The published name of a tensor of the decoder, such as `norm.weight`.
    pub fn text_name(&self, part: &str) -> String {
        format!("{}{part}", self.model.prefix())
    }

    /// The published name of a weight of a decoder layer, such as `mlp.up_proj`.
    pub fn layer_name(&self, layer: usize, part: &str) -> String {
        self.text_name(&format!("layers.{layer}.{part}.weight"))
    }

    /// The token embedding's published name.
    pub fn embedding(&self) -> String {
        self.text_name("embed_tokens.weight")
    }

    /// The published name of the matrix that gives the logits.
    pub fn output(&self) -> String {
        if self.tie_word_embeddings { self.embedding() } else { LM_HEAD.to_owned() }
    }

    /// The names and shapes of the tensors that a model of this configuration has in its files.
    pub fn tensors(&self) -> BTreeMap<String, Vec<usize>> {
        let mut tensors = self.vision.as_ref().map_or_else(BTreeMap::new, |vision| vision.tensors());
        let text = &self.text;
        let (hidden, mlp, head) = (text.hidden_size, text.intermediate_size, text.head_dim);
        let (q_width, kv_width) = (text.num_attention_heads * head, text.num_key_value_heads * head);
        let mut add = |name: String, shape: &[usize]| tensors.insert(name, shape.to_vec());
        add(self.embedding(), &[text.vocab_size, hidden]);
        add(self.text_name("norm.weight"), &[hidden]);
        if !self.tie_word_embeddings {
            add(LM_HEAD.into(), &[text.vocab_size, hidden]);
        }
        for layer in 0..text.num_hidden_layers {
            let mut add = |part: &str, shape: &[usize]| add(self.layer_name(layer, part), shape);
            add("input_layernorm", &[hidden]);
            add("self_attn.q_proj", &[q_width, hidden]);
            add("self_attn.k_proj", &[kv_width, hidden]);
            add("self_attn.v_proj", &[kv_width, hidden]);
            add("self_attn.o_proj", &[hidden, q_width]);
            add("self_attn.q_norm", &[head]);
            add("self_attn.k_norm", &[head]);
            add("post_attention_layernorm", &[hidden]);
            add("mlp.gate_proj", &[mlp, hidden]);
            add("mlp.up_proj", &[mlp, hidden]);
            add("mlp.down_proj", &[hidden, mlp]);
        }
        tensors
    }

    /// The number of [`tensors`](Self::tensors), without the list.
    pub fn tensor_count(&self) -> usize {
        let outside = 2 + usize::from(!self.tie_word_embeddings);
        let vision = self.vision.as_ref().map_or(0, |vision| vision.tensor_count());
        outside + PER_LAYER * self.text.num_hidden_layers + vision
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

/// Makes the error for a field of these structures.
pub type Refuse<'a> = dyn Fn(&str, String) -> Error + 'a;

impl TextConfig {
    /// Refuses sizes that do not fit each other.
    ///
    /// # Errors
    /// That of `refuse`.
    pub fn check(&self, refuse: &Refuse) -> Result<()> {
        let Self { num_attention_heads, num_key_value_heads, head_dim, mrope_section, .. } = self;
        if !num_attention_heads.is_multiple_of(*num_key_value_heads) {
            let reason =
                format!("{num_key_value_heads} does not divide the {num_attention_heads} query heads");
            return Err(refuse("num_key_value_heads", reason));
        }
        if *head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(refuse("head_dim", format!("{head_dim} is not a positive even number")));
        }
        let frequencies = mrope_section.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        if frequencies != Some(head_dim / 2) {
            let reason = format!("{mrope_section:?} does not sum to head_dim / 2 = {}", head_dim / 2);
            return Err(refuse("mrope_section", reason));
        }
        Ok(())
    }
}

/// The contents of `generation_config.json`; every field has a default, and the file may be missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Generation stops at any of these.
    pub eos_token_ids: Vec<u32>,
    /// Whether the checkpoint's authors sample; otherwise greedy.
    pub do_sample: bool,
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// How many of the likeliest tokens take part.
    pub top_k: Option<u64>,
    /// The share of probability that takes part.
    pub top_p: Option<f64>,
    /// As in the sampling options.
    pub repetition_penalty: Option<f64>,
}

impl GenerationConfig {
    /// Reads and checks `generation_config.json` in `dir`; without one, the stop token is `config.json`'s.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with file and field.
    pub fn load(dir: &Path, config: &Config) -> Result<Self> {
        let file = dir.join("generation_config.json");
        let fallback = || config.text.eos_token_id.into_iter().collect();
        if !file.exists() {
            return Ok(Self { eos_token_ids: fallback(), ..Self::default() });
        }
        let map = json::read_object(&file, MAX_CONFIG)?;
        let fields = Fields::new(&file, "", &map);
        let eos_token_ids: Vec<u32> = match fields.get("eos_token_id") {
            None => fallback(),
            Some(value) if value.is_array() => {
                let ids = fields.required("eos_token_id", fields.sizes("eos_token_id")?)?;
                ids.into_iter().map(|id| u32::try_from(id).unwrap_or(u32::MAX)).collect()
            }
            Some(_) => fields.id("eos_token_id")?.into_iter().collect(),
        };
        if let Some(id) = eos_token_ids.iter().find(|&&id| id as usize >= config.text.vocab_size) {
            let reason = format!("{id} is outside the vocabulary of {}", config.text.vocab_size);
            return Err(fields.bad("eos_token_id", reason));
        }
        Ok(Self {
            eos_token_ids,
            do_sample: fields.bool("do_sample")?.unwrap_or(false),
            temperature: fields.f64("temperature")?,
            top_k: fields.u64("top_k")?,
            top_p: fields.f64("top_p")?,
            repetition_penalty: fields.f64("repetition_penalty")?,
        })
    }
}
