//! Pictures and videos on their way through a model: as they are given, as patches, and as embeddings.

use super::chat::Part;
use super::picture::{ACCEPTED, Picture};
use pascaline::{Device, Error, Result, Tensor};
use std::any::Any;
use std::path::{Path, PathBuf};

/// The most bytes that the patches of one picture or video may take; published limits ask for up to 604 MB.
pub const MAX_PATCHES: usize = 1 << 30;

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
    /// Rows and columns of the picture, or of a video's first frame.
    pub fn size(&self) -> (usize, usize) {
        let first = match self {
            Self::Image { picture, .. } => Some(picture),
            Self::Video { frames, .. } => frames.first(),
        };
        first.map_or((0, 0), |frame| (frame.height, frame.width))
    }

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
            return Err(wrong(format!("no {ACCEPTED} file in it")));
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
    matches!(extension.as_deref(), Some("png" | "jpg" | "jpeg" | "webp" | "gif" | "bmp" | "tif" | "tiff"))
}

impl From<Picture> for Visual {
    fn from(picture: Picture) -> Self {
        Self::Image { name: "image".into(), picture }
    }
}

/// Sizes of the part of a model that sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisionSizes {
    /// Blocks of the tower.
    pub depth: usize,
    /// Width of its hidden state.
    pub hidden_size: usize,
    /// Its heads.
    pub heads: usize,
    /// Values in a patch.
    pub patch_len: usize,
    /// Side of a patch in pixels.
    pub patch_side: usize,
    /// Side of the square of patches that become one token.
    pub merge: usize,
}

impl VisionSizes {
    /// Patches that become one token.
    pub fn merge_len(&self) -> usize {
        self.merge * self.merge
    }

    /// Side in pixels of the square that becomes one token.
    pub fn token_side(&self) -> usize {
        self.patch_side * self.merge
    }
}

/// A picture or video as patches.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    /// Groups of frames, rows and columns of patches.
    pub grid: [usize; 3],
    /// [t · gh · gw, channels · frames · side²], in merge-block order: the patches that become one token are adjacent.
    pub values: Vec<f32>,
}

impl Patches {
    /// The number of tokens that they become in a vision tower.
    ///
    /// # Errors
    /// [`Error::Shape`] if the grid does not match the number of values, or is not a multiple of the tower's merge blocks.
    pub fn tokens(&self, sizes: &VisionSizes) -> Result<usize> {
        let [groups, rows, cols] = self.grid;
        let (len, merge) = (sizes.patch_len, sizes.merge);
        let whole = groups > 0 && [rows, cols].iter().all(|&side| side > 0 && side.is_multiple_of(merge));
        let count = self.grid.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        match count {
            Some(count) if whole && count.checked_mul(len) == Some(self.values.len()) => {
                Ok(count / (merge * merge))
            }
            _ => Err(Error::Shape {
                op: "VisionTower",
                argument: "patches",
                expected: format!(
                    "{groups} × {rows} × {cols} of {len} values, in blocks of {merge} × {merge}"
                ),
                found: [self.values.len()].into(),
            }),
        }
    }
}

/// The pixels that pictures are resized to, in the place of the checkpoint's own limits; `None` keeps the checkpoint's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PixelLimits {
    /// The fewest pixels; smaller pictures are enlarged.
    pub min: Option<usize>,
    /// The most pixels; larger pictures are shrunk. A video may have [`VIDEO_PICTURES`] times as many in all its frames.
    pub max: Option<usize>,
    /// Without a `max`, the checkpoint's own most is not more than this.
    pub most: Option<usize>,
}

/// A video has at most the pixels of this many of the largest pictures, where the most is given.
pub const VIDEO_PICTURES: usize = 4;

impl PixelLimits {
    /// These limits, and those of `others` where these are open.
    pub fn or(self, others: Self) -> Self {
        Self { min: self.min.or(others.min), max: self.max.or(others.max), most: self.most.or(others.most) }
    }

    /// The fewest and the most pixels, where a checkpoint has these. A limit that was given decides over one that was not.
    pub fn apply(self, [min, max]: [usize; 2]) -> [usize; 2] {
        let usual = max.min(self.most.unwrap_or(max));
        match (self.min, self.max) {
            (Some(min), None) => [min, usual.max(min)],
            (given, max) => {
                let max = max.unwrap_or(usual);
                [given.unwrap_or(min).min(max), max]
            }
        }
    }
}

/// The tokens and the memory of a picture, by its header, before anything is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagePlan {
    /// The grid of its [`Patches`].
    pub grid: [usize; 3],
    /// Its tokens.
    pub tokens: usize,
    /// Bytes of its patches.
    pub bytes: usize,
    /// The most bytes that decoding and resizing take besides.
    pub scratch: usize,
}

/// A sequence's positions along time, height and width.
#[derive(Clone, Debug, PartialEq)]
pub struct Positions {
    /// (time, height, width) of each token.
    pub axes: Vec<[u32; 3]>,
    /// A generated token's position minus the number of tokens before it: the largest position
    /// plus one, minus the length. Never positive: an image takes fewer positions than tokens.
    pub rope_delta: i64,
}

impl Positions {
    /// Those of text alone: each token counts up on all axes.
    ///
    /// # Errors
    /// [`Error::Prompt`] for more tokens than 32 bits count.
    pub fn of_text(tokens: usize) -> Result<Self> {
        let last = u32::try_from(tokens)
            .map_err(|_| Error::Prompt { reason: format!("{tokens} tokens are beyond 32 bits") })?;
        Ok(Self { axes: (0..last).map(|at| [at; 3]).collect(), rope_delta: 0 })
    }
}

/// The tower's output for an image.
#[derive(Clone, Debug)]
pub struct VisionOutput<V = Tensor> {
    /// [tokens, text hidden]
    pub embeddings: V,
    /// For each of the first decoder layers: [tokens, text hidden].
    pub deepstack: Vec<V>,
}

impl VisionOutput {
    /// The same on another device.
    ///
    /// # Errors
    /// As [`Tensor::to_device`].
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        let deepstack =
            self.deepstack.iter().map(|tensor| tensor.to_device(device)).collect::<Result<_>>()?;
        Ok(Self { embeddings: self.embeddings.to_device(device)?, deepstack })
    }
}

/// An image on its way through the tower.
#[derive(Default)]
pub struct VisionProgress {
    /// Blocks that it has passed, counted for each group of frames.
    pub passed: usize,
    /// The tower's state between calls.
    pub state: Option<Box<dyn Any + Send>>,
}
