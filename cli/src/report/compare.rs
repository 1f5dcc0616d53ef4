//! `pascaline report --compare`: compares the estimates in reports with the measurements there.

use super::estimates::{Card, Estimate, simulated};
use super::probes::Probes;
use super::ratio::{Ratio, Summary};
use crate::failure::Failure;
use crate::files::read_input;
use crate::output::Output;
use crate::screen::{Screen, Style};
use crate::table::{Column, time};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The number of worst cases to list.
const NAMED: usize = 10;
/// The largest report to read.
const MOST_BYTES: u64 = 64 << 20;

/// The fields that are read from a report.
#[derive(Deserialize)]
struct Report {
    report: u32,
    environment: Environment,
    /// None in reports of earlier versions.
    probes: Option<Probes>,
    bench: Option<Bench>,
    estimates: Option<Estimates>,
    model: Option<Model>,
}

#[derive(Deserialize)]
struct Environment {
    pascaline: String,
    commit: Option<String>,
    driver: Option<Driver>,
}

#[derive(Deserialize)]
struct Driver {
    cuda: String,
    version: Option<String>,
}

#[derive(Deserialize)]
struct Bench {
    cases: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    id: String,
    median_ms: Option<f64>,
    variant: Option<String>,
}

#[derive(Deserialize)]
struct Estimates {
    card: Card,
    cases: Vec<Estimate>,
}

#[derive(Deserialize)]
struct Model {
    estimate: Option<ModelEstimate>,
    measured: Option<Measured>,
}

#[derive(Deserialize)]
struct ModelEstimate {
    first_token: f64,
    tokens_per_second: f64,
}

#[derive(Deserialize)]
struct Measured {
    time_to_first_token: f64,
    decode_tokens_per_second: f64,
}

/// The comparison for one report.
#[derive(Serialize)]
struct Compared {
    card: String,
    /// Over all cases that were estimated from counts of the timed kernels.
    cost_model: Option<Summary>,
    groups: Vec<Summary>,
    /// Seconds to the first token, measured over estimated.
    first_token: Option<f64>,
    /// Seconds per token after it, measured over estimated.
    per_token: Option<f64>,
    probes: Option<Probes>,
    cases: Vec<Ratio>,
}

#[derive(Serialize)]
struct Json<'a> {
    reports: &'a [Compared],
    /// Over all reports.
    cost_model: Option<Summary>,
}

pub(super) fn run(files: &[PathBuf], again: bool, output: &Output) -> Result<(), Failure> {
    let reports = files.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>()?;
    let to = output.report()?;
    let mut screen = output.screen();
    let mut all = Vec::new();
    for report in reports {
        all.push(compare(report, again, &mut screen)?);
        screen.line("")?;
    }
    let cost_model = Summary::new(all.iter().flat_map(|one| counted(&one.cases)));
    if let (2.., Some(summary)) = (all.len(), &cost_model) {
        screen.text(&format!("all reports: {}", sentence(summary)), Style::Heading)?;
    }
    screen.faint("Ratios are measured over estimated time: above 1 the card is slower than estimated.")?;
    match to {
        Some(to) => to.write(&Json { reports: &all, cost_model }),
        None => Ok(()),
    }
}

fn read(file: &Path) -> Result<Report, Failure> {
    let wrong =
        |why: &dyn std::fmt::Display| Failure::Failed(format!("{} is no report: {why}", file.display()));
    let text = read_input(file, MOST_BYTES).map_err(|error| wrong(&error))?;
    let report: Report = serde_json::from_slice(&text).map_err(|error| wrong(&error))?;
    match report.report {
        1 => Ok(report),
        form => Err(wrong(&format!("it is of form {form}, and this program reads form 1"))),
    }
}

/// Cases whose own kernels were counted: the ones that test the cost model.
fn counted(ratios: &[Ratio]) -> impl Iterator<Item = &Ratio> {
    ratios.iter().filter(|ratio| ratio.by == super::estimates::By::Counts && !ratio.other_kernels)
}

fn sentence(summary: &Summary) -> String {
    let Summary { cases, geometric_mean, worst, worst_ratio, .. } = summary;
    format!(
        "{geometric_mean:.2}× the estimate, geometric mean of {cases} cases; worst {worst_ratio:.2}× ({worst})"
    )
}

fn compare(report: Report, again: bool, screen: &mut Screen) -> Result<Compared, Failure> {
    let Report { environment, probes, bench, estimates, model, .. } = report;
    let rows = bench.map_or_else(Vec::new, |bench| bench.cases);
    let Some(Estimates { card, mut cases }) = estimates else {
        return Err(Failure::Failed("a report was interrupted before its estimates".to_owned()));
    };
    if again {
        let ids: Vec<_> = cases.iter().map(|case| case.id.clone()).collect();
        screen.start(ids.len());
        let found = simulated(&card, &ids, |_| false, screen)?;
        screen.finish();
        for estimate in found {
            if let Some(old) = cases.iter_mut().find(|old| old.id == estimate.id) {
                *old = estimate;
            }
        }
    }
    let ratio = |estimate: &Estimate| {
        let row = rows.iter().find(|row| row.id == estimate.id)?;
        Ratio::new(estimate, row.median_ms?, row.variant.as_deref())
    };
    let cases: Vec<_> = cases.iter().filter_map(ratio).collect();
    let model = model.and_then(|model| Some((model.estimate?, model.measured?)));
    let compared = Compared {
        cost_model: Summary::new(counted(&cases)),
        groups: Summary::by_group(&cases),
        first_token: model.as_ref().map(|(estimate, found)| found.time_to_first_token / estimate.first_token),
        per_token: model
            .as_ref()
            .filter(|(_, found)| found.decode_tokens_per_second > 0.0)
            .map(|(estimate, found)| estimate.tokens_per_second / found.decode_tokens_per_second),
        card: card.name.clone(),
        probes,
        cases,
    };
    let driver = environment.driver.map_or_else(String::new, |driver| {
        format!(", driver {} (CUDA {})", driver.version.as_deref().unwrap_or("unknown"), driver.cuda)
    });
    let commit = environment.commit.map_or_else(String::new, |commit| format!(" of {commit}"));
    let heading = format!(
        "{}, {} SMs at {} MHz, {:.0} GB/s{driver}, by pascaline {}{commit}",
        card.name, card.multiprocessors, card.clock_mhz, card.bandwidth, environment.pascaline
    );
    screen.text(&heading, Style::Heading)?;
    print(&compared, screen)?;
    Ok(compared)
}

fn print(compared: &Compared, screen: &mut Screen) -> Result<(), Failure> {
    let width = compared.groups.iter().map(|group| group.title().len()).max().unwrap_or(0);
    let table = screen.table(vec![
        Column::left("", width + 2),
        Column::right("cases", 5),
        Column::right("mean", 7),
        Column::right("worst", 7),
        Column::left("which is", 0),
    ]);
    screen.line(&table.header("estimates from"))?;
    for group in &compared.groups {
        let cells = [
            format!("  {}", group.title()),
            group.cases.to_string(),
            format!("{:.2}×", group.geometric_mean),
            format!("{:.2}×", group.worst_ratio),
            group.worst.clone(),
        ];
        screen.line(&table.row(&cells.map(|cell| (cell, Style::Plain))))?;
    }
    match &compared.cost_model {
        Some(summary) => screen.text(&format!("cost model: {}", sentence(summary)), Style::Plain)?,
        None => screen.line("cost model: no case's own kernels were counted")?,
    }
    if let (Some(first), Some(each)) = (compared.first_token, compared.per_token) {
        screen
            .line(&format!("model: first token {first:.2}×, each after it {each:.2}× the estimated time"))?;
    }
    if let Some(probes) = &compared.probes {
        probes.print(screen)?;
    }
    let mut worst: Vec<_> = counted(&compared.cases).collect();
    worst.sort_by(|a, b| b.ratio.ln().abs().total_cmp(&a.ratio.ln().abs()));
    worst.truncate(NAMED);
    if worst.is_empty() {
        return Ok(());
    }
    let width = worst.iter().map(|case| case.id.len()).max().unwrap_or(0);
    let table = screen.table(vec![
        Column::left("", width + 2),
        Column::right("measured", 9),
        Column::right("estimated", 9),
        Column::right("ratio", 7),
        Column::left("limited by", 0),
    ]);
    screen.line(&table.header("the least true"))?;
    for case in worst {
        let seconds = |seconds: f64| time(Duration::from_secs_f64(seconds));
        let cells = [
            format!("  {}", case.id),
            seconds(case.measured_seconds),
            seconds(case.estimated_seconds),
            format!("{:.2}×", case.ratio),
            case.bound.clone(),
        ];
        screen.line(&table.row(&cells.map(|cell| (cell, Style::Plain))))?;
    }
    Ok(())
}
