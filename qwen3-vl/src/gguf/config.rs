//! Sizes, stop tokens and preprocessing from the metadata of a text file and a vision file.

use super::Gguf;
use super::metadata::Metadata;
use crate::config::{
    Config, GenerationConfig, MAX_DIMENSION, PUBLISHED_PIXELS, PUBLISHED_VIDEO_PIXELS, PreprocessorConfig,
    TextConfig, VisionConfig,
};
use pascaline::Result;

/// The models that can be read: the text's architecture and the vision file's projector.
pub(super) const ARCHITECTURE: &str = "qwen3vl";
pub(super) const PROJECTOR: &str = "qwen3vl_merger";
/// Frames of a patch: the patch embedding is two tensors.
pub(super) const FRAMES: usize = 2;
/// Tokens that end an answer wherever a vocabulary has them.
const STOP_TOKENS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

fn dimension(metadata: &Metadata, key: &str) -> Result<usize> {
    let value = metadata.required(key, metadata.unsigned(key)?)?;
    match value {
        1..=MAX_DIMENSION => Ok(value as usize),
        _ => Err(metadata.bad(key, format!("{value} is not between 1 and {MAX_DIMENSION}"))),
    }
}

fn dimension_or(metadata: &Metadata, key: &str, default: usize) -> Result<usize> {
    if metadata.get(key).is_some() { dimension(metadata, key) } else { Ok(default) }
}

fn positive(metadata: &Metadata, key: &str) -> Result<f64> {
    let value = metadata.required(key, metadata.float(key)?)?;
    match value > 0.0 && value.is_finite() {
        true => Ok(value),
        false => Err(metadata.bad(key, format!("{value} is not a positive number"))),
    }
}

/// A text that must have this value.
fn only(metadata: &Metadata, key: &str, supported: &str) -> Result<()> {
    match metadata.required(key, metadata.str(key)?)? {
        found if found == supported => Ok(()),
        found => Err(metadata.bad(key, format!("\"{found}\" is not supported, only \"{supported}\""))),
    }
}

/// Checks that it is a text file of these models.
pub(crate) fn check_text(text: &Gguf) -> Result<()> {
    only(text.metadata(), "general.architecture", ARCHITECTURE)
}

/// Checks that it is a vision file of these models.
pub(super) fn check_vision(vision: &Gguf) -> Result<()> {
    let metadata = vision.metadata();
    only(metadata, "general.architecture", "clip")?;
    let newer = "clip.vision.projector_type";
    only(metadata, if metadata.get(newer).is_some() { newer } else { "clip.projector_type" }, PROJECTOR)
}

/// The index of a special token in the vocabulary.
fn token(metadata: &Metadata, spelling: &str) -> Result<Option<u32>> {
    let tokens = metadata.strings(super::vocabulary::TOKENS)?.unwrap_or_default();
    Ok(tokens.iter().position(|token| token == spelling).and_then(|id| id.try_into().ok()))
}

/// The configuration of the model in both files.
pub(crate) fn config(text: &Gguf, vision: &Gguf) -> Result<Config> {
    check_text(text)?;
    check_vision(vision)?;
    let metadata = text.metadata();
    let special = |spelling: &str| {
        let missing = || metadata.bad(super::vocabulary::TOKENS, format!("{spelling} is not among them"));
        token(metadata, spelling)?.ok_or_else(missing)
    };
    let config = Config {
        text: text_config(text)?,
        vision: vision_config(vision)?,
        image_token_id: special("<|image_pad|>")?,
        video_token_id: special("<|video_pad|>")?,
        vision_start_token_id: special("<|vision_start|>")?,
        vision_end_token_id: special("<|vision_end|>")?,
        tie_word_embeddings: text.tensor("output.weight").is_none(),
    };
    let deepstack = config.vision.deepstack_visual_indexes.len();
    let key = "qwen3vl.n_deepstack_layers";
    if metadata.unsigned(key)?.is_some_and(|layers| layers != deepstack as u64) {
        let reason = format!("is not the {deepstack} of {}", vision.path().display());
        return Err(metadata.bad(key, reason));
    }
    config.check(&|name, reason| vision.metadata().bad(vision_key(name), reason))?;
    let held = text.names().count() + vision.names().count();
    if let Some(count) = crate::weights::far_more_than(&config, held) {
        let reason = format!("the metadata has {count} tensors, the files only {held}");
        return Err(metadata.bad("qwen3vl.block_count", reason));
    }
    Ok(config)
}

fn text_config(text: &Gguf) -> Result<TextConfig> {
    let metadata = text.metadata();
    let key = |name: &str| format!("{ARCHITECTURE}.{name}");
    let scaling = key("rope.scaling.type");
    if let Some(kind) = metadata.str(&scaling)?
        && kind != "none"
    {
        return Err(metadata.bad(&scaling, format!("\"{kind}\" is not supported, only \"none\"")));
    }
    let sections = key("rope.dimension_sections");
    let found = metadata.required(&sections, metadata.unsigneds(&sections)?)?;
    let &[time, height, width, 0] = &found[..] else {
        let reason = format!("{found:?} are not four numbers for time, height, width and nothing");
        return Err(metadata.bad(&sections, reason));
    };
    let section = [time, height, width].map(|count| usize::try_from(count).unwrap_or(usize::MAX));

    let hidden_size = dimension(metadata, &key("embedding_length"))?;
    let num_attention_heads = dimension(metadata, &key("attention.head_count"))?;
    let head_dim = dimension_or(metadata, &key("attention.key_length"), hidden_size / num_attention_heads)?;
    for name in ["attention.value_length", "rope.dimension_count"] {
        if dimension_or(metadata, &key(name), head_dim)? != head_dim {
            return Err(metadata.bad(&key(name), format!("is not the keys' {head_dim}")));
        }
    }
    let embedding = "token_embd.weight";
    let rows = text.tensor(embedding).map(|info| info.shape[0]);
    let vocab_size = rows.ok_or_else(|| text.bad(embedding, "is not in the file"))?;
    if vocab_size as u64 > MAX_DIMENSION {
        return Err(text.bad(embedding, format!("has {vocab_size} rows, of at most {MAX_DIMENSION}")));
    }
    if dimension_or(metadata, &key("vocab_size"), vocab_size)? != vocab_size {
        return Err(metadata.bad(&key("vocab_size"), format!("{embedding} has {vocab_size} rows")));
    }
    let config = TextConfig {
        hidden_size,
        intermediate_size: dimension(metadata, &key("feed_forward_length"))?,
        num_hidden_layers: dimension(metadata, &key("block_count"))?,
        num_attention_heads,
        num_key_value_heads: dimension_or(metadata, &key("attention.head_count_kv"), num_attention_heads)?,
        head_dim,
        vocab_size,
        rms_norm_eps: positive(metadata, &key("attention.layer_norm_rms_epsilon"))? as f32,
        rope_theta: positive(metadata, &key("rope.freq_base"))?,
        mrope_section: section,
        max_position_embeddings: dimension(metadata, &key("context_length"))?,
        eos_token_id: metadata.id("tokenizer.ggml.eos_token_id")?,
    };
    let text_key = |name: &str| match name {
        "num_key_value_heads" => key("attention.head_count_kv"),
        "head_dim" => key("attention.key_length"),
        "mrope_section" => key("rope.dimension_sections"),
        other => other.to_owned(),
    };
    config.check(&|name, reason| metadata.bad(&text_key(name), reason))?;
    Ok(config)
}

/// The key that a field of the vision tower's configuration is read from.
fn vision_key(field: &str) -> &str {
    match field {
        "num_heads" => "clip.vision.attention.head_count",
        "patch_size" => "clip.vision.patch_size",
        "spatial_merge_size" => "clip.vision.spatial_merge_size",
        "num_position_embeddings" => "v.position_embd.weight",
        "deepstack_visual_indexes" => "clip.vision.is_deepstack_layers",
        "out_hidden_size" => "clip.vision.projection_dim",
        other => other,
    }
}

fn vision_config(vision: &Gguf) -> Result<VisionConfig> {
    let metadata = vision.metadata();
    let size = |name: &str| dimension(metadata, &format!("clip.vision.{name}"));
    for (key, supported) in
        [("clip.has_vision_encoder", true), ("clip.use_gelu", true), ("clip.use_silu", false)]
    {
        if metadata.bool(key)?.unwrap_or(false) != supported {
            return Err(metadata.bad(key, format!("only {supported} is supported")));
        }
    }
    let eps = "clip.vision.attention.layer_norm_epsilon";
    let found = positive(metadata, eps)? as f32;
    if found != crate::vision::LAYER_NORM_EPS {
        return Err(
            metadata.bad(eps, format!("{found} is not supported, only {}", crate::vision::LAYER_NORM_EPS))
        );
    }
    let positions = "v.position_embd.weight";
    let rows = vision.tensor(positions).map(|info| info.shape[0]);
    let layers = "clip.vision.is_deepstack_layers";
    let flags = metadata.required(layers, metadata.bools(layers)?)?;
    let depth = size("block_count")?;
    if flags.len() != depth {
        return Err(metadata
            .bad(layers, format!("has {} values, one for each of {depth} blocks are needed", flags.len())));
    }
    let config = VisionConfig {
        depth,
        hidden_size: size("embedding_length")?,
        intermediate_size: size("feed_forward_length")?,
        num_heads: size("attention.head_count")?,
        in_channels: 3,
        patch_size: size("patch_size")?,
        temporal_patch_size: FRAMES,
        spatial_merge_size: size("spatial_merge_size")?,
        num_position_embeddings: rows.ok_or_else(|| vision.bad(positions, "is not in the file"))?,
        deepstack_visual_indexes: (0..depth).filter(|&block| flags[block]).collect(),
        out_hidden_size: size("projection_dim")?,
        rope_theta: 10_000.0, // the reference's own; the files do not state it
    };
    config.check(&|name, reason| metadata.bad(vision_key(name), reason))?;
    let image_size = size("image_size")?;
    if image_size != config.position_side().saturating_mul(config.patch_size) {
        let reason =
            format!("{image_size} is not {} patches of {}", config.position_side(), config.patch_size);
        return Err(metadata.bad("clip.vision.image_size", reason));
    }
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
    })
}

/// How images are prepared. Pixel limits are the file's if it has any, else those of a `preprocessor_config.json` in its
/// folder or the folder `source` there, else the published ones.
pub(crate) fn preprocessor(vision: &Gguf, config: &VisionConfig) -> Result<PreprocessorConfig> {
    let metadata = vision.metadata();
    let channels = |key: &str| {
        let values = metadata.required(key, metadata.floats(key)?)?;
        match *values {
            [r, g, b] if values.iter().all(|value| value.is_finite()) => Ok([r as f32, g as f32, b as f32]),
            _ => Err(metadata.bad(key, format!("{values:?} are not one number per channel"))),
        }
    };
    let (mean, std) = ("clip.vision.image_mean", "clip.vision.image_std");
    let image_std = channels(std)?;
    if image_std.iter().any(|&std| std <= 0.0) {
        return Err(metadata.bad(std, format!("{image_std:?} are not all positive")));
    }
    let near = PreprocessorConfig::load_near(vision.path(), "preprocessor_config.json", config)?;
    let [min, max] = near.map_or(PUBLISHED_PIXELS, |near| [near.min_pixels, near.max_pixels]);
    let limit = |key: &str, default: usize| match metadata.unsigned(key)? {
        None => Ok(default),
        Some(pixels @ 1..=0x1_0000_0000) => Ok(pixels as usize),
        Some(pixels) => Err(metadata.bad(key, format!("{pixels} is not between 1 and 2³²"))),
    };
    let min_key = "clip.vision.image_min_pixels";
    let (min_pixels, max_pixels) = (limit(min_key, min)?, limit("clip.vision.image_max_pixels", max)?);
    if min_pixels > max_pixels {
        return Err(metadata.bad(min_key, format!("{min_pixels} is above the largest, {max_pixels}")));
    }
    Ok(PreprocessorConfig {
        min_pixels,
        max_pixels,
        patch_size: config.patch_size,
        temporal_patch_size: config.temporal_patch_size,
        merge_size: config.spatial_merge_size,
        rescale_factor: 1.0 / 255.0,
        image_mean: channels(mean)?,
        image_std,
    })
}

/// How videos are prepared: with the limits of a `video_preprocessor_config.json` in the file's folder, else the published
/// ones.
pub(crate) fn video_preprocessor(
    vision: &Gguf,
    config: &VisionConfig,
    images: &PreprocessorConfig,
) -> Result<PreprocessorConfig> {
    let name = "video_preprocessor_config.json";
    let [min_pixels, max_pixels] = PreprocessorConfig::load_near(vision.path(), name, config)?
        .map_or(PUBLISHED_VIDEO_PIXELS, |near| [near.min_pixels, near.max_pixels]);
    Ok(PreprocessorConfig { min_pixels, max_pixels, ..images.clone() })
}
