//! `pascaline pull`, and `--model` with a name on the Hugging Face hub.

use super::failure::Failure;
use super::output::Output;
use super::printable::printable;
use super::published::Size;
use clap::ValueEnum;
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
    /// Qwen/Qwen3-VL-2B-Instruct-GGUF:Q4_K_M. Or a short name of the published family: 2b, 4b, 8b or 32b, with -thinking for that
    /// model and :TYPE for GGUF files.
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
    let Some(model) = parse(&args.model) else {
        return Err(Failure::Usage(format!(
            "{} is not of the form OWNER/NAME[:TYPE][@REVISION], and no short name such as 2b or 8b:q4_k_m",
            args.model
        )));
    };
    let report = args.output.report()?;
    if let Some(name) = full_name(&args.model) {
        args.output.note(&format!("{} is {name}", args.model));
    }
    let path = pull(&model, &args.output)?;
    if !args.output.stdout_is_taken() {
        writeln!(io::stdout(), "{}", path.display())?;
    }
    let Some(report) = report else { return Ok(()) };
    report.write(&Json { model: &args.model, path: &path })
}

/// The hub's model that a `--model` names; `None` if a file or directory of that name exists or it can only be a path.
pub(super) fn named(model: &Path) -> Option<HubModel> {
    if model.exists() { None } else { parse(model.to_str()?) }
}

/// The path of a `--model`; a model on the hub is fetched.
pub(super) fn locate(model: &Path, output: &Output) -> Result<PathBuf, Failure> {
    let Some(found) = named(model) else { return Ok(model.to_owned()) };
    if let Some(name) = model.to_str().and_then(full_name) {
        output.note(&format!("{} is {name}", model.display()));
    }
    pull(&found, output)
}

/// The path of a model whose sizes alone are needed: of one on the hub no weights are fetched. `scratch` must outlive its use.
pub(super) fn locate_headers(model: &Path, scratch: &Path, output: &Output) -> Result<PathBuf, Failure> {
    let Some(found) = named(model) else { return Ok(model.to_owned()) };
    if let Some(name) = model.to_str().and_then(full_name) {
        output.note(&format!("{} is {name}", model.display()));
    }
    let path = Hub::from_env()?.headers(qwen3_vl::MODELS, &found, scratch, &mut |event| match event {
        Event::Unreachable { reason } => {
            output.say(&format!("{reason}; taking the copy of {} in the cache", found.id()));
        }
        Event::Retry { file, reason } => output.note(&format!("{file}: {reason}; trying again")),
        Event::Progress { .. } | Event::Fetched { .. } => {}
    });
    Ok(path?)
}

fn parse(text: &str) -> Option<HubModel> {
    HubModel::parse(&full_name(text).unwrap_or_else(|| text.to_owned()))
}

/// The hub's name for a short one of the published family, such as `8b`, `2b-thinking` or `4b:q4_k_m`.
pub(super) fn full_name(short: &str) -> Option<String> {
    let (name, revision) =
        short.split_once('@').map_or((short, ""), |(name, _)| (name, &short[name.len()..]));
    let (name, kind) = name.split_once(':').map_or((name, None), |(name, kind)| (name, Some(kind)));
    let name = name.to_ascii_lowercase();
    let (size, tuning) = Size::value_variants().iter().find_map(|size| {
        let rest = name.strip_prefix(&size.name().to_ascii_lowercase())?;
        let tuning = if rest.is_empty() { "instruct" } else { rest.strip_prefix('-')? };
        matches!(tuning, "instruct" | "thinking").then_some((size.name(), tuning))
    })?;
    let tuning = match tuning {
        "instruct" => "Instruct",
        "thinking" => "Thinking",
        _ => return None,
    };
    let files = kind.map_or_else(String::new, |kind| format!("-GGUF:{}", kind.to_ascii_uppercase()));
    Some(format!("Qwen/Qwen3-VL-{size}-{tuning}{files}{revision}"))
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
    fn short_names_are_those_of_the_published_family() {
        for (short, name) in [
            ("2b", "Qwen/Qwen3-VL-2B-Instruct"),
            ("32B-instruct", "Qwen/Qwen3-VL-32B-Instruct"),
            ("4b-thinking@v1", "Qwen/Qwen3-VL-4B-Thinking@v1"),
            ("8b:q4_k_m", "Qwen/Qwen3-VL-8B-Instruct-GGUF:Q4_K_M"),
            ("30b-a3b", "Qwen/Qwen3-VL-30B-A3B-Instruct"),
            ("8b-Thinking:Q8_0@main", "Qwen/Qwen3-VL-8B-Thinking-GGUF:Q8_0@main"),
        ] {
            assert_eq!(full_name(short).as_deref(), Some(name));
            assert!(parse(short).is_some(), "{short}");
        }
        for other in ["", "3b", "2b-", "2b-base", "2b/x", "b", "models"] {
            assert_eq!(full_name(other), None, "{other}");
        }
    }

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
