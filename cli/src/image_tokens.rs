//! `--image-tokens`: how many tokens a picture may have, and which pictures are shrunk for it.

use super::failure::Failure;
use qwen3_vl::Processor;
use qwen3_vl::config::Config;
use qwen3_vl::estimate::{IMAGE_TOKENS, Peaks, image_tokens as budget};
use qwen3_vl::media::PixelLimits;
use qwen3_vl::preprocess::PictureHeader;

/// `--image-tokens`
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ImageTokens {
    /// The checkpoint's own if not given.
    pub min: Option<usize>,
    /// At least 1.
    pub max: usize,
    /// Whether the user has given them; otherwise the checkpoint's own most is kept where it is less.
    pub given: bool,
}

impl ImageTokens {
    /// Those that are not given, for a device with these rates and bytes of memory; `None` for one that was not asked.
    pub fn usual(config: &Config, device: Option<(&Peaks, usize)>) -> Self {
        let max = device.map_or(IMAGE_TOKENS, |(peaks, memory)| budget(config, peaks, memory));
        Self { min: None, max, given: false }
    }

    /// In pixels.
    pub fn limits(self, config: &Config) -> PixelLimits {
        let side = config.vision.as_ref().map_or(0, |vision| vision.sizes().token_side());
        let pixels = |tokens: usize| tokens.saturating_mul(side * side);
        let (min, max) = (self.min.map(pixels), Some(pixels(self.max)));
        match (side, self.given) {
            (0, _) => PixelLimits::default(),
            (_, true) => PixelLimits { min, max, most: None },
            (_, false) => PixelLimits { min, max: None, most: max },
        }
    }
}

/// `--image-tokens`
pub(super) fn image_tokens(text: &str) -> Result<ImageTokens, String> {
    const MOST: usize = 1 << 20; // far more than any context, and no overflow in pixels
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|count| (1..=MOST).contains(count));
    let (min, max) = text.split_once(',').map_or((None, text), |(min, max)| (Some(min), max));
    let found = match (min.map(number), number(max)) {
        (None, Some(max)) => Some(ImageTokens { min: None, max, given: true }),
        (Some(Some(min)), Some(max)) if min <= max => Some(ImageTokens { min: Some(min), max, given: true }),
        _ => None,
    };
    found.ok_or_else(|| "it must be like 64,1280: the fewest and the most tokens of a picture".to_owned())
}

/// The size that a picture of `height` × `width` pixels is shrunk to, as text, and its tokens; `None` if it is not.
pub(super) fn shrunk(
    name: &str,
    (height, width): (usize, usize),
    processor: &Processor,
) -> Result<Option<(String, usize)>, Failure> {
    let Some(sizes) = processor.config.vision.as_ref().map(|vision| vision.sizes()) else { return Ok(None) };
    let header = PictureHeader { height, width, bytes: 0 };
    let plan = processor.image_plan(name, header)?;
    let [_, rows, cols] = plan.grid;
    let (to_height, to_width) = (rows * sizes.patch_side, cols * sizes.patch_side);
    // sides are rounded to whole tokens in any case
    let is_shrunk = to_height + sizes.token_side() <= height || to_width + sizes.token_side() <= width;
    Ok(is_shrunk.then(|| (format!("{to_width} × {to_height}"), plan.tokens)))
}
