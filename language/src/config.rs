//! The decoder's sizes, and how a checkpoint's authors generate.

use super::json::{self, Fields, MAX_CONFIG};
use pascaline::{Error, Result};
use std::path::Path;

/// The most experts of a layer, as [`pascaline::ops::route`] takes.
const MAX_EXPERTS: usize = 1024;

/// The decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct TextConfig {
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Experts in place of some layers' MLP; `None` in a dense model.
    pub experts: Option<ExpertsConfig>,
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

/// The experts of a mixture.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertsConfig {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that a token passes.
    pub per_token: usize,
    /// Width of an expert's MLP.
    pub width: usize,
    /// Whether the weights of a token's experts are divided by their sum.
    pub normalized: bool,
    /// Layers whose number, counted from 1, is a multiple of this have experts.
    pub step: usize,
    /// Layers that have a dense MLP all the same.
    pub dense_layers: Vec<usize>,
}

impl ExpertsConfig {
    /// Whether a layer has experts.
    pub fn is_sparse(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.step) && !self.dense_layers.contains(&layer)
    }

    /// How many of so many layers have experts.
    pub fn sparse_layers(&self, layers: usize) -> usize {
        let mut dense: Vec<_> = self.dense_layers.iter().filter(|&&layer| layer < layers).collect();
        dense.sort_unstable();
        dense.dedup();
        let dense = dense.into_iter().filter(|&layer| (layer + 1).is_multiple_of(self.step));
        layers / self.step.max(1) - dense.count()
    }
}

/// Makes the error for a field of these structures.
pub type Refuse<'a> = dyn Fn(&str, String) -> Error + 'a;

impl TextConfig {
    /// The experts of a layer, if it has some.
    pub fn experts_of(&self, layer: usize) -> Option<&ExpertsConfig> {
        self.experts.as_ref().filter(|experts| experts.is_sparse(layer))
    }

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
        if let Some(ExpertsConfig { count, per_token, .. }) = self.experts {
            if count > MAX_EXPERTS {
                return Err(refuse("num_experts", format!("{count} is more than {MAX_EXPERTS}")));
            }
            if !(1..=count).contains(&per_token) {
                let reason = format!("{per_token} is not between 1 and the {count} experts");
                return Err(refuse("num_experts_per_tok", reason));
            }
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
    /// The most tokens of an answer.
    pub max_new_tokens: Option<usize>,
}

impl GenerationConfig {
    /// Reads and checks `generation_config.json` in `dir`; without one, the stop token is `config.json`'s.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with file and field.
    pub fn load(dir: &Path, text: &TextConfig) -> Result<Self> {
        let file = dir.join("generation_config.json");
        let fallback = || text.eos_token_id.into_iter().collect();
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
        if let Some(id) = eos_token_ids.iter().find(|&&id| id as usize >= text.vocab_size) {
            let reason = format!("{id} is outside the vocabulary of {}", text.vocab_size);
            return Err(fields.bad("eos_token_id", reason));
        }
        Ok(Self {
            eos_token_ids,
            do_sample: fields.bool("do_sample")?.unwrap_or(false),
            temperature: fields.f64("temperature")?,
            top_k: fields.u64("top_k")?,
            top_p: fields.f64("top_p")?,
            repetition_penalty: fields.f64("repetition_penalty")?,
            max_new_tokens: fields
                .u64("max_new_tokens")?
                .filter(|&most| most > 0)
                .map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
        })
    }
}
