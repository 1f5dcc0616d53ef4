//! `pascaline validate --model DIR --train DIR`: compares gradients and losses with those of another implementation.

use super::device::DeviceArg;
use super::environment::Environment;
use super::failure::Failure;
use super::model::check_model;
use super::output::Output;
use super::screen::{Screen, Style};
use super::table::{self, Column, Table};
use pascaline::Error;
use pascaline_train::reference::{self, Limits, Losses, Outcome};
use serde::Serialize;
use std::path::Path;

#[derive(Serialize)]
struct Json<'a> {
    environment: &'a Environment,
    passed: bool,
    gradient_limit: f64,
    loss_limit: f64,
    runs: &'a [JsonRun],
}

#[derive(Serialize)]
struct JsonRun {
    name: String,
    passed: bool,
    loss: JsonLosses,
    gradients: Vec<JsonGradient>,
    unmatched: Vec<String>,
    adamw: JsonLosses,
    lora: JsonLosses,
}

#[derive(Serialize)]
struct JsonGradient {
    parameter: String,
    /// The error relative to the reference's norm.
    error: f64,
    /// Whether elements were compared, and not only norms.
    elements: bool,
}

#[derive(Serialize)]
struct JsonLosses {
    found: Vec<f64>,
    expected: Vec<f64>,
}

impl JsonLosses {
    fn new(losses: &Losses) -> Self {
        Self { found: losses.found.clone(), expected: losses.expected.clone() }
    }
}

impl JsonRun {
    fn new(name: &str, outcome: &Outcome, limits: &Limits) -> Self {
        let gradients = outcome.gradients.iter().map(|gradient| JsonGradient {
            parameter: gradient.name.clone(),
            error: gradient.error,
            elements: gradient.elements,
        });
        Self {
            name: name.to_owned(),
            passed: outcome.passed(limits),
            loss: JsonLosses::new(&outcome.loss),
            gradients: gradients.collect(),
            unmatched: outcome.unmatched.clone(),
            adamw: JsonLosses::new(&outcome.adamw),
            lora: JsonLosses::new(&outcome.lora),
        }
    }
}

/// Runs every case of `cases_train.json`.
pub(super) fn run(model: &Path, folder: &Path, device: &DeviceArg, output: &Output) -> Result<(), Failure> {
    check_model(model)?;
    if !model.is_dir() {
        let model = model.display();
        return Err(Failure::Usage(format!("--train is for a directory of safetensors; {model} is none")));
    }
    let runs = reference::load(folder)?;
    let (device, _) = device.open()?;
    let report = output.report()?;
    let mut screen = output.screen();
    let environment = Environment::new(&device);
    screen.text(&environment.line(), Style::Heading)?;
    let limits = if device.is_cuda() { Limits::GPU } else { Limits::CPU };
    let mut reports = Vec::new();
    for run in &runs {
        let outcome = run.check(model, &device).map_err(|error| explain(error, &run.name))?;
        show(&mut screen, &run.name, &outcome, &limits)?;
        reports.push(JsonRun::new(&run.name, &outcome, &limits));
    }
    let failed = reports.iter().filter(|report| !report.passed).count();
    screen.line("")?;
    let (text, style) = match failed {
        0 if reports.is_empty() => (format!("{} has no runs", folder.display()), Style::Bad),
        0 => (format!("all {} runs train as the reference does on {device}", reports.len()), Style::Good),
        _ => (format!("{failed} of {} runs DIFFER on {device}", reports.len()), Style::Bad),
    };
    let limits_text =
        format!("{text} (gradients within {:.0e}, losses within {:.0e})", limits.gradient, limits.loss);
    screen.line(&screen.colours.paint(style, &limits_text))?;
    let passed = failed == 0 && !reports.is_empty();
    if let Some(report) = report {
        let (gradient_limit, loss_limit) = (limits.gradient, limits.loss);
        report.write(&Json {
            environment: &environment,
            passed,
            gradient_limit,
            loss_limit,
            runs: &reports,
        })?;
    }
    if passed { Ok(()) } else { Err(Failure::Wrong) }
}

/// An error that names its run.
fn explain(error: Error, run: &str) -> Failure {
    match error {
        Error::Checkpoint { .. } => error.into(),
        _ => Failure::Failed(format!("run {run}: {error}")),
    }
}

fn show(screen: &mut Screen, name: &str, outcome: &Outcome, limits: &Limits) -> Result<(), Failure> {
    screen.line("")?;
    screen.text(&format!("run {name}"), Style::Heading)?;
    let width = outcome.gradients.iter().map(|gradient| gradient.name.len()).max().unwrap_or(0);
    let table = screen.table(vec![
        Column::left("gradient of", width),
        Column::left("", 4),
        Column::right("error", 9),
        Column::left("compared", 8).rank(1),
    ]);
    screen.line(&table.header("gradient of"))?;
    for gradient in &outcome.gradients {
        let compared = if gradient.elements { "elements" } else { "norms" };
        let cells = [
            (gradient.name.clone(), Style::Plain),
            verdict(gradient.error <= limits.gradient),
            (table::error(gradient.error), Style::Plain),
            (compared.to_owned(), Style::Faint),
        ];
        screen.line(&table.row(&cells))?;
    }
    for name in &outcome.unmatched {
        screen.text(&format!("  {name}: only one side has this gradient"), Style::Bad)?;
    }
    let table = screen.table(vec![
        Column::left("losses", 12),
        Column::left("", 4),
        Column::right("ours", 11),
        Column::right("reference", 11),
        Column::right("apart", 9),
    ]);
    screen.line("")?;
    screen.line(&table.header("losses"))?;
    losses(screen, &table, "float64", &outcome.loss, limits)?;
    losses(screen, &table, "AdamW", &outcome.adamw, limits)?;
    losses(screen, &table, "LoRA", &outcome.lora, limits)
}

fn losses(
    screen: &mut Screen,
    table: &Table,
    name: &str,
    losses: &Losses,
    limits: &Limits,
) -> Result<(), Failure> {
    for (step, (found, expected)) in losses.found.iter().zip(&losses.expected).enumerate() {
        let apart = (found - expected).abs();
        let cells = [
            (format!("{name} {step}"), Style::Plain),
            verdict(apart <= limits.loss),
            (format!("{found:.6}"), Style::Plain),
            (format!("{expected:.6}"), Style::Plain),
            (table::error(apart), Style::Plain),
        ];
        screen.line(&table.row(&cells))?;
    }
    match losses.found.len() == losses.expected.len() {
        true => Ok(()),
        false => {
            screen.text(&format!("  {name}: the number of losses differs from the reference's"), Style::Bad)
        }
    }
}

fn verdict(passed: bool) -> (String, Style) {
    match passed {
        true => ("PASS".to_owned(), Style::Good),
        false => ("FAIL".to_owned(), Style::Bad),
    }
}
