//! `pascaline profile --model`: counts every launch of a prompt's prefill and of a decoded token on the virtual GPU, and
//! estimates the time of both on one Pascal card.
//!
//! All layers have the same launches, with other weights. So each distinct launch is run once, and its counts are used for
//! the others (`Config::once`). The model's results are then meaningless, and only its launches are used.

use super::bench_model::{GO_ON, Subject, options};
use super::costs::{Costs, MODEL, print_assumptions};
use super::device::DeviceArg;
use super::failure::Failure;
use super::model::{LoadArgs, ModelArgs, Work};
use super::output::Output;
use super::ptxas::{self, Registers};
use super::screen::Style;
use super::table::{self, Column, percent};
use super::types::cache_formats;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use pascaline::kv::KvFormat;
use pascaline::{Device, cuda};
use pascaline_virtual_gpu::{
    Card, Checks, Config, LaunchReport, Module, configure, keep_reports, take_findings, take_reports,
};
use qwen3_vl::footprint::Workload;
use qwen3_vl::sampling::{Constraint, Sampler};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The options of `--model`.
#[derive(clap::Args)]
pub(super) struct ModelProfile {
    /// Estimate a whole model on one card instead: prefill of a prompt, and decode of one token. A directory, a GGUF file
    /// or a name on the hub, as `generate` takes it; what is placed where is chosen as there.
    #[arg(long, value_name = "MODEL", conflicts_with_all = ["case", "all"])]
    pub model: Option<PathBuf>,

    /// The card that the virtual GPU simulates.
    #[arg(long, value_name = "CARD", value_parser = cards(), default_value = "gtx1080", requires = "model")]
    card: &'static Card,

    /// Tokens of the prompt.
    #[arg(
        long,
        short,
        value_name = "N",
        default_value = "512",
        requires = "model",
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    prompt_tokens: u32,

    /// The type of keys and values, as `generate` has it.
    #[arg(long, value_name = "TYPE", value_parser = cache_formats(), ignore_case = true, requires = "model")]
    cache: Option<KvFormat>,
}

fn cards() -> impl TypedValueParser<Value = &'static Card> {
    let by_name = |id: String| Card::by_name(&id).ok_or("no such card");
    PossibleValuesParser::new(Card::KNOWN.map(|card| card.id)).try_map(by_name)
}

/// Tokens until each is a single graph launch: the first is the prefill's, and the second's pass captures the graph.
const ANSWER: usize = 3;

/// One pass.
#[derive(Serialize)]
struct Pass {
    /// As `bench --model` names it.
    test: String,
    tokens: usize,
    launches: usize,
    seconds: f64,
    tokens_per_second: f64,
    /// Seconds of launches, by the resource that bounds them.
    bounds: BTreeMap<&'static str, f64>,
    kernels: Vec<Costs>,
}

impl Pass {
    fn new(
        test: String,
        tokens: usize,
        reports: &[LaunchReport],
        registers: &Registers,
        card: &'static Card,
    ) -> Self {
        let kernels = Costs::all(reports, registers, &[card]);
        let mut bounds = BTreeMap::new();
        for costs in &kernels {
            for on_card in &costs.estimates {
                *bounds.entry(on_card.bound).or_default() += costs.launches as f64 * on_card.seconds;
            }
        }
        let seconds: f64 = bounds.values().sum();
        let tokens_per_second = tokens as f64 / seconds;
        Self { test, tokens, launches: reports.len(), seconds, tokens_per_second, bounds, kernels }
    }

    /// `DRAM 71%, launch 20%`
    fn shares(&self) -> String {
        let mut bounds: Vec<_> = self.bounds.iter().collect();
        bounds.sort_by(|a, b| b.1.total_cmp(a.1));
        let shares =
            bounds.iter().map(|(bound, seconds)| format!("{bound} {}", percent(*seconds / self.seconds)));
        shares.collect::<Vec<_>>().join(", ")
    }
}

#[derive(Serialize)]
struct Json<'a> {
    /// The assumptions of the estimates.
    model: [&'static str; 2],
    registers: &'a str,
    card: &'static str,
    name: &'static str,
    cache: &'static str,
    passes: &'a [Pass],
}

/// Chooses the first token whatever the logits. Of equal launches one is run, so most values are not computed, and some may be NaN.
struct FirstToken;

impl Constraint for FirstToken {
    fn mask(&mut self, logits: &mut [f32]) -> pascaline::Result<()> {
        logits.fill(f32::NEG_INFINITY);
        logits.iter_mut().take(1).for_each(|logit| *logit = 0.0);
        Ok(())
    }

    fn accept(&mut self, _token: u32) -> pascaline::Result<()> {
        Ok(())
    }
}

pub(super) fn run(
    own: &ModelProfile,
    ptxas: &ptxas::Choice,
    output: &Output,
    path: &Path,
) -> Result<(), Failure> {
    let (card, prompt_tokens) = (own.card, own.prompt_tokens as usize);
    let config = Config::from_env().map_err(Failure::Usage)?;
    configure(Config { card, checks: Checks::NONE, traffic: true, once: true, late: false, ..config })
        .map_err(|error| Failure::Failed(error.to_string()))?;
    let load = LoadArgs { cache: own.cache, ..LoadArgs::default() };
    let model_args = ModelArgs::new(path.to_owned(), DeviceArg::default(), load);
    model_args.check()?;
    let report = output.report()?;
    let device = Device::virtual_gpu()?;
    let opened = model_args.open(&device, output)?;
    let context = prompt_tokens + ANSWER;
    let limit = opened.config.text.max_position_embeddings;
    if context > limit {
        return Err(Failure::Usage(format!("{context} tokens are needed; the model has {limit}")));
    }
    let most = Workload { context, prompt: prompt_tokens, patches: 0 };
    let work = Work { most: Some(most), exactly: &|_| Ok(vec![most]) };
    let loaded = model_args.load(&opened, &device, &work, output)?;
    let streamed = loaded.model.streamed_layers();
    if loaded.model.host_expert_layers() > 0 {
        let reason =
            format!("not all experts fit a {}; the time of those in host memory is not estimated", card.name);
        return Err(Failure::Failed(reason));
    }
    if streamed > 0 {
        let reason =
            format!("{streamed} layers would be streamed on a {}, which is not estimated", card.name);
        return Err(Failure::Failed(reason));
    }

    let subject = Subject::new(&loaded.model)?;
    let prompt = subject.prompt(0, prompt_tokens, 0)?;
    let mut session = loaded.model.session()?;
    let asked = options(ANSWER);
    let sampler = Sampler::new(asked.sampling.clone(), &prompt.ids)?.constrained(Some(Box::new(FirstToken)));
    keep_reports();
    let mut passes = Vec::new();
    loaded
        .model
        .generate_with(&mut session, &prompt, &asked, sampler, |step| {
            if step.id.is_some() {
                passes.push(take_reports());
            }
            GO_ON
        })
        .map_err(|error| model_args.failure(error))?;
    if let Some(finding) = take_findings().first() {
        return Err(Failure::Failed(finding.to_string()));
    }
    let [prefill, .., decode] = passes.as_slice() else { return Err(Failure::Wrong) };

    let ptx = cuda::ptx()?;
    let module =
        Module::parse(&ptx).map_err(|error| Failure::Failed(format!("the kernels' PTX: {error}")))?;
    let mut kernels: Vec<_> = prefill.iter().chain(decode).map(|report| report.kernel.as_str()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    let registers = Registers::count(ptxas, &ptx, &module, &kernels)?;
    let after = prompt_tokens + ANSWER - 2;
    let passes = [
        Pass::new(format!("pp{prompt_tokens}"), prompt_tokens, prefill, &registers, card),
        Pass::new(format!("tg1 @ d{after}"), 1, decode, &registers, card),
    ];

    let mut screen = output.screen();
    screen.text(&format!("{}, estimated", card.name), Style::Heading)?;
    let table = screen.table(vec![
        Column::left("", 12),
        Column::right("launches", 8),
        Column::right("time", 9),
        Column::right("tokens/s", 9),
        Column::left("bound by", 60),
    ]);
    screen.line(&table.header("pass"))?;
    for pass in &passes {
        let cells = [
            pass.test.clone(),
            pass.launches.to_string(),
            table::time(Duration::from_secs_f64(pass.seconds)),
            format!("{:.1}", pass.tokens_per_second),
            pass.shares(),
        ];
        screen.line(&table.row(&cells.map(|cell| (cell, Style::Plain))))?;
    }
    screen.line("")?;
    print_assumptions(&registers, &mut screen)?;
    let cache = own.cache.unwrap_or(KvFormat::F32).name();
    let (id, name) = (card.id, card.name);
    let json = Json { model: MODEL, registers: &registers.source, card: id, name, cache, passes: &passes };
    report.map_or(Ok(()), |report| report.write(&json))
}
