//! How pictures and videos become tokens and patches: placeholders, time stamps, pads.

use super::config::{PreprocessorConfig, Seeing};
use super::positions::positions;
use super::preprocess::{image_patches, image_plan, shrink_image, shrink_video, video_patches, video_plan};
use language::Processor;
use language::chat::Media;
use language::media::{ImagePlan, Patches, PixelLimits, Positions, VIDEO_PICTURES, Visual};
use language::picture::PictureHeader;
use language::seam;
use pascaline::{Error, Result};
use std::any::Any;

/// The most tokens of all images and videos of a prompt; no model has as many positions.
const MAX_PADS: usize = 1 << 24;

/// The settings of a checkpoint's preprocessing.
#[derive(Clone, Debug, PartialEq)]
pub struct Pictures {
    pub(crate) seeing: Seeing,
    /// How images are prepared.
    pub images: PreprocessorConfig,
    /// How videos are prepared.
    pub videos: PreprocessorConfig,
}

/// How a Qwen3-VL processor prepares pictures; `None` for another model's.
pub fn pictures(processor: &Processor) -> Option<&Pictures> {
    let pictures: &dyn Any = processor.pictures.as_deref()?;
    pictures.downcast_ref()
}

impl seam::Pictures for Pictures {
    fn patches(&self, visual: &Visual) -> Result<Patches> {
        match visual {
            Visual::Image { name, picture } => image_patches(name, picture, &self.images),
            Visual::Video { name, frames, .. } => video_patches(name, frames, &self.videos),
        }
    }

    fn shrink(&self, visual: &mut Visual) -> Result<()> {
        match visual {
            Visual::Image { name, picture } => shrink_image(name, picture, &self.images),
            Visual::Video { name, frames, .. } => shrink_video(name, frames, &self.videos),
        }
    }

    fn within(&self, limits: PixelLimits) -> Box<dyn seam::Pictures> {
        let mut narrowed = self.clone();
        let images = &mut narrowed.images;
        [images.min_pixels, images.max_pixels] = limits.apply([images.min_pixels, images.max_pixels]);
        if let Some(max) = limits.max.or(limits.most) {
            let videos = &mut narrowed.videos;
            videos.max_pixels = videos.max_pixels.min(max.saturating_mul(VIDEO_PICTURES));
            videos.min_pixels = videos.min_pixels.min(videos.max_pixels);
        }
        Box::new(narrowed)
    }

    fn plan(&self, name: &str, header: PictureHeader, frames: Option<usize>) -> Result<ImagePlan> {
        match frames {
            None => image_plan(name, header, &self.images),
            Some(frames) => video_plan(name, header, frames, &self.videos),
        }
    }

    fn media(&self, visual: &Visual, [groups, rows, cols]: [usize; 3]) -> Media {
        let tokens = rows * cols / self.seeing.tower.merge_len();
        match visual {
            Visual::Image { .. } => Media::Image { tokens },
            Visual::Video { frames, rate, .. } => {
                let size = self.videos.temporal_patch_size;
                let time = |frame: usize| frame.min(frames.len() - 1) as f64 / rate;
                let middle = |group: usize| (time(group * size) + time(group * size + size - 1)) / 2.0;
                Media::Video { timestamps: (0..groups).map(middle).collect(), tokens }
            }
        }
    }

    fn expand(
        &self,
        prompt: &str,
        media: &[Media],
        spelling: &dyn Fn(u32) -> Option<String>,
    ) -> Result<String> {
        expand(prompt, media, &Spellings::new(&self.seeing, spelling))
    }

    fn positions(&self, ids: &[u32], grids: &mut dyn Iterator<Item = [usize; 3]>) -> Result<Positions> {
        // Each group of a video's frames is a run of its own, after its time stamp. A group has at least one token.
        let groups = grids.flat_map(|[frames, rows, cols]| std::iter::repeat_n([1, rows, cols], frames));
        let groups: Vec<_> = groups.take(ids.len() + 1).collect();
        positions(ids, |id| self.is_pad(id), &groups, self.seeing.tower.spatial_merge_size)
    }

    fn is_pad(&self, id: u32) -> bool {
        id == self.seeing.image_token_id || id == self.seeing.video_token_id
    }

    fn pixel_step(&self) -> f64 {
        1.0 / (255.0 * f64::from(self.images.image_std[0]))
    }
}

/// How the tokens around and in the place of pictures are spelled.
#[derive(Clone, Debug, PartialEq)]
pub struct Spellings {
    /// In the place of an image's embeddings.
    pub image_pad: String,
    /// In the place of a video's embeddings.
    pub video_pad: String,
    /// Before an image's.
    pub vision_start: String,
    /// After an image's.
    pub vision_end: String,
}

impl Spellings {
    /// Those of a vocabulary, which was checked to have them; `spelling` spells a token.
    pub fn new(seeing: &Seeing, spelling: impl Fn(u32) -> Option<String>) -> Self {
        let [image_pad, video_pad, vision_start, vision_end] =
            seeing.tokens().map(|(_, id)| spelling(id).unwrap_or_default());
        Self { image_pad, video_pad, vision_start, vision_end }
    }
}

/// Replaces each placeholder by the pad tokens of its image or video. Each group of a video's frames follows its time
/// stamp.
///
/// # Errors
/// [`Error::Prompt`] if the placeholders do not match the images and videos in number and order.
pub fn expand(prompt: &str, media: &[Media], tokens: &Spellings) -> Result<String> {
    let Spellings { image_pad, video_pad, vision_start, vision_end } = tokens;
    let video = format!("{vision_start}{video_pad}{vision_end}");
    let mut expanded = String::with_capacity(prompt.len());
    let mut pads = 0usize;
    let mut rest = prompt;
    for (number, item) in media.iter().enumerate() {
        let placeholder = match item {
            Media::Image { .. } => image_pad.as_str(),
            Media::Video { .. } => video.as_str(),
        };
        let Some((before, after)) = rest.split_once(placeholder) else {
            let reason = format!("it has no placeholder {placeholder} for image or video {}", number + 1);
            return Err(Error::Prompt { reason });
        };
        refuse_pads(before, tokens)?;
        expanded.push_str(before);
        match item {
            Media::Image { tokens } => {
                pads = more_pads(pads, *tokens, 1)?;
                expanded.push_str(&image_pad.repeat(*tokens));
            }
            Media::Video { timestamps, tokens } => {
                pads = more_pads(pads, *tokens, timestamps.len())?;
                for time in timestamps {
                    let pads = video_pad.repeat(*tokens);
                    expanded.push_str(&format!("<{time:.1} seconds>{vision_start}{pads}{vision_end}"));
                }
            }
        }
        rest = after;
    }
    refuse_pads(rest, tokens)?;
    expanded.push_str(rest);
    Ok(expanded)
}

fn more_pads(pads: usize, tokens: usize, groups: usize) -> Result<usize> {
    let all = tokens.checked_mul(groups).and_then(|more| more.checked_add(pads));
    all.filter(|&pads| pads <= MAX_PADS).ok_or_else(|| Error::Prompt {
        reason: format!("{groups} × {tokens} tokens of images and videos are more than {MAX_PADS}"),
    })
}

fn refuse_pads(text: &str, tokens: &Spellings) -> Result<()> {
    for pad in [&tokens.image_pad, &tokens.video_pad] {
        if text.contains(pad.as_str()) {
            return Err(Error::Prompt {
                reason: format!("it has a placeholder {pad} that no image is given for"),
            });
        }
    }
    Ok(())
}
