//! `pascaline profile`: counts what the kernels of a case do on the virtual GPU, and estimates their time on Pascal cards.

use super::bench::VIRTUAL;
use super::costs::{Costs, MODEL, Total, print_assumptions};
use super::failure::Failure;
use super::output::Output;
use super::profile_model::{self, ModelProfile};
use super::ptxas::{self, Registers};
use super::run_ptx::{OfLine, by_line, print_lines};
use super::screen::Style;
use pascaline::cuda::{self, is_lost};
use pascaline::{Device, Tensor, TensorMut};
use pascaline_testing::check::Verdict;
use pascaline_testing::{self as testing, Case, Purpose, check_with};
use pascaline_virtual_gpu::{
    Card, Config, LaunchReport, Module, configure, keep_reports, take_findings, take_reports,
};
use serde::Serialize;
use std::cell::Cell;

/// More cases than this are probably a mistake, and long to read.
const MOST_CASES: usize = 8;

/// Runs the cases once on the virtual GPU. For each kernel: the instruction mix, the share of FFMA or dp4a, sectors per
/// request, bank conflicts, divergence, arithmetic intensity, registers, occupancy, and the estimated time and what
/// bounds it on each Pascal card.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Profile the cases whose id contains this, or the one with this id; test cases and bench cases.
    #[arg(value_name = "CASE", required_unless_present = "model")]
    case: Option<String>,

    /// Profile all matching cases, however many, and also those that are too large for the virtual GPU.
    #[arg(long)]
    all: bool,

    /// Check the results too, as `validate` does; for large cases on sampled rows.
    #[arg(long, conflicts_with = "model")]
    check: bool,

    #[command(flatten)]
    pub of_model: ModelProfile,

    #[command(flatten)]
    pub ptxas: ptxas::Choice,

    #[command(flatten)]
    pub output: Output,
}

/// A case's launches, or why there are none.
#[derive(Serialize)]
struct Profiled {
    id: String,
    /// Why it was not run, or its error.
    message: Option<String>,
    failed: bool,
    kernels: Vec<Costs>,
    /// By line of the source, if the PTX holds lines.
    lines: Vec<OfLine>,
    total: Total,
}

#[derive(Serialize)]
struct Json<'a> {
    model: [&'static str; 2],
    registers: &'a str,
    cases: &'a [Profiled],
    /// The sum over all cases.
    total: Total,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if let Some(model) = &args.of_model.model {
        return profile_model::run(&args.of_model, &args.ptxas, &args.output, model);
    }
    let cases = chosen(args.case.as_deref().unwrap_or_default(), args.all)?;
    let report = args.output.report()?;
    let mut screen = args.output.screen();
    let config = Config::from_env().map_err(Failure::Usage)?;
    configure(Config { traffic: true, ..config }).map_err(|error| Failure::Failed(error.to_string()))?;
    let device = Device::virtual_gpu()?;
    let ptx = cuda::ptx()?;
    let module =
        Module::parse(&ptx).map_err(|error| Failure::Failed(format!("the kernels' PTX: {error}")))?;

    screen.start(cases.len());
    keep_reports();
    let mut launched: Vec<(String, Outcome)> = Vec::new();
    for case in &cases {
        screen.doing(&case.id());
        launched.push((case.id(), one(case.as_ref(), &device, args.all, args.check)));
        screen.done();
    }
    screen.finish();

    let reports = launched.iter().filter_map(|(_, outcome)| outcome.as_ref().ok()).flatten();
    let mut kernels: Vec<&str> = reports.map(|report| report.kernel.as_str()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    let registers = Registers::count(&args.ptxas, &ptx, &module, &kernels)?;
    let profiled: Vec<Profiled> = launched
        .into_iter()
        .map(|(id, outcome)| match outcome {
            Ok(reports) => {
                let kernels = Costs::all(&reports, &registers, &Card::ALL);
                let total = Total::sum(kernels.iter());
                Profiled { id, message: None, failed: false, kernels, lines: by_line(&reports), total }
            }
            Err((message, failed)) => {
                let total = Total::sum([].into_iter());
                Profiled { id, message: Some(message), failed, kernels: Vec::new(), lines: Vec::new(), total }
            }
        })
        .collect();
    let total = Total::sum(profiled.iter().flat_map(|case| &case.kernels));

    for case in &profiled {
        screen.line(&screen.colours.paint(Style::Heading, &case.id))?;
        if let Some(message) = &case.message {
            let style = if case.failed { Style::Bad } else { Style::Faint };
            screen.entry("  ", message, style)?;
        } else if case.kernels.is_empty() {
            screen.line("  launches no kernel")?;
        }
        for costs in &case.kernels {
            costs.print(&mut screen)?;
        }
        print_lines(&case.lines, &mut screen)?;
        if case.total.launches > 1 {
            case.total.print("total", &mut screen)?;
        }
        screen.line("")?;
    }
    let with_kernels = profiled.iter().filter(|case| case.total.launches > 0).count();
    if with_kernels > 1 {
        total.print(&format!("total of {with_kernels} cases"), &mut screen)?;
        screen.line("")?;
    }
    print_assumptions(&registers, &mut screen)?;
    if let Some(report) = report {
        report.write(&Json { model: MODEL, registers: &registers.source, cases: &profiled, total })?;
    }
    if profiled.iter().any(|case| case.failed) { Err(Failure::Wrong) } else { Ok(()) }
}

/// The cases that the name selects.
fn chosen(name: &str, all: bool) -> Result<Vec<Box<dyn Case>>, Failure> {
    let mut cases = testing::cases();
    let mut ops: Vec<_> = cases.iter().map(|case| case.op()).collect();
    ops.dedup();
    match cases.iter().any(|case| case.id() == name) {
        true => cases.retain(|case| case.id() == name),
        false => cases.retain(|case| case.id().contains(name)),
    }
    let count = cases.len();
    match count {
        0 => {
            let ops = ops.join(", ");
            Err(Failure::Usage(format!("no case's id contains `{name}`; the ops are {ops}")))
        }
        _ if count > MOST_CASES && !all => Err(Failure::Usage(format!(
            "{count} cases' ids contain `{name}`, {} to {}; give a longer part of an id, or `--all`",
            cases[0].id(),
            cases[count - 1].id()
        ))),
        _ => Ok(cases),
    }
}

/// The launches of a case; or why there are none, and whether that is a failure.
pub(super) type Outcome = Result<Vec<LaunchReport>, (String, bool)>;

pub(super) fn one(case: &dyn Case, device: &Device, all: bool, is_checked: bool) -> Outcome {
    if is_lost() {
        return Err(("not run after the device stopped".into(), false));
    }
    if case.purpose() == Purpose::Bench && !all && !VIRTUAL.covers(case) {
        return Err((format!("left out: {}; `--all` runs it", VIRTUAL.rule()), false));
    }
    let work = || {
        let inputs = case.inputs();
        let on_device = inputs.iter().map(|input| input.to(device)).collect::<pascaline::Result<Vec<_>>>()?;
        let reports = Cell::new(Vec::new());
        let run = |y: TensorMut, x: &[Tensor]| {
            device.synchronize()?;
            take_reports(); // drops the reports of launches that prepared the inputs
            case.run(y, x)?;
            device.synchronize()?;
            reports.set(take_reports());
            Ok(())
        };
        if is_checked {
            let outcome = check_with(case, device, &inputs, &on_device, &run)?;
            return Ok((reports.take(), Some(outcome.verdict).filter(|verdict| *verdict != Verdict::Pass)));
        }
        let mut y = match case.initial() {
            Some(initial) => initial.to(device)?,
            None => Tensor::uninitialized(case.output().0, case.output().1, device)?,
        };
        run(y.view_mut()?, &on_device)?;
        Ok((reports.take(), None))
    };
    let result: pascaline::Result<_> = work();
    match (take_findings().first(), result) {
        (Some(finding), _) => Err((finding.to_string(), true)),
        (None, Err(error)) => Err((error.to_string(), true)),
        (None, Ok((_, Some(wrong)))) => Err((wrong.to_string(), true)),
        (None, Ok((reports, None))) => Ok(reports),
    }
}
