//! Checkpoints and models of this crate, by their paths.

use super::MODELS;
use language::media::PixelLimits;
use language::weights::Progress;
use language::{LanguageModel, LoadOptions, Placement, Processor};
use pascaline::{Device, Result};
use std::ops::{Deref, DerefMut};
use std::path::Path;

/// A model's files, opened far enough to know its sizes.
///
/// ```no_run
/// use pascaline::Device;
/// use qwen3_vl::{Checkpoint, LoadOptions, Qwen3Vl};
/// let checkpoint = Checkpoint::open("Qwen3VL-2B-Instruct-Q4_K_M.gguf", Some("mmproj-F16.gguf".as_ref()))?;
/// let device = Device::cuda(0)?;
/// let model = Qwen3Vl::load_checkpoint(&checkpoint, &device, LoadOptions::for_device(&device), |_| {})?;
/// # Ok::<(), pascaline::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint(language::Checkpoint);

impl Checkpoint {
    /// A directory as published, a GGUF file (the text model's, of a split one the first), or a directory with one such
    /// file. Its vision file (mmproj) is `mmproj`, or if not given the one in the same folder that fits.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file and what is wrong in it; also if `path` is a
    /// checkpoint's directory and `mmproj` is given, as that has a vision tower of its own.
    pub fn open(path: impl AsRef<Path>, mmproj: Option<&Path>) -> Result<Self> {
        language::Checkpoint::open(MODELS, path, mmproj).map(Self)
    }

    /// As [`language::Checkpoint::with_adapter`].
    ///
    /// # Errors
    /// As there.
    pub fn with_adapter(self, dir: &Path) -> Result<Self> {
        self.0.with_adapter(dir).map(Self)
    }

    /// As [`language::Checkpoint::with_named_adapter`].
    ///
    /// # Errors
    /// As there.
    pub fn with_named_adapter(self, name: &str, dir: &Path) -> Result<Self> {
        self.0.with_named_adapter(name, dir).map(Self)
    }

    /// As [`language::Checkpoint::with_pixel_limits`].
    pub fn with_pixel_limits(self, pixels: PixelLimits) -> Self {
        Self(self.0.with_pixel_limits(pixels))
    }
}

impl Deref for Checkpoint {
    type Target = language::Checkpoint;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// A Qwen3-VL or Qwen3 model on a device: a [`LanguageModel`] that is loaded by its path.
pub struct Qwen3Vl(LanguageModel);

impl Qwen3Vl {
    /// Loads a checkpoint onto `device`, with matrices in the device's usual type: a directory as published, or a GGUF file
    /// with its vision file (mmproj) in the same folder.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file and what is wrong in it, or a device error.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self> {
        Self::load_with(path, device, LoadOptions::for_device(device), |_| {})
    }

    /// As [`load`](Self::load); `progress` is called after each layer.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(
        path: impl AsRef<Path>,
        device: &Device,
        options: LoadOptions,
        progress: impl FnMut(Progress),
    ) -> Result<Self> {
        Self::load_checkpoint(&Checkpoint::open(path, None)?, device, options, progress)
    }

    /// As [`load_with`](Self::load_with), of a checkpoint that is open already.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_checkpoint(
        checkpoint: &Checkpoint,
        device: &Device,
        options: LoadOptions,
        progress: impl FnMut(Progress),
    ) -> Result<Self> {
        LanguageModel::load_checkpoint(checkpoint, device, options, progress).map(Self)
    }

    /// As [`LanguageModel::load_placed`].
    ///
    /// # Errors
    /// As there.
    pub fn load_placed(
        checkpoint: &Checkpoint,
        prepared: Option<Processor>,
        placement: &Placement,
        options: LoadOptions,
        progress: impl FnMut(Progress),
    ) -> Result<Self> {
        LanguageModel::load_placed(checkpoint, prepared, placement, options, progress).map(Self)
    }
}

impl Deref for Qwen3Vl {
    type Target = LanguageModel;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Qwen3Vl {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl From<Qwen3Vl> for LanguageModel {
    fn from(model: Qwen3Vl) -> Self {
        model.0
    }
}

/// Everything of a checkpoint that needs no weights.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file and the field.
pub fn processor(path: impl AsRef<Path>) -> Result<Processor> {
    Checkpoint::open(path, None)?.processor()
}
