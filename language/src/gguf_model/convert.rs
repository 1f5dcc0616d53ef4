//! The keys and tensors in the GGUF files of a published checkpoint: those that llama.cpp's converter writes.

use super::mix::Mix;
use super::names::{gguf_name, is_vision};
use crate::chat;
use crate::gguf::{Field, GgmlType, Plan, PlannedTensor};
use crate::json::{self, MAX_CONFIG, bad};
use crate::seam::Config;
use crate::tokenizer::{MAX_TOKENIZER, Tokenizer};
use pascaline::Result;
use serde_json::{Map, Value};
use std::path::Path;

/// Kinds of tokens, as [`vocabulary`](super::vocabulary) has them.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// The text file of a model of this configuration, with tokenizer and template of the checkpoint in `dir`.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file and the field.
pub fn text_plan(dir: &Path, config: &Config, mix: Mix) -> Result<Plan> {
    let text = &config.text;
    let tensors = planned_tensors(config, false, |published, shape| mix.type_for(published, shape, config));
    if let Some(experts) = &text.experts
        && !(experts.normalized && experts.sparse_layers(text.num_hidden_layers) == text.num_hidden_layers)
    {
        let reason =
            "GGUF files can't state layers without experts, or weights that are not divided by their sum";
        return Err(bad(&dir.join("config.json"), Some("num_experts"), reason));
    }
    let mut plan = Plan { keys: Vec::new(), tensors };
    let size = size_label(plan.parameters());
    let mut add = |key: &str, field: Field| plan.keys.push((key.to_owned(), field));
    let architecture = config.model.architecture();
    add("general.architecture", Field::Text(architecture.into()));
    add("general.type", Field::Text("model".into()));
    if let Some(name) = dir.file_name().and_then(|name| name.to_str()) {
        add("general.name", Field::Text(name.into()));
    }
    add("general.size_label", Field::Text(size));
    for (name, field) in [
        ("block_count", Field::U32(text.num_hidden_layers as u32)),
        ("context_length", Field::U32(text.max_position_embeddings as u32)),
        ("embedding_length", Field::U32(text.hidden_size as u32)),
        ("feed_forward_length", Field::U32(text.intermediate_size as u32)),
        ("attention.head_count", Field::U32(text.num_attention_heads as u32)),
        ("attention.head_count_kv", Field::U32(text.num_key_value_heads as u32)),
        ("rope.freq_base", Field::F32(text.rope_theta as f32)),
        ("attention.layer_norm_rms_epsilon", Field::F32(text.rms_norm_eps)),
        ("attention.key_length", Field::U32(text.head_dim as u32)),
        ("attention.value_length", Field::U32(text.head_dim as u32)),
    ]
    .into_iter()
    .chain(text.experts.iter().flat_map(|experts| {
        [
            ("expert_count", Field::U32(experts.count as u32)),
            ("expert_used_count", Field::U32(experts.per_token as u32)),
            ("expert_feed_forward_length", Field::U32(experts.width as u32)),
        ]
    }))
    .chain(config.model.gguf_keys(config))
    {
        add(&format!("{architecture}.{name}"), field);
    }
    plan.keys.extend(tokenizer(dir, config)?);
    plan.keys.push(("general.quantization_version".into(), Field::U32(2)));
    plan.keys.push(("general.file_type".into(), Field::U32(mix.file_type())));
    Ok(plan)
}

/// The tensors of the text file or of the vision file; `ty` gives the type of a published tensor of a shape.
pub fn planned_tensors(
    config: &Config,
    vision: bool,
    ty: impl Fn(&str, &[usize]) -> GgmlType,
) -> Vec<PlannedTensor> {
    let mut planned = Vec::new();
    for (published, shape) in config.tensors().into_iter().filter(|(name, _)| is_vision(name) == vision) {
        // all names have a counterpart in GGUF files
        let Some(name) = gguf_name(&published, config) else { continue };
        let ty = ty(&published, &shape);
        match shape[..] {
            [rows, channels, frames, height, width] => {
                planned.extend((0..frames).map(|frame| PlannedTensor {
                    name: super::names::frame_name(&name, frame),
                    ty,
                    shape: vec![rows, channels, height, width],
                    published: published.clone(),
                    frame: Some((frame, frames)),
                }))
            }
            _ => planned.push(PlannedTensor { name, ty, shape, published, frame: None }),
        }
    }
    planned
}

/// The number of parameters to two significant digits, as in `general.size_label`.
pub fn size_label(parameters: usize) -> String {
    let (scaled, suffix) = match parameters as f64 {
        count if count >= 1e12 => (count / 1e12, "T"),
        count if count >= 1e9 => (count / 1e9, "B"),
        count if count >= 1e6 => (count / 1e6, "M"),
        count => (count / 1e3, "K"),
    };
    if scaled < 9.95 { format!("{scaled:.1}{suffix}") } else { format!("{scaled:.0}{suffix}") }
}

/// The keys of `tokenizer.json`, `tokenizer_config.json` and the chat template.
fn tokenizer(dir: &Path, config: &Config) -> Result<Vec<(String, Field)>> {
    // checks everything that the code below relies on
    Tokenizer::load(dir, config)?;
    let file = dir.join("tokenizer.json");
    let root = json::read_object(&file, MAX_TOKENIZER)?;
    let wrong = |item: &str| bad(&file, Some(item), "missing or of another type");
    let model = root.get("model").and_then(Value::as_object).ok_or_else(|| wrong("model"))?;
    let vocab = model.get("vocab").and_then(Value::as_object).ok_or_else(|| wrong("model.vocab"))?;
    let size = config.text.vocab_size;
    let mut tokens: Vec<_> = (0..size).map(|id| (format!("[PAD{id}]"), UNUSED)).collect();
    for (token, id) in vocab {
        let id = id.as_u64().filter(|&id| id < size as u64).ok_or_else(|| wrong("model.vocab"))?;
        tokens[id as usize] = (token.clone(), NORMAL);
    }
    for token in root.get("added_tokens").and_then(Value::as_array).into_iter().flatten() {
        let id = token["id"].as_u64().filter(|&id| id < size as u64);
        let (Some(id), Some(content)) = (id, token["content"].as_str()) else {
            return Err(wrong("added_tokens"));
        };
        let kind = if token["special"] == true { CONTROL } else { USER_DEFINED };
        tokens[id as usize] = (content.to_owned(), kind);
    }
    let merges = model.get("merges").and_then(Value::as_array).ok_or_else(|| wrong("model.merges"))?;
    let merges = merges.iter().map(|merge| match merge {
        Value::String(pair) => Some(pair.clone()),
        Value::Array(pair) => Some(format!("{} {}", pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
        _ => None,
    });
    let merges = merges.collect::<Option<Vec<_>>>().ok_or_else(|| wrong("model.merges"))?;

    let optional = |name: &str| -> Result<Map<String, Value>> {
        let file = dir.join(name);
        if file.exists() { json::read_object(&file, MAX_CONFIG) } else { Ok(Map::new()) }
    };
    let settings = optional("tokenizer_config.json")?;
    let top = optional("config.json")?;
    let id_of = |spelling: &str| tokens.iter().position(|(token, _)| token == spelling).map(|id| id as u32);
    let named = |name: &str| {
        let token = settings.get(name)?;
        id_of(token.as_str().or_else(|| token.get("content")?.as_str())?)
    };
    let configured = |name: &str| {
        let text = top.get("text_config").and_then(Value::as_object).unwrap_or(&top);
        let id = text.get(name)?.as_u64().filter(|&id| id < size as u64)?;
        Some(id as u32)
    };
    let ids = [
        ("eos", named("eos_token").or(config.text.eos_token_id)),
        ("padding", named("pad_token").or_else(|| configured("pad_token_id"))),
        ("bos", named("bos_token").or_else(|| configured("bos_token_id"))),
    ];
    let (texts, kinds) = tokens.iter().cloned().unzip();
    let mut keys = vec![
        ("model".to_owned(), Field::Text("gpt2".into())),
        ("pre".to_owned(), Field::Text("qwen2".into())),
        ("tokens".to_owned(), Field::Texts(texts)),
        ("token_type".to_owned(), Field::I32s(kinds)),
        ("merges".to_owned(), Field::Texts(merges)),
    ];
    keys.extend(ids.into_iter().filter_map(|(name, id)| Some((format!("{name}_token_id"), Field::U32(id?)))));
    if let Some(Value::Bool(add)) = settings.get("add_bos_token") {
        keys.push(("add_bos_token".into(), Field::Bool(*add)));
    }
    let mut keys: Vec<_> =
        keys.into_iter().map(|(name, field)| (format!("tokenizer.ggml.{name}"), field)).collect();
    keys.push(("tokenizer.chat_template".into(), Field::Text(chat::source(dir)?.1)));
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::size_label;

    #[test]
    fn sizes_have_two_digits() {
        assert_eq!(size_label(2_486_784), "2.5M");
        assert_eq!(size_label(776_640), "777K");
        assert_eq!(size_label(1_720_574_976), "1.7B");
        assert_eq!(size_label(32_000_000_000), "32B");
        assert_eq!(size_label(1_500_000_000_000), "1.5T");
        assert_eq!(size_label(9_950_000), "10M");
    }
}
