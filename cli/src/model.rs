//! The arguments of commands that load a model: which one, and how.

use super::device::DeviceArg;
use super::devices::{DevicesArgs, Replicas};
use super::experts::ExpertArgs;
use super::failure::Failure;
use super::files::note_input;
use super::fit;
use super::hub;
use super::image_tokens::{ImageTokens, image_tokens, shrunk};
use super::output::Output;
use super::sizes::bytes;
use super::speed;
use super::types::{VisionScoresArg, cache_formats, weight_types};
use indicatif::{ProgressBar, ProgressStyle};
use pascaline::kv::KvFormat;
use pascaline::nn::AllReduce;
use pascaline::quant;
use pascaline::{Device, Error, memory};
use qwen3_vl::batch::{BatchOptions, PAGE};
use qwen3_vl::config::Config;
use qwen3_vl::embed::PIXELS;
use qwen3_vl::estimate::{Estimate, Peaks, estimate};
use qwen3_vl::files::open_regular;
use qwen3_vl::fit::{Asked, Choice};
use qwen3_vl::footprint::{Gpu, Workload};
use qwen3_vl::media::PixelLimits;
use qwen3_vl::sparse::SoftmaxShare;
use qwen3_vl::split::{Split, Target};
use qwen3_vl::weights::{Conversion, Progress};
use qwen3_vl::{
    Checkpoint, ExpertPlacement, LanguageModel, LoadOptions, Matrices, Processor, Prompt, SplitMode,
    VisionPlace, Visual,
};
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args, Clone)]
pub(super) struct ModelArgs {
    /// The model. A directory with config.json, safetensors and tokenizer.json, as published; a GGUF file (the first of a
    /// split model), or a directory with one; or a name on the Hugging Face hub, OWNER/NAME or OWNER/NAME:TYPE for GGUF
    /// files, which is fetched as by `pull` unless it is in the cache; or a short name of the published family, such as 2b,
    /// 8b:q4_k_m or 4b-thinking.
    #[arg(long, short, value_name = "MODEL")]
    pub model: PathBuf,

    #[command(flatten)]
    device: DeviceArg,

    #[command(flatten)]
    load: LoadArgs,

    /// The models that may be loaded at the same time, each within --memory-limit.
    #[arg(skip = 1usize)]
    places: usize,
}

/// How a model is loaded.
#[derive(clap::Args, Clone, Default, PartialEq)]
pub(super) struct LoadArgs {
    /// The vision file of a GGUF model; if not given, the one in the same folder that fits.
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,

    /// An adapter: a folder with adapter_config.json, as `finetune` and PEFT write it. It is merged into weights in f32 and f16
    /// while they are loaded, and computed beside quantised ones, which stay as they are. `serve` takes several as NAME=DIR: then
    /// requests choose one by its name, and each is computed beside the weights, which all share.
    #[arg(long, value_name = "[NAME=]DIR", value_parser = adapter)]
    pub adapter: Vec<AdapterArg>,

    #[command(flatten)]
    pub several: DevicesArgs,

    /// The type of matrices. If not given, f16 on a GPU and f32 on the CPU, and matrices that are quantised in a GGUF file
    /// stay quantised. f32 and f16 compute in f32. The other types are quantised while the model loads and multiplied by
    /// dp4a; q4_k, iq4_nl and iq4_xs have a smaller error than q4_0.
    #[arg(long, value_name = "TYPE", value_parser = weight_types(), ignore_case = true)]
    pub dtype: Option<Matrices>,

    /// The type of keys and values in the cache; f32 if not given. 16-bit floats take half the memory: f16, bf16, and those
    /// that `float16` measures, by their exponent bits. q8_0 takes 8.5 bits per value.
    #[arg(long, value_name = "TYPE", value_parser = cache_formats(), ignore_case = true)]
    pub cache: Option<KvFormat>,

    /// The number of decoder layers whose weights stay on the GPU, all of them if it is as many or more; if not given, as many as fit. The weights of the layers
    /// after them stay in pinned host memory and are copied to the GPU while the layer before computes. The tokens are the
    /// same. Each token takes at least the time of that copy, and its kernels are launched one by one.
    #[arg(long, value_name = "N", alias = "n-gpu-layers")]
    pub gpu_layers: Option<usize>,

    #[command(flatten)]
    pub experts: ExpertArgs,

    /// Where the vision tower is; if not given, on the GPU if it fits.
    #[arg(long, value_name = "PLACE")]
    pub vision_device: Option<VisionDevice>,

    /// The type of the vision tower's matrices; if not given, that of the others. q8_0 encodes pictures with 8-bit
    /// products.
    #[arg(long, value_name = "TYPE", value_parser = weight_types(), ignore_case = true)]
    pub vision_dtype: Option<Matrices>,

    /// How the vision tower multiplies queries and keys. In 8-bit integers large pictures take less time, and the results differ.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub vision_scores: VisionScoresArg,

    /// The fewest and the most tokens of a picture, MIN,MAX, or the most alone. Pictures are resized to it as the checkpoint's
    /// preprocessing resizes to its own limits. If not given, the most is 1280, or more on a device that has room and speed for it.
    #[arg(long, value_name = "MIN,MAX", value_parser = image_tokens)]
    pub image_tokens: Option<ImageTokens>,

    /// The most prompt tokens in one pass. A lower number bounds the memory of a long prompt; a higher one keeps a GPU
    /// busy.
    #[arg(long, value_name = "N", alias = "ubatch-size", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens_per_pass: Option<u32>,

    /// The share of each softmax that prompts read from 4,096 tokens on, as 0.95, or `off`. Each head then reads the tiles of keys that have
    /// this share of the softmax of sampled queries, and in any case the first tile, neighbours, and the picture that a token is in. That is
    /// sooner where few keys weigh most, and answers may differ.
    #[arg(long, value_name = "off|SHARE", value_parser = sparse_prefill, default_value = "off")]
    pub sparse_prefill: SparsePrefill,

    /// The most memory to use on the GPU (on each GPU), without the driver's context, in bytes or with K, M or G; if not
    /// given, all that is free. Options that are not given are chosen so that the model fits.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub memory_limit: Option<usize>,
}

/// `--sparse-prefill`
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SparsePrefill(pub Option<SoftmaxShare>);

fn sparse_prefill(text: &str) -> Result<SparsePrefill, String> {
    let share = if text == "off" { Ok(None) } else { text.parse().map(Some) };
    share.map(SparsePrefill).map_err(|error: String| format!("{error}; or off"))
}

/// `--adapter`
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AdapterArg {
    /// By which requests choose it.
    pub name: Option<String>,
    pub dir: PathBuf,
}

fn adapter(text: &str) -> Result<AdapterArg, String> {
    let unnamed = || AdapterArg { name: None, dir: text.into() };
    let Some((name, dir)) = text.split_once('=').filter(|_| !Path::new(text).exists()) else {
        return Ok(unnamed());
    };
    if name.contains(['/', '\\']) {
        return Ok(unnamed()); // a path with = in it
    }
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match !name.is_empty() && name.bytes().all(is_plain) && !dir.is_empty() {
        true => Ok(AdapterArg { name: Some(name.to_owned()), dir: dir.into() }),
        false => {
            Err("it must be DIR or NAME=DIR, and a name has letters, digits, '.', '_' and '-'".to_owned())
        }
    }
}

/// `--vision-device`
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub enum VisionDevice {
    /// Its weights are on the GPU.
    Gpu,
    /// Its weights are in pinned host memory and are streamed through the GPU while a picture is encoded; the answers are
    /// the same.
    Stream,
    /// The CPU encodes pictures.
    Cpu,
}

impl VisionDevice {
    fn place(self) -> VisionPlace {
        match self {
            Self::Gpu => VisionPlace::Resident,
            Self::Stream => VisionPlace::Streamed,
            Self::Cpu => VisionPlace::Cpu,
        }
    }
}

/// As [`ModelArgs::check`].
pub(super) fn check_model(model: &Path) -> Result<(), Failure> {
    note_input(model);
    let is_gguf = || {
        let is_named_so = model.extension().is_some_and(|extension| extension == "gguf");
        model.is_file() && (is_named_so || begins_as_gguf(model))
    };
    let has_gguf = || {
        let mut names =
            std::fs::read_dir(model).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.any(|name| Path::new(&name).extension().is_some_and(|extension| extension == "gguf"))
    };
    // loading reports errors inside the files
    if is_gguf() || has_gguf() { Ok(()) } else { check_directory(model) }
}

fn begins_as_gguf(file: &Path) -> bool {
    let mut beginning = [0; 4];
    let read = open_regular(file).and_then(|mut file| file.read_exact(&mut beginning));
    read.is_ok() && beginning == *b"GGUF"
}

/// Refuses a path that can't be a checkpoint's directory, and says how to get one.
pub(super) fn check_directory(dir: &Path) -> Result<(), Failure> {
    note_input(dir);
    let name = dir.display();
    let problem = if !dir.exists() {
        "there is no such directory or file"
    } else if begins_as_gguf(dir) {
        return Err(Failure::Failed(format!(
            "{name}: that is a GGUF file; a checkpoint as published is needed here, a directory with config.json and safetensors"
        )));
    } else if !dir.is_dir() {
        "that is no directory, and no GGUF file"
    } else if !dir.join("config.json").exists() {
        "there is no config.json in it, so it is no checkpoint"
    } else {
        return Ok(());
    };
    // suggests the published model of that name, if the name looks like one
    let last = dir.file_name().and_then(|last| last.to_str()).filter(|last| last.starts_with("Qwen3-VL-"));
    let model = last.unwrap_or("Qwen3-VL-2B-Instruct");
    Err(Failure::Failed(format!(
        "{name}: {problem}; `--model Qwen/{model}` fetches one from the Hugging Face hub"
    )))
}

impl ModelArgs {
    pub fn new(model: PathBuf, device: DeviceArg, load: LoadArgs) -> Self {
        Self { model, device, load, places: 1 }
    }

    /// One of so many models that may be loaded at the same time.
    pub fn one_of(self, places: usize) -> Self {
        Self { places, ..self }
    }

    /// Refuses a path that can't be a model, and says how to get one.
    pub fn check(&self) -> Result<(), Failure> {
        match &self.load.adapter[..] {
            [] | [AdapterArg { name: None, .. }] => {}
            _ => {
                let reason =
                    "takes one --adapter DIR; `serve` takes several as NAME=DIR, for requests to choose from";
                return Err(Failure::Usage(format!("this command {reason}")));
            }
        }
        self.check_to_serve()
    }

    /// As [`check`](Self::check), for a command that takes adapters by their names.
    pub fn check_to_serve(&self) -> Result<(), Failure> {
        let adapters = &self.load.adapter;
        if adapters.len() > 1 && adapters.iter().any(|adapter| adapter.name.is_none()) {
            let reason = "several adapters need names, by which requests choose them: --adapter NAME=DIR";
            return Err(Failure::Usage(reason.to_owned()));
        }
        let dirs = self.load.adapter.iter().map(|adapter| &adapter.dir);
        self.load.mmproj.iter().chain(dirs).for_each(|input| note_input(input));
        match hub::named(&self.model) {
            Some(_) => Ok(()), // only the hub knows whether it exists
            None => check_model(&self.model),
        }
    }

    /// The device, checked against the other options; if `auto` chose it, prints why.
    pub fn device(&self, output: &Output) -> Result<Device, Failure> {
        let (device, reason) = self.first_device()?;
        if let Some(reason) = reason {
            output.note(&format!("on {device}, because {reason}"));
        }
        Ok(device)
    }

    /// The device, or the first of several, checked against the other options; and why, if `auto` chose it.
    pub fn first_device(&self) -> Result<(Device, Option<String>), Failure> {
        let (device, reason) = match self.load.several.open(&self.device)? {
            Some(devices) => (devices[0].clone(), None),
            None => self.device.open()?,
        };
        self.check_device(&device)?;
        Ok((device, reason))
    }

    /// Refuses options that need a GPU on the CPU.
    pub fn check_device(&self, device: &Device) -> Result<(), Failure> {
        let (several, gpu_layers) = (self.load.several.are_given(), self.load.gpu_layers.is_some());
        self.load.experts.check(device.is_cuda(), several, gpu_layers)?;
        match (self.load.gpu_layers, self.load.vision_device) {
            (Some(_), _) if self.load.several.are_given() => Err(Failure::Usage(
                "--gpu-layers streams layers through one GPU; with --devices they are spread over several"
                    .to_owned(),
            )),
            (Some(layers), _) if !device.is_cuda() => Err(Failure::Usage(format!(
                "--gpu-layers {layers} is for a GPU; on the CPU all weights are in host memory"
            ))),
            (_, Some(VisionDevice::Gpu | VisionDevice::Stream)) if !device.is_cuda() => {
                Err(Failure::Usage("--vision-device asks for a GPU, and the model is on the CPU".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// An error of the model, with the options that help.
    pub fn explain(&self, error: &Error) -> String {
        let Error::OutOfMemory { .. } = error else { return error.to_string() };
        let mut smaller = Vec::new();
        if !matches!(self.load.dtype, Some(Matrices::Quantized(format)) if quant::bits(format) <= 4) {
            smaller.push("`--dtype q4_k` (matrices)");
        }
        if self.load.cache != Some(KvFormat::Q8_0) {
            smaller.push("`--cache q8_0` (keys and values)");
        }
        if self.load.vision_device.is_none_or(|place| place == VisionDevice::Gpu) {
            smaller.push("`--vision-device stream` (the vision tower stays in host memory)");
        }
        if self.load.gpu_layers != Some(0) {
            smaller.push("`--gpu-layers N` (the other layers stay in host memory)");
        }
        match smaller.is_empty() {
            true => error.to_string(),
            false => format!("{error}; less is needed with {}", smaller.join(", ")),
        }
    }

    /// As [`explain`](Self::explain), as the end of a command.
    pub fn failure(&self, error: Error) -> Failure {
        match error {
            Error::OutOfMemory { .. } => Failure::Failed(self.explain(&error)),
            _ => error.into(),
        }
    }

    /// The options if none are given.
    fn usual(&self, opened: &Opened, device: &Device) -> LoadOptions {
        let usual = opened.checkpoint.usual_options(device);
        let tokens_per_pass =
            self.load.tokens_per_pass.map_or(usual.tokens_per_pass, |tokens| tokens as usize);
        let (sparse_prefill, vision_scores) = (self.load.sparse_prefill.0, self.load.vision_scores.scores());
        LoadOptions { tokens_per_pass, sparse_prefill, vision_scores, ..usual }
    }

    /// The options that were given; `None` for the others.
    fn asked(&self, config: &Config) -> Asked {
        Asked {
            matrices: self.load.dtype,
            cache: self.load.cache,
            gpu_layers: self.load.gpu_layers.map(|layers| layers.min(config.text.num_hidden_layers)),
            experts: self.load.experts.asked(),
            expert_cache: self.load.experts.expert_cache,
            vision: self.load.vision_device.map(VisionDevice::place),
            vision_matrices: self.load.vision_dtype,
        }
    }

    /// The model's files, fetched if necessary, to be loaded onto `device`, which the most tokens of a picture are chosen for.
    pub fn open(&self, device: &Device, output: &Output) -> Result<Opened, Failure> {
        let path = hub::locate(&self.model, output)?;
        note_input(&path);
        let since = Instant::now();
        let checkpoint = Checkpoint::open(&path, self.load.mmproj.as_deref())?;
        let with = |checkpoint: Checkpoint, AdapterArg { name, dir }: &AdapterArg| match name {
            Some(name) => checkpoint.with_named_adapter(name, dir),
            None => checkpoint.with_adapter(dir),
        };
        let checkpoint = self.load.adapter.iter().try_fold(checkpoint, with)?;
        let config = checkpoint.config()?;
        self.load.experts.check_model(&config)?;
        let image_tokens = match (self.load.image_tokens, device) {
            (Some(given), _) => given,
            (None, Device::Cuda(cuda)) => {
                let (free, _) = cuda.memory_info()?;
                let limit = self.load.memory_limit.map_or(free, |limit| limit.min(free));
                ImageTokens::usual(&config, Some((&fit::peaks(cuda.properties()), limit)))
            }
            (None, _) => ImageTokens::usual(&config, None),
        };
        let checkpoint = checkpoint.with_pixel_limits(image_tokens.limits(&config));
        Ok(Opened { checkpoint, config, image_tokens, since })
    }

    /// Decides the load options: those that were given, and the others so that the model fits the GPU, which is printed.
    /// The tokenizer is only loaded if the work must be known exactly.
    fn options(
        &self,
        opened: &Opened,
        device: &Device,
        work: &Work,
        asked: &Asked,
        output: &Output,
    ) -> Result<Decision, Failure> {
        let usual = self.usual(opened, device);
        let Device::Cuda(cuda) = device else {
            return match self.load.memory_limit {
                None => {
                    Ok(Decision { options: asked.apply(usual), processor: None, before: None, work: None })
                }
                Some(_) => Err(Failure::Usage("--memory-limit is for a GPU".to_owned())),
            };
        };
        let gpu = Gpu::from_device(cuda);
        let (free, total) = cuda.memory_info()?;
        let limit = self.load.memory_limit.map_or(free, |limit| limit.min(free));
        let peaks = fit::peaks(cuda.properties());
        let asked = &opened.planned(|model| fit::with_experts(&model, usual, asked, &peaks))?;
        let fit = |work: &Workload| opened.planned(|model| model.fit(usual, asked, work, &gpu, limit));
        let say = |choice: &Choice, work: &Workload| {
            let is_gguf = opened.checkpoint.gguf().is_some();
            output.note(&fit::describe(choice, work, is_gguf, limit));
        };
        let decided = |choice: &Choice, processor, work: &Workload| -> Result<Decision, Failure> {
            let options = choice.options;
            let room = limit.saturating_sub(gpu.beside(&options, opened.config.text.num_hidden_layers));
            if self.load.memory_limit.is_some() {
                memory::set_limit(cuda, room.saturating_mul(self.places))?;
            } else if options != asked.apply(usual) {
                memory::set_limit(cuda, memory::pool(cuda)?.statistics().reserved + room)?; // other models have memory, too
            }
            Ok(Decision { options, processor, before: Some(total - free), work: Some(*work) })
        };
        if let Some(most) = &work.most
            && let Ok(choice) = fit(most)
            && choice.options == asked.apply(usual)
        {
            say(&choice, most);
            return decided(&choice, None, most);
        }
        let processor = opened.checkpoint.processor()?;
        let mut refusal = None;
        for work in (work.exactly)(&processor)? {
            match fit(&work) {
                Ok(choice) => {
                    say(&choice, &work);
                    return decided(&choice, Some(processor), &work);
                }
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.map_or(Failure::Wrong, |error| self.too_large(error)))
    }

    /// The error of a plan that does not fit, with a suggestion.
    fn too_large(&self, error: Error) -> Failure {
        let Error::Unsupported { op: "fit", value, reason, .. } = error else { return error.into() };
        let asked = [
            (self.load.dtype.is_some(), "--dtype"),
            (self.load.vision_dtype.is_some(), "--vision-dtype"),
            (self.load.cache.is_some(), "--cache"),
            (self.load.vision_device.is_some(), "--vision-device"),
            (self.load.gpu_layers.is_some(), "--gpu-layers"),
            (self.load.experts.is_given(), "--experts and --expert-cache"),
        ];
        let asked: Vec<_> =
            asked.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, name)| name).collect();
        let way = match asked.is_empty() {
            true => "a smaller --max-new-tokens or picture needs less, and `--device cpu` none".to_owned(),
            false => format!("leave out {}, so that what fits is chosen", asked.join(" and ")),
        };
        Failure::Failed(format!("the model does not fit {value}: {reason}; {way}"))
    }

    /// Plans how requests of up to `context` tokens share the memory that a loaded model leaves: up to `most` at a time,
    /// fewer and with fewer cached pictures if that does not fit.
    pub fn batch(
        &self,
        opened: &Opened,
        device: &Device,
        loaded: &Loaded,
        context: usize,
        most: usize,
    ) -> Result<BatchOptions, Failure> {
        let options = |sequences: usize, image_bytes| {
            let room = BatchOptions::with_room(context.saturating_mul(sequences));
            let pages = room.pages.min(loaded.model.most_pages());
            BatchOptions { pages, max_sequences: sequences, image_bytes, ..room }
        };
        let Device::Cuda(cuda) = device else {
            let all = options(most, 256 << 20);
            // untouched pages of host memory take no space
            return Ok(BatchOptions {
                pages: all.pages.min((CPU_TOKENS.max(context)).div_ceil(PAGE)),
                ..all
            });
        };
        let (_, total) = cuda.memory_info()?;
        let free = total - loaded.context_bytes.unwrap_or(0).min(total);
        let limit = self.load.memory_limit.map_or(free, |limit| limit.min(free));
        let patches = loaded.work.map_or(0, |work| work.patches);
        let work = Workload { context, prompt: context, patches };
        let fitting = |batch| {
            opened.planned(|model| match &loaded.placed {
                Some(Placed { split, targets, .. }) => model.fit_split_pages(split, &work, batch, targets),
                None => model
                    .fit_pages(&loaded.options, &work, batch, &Gpu::from_device(cuda), limit)
                    .map(|found| found.0),
            })
        };
        let mut refusal = None;
        for (share, image_bytes) in [(1, 256 << 20), (1, 64 << 20), (2, 16 << 20), (4, 0), (most, 0)] {
            match fitting(options(most.div_ceil(share), image_bytes)) {
                Ok(batch) => return Ok(batch),
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.map_or(Failure::Wrong, |error| self.too_large(error)))
    }

    /// Loads the model for this work, with a progress bar on a terminal.
    pub fn load(
        &self,
        opened: &Opened,
        device: &Device,
        work: &Work,
        output: &Output,
    ) -> Result<Loaded, Failure> {
        if self.load.several.are_given() {
            return self.load_split(opened, device, work, output);
        }
        let decision = self.options(opened, device, work, &self.asked(&opened.config), output)?;
        self.load_as(decision, opened, device, output)
    }

    /// The GPUs of `--replicas`.
    pub fn devices_of_replicas(&self, count: Replicas) -> Result<Vec<Device>, Failure> {
        self.load.several.replicas(count, &self.device)
    }

    /// Loads the whole model onto each of these GPUs, one after another, so that its files are read from the disk once if
    /// host memory can cache them. All replicas have the types that fit the first GPU, and so give the same answers. With
    /// `where_it_fits`, a GPU that the model does not fit on is left out, and this is printed.
    pub fn load_replicas(
        &self,
        opened: &Opened,
        devices: Vec<Device>,
        where_it_fits: bool,
        work: &Work,
        output: &Output,
    ) -> Result<Vec<(Device, Loaded)>, Failure> {
        let mut asked = self.asked(&opened.config);
        let mut replicas: Vec<(Device, Loaded)> = Vec::new();
        let mut refusal = None;
        for device in devices {
            let decision = self.options(opened, &device, work, &asked, output).and_then(|decision| {
                let is_asked = asked.experts.is_some() || asked.expert_cache.is_some();
                match (decision.options.gpu_layers, asked.gpu_layers, where_it_fits) {
                    _ if where_it_fits && !is_asked && decision.options.experts != ExpertPlacement::Gpu => {
                        let reason = "the model's experts do not all fit";
                        Err(Failure::Failed(format!("{reason}; --replicas N takes such a GPU too")))
                    }
                    (Some(layers), None, true) => {
                        let reason = format!("only {layers} of the model's layers fit");
                        Err(Failure::Failed(format!("{reason}; --replicas N takes such a GPU too")))
                    }
                    _ => Ok(decision),
                }
            });
            let decision = match (decision, where_it_fits) {
                (Err(Failure::Failed(reason)), true) => {
                    output.note(&format!("no replica on {device}: {reason}"));
                    refusal = Some(Failure::Failed(reason));
                    continue;
                }
                (decision, _) => decision?,
            };
            let LoadOptions { dtype, quantize, cache, .. } = decision.options;
            asked.cache = Some(cache);
            asked.matrices = match quantize {
                Some(format) => Some(Matrices::Quantized(format)),
                None if opened.checkpoint.is_quantized() => asked.matrices, // there is no alternative
                None => Some(Matrices::Float(dtype)),
            };
            let loaded = self.load_as(decision, opened, &device, output)?;
            replicas.push((device, loaded));
        }
        match (replicas.is_empty(), refusal) {
            (true, Some(refusal)) => Err(refusal),
            _ => Ok(replicas),
        }
    }

    /// Loads the model onto one device.
    fn load_as(
        &self,
        decision: Decision,
        opened: &Opened,
        device: &Device,
        output: &Output,
    ) -> Result<Loaded, Failure> {
        let Decision { options, processor, before, work } = decision;
        let loaded = with_bar(output, |progress| match processor {
            None => LanguageModel::load_checkpoint(&opened.checkpoint, device, options, progress),
            Some(processor) => {
                LanguageModel::load_prepared(&opened.checkpoint, processor, device, options, progress)
            }
        });
        self.loaded(opened, loaded, options, output, |loaded| Loaded {
            context_bytes: before,
            work,
            ..loaded
        })
    }

    /// As [`load`](Self::load), over several GPUs, of which `first` is the first.
    fn load_split(
        &self,
        opened: &Opened,
        first: &Device,
        work: &Work,
        output: &Output,
    ) -> Result<Loaded, Failure> {
        let mut devices = self.load.several.open(&self.device)?.unwrap_or_default();
        devices[0] = first.clone(); // keeps the stream that others already use
        let mut targets = Vec::new();
        let mut before = 0;
        let beside = match self.load.several.mode() {
            SplitMode::Row => AllReduce::bytes_beside(&devices, self.load.several.way())?,
            SplitMode::Layer => 0,
        };
        for device in &devices {
            let Device::Cuda(cuda) = device else { continue };
            let (mut gpu, (free, total)) = (Gpu::from_device(cuda), cuda.memory_info()?);
            gpu.beside_pool += beside;
            let limit = self.load.memory_limit.map_or(free, |limit| limit.min(free));
            if self.load.memory_limit.is_some() {
                memory::set_limit(cuda, limit.saturating_sub(gpu.beside_pool).saturating_mul(self.places))?;
            }
            targets.push(Target { gpu, limit, speed: fit::memory_speed(cuda.properties()) });
            before += total - free;
        }
        let (usual, asked, ratio) =
            (self.usual(opened, first), self.asked(&opened.config), self.load.several.ratio());
        if ratio.is_none() && self.load.several.mode() == SplitMode::Layer {
            let gpus: Vec<_> = devices.iter().filter_map(Device::as_cuda).collect();
            let (speeds, note) = speed::speeds(&gpus)?;
            targets.iter_mut().zip(speeds).for_each(|(target, speed)| target.speed = speed);
            note.iter().for_each(|note| output.note(note));
        }
        let processor = opened.checkpoint.processor()?;
        let mut found = Err(Failure::Wrong);
        for work in (work.exactly)(&processor)? {
            let split = opened.planned(|model| match self.load.several.mode() {
                SplitMode::Layer => model.fit_split(usual, &asked, &work, &targets, ratio),
                SplitMode::Row => model.fit_rows(usual, &asked, &work, &targets),
            });
            found = split.map(|split| (split, work)).map_err(|error| self.too_large(error));
            if found.is_ok() {
                break;
            }
        }
        let (split, work) = found?;
        let is_gguf = opened.checkpoint.gguf().is_some();
        output.note(&fit::describe_split(&split, &devices, &targets, &work, is_gguf));
        let placement = self.load.several.place(&devices, &split.layers, split.vision)?;
        let options = split.options;
        let loaded = with_bar(output, |progress| {
            LanguageModel::load_placed(&opened.checkpoint, Some(processor), &placement, options, progress)
        });
        let placed = Some(Placed { split, targets, devices });
        self.loaded(opened, loaded, options, output, |loaded| Loaded {
            context_bytes: Some(before),
            work: Some(work),
            placed,
            ..loaded
        })
    }

    /// A model for `embed` and `rerank` and its device, with the limits of pictures that the published ones were trained for.
    pub fn load_for_items(&self, output: &Output) -> Result<(LanguageModel, Device), Failure> {
        let device = self.device(output)?;
        let opened = self.open(&device, output)?.or_pixels(PIXELS);
        let works = fit::embeddings(&opened.config, opened.image_tokens.max);
        let work = Work { most: works.first().copied(), exactly: &|_| Ok(works.clone()) };
        let loaded = self.load(&opened, &device, &work, output)?;
        Ok((loaded.model, device))
    }

    fn loaded(
        &self,
        opened: &Opened,
        loaded: pascaline::Result<LanguageModel>,
        options: LoadOptions,
        output: &Output,
        with: impl FnOnce(Loaded) -> Loaded,
    ) -> Result<Loaded, Failure> {
        let model = loaded.map_err(|error| self.failure(error))?;
        let seconds = opened.since.elapsed().as_secs_f64();
        if let Some(note) = conversions(&model) {
            output.note(&note);
        }
        Ok(with(Loaded { model, seconds, options, context_bytes: None, work: None, placed: None }))
    }
}

/// Loads with a progress bar on a terminal.
fn with_bar<R>(output: &Output, load: impl FnOnce(&mut dyn FnMut(Progress)) -> R) -> R {
    let bar = match io::stderr().is_terminal() && !output.is_quiet() {
        true => ProgressBar::new(0),
        false => ProgressBar::hidden(),
    };
    if let Ok(style) = ProgressStyle::with_template("  {bar:24} {pos}/{len} tensors  {elapsed}") {
        bar.set_style(style.progress_chars("━━╌"));
    }
    let mut progress = |progress: Progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.loaded as u64);
    };
    let loaded = load(&mut progress);
    bar.finish_and_clear();
    loaded
}

/// On the CPU: tokens of keys and values for all requests together, unless one request needs more.
const CPU_TOKENS: usize = 32 << 10;

/// Load options, and the facts found out for them.
struct Decision {
    options: LoadOptions,
    processor: Option<Processor>,
    /// Bytes in use before loading.
    before: Option<usize>,
    /// The work that fits, on a GPU.
    work: Option<Workload>,
}

/// A model on its device.
pub(super) struct Loaded {
    pub model: LanguageModel,
    /// Seconds of loading.
    pub seconds: f64,
    options: LoadOptions,
    /// Bytes in use on the GPU before loading.
    pub context_bytes: Option<usize>,
    /// The work that it has room for, on a GPU.
    pub work: Option<Workload>,
    /// The parts, if it is on several GPUs.
    placed: Option<Placed>,
}

/// A model's split over GPUs.
struct Placed {
    split: Split,
    targets: Vec<Target>,
    devices: Vec<Device>,
}

/// The report on one of several GPUs.
#[derive(serde::Serialize)]
pub(super) struct DevicePart {
    device: String,
    layers: usize,
    /// The number of GPUs that share each of these layers.
    sharing_each_layer: usize,
    has_vision: bool,
    /// The planned peak in bytes, without the context.
    planned_bytes: usize,
    /// The peak of bytes reserved by its pool.
    pool_peak_bytes: usize,
}

impl Loaded {
    /// Each GPU's part of the model, if there are several: planned for this work, and used so far.
    pub fn parts(&self, opened: &Opened, work: &Workload) -> Result<Option<Vec<DevicePart>>, Failure> {
        let Some(Placed { split, targets, devices }) = &self.placed else { return Ok(None) };
        let planned = opened.planned(|model| model.plan_split(split, work, targets))?;
        let mut parts = Vec::new();
        for (index, (device, planned)) in devices.iter().zip(planned).enumerate() {
            let Device::Cuda(cuda) = device else { continue };
            parts.push(DevicePart {
                device: device.to_string(),
                layers: split.layers[index],
                sharing_each_layer: if split.mode == SplitMode::Row { devices.len() } else { 1 },
                has_vision: index == split.vision,
                planned_bytes: planned.peak,
                pool_peak_bytes: memory::pool(cuda)?.statistics().peak_reserved,
            });
        }
        Ok(Some(parts))
    }

    /// The planned peak for this work in bytes of the GPU's memory (of all GPUs together), without contexts.
    pub fn planned_bytes(&self, opened: &Opened, work: &Workload) -> Result<Option<usize>, Failure> {
        if let Some(parts) = self.parts(opened, work)? {
            return Ok(Some(parts.iter().map(|part| part.planned_bytes).sum()));
        }
        let Device::Cuda(device) = self.model.device() else { return Ok(None) };
        let choice = opened.planned(|model| model.plan(self.options, work, &Gpu::from_device(device)))?;
        Ok(Some(choice.peak()))
    }

    /// The estimated time of this work on a GPU of these rates.
    pub fn estimate(
        &self,
        opened: &Opened,
        work: &Workload,
        peaks: &Peaks,
    ) -> Result<Option<Estimate>, Failure> {
        let Device::Cuda(device) = self.model.device() else { return Ok(None) };
        let estimate = opened.planned(|model| {
            let choice = model.plan(self.options, work, &Gpu::from_device(device))?;
            let storage = |name: &str| (model.storage)(&choice.options, name);
            estimate(model.config, &choice, &storage, work, peaks)
        });
        Ok(Some(estimate?))
    }
}

/// A model whose weights are not loaded yet.
pub(super) struct Opened {
    pub config: Config,
    /// The limits of a picture.
    pub image_tokens: ImageTokens,
    checkpoint: Checkpoint,
    since: Instant,
}

impl Opened {
    /// With these limits of pixels where --image-tokens is not given.
    fn or_pixels(self, limits: PixelLimits) -> Self {
        if self.image_tokens.given {
            return self;
        }
        let side = self.config.vision.as_ref().map_or(1, |vision| vision.sizes().token_side());
        let tokens = |pixels: usize| pixels / (side * side);
        let image_tokens = ImageTokens {
            min: limits.min.map(tokens),
            max: limits.max.map_or(self.image_tokens.max, tokens),
            given: false,
        };
        Self { checkpoint: self.checkpoint.with_pixel_limits(limits), image_tokens, ..self }
    }

    /// With at most this many pixels of a picture.
    pub fn with_most_pixels(self, most: usize) -> Self {
        let limits = self.image_tokens.limits(&self.config);
        let [max, most] = [limits.max, limits.most].map(|limit| limit.map(|limit| limit.min(most)));
        let checkpoint = self.checkpoint.with_pixel_limits(PixelLimits { max, most, ..limits });
        Self { checkpoint, ..self }
    }

    /// Says once which pictures are shrunk, and how to have them larger.
    pub fn say_shrunk(
        &self,
        visuals: &[Visual],
        processor: &Processor,
        output: &Output,
    ) -> Result<(), Failure> {
        for visual in visuals {
            let Visual::Image { name, picture } = visual else { continue };
            if let Some((size, tokens)) = shrunk(name, (picture.height, picture.width), processor)? {
                let (width, height) = (picture.width, picture.height);
                output.note(&format!(
                    "{name}: {width} × {height} pixels shrunk to {size}, {tokens} tokens; --image-tokens allows more"
                ));
            }
        }
        Ok(())
    }

    /// Queries the plan of its memory.
    fn planned<R>(&self, ask: impl FnOnce(fit::Plannable) -> pascaline::Result<R>) -> pascaline::Result<R> {
        let config = &self.config;
        let storage = |options: &LoadOptions, name: &str| self.checkpoint.storage(config, options, name);
        let adapter = |options: &LoadOptions| self.checkpoint.adapter_bytes(config, options);
        let is_quantized = self.checkpoint.is_quantized();
        ask(fit::Plannable { config, is_quantized, storage: &storage, adapter: &adapter })
    }
}

/// The work that a model is loaded for.
pub(super) struct Work<'a> {
    /// An upper bound that needs no tokenizer. If it fits, nothing more exact is needed.
    pub most: Option<Workload>,
    /// The candidates, the largest first.
    pub exactly: &'a dyn Fn(&Processor) -> Result<Vec<Workload>, Failure>,
}

/// The work of an answer of up to `to_come` tokens to a prompt.
pub(super) fn of_prompt(prompt: &Prompt, to_come: usize, config: &Config) -> Workload {
    let tokens = prompt.ids.len();
    let patches = prompt.patches.iter().map(|patches| patches.grid[1..].iter().product()).max();
    let context = tokens.saturating_add(to_come).min(config.text.max_position_embeddings.max(tokens));
    Workload { context, prompt: tokens, patches: patches.unwrap_or(0) }
}

/// An upper bound of the work of an answer to a text with images; `None` with videos. A token has at least one byte, and
/// only small images are enlarged.
pub(super) fn at_most(
    texts: &[&str],
    visuals: &[Visual],
    to_come: usize,
    opened: &Opened,
) -> Option<Workload> {
    let (config, budget) = (&opened.config, opened.image_tokens);
    let small = SMALL.max(budget.min.unwrap_or(0));
    const TEMPLATE: usize = 512; // the most tokens that a template adds
    const SMALL: usize = 256; // tokens of the smallest image
    let tokens = |visual: &Visual| match visual {
        Visual::Image { picture, .. } => {
            let tokens = config.picture([picture.width, picture.height]).0;
            Some(tokens.max(small).min(budget.max.max(SMALL)))
        }
        Visual::Video { .. } => None,
    };
    let images = visuals.iter().map(tokens).collect::<Option<Vec<_>>>()?;
    let text: usize = texts.iter().map(|text| text.len()).sum();
    let prompt = text + TEMPLATE + images.iter().sum::<usize>();
    let merged = config.vision.as_ref().map_or(0, |vision| vision.sizes().merge_len());
    let patches = images.iter().max().map_or(0, |tokens| tokens * merged);
    Some(Workload { context: prompt.saturating_add(to_come), prompt, patches })
}

/// Lists the types of the file that have no kernels, and what they were converted to.
fn conversions(model: &LanguageModel) -> Option<String> {
    let each = model.conversions().iter().map(|Conversion { from, to, matrices }| {
        format!("{matrices} matrices from {} to {}", from.name(), quant::name(*to))
    });
    let each: Vec<_> = each.collect();
    (!each.is_empty())
        .then(|| format!("converted, as there are no kernels for their type: {}", each.join(", ")))
}
