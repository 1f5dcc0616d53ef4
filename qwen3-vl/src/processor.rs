//! Messages, pictures and videos → the model's inputs.

use super::chat::{ChatTemplate, Media, Message, Part, expand};
use super::checkpoint::Checkpoint;
use super::config::{Config, GenerationConfig, PreprocessorConfig};
use super::control::{ControlTokens, StandIns};
use super::positions::{Positions, positions};
use super::preprocess::{ImagePlan, Patches, Picture, image_patches, video_patches};
use super::tokenizer::Tokenizer;
use pascaline::{Error, Result};
use std::path::{Path, PathBuf};

/// A checkpoint's configuration, tokenizer, chat template and preprocessing: all that needs no weights.
pub struct Processor {
    /// The model's configuration.
    pub config: Config,
    /// How the checkpoint's authors generate.
    pub generation: GenerationConfig,
    /// How images are prepared.
    pub images: PreprocessorConfig,
    /// How videos are prepared.
    pub videos: PreprocessorConfig,
    /// Text ↔ tokens.
    pub tokenizer: Tokenizer,
    pub(crate) template: ChatTemplate,
}

/// An image or a video.
#[derive(Clone, Debug, PartialEq)]
pub enum Visual {
    /// A still image.
    Image {
        /// Its name in errors.
        name: String,
        /// Its pixels.
        picture: Picture,
    },
    /// A video: frames of one size.
    Video {
        /// Its name in errors.
        name: String,
        /// Its frames.
        frames: Vec<Picture>,
        /// Frames per second.
        rate: f64,
    },
}

impl Visual {
    /// An image file.
    ///
    /// # Errors
    /// As [`Picture::open`].
    pub fn image(file: &Path) -> Result<Self> {
        Ok(Self::Image { name: file.display().to_string(), picture: Picture::open(file)? })
    }

    /// A folder of pictures, in the order of their names, shown at `rate` frames per second.
    ///
    /// # Errors
    /// [`Error::Image`] if the folder has no picture, one can't be used, or the rate is not positive.
    pub fn video(folder: &Path, rate: f64) -> Result<Self> {
        let name = folder.display().to_string();
        let wrong = |reason: String| Error::Image { file: name.clone(), reason };
        if !(rate > 0.0 && rate.is_finite()) {
            return Err(wrong(format!("{rate} frames per second")));
        }
        let entries = std::fs::read_dir(folder).map_err(|error| wrong(error.to_string()))?;
        let mut files: Vec<PathBuf> = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<_, _>>()
            .map_err(|error| wrong(error.to_string()))?;
        files.retain(|file| is_picture(file));
        if files.is_empty() {
            return Err(wrong("no PNG, JPEG or WebP file in it".into()));
        }
        files.sort();
        let frames = files.iter().map(|file| Picture::open(file)).collect::<Result<_>>()?;
        Ok(Self::Video { name, frames, rate })
    }

    /// Its placeholder in a message.
    pub fn part(&self) -> Part {
        match self {
            Self::Image { .. } => Part::Image,
            Self::Video { .. } => Part::Video,
        }
    }
}

fn is_picture(file: &Path) -> bool {
    let extension = file.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg" | "webp"))
}

/// A prepared prompt: the model's inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// The tokens, with the pad tokens of images and videos.
    pub ids: Vec<u32>,
    /// The tokens' positions.
    pub positions: Positions,
    /// The patches of each image and video, in order.
    pub patches: Vec<Patches>,
}

impl Processor {
    /// Reads a checkpoint, a directory or a GGUF file, weights excepted.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and the field.
    pub fn load(path: &Path) -> Result<Self> {
        Checkpoint::open(path, None)?.processor()
    }

    pub(crate) fn load_directory(dir: &Path) -> Result<Self> {
        let config = Config::load(dir)?;
        let images = PreprocessorConfig::load(dir, &config.vision)?;
        Ok(Self {
            generation: GenerationConfig::load(dir, &config)?,
            videos: PreprocessorConfig::load_video(dir, &config.vision)?
                .unwrap_or_else(|| images.for_video()),
            images,
            tokenizer: Tokenizer::load(dir, &config)?,
            template: ChatTemplate::load(dir)?,
            config,
        })
    }

    /// The prompt's text, with one placeholder per image and video.
    ///
    /// # Errors
    /// As [`ChatTemplate::render`].
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        self.template.render(messages, self.config.text.max_position_embeddings)
    }

    /// Prepares a conversation. `visuals` are the pictures of its [`Part::Image`]s and [`Part::Video`]s, in order. Control
    /// tokens that are spelled in texts are read as control tokens.
    ///
    /// # Errors
    /// [`Error::Prompt`] if messages and visuals do not fit each other, [`Error::Image`], [`Error::Checkpoint`].
    pub fn prepare(&self, messages: &[Message], visuals: &[Visual]) -> Result<Prompt> {
        self.prepare_with(messages, visuals, ControlTokens::Recognized)
    }

    /// As [`prepare`](Self::prepare), with a choice for control tokens that are spelled in texts.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn prepare_with(
        &self,
        messages: &[Message],
        visuals: &[Visual],
        spelled: ControlTokens,
    ) -> Result<Prompt> {
        let patches = visuals.iter().map(|visual| self.patches(visual)).collect::<Result<Vec<_>>>()?;
        let media: Vec<_> = visuals.iter().zip(&patches).map(|(v, p)| self.media(v, p)).collect();
        let ids = self.tokens(messages, &media, spelled)?;
        let positions = self.positions(&ids, patches.iter().map(|patches| patches.grid))?;
        Ok(Prompt { ids, positions, patches })
    }

    /// A conversation's prompt before its images, of which only the plans are known: its patches, which the caller adds,
    /// are those of the images in order.
    ///
    /// # Errors
    /// As [`prepare`](Self::prepare).
    pub fn outline(
        &self,
        messages: &[Message],
        images: &[ImagePlan],
        spelled: ControlTokens,
    ) -> Result<Prompt> {
        let media: Vec<_> = images.iter().map(|image| Media::Image { tokens: image.tokens }).collect();
        let ids = self.tokens(messages, &media, spelled)?;
        let positions = self.positions(&ids, images.iter().map(|image| image.grid))?;
        Ok(Prompt { ids, positions, patches: Vec::new() })
    }

    fn tokens(&self, messages: &[Message], media: &[Media], spelled: ControlTokens) -> Result<Vec<u32>> {
        match spelled {
            ControlTokens::Recognized => {
                let text = expand(&self.render(messages)?, media, &self.tokenizer)?;
                self.tokenizer.encode(&text)
            }
            ControlTokens::AsText => {
                let (messages, stand_ins) = StandIns::replace(messages, self.tokenizer.controls())?;
                let text = expand(&self.render(&messages)?, media, &self.tokenizer)?;
                self.tokenizer.encode_with(&text, &stand_ins)
            }
        }
    }

    /// The positions of tokens that include the pads of these grids.
    ///
    /// # Errors
    /// As [`positions`].
    pub fn positions(&self, ids: &[u32], grids: impl Iterator<Item = [usize; 3]>) -> Result<Positions> {
        // Each group of a video's frames is a run of its own, after its time stamp. A group has at least one token.
        let groups = grids.flat_map(|[frames, rows, cols]| std::iter::repeat_n([1, rows, cols], frames));
        let groups: Vec<_> = groups.take(ids.len() + 1).collect();
        positions(ids, |id| self.is_pad(id), &groups, self.config.vision.spatial_merge_size)
    }

    /// Whether an image's or video's embedding replaces this token's.
    pub fn is_pad(&self, id: u32) -> bool {
        id == self.config.image_token_id || id == self.config.video_token_id
    }

    fn patches(&self, visual: &Visual) -> Result<Patches> {
        match visual {
            Visual::Image { name, picture } => image_patches(name, picture, &self.images),
            Visual::Video { name, frames, .. } => video_patches(name, frames, &self.videos),
        }
    }

    fn media(&self, visual: &Visual, patches: &Patches) -> Media {
        let [groups, rows, cols] = patches.grid;
        let tokens = rows * cols / self.config.vision.merge_len();
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
}

impl From<Picture> for Visual {
    fn from(picture: Picture) -> Self {
        Self::Image { name: "image".into(), picture }
    }
}
