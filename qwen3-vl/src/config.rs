//! A checkpoint's `config.json` and `preprocessor_config.json`.
//!
//! Nothing of the model's size is fixed in code: layers, heads, widths, RoPE and pixel limits are what the files say.
//! Fields and defaults are those of transformers' `Qwen3VLConfig`, `Qwen3Config` and `Qwen2VLImageProcessor`.

use language::config::Refuse;
use language::json::{self, Fields, MAX_CONFIG, MAX_DIMENSION};
use pascaline::Result;
use std::path::Path;

pub use language::config::{ExpertsConfig, GenerationConfig, TextConfig};
pub use language::seam::Config;

/// Reads and checks `config.json` in `dir`.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with file and field; for another model with the list of those that this
/// crate has.
pub fn load(dir: &Path) -> Result<Config> {
    language::checkpoint::directory_config(crate::MODELS, dir)
}

/// As [`load`], of the bytes of a `config.json`; errors call it `file`.
///
/// # Errors
/// As [`load`].
pub fn parse(file: &Path, bytes: &[u8]) -> Result<Config> {
    language::checkpoint::config(crate::MODELS, file, bytes)
}

/// The vision tower.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// Blocks.
    pub depth: usize,
    /// Width of the hidden state.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Heads.
    pub num_heads: usize,
    /// Colour channels; 3.
    pub in_channels: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Frames in a patch.
    pub temporal_patch_size: usize,
    /// Side of the square of patches that become one token.
    pub spatial_merge_size: usize,
    /// Learned position embeddings: a square grid.
    pub num_position_embeddings: usize,
    /// The blocks whose output goes, merged, into the first decoder layers.
    pub deepstack_visual_indexes: Vec<usize>,
    /// Width of the merged tokens: the text's hidden size.
    pub out_hidden_size: usize,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
}

impl VisionConfig {
    /// Width of a head.
    pub fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads
    }

    /// Values in a patch: channels · frames · side².
    pub fn patch_len(&self) -> usize {
        self.in_channels * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Side of the grid of learned position embeddings.
    pub fn position_side(&self) -> usize {
        self.num_position_embeddings.isqrt()
    }

    /// Patches that become one token.
    pub fn merge_len(&self) -> usize {
        self.spatial_merge_size * self.spatial_merge_size
    }
}

/// The part of Qwen3-VL that sees.
#[derive(Clone, Debug, PartialEq)]
pub struct Seeing {
    /// The vision tower.
    pub tower: VisionConfig,
    /// The token that an image's embeddings replace.
    pub image_token_id: u32,
    /// The token that a video's embeddings replace.
    pub video_token_id: u32,
    /// The token before an image's.
    pub vision_start_token_id: u32,
    /// The token after an image's.
    pub vision_end_token_id: u32,
}

/// The part that sees of a Qwen3-VL model's configuration; `None` for another model's.
pub fn seeing(config: &Config) -> Option<&Seeing> {
    let vision: &dyn std::any::Any = config.vision.as_deref()?;
    vision.downcast_ref()
}

impl Seeing {
    /// Reads `config.json`, whose decoder has these sizes.
    pub(crate) fn read(top: Fields, text: &TextConfig) -> Result<Self> {
        let vision = top.required("vision_config", top.object("vision_config", "vision_config.")?)?;
        let id = |name: &str| top.required(name, top.id(name)?);
        let seeing = Self {
            tower: vision_config(vision)?,
            image_token_id: id("image_token_id")?,
            video_token_id: id("video_token_id")?,
            vision_start_token_id: id("vision_start_token_id")?,
            vision_end_token_id: id("vision_end_token_id")?,
        };
        if let Some((name, id)) = seeing.tokens().into_iter().find(|(_, id)| *id as usize >= text.vocab_size)
        {
            let reason = format!("{id} is outside the vocabulary of {}", text.vocab_size);
            return Err(top.bad(name, reason));
        }
        seeing.check(text, &|name, reason| vision.bad(name, reason))?;
        Ok(seeing)
    }

    /// The tokens, by their fields.
    pub(crate) fn tokens(&self) -> [(&'static str, u32); 4] {
        [
            ("image_token_id", self.image_token_id),
            ("video_token_id", self.video_token_id),
            ("vision_start_token_id", self.vision_start_token_id),
            ("vision_end_token_id", self.vision_end_token_id),
        ]
    }

    /// Refuses a vision tower that does not fit the decoder.
    pub(crate) fn check(&self, text: &TextConfig, refuse: &Refuse) -> Result<()> {
        let vision = &self.tower;
        if vision.out_hidden_size != text.hidden_size {
            let reason = format!("{} is not the text's {}", vision.out_hidden_size, text.hidden_size);
            return Err(refuse("out_hidden_size", reason));
        }
        match vision.deepstack_visual_indexes.len() > text.num_hidden_layers {
            true => Err(refuse("deepstack_visual_indexes", "more entries than the text has layers".into())),
            false => Ok(()),
        }
    }
}

/// A positive dimension or count.
fn dimension(fields: Fields, name: &str) -> Result<usize> {
    let value = fields.required(name, fields.u64(name)?)?;
    in_range(fields, name, value)
}

fn in_range(fields: Fields, name: &str, value: u64) -> Result<usize> {
    match value {
        1..=MAX_DIMENSION => Ok(value as usize),
        _ => Err(fields.bad(name, format!("{value} is not between 1 and {MAX_DIMENSION}"))),
    }
}

fn dimension_or(fields: Fields, name: &str, default: usize) -> Result<usize> {
    fields.u64(name)?.map_or(Ok(default), |value| in_range(fields, name, value))
}

/// A field that has one supported value.
pub(crate) fn only(fields: Fields, name: &str, supported: &str) -> Result<()> {
    match fields.str(name)? {
        Some(value) if value != supported => {
            Err(fields.bad(name, format!("\"{value}\" is not supported, only \"{supported}\"")))
        }
        _ => Ok(()),
    }
}

pub(crate) fn positive(fields: Fields, name: &str, value: f64) -> Result<f64> {
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(fields.bad(name, format!("{value} is not a positive number")))
    }
}

/// The decoder's sizes, with the base of the rotary frequencies; `sections` has how many belong to time, height and width, and where
/// that stands. Without them all belong to time.
pub(crate) fn text_config(
    text: Fields,
    rope_theta: f64,
    sections: Option<(Fields, [usize; 3])>,
    experts: Option<ExpertsConfig>,
) -> Result<TextConfig> {
    only(text, "hidden_act", "silu")?;
    if text.bool("attention_bias")? == Some(true) {
        return Err(text.bad("attention_bias", "true is not supported"));
    }
    let hidden_size = dimension(text, "hidden_size")?;
    let num_attention_heads = dimension(text, "num_attention_heads")?;
    let num_key_value_heads = dimension_or(text, "num_key_value_heads", num_attention_heads)?;
    let head_dim = dimension_or(text, "head_dim", hidden_size / num_attention_heads)?;
    let mrope_section = sections.map_or([head_dim / 2, 0, 0], |(_, sections)| sections);
    let config = TextConfig {
        hidden_size,
        intermediate_size: dimension(text, "intermediate_size")?,
        experts,
        num_hidden_layers: dimension(text, "num_hidden_layers")?,
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        vocab_size: dimension(text, "vocab_size")?,
        rms_norm_eps: positive(text, "rms_norm_eps", text.f64("rms_norm_eps")?.unwrap_or(1e-6))? as f32,
        rope_theta,
        mrope_section,
        max_position_embeddings: dimension_or(text, "max_position_embeddings", 128_000)?,
        eos_token_id: text.id("eos_token_id")?,
    };
    let rope = sections.map_or(text, |(rope, _)| rope);
    config.check(&|name, reason| if name == "mrope_section" { rope } else { text }.bad(name, reason))?;
    Ok(config)
}

/// The experts of a mixture's decoder. transformers has two names for their number.
pub(crate) fn experts_config(text: Fields, normalized: bool) -> Result<ExpertsConfig> {
    let count = if text.u64("num_experts")?.is_some() { "num_experts" } else { "num_local_experts" };
    Ok(ExpertsConfig {
        count: dimension(text, count)?,
        per_token: dimension(text, "num_experts_per_tok")?,
        width: dimension(text, "moe_intermediate_size")?,
        normalized,
        step: dimension_or(text, "decoder_sparse_step", 1)?,
        dense_layers: text.sizes("mlp_only_layers")?.unwrap_or_default(),
    })
}

fn vision_config(vision: Fields) -> Result<VisionConfig> {
    only(vision, "hidden_act", "gelu_pytorch_tanh")?;
    let rope_theta = match vision.object("rope_parameters", "vision_config.rope_parameters.")? {
        Some(rope) => {
            let theta = rope.required("rope_theta", rope.f64("rope_theta")?)?;
            positive(rope, "rope_theta", theta)?
        }
        None => 10_000.0, // the reference's own; older configurations do not state it
    };
    let config = VisionConfig {
        depth: dimension(vision, "depth")?,
        hidden_size: dimension(vision, "hidden_size")?,
        intermediate_size: dimension(vision, "intermediate_size")?,
        num_heads: dimension(vision, "num_heads")?,
        in_channels: dimension_or(vision, "in_channels", 3)?,
        patch_size: dimension(vision, "patch_size")?,
        temporal_patch_size: dimension(vision, "temporal_patch_size")?,
        spatial_merge_size: dimension(vision, "spatial_merge_size")?,
        num_position_embeddings: dimension(vision, "num_position_embeddings")?,
        deepstack_visual_indexes: vision
            .required("deepstack_visual_indexes", vision.sizes("deepstack_visual_indexes")?)?,
        out_hidden_size: dimension(vision, "out_hidden_size")?,
        rope_theta,
    };
    config.check(&|name, reason| vision.bad(name, reason))?;
    Ok(config)
}

impl VisionConfig {
    /// As [`TextConfig::check`].
    pub(crate) fn check(&self, refuse: &Refuse) -> Result<()> {
        if self.in_channels != 3 {
            return Err(refuse("in_channels", format!("{} is not supported, only 3", self.in_channels)));
        }
        if !self.hidden_size.is_multiple_of(4 * self.num_heads) {
            let reason =
                format!("{} heads do not divide {} into multiples of 4", self.num_heads, self.hidden_size);
            return Err(refuse("num_heads", reason));
        }
        let side = self.position_side();
        if side * side != self.num_position_embeddings {
            let reason = format!("{} is not a square", self.num_position_embeddings);
            return Err(refuse("num_position_embeddings", reason));
        }
        for (name, value, limit) in [
            ("patch_size", self.patch_size, 256),
            ("temporal_patch_size", self.temporal_patch_size, 16),
            ("spatial_merge_size", self.spatial_merge_size, 16),
        ] {
            if value > limit {
                return Err(refuse(name, format!("{value} is above {limit}")));
            }
        }
        let deepstack = &self.deepstack_visual_indexes;
        if !deepstack.is_sorted_by(|a, b| a < b) || deepstack.last().is_some_and(|&last| last >= self.depth) {
            let reason = format!("{deepstack:?} are not ascending blocks below {}", self.depth);
            return Err(refuse("deepstack_visual_indexes", reason));
        }
        Ok(())
    }
}

/// The contents of `preprocessor_config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct PreprocessorConfig {
    /// The fewest pixels of a resized image.
    pub min_pixels: usize,
    /// The most pixels of a resized image.
    pub max_pixels: usize,
    /// Side of a patch.
    pub patch_size: usize,
    /// Frames in a patch.
    pub temporal_patch_size: usize,
    /// Side of the square of patches that become one token.
    pub merge_size: usize,
    /// Multiplies the 8-bit values.
    pub rescale_factor: f64,
    /// Subtracted from each rescaled channel.
    pub image_mean: [f32; 3],
    /// Divides each channel after that.
    pub image_std: [f32; 3],
}

/// The pixel limits of the published checkpoints.
pub const PUBLISHED_PIXELS: [usize; 2] = [65_536, 16_777_216];
/// The limits of videos, for all frames together.
pub(crate) const PUBLISHED_VIDEO_PIXELS: [usize; 2] = [4096, 25_165_824];

impl PreprocessorConfig {
    /// Reads `preprocessor_config.json` in `dir` and checks it against the vision tower's configuration.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with file and field.
    pub fn load(dir: &Path, vision: &VisionConfig) -> Result<Self> {
        Self::read(&dir.join("preprocessor_config.json"), vision)
    }

    /// The settings for a GGUF file, which does not hold them: from the file's folder, or from its subfolder `source`,
    /// where a conversion keeps its source files. `name` is `preprocessor_config.json` or the file for videos. `None` if
    /// there are none.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_near(file: &Path, name: &str, vision: &VisionConfig) -> Result<Option<Self>> {
        let places = [file.with_file_name(name), file.with_file_name("source").join(name)];
        places.iter().find(|place| place.exists()).map(|place| Self::read(place, vision)).transpose()
    }

    /// As [`load`](Self::load) for `video_preprocessor_config.json`, whose pixel limits count the pixels of all
    /// frames; `None` if the checkpoint has none.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_video(dir: &Path, vision: &VisionConfig) -> Result<Option<Self>> {
        let file = dir.join("video_preprocessor_config.json");
        if file.exists() { Self::read(&file, vision).map(Some) } else { Ok(None) }
    }

    /// These settings with the reference's pixel limits for videos, for checkpoints that state none.
    pub fn for_video(&self) -> Self {
        let pixels = self.factor() * self.factor();
        Self { min_pixels: 128 * pixels, max_pixels: 768 * pixels, ..self.clone() }
    }

    fn read(file: &Path, vision: &VisionConfig) -> Result<Self> {
        let map = json::read_object(file, MAX_CONFIG)?;
        let top = Fields::new(file, "", &map);
        let (limits, shortest, longest) = match top.object("size", "size.")? {
            Some(size) => (size, "shortest_edge", "longest_edge"),
            None => (top, "min_pixels", "max_pixels"), // an older spelling
        };
        let (min_pixels, max_pixels) = (pixels(limits, shortest)?, pixels(limits, longest)?);
        if min_pixels > max_pixels {
            return Err(limits.bad(shortest, format!("{min_pixels} is above {longest} = {max_pixels}")));
        }
        let same = |name: &str, expected: usize| -> Result<usize> {
            let value = dimension_or(top, name, expected)?;
            match value == expected {
                true => Ok(value),
                false => Err(top.bad(name, format!("{value} is not the vision tower's {expected}"))),
            }
        };
        for name in ["do_resize", "do_rescale", "do_normalize"] {
            if top.bool(name)? == Some(false) {
                return Err(top.bad(name, "false is not supported"));
            }
        }
        Ok(Self {
            min_pixels,
            max_pixels,
            patch_size: same("patch_size", vision.patch_size)?,
            temporal_patch_size: same("temporal_patch_size", vision.temporal_patch_size)?,
            merge_size: same("merge_size", vision.spatial_merge_size)?,
            rescale_factor: positive(
                top,
                "rescale_factor",
                top.f64("rescale_factor")?.unwrap_or(1.0 / 255.0),
            )?,
            image_mean: channels(top, "image_mean")?,
            image_std: {
                let std = channels(top, "image_std")?;
                if std.iter().any(|&std| std <= 0.0) {
                    return Err(top.bad("image_std", format!("{std:?} are not all positive")));
                }
                std
            },
        })
    }

    /// Sides of a resized image are multiples of this.
    pub fn factor(&self) -> usize {
        self.patch_size * self.merge_size
    }
}

fn pixels(fields: Fields, name: &str) -> Result<usize> {
    let value = fields.required(name, fields.u64(name)?)?;
    match value {
        1..=0x1_0000_0000 => Ok(value as usize),
        _ => Err(fields.bad(name, format!("{value} is not between 1 and 2³²"))),
    }
}

fn channels(fields: Fields, name: &str) -> Result<[f32; 3]> {
    let values = fields.required(name, fields.numbers(name)?)?;
    match values[..] {
        [r, g, b] => Ok([r as f32, g as f32, b as f32]),
        _ => Err(fields.bad(name, format!("has {} numbers, not one per channel", values.len()))),
    }
}
