//! `pascaline float16`: which 16-bit floating-point format loses least on the tensors of a file.

use super::failure::Failure;
use crate::float16::{Loss, least, survey};
use crate::qwen3_vl::safetensors::SafeTensors;
use std::io::{self, Write};
use std::path::PathBuf;

/// Measures, for each tensor of a safetensors file, what 16-bit formats with 2 to 8 exponent bits would lose.
#[derive(clap::Args)]
pub(super) struct Args {
    /// A safetensors file.
    file: PathBuf,
    /// Only tensors whose name contains this.
    #[arg(long, default_value = "")]
    tensor: String,
    /// Every format of every tensor, not only the best.
    #[arg(long)]
    all: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let file = SafeTensors::open(&args.file).map_err(|error| Failure::Failed(error.to_string()))?;
    let names: Vec<&String> = file.entries().keys().filter(|name| name.contains(&args.tensor)).collect();
    if names.is_empty() {
        return Err(Failure::Usage(format!("no tensor's name contains `{}`", args.tensor)));
    }
    let mut out = io::stdout().lock();
    for name in names {
        match file.read_f32(name) {
            Ok(values) => print(&mut out, name, &survey(&values), args.all)?,
            Err(error) => writeln!(out, "{name}: skipped: {error}").map_err(closed)?,
        }
    }
    Ok(())
}

fn print(out: &mut impl Write, name: &str, losses: &[Loss], all: bool) -> Result<(), Failure> {
    match least(losses) {
        Some(best) => writeln!(out, "{name}: {best}"),
        None => writeln!(out, "{name}: holds values that are not finite"),
    }
    .map_err(closed)?;
    for loss in losses.iter().filter(|_| all) {
        writeln!(out, "    {loss}").map_err(closed)?;
    }
    Ok(())
}

fn closed(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::OutputClosed,
        _ => Failure::Failed(error.to_string()),
    }
}
