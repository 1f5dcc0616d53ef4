//! Which model, where, and how it chooses tokens: the arguments of the commands that load one.

use super::device::DeviceArg;
use super::failure::Failure;
use super::hub;
use super::output::Output;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use pascaline::kv::KvFormat;
use pascaline::quant::{self, Format};
use pascaline::{DType, Device, Error};
use qwen3_vl::weights::Conversion;
use qwen3_vl::{Checkpoint, LoadOptions, Options, Prompt, Qwen3Vl, Sampling, VisionPlace};
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(super) struct ModelArgs {
    /// The model: a directory with config.json, safetensors and tokenizer.json, as published; a GGUF file (of a split model
    /// the first), or a directory with one; or a model's name on the Hugging Face hub, which is fetched if need be (as `pull`
    /// does): OWNER/NAME, or OWNER/NAME:TYPE for GGUF files.
    #[arg(long, value_name = "MODEL")]
    pub model: PathBuf,

    /// The vision file of a GGUF model; if not given, the one beside it that fits.
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArg,

    /// What matrices are stored as: f16 on a GPU and f32 on the CPU, if not given; those that are quantised in a GGUF file stay
    /// as they are. Arithmetic is f32. The others are quantised as they are loaded, and multiplied by dp4a. Bits a value: q8_0
    /// 8.5, q6_k 6.6, q5_k 5.5, q4_k, q4_0 and iq4_nl 4.5, iq4_xs 4.25. q4_k, iq4_nl and iq4_xs lose less than q4_0.
    #[arg(long, value_name = "TYPE")]
    dtype: Option<WeightType>,

    /// What keys and values are stored as: f32, if nothing is said. 16-bit floats take half of it: f16, bf16, and those that
    /// `float16` measures, by their exponent bits; q8_0 takes 8.5 bits a value.
    #[arg(long, value_name = "TYPE", value_parser = cache_formats())]
    cache: Option<KvFormat>,

    /// Decoder layers whose weights stay on the GPU: all, if nothing is said. Those of the layers behind stay in pinned host
    /// memory and pass through the GPU while the layer before computes, for cards that can't hold the model. The tokens
    /// are the same; each then takes the time of copying those weights, and its kernels are launched one by one.
    #[arg(long, value_name = "N", alias = "n-gpu-layers")]
    gpu_layers: Option<usize>,

    /// Where the vision tower is: on the GPU, if nothing is said.
    #[arg(long, value_name = "PLACE")]
    vision_device: Option<VisionDevice>,
}

/// `--vision-device`
#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum VisionDevice {
    /// Its weights are on the GPU.
    Gpu,
    /// Its weights are in pinned host memory and pass through the GPU while a picture is encoded; the answers are the same.
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

/// `--cache`
pub(super) fn cache_formats() -> impl TypedValueParser<Value = KvFormat> {
    PossibleValuesParser::new(KvFormat::ALL.map(KvFormat::name)).try_map(|name| name.parse::<KvFormat>())
}

/// `--dtype` of a model that is compared with its reference.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum StorageType {
    F16,
    F32,
}

impl StorageType {
    pub fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::F32 => DType::F32,
        }
    }
}

/// `--dtype` of a model that runs.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum WeightType {
    F16,
    F32,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "q4_k")]
    Q4K,
    #[value(name = "q5_k")]
    Q5K,
    #[value(name = "q6_k")]
    Q6K,
    #[value(name = "iq4_nl")]
    Iq4Nl,
    #[value(name = "iq4_xs")]
    Iq4Xs,
}

impl WeightType {
    fn apply(self, usual: LoadOptions) -> LoadOptions {
        let quantize = |format| LoadOptions { quantize: Some(format), ..usual };
        match self {
            Self::F16 => LoadOptions { dtype: DType::F16, keep_quantized: false, ..usual },
            Self::F32 => LoadOptions { dtype: DType::F32, keep_quantized: false, ..usual },
            Self::Q8_0 => quantize(Format::Q8_0),
            Self::Q4_0 => quantize(Format::Q4_0),
            Self::Q4K => quantize(Format::Q4K),
            Self::Q5K => quantize(Format::Q5K),
            Self::Q6K => quantize(Format::Q6K),
            Self::Iq4Nl => quantize(Format::Iq4Nl),
            Self::Iq4Xs => quantize(Format::Iq4Xs),
        }
    }
}

#[derive(clap::Args)]
pub(super) struct SamplingArgs {
    /// The most tokens to generate; fewer where the model's context ends before.
    #[arg(long, value_name = "N", default_value = "512", value_parser = at_least_one, allow_negative_numbers = true)]
    max_new_tokens: usize,

    /// Always take the likeliest token. Without it and the options below, as generation_config.json says.
    #[arg(long)]
    greedy: bool,

    /// Divides the logits; 0 is greedy.
    #[arg(
        long,
        value_name = "T",
        conflicts_with = "greedy",
        allow_negative_numbers = true,
        value_parser = checked(|temperature| Sampling { temperature, ..Sampling::GREEDY })
    )]
    temperature: Option<f64>,

    /// Only the K likeliest tokens take part; 0 for all.
    #[arg(
        long,
        value_name = "K",
        conflicts_with = "greedy",
        allow_negative_numbers = true,
        value_parser = whole
    )]
    top_k: Option<usize>,

    /// Only the likeliest tokens with this much probability together take part.
    #[arg(
        long,
        value_name = "P",
        conflicts_with = "greedy",
        allow_negative_numbers = true,
        value_parser = checked(|top_p| Sampling { top_p, ..Sampling::GREEDY })
    )]
    top_p: Option<f64>,

    /// Only tokens with at least this share of the likeliest one's probability take part.
    #[arg(
        long,
        value_name = "P",
        conflicts_with = "greedy",
        allow_negative_numbers = true,
        value_parser = checked(|min_p| Sampling { min_p, ..Sampling::GREEDY })
    )]
    min_p: Option<f64>,

    /// Makes tokens of the prompt and the answer less likely; 1 does nothing.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = checked(|repetition_penalty| Sampling { repetition_penalty, ..Sampling::GREEDY })
    )]
    repetition_penalty: Option<f64>,

    /// Subtracted from the logits of the answer's tokens.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = checked(|presence_penalty| Sampling { presence_penalty, ..Sampling::GREEDY })
    )]
    presence_penalty: Option<f64>,

    /// Seeds the random numbers. If not given, a random seed is taken and printed.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Ends the answer where this text would come; may be given more than once.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Go on after the checkpoint's stop tokens.
    #[arg(long)]
    ignore_eos: bool,

    /// On a GPU, launch every kernel of every token one by one and not by a captured graph; the tokens are the same.
    #[arg(long)]
    no_graph: bool,
}

/// A number that sampling takes.
fn checked(sampling: fn(f64) -> Sampling) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let value = text.parse().map_err(|_| "it must be a number".to_owned())?;
        match sampling(value).check() {
            Err(Error::Unsupported { reason, .. }) => Err(reason),
            Err(error) => Err(error.to_string()),
            Ok(()) => Ok(value),
        }
    }
}

fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it must be a whole number that is not negative".to_owned())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "it must be a whole number from 1 on".to_owned())
}

/// As [`ModelArgs::check`].
pub(super) fn check_model(model: &Path) -> Result<(), Failure> {
    let is_gguf = || {
        let begins_so = || {
            let mut beginning = [0; 4];
            let mut file = std::fs::File::open(model).ok()?;
            file.read_exact(&mut beginning).ok()?;
            (beginning == *b"GGUF").then_some(())
        };
        let is_named_so = model.extension().is_some_and(|extension| extension == "gguf");
        model.is_file() && (is_named_so || begins_so().is_some())
    };
    let has_gguf = || {
        let mut names =
            std::fs::read_dir(model).into_iter().flatten().flatten().map(|entry| entry.file_name());
        names.any(|name| Path::new(&name).extension().is_some_and(|extension| extension == "gguf"))
    };
    // loading says what is wrong inside
    if is_gguf() || has_gguf() { Ok(()) } else { check_directory(model) }
}

/// Refuses what can't be a checkpoint's directory, with the way to one.
pub(super) fn check_directory(dir: &Path) -> Result<(), Failure> {
    let name = dir.display();
    let problem = if !dir.exists() {
        "there is no such directory or file"
    } else if !dir.is_dir() {
        "that is no directory, and no GGUF file"
    } else if !dir.join("config.json").exists() {
        "there is no config.json in it, so it is no checkpoint"
    } else {
        return Ok(());
    };
    // the published model of that name, if it sounds like one
    let last = dir.file_name().and_then(|last| last.to_str()).filter(|last| last.starts_with("Qwen3-VL-"));
    let model = last.unwrap_or("Qwen3-VL-2B-Instruct");
    Err(Failure::Failed(format!(
        "{name}: {problem}; `--model Qwen/{model}` fetches one from the Hugging Face hub"
    )))
}

impl ModelArgs {
    /// Refuses what can't be a model, with the way to one.
    pub fn check(&self) -> Result<(), Failure> {
        match hub::named(&self.model) {
            Some(_) => Ok(()), // the hub knows whether it is one
            None => check_model(&self.model),
        }
    }

    /// The device, checked against the other options; if `auto` took it, says why.
    pub fn device(&self, output: &Output) -> Result<Device, Failure> {
        let (device, reason) = self.device.open()?;
        if let Some(reason) = reason {
            output.note(&format!("on {device}, because {reason}"));
        }
        match (self.gpu_layers, self.vision_device) {
            (Some(layers), _) if !device.is_cuda() => Err(Failure::Usage(format!(
                "--gpu-layers {layers} is for a GPU; on the CPU all weights are in host memory"
            ))),
            (_, Some(VisionDevice::Gpu | VisionDevice::Stream)) if !device.is_cuda() => {
                Err(Failure::Usage("--vision-device asks for a GPU, and the model is on the CPU".to_owned()))
            }
            _ => Ok(device),
        }
    }

    /// An error of the model, with the options that help.
    pub fn explain(&self, error: &Error) -> String {
        let Error::OutOfMemory { .. } = error else { return error.to_string() };
        let mut smaller = Vec::new();
        use WeightType::{Iq4Nl, Iq4Xs, Q4_0, Q4K};
        if !matches!(self.dtype, Some(Q4_0 | Q4K | Iq4Nl | Iq4Xs)) {
            smaller.push("`--dtype q4_k` (matrices)");
        }
        if self.cache != Some(KvFormat::Q8_0) {
            smaller.push("`--cache q8_0` (keys and values)");
        }
        if self.vision_device.is_none_or(|place| place == VisionDevice::Gpu) {
            smaller.push("`--vision-device stream` (the vision tower stays in host memory)");
        }
        if self.gpu_layers != Some(0) {
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

    fn load_options(&self, device: &Device) -> LoadOptions {
        let usual = LoadOptions::for_device(device);
        let options = self.dtype.map_or(usual, |dtype| dtype.apply(usual));
        LoadOptions {
            cache: self.cache.unwrap_or(usual.cache),
            gpu_layers: self.gpu_layers,
            vision: self.vision_device.map_or(usual.vision, VisionDevice::place),
            ..options
        }
    }

    /// Loads the model, with a progress bar where people watch; gives the time that it took.
    pub fn load(&self, device: &Device, output: &Output) -> Result<(Qwen3Vl, Duration), Failure> {
        let model = hub::locate(&self.model, output)?;
        let begin = Instant::now();
        let bar = match io::stderr().is_terminal() && !output.is_quiet() {
            true => ProgressBar::new(0),
            false => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("  {bar:24} {pos}/{len} tensors  {elapsed}") {
            bar.set_style(style.progress_chars("━━╌"));
        }
        let options = self.load_options(device);
        let loaded = Checkpoint::open(&model, self.mmproj.as_deref()).and_then(|checkpoint| {
            Qwen3Vl::load_checkpoint(&checkpoint, device, options, |progress| {
                bar.set_length(progress.total as u64);
                bar.set_position(progress.loaded as u64);
            })
        });
        bar.finish_and_clear();
        let model = loaded.map_err(|error| self.failure(error))?;
        let elapsed = begin.elapsed();
        if let Some(note) = conversions(&model) {
            output.note(&note);
        }
        Ok((model, elapsed))
    }
}

/// Says which types of the file have no kernels and what became of them.
fn conversions(model: &Qwen3Vl) -> Option<String> {
    let each = model.conversions().iter().map(|Conversion { from, to, matrices }| {
        format!("{matrices} matrices from {} to {}", from.name(), quant::name(*to))
    });
    let each: Vec<_> = each.collect();
    (!each.is_empty())
        .then(|| format!("converted, as there are no kernels for their type: {}", each.join(", ")))
}

impl SamplingArgs {
    /// Says which seed was taken, if it is random.
    pub fn say_seed(&self, options: &Options, output: &Output) {
        if self.seed.is_none() && !options.sampling.is_greedy() {
            output.note(&format!("--seed {}", options.sampling.seed));
        }
    }

    /// Says so if the model's context ends before the most tokens.
    pub fn say_room(&self, model: &Qwen3Vl, prompt: &Prompt, output: &Output) -> pascaline::Result<()> {
        let (most, room) = (self.max_new_tokens, model.room_after(prompt)?);
        if room < most {
            let context = model.config().text.max_position_embeddings;
            output.note(&format!(
                "--max-new-tokens {most} is cut to {room}: the model's context of {context} has no room for more \
                 after {} prompt tokens",
                prompt.ids.len()
            ));
        }
        Ok(())
    }

    /// As asked for, else as the checkpoint's authors generate.
    pub fn options(&self, model: &Qwen3Vl) -> Options {
        let published = &model.processor.generation;
        let usual = match published.do_sample {
            true => Sampling {
                temperature: published.temperature.unwrap_or(1.0),
                top_k: published.top_k.map_or(0, |k| usize::try_from(k).unwrap_or(usize::MAX)),
                top_p: published.top_p.unwrap_or(1.0),
                repetition_penalty: published.repetition_penalty.unwrap_or(1.0),
                ..Sampling::GREEDY
            },
            false => Sampling::GREEDY,
        };
        let filtered = self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some();
        let temperature = match (self.temperature, self.greedy) {
            (_, true) => 0.0,
            (Some(temperature), _) => temperature,
            (None, _) if filtered && usual.is_greedy() => 1.0,
            (None, _) => usual.temperature,
        };
        let sampling = Sampling {
            temperature,
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(usual.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(usual.presence_penalty),
            // ten digits at most, as it may have to be typed in again
            seed: self.seed.unwrap_or_else(|| rand::random::<u32>().into()),
        };
        Options {
            max_new_tokens: self.max_new_tokens,
            sampling,
            stop: self.stop.clone(),
            stop_at_eos: !self.ignore_eos,
            graph: !self.no_graph,
        }
    }
}
