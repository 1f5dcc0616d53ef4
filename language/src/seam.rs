//! What a model says of itself; all else is written once, in this crate.
//!
//! A [`Model`] reads configurations. Its decoder is a pre-norm transformer with grouped-query attention, RMSNorm on queries and keys,
//! SwiGLU and rotary positions, which [`TextConfig`](crate::config::TextConfig) sizes. A model that sees has a [`Vision`] part in
//! its configuration: that names its tensors, loads its [`Tower`] and prepares [`Pictures`].

use super::chat::Media;
use super::config::Config;
use super::gguf::{Field, Gguf};
use super::json::Fields;
use super::media::{ImagePlan, Patches, Positions, VisionOutput, VisionProgress, VisionSizes, Visual};
use super::picture::PictureHeader;
use super::tokenizer::Tokenizer;
use super::weights::Weights;
use pascaline::{Device, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

/// A family of models of one architecture.
pub trait Model: Debug + Sync {
    /// `model_type` in `config.json`.
    fn model_type(&self) -> &'static str;

    /// `general.architecture` in GGUF files.
    fn architecture(&self) -> &'static str;

    /// The beginning of the names of the decoder's tensors.
    fn prefix(&self) -> &'static str;

    /// Reads and checks `config.json`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with file and field.
    fn config(&'static self, fields: Fields) -> Result<Config>;

    /// Reads and checks the metadata of GGUF files.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with file and key.
    fn gguf_config(&'static self, text: &Gguf, vision: Option<&Gguf>) -> Result<Config>;

    /// The file of the part that sees, beside a text file; `None` for a model of text alone.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) if the model needs one and there is none, or more than one.
    fn vision_file(&self, text: &Gguf) -> Result<Option<Gguf>>;

    /// The keys of a text file that only this architecture has, without its name.
    fn gguf_keys(&self, config: &Config) -> Vec<(&'static str, Field)>;
}

/// The models that a program knows.
pub type Models = &'static [&'static dyn Model];

/// The files that say how pictures are prepared.
#[derive(Clone, Copy, Debug)]
pub enum VisionFiles<'a> {
    /// A directory as published.
    Directory(&'a Path),
    /// The vision file of a GGUF model.
    Gguf(&'a Gguf),
}

/// Where the vision tower's weights are, and where it computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VisionPlace {
    /// On the model's device.
    #[default]
    Resident,
    /// In host memory: they pass through the GPU while a picture is encoded, and leave it again. The embeddings are the same.
    Streamed,
    /// In host memory, and the CPU encodes pictures.
    Cpu,
}

/// The configuration of the part of a model that sees pictures and videos.
pub trait Vision: Any + Debug + Send + Sync {
    /// Its sizes.
    fn sizes(&self) -> VisionSizes;

    /// The names and shapes of its tensors; the names begin with [`VISION`](crate::config::VISION).
    fn tensors(&self) -> BTreeMap<String, Vec<usize>>;

    /// The number of [`tensors`](Self::tensors), without the list.
    fn tensor_count(&self) -> usize;

    /// The name in a GGUF file of a tensor. A tensor with a dimension of frames is split there, and this is the first part's.
    fn gguf_name(&self, published: &str) -> Option<String>;

    /// Tokens that a vocabulary must have: their fields in `config.json`, and their ids.
    fn special_tokens(&self) -> Vec<(&'static str, u32)>;

    /// How pictures are prepared.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with file and field.
    fn pictures(&self, files: VisionFiles) -> Result<Box<dyn Pictures>>;

    /// Takes the tower's tensors; with `passing`, those of the blocks and mergers stay there, in host memory. `done` is called
    /// after each block.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint), or a device error.
    fn tower(
        &self,
        weights: &mut Weights,
        device: &Device,
        passing: Option<&Device>,
        done: &mut dyn FnMut(&Weights),
    ) -> Result<Box<dyn Tower>>;
}

/// The network that turns patches into embeddings.
pub trait Tower: Send + Sync {
    /// Passes an image or video through the next `blocks` blocks, one at least. Gives the output after the last one. All calls for
    /// one image have the same patches.
    ///
    /// # Errors
    /// [`Error::Shape`](pascaline::Error::Shape) if the patches are not the tower's, or a device error; `progress` is of no use then.
    fn advance(
        &self,
        patches: &Patches,
        progress: &mut VisionProgress,
        blocks: usize,
    ) -> Result<Option<VisionOutput>>;
}

/// How pictures and videos become tokens and patches.
pub trait Pictures: Any + Send + Sync {
    /// The patches of an image or video.
    ///
    /// # Errors
    /// [`Error::Image`](pascaline::Error::Image).
    fn patches(&self, visual: &Visual) -> Result<Patches>;

    /// What a picture with this header becomes.
    ///
    /// # Errors
    /// [`Error::Image`](pascaline::Error::Image).
    fn plan(&self, name: &str, header: PictureHeader) -> Result<ImagePlan>;

    /// The tokens that an image or video becomes.
    fn media(&self, visual: &Visual, patches: &Patches) -> Media;

    /// The prompt with its placeholders replaced by pad tokens.
    ///
    /// # Errors
    /// [`Error::Prompt`](pascaline::Error::Prompt) if placeholders and media do not fit each other.
    fn expand(&self, prompt: &str, media: &[Media], tokenizer: &Tokenizer) -> Result<String>;

    /// The positions of tokens that include the pads of these grids.
    ///
    /// # Errors
    /// [`Error::Prompt`](pascaline::Error::Prompt) if the tokens and the grids do not fit each other.
    fn positions(&self, ids: &[u32], grids: &mut dyn Iterator<Item = [usize; 3]>) -> Result<Positions>;

    /// Whether an image's or video's embedding replaces this token's.
    fn is_pad(&self, id: u32) -> bool;

    /// The difference of pixel values that one step of an 8-bit value makes, in the first channel.
    fn pixel_step(&self) -> f64;
}
