//! `pascaline pull`, and `--model` with a name on the Hugging Face hub.

use super::failure::Failure;
use super::output::Output;
use super::printable::printable;
use indicatif::{ProgressBar, ProgressStyle};
use qwen3_vl::hub::{Event, Hub, HubModel};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Fetches a model from the Hugging Face hub into its cache, and prints its path.
///
/// Only the files that loading needs are fetched, unless the cache has them. An interrupted download is resumed. The
/// environment variables are those of the hub's own tools: HF_HOME, HF_HUB_CACHE, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE,
/// HF_HUB_DOWNLOAD_TIMEOUT.
#[derive(clap::Args)]
pub(super) struct Args {
    /// OWNER/NAME, with :TYPE for one type of GGUF files and @REVISION for a branch, tag or commit; for example
    /// Qwen/Qwen3-VL-2B-Instruct-GGUF:Q4_K_M.
    model: String,

    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Json<'a> {
    model: &'a str,
    path: &'a Path,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let Some(model) = HubModel::parse(&args.model) else {
        return Err(Failure::Usage(format!(
            "{} is not of the form OWNER/NAME[:TYPE][@REVISION]",
            args.model
        )));
    };
    let report = args.output.report()?;
    let path = pull(&model, &args.output)?;
    if !args.output.stdout_is_taken() {
        writeln!(io::stdout(), "{}", path.display())?;
    }
    let Some(report) = report else { return Ok(()) };
    report.write(&Json { model: &args.model, path: &path })
}

/// The hub's model that a `--model` names; `None` if a file or directory of that name exists or it can only be a path.
pub(super) fn named(model: &Path) -> Option<HubModel> {
    if model.exists() { None } else { HubModel::parse(model.to_str()?) }
}

/// The path of a `--model`; a model on the hub is fetched.
pub(super) fn locate(model: &Path, output: &Output) -> Result<PathBuf, Failure> {
    named(model).map_or_else(|| Ok(model.to_owned()), |model| pull(&model, output))
}

fn pull(model: &HubModel, output: &Output) -> Result<PathBuf, Failure> {
    let watched = io::stderr().is_terminal() && !output.is_quiet();
    let bar = if watched { ProgressBar::no_length() } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template(
        "  {bar:24} {binary_bytes:>10} of {binary_total_bytes:10} {binary_bytes_per_sec:>12}  {wide_msg}",
    ) {
        bar.set_style(style.progress_chars("━━╌"));
    }
    let path = Hub::from_env()?.pull(qwen3_vl::MODELS, model, &mut |event| match event {
        Event::Progress { file, loaded, size } => show(&bar, file, loaded, size),
        Event::Fetched { file } => bar.suspend(|| output.note(&format!("fetched {file}"))),
        Event::Retry { file, reason } => {
            bar.suspend(|| output.note(&format!("{file}: {reason}; trying again")));
        }
        Event::Unreachable { reason } => {
            output.say(&format!("{reason}; taking the copy of {} in the cache", model.id()));
        }
    });
    bar.finish_and_clear();
    Ok(path?)
}

/// Shows a file's progress. Its first bytes may be those of an earlier download, which do not count into the speed.
fn show(bar: &ProgressBar, file: &str, loaded: u64, size: u64) {
    let name = printable(file);
    bar.set_length(size);
    if bar.message() == name {
        return bar.set_position(loaded);
    }
    bar.reset();
    bar.set_message(name.into_owned());
    bar.update(|state| state.set_pos(loaded));
    bar.reset_eta();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn bytes_of_an_earlier_download_do_not_count_into_the_speed() {
        let bar = ProgressBar::with_draw_target(None, indicatif::ProgressDrawTarget::hidden());
        for file in ["a", "b\x1b[2J"] {
            show(&bar, file, 1 << 40, 1 << 41);
            thread::sleep(Duration::from_millis(20));
            show(&bar, file, (1 << 40) + 1000, 1 << 41);
            let speed = bar.per_sec();
            assert!(speed < 1e6, "{speed}");
        }
        assert_eq!((bar.position(), bar.message()), ((1 << 40) + 1000, "b␛[2J".to_owned()));
    }
}
