//! Qwen3-VL's own part of a GGUF model: the vision file (mmproj), its keys, and the settings of preprocessing.

use super::config::{
    self, Config, PUBLISHED_PIXELS, PUBLISHED_VIDEO_PIXELS, PreprocessorConfig, Seeing, TextConfig,
    VisionConfig,
};
use super::names::LAYER_NORM_EPS;
use super::pictures::Pictures;
use super::vision::position_table;
use language::Processor;
use language::json::bad;
use pascaline::Result;
use std::fs;
use std::path::{Path, PathBuf};

pub use language::gguf::*;
pub use language::gguf_model::*;

/// The vision file's projector.
const PROJECTOR: &str = "qwen3vl_merger";
/// Frames of a patch: the patch embedding is two tensors.
const FRAMES: usize = 2;

/// Checks that it is a vision file of these models.
pub(crate) fn check_vision(vision: &Gguf) -> Result<()> {
    let metadata = vision.metadata();
    metadata.only("general.architecture", "clip")?;
    let newer = "clip.vision.projector_type";
    metadata.only(if metadata.get(newer).is_some() { newer } else { "clip.projector_type" }, PROJECTOR)
}

/// How many rotary frequencies belong to time, height and width.
pub(crate) fn sections(metadata: &Metadata, architecture: &str) -> Result<[usize; 3]> {
    let sections = &format!("{architecture}.rope.dimension_sections");
    let found = metadata.required(sections, metadata.unsigneds(sections)?)?;
    let &[time, height, width, 0] = &found[..] else {
        let reason = format!("{found:?} are not four numbers for time, height, width and nothing");
        return Err(metadata.bad(sections, reason));
    };
    Ok([time, height, width].map(|count| usize::try_from(count).unwrap_or(usize::MAX)))
}

/// The part that sees, of a model whose decoder has these sizes.
pub(crate) fn seeing(text: &Gguf, vision: &Gguf, config: &TextConfig, architecture: &str) -> Result<Seeing> {
    check_vision(vision)?;
    let metadata = text.metadata();
    let special = |spelling: &str| {
        let missing = || metadata.bad(TOKENS, format!("{spelling} is not among them"));
        token(metadata, spelling)?.ok_or_else(missing)
    };
    let seeing = Seeing {
        tower: vision_config(vision)?,
        image_token_id: special("<|image_pad|>")?,
        video_token_id: special("<|video_pad|>")?,
        vision_start_token_id: special("<|vision_start|>")?,
        vision_end_token_id: special("<|vision_end|>")?,
    };
    let deepstack = seeing.tower.deepstack_visual_indexes.len();
    let key = &format!("{architecture}.n_deepstack_layers");
    if metadata.unsigned(key)?.is_some_and(|layers| layers != deepstack as u64) {
        let reason = format!("is not the {deepstack} of {}", vision.path().display());
        return Err(metadata.bad(key, reason));
    }
    seeing.check(config, &|name, reason| vision.metadata().bad(vision_key(name), reason))?;
    Ok(seeing)
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
    let size = |name: &str| metadata.dimension(&format!("clip.vision.{name}"));
    for (key, supported) in
        [("clip.has_vision_encoder", true), ("clip.use_gelu", true), ("clip.use_silu", false)]
    {
        if metadata.bool(key)?.unwrap_or(false) != supported {
            return Err(metadata.bad(key, format!("only {supported} is supported")));
        }
    }
    let eps = "clip.vision.attention.layer_norm_epsilon";
    let found = metadata.positive(eps)? as f32;
    if found != LAYER_NORM_EPS {
        return Err(metadata.bad(eps, format!("{found} is not supported, only {}", LAYER_NORM_EPS)));
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

/// The types of matrices of vision files, the preferred one first: f16 is what most are published in.
const PREFERRED: [GgmlType; 4] = [GgmlType::F16, GgmlType::BF16, GgmlType::Q8_0, GgmlType::F32];

/// The vision file in a text file's folder: the file with `mmproj` in its name that fits the text model. If several fit, the
/// one in the preferred type.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) if there is none or more than one, or the only one is damaged.
pub(crate) fn vision_file(text: &Gguf, architecture: &str) -> Result<Gguf> {
    let path = text.path();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unreadable = |error: std::io::Error| bad(folder, None, error.to_string());
    let mut candidates: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let name = file.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        if name.contains("mmproj") && name.ends_with(".gguf") {
            candidates.push(file);
        }
    }
    candidates.sort();
    let missing = |reason: String| bad(path, Some("mmproj"), reason);
    let width = text.metadata().unsigned(&format!("{architecture}.embedding_length"))?;
    let open = |file: &PathBuf| -> Result<Gguf> {
        let vision = Gguf::open(file)?;
        check_vision(&vision)?;
        let key = "clip.vision.projection_dim";
        match vision.metadata().unsigned(key)? {
            found if found == width => Ok(vision),
            found => Err(vision.metadata().bad(key, format!("is {found:?}, the text model has {width:?}"))),
        }
    };
    let mut fitting = match &candidates[..] {
        [] => {
            return Err(missing(
                "its folder has no vision file (mmproj*.gguf); name one with --mmproj".into(),
            ));
        }
        [only] => return open(only),
        several => several.iter().filter_map(|file| open(file).ok()).collect::<Vec<_>>(),
    };
    let rank = |vision: &Gguf| {
        let ty = vision.tensor("mm.0.weight").map(|info| info.ty);
        PREFERRED.iter().position(|preferred| Some(*preferred) == ty).unwrap_or(PREFERRED.len())
    };
    fitting.sort_by_key(rank);
    let same_rank = |other: &Gguf| fitting.first().is_some_and(|first| rank(first) == rank(other));
    if fitting.iter().filter(|other| same_rank(other)).count() > 1 {
        let names: Vec<_> = fitting.iter().map(|vision| vision.path().display().to_string()).collect();
        return Err(missing(format!("{} fit; name one with --mmproj", names.join(" and "))));
    }
    let none = || {
        missing(format!(
            "none of the {} vision files in its folder fits; name one with --mmproj",
            candidates.len()
        ))
    };
    fitting.into_iter().next().ok_or_else(none)
}

/// The vision file of a processor's model; `None` for a model of text alone.
///
/// # Errors
/// As [`vision_plan`].
pub fn vision_plan_of(file: &Path, processor: &Processor) -> Result<Option<Plan>> {
    let plan = |pictures: &Pictures| vision_plan(file, &processor.config, &pictures.images);
    crate::pictures(processor).map(plan).transpose()
}

/// The vision file of a model of this configuration: matrices in f16, the rest in f32.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) for a configuration that such files can't state.
pub fn vision_plan(file: &Path, config: &Config, images: &PreprocessorConfig) -> Result<Plan> {
    let Some(Seeing { tower: vision, .. }) = config::seeing(config) else {
        return Err(bad(file, Some("vision_config"), "is not there: the model is of text alone"));
    };
    if vision.temporal_patch_size != FRAMES {
        let reason = format!("{} is not the {} of GGUF files", vision.temporal_patch_size, FRAMES);
        return Err(bad(file, Some("vision_config.temporal_patch_size"), reason));
    }
    let table = position_table(vision).name;
    let is_matrix = |published: &str, shape: &[usize]| shape.len() > 1 && published != table;
    let tensors = planned_tensors(config, true, |published, shape| match is_matrix(published, shape) {
        true => GgmlType::F16,
        false => GgmlType::F32,
    });
    let mut plan = Plan { keys: Vec::new(), tensors };
    let size = size_label(plan.parameters());
    let number = |value: usize| Field::U32(u32::try_from(value).unwrap_or(u32::MAX));
    let deepstack = (0..vision.depth).map(|block| vision.deepstack_visual_indexes.contains(&block)).collect();
    for (key, field) in [
        ("general.architecture", Field::Text("clip".into())),
        ("general.type", Field::Text("mmproj".into())),
        ("general.size_label", Field::Text(size)),
        ("general.file_type", Field::U32(Mix::F16.file_type())),
        ("clip.has_vision_encoder", Field::Bool(true)),
        ("clip.vision.projection_dim", number(vision.out_hidden_size)),
        ("clip.vision.image_size", number(vision.position_side() * vision.patch_size)),
        ("clip.vision.patch_size", number(vision.patch_size)),
        ("clip.vision.embedding_length", number(vision.hidden_size)),
        ("clip.vision.feed_forward_length", number(vision.intermediate_size)),
        ("clip.vision.block_count", number(vision.depth)),
        ("clip.vision.attention.head_count", number(vision.num_heads)),
        ("clip.vision.image_mean", Field::F32s(images.image_mean.to_vec())),
        ("clip.vision.image_std", Field::F32s(images.image_std.to_vec())),
        ("clip.vision.image_min_pixels", number(images.min_pixels)),
        ("clip.vision.image_max_pixels", number(images.max_pixels)),
        ("clip.projector_type", Field::Text(PROJECTOR.into())),
        ("clip.use_gelu", Field::Bool(true)),
        ("clip.vision.spatial_merge_size", number(vision.spatial_merge_size)),
        ("clip.vision.attention.layer_norm_epsilon", Field::F32(LAYER_NORM_EPS)),
        ("clip.vision.is_deepstack_layers", Field::Bools(deepstack)),
        ("general.quantization_version", Field::U32(2)),
    ] {
        plan.keys.push((key.to_owned(), field));
    }
    Ok(plan)
}
