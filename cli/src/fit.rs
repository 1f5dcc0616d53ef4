//! `pascaline fit`: what of a model fits a card, and how fast it would be.

use super::device::DeviceArg;
use super::devices::DevicesArgs;
use super::experts::{self, ExpertArgs, Place};
use super::failure::Failure;
use super::hub;
use super::image_tokens::{ImageTokens, image_tokens};
use super::output::Output;
use super::published::Size;
use super::screen::Style;
use super::sizes::bytes;
use super::table::Column;
use super::types::cache_formats;
use clap::ValueEnum;
use pascaline::cuda::Properties;
use pascaline::kv::KvFormat;
use pascaline::quant::{self, Format};
use pascaline::{DType, Device, Error};
use pascaline_virtual_gpu::Card;
use qwen3_vl::adapter::AdapterBytes;
use qwen3_vl::config::{Config, PUBLISHED_PIXELS};
use qwen3_vl::estimate::{Estimate, Peaks, estimate, expert_rows};
use qwen3_vl::fit::{Asked, Choice, Model};
use qwen3_vl::footprint::{Footprint, Gpu, Workload};
use qwen3_vl::gguf::Mix;
use qwen3_vl::options::Storage;
use qwen3_vl::preprocess::{Bounds, smart_resize};
use qwen3_vl::split::{self, Split};
use qwen3_vl::{Checkpoint, ExpertPlacement, LoadOptions, Matrices, SplitMode, VisionPlace};
use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(super) use qwen3_vl::fit::Model as Plannable;

/// The memory of a driver's context, for planning without the card: an estimate for driver 580.
const CONTEXT: usize = 128 << 20;

/// Plans memory from sizes alone and prints, for each type of matrices, what fits: the cache, the place of the vision tower
/// and the layers on the GPU, with estimates of speed. `generate` and `chat` choose the line with a star.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The model, as for `generate --model`. Without one, the published models of the family in the types of GGUF files.
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,

    /// The vision file of a GGUF model; if not given, the one in the same folder that fits.
    #[arg(long, value_name = "FILE", requires = "model")]
    mmproj: Option<PathBuf>,

    #[command(flatten)]
    device: DeviceArg,

    #[command(flatten)]
    several: DevicesArgs,

    /// Plan for this card, which need not be there: mx330, gtx1050ti, gtx1060, gtx1070, gtx1080, gtx1080ti, p4 or p40. Given more than once, the
    /// model is spread over these, as `generate --devices` does.
    #[arg(long, value_name = "CARD", value_parser = card)]
    card: Vec<&'static Card>,

    /// The tokens of prompt, pictures and answer together.
    #[arg(long, value_name = "N", default_value = "4096")]
    context: usize,

    /// The largest picture; 0x0 for none.
    #[arg(long, value_name = "WxH", default_value = "1024x1024", value_parser = picture)]
    image: [usize; 2],

    /// The fewest and the most tokens of a picture, as for `generate`; if not given, as `generate` chooses for the card.
    #[arg(long, value_name = "MIN,MAX", value_parser = image_tokens)]
    image_tokens: Option<ImageTokens>,

    /// As for `generate`.
    #[arg(long, value_name = "TYPE", value_parser = cache_formats(), ignore_case = true)]
    cache: Option<KvFormat>,

    #[command(flatten)]
    experts: ExpertArgs,

    /// Print docs/cards.md: all published models and types on six cards, at three lengths of context.
    #[arg(long, conflicts_with_all = ["model", "card", "device", "devices", "split", "split_mode", "between", "context", "image", "image_tokens", "cache", "experts", "expert_cache", "memory_limit"])]
    table: bool,

    /// The most of the card's memory to use, without the driver's context, in bytes or with K, M or G.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory_limit: Option<usize>,

    #[command(flatten)]
    output: Output,
}

fn card(id: &str) -> Result<&'static Card, String> {
    Card::by_name(id).ok_or_else(|| format!("use one of {}", Card::KNOWN.map(|card| card.id).join(", ")))
}

fn picture(text: &str) -> Result<[usize; 2], String> {
    let sides = text.split_once('x').and_then(|(w, h)| Some([w.parse().ok()?, h.parse().ok()?]));
    sides
        .filter(|sides| sides.iter().all(|&side| side <= 1 << 16))
        .ok_or_else(|| "it must be like 1024x768".to_owned())
}

/// The contexts to plan for, the longest first: the length of a conversation is not known. Pictures have up to `most` tokens.
pub(super) fn conversations(config: &Config, most: usize) -> Vec<Workload> {
    let sizes = [(4096, 3072), (4096, 1280), (2048, 1024), (2048, 256), (1024, 0), (512, 0)];
    sizes.map(|(context, tokens)| work(config, context, tokens.min(most))).into()
}

/// The work of a server's longest request: as much as fits, up to a context of 32,768.
pub(super) fn requests(config: &Config, most: usize) -> Vec<Workload> {
    let long = [32_768, 16_384, 8192].map(|context| work(config, context, most.min(context / 2)));
    long.into_iter().chain(conversations(config, most)).collect()
}

/// The work of an embedding or a ranking: prompts without answers, up to the published models' length.
pub(super) fn embeddings(config: &Config, most: usize) -> Vec<Workload> {
    [8192, 4096, 2048, 1024]
        .map(|context| work(config, context, most.min(context)))
        .map(|found| Workload { prompt: found.context, ..found })
        .into()
}

/// A prompt of one picture of so many tokens and text, that with its answer fills the context.
fn work(config: &Config, context: usize, tokens: usize) -> Workload {
    let merged = config.vision.as_ref().map_or(0, |vision| vision.sizes().merge_len());
    let tokens = if merged == 0 { 0 } else { tokens };
    let context = context.min(config.text.max_position_embeddings);
    Workload { context, prompt: (tokens + 256).min(context), patches: tokens * merged }
}

/// The tokens of a picture of width × height pixels that is resized as the checkpoint's preprocessing does, within a card's limits.
fn tokens_of(
    config: &Config,
    [width, height]: [usize; 2],
    given: Option<ImageTokens>,
    target: Option<&Target>,
    limit: usize,
) -> Result<usize, Failure> {
    let Some(sizes) = config.vision.as_ref().map(|vision| vision.sizes()) else { return Ok(0) };
    if width == 0 || height == 0 {
        return Ok(0);
    }
    let given =
        given.unwrap_or_else(|| ImageTokens::usual(config, target.map(|target| (&target.peaks, limit))));
    let [min_pixels, max_pixels] = given.limits(config).apply(PUBLISHED_PIXELS);
    let factor = sizes.token_side();
    let bounds = Bounds { factor, min_pixels, max_pixels, frames: 1, group: 1 };
    let (height, width) = smart_resize("--image", (height, width), bounds)?;
    Ok((height / factor) * (width / factor))
}

/// One line about a choice.
pub(super) fn describe(choice: &Choice, work: &Workload, is_gguf: bool, limit: usize) -> String {
    let options = &choice.options;
    let mut parts = vec![matrices(options, is_gguf), format!("cache {}", options.cache)];
    parts.extend(place(options));
    let needed = choice.peak().div_ceil(1 << 20);
    let tokens = work.context;
    let host = match options.experts {
        ExpertPlacement::Gpu => String::new(),
        _ => format!(", and {} MiB of host memory", choice.footprint.host.div_ceil(1 << 20)),
    };
    let (parts, limit) = (parts.join(", "), limit.div_ceil(1 << 20));
    format!("{parts}: {needed} of {limit} MiB planned for {tokens} tokens{host}")
}

/// A line about a split, and one about each GPU.
pub(super) fn describe_split(
    split: &Split,
    devices: &[Device],
    targets: &[split::Target],
    work: &Workload,
    is_gguf: bool,
) -> String {
    let options = &split.options;
    let mut parts = vec![matrices(options, is_gguf), format!("cache {}", options.cache)];
    parts.extend(place(options));
    let mut text = format!("{}, over {} GPUs for {} tokens", parts.join(", "), devices.len(), work.context);
    for (index, (device, target)) in devices.iter().zip(targets).enumerate() {
        let tower = if index == split.vision && options.vision != VisionPlace::Cpu {
            " and the vision tower"
        } else {
            ""
        };
        let (needed, limit) =
            (split.footprints[index].peak.div_ceil(1 << 20), target.limit.div_ceil(1 << 20));
        let layers = match split.mode {
            SplitMode::Layer => format!("{} layers", split.layers[index]),
            SplitMode::Row => format!("a part of {} layers", split.layers[index]),
        };
        text += &format!("; {device}: {layers}{tower}, {needed} of {limit} MiB planned");
    }
    text
}

/// The peak rates of a device.
pub(super) fn peaks(properties: &Properties) -> Peaks {
    let clock = f64::from(properties.clock_khz) * 1e3;
    let flops = 2.0 * 128.0 * f64::from(properties.multiprocessors) * clock;
    Peaks { flops, memory: memory_speed(properties), host: 12e9 }
}

/// Bytes per second of a device's memory: two transfers a clock.
pub(super) fn memory_speed(properties: &Properties) -> f64 {
    2.0 * f64::from(properties.memory_clock_khz) * 1e3 * f64::from(properties.memory_bus_bits) / 8.0
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
    let embedding = options.host_embedding.then(|| "embedding rows from host memory".to_owned());
    let layers = options.gpu_layers.map(|layers| format!("{layers} layers on the GPU"));
    embedding.into_iter().chain(vision).chain(layers).chain(experts::describe(options)).collect()
}

/// A card to plan for.
pub(super) struct Target {
    name: String,
    gpu: Gpu,
    limit: usize,
    pub peaks: Peaks,
}

impl Target {
    fn of_card(card: &Card) -> Self {
        let gpu = Gpu::pascal(card.sms);
        let flops = 2.0 * 128.0 * f64::from(card.sms) * f64::from(card.boost_mhz) * 1e6;
        // the MX330 has four lanes of PCIe 3, the others sixteen
        let host = if card.sms < 4 { 3e9 } else { 12e9 };
        let peaks = Peaks { flops, memory: card.bandwidth * 1e9, host };
        let limit = (card.memory as usize).saturating_sub(CONTEXT);
        Self { name: card.name.to_owned(), gpu, limit, peaks }
    }

    pub fn of_device(device: &Device) -> Result<Self, Failure> {
        let Device::Cuda(cuda) = device else {
            return Err(Failure::Usage("there is no GPU to plan for; name one with --card".to_owned()));
        };
        let (properties, gpu) = (cuda.properties(), Gpu::from_device(cuda));
        let (name, peaks) = (properties.name.clone(), peaks(properties));
        Ok(Self { name, gpu, limit: cuda.memory_info()?.0, peaks })
    }
}

#[derive(Default, Serialize)]
struct Row {
    model: String,
    matrices: String,
    fits: bool,
    /// Why it does not.
    reason: Option<String>,
    cache: Option<String>,
    vision: Option<&'static str>,
    /// Where embedding rows are looked up.
    embedding: Option<&'static str>,
    /// Of all layers.
    gpu_layers: Option<usize>,
    layers: usize,
    /// Where the experts are; `None` for a dense model.
    experts: Option<&'static str>,
    /// The experts of each layer that are on the GPU.
    cached_experts: Option<usize>,
    experts_of_layer: Option<usize>,
    /// Bytes of device memory, the context not counted.
    peak: Option<usize>,
    footprint: Option<Footprint>,
    estimate: Option<Estimate>,
}

impl Row {
    /// Whether all layers are on the GPU, with their experts.
    fn is_whole(&self) -> bool {
        self.gpu_layers == Some(self.layers) && self.cached_experts == self.experts_of_layer
    }
}

#[derive(Serialize)]
struct Json<'a> {
    card: &'a str,
    limit: usize,
    context: usize,
    prompt: usize,
    patches: usize,
    /// The row that `generate` would choose of a model.
    chosen: Option<usize>,
    rows: &'a [Row],
}

/// A model in one type, to be planned.
struct Candidate<'a> {
    model: String,
    matrices: String,
    plan: Model<'a>,
    asked: Asked,
}

impl Candidate<'_> {
    fn row(&self, work: &Workload, target: &Target, limit: usize) -> Row {
        // matrices on a GPU are f16 if not given
        let usual = LoadOptions::for_gpu();
        let layers = self.plan.config.text.num_hidden_layers;
        let (model, matrices) = (self.model.clone(), self.matrices.clone());
        let nothing = Row { model, matrices, layers, ..Row::default() };
        let count = self.plan.config.text.experts.as_ref().map(|experts| experts.count);
        let asked = match with_experts(&self.plan, usual, &self.asked, &target.peaks) {
            Ok(asked) => asked,
            Err(error) => return Row { reason: Some(error.to_string()), ..nothing },
        };
        let choice = match self.plan.fit(usual, &asked, work, &target.gpu, limit) {
            Ok(choice) => choice,
            Err(error) => return Row { reason: Some(error.to_string()), ..nothing },
        };
        let storage = |name: &str| (self.plan.storage)(&choice.options, name);
        Row {
            fits: true,
            cache: Some(choice.options.cache.to_string()),
            vision: Some(vision_place(&choice.options)),
            embedding: Some(if choice.options.host_embedding { "host" } else { "gpu" }),
            gpu_layers: Some(choice.options.gpu_layers.unwrap_or(layers).min(layers)),
            experts: count.map(|_| choice.options.experts.name()),
            cached_experts: count.map(|count| match choice.options.experts {
                ExpertPlacement::Gpu => count,
                _ => choice.options.cached_experts.min(count),
            }),
            experts_of_layer: count,
            peak: Some(choice.peak()),
            footprint: Some(choice.footprint),
            estimate: estimate(self.plan.config, &choice, &storage, work, &target.peaks).ok(),
            ..nothing
        }
    }
}

/// What was asked for, with the tokens up to which the CPU computes experts of a model of this storage, if that is open.
pub(super) fn with_experts(
    model: &Model,
    usual: LoadOptions,
    asked: &Asked,
    peaks: &Peaks,
) -> Result<Asked, Error> {
    if !matches!(asked.experts, None | Some(ExpertPlacement::Mixed { .. }))
        || model.config.text.experts.is_none()
    {
        return Ok(*asked);
    }
    // as `Model::fit` chooses it for experts in host memory
    let smallest = match asked.matrices {
        None if !model.is_quantized => Matrices::Quantized(Format::Q4K).apply(usual),
        _ => asked.apply(usual),
    };
    let cpu_rows = expert_rows(model.config, &|name| (model.storage)(&smallest, name), peaks)?;
    Ok(Asked { experts: Some(Place::Auto.placement(cpu_rows)), ..*asked })
}

/// The rows of a model's files, in each type that it may be loaded in.
fn rows_of_files(
    args: &Args,
    path: &Path,
    target: &Target,
    limit: usize,
) -> Result<(Workload, Vec<Row>), Failure> {
    let scratch = tempfile::tempdir()?; // beginnings of files on the hub
    let path = hub::locate_headers(path, scratch.path(), &args.output)?;
    let checkpoint = Checkpoint::open(&path, args.mmproj.as_deref())?;
    let config = checkpoint.config()?;
    args.experts.check_model(&config)?;
    let tokens = tokens_of(&config, args.image, args.image_tokens, Some(target), limit)?;
    let work = work(&config, args.context, tokens);
    let storage = |options: &LoadOptions, name: &str| checkpoint.storage(&config, options, name);
    let (is_gguf, is_quantized) = (checkpoint.gguf().is_some(), checkpoint.is_quantized());
    let rows = kinds(is_quantized).into_iter().map(|matrices| {
        let (experts, expert_cache) = (args.experts.asked(), args.experts.expert_cache);
        let asked = Asked { matrices, cache: args.cache, experts, expert_cache, ..Asked::default() };
        let named = self::matrices(&asked.apply(LoadOptions::for_gpu()), is_gguf);
        let plan =
            Model { config: &config, is_quantized, storage: &storage, adapter: &|_| AdapterBytes::default() };
        Candidate { model: String::new(), matrices: named, plan, asked }.row(&work, target, limit)
    });
    Ok((work, rows.collect()))
}

/// The types of GGUF files that are planned for published models.
const MIXES: [Mix; 4] = [Mix::F16, Mix::Q8_0, Mix::Q6_K, Mix::Q4_K_M];

/// The first of these types in which all of a published model stays on the card.
pub(super) fn first_that_fits(
    size: Size,
    mixes: &[Mix],
    work: &Workload,
    target: &Target,
) -> Result<Option<Mix>, Failure> {
    let config = size.config()?;
    let fits = |mix: &Mix| {
        let row = row_of_family(&config, size, *mix, None, work, target, target.limit);
        row.is_whole() && row.vision == Some("gpu")
    };
    Ok(mixes.iter().copied().find(fits))
}

/// A published model in one type.
fn row_of_family(
    config: &Config,
    size: Size,
    mix: Mix,
    cache: Option<KvFormat>,
    work: &Workload,
    target: &Target,
    limit: usize,
) -> Row {
    let stored = mix.storage(config);
    let storage =
        |_: &LoadOptions, name: &str| stored.get(name).copied().unwrap_or(Storage::Float(DType::F16));
    let plan = Model { config, is_quantized: true, storage: &storage, adapter: &|_| AdapterBytes::default() };
    let (model, matrices) = (size.name().to_owned(), mix.name().to_owned());
    let asked = Asked { cache, ..Asked::default() };
    Candidate { model, matrices, plan, asked }.row(work, target, limit)
}

/// The rows of the published models.
fn rows_of_family(
    image: [usize; 2],
    image_tokens: Option<ImageTokens>,
    context: usize,
    cache: Option<KvFormat>,
    target: &Target,
    limit: usize,
) -> Result<(Workload, Vec<Row>), Failure> {
    let (mut rows, mut last) = (Vec::new(), None);
    for &size in Size::value_variants() {
        let config = size.config()?;
        if config.text.experts.is_some() {
            continue; // their estimates have not been compared with a run yet; a mixture that is named is planned
        }
        let work = work(&config, context, tokens_of(&config, image, image_tokens, Some(target), limit)?);
        for mix in MIXES {
            rows.push(row_of_family(&config, size, mix, cache, &work, target, limit));
        }
        last = Some(work);
    }
    let work = last.unwrap_or(Workload { context, prompt: context, patches: 0 });
    Ok((work, rows))
}

/// A type of matrices, spread over several cards.
#[derive(Serialize)]
struct SplitRow {
    matrices: String,
    fits: bool,
    /// Whether its sizes are multiples of the cards', where each has a part of every layer.
    divides: bool,
    /// Why it does not fit.
    reason: Option<String>,
    cache: Option<String>,
    vision: Option<&'static str>,
    devices: Vec<DeviceRow>,
}

/// One card's part.
#[derive(Serialize)]
struct DeviceRow {
    device: String,
    limit: usize,
    layers: usize,
    has_vision: bool,
    peak: usize,
    footprint: Footprint,
}

#[derive(Serialize)]
struct SplitJson<'a> {
    devices: &'a [String],
    context: usize,
    prompt: usize,
    patches: usize,
    /// The row that `generate` would choose.
    chosen: Option<usize>,
    rows: &'a [SplitRow],
}

/// The plan of a model over several cards.
fn run_split(args: &Args) -> Result<(), Failure> {
    args.experts.check(true, true, false)?;
    let report = args.output.report()?;
    let Some(path) = &args.model else {
        return Err(Failure::Usage("a split is planned for a model: name one".to_owned()));
    };
    let cards = match args.card.is_empty() {
        false => args.card.iter().map(|card| Target::of_card(card)).collect::<Vec<_>>(),
        true => {
            let devices = args.several.open(&args.device)?.unwrap_or_default();
            devices.iter().map(Target::of_device).collect::<Result<_, _>>()?
        }
    };
    args.several.check()?;
    let ratio = args.several.ratio();
    if ratio.is_some_and(|ratio| ratio.len() != cards.len()) {
        return Err(Failure::Usage(format!(
            "--split has {} shares for {} cards",
            ratio.map_or(0, <[f64]>::len),
            cards.len()
        )));
    }
    let limit_of = |card: &Target| args.memory_limit.map_or(card.limit, |limit| limit.min(card.limit));
    let of = |card: &Target| split::Target { gpu: card.gpu, limit: limit_of(card), speed: card.peaks.memory };
    let targets: Vec<_> = cards.iter().map(of).collect();
    let scratch = tempfile::tempdir()?; // beginnings of files on the hub
    let path = hub::locate_headers(path, scratch.path(), &args.output)?;
    let checkpoint = Checkpoint::open(&path, args.mmproj.as_deref())?;
    let config = checkpoint.config()?;
    let tokens = tokens_of(&config, args.image, args.image_tokens, None, 0)?;
    let work = work(&config, args.context, tokens);
    let storage = |options: &LoadOptions, name: &str| checkpoint.storage(&config, options, name);
    let is_gguf = checkpoint.gguf().is_some();
    let plan = Model {
        config: &config,
        is_quantized: checkpoint.is_quantized(),
        storage: &storage,
        adapter: &|_| AdapterBytes::default(),
    };
    let usual = LoadOptions::for_gpu();
    let mut rows = Vec::new();
    for matrices in kinds(plan.is_quantized) {
        let asked = Asked { matrices, cache: args.cache, ..Asked::default() };
        let named = self::matrices(&asked.apply(usual), is_gguf);
        let found = match args.several.mode() {
            SplitMode::Layer => plan.fit_split(usual, &asked, &work, &targets, ratio),
            SplitMode::Row => plan.fit_rows(usual, &asked, &work, &targets),
        };
        rows.push(match found {
            Err(error) => SplitRow {
                matrices: named,
                fits: false,
                divides: !matches!(error, Error::Unsupported { op: "row split", .. }),
                reason: Some(error.to_string()),
                cache: None,
                vision: None,
                devices: Vec::new(),
            },
            Ok(split) => SplitRow {
                matrices: named,
                fits: true,
                divides: true,
                reason: None,
                cache: Some(split.options.cache.to_string()),
                vision: Some(vision_place(&split.options)),
                devices: (0..cards.len())
                    .map(|index| DeviceRow {
                        device: cards[index].name.clone(),
                        limit: targets[index].limit,
                        layers: split.layers[index],
                        has_vision: index == split.vision,
                        peak: split.footprints[index].peak,
                        footprint: split.footprints[index],
                    })
                    .collect(),
            },
        });
    }
    let chosen = rows.iter().position(|row| row.fits);
    let mut screen = args.output.screen();
    let Workload { context, prompt, patches } = work;
    let names: Vec<_> = cards.iter().map(|card| card.name.clone()).collect();
    let heading = format!("{}: {context} tokens, a picture of {patches} patches", names.join(" + "));
    screen.text(&heading, Style::Heading)?;
    screen.line("")?;
    let table = screen.table(vec![
        Column::left("", 1),
        Column::left("matrices", 17),
        Column::left("cache", 5),
        Column::left("vision", 6),
        Column::left("device", names.iter().map(String::len).max().unwrap_or(0)),
        Column::right("layers", 7),
        Column::right("memory", 9),
        Column::right("of", 9),
    ]);
    screen.line(&table.header(""))?;
    let mib = |bytes: usize| format!("{} MiB", bytes.div_ceil(1 << 20));
    for (index, row) in rows.iter().enumerate() {
        let star = if chosen == Some(index) { "*" } else { "" };
        if !row.fits {
            let why = if row.divides { "no room" } else { "indivisible" };
            let cells = ["", &row.matrices, "", "", why, "", "", ""];
            screen.line(&table.row(&cells.map(|cell| (cell.to_owned(), Style::Faint))))?;
        }
        for (at, device) in row.devices.iter().enumerate() {
            let first = |text: &str| if at == 0 { text.to_owned() } else { String::new() };
            let cells = [
                first(star),
                first(&row.matrices),
                first(row.cache.as_deref().unwrap_or_default()),
                if device.has_vision { row.vision.unwrap_or_default().to_owned() } else { String::new() },
                device.device.clone(),
                format!("{}/{}", device.layers, config.text.num_hidden_layers),
                mib(device.peak),
                mib(device.limit),
            ];
            screen.line(&table.row(&cells.map(|cell| (cell, Style::Plain))))?;
        }
    }
    screen.line("")?;
    screen.faint("Memory is planned for each card, and does not count the driver's context.")?;
    if let Some(report) = report {
        report.write(&SplitJson { devices: &names, context, prompt, patches, chosen, rows: &rows })?;
    }
    match chosen {
        Some(_) => Ok(()),
        None => Err(Failure::Failed(rows.first().and_then(|row| row.reason.clone()).unwrap_or_default())),
    }
}

/// The types that a model's files may be loaded in.
fn kinds(is_quantized: bool) -> Vec<Option<Matrices>> {
    let formats = [Format::Q8_0, Format::Q6K, Format::Q5K, Format::Q4K].map(Matrices::Quantized);
    match is_quantized {
        true => vec![None],
        false => [Matrices::Float(DType::F16)].into_iter().chain(formats).map(Some).collect(),
    }
}

fn vision_place(options: &LoadOptions) -> &'static str {
    match options.vision {
        VisionPlace::Resident => "gpu",
        VisionPlace::Streamed => "stream",
        VisionPlace::Cpu => "cpu",
    }
}

/// The last section of docs/cards.md, which takes too long to be made for each table: `scripts/model-estimates` makes it.
const WHOLE_MODEL: &str = include_str!("model-estimates.md");

/// docs/cards.md.
fn markdown() -> Result<String, Failure> {
    let mut text = String::from(
        "# Models by card\n\nPrinted by `pascaline fit --table`; a test compares. Every number is **planned or estimated**: \
         nothing here was run on a Pascal card.\n\n\
         The question has a picture of 1024 × 1024 (1024 tokens) and text; the context is what prompt and answer have together. \
         A cell says what `generate` would choose and what it would take: the type of the cache if it is not f32, `e` if \
         embedding rows are read from host memory, `v` if the vision tower's weights pass through from host memory, the layers on the GPU if not all; the memory besides the driver's \
         context, for which 128 MiB are left; and estimates of the seconds to the first token and of tokens per second, from \
         data-sheet rates.\n",
    );
    for context in [2048, 8192, 32768] {
        text += &format!("\n## {context} tokens\n\n| model | type |");
        for card in Card::ALL {
            text += &format!(" {} |", card.name.trim_start_matches("GeForce "));
        }
        text += &format!("\n|---|---|{}\n", "---|".repeat(Card::ALL.len()));
        let targets: Vec<_> = Card::ALL.iter().map(|card| Target::of_card(card)).collect();
        let columns = targets
            .iter()
            .map(|target| Ok(rows_of_family([1024, 1024], None, context, None, target, target.limit)?.1))
            .collect::<Result<Vec<_>, Failure>>()?;
        let (first, _) = columns.split_first().ok_or(Failure::Wrong)?;
        for (index, row) in first.iter().enumerate() {
            text += &format!("| {} | {} |", row.model, row.matrices);
            for column in &columns {
                text += &format!(" {} |", cell(&column[index]));
            }
            text += "\n";
        }
    }
    Ok(text + WHOLE_MODEL)
}

/// A cell of docs/cards.md.
fn cell(row: &Row) -> String {
    let (Some(peak), Some(estimate), Some(on_gpu)) = (row.peak, row.estimate, row.gpu_layers) else {
        return "–".to_owned();
    };
    let mut how = Vec::new();
    how.extend(row.cache.clone().filter(|cache| cache != "f32"));
    how.extend((row.embedding == Some("host")).then(|| "e".to_owned()));
    how.extend((row.vision == Some("stream")).then(|| "v".to_owned()));
    how.extend((on_gpu < row.layers).then(|| format!("{on_gpu}/{}", row.layers)));
    let how = if how.is_empty() { String::new() } else { format!("{}: ", how.join(" ")) };
    let gib = peak as f64 / (1u64 << 30) as f64;
    let rate = estimate.tokens_per_second;
    let digits = usize::from(rate < 9.95);
    format!("{how}{gib:.1} GiB, {:.1} s, {rate:.digits$}/s", estimate.first_token)
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.table {
        return Ok(write!(io::stdout(), "{}", markdown()?)?);
    }
    if args.card.len() > 1 || args.several.are_given() {
        return run_split(args);
    }
    args.experts.check(true, false, false)?;
    let report = args.output.report()?;
    let target = match args.card.first() {
        Some(card) => Target::of_card(card),
        None => Target::of_device(&args.device.open()?.0)?,
    };
    let limit = args.memory_limit.map_or(target.limit, |limit| limit.min(target.limit));
    let (work, rows) = match &args.model {
        Some(path) => rows_of_files(args, path, &target, limit)?,
        None => rows_of_family(args.image, args.image_tokens, args.context, args.cache, &target, limit)?,
    };
    // All layers on the GPU come before better types with some of them streamed, as in `Model::fit`.
    let whole = rows.iter().position(Row::is_whole);
    let chosen = whole.or_else(|| rows.iter().rposition(|row| row.fits)).filter(|_| args.model.is_some());
    let mut screen = args.output.screen();
    let Workload { context, prompt, patches } = work;
    let name = &target.name;
    screen.text(
        &format!("{name}, {} MiB, {context} tokens, a picture of {patches} patches", limit >> 20),
        Style::Heading,
    )?;
    screen.line("")?;
    let mut columns = vec![
        Column::left("", if args.model.is_some() { 1 } else { 5 }),
        Column::left("matrices", 17),
        Column::left("cache", 5),
        Column::left("vision", 6),
        Column::left("embedding", 9),
        Column::right("layers", 7),
        Column::right("memory", 9),
        Column::right("first token", 11),
        Column::right("tokens/s", 8),
    ];
    let is_mixture = rows.iter().any(|row| row.experts.is_some());
    if is_mixture {
        columns.extend([Column::left("experts", 12), Column::right("host memory", 11)]);
    }
    let table = screen.table(columns);
    screen.line(&table.header(""))?;
    for (index, row) in rows.iter().enumerate() {
        let style = if row.fits { Style::Plain } else { Style::Faint };
        let number = |number: Option<f64>, unit: &str| {
            number.map_or_else(String::new, |number| format!("{number:.1}{unit}"))
        };
        let mut cells = vec![
            if chosen == Some(index) { "*".to_owned() } else { row.model.clone() },
            row.matrices.clone(),
            row.cache.clone().unwrap_or_default(),
            row.vision.unwrap_or_default().to_owned(),
            row.embedding.unwrap_or_default().to_owned(),
            row.gpu_layers.map_or_else(|| "no room".to_owned(), |on_gpu| format!("{on_gpu}/{}", row.layers)),
            row.peak.map_or_else(String::new, |bytes| format!("{} MiB", bytes.div_ceil(1 << 20))),
            number(row.estimate.map(|estimate| estimate.first_token), " s"),
            number(row.estimate.map(|estimate| estimate.tokens_per_second), ""),
        ];
        if is_mixture {
            let on_gpu =
                row.cached_experts.zip(row.experts_of_layer).map(|(here, of)| format!("{here}/{of}"));
            cells
                .push(row.experts.map(str::to_owned).into_iter().chain(on_gpu).collect::<Vec<_>>().join(" "));
            let host = row.footprint.map(|footprint| footprint.host.div_ceil(1 << 20));
            cells.push(host.map_or_else(String::new, |mib| format!("{mib} MiB")));
        }
        let cells: Vec<_> = cells.into_iter().map(|cell| (cell, style)).collect();
        screen.line(&table.row(&cells))?;
    }
    screen.line("")?;
    screen.faint("Memory is planned, and does not count the driver's context. Times are estimates from data-sheet rates.")?;
    if let Some(report) = report {
        report.write(&Json { card: name, limit, context, prompt, patches, chosen, rows: &rows })?;
    }
    match rows.iter().find(|row| row.fits) {
        Some(_) => Ok(()),
        None => Err(Failure::Failed(rows.first().and_then(|row| row.reason.clone()).unwrap_or_default())),
    }
}
