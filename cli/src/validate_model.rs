//! `pascaline validate --model DIR|FILE`: compares a model with the reference's results on the same checkpoint.

use super::device::DeviceArg;
use super::devices::DevicesArgs;
use super::environment::Environment;
use super::experts::Place;
use super::failure::Failure;
use super::hub;
use super::model::check_model;
use super::output::Output;
use super::screen::Style;
use super::table::{self, Column};
use pascaline::DType;
use pascaline::kv::KvFormat;
use qwen3_vl::placement::in_ratio;
use qwen3_vl::validate::{Limits, RunReport, check_run};
use qwen3_vl::{Checkpoint, LanguageModel, LoadOptions, Matrices, SplitMode, VisionScores, cases};
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct Json<'a> {
    environment: &'a Environment,
    passed: bool,
    capacity: &'a Capacity,
    limits: Limits,
    runs: &'a [RunReport],
}

/// The checkpoint's sizes, all of which are used.
#[derive(Serialize)]
struct Capacity {
    text_layers: usize,
    text_heads: usize,
    text_kv_heads: usize,
    vision_blocks: usize,
    vision_heads: usize,
    parameters: usize,
}

/// The types of a model's weights and cache.
pub(super) struct Types {
    pub matrices: DType,
    /// The vision tower's type, if different.
    pub vision: Option<Matrices>,
    /// How the vision tower multiplies queries and keys.
    pub scores: VisionScores,
    /// The type of keys and values; `None`: the default.
    pub cache: Option<KvFormat>,
    /// Where experts are; `None`: on the GPU.
    pub experts: Option<Place>,
}

/// Runs every case of `cases.json` and `cases_video.json`, or of `cases_gguf.json`, and prints the worst error of each
/// stage.
pub(super) fn run(
    (path, mmproj): (&Path, Option<&Path>),
    only: &[String],
    (device, several): (&DeviceArg, &DevicesArgs),
    types: Types,
    output: &Output,
) -> Result<(), Failure> {
    let located = hub::locate(path, output)?;
    let path = located.as_path();
    check_model(path)?;
    let runs = cases::load(path)?.ok_or_else(|| {
        let cases =
            if path.is_dir() { "has no cases.json" } else { "is in no cases_gguf.json of its folder" };
        Failure::Failed(format!("{} {cases} to compare with; `generate` uses it", path.display()))
    })?;
    let unknown = only.iter().find(|name| runs.iter().all(|run| run.name != **name));
    if let Some(name) = unknown {
        let names: Vec<_> = runs.iter().map(|run| run.name.as_str()).collect();
        return Err(Failure::Usage(format!("--runs: there is no {name:?}, only {}", names.join(", "))));
    }
    let runs: Vec<_> = runs.into_iter().filter(|run| only.is_empty() || only.contains(&run.name)).collect();
    let devices = several.open(device)?;
    let device = match &devices {
        Some(devices) => devices[0].clone(),
        None => device.open()?.0,
    };
    let device = &device;
    let report = output.report()?;
    let mut screen = output.screen();
    let environment = Environment::new(device);
    screen.text(&environment.line(), Style::Heading)?;
    let usual = LoadOptions::for_device(device);
    let Types { matrices: dtype, vision: vision_matrices, scores: vision_scores, cache, experts } = types;
    let experts = experts.map_or(usual.experts, |place| place.placement(8));
    let cache = cache.unwrap_or(usual.cache);
    let options =
        LoadOptions { dtype, keep_quantized: false, cache, vision_matrices, vision_scores, experts, ..usual };
    let checkpoint = Checkpoint::open(path, mmproj)?;
    let model = match &devices {
        None => LanguageModel::load_checkpoint(&checkpoint, device, options, |_| {})?,
        Some(devices) => {
            let (all, equal) = (checkpoint.config()?.text.num_hidden_layers, vec![1.0; devices.len()]);
            let (layers, what) = match several.mode() {
                SplitMode::Layer => (in_ratio(all, several.ratio().unwrap_or(&equal)), "layers"),
                SplitMode::Row => (vec![all; devices.len()], "parts of layers"),
            };
            let placement = several.place(devices, &layers, 0)?;
            let each = devices.iter().zip(&layers).map(|(device, layers)| format!("{layers} on {device}"));
            let each: Vec<_> = each.collect();
            screen.text(&format!("{what}: {}", each.join(", ")), Style::Plain)?;
            LanguageModel::load_placed(&checkpoint, None, &placement, options, |_| {})?
        }
    };
    let of_its_own = vision_matrices.is_some_and(|vision| vision != Matrices::Float(dtype));
    let is_int8 = vision_scores == VisionScores::Int8;
    let rounded = dtype != DType::F32 || options.cache != KvFormat::F32 || of_its_own || is_int8;
    let limits = if dtype == DType::F16 {
        Limits::F16
    } else if device.is_cuda() {
        Limits::F32_GPU
    } else {
        Limits::F32
    };
    let limits = limits.with_cache(options.cache, model.config().text.num_hidden_layers);
    let limits =
        vision_matrices.map_or(limits, |vision| limits.with_vision(vision, model.config().vision_depth()));
    let limits = if is_int8 { limits.with_int8_scores(model.config().vision_depth()) } else { limits };
    let config = model.config();
    let capacity = Capacity {
        text_layers: config.text.num_hidden_layers,
        text_heads: config.text.num_attention_heads,
        text_kv_heads: config.text.num_key_value_heads,
        vision_blocks: config.vision_depth(),
        vision_heads: config.vision.as_ref().map_or(0, |vision| vision.sizes().heads),
        parameters: model.parameters(),
    };
    let text = format!(
        "every tensor is in use: {} layers of {} heads ({} for keys and values), {} vision blocks of {} heads, \
         {} parameters, matrices in {dtype}, keys and values in {}",
        capacity.text_layers,
        capacity.text_heads,
        capacity.text_kv_heads,
        capacity.vision_blocks,
        capacity.vision_heads,
        capacity.parameters,
        options.cache
    );
    screen.text(&text, Style::Plain)?;
    screen.line("")?;

    let table = screen.table(vec![
        Column::left("run", runs.iter().map(|run| run.name.len()).max().unwrap_or(0)),
        Column::left("", 4),
        Column::right("pixels equal", 12).rank(2),
        Column::right("embeddings", 10),
        Column::right("deepstack", 9),
        Column::left("positions", 9).rank(1),
        Column::right("hidden", 9),
        Column::right("logits", 9),
        Column::left("tokens", 6),
    ]);
    screen.line(&table.header("run"))?;
    screen.start(runs.len());
    let mut reports = Vec::new();
    let exact_ids = !rounded;
    for run in &runs {
        screen.doing(&run.name);
        let found = check_run(&model, run)?;
        screen.done();
        let passed = found.passed(&limits, exact_ids);
        let plain = |text: String| (text, Style::Plain);
        let stage = |name: &str| plain(found.worst(name).map_or_else(|| "–".into(), table::error));
        let verdict = |ok: bool| match ok {
            true => ("equal".to_owned(), Style::Plain),
            false => ("DIFFER".to_owned(), Style::Bad),
        };
        let cells = [
            plain(found.name.clone()),
            if passed { ("PASS".to_owned(), Style::Good) } else { ("FAIL".to_owned(), Style::Bad) },
            plain(found.pixels.map_or_else(|| "–".into(), |pixels| table::percent(pixels.equal))),
            stage("image_embeds"),
            stage("deepstack"),
            found.positions_equal.map_or_else(|| plain("–".into()), verdict),
            stage("hidden"),
            stage("logits"),
            verdict(found.generated_equal && found.prompt_ids_equal),
        ];
        screen.line(&table.row(&cells))?;
        reports.push(found);
    }
    screen.finish();
    screen.say_what_is_left_out()?;
    let failed = reports.iter().filter(|report| !report.passed(&limits, exact_ids)).count();
    screen.line("")?;
    let other_ids = reports.iter().filter(|report| !report.generated_equal).count();
    let (text, style) = match (failed, other_ids) {
        (0, 0) => (format!("all {} runs are the reference's on {device}", reports.len()), Style::Good),
        (0, _) => {
            let all = reports.len();
            (
                format!(
                    "all {all} runs are close to the reference's on {device}; {other_ids} give other tokens"
                ),
                Style::Good,
            )
        }
        _ => (format!("{failed} of {} runs DIFFER on {device}", reports.len()), Style::Bad),
    };
    screen.line(&screen.colours.paint(style, &format!("{text} (stages within {:.0e})", limits.stage)))?;
    if let Some(report) = report {
        let passed = failed == 0;
        report.write(&Json {
            environment: &environment,
            passed,
            capacity: &capacity,
            limits,
            runs: &reports,
        })?;
    }
    if failed > 0 { Err(Failure::Wrong) } else { Ok(()) }
}
