//! A model's files: a directory as published, or a GGUF file with the vision file that belongs to it.

use super::adapter::{ADAPTER_TENSORS, Adapter, AdapterBytes};
use super::gguf::{self, DeviceStorage, GgmlType, Gguf};
use super::gguf_model::{Tensors, gguf_name};
use super::json::{self, Fields, MAX_CONFIG, MAX_DIMENSION, bad};
use super::media::PixelLimits;
use super::options::{LoadOptions, Storage};
use super::processor::Processor;
use super::published::matrix;
use super::seam::{Config, Model, Models, VISION, VisionPlace};
use super::spec::LinearSpec;
use super::weights::Weights;
use pascaline::{DType, Device, Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Tensors take multiples of this much device memory.
const ALIGNMENT: usize = 512;

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
#[derive(Debug)]
pub struct Checkpoint {
    models: Models,
    files: Files,
    /// The adapter and its folder.
    adapter: Option<(Arc<Adapter>, PathBuf)>,
    /// The adapters that requests choose among.
    named: Vec<NamedAdapter>,
    /// The limits of pictures that its processor has.
    pixels: PixelLimits,
}

/// An adapter that requests choose by its name.
#[derive(Debug)]
pub(crate) struct NamedAdapter {
    pub name: String,
    pub adapter: Arc<Adapter>,
    /// The file of its tensors.
    pub file: PathBuf,
}

#[derive(Debug)]
enum Files {
    Directory(PathBuf),
    /// Without a vision file if the model is of text alone.
    Gguf {
        text: Arc<Gguf>,
        vision: Option<Arc<Gguf>>,
    },
}

impl Checkpoint {
    /// One of `models`: a directory as published, a GGUF file (the text model's, of a split one the first), or a directory with one such
    /// file. Its vision file (mmproj) is `mmproj`, or if not given the one in the same folder that fits.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and what is wrong in it; also if `path` is a
    /// checkpoint's directory and `mmproj` is given, as that has a vision tower of its own.
    pub fn open(models: Models, path: impl AsRef<Path>, mmproj: Option<&Path>) -> Result<Self> {
        let path = path.as_ref();
        let path = match path.is_dir() && !path.join("config.json").exists() {
            true => &*only_model(path)?,
            false => path,
        };
        if !is_gguf(path) {
            return match mmproj {
                None => Ok(Self {
                    models,
                    files: Files::Directory(path.to_owned()),
                    adapter: None,
                    named: Vec::new(),
                    pixels: PixelLimits::default(),
                }),
                Some(mmproj) => {
                    let reason =
                        "belongs to a GGUF file; the model is a directory with a vision tower of its own";
                    Err(bad(mmproj, None, reason))
                }
            };
        }
        let text = Gguf::open(path)?;
        let vision = match (gguf_model(models, &text)?, mmproj) {
            (_, Some(mmproj)) => Some(Gguf::open(mmproj)?),
            (model, None) => model.vision_file(&text)?,
        };
        let (text, vision) = (Arc::new(text), vision.map(Arc::new));
        Ok(Self {
            models,
            files: Files::Gguf { text, vision },
            adapter: None,
            named: Vec::new(),
            pixels: PixelLimits::default(),
        })
    }

    /// Takes an adapter in PEFT's files (a folder with `adapter_config.json`). It is merged into the matrices while they are
    /// loaded; quantised ones stay as they are, with its change computed beside them.
    ///
    /// # Errors
    /// As [`Adapter::load`].
    pub fn with_adapter(self, dir: &Path) -> Result<Self> {
        Ok(Self { adapter: Some((Arc::new(Adapter::load(dir)?), dir.to_owned())), ..self })
    }

    /// Takes one more adapter, which requests of a [`Batch`](super::batch::Batch) choose by this name. Each is computed beside the
    /// matrices, of whatever type, which all share.
    ///
    /// # Errors
    /// As [`Adapter::load`]; [`Error::Unsupported`] if the name is taken, or if an adapter is
    /// merged.
    pub fn with_named_adapter(mut self, name: &str, dir: &Path) -> Result<Self> {
        let refuse = |reason: &str| {
            let (value, reason) = (name.to_owned(), reason.to_owned());
            Err(Error::Unsupported { op: "load", argument: "adapter", value, reason })
        };
        if self.named.iter().any(|other| other.name == name) {
            return refuse("there are two adapters of this name");
        }
        if self.adapter.is_some() {
            return refuse("another adapter has no name, and would be merged into the matrices of all");
        }
        let adapter = Arc::new(Adapter::load(dir)?);
        self.named.push(NamedAdapter { name: name.to_owned(), adapter, file: dir.join(ADAPTER_TENSORS) });
        Ok(self)
    }

    /// The adapters that requests choose among.
    pub(crate) fn named_adapters(&self) -> &[NamedAdapter] {
        &self.named
    }

    /// Gives its processor other limits of the pixels of pictures than the files have.
    pub fn with_pixel_limits(self, pixels: PixelLimits) -> Self {
        Self { pixels, ..self }
    }

    /// The directory, or the text model's file.
    pub fn path(&self) -> &Path {
        match &self.files {
            Files::Directory(dir) => dir,
            Files::Gguf { text, .. } => text.path(),
        }
    }

    /// The text file and, if the model sees, the vision file, if the model is in GGUF files.
    pub fn gguf(&self) -> Option<(&Gguf, Option<&Gguf>)> {
        match &self.files {
            Files::Directory(_) => None,
            Files::Gguf { text, vision } => Some((text, vision.as_deref())),
        }
    }

    fn gguf_files(&self) -> impl Iterator<Item = &Gguf> {
        self.gguf().into_iter().flat_map(|(text, vision)| [Some(text), vision]).flatten()
    }

    /// The model's configuration.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and the field or key.
    pub fn config(&self) -> Result<Config> {
        match &self.files {
            Files::Directory(dir) => directory_config(self.models, dir),
            Files::Gguf { text, vision } => {
                gguf_model(self.models, text)?.gguf_config(text, vision.as_deref())
            }
        }
    }

    /// Everything that needs no weights.
    ///
    /// # Errors
    /// As [`config`](Self::config).
    pub fn processor(&self) -> Result<Processor> {
        let processor = match &self.files {
            Files::Directory(dir) => Processor::load_directory(dir, self.config()?),
            Files::Gguf { text, vision } => Processor::load_gguf(text, vision.as_deref(), self.config()?),
        };
        Ok(processor?.with_pixel_limits(self.pixels))
    }

    /// Whether matrices are quantised in the text model's file.
    pub fn is_quantized(&self) -> bool {
        let Some((text, _)) = self.gguf() else { return false };
        let mut tensors = text.files().iter().flat_map(|container| container.tensors().values());
        tensors.any(|info| DeviceStorage::from(info.ty).format().is_some())
    }

    /// The options of [`LoadOptions::for_device`]; on the CPU with f16 if a GGUF model has no other floating-point matrices.
    /// They lose nothing, and a token reads half as many bytes as in f32.
    pub fn usual_options(&self, device: &Device) -> LoadOptions {
        let usual = LoadOptions::for_device(device);
        let files = self.gguf_files().flat_map(Gguf::files);
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
        let vision = options.vision_matrices.filter(|_| published.starts_with(VISION));
        let options =
            &vision.map_or(*options, |matrices| matrices.apply(LoadOptions { quantize: None, ..*options }));
        if let Some(format) = options.quantize {
            return Storage::Quantized(format);
        }
        let kept = || {
            let name = gguf_name(published, config)?;
            Some(self.gguf_files().find_map(|file| file.tensor(&name))?.ty)
        };
        let ty = if options.keep_quantized { kept() } else { None };
        match ty.map_or(DeviceStorage::Plain, DeviceStorage::from) {
            DeviceStorage::Plain => Storage::Float(options.dtype),
            DeviceStorage::AsIs(format) => Storage::Stored(format),
            DeviceStorage::Converted(format) => Storage::Quantized(format),
        }
    }

    /// Bytes that adapters beside matrices take. B of stacked matrices has a column for each changed one's rank. An adapter without a name is
    /// merged into matrices that are not quantised.
    pub fn adapter_bytes(&self, config: &Config, options: &LoadOptions) -> AdapterBytes {
        let mut found = AdapterBytes::default();
        let merged = self.adapter.iter().map(|(adapter, _)| (&**adapter, true));
        let all: Vec<_> = merged.chain(self.named.iter().map(|named| (&*named.adapter, false))).collect();
        if all.is_empty() {
            return found;
        }
        let mut widest = 0;
        // of matrices [rows, columns] that are stacked, of which an adapter changes `count`
        let mut bytes = |adapter: &Adapter, count: usize, rows: usize, columns: usize| {
            if count == 0 {
                return 0;
            }
            let rank = adapter.rank() * count;
            // the normed input, its product with A, the change and the product before the activation
            widest = widest.max(columns + rank + 2 * rows);
            [rank * columns, rank * rows]
                .map(|len| (len * DType::F32.size()).next_multiple_of(ALIGNMENT))
                .iter()
                .sum()
        };
        let is_beside = |(adapter, merges): (&Adapter, bool), module: &str| {
            let name = format!("{module}.weight");
            adapter.changes(&name)
                && !(merges && matches!(self.storage(config, options, &name), Storage::Float(_)))
        };
        for layer in 0..config.text.num_hidden_layers {
            let block = config.block(layer);
            let mlp = block.mlp.dense().map(|mlp| [&mlp.fc1, &mlp.fc2]);
            let maps =
                [&block.attention.qkv, &block.attention.out].into_iter().chain(mlp.into_iter().flatten());
            let mut own = 0;
            for (LinearSpec { parts, columns, .. }, &adapter) in
                maps.flat_map(|map| all.iter().map(move |one| (map, one)))
            {
                let count = parts.iter().filter(|(module, _)| is_beside(adapter, module)).count();
                own += bytes(adapter.0, count, parts.iter().map(|(_, rows)| rows).sum(), *columns);
            }
            found.layers.push(own);
        }
        let prefix = config.layer_prefix(0);
        let layers = prefix.strip_suffix("0.").unwrap_or(&prefix);
        for &adapter in &all {
            for (module, low) in adapter.0.maps() {
                if module.starts_with(layers) || !is_beside(adapter, module) {
                    continue;
                }
                let to = if module.starts_with(VISION) { &mut found.vision } else { &mut found.ends };
                *to += bytes(adapter.0, 1, low.shape[0], low.shape[1]);
            }
        }
        found.pass = options.tokens_per_pass * widest * DType::F32.size();
        if options.vision == VisionPlace::Streamed {
            let towers = self.named.iter().filter(|named| named.adapter.changes_below(VISION)).count();
            found.vision += towers * self.passing_tower(config, options);
        }
        found
    }

    /// The most bytes that a tower of its own takes on the device whose blocks pass through it: two blocks, and what is in none,
    /// without the table and the mergers, which are in host memory.
    fn passing_tower(&self, config: &Config, options: &LoadOptions) -> usize {
        let (mut blocks, mut others) = (HashMap::<String, usize>::new(), 0);
        let tensors = config.vision.as_ref().map_or_else(BTreeMap::new, |vision| vision.tensors());
        let is_host = |name: &str| name.contains("merger") || name.contains("pos_embed");
        for (name, shape) in tensors.into_iter().filter(|(name, _)| !is_host(name)) {
            let storage = match shape.len() {
                1 => Storage::Float(DType::F32),
                _ => self.storage(config, options, &name),
            };
            // sizes that overflow are an error of the plan itself
            let bytes = storage.bytes(matrix(&shape)).unwrap_or(0).next_multiple_of(ALIGNMENT);
            let block = name.split_once(".blocks.").and_then(|(_, rest)| rest.split_once('.'));
            let of = block.map_or(&mut others, |(number, _)| blocks.entry(number.to_owned()).or_default());
            *of = of.saturating_add(bytes);
        }
        others.saturating_add(2 * blocks.into_values().max().unwrap_or(0))
    }

    /// Its tensors, as [`Weights::open`].
    pub(crate) fn weights(&self, config: &Config, dtype: DType, device: &Device) -> Result<Weights> {
        let weights = match &self.files {
            Files::Directory(dir) => Weights::open(dir, config, dtype, device),
            Files::Gguf { text, vision } => {
                let tensors = Tensors::new(Arc::clone(text), vision.clone(), config)?;
                Weights::of_gguf(tensors, dtype, device)
            }
        }?;
        match &self.adapter {
            Some((adapter, dir)) => weights.adapted(Arc::clone(adapter), &dir.join(ADAPTER_TENSORS)),
            None => Ok(weights),
        }
    }
}

/// The configuration of the model in a directory as published.
///
/// # Errors
/// [`Error::Checkpoint`] with file and field; for a model that is none of `models` with the list.
pub fn directory_config(models: Models, dir: &Path) -> Result<Config> {
    let file = dir.join("config.json");
    config(models, &file, &json::read_bytes(&file, MAX_CONFIG)?)
}

/// As [`directory_config`], of the bytes of a `config.json`; errors call it `file`.
///
/// # Errors
/// As [`directory_config`].
pub fn config(models: Models, file: &Path, bytes: &[u8]) -> Result<Config> {
    let map = json::parse_object(file, bytes)?;
    let top = Fields::new(file, "", &map);
    let found = top.str("model_type")?;
    match models.iter().find(|model| Some(model.model_type()) == found) {
        Some(model) => Ok(Config { fp8_block: fp8_block(top)?, ..model.config(top)? }),
        None => {
            let known: Vec<_> = models.iter().map(|model| format!("\"{}\"", model.model_type())).collect();
            let reason = format!("{} is not {}", found.unwrap_or("nothing"), known.join(" or "));
            Err(top.bad("model_type", reason))
        }
    }
}

/// The blocks of FP8 matrices that have a scale each, if `config.json` tells of such.
fn fp8_block(top: Fields) -> Result<Option<[usize; 2]>> {
    let Some(fields) = top.object("quantization_config", "quantization_config.")? else { return Ok(None) };
    for (name, supported) in [("quant_method", "fp8"), ("fmt", "e4m3")] {
        match fields.str(name)? {
            Some(found) if found != supported => {
                return Err(fields.bad(name, format!("\"{found}\" is not supported, only \"{supported}\"")));
            }
            None if name == "quant_method" => return Err(fields.bad(name, "missing")),
            _ => {}
        }
    }
    let block = fields.required("weight_block_size", fields.sizes("weight_block_size")?)?;
    match block[..] {
        [rows, columns] if [rows, columns].iter().all(|size| (1..=MAX_DIMENSION as usize).contains(size)) => {
            Ok(Some([rows, columns]))
        }
        _ => Err(fields.bad("weight_block_size", format!("{block:?} are not rows and columns of a block"))),
    }
}

/// The model of a text file.
fn gguf_model(models: Models, text: &Gguf) -> Result<&'static dyn Model> {
    let (metadata, key) = (text.metadata(), "general.architecture");
    let found = metadata.required(key, metadata.str(key)?)?;
    models.iter().copied().find(|model| model.architecture() == found).ok_or_else(|| {
        let known: Vec<_> = models.iter().map(|model| format!("\"{}\"", model.architecture())).collect();
        metadata.bad(key, format!("\"{found}\" is not supported, only {}", known.join(" and ")))
    })
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
