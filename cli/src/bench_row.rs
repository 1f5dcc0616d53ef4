//! A case's row in `pascaline bench`: its results as JSON and as cells of a table.

use super::ceiling::{Bound, Ceilings};
use super::measure::Times;
use super::screen::Style;
use super::table::{self, Cell, Column};
use pascaline_testing::{self as testing, Case, Outcome};
use serde::Serialize;
use std::time::Duration;

/// A case's row.
#[derive(Default, Serialize)]
pub(super) struct Row {
    pub id: String,
    /// `ok`, `failed` or `left out`.
    pub status: &'static str,
    /// The error, if there is one.
    pub message: Option<String>,
    /// The kernels launched, in order, or `cpu`.
    pub variant: Option<String>,
    pub samples: Option<usize>,
    /// The multiprocessors' mean clock during timing, if the GPU reports it.
    pub clock_mhz: Option<u32>,
    pub median_ms: Option<f64>,
    pub min_ms: Option<f64>,
    pub gflops: Option<f64>,
    pub gbps: Option<f64>,
    /// The name of the ceiling that `percent` is of.
    pub ceiling: Option<&'static str>,
    pub percent: Option<f64>,
    /// The time of a device copy of as many bytes, in percent of ours; for memory-bound cases.
    pub same_size_percent: Option<f64>,
    pub baseline_ms: Option<f64>,
    pub speedup: Option<f64>,
    pub cublas_ms: Option<f64>,
    /// cuBLAS's median over ours: above 1 ours is faster.
    pub ratio: Option<f64>,
    pub max_error: Option<f64>,
    /// The largest error as a share of the tolerance.
    pub worst_share: Option<f64>,
    pub tolerance: Option<Tolerance>,
}

#[derive(Serialize)]
pub(super) struct Tolerance {
    pub abs: f64,
    pub rel: f64,
    pub reason: &'static str,
}

/// The kernels in the order of their first launch; `None` on a CPU.
pub(super) fn variant(kernels: &[&str]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in kernels {
        if !names.contains(name) {
            names.push(name);
        }
    }
    if names.is_empty() { "cpu".to_owned() } else { names.join(" + ") }
}

impl Row {
    pub fn new(case: &dyn Case, status: &'static str, message: Option<String>) -> Self {
        Self { id: case.id(), status, message, ..Self::default() }
    }

    pub fn failed(mut self, message: String) -> Self {
        self.status = "failed";
        self.message = Some(message);
        self
    }

    pub fn checked(&mut self, outcome: &Outcome) {
        let testing::Tolerance { abs, rel, reason } = outcome.tolerance;
        self.max_error = Some(outcome.max_error);
        self.worst_share = Some(outcome.worst_share);
        self.tolerance = Some(Tolerance { abs, rel, reason });
    }

    pub fn timed(&mut self, case: &dyn Case, bytes: f64, times: Times, ceilings: &Ceilings) {
        let seconds = times.median.as_secs_f64();
        let flops = case.flops();
        self.samples = Some(times.samples);
        self.median_ms = Some(ms(times.median));
        self.min_ms = Some(ms(times.min));
        self.gflops = Some(flops / seconds / 1e9);
        self.gbps = Some(bytes / seconds / 1e9);
        if let Some((ceiling, work)) = ceilings.for_work(Bound::new(case), flops, bytes) {
            self.ceiling = Some(ceiling.name);
            self.percent = Some(100.0 * work / seconds / ceiling.per_second);
        }
    }
}

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The unit of rates for this ceiling.
pub(super) fn unit(ceiling: &str) -> &'static str {
    match ceiling {
        "copy" | "launch" => "GB/s",
        "dp4a" => "GOP/s",
        _ => "GFLOP/s",
    }
}

const SAME_SIZE: &str = "of a copy";
const CUBLAS: &str = "vs cuBLAS";
const BASELINE: &str = "vs naive";

/// Wide enough for the shapes of most ops, so that their tables line up.
const LABEL_WIDTH: usize = 27;

pub(super) fn columns(cases: &[Box<dyn Case>], split: bool, baseline: bool, cublas: bool) -> Vec<Column> {
    let widths = cases.iter().map(|case| label(&case.id(), split).chars().count());
    let mut columns = vec![
        Column::left("case", widths.fold(LABEL_WIDTH, usize::max)),
        Column::right("median", 8),
        Column::right("min", 8).rank(8),
        Column::right("rate", 13).rank(2),
        Column::right("of ceiling", 10).rank(1),
    ];
    if baseline {
        columns.push(Column::right(SAME_SIZE, 9).rank(4));
        columns.push(Column::right(BASELINE, 8).rank(5));
    }
    if cublas {
        columns.push(Column::right(CUBLAS, 9).rank(3));
    }
    columns.extend([
        Column::right("error", 7).rank(6),
        Column::right("of tol.", 7).rank(7),
        Column::left("kernel", 0).rank(9),
    ]);
    columns
}

/// The op and type at the start of an id.
pub(super) fn prefix(id: &str) -> &str {
    id.split_once('/').map_or(id, |(prefix, _)| prefix)
}

/// The id, without the prefix if that is the table's title.
fn label(id: &str, split: bool) -> String {
    match id.split_once('/') {
        Some((_, shape)) if split => format!("  {shape}"),
        _ => id.to_owned(),
    }
}

pub(super) fn cells(row: &Row, columns: &[Column], split: bool) -> Vec<Cell> {
    let time = |ms: Option<f64>| ms.map(|ms| table::time(Duration::from_secs_f64(ms / 1e3)));
    let factor = |factor: Option<f64>| factor.map(|factor| format!("{factor:.2}×"));
    let unit = unit(row.ceiling.unwrap_or("copy"));
    let rate = if unit == "GB/s" { row.gbps } else { row.gflops };
    let cell = |column: &Column| {
        let text = match column.title {
            "case" => return (label(&row.id, split), Style::Plain),
            "median" if row.status == "failed" => return ("FAILED".to_owned(), Style::Bad),
            "median" if row.status == "left out" => return ("left out".to_owned(), Style::Faint),
            "median" => time(row.median_ms),
            "min" => time(row.min_ms),
            "rate" => rate.map(|rate| format!("{} {unit}", table::digits(rate))),
            "of ceiling" => {
                row.percent.zip(row.ceiling).map(|(p, name)| format!("{} {name}", table::percent(p / 100.0)))
            }
            SAME_SIZE => row.same_size_percent.map(|percent| table::percent(percent / 100.0)),
            BASELINE => factor(row.speedup),
            CUBLAS => factor(row.ratio),
            "error" => row.max_error.map(table::error),
            "of tol." => row.worst_share.map(table::percent),
            _ => return (row.variant.clone().unwrap_or_default(), Style::Faint),
        };
        match (text, row.status) {
            (Some(text), _) => (text, Style::Plain),
            (None, "ok") => ("–".to_owned(), Style::Faint),
            (None, _) => (String::new(), Style::Plain),
        }
    };
    columns.iter().map(cell).collect()
}
