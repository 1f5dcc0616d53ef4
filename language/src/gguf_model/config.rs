//! Sizes and stop tokens from the metadata of a text file.

use crate::config::{ExpertsConfig, GenerationConfig, TextConfig};
use crate::gguf::Gguf;
use crate::gguf::Metadata;
use crate::json::MAX_DIMENSION;
use crate::seam::Config;
use pascaline::Result;

/// Tokens that end an answer wherever a vocabulary has them.
const STOP_TOKENS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// The index of a special token in the vocabulary.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) if the vocabulary is no list of texts.
pub fn token(metadata: &Metadata, spelling: &str) -> Result<Option<u32>> {
    let tokens = metadata.strings(super::vocabulary::TOKENS)?.unwrap_or_default();
    Ok(tokens.iter().position(|token| token == spelling).and_then(|id| id.try_into().ok()))
}

/// The decoder's sizes in the metadata of a text file. `sections` tells, of the width of a head, how many rotary frequencies belong
/// to time, height and width.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file and the key.
pub fn text_config(
    text: &Gguf,
    architecture: &str,
    sections: impl FnOnce(usize) -> Result<[usize; 3]>,
) -> Result<TextConfig> {
    let metadata = text.metadata();
    let key = |name: &str| format!("{architecture}.{name}");
    let scaling = key("rope.scaling.type");
    if let Some(kind) = metadata.str(&scaling)?
        && kind != "none"
    {
        return Err(metadata.bad(&scaling, format!("\"{kind}\" is not supported, only \"none\"")));
    }
    let hidden_size = metadata.dimension(&key("embedding_length"))?;
    let num_attention_heads = metadata.dimension(&key("attention.head_count"))?;
    let head_dim = metadata.dimension_or(&key("attention.key_length"), hidden_size / num_attention_heads)?;
    for name in ["attention.value_length", "rope.dimension_count"] {
        if metadata.dimension_or(&key(name), head_dim)? != head_dim {
            return Err(metadata.bad(&key(name), format!("is not the keys' {head_dim}")));
        }
    }
    let embedding = "token_embd.weight";
    let rows = text.tensor(embedding).map(|info| info.shape[0]);
    let vocab_size = rows.ok_or_else(|| text.bad(embedding, "is not in the file"))?;
    if vocab_size as u64 > MAX_DIMENSION {
        return Err(text.bad(embedding, format!("has {vocab_size} rows, of at most {MAX_DIMENSION}")));
    }
    if metadata.dimension_or(&key("vocab_size"), vocab_size)? != vocab_size {
        return Err(metadata.bad(&key("vocab_size"), format!("{embedding} has {vocab_size} rows")));
    }
    let experts = match metadata.dimension_or(&key("expert_count"), 0)? {
        0 => None,
        count => Some(ExpertsConfig {
            count,
            per_token: metadata.dimension(&key("expert_used_count"))?,
            width: metadata.dimension(&key("expert_feed_forward_length"))?,
            normalized: true, // llama.cpp divides by the sum in these architectures
            step: 1,
            dense_layers: Vec::new(),
        }),
    };
    let width = key("feed_forward_length");
    let intermediate_size = match experts {
        None => metadata.dimension(&width)?,
        Some(_) => metadata.dimension_or(&width, 0)?, // no layer has one
    };
    let config = TextConfig {
        hidden_size,
        intermediate_size,
        experts,
        num_hidden_layers: metadata.dimension(&key("block_count"))?,
        num_attention_heads,
        num_key_value_heads: metadata.dimension_or(&key("attention.head_count_kv"), num_attention_heads)?,
        head_dim,
        vocab_size,
        rms_norm_eps: metadata.positive(&key("attention.layer_norm_rms_epsilon"))? as f32,
        rope_theta: metadata.positive(&key("rope.freq_base"))?,
        mrope_section: sections(head_dim)?,
        max_position_embeddings: metadata.dimension(&key("context_length"))?,
        eos_token_id: metadata.id("tokenizer.ggml.eos_token_id")?,
    };
    let text_key = |name: &str| match name {
        "num_key_value_heads" => key("attention.head_count_kv"),
        "head_dim" => key("attention.key_length"),
        "num_experts" => key("expert_count"),
        "num_experts_per_tok" => key("expert_used_count"),
        "mrope_section" => key("rope.dimension_sections"),
        other => other.to_owned(),
    };
    config.check(&|name, reason| metadata.bad(&text_key(name), reason))?;
    Ok(config)
}

/// Stop tokens, and how the model's authors sample if the file says.
pub(crate) fn generation(text: &Gguf, config: &Config) -> Result<GenerationConfig> {
    let metadata = text.metadata();
    let mut eos_token_ids: Vec<u32> = Vec::new();
    for kind in ["eos", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{kind}_token_id");
        let Some(id) = metadata.id(&key)? else { continue };
        if id as usize >= config.text.vocab_size {
            let reason = format!("{id} is outside the vocabulary of {}", config.text.vocab_size);
            return Err(metadata.bad(&key, reason));
        }
        eos_token_ids.push(id);
    }
    for spelling in STOP_TOKENS {
        eos_token_ids.extend(token(metadata, spelling)?);
    }
    eos_token_ids.sort_unstable();
    eos_token_ids.dedup();
    let sampling = |name: &str| metadata.float(&format!("general.sampling.{name}"));
    let (temperature, top_p) = (sampling("temp")?, sampling("top_p")?);
    Ok(GenerationConfig {
        eos_token_ids,
        do_sample: temperature.is_some_and(|temperature| temperature > 0.0),
        temperature,
        top_k: metadata.unsigned("general.sampling.top_k")?,
        top_p,
        repetition_penalty: sampling("penalty_repeat")?,
        max_new_tokens: None, // files have no key for it
    })
}

/// Refuses a configuration of far more tensors than the files have.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint).
pub fn refuse_missing(config: &Config, text: &Gguf, vision: Option<&Gguf>) -> Result<()> {
    let held = text.names().count() + vision.map_or(0, |vision| vision.names().count());
    match config.far_more_than(held) {
        None => Ok(()),
        Some(count) => {
            let reason = format!("the metadata has {count} tensors, the files only {held}");
            Err(text.metadata().bad(&format!("{}.block_count", config.model.architecture()), reason))
        }
    }
}
