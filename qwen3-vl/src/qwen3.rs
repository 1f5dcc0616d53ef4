//! Qwen3, the text model: the decoder of Qwen3-VL by itself, with one axis of positions.
//!
//! The computation is that of transformers' `qwen3` and `qwen3_moe`; GGUF files are llama.cpp's of architectures `qwen3` and `qwen3moe`.

use super::config::{Config, experts_config, only, positive, text_config};
use language::gguf::{Field, Gguf};
use language::gguf_model::{refuse_missing, text_config as gguf_text_config};
use language::json::{Fields, bad};
use language::seam::Model;
use pascaline::Result;

/// Qwen3.
#[derive(Debug)]
pub struct Qwen3Family {
    model_type: &'static str,
    architecture: &'static str,
    has_experts: bool,
}

/// Dense: 0.6B to 32B.
pub static DENSE: Qwen3Family =
    Qwen3Family { model_type: "qwen3", architecture: "qwen3", has_experts: false };

/// Mixtures of experts: 30B-A3B, 235B-A22B.
pub static MIXTURE: Qwen3Family =
    Qwen3Family { model_type: "qwen3_moe", architecture: "qwen3moe", has_experts: true };

impl Model for Qwen3Family {
    fn model_type(&self) -> &'static str {
        self.model_type
    }

    fn architecture(&self) -> &'static str {
        self.architecture
    }

    fn prefix(&self) -> &'static str {
        "model."
    }

    fn config(&'static self, top: Fields) -> Result<Config> {
        if top.bool("use_sliding_window")? == Some(true) {
            return Err(top.bad("use_sliding_window", "true is not supported"));
        }
        // `rope_parameters` is the newer spelling of `rope_theta` + `rope_scaling`.
        let rope = top.object("rope_parameters", "rope_parameters.")?;
        for rope in [rope, top.object("rope_scaling", "rope_scaling.")?].into_iter().flatten() {
            only(rope, "rope_type", "default")?;
            only(rope, "type", "default")?; // an older spelling
        }
        let theta = match rope.map(|rope| rope.f64("rope_theta")).transpose()?.flatten() {
            Some(theta) => theta,
            None => top.required("rope_theta", top.f64("rope_theta")?)?,
        };
        // transformers' own default is not to divide, which no published model has
        let normalized = top.bool("norm_topk_prob")?.unwrap_or(false);
        let experts = self.has_experts.then(|| experts_config(top, normalized)).transpose()?;
        let text = text_config(top, positive(top, "rope_theta", theta)?, None, experts)?;
        let tie_word_embeddings = top.bool("tie_word_embeddings")?.unwrap_or(false);
        Ok(Config { model: self, text, tie_word_embeddings, vision: None, fp8_block: None })
    }

    fn gguf_config(&'static self, text: &Gguf, vision: Option<&Gguf>) -> Result<Config> {
        if let Some(file) = vision {
            let reason = format!("belongs to another model; {} is of text alone", text.path().display());
            return Err(bad(file.path(), None, reason));
        }
        let config = gguf_text_config(text, self.architecture(), |head_dim| Ok([head_dim / 2, 0, 0]))?;
        let tie_word_embeddings = text.tensor("output.weight").is_none();
        let config = Config { model: self, text: config, tie_word_embeddings, vision: None, fp8_block: None };
        refuse_missing(&config, text, None)?;
        Ok(config)
    }

    fn vision_file(&self, _: &Gguf) -> Result<Option<Gguf>> {
        Ok(None)
    }

    fn gguf_keys(&self, _: &Config) -> Vec<(&'static str, Field)> {
        Vec::new()
    }
}
