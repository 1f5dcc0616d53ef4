//! `pascaline float16`: which 16-bit floating-point format loses least on the tensors of a file.

use super::failure::Failure;
use pascaline::float16::{Loss, least, survey};
use qwen3_vl::safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

/// Measures, for each tensor of a safetensors file, what 16-bit formats with 2 to 8 exponent bits would lose.
///
/// A format with E exponent bits has 15 − E mantissa bits: 5 is IEEE half precision, 8 is bfloat16. Values beyond the
/// largest number become that number. No GPU is needed.
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
        let there = match file.entries().keys().next() {
            Some(first) => format!("the file has {}, `{first}` the first", file.entries().len()),
            None => "the file has none".to_owned(),
        };
        return Err(Failure::Usage(format!("no tensor's name contains `{}`; {there}", args.tensor)));
    }
    let mut out = io::stdout().lock();
    let mut best_for: BTreeMap<u32, usize> = BTreeMap::new();
    for name in &names {
        match file.read_f32(name) {
            Ok(values) => {
                let losses = survey(&values);
                if let Some(best) = print(&mut out, name, &losses, args.all)? {
                    *best_for.entry(best.exponent_bits).or_default() += 1;
                }
            }
            Err(error) => writeln!(out, "{name}: skipped: {error}")?,
        }
    }
    let measured: usize = best_for.values().sum();
    if measured == 0 {
        return Err(Failure::Failed("none of the tensors could be measured".into()));
    }
    if names.len() > 1 {
        let counts: Vec<_> = best_for.iter().map(|(bits, count)| format!("{bits} for {count}")).collect();
        writeln!(
            out,
            "of {} tensors, {measured} measured; exponent bits that lose least: {}",
            names.len(),
            counts.join(", ")
        )?;
    }
    Ok(())
}

/// A tensor's line, or lines; the format that loses least.
fn print(out: &mut impl Write, name: &str, losses: &[Loss], all: bool) -> io::Result<Option<Loss>> {
    let best = least(losses);
    if let Some(best) = best {
        writeln!(out, "{name}: {best}")?;
    }
    for loss in losses.iter().filter(|_| all) {
        writeln!(out, "    {loss}")?;
    }
    Ok(best)
}
