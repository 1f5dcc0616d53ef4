//! Which model, where, and how it chooses tokens: the arguments of the commands that load one.

use super::failure::Failure;
use super::screen::{Colours, Style};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use pascaline::kv::KvFormat;
use pascaline::quant::Format;
use pascaline::{DType, Device};
use qwen3_vl::{LoadOptions, Options, Qwen3Vl, Sampling};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub(super) struct ModelArgs {
    /// The checkpoint: a directory with config.json, safetensors and tokenizer.json, as published.
    #[arg(long, value_name = "DIR")]
    pub model: PathBuf,

    /// Where to run: auto, cpu, cuda, cuda:N, or virtual (an sm_61 GPU in software).
    #[arg(long, value_name = "DEVICE", default_value = "auto", env = "PASCALINE_DEVICE")]
    device: String,

    /// What matrices are stored as: f16 on a GPU and f32 on the CPU, if nothing is said. Arithmetic is f32. The others are
    /// quantised as they are loaded (8.5 and 4.5 bits a value; q4_k loses less than q4_0), and multiplied by dp4a.
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
}

impl WeightType {
    fn apply(self, usual: LoadOptions) -> LoadOptions {
        let quantize = |format| LoadOptions { quantize: Some(format), ..usual };
        match self {
            Self::F16 => LoadOptions { dtype: DType::F16, ..usual },
            Self::F32 => LoadOptions { dtype: DType::F32, ..usual },
            Self::Q8_0 => quantize(Format::Q8_0),
            Self::Q4_0 => quantize(Format::Q4_0),
            Self::Q4K => quantize(Format::Q4K),
        }
    }
}

#[derive(clap::Args)]
pub(super) struct SamplingArgs {
    /// The most tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_new_tokens: usize,

    /// Always take the likeliest token. Without it and the options below, as generation_config.json says.
    #[arg(long)]
    greedy: bool,

    /// Divides the logits; 0 is greedy.
    #[arg(long, value_name = "T", conflicts_with = "greedy")]
    temperature: Option<f64>,

    /// Only the K likeliest tokens take part; 0 for all.
    #[arg(long, value_name = "K", conflicts_with = "greedy")]
    top_k: Option<usize>,

    /// Only the likeliest tokens with this much probability together take part.
    #[arg(long, value_name = "P", conflicts_with = "greedy")]
    top_p: Option<f64>,

    /// Only tokens with at least this share of the likeliest one's probability take part.
    #[arg(long, value_name = "P", conflicts_with = "greedy")]
    min_p: Option<f64>,

    /// Makes tokens of the prompt and the answer less likely; 1 does nothing.
    #[arg(long, value_name = "X")]
    repetition_penalty: Option<f64>,

    /// Subtracted from the logits of the answer's tokens.
    #[arg(long, value_name = "X")]
    presence_penalty: Option<f64>,

    /// Seeds the random numbers.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Ends the answer where this text would come; may be given more than once.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Go on behind the checkpoint's stop tokens.
    #[arg(long)]
    ignore_eos: bool,

    /// On a GPU, launch every kernel of every token one by one and not by a captured graph; the tokens are the same.
    #[arg(long)]
    no_graph: bool,
}

impl ModelArgs {
    /// The device; if `auto` took it, says why on stderr.
    pub fn device(&self) -> Result<Device, Failure> {
        if self.device != "auto" {
            return Ok(self.device.parse()?);
        }
        let choice = Device::choose();
        let colours = Colours::for_stream(io::stderr().is_terminal());
        let line = format!("on {}, because {}", choice.device, choice.reason);
        eprintln!("{}", colours.paint(Style::Faint, &line));
        Ok(choice.device)
    }

    pub fn load_options(&self, device: &Device) -> LoadOptions {
        let usual = LoadOptions::for_device(device);
        let options = self.dtype.map_or(usual, |dtype| dtype.apply(usual));
        LoadOptions { cache: self.cache.unwrap_or(usual.cache), gpu_layers: self.gpu_layers, ..options }
    }

    /// Loads the model, with a progress bar where people watch; gives the time that it took.
    pub fn load(&self) -> Result<(Qwen3Vl, Duration), Failure> {
        let device = self.device()?;
        let begin = Instant::now();
        let bar = match io::stderr().is_terminal() {
            true => ProgressBar::new(0),
            false => ProgressBar::hidden(),
        };
        if let Ok(style) = ProgressStyle::with_template("  {bar:24} {pos}/{len} tensors  {elapsed}") {
            bar.set_style(style.progress_chars("━━╌"));
        }
        let loaded = Qwen3Vl::load_with(&self.model, &device, self.load_options(&device), |progress| {
            bar.set_length(progress.total as u64);
            bar.set_position(progress.loaded as u64);
        });
        bar.finish_and_clear();
        Ok((loaded?, begin.elapsed()))
    }
}

impl SamplingArgs {
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
            seed: self.seed,
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
