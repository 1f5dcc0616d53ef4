//! A model's files: a directory as published, or a GGUF file with the vision file that belongs to it.

use super::adapter::{ADAPTER_TENSORS, Adapter};
use super::config::Config;
use super::footprint::Storage;
use super::gguf::{self, DeviceStorage, GgmlType, Gguf, Tensors};
use super::json::bad;
use super::model::LoadOptions;
use super::processor::Processor;
use super::weights::Weights;
use pascaline::{DType, Device, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files, other than weights, of a safetensors checkpoint. A checkpoint has at least some of them.
pub const SMALL_FILES: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

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
pub struct Checkpoint {
    files: Files,
    /// The adapter and its folder.
    adapter: Option<(Arc<Adapter>, PathBuf)>,
}

#[derive(Debug)]
enum Files {
    Directory(PathBuf),
    Gguf { text: Arc<Gguf>, vision: Arc<Gguf> },
}

impl Checkpoint {
    /// A directory as published, a GGUF file (the text model's, of a split one the first), or a directory with one such
    /// file. Its vision file (mmproj) is `mmproj`, or if not given the one in the same folder that fits.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file and what is wrong in it; also if `path` is a
    /// checkpoint's directory and `mmproj` is given, as that has a vision tower of its own.
    pub fn open(path: impl AsRef<Path>, mmproj: Option<&Path>) -> Result<Self> {
        let path = path.as_ref();
        let path = match path.is_dir() && !path.join("config.json").exists() {
            true => &*only_model(path)?,
            false => path,
        };
        if !is_gguf(path) {
            return match mmproj {
                None => Ok(Self { files: Files::Directory(path.to_owned()), adapter: None }),
                Some(mmproj) => {
                    let reason =
                        "belongs to a GGUF file; the model is a directory with a vision tower of its own";
                    Err(bad(mmproj, None, reason))
                }
            };
        }
        let text = Gguf::open(path)?;
        gguf::check_text(&text)?;
        let vision = match mmproj {
            Some(mmproj) => Gguf::open(mmproj)?,
            None => gguf::vision_file(&text)?,
        };
        Ok(Self { files: Files::Gguf { text: Arc::new(text), vision: Arc::new(vision) }, adapter: None })
    }

    /// Takes an adapter in PEFT's files (a folder with `adapter_config.json`). It is merged into the matrices while they are
    /// loaded; quantised ones stay as they are, with its change computed beside them.
    ///
    /// # Errors
    /// As [`Adapter::load`].
    pub fn with_adapter(self, dir: &Path) -> Result<Self> {
        Ok(Self { adapter: Some((Arc::new(Adapter::load(dir)?), dir.to_owned())), ..self })
    }

    /// The directory, or the text model's file.
    pub fn path(&self) -> &Path {
        match &self.files {
            Files::Directory(dir) => dir,
            Files::Gguf { text, .. } => text.path(),
        }
    }

    /// The text file and the vision file, if the model is in GGUF files.
    pub fn gguf(&self) -> Option<[&Gguf; 2]> {
        match &self.files {
            Files::Directory(_) => None,
            Files::Gguf { text, vision } => Some([text, vision]),
        }
    }

    /// The model's configuration.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file and the field or key.
    pub fn config(&self) -> Result<Config> {
        match &self.files {
            Files::Directory(dir) => Config::load(dir),
            Files::Gguf { text, vision } => gguf::config(text, vision),
        }
    }

    /// Everything that needs no weights.
    ///
    /// # Errors
    /// As [`config`](Self::config).
    pub fn processor(&self) -> Result<Processor> {
        match &self.files {
            Files::Directory(dir) => Processor::load_directory(dir),
            Files::Gguf { text, vision } => gguf::processor(text, vision),
        }
    }

    /// Whether matrices are quantised in the text model's file.
    pub fn is_quantized(&self) -> bool {
        let Some([text, _]) = self.gguf() else { return false };
        let mut tensors = text.files().iter().flat_map(|container| container.tensors().values());
        tensors.any(|info| DeviceStorage::from(info.ty).format().is_some())
    }

    /// The options of [`LoadOptions::for_device`]; on the CPU with f16 if a GGUF model has no other floating-point matrices.
    /// They lose nothing, and a token reads half as many bytes as in f32.
    pub fn usual_options(&self, device: &Device) -> LoadOptions {
        let usual = LoadOptions::for_device(device);
        let files = self.gguf().into_iter().flatten().flat_map(Gguf::files);
        // position embeddings are read into host memory, as f32
        let tensors =
            files.flat_map(|file| file.tensors()).filter(|(name, _)| *name != "v.position_embd.weight");
        let matrices = tensors.map(|(_, info)| info).filter(|info| info.shape.len() > 1);
        let mut plain =
            matrices.filter(|info| DeviceStorage::from(info.ty) == DeviceStorage::Plain).peekable();
        let is_f16 = plain.peek().is_some() && plain.all(|info| info.ty == GgmlType::F16);
        if is_f16 { LoadOptions { dtype: DType::F16, ..usual } } else { usual }
    }

    /// The storage on the device of the matrix with a published name.
    pub fn storage(&self, config: &Config, options: &LoadOptions, published: &str) -> Storage {
        let vision = options.vision_matrices.filter(|_| published.starts_with("model.visual."));
        let options =
            &vision.map_or(*options, |matrices| matrices.apply(LoadOptions { quantize: None, ..*options }));
        if let Some(format) = options.quantize {
            return Storage::Quantized(format);
        }
        let ty = self.gguf().filter(|_| options.keep_quantized).and_then(|[text, vision]| {
            let name = gguf::gguf_name(published, config)?;
            Some([text, vision].into_iter().find_map(|file| file.tensor(&name))?.ty)
        });
        match ty.map_or(DeviceStorage::Plain, DeviceStorage::from) {
            DeviceStorage::Plain => Storage::Float(options.dtype),
            DeviceStorage::AsIs(format) => Storage::Stored(format),
            DeviceStorage::Converted(format) => Storage::Quantized(format),
        }
    }

    /// Bytes that an adapter beside quantised matrices takes: its tensors, and the inputs and outputs of the widest changed matrix
    /// for a pass of a prompt. B of stacked matrices has a column for each one's rank.
    pub fn adapter_bytes(&self, config: &Config, options: &LoadOptions) -> usize {
        let Some((adapter, _)) = &self.adapter else { return 0 };
        let (mut tensors, mut widest) = (0, 0);
        for (module, low) in adapter.maps() {
            let stacked = match module.rsplit('.').next() {
                Some("q_proj" | "k_proj" | "v_proj") => 3,
                Some("gate_proj" | "up_proj") => 2,
                _ => 1,
            };
            let [n, k] = low.shape;
            if !matches!(self.storage(config, options, &format!("{module}.weight")), Storage::Float(_)) {
                tensors += adapter.rank() * (k + n * stacked);
                // the normed input, the change and the product before the activation
                widest = widest.max(k + 2 * n * stacked);
            }
        }
        (tensors + options.tokens_per_pass * widest) * DType::F32.size()
    }

    /// Its tensors, as [`Weights::open`].
    pub(crate) fn weights(&self, config: &Config, dtype: DType, device: &Device) -> Result<Weights> {
        let weights = match &self.files {
            Files::Directory(dir) => Weights::open(dir, config, dtype, device),
            Files::Gguf { text, vision } => {
                let tensors = Tensors::new(Arc::clone(text), Arc::clone(vision), config)?;
                Weights::of_gguf(tensors, dtype, device)
            }
        }?;
        match &self.adapter {
            Some((adapter, dir)) => weights.adapted(Arc::clone(adapter), &dir.join(ADAPTER_TENSORS)),
            None => Ok(weights),
        }
    }
}

/// Whether a path names a GGUF file, existing or not, and no directory.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.is_file() || (!path.is_dir() && path.extension().is_some_and(|extension| extension == "gguf"))
}

/// The text model's GGUF file in a folder, if it has exactly one; the folder itself, if it has none.
fn only_model(folder: &Path) -> Result<PathBuf> {
    let unreadable = |error: std::io::Error| bad(folder, None, error.to_string());
    let mut models = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        let name = file.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        if name.ends_with(".gguf") && !name.contains("mmproj") && !gguf::is_later_part(&file) {
            models.push(file);
        }
    }
    models.sort();
    match &models[..] {
        [] => Ok(folder.to_owned()),
        [only] => Ok(only.clone()),
        several => {
            let names: Vec<_> = several.iter().map(|file| file.display().to_string()).collect();
            Err(bad(folder, None, format!("has {} models; name one: {}", names.len(), names.join(", "))))
        }
    }
}
