//! What a process reports: findings, refusals, and what its launches cost.
//!
//! With `PASCALINE_VIRTUAL_REPORT=FOLDER` each process appends lines of JSON to a file of its own there, a finding or a refusal as it
//! happens, so that they stay if it is killed; the launches so far once a second and at the end. Without it, findings and
//! refusals are summed up on stderr when the process ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pascaline_virtual_gpu::{Card, Estimate, Finding, LaunchReport, on_finding, on_launch, on_refusal};
use serde::Serialize;

/// Between two lines of launches.
const INTERVAL: Duration = Duration::from_secs(1);

/// A line of the file.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Line<'a> {
    /// The process has loaded the library.
    Loaded,
    Finding {
        kind: String,
        kernel: &'a str,
        line: u32,
        block: [u32; 3],
        thread: [u32; 3],
        message: &'a str,
        /// The source's file and line, where the PTX has them.
        place: Option<(&'a str, u32)>,
        text: String,
    },
    Refused(&'a str),
    /// All launches of the process so far; the last such line counts.
    Launches(Vec<Row<'a>>),
}

#[derive(Serialize)]
struct Row<'a> {
    card: &'static str,
    kernel: &'a str,
    launches: u64,
    seconds: f64,
    bound: &'static str,
}

/// The launches of a kernel on a card.
#[derive(Default)]
struct Cost {
    launches: u64,
    seconds: f64,
    /// The longest launch, and what bounds it.
    longest: f64,
    bound: &'static str,
}

#[derive(Default)]
struct Record {
    folder: Option<PathBuf>,
    /// The process that it is of.
    process: u32,
    file: Option<File>,
    findings: u64,
    refused: BTreeSet<String>,
    costs: BTreeMap<(&'static str, String), Cost>,
    written: Option<Instant>,
}

static RECORD: Mutex<Option<Record>> = Mutex::new(None);

/// The record of this process; a child that was forked begins with an empty one.
fn record() -> MutexGuard<'static, Option<Record>> {
    let mut record = RECORD.lock().unwrap_or_else(PoisonError::into_inner); // each change leaves it whole
    if let Some(of_parent) = record.as_mut().filter(|record| record.process != std::process::id()) {
        *of_parent = Record::new(of_parent.folder.take());
    }
    record
}

impl Record {
    fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, process: std::process::id(), ..Self::default() }
    }

    /// Appends a line; a folder that can't be written to is said once.
    fn append(&mut self, line: &Line<'_>) {
        let Some(folder) = &self.folder else { return };
        if self.file.is_none() {
            let path = folder.join(format!("{}.jsonl", self.process));
            match OpenOptions::new().create(true).append(true).open(&path) {
                Ok(file) => self.file = Some(file),
                Err(error) => {
                    say(&format!("no report: {}: {error}", path.display()));
                    self.folder = None;
                    return;
                }
            }
        }
        let Some(file) = &mut self.file else { return };
        let mut text = serde_json::to_string(line).unwrap_or_default();
        text.push('\n');
        let _ = file.write_all(text.as_bytes()); // the disk is full: the lines before it stay
    }

    fn append_launches(&mut self) {
        let costs = std::mem::take(&mut self.costs);
        let rows = costs.iter().map(|((card, kernel), cost)| {
            let &Cost { launches, seconds, bound, .. } = cost;
            Row { card, kernel, launches, seconds, bound }
        });
        self.append(&Line::Launches(rows.collect()));
        self.costs = costs;
        self.written = Some(Instant::now());
    }
}

fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "virtual GPU: {what}"); // nowhere to report that stderr is closed
}

/// Begins a process's record.
pub(crate) fn begin() {
    let folder =
        std::env::var_os("PASCALINE_VIRTUAL_REPORT").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let mut new = Record::new(folder);
    new.append(&Line::Loaded);
    *record() = Some(new);
    on_finding(found);
    on_launch(launched);
    on_refusal(refused);
}

fn found(finding: &Finding) {
    let mut record = record();
    let Some(record) = record.as_mut() else { return };
    record.findings += 1;
    let Finding { kind, kernel, line, block, thread, message, .. } = finding;
    record.append(&Line::Finding {
        kind: format!("{kind:?}"),
        kernel,
        line: *line,
        block: *block,
        thread: *thread,
        message,
        place: finding.place().map(|place| (&*place.file, place.line)),
        text: finding.to_string(),
    });
}

/// Notes that a function or a use of one was refused; each once.
pub(crate) fn refused(what: &str) {
    let mut record = record();
    let Some(record) = record.as_mut() else { return };
    if record.refused.insert(what.to_owned()) {
        record.append(&Line::Refused(what));
    }
}

fn launched(report: &LaunchReport, card: &'static Card, estimate: &Estimate) {
    let mut record = record();
    let Some(record) = record.as_mut() else { return };
    let cost = record.costs.entry((card.name, report.kernel.clone())).or_default();
    cost.launches += 1;
    cost.seconds += estimate.time;
    if estimate.time > cost.longest {
        (cost.longest, cost.bound) = (estimate.time, estimate.bound.name());
    }
    if record.folder.is_some() && record.written.is_none_or(|at| at.elapsed() > INTERVAL) {
        record.append_launches();
    }
}

/// Ends a process's record.
pub(crate) fn end() {
    let mut record = record();
    let Some(record) = record.as_mut() else { return };
    if record.folder.is_some() {
        if !record.costs.is_empty() {
            record.append_launches();
        }
        return;
    }
    if record.findings > 0 {
        let findings = if record.findings == 1 { "finding" } else { "findings" };
        say(&format!("{} {findings}", record.findings));
    }
    if !record.refused.is_empty() {
        let all: Vec<_> = record.refused.iter().map(String::as_str).collect();
        say(&format!("refused: {}", all.join("; ")));
    }
}
