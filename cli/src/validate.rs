//! `pascaline validate`: checks every case against its reference, and prints a row for each op.

use super::case_args::CaseArgs;
use super::devices::DevicesArgs;
use super::environment::Environment;
use super::experts::Place;
use super::failure::Failure;
use super::screen::Style;
use super::table::{self, Column, Table};
use super::types::{StorageType, VisionScoresArg, cache_formats, weight_types};
use super::validate_model::{self, Types};
use super::validate_train;
use pascaline::cuda::{is_lost, trace};
use pascaline::kv::KvFormat;
use pascaline::{DType, Device};
use pascaline_testing::{Case, Purpose, check};
use qwen3_vl::Matrices;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Runs every test case twice into a poisoned and guarded output and compares each element with a naive reference
/// in double precision.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    select: CaseArgs,

    /// Check a model instead: run the cases of its cases.json, or of the cases_gguf.json in a GGUF file's folder, and
    /// compare every stage with the reference's results.
    #[arg(long, value_name = "DIR|FILE")]
    model: Option<PathBuf>,

    /// With --model, check training instead: the gradients, and the losses of AdamW steps and of adapters, against the
    /// cases_train.json in this folder.
    #[arg(long, value_name = "DIR", requires = "model", conflicts_with_all = ["mmproj", "dtype", "vision_dtype", "vision_scores", "cache", "experts"])]
    train: Option<PathBuf>,

    /// With --model, the vision file of a GGUF model; if not given, the one in the same folder that fits.
    #[arg(long, value_name = "FILE", requires = "model")]
    mmproj: Option<PathBuf>,

    /// With --model, the type of its matrices; f32 if not given.
    #[arg(long, value_name = "TYPE", requires = "model")]
    dtype: Option<StorageType>,

    /// With --model, the type of the vision tower's matrices, if different; the column `embeddings` shows its error.
    #[arg(long, value_name = "TYPE", requires = "model", value_parser = weight_types(), ignore_case = true)]
    vision_dtype: Option<Matrices>,

    /// With --model, how the vision tower multiplies queries and keys; the column `embeddings` shows the error.
    #[arg(long, value_name = "TYPE", requires = "model", default_value = "f32")]
    vision_scores: VisionScoresArg,

    /// With --model, the type of keys and values in the cache; f32 if not given.
    #[arg(long, value_name = "TYPE", requires = "model", value_parser = cache_formats(), ignore_case = true)]
    cache: Option<KvFormat>,

    /// With --model, where the experts of a mixture are; on the GPU if not given. With auto the CPU computes passes of up to 8 tokens, and
    /// the others are streamed.
    #[arg(long, value_name = "PLACE", requires = "model")]
    experts: Option<Place>,

    /// With --model, only the runs with these names; if not given, all.
    #[arg(long, value_name = "NAME,…", requires = "model", value_delimiter = ',')]
    runs: Vec<String>,

    #[command(flatten)]
    several: DevicesArgs,

    /// Also check the large shapes that `bench` times, on sampled rows.
    #[arg(long)]
    all: bool,
}

/// The result of a case.
#[derive(Default, Serialize)]
pub(super) struct Checked {
    pub id: String,
    pub passed: bool,
    pub max_error: Option<f64>,
    /// The largest error as a share of the tolerance.
    pub worst_share: Option<f64>,
    tolerance_abs: Option<f64>,
    tolerance_rel: Option<f64>,
    reason: Option<&'static str>,
    /// The kernels that it launched; `None` on the CPU.
    kernels: BTreeSet<&'static str>,
    /// The error, if there is one.
    pub message: Option<String>,
}

#[derive(Serialize)]
struct Json<'a> {
    environment: &'a Environment,
    passed: bool,
    cases: &'a [Checked],
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let output = &args.select.output;
    if let (Some(model), Some(folder)) = (&args.model, &args.train) {
        return validate_train::run(model, folder, &args.select.device, output);
    }
    if let Some(model) = &args.model {
        let types = Types {
            matrices: args.dtype.map_or(DType::F32, StorageType::dtype),
            vision: args.vision_dtype,
            scores: args.vision_scores.scores(),
            cache: args.cache,
            experts: args.experts,
        };
        let devices = (&args.select.device, &args.several);
        return validate_model::run((model, args.mmproj.as_deref()), &args.runs, devices, types, output);
    }
    if args.several.are_given() {
        return Err(Failure::Usage(
            "--devices, --split and --between are for --model; ops run on one device".to_owned(),
        ));
    }
    let cases = args.select.cases(|case| args.all || case.purpose() == Purpose::Test)?;
    let (device, reason) = args.select.device.open()?;
    let report = output.report()?;
    let mut screen = output.screen();
    let environment = Environment::new(&device);
    screen.text(&environment.line(), Style::Heading)?;
    if let Some(reason) = reason {
        screen.faint(&format!("taken because {reason}"))?;
    }
    screen.line("")?;

    let table = screen.table(vec![
        Column::left("op", cases.iter().map(|case| case.op().len()).max().unwrap_or(0)),
        Column::left("", 4),
        Column::right("cases", 5),
        Column::right("worst error", 11),
        Column::right("of tolerance", 12),
        Column::left("which allows for", 0),
    ]);
    screen.line(&table.header("op"))?;
    screen.start(cases.len());
    let mut all = Vec::new();
    for of_op in cases.chunk_by(|a, b| a.op() == b.op()) {
        let mut checked = Vec::new();
        for case in of_op {
            screen.doing(&case.id());
            checked.push(check_one(case.as_ref(), &device));
            screen.done();
            if is_lost() {
                break; // the process can't use the GPU any more
            }
        }
        let op = of_op.first().map_or("", |case| case.op());
        screen.line(&line(op, &checked, &table))?;
        for case in checked.iter().filter(|case| !case.passed) {
            let what = format!("  {}: {}", case.id, case.message.as_deref().unwrap_or_default());
            screen.text(&what, Style::Bad)?;
        }
        all.append(&mut checked);
        if is_lost() {
            screen.line(&format!("{} cases were not run after the GPU stopped", cases.len() - all.len()))?;
            break;
        }
    }
    screen.finish();

    let failed = all.iter().filter(|case| !case.passed).count();
    screen.line("")?;
    let (text, style) = match failed {
        0 => (format!("all {} cases pass on {device}", all.len()), Style::Good),
        _ => (format!("{failed} of {} cases FAIL on {device}", all.len()), Style::Bad),
    };
    screen.line(&screen.colours.paint(style, &text))?;
    if let Some(report) = report {
        report.write(&Json { environment: &environment, passed: failed == 0, cases: &all })?;
    }
    if failed > 0 { Err(Failure::Wrong) } else { Ok(()) }
}

/// Checks one case.
pub(super) fn check_one(case: &dyn Case, device: &Device) -> Checked {
    let id = case.id();
    let (outcome, kernels) = trace(|| check(case, device));
    let kernels = kernels.into_iter().collect();
    match outcome {
        Ok(outcome) => Checked {
            id,
            passed: outcome.passed(),
            max_error: Some(outcome.max_error),
            worst_share: Some(outcome.worst_share),
            tolerance_abs: Some(outcome.tolerance.abs),
            tolerance_rel: Some(outcome.tolerance.rel),
            reason: Some(outcome.tolerance.reason),
            kernels,
            message: (!outcome.passed()).then(|| outcome.verdict.to_string()),
        },
        Err(error) => Checked { id, kernels, message: Some(error.to_string()), ..Checked::default() },
    }
}

/// An op's row: it shows the case that came closest to its tolerance.
fn line(op: &str, checked: &[Checked], table: &Table) -> String {
    let share = |case: &&Checked| case.worst_share.unwrap_or(f64::INFINITY);
    let worst = checked.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
    let verdict = match checked.iter().all(|case| case.passed) {
        true => ("PASS".to_owned(), Style::Good),
        false => ("FAIL".to_owned(), Style::Bad),
    };
    let dash = || "–".to_owned();
    let plain = |text: String| (text, Style::Plain);
    let cells = [
        plain(op.to_owned()),
        verdict,
        plain(checked.len().to_string()),
        plain(worst.and_then(|case| case.max_error).map_or_else(dash, table::error)),
        plain(worst.and_then(|case| case.worst_share).map_or_else(dash, table::percent)),
        (worst.and_then(|case| case.reason).unwrap_or_default().to_owned(), Style::Faint),
    ];
    table.row(&cells)
}
