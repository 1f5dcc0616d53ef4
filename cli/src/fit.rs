//! `pascaline fit`: what of a model fits a card, and how fast it would be.

use super::device::DeviceArg;
use super::failure::Failure;
use super::hub;
use super::model::{bytes, cache_formats};
use super::output::Output;
use super::screen::Style;
use super::table::Column;
use pascaline::kv::KvFormat;
use pascaline::quant::{self, Format};
use pascaline::{DType, Device};
use pascaline_virtual_gpu::Card;
use qwen3_vl::config::Config;
use qwen3_vl::estimate::{Estimate, Peaks, estimate};
use qwen3_vl::fit::{Asked, Choice, Model};
use qwen3_vl::footprint::{Footprint, Gpu, Workload};
use qwen3_vl::{Checkpoint, LoadOptions, Matrices, VisionPlace};
use serde::Serialize;
use std::path::PathBuf;

pub(super) use qwen3_vl::fit::Model as Plannable;

/// The memory of a driver's context, for planning without the card: an estimate for driver 580.
const CONTEXT: usize = 128 << 20;

/// Plans memory from sizes alone and prints, for each type of matrices, what fits: the cache, the place of the vision tower
/// and the layers on the GPU, with estimates of speed. `generate` and `chat` choose the first line that fits.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The model, as for `generate --model`.
    #[arg(value_name = "MODEL")]
    model: PathBuf,

    /// The vision file of a GGUF model; if not given, the one in the same folder that fits.
    #[arg(long, value_name = "FILE")]
    mmproj: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArg,

    /// Plan for this card, which need not be there: mx330, gtx1050ti, gtx1060, gtx1080, p4 or p40.
    #[arg(long, value_name = "CARD", value_parser = card)]
    card: Option<&'static Card>,

    /// The tokens of prompt, pictures and answer together.
    #[arg(long, value_name = "N", default_value = "4096")]
    context: usize,

    /// The largest picture; 0x0 for none.
    #[arg(long, value_name = "WxH", default_value = "1024x1024", value_parser = picture)]
    image: [usize; 2],

    /// As for `generate`.
    #[arg(long, value_name = "TYPE", value_parser = cache_formats())]
    cache: Option<KvFormat>,

    /// The most of the card's memory to use, without the driver's context, in bytes or with K, M or G.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory_limit: Option<usize>,

    #[command(flatten)]
    output: Output,
}

fn card(id: &str) -> Result<&'static Card, String> {
    Card::by_name(id).ok_or_else(|| format!("use one of {}", Card::ALL.map(|card| card.id).join(", ")))
}

fn picture(text: &str) -> Result<[usize; 2], String> {
    let sides = text.split_once('x').and_then(|(w, h)| Some([w.parse().ok()?, h.parse().ok()?]));
    sides
        .filter(|sides| sides.iter().all(|&side| side <= 1 << 16))
        .ok_or_else(|| "it must be like 1024x768".to_owned())
}

/// The contexts to plan for, the longest first: the length of a conversation is not known.
pub(super) fn conversations(config: &Config) -> Vec<Workload> {
    let sizes = [(4096, 1024), (2048, 1024), (2048, 512), (1024, 0), (512, 0)];
    sizes.map(|(context, side)| work(config, context, [side, side])).into()
}

/// A prompt of one picture and text, that with its answer fills the context.
fn work(config: &Config, context: usize, [width, height]: [usize; 2]) -> Workload {
    let (vision, side) = (&config.vision, config.vision.patch_size * config.vision.spatial_merge_size);
    let tokens = width.div_ceil(side) * height.div_ceil(side);
    let context = context.min(config.text.max_position_embeddings);
    Workload { context, prompt: (tokens + 256).min(context), patches: tokens * vision.merge_len() }
}

/// One line about a choice.
pub(super) fn describe(choice: &Choice, work: &Workload, is_gguf: bool, limit: usize) -> String {
    let options = &choice.options;
    let mut parts = vec![matrices(options, is_gguf), format!("cache {}", options.cache)];
    parts.extend(place(options));
    let needed = choice.peak().div_ceil(1 << 20);
    let tokens = work.context;
    format!("{}: {needed} of {} MiB planned for {tokens} tokens", parts.join(", "), limit >> 20)
}

fn matrices(options: &LoadOptions, is_gguf: bool) -> String {
    match (options.quantize, options.dtype) {
        (Some(format), _) => quant::name(format).to_owned(),
        (None, _) if is_gguf && options.keep_quantized => "types of the file".to_owned(),
        (None, DType::F16) => "f16".to_owned(),
        (None, _) => "f32".to_owned(),
    }
}

/// The parts that are not on the GPU.
fn place(options: &LoadOptions) -> Vec<String> {
    let vision = match options.vision {
        VisionPlace::Resident => None,
        VisionPlace::Streamed => Some("vision tower streamed".to_owned()),
        VisionPlace::Cpu => Some("vision tower on the CPU".to_owned()),
    };
    let layers = options.gpu_layers.map(|layers| format!("{layers} layers on the GPU"));
    vision.into_iter().chain(layers).collect()
}

/// A card to plan for.
struct Target {
    name: String,
    gpu: Gpu,
    limit: usize,
    peaks: Peaks,
}

impl Target {
    fn of_card(card: &Card) -> Self {
        let gpu = Gpu { capability: (6, 1), multiprocessors: card.sms, beside_pool: Gpu::BESIDE_POOL };
        let flops = 2.0 * 128.0 * f64::from(card.sms) * f64::from(card.boost_mhz) * 1e6;
        // the MX330 has four lanes of PCIe 3, the others sixteen
        let host = if card.sms < 4 { 3e9 } else { 12e9 };
        let peaks = Peaks { flops, memory: card.bandwidth * 1e9, host };
        let limit = (card.memory as usize).saturating_sub(CONTEXT);
        Self { name: card.name.to_owned(), gpu, limit, peaks }
    }

    fn of_device(device: &Device) -> Result<Self, Failure> {
        let Device::Cuda(cuda) = device else {
            return Err(Failure::Usage("there is no GPU to plan for; name one with --card".to_owned()));
        };
        let properties = cuda.properties();
        let clock = f64::from(properties.clock_khz) * 1e3;
        let flops = 2.0 * 128.0 * f64::from(properties.multiprocessors) * clock;
        // two transfers a clock
        let memory =
            2.0 * f64::from(properties.memory_clock_khz) * 1e3 * f64::from(properties.memory_bus_bits) / 8.0;
        let (name, gpu) = (properties.name.clone(), Gpu::of(cuda));
        Ok(Self { name, gpu, limit: cuda.memory_info()?.0, peaks: Peaks { flops, memory, host: 12e9 } })
    }
}

#[derive(Serialize)]
struct Row {
    matrices: String,
    fits: bool,
    /// Why it does not.
    reason: Option<String>,
    cache: Option<String>,
    vision: Option<&'static str>,
    /// Of all layers.
    gpu_layers: Option<usize>,
    /// Bytes of device memory, the context not counted.
    peak: Option<usize>,
    footprint: Option<Footprint>,
    estimate: Option<Estimate>,
}

#[derive(Serialize)]
struct Json<'a> {
    card: &'a str,
    limit: usize,
    context: usize,
    prompt: usize,
    patches: usize,
    /// The row that `generate` would choose.
    chosen: Option<usize>,
    rows: &'a [Row],
}

/// The types that are planned, in the order of their quality.
fn kinds(is_quantized: bool) -> Vec<Option<Matrices>> {
    let formats = [Format::Q8_0, Format::Q6K, Format::Q5K, Format::Q4K].map(Matrices::Quantized);
    let floats = [Matrices::Float(DType::F16)];
    match is_quantized {
        true => vec![None],
        false => floats.into_iter().chain(formats).map(Some).collect(),
    }
}

fn row(
    model: &Model,
    is_gguf: bool,
    kind: Option<Matrices>,
    args: &Args,
    work: &Workload,
    target: &Target,
) -> Row {
    let usual = LoadOptions { dtype: DType::F16, ..LoadOptions::for_device(&Device::Cpu) };
    let asked = Asked { matrices: kind, cache: args.cache, ..Asked::default() };
    let named = matrices(&asked.apply(usual), is_gguf);
    let limit = args.memory_limit.map_or(target.limit, |limit| limit.min(target.limit));
    match model.fit(usual, &asked, work, &target.gpu, limit) {
        Ok(choice) => {
            let storage = |name: &str| (model.storage)(&choice.options, name);
            let layers = model.config.text.num_hidden_layers;
            Row {
                matrices: named,
                fits: true,
                reason: None,
                cache: Some(choice.options.cache.to_string()),
                vision: Some(match choice.options.vision {
                    VisionPlace::Resident => "gpu",
                    VisionPlace::Streamed => "stream",
                    VisionPlace::Cpu => "cpu",
                }),
                gpu_layers: Some(choice.options.gpu_layers.unwrap_or(layers).min(layers)),
                peak: Some(choice.peak()),
                footprint: Some(choice.footprint),
                estimate: estimate(model.config, &choice, &storage, work, &target.peaks).ok(),
            }
        }
        Err(error) => Row {
            matrices: named,
            fits: false,
            reason: Some(error.to_string()),
            cache: None,
            vision: None,
            gpu_layers: None,
            peak: None,
            footprint: None,
            estimate: None,
        },
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let report = args.output.report()?;
    let path = hub::locate(&args.model, &args.output)?;
    let checkpoint = Checkpoint::open(&path, args.mmproj.as_deref())?;
    let config = checkpoint.config()?;
    let target = match args.card {
        Some(card) => Target::of_card(card),
        None => Target::of_device(&args.device.open()?.0)?,
    };
    let work = work(&config, args.context, args.image);
    let storage = |options: &LoadOptions, name: &str| checkpoint.storage(&config, options, name);
    let (is_gguf, is_quantized) = (checkpoint.gguf().is_some(), checkpoint.is_quantized());
    let model = Model { config: &config, is_quantized, storage: &storage };
    let rows: Vec<Row> = kinds(is_quantized)
        .into_iter()
        .map(|kind| row(&model, is_gguf, kind, args, &work, &target))
        .collect();

    let limit = args.memory_limit.map_or(target.limit, |limit| limit.min(target.limit));
    let layers = config.text.num_hidden_layers;
    // all layers on the GPU before better types with some of them streamed, the same order as in the library's `fit`
    let whole = rows.iter().position(|row| row.gpu_layers == Some(layers));
    let chosen = whole.or_else(|| rows.iter().rposition(|row| row.fits));
    let mut screen = args.output.screen();
    screen.text(
        &format!(
            "{}, {} MiB for {} tokens, of which a picture of {} patches takes {}",
            target.name,
            limit >> 20,
            work.context,
            work.patches,
            work.patches / config.vision.merge_len().max(1)
        ),
        Style::Heading,
    )?;
    screen.line("")?;
    let table = screen.table(vec![
        Column::left("matrices", 17),
        Column::left("cache", 5),
        Column::left("vision", 6),
        Column::right("layers", 7),
        Column::right("memory", 9),
        Column::right("first token", 11),
        Column::right("tokens/s", 8),
        Column::left("", 7),
    ]);
    screen.line(&table.header("matrices"))?;
    for (index, row) in rows.iter().enumerate() {
        let style = if row.fits { Style::Plain } else { Style::Faint };
        let number = |number: Option<f64>, digits: usize, unit: &str| {
            number.map_or_else(String::new, |number| format!("{number:.digits$}{unit}"))
        };
        let cells = [
            row.matrices.clone(),
            row.cache.clone().unwrap_or_default(),
            row.vision.unwrap_or_default().to_owned(),
            row.gpu_layers.map_or_else(|| "no room".to_owned(), |on_gpu| format!("{on_gpu}/{layers}")),
            row.peak.map_or_else(String::new, |bytes| format!("{} MiB", bytes.div_ceil(1 << 20))),
            number(row.estimate.map(|estimate| estimate.first_token), 1, " s"),
            number(row.estimate.map(|estimate| estimate.tokens_per_second), 1, ""),
            if chosen == Some(index) { "chosen".to_owned() } else { String::new() },
        ];
        screen.line(&table.row(&cells.map(|cell| (cell, style))))?;
    }
    screen.line("")?;
    screen.faint("Times are estimates from data-sheet rates; nothing was run.")?;
    if let Some(report) = report {
        let Workload { context, prompt, patches } = work;
        report.write(&Json { card: &target.name, limit, context, prompt, patches, chosen, rows: &rows })?;
    }
    match (chosen, rows.first()) {
        (None, Some(row)) => Err(Failure::Failed(row.reason.clone().unwrap_or_default())),
        _ => Ok(()),
    }
}
