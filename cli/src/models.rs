//! `pascaline models`: the models in the hub's cache, and removing one.

use super::failure::Failure;
use super::hub::full_name;
use super::output::Output;
use super::screen::Style;
use super::table::Column;
use pascaline::format_bytes;
use qwen3_vl::hub::{HeldModel, Hub, HubModel};
use serde::Serialize;
use std::io::{self, BufRead, IsTerminal};

/// Lists the models in the Hugging Face hub's cache, with their sizes, or removes some of them.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    action: Option<Action>,

    #[command(flatten)]
    output: Output,
}

#[derive(clap::Subcommand)]
enum Action {
    /// Remove models from the cache. Asks before, unless --yes is given.
    #[command(visible_alias = "remove")]
    Rm {
        /// OWNER/NAME, or a short name such as 2b.
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,

        /// Do not ask.
        #[arg(long, short)]
        yes: bool,
    },
}

#[derive(Serialize)]
struct Json<'a> {
    models: &'a [HeldModel],
    bytes: u64,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let hub = Hub::from_env()?;
    match &args.action {
        None => list(&hub, &args.output),
        Some(Action::Rm { names, yes }) => remove(&hub, names, *yes, &args.output),
    }
}

fn list(hub: &Hub, output: &Output) -> Result<(), Failure> {
    let report = output.report()?;
    let models = hub.held()?;
    let bytes = models.iter().map(|model| model.bytes).sum();
    let mut screen = output.screen();
    if models.is_empty() {
        screen.line("the cache holds no models; `pascaline pull 2b` fetches one")?;
    } else {
        let width = models.iter().map(|model| model.name.len()).max().unwrap_or(0).max(5);
        let table = screen.table(vec![Column::left("model", width), Column::right("size", 10)]);
        screen.line(&table.header(""))?;
        let all = [("all".to_owned(), bytes)];
        let rows = models.iter().map(|model| (model.name.clone(), model.bytes));
        for (name, bytes) in rows.chain(if models.len() > 1 { all.to_vec() } else { Vec::new() }) {
            let cells = [name, format_bytes(bytes as usize)];
            screen.line(&table.row(&cells.map(|cell| (cell, Style::Plain))))?;
        }
    }
    report.map_or(Ok(()), |report| report.write(&Json { models: &models, bytes }))
}

fn remove(hub: &Hub, names: &[String], yes: bool, output: &Output) -> Result<(), Failure> {
    let held = hub.held()?;
    let mut found = Vec::new();
    for name in names {
        let full = full_name(name).unwrap_or_else(|| name.clone());
        let model = HubModel::parse(&full)
            .ok_or_else(|| Failure::Usage(format!("{name} is no model's name of the form OWNER/NAME")))?;
        let Some(held) = held.iter().find(|held| held.name == model.id()) else {
            return Err(Failure::Failed(format!(
                "the cache does not hold {}; `pascaline models` lists what it holds",
                model.id()
            )));
        };
        if found.iter().all(|(other, _): &(HubModel, &HeldModel)| other.id() != model.id()) {
            found.push((model, held));
        }
    }
    for (model, held) in found {
        let size = format_bytes(held.bytes as usize);
        if !yes && !confirmed(&format!("Remove {}, {size}?", model.id()))? {
            output.note(&format!("{} is kept", model.id()));
            continue;
        }
        hub.remove(&model)?;
        output.note(&format!("removed {}, {size}", model.id()));
    }
    Ok(())
}

/// Asks on the terminal; there is no answer without one.
fn confirmed(question: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::Usage("nobody can be asked here; --yes removes without asking".to_owned()));
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
