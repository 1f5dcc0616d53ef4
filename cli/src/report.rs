//! `pascaline report`: everything that the project wants to know about a card that it has not run on, in one file.

mod compare;
mod estimates;
mod model;
mod page;
mod privacy;
mod probes;
mod ratio;
mod time;
mod watch;

use super::bench::{Bench, Budget};
use super::bench_row::{Row, prefix};
use super::ceiling::Ceilings;
use super::device::DeviceArg;
use super::environment::Environment;
use super::failure::Failure;
use super::files;
use super::json::Report;
use super::output::Output;
use super::screen::{Screen, Style};
use super::validate::{Checked, check_one};
use estimates::{Card, Estimate};
use model::Modelled;
use pascaline::Device;
use pascaline::cuda::{CudaDevice, is_lost};
use pascaline::governor::Sustained;
use pascaline_testing::{self as testing, Case, Purpose};
use probes::Probes;
use serde::Serialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use time::{BENCH, ESTIMATES, TimeLimit, VALIDATE};
use watch::{Temperatures, Thermometer};

/// The default file of the results; the page for people has the same name with the ending .md.
const FILE: &str = "pascaline-report.json";
/// The longest time to keep a GPU busy before the first timing.
const WARM_UP: Duration = Duration::from_secs(10);

/// Measures a card once, for this project: checks every op, times every op next to the estimate for this very card, answers
/// with a model of random weights that fits, and records temperature, clock and power. It asks no questions.
///
/// Writes pascaline-report.json and pascaline-report.md. Neither has names of hosts, users or folders, nor serial numbers.
/// Ctrl-C ends the measurements early and writes the results so far.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    device: DeviceArg,

    /// The most minutes to take. Ops that do not fit in this time are left out, large ones first.
    #[arg(long, value_name = "MINUTES", default_value = "10", value_parser = minutes, allow_negative_numbers = true)]
    minutes: f64,

    /// Only probe the GPU's multiprocessor: a few milliseconds, and no files unless --json names one.
    #[arg(long, conflicts_with_all = ["compare", "minutes"])]
    probes: bool,

    /// Measure nothing; show by how much the estimates in these reports are off.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "device")]
    compare: Vec<PathBuf>,

    /// With --compare: compute the estimates again, with this program's cost model and kernels.
    #[arg(long, requires = "compare")]
    again: bool,

    /// Read a card and ids of cases from stdin, and print an estimate for each. A report starts this in a process of its
    /// own, to have the virtual GPU there.
    #[arg(long, hide = true, conflicts_with_all = ["compare", "device", "probes"])]
    estimate: bool,

    #[command(flatten)]
    output: Output,
}

fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes| (0.01..=60.0).contains(minutes));
    minutes.ok_or_else(|| "it must be a number from 0.01 to 60".to_owned())
}

/// The report. Its parts are filled in one after another; those to come are null.
#[derive(Serialize)]
struct Findings {
    /// The version of this format. It changes when a field changes its meaning.
    report: u32,
    environment: Environment,
    minutes_allowed: f64,
    seconds_taken: f64,
    interrupted: bool,
    temperatures: Option<Temperatures>,
    validate: Option<Validated>,
    probes: Option<Probes>,
    bench: Option<Timed>,
    estimates: Option<Estimated>,
    model: Option<Modelled>,
}

/// The result of `validate`.
#[derive(Serialize)]
struct Validated {
    passed: bool,
    cases_not_run: usize,
    cases: Vec<Checked>,
}

/// The result of `bench`.
#[derive(Default, Serialize)]
struct Timed {
    cases_not_run: usize,
    /// Why cases were left out, if they are too large for the device.
    left_out_rule: Option<String>,
    ceilings: Ceilings,
    sustained: Option<Sustained>,
    cases: Vec<Row>,
    /// Why it is empty.
    message: Option<String>,
}

/// The project's own estimates for this card.
#[derive(Serialize)]
struct Estimated {
    card: Card,
    cases: Vec<Estimate>,
    /// Why there are no simulated ones.
    message: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.estimate {
        return estimates::serve();
    }
    if !args.compare.is_empty() {
        return compare::run(&args.compare, args.again, &args.output);
    }
    let (device, reason) = args.device.open()?;
    let Device::Cuda(cuda) = &device else {
        let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        let nothing =
            if args.probes { "on the CPU there is nothing to probe" } else { "a report is of a GPU" };
        return Err(Failure::Usage(format!(
            "{nothing}{why}; `--device virtual` makes one of the virtual GPU"
        )));
    };
    let output = &args.output;
    if args.probes {
        return only_probes(&device, cuda, output);
    }
    let mut report = match output.report()? {
        Some(report) => report,
        None => Report::open(Path::new(FILE), output.may_replace())?,
    };
    let page = page_file(output);
    page.as_deref().map_or(Ok(()), |page| files::check(page, output.may_replace()))?;
    let time = TimeLimit::begin(args.minutes)?;
    let thermometer = Thermometer::watch(cuda);
    let mut screen = output.screen();
    let mut findings = Findings {
        report: 1,
        environment: Environment::new(&device),
        minutes_allowed: args.minutes,
        seconds_taken: 0.0,
        interrupted: false,
        temperatures: None,
        validate: None,
        probes: None,
        bench: None,
        estimates: None,
        model: None,
    };
    screen.text(&findings.environment.line(), Style::Heading)?;
    screen.faint(&format!(
        "this takes up to {} minutes; Ctrl-C ends it early, with what there is",
        args.minutes
    ))?;
    let mut keep = |findings: &mut Findings, time: &TimeLimit| {
        findings.seconds_taken = time.taken().as_secs_f64();
        findings.interrupted = time.interrupted();
        findings.temperatures = Some(thermometer.so_far());
        report.write_partial(&privacy::redacted(findings)?)
    };

    findings.validate = Some(validate(&device, &time, &mut screen)?);
    keep(&mut findings, &time)?;
    let probes = Probes::measure(cuda);
    screen.text(
        &format!("probed: {} loops of known instructions{}", probes.probes.len(), probes.remark()),
        if probes.is_wrong() { Style::Bad } else { Style::Plain },
    )?;
    findings.probes = Some(probes);
    keep(&mut findings, &time)?;
    let folder = page.as_deref().and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    findings.model = Some(model::measure(&device, folder, &time, &mut screen));
    keep(&mut findings, &time)?;
    let card = Card::from_properties(cuda.properties());
    let (timed, chosen) = bench(&device, &time, &mut screen)?;
    findings.bench = Some(timed);
    keep(&mut findings, &time)?;
    findings.estimates = Some(estimate(card, &findings, &chosen, &time, &mut screen)?);
    keep(&mut findings, &time)?;
    screen.finish();

    if let Some(modelled) = &findings.model {
        screen.text(&modelled.line(), Style::Plain)?;
    }
    let text = privacy::redacted_text(&page::markdown(&findings));
    report.write(&privacy::redacted(&findings)?)?;
    match &page {
        Some(page) => {
            files::write(page, text.as_bytes(), output.may_replace())?;
            let json = output.file().unwrap_or(Path::new(FILE)).display().to_string();
            screen.line(&format!("written: {json} and {}", page.display()))?;
            screen.faint("Please attach both to an issue of this project. They hold no names of hosts, users or folders.")?;
        }
        None => screen.line(&text)?,
    }
    if findings.is_wrong() { Err(Failure::Wrong) } else { Ok(()) }
}

/// The file that `--probes` writes.
#[derive(Serialize)]
struct OnlyProbes {
    environment: Environment,
    probes: Probes,
}

fn only_probes(device: &Device, cuda: &CudaDevice, output: &Output) -> Result<(), Failure> {
    let to = output.report()?;
    let mut screen = output.screen();
    let found = OnlyProbes { environment: Environment::new(device), probes: Probes::measure(cuda) };
    screen.text(&found.environment.line(), Style::Heading)?;
    found.probes.print(&mut screen)?;
    to.map_or(Ok(()), |to| to.write(&privacy::redacted(&found)?))?;
    if found.probes.is_wrong() { Err(Failure::Wrong) } else { Ok(()) }
}

/// The path of the page: next to the JSON; `None` if that goes to stdout.
fn page_file(output: &Output) -> Option<PathBuf> {
    match output.stdout_is_taken() {
        true => None,
        false => Some(output.file().unwrap_or(Path::new(FILE)).with_extension("md")),
    }
}

impl Findings {
    /// Whether a result was wrong.
    fn is_wrong(&self) -> bool {
        let wrong = |timed: &Timed| timed.cases.iter().any(|row| row.status == "failed");
        self.validate.as_ref().is_some_and(|validated| !validated.passed)
            || self.probes.as_ref().is_some_and(Probes::is_wrong)
            || self.bench.as_ref().is_some_and(wrong)
    }
}

/// Checks the test cases: the first of every op and type, then the second, and so on.
fn validate(device: &Device, time: &TimeLimit, screen: &mut Screen) -> Result<Validated, Failure> {
    let cases = spread(testing::cases().into_iter().filter(|case| case.purpose() == Purpose::Test).collect());
    screen.start(cases.len());
    let part = time.until(VALIDATE);
    let mut checked = Vec::new();
    for case in &cases {
        if part.is_over_after(checked.len()) || is_lost() {
            break;
        }
        screen.doing(&case.id());
        checked.push(check_one(case.as_ref(), device));
        screen.done();
    }
    screen.finish();
    let failed = checked.iter().filter(|case| !case.passed).count();
    let not_run = cases.len() - checked.len();
    let text = format!("checked: {} of {} cases, {failed} FAILED", checked.len(), cases.len());
    let (text, style) =
        if failed > 0 { (text, Style::Bad) } else { (text.replace("0 FAILED", "all right"), Style::Good) };
    screen.line(&screen.colours.paint(style, &text))?;
    Ok(Validated { passed: failed == 0, cases_not_run: not_run, cases: checked })
}

/// Times the bench cases: the first of every op and type, then the second, and so on. Returns the cases too.
fn bench(
    device: &Device,
    time: &TimeLimit,
    screen: &mut Screen,
) -> Result<(Timed, Vec<Box<dyn Case>>), Failure> {
    let cases: Vec<_> =
        testing::cases().into_iter().filter(|case| case.purpose() == Purpose::Bench).collect();
    let limit = Budget::for_device(device);
    let (chosen, left_out): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|case| limit.is_none_or(|limit| limit.covers(case.as_ref())));
    // the smaller ones first, so that a short time has many
    let chosen = spread_by(chosen, |case| case.flops().max(case.output().0.elements() as f64) as u64);
    if time.interrupted() {
        screen.line(&format!("timed: 0 of {} cases", chosen.len()))?;
        return Ok((Timed { cases_not_run: chosen.len(), ..Timed::default() }, chosen));
    }
    screen.start(chosen.len());
    screen.doing("measuring what the device can do, and warming up");
    let (begun, part) = (Instant::now(), time.until(BENCH));
    let bench = Bench::new(device.clone(), &chosen, None);
    let bench =
        bench.and_then(|bench| bench.warm_up(WARM_UP.min(time.allowed().mul_f64(0.03))).map(|()| bench));
    let mut bench = match bench {
        // baseline kernels take long, and a report needs no comparison with them
        Ok(mut bench) => {
            bench.baselines = false;
            bench
        }
        Err(error) => {
            screen.finish();
            let message = Some(error.to_string());
            return Ok((Timed { cases_not_run: chosen.len(), message, ..Timed::default() }, chosen));
        }
    };
    let mut rows = Vec::new();
    for case in &chosen {
        if part.is_over_after(rows.len()) || is_lost() {
            break;
        }
        screen.doing(&case.id());
        rows.push(bench.case(case.as_ref()));
        screen.done();
        bench.pacer.pace();
    }
    screen.finish();
    let failed = rows.iter().filter(|row| row.status == "failed").count();
    let text = format!("timed: {} of {} cases", rows.len(), chosen.len());
    match failed {
        0 => screen.line(&text)?,
        _ => screen.text(&format!("{text}, {failed} FAILED"), Style::Bad)?,
    }
    let timed = Timed {
        cases_not_run: chosen.len() - rows.len(),
        left_out_rule: limit.filter(|_| !left_out.is_empty()).map(Budget::rule),
        sustained: bench.pacer.since(begun),
        ceilings: bench.ceilings,
        cases: rows,
        message: None,
    };
    Ok((timed, chosen))
}

/// Estimates the time of the timed cases: from the virtual GPU's counts while there is time, the rest from sizes only.
fn estimate(
    card: Card,
    findings: &Findings,
    chosen: &[Box<dyn Case>],
    time: &TimeLimit,
    screen: &mut Screen,
) -> Result<Estimated, Failure> {
    let rows = findings.bench.iter().flat_map(|timed| &timed.cases);
    let timed: HashMap<&str, &Row> =
        rows.filter(|row| row.median_ms.is_some()).map(|row| (row.id.as_str(), row)).collect();
    let cases: Vec<_> = chosen.iter().filter(|case| timed.contains_key(case.id().as_str())).collect();
    let ids: Vec<_> = cases.iter().map(|case| case.id()).collect();
    screen.start(ids.len());
    let part = time.until(ESTIMATES);
    let simulated = estimates::simulated(&card, &ids, |found| part.is_over_after(found), screen);
    screen.finish();
    let (mut found, message) = match simulated {
        Ok(found) => (found, None),
        Err(failure) => (Vec::new(), Some(failure.sentence().unwrap_or_default().to_owned())),
    };
    screen.line(&format!(
        "estimated: {} of {} by the virtual GPU's counts, the others from sizes",
        found.len(),
        ids.len()
    ))?;
    for case in &cases {
        let id = case.id();
        if found.iter().any(|estimate| estimate.id == id) {
            continue;
        }
        if let Some(row) = timed.get(id.as_str()) {
            // inverse of how the rate was computed from the bytes
            let bytes = row.gbps.unwrap_or(0.0) * row.median_ms.unwrap_or(0.0) * 1e6;
            found.push(Estimate::from_sizes(case.as_ref(), bytes, &card, row.variant.as_deref()));
        }
    }
    Ok(Estimated { card, cases: found, message })
}

/// Orders the cases: the first of every op and type, then the second, and so on.
fn spread(cases: Vec<Box<dyn Case>>) -> Vec<Box<dyn Case>> {
    spread_by(cases, |_| 0)
}

/// As [`spread`]; of the first ones those with the smallest keys come first, and so on.
fn spread_by(cases: Vec<Box<dyn Case>>, key: impl Fn(&dyn Case) -> u64) -> Vec<Box<dyn Case>> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let mut ranked: Vec<_> = cases
        .into_iter()
        .map(|case| {
            let count = seen.entry(prefix(&case.id()).to_owned()).or_default();
            *count += 1;
            // tables of embeddings take seconds to generate
            ((*count, case.op() == "embedding", key(case.as_ref())), case)
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, case)| case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_comes_before_the_second_case_of_any() {
        let cases = spread(testing::cases());
        let prefixes: Vec<_> = cases.iter().map(|case| prefix(&case.id()).to_owned()).collect();
        let mut ops = prefixes.clone();
        ops.sort_unstable();
        ops.dedup();
        let mut first = prefixes[..ops.len()].to_vec();
        first.sort_unstable();
        assert_eq!(first, ops);
        assert_eq!(cases.len(), testing::cases().len());
    }

    #[test]
    fn minutes_are_checked() {
        assert_eq!(minutes("0.5"), Ok(0.5));
        for wrong in ["0", "-1", "61", "ten", "NaN"] {
            assert!(minutes(wrong).is_err(), "{wrong}");
        }
    }
}
