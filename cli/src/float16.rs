//! `pascaline float16`: which 16-bit floating-point format loses least on the tensors of a file.

use super::failure::Failure;
use super::files::note_input;
use super::output::Output;
use super::printable::printable;
use super::screen::{Screen, Style};
use pascaline::float16::{Loss, least, survey};
use qwen3_vl::safetensors::SafeTensors;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Measures, for each tensor of a safetensors file, the error of 16-bit formats with 2 to 8 exponent bits.
///
/// A format with E exponent bits has 15 − E mantissa bits: 5 is IEEE half precision, 8 is bfloat16. Values beyond the
/// largest number are clamped to it. No GPU is needed.
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

    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Json<'a> {
    file: String,
    tensors: &'a [Surveyed],
    /// The number of tensors for which each number of exponent bits has the smallest error.
    best_for: &'a BTreeMap<u32, usize>,
}

#[derive(Serialize)]
struct Surveyed {
    name: String,
    /// Why it was not measured.
    skipped: Option<String>,
    /// The exponent bits of the format that loses least.
    best: Option<u32>,
    formats: Vec<Format>,
}

#[derive(Serialize)]
struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
    relative_rms: f64,
    max: f64,
    cosine: f64,
    overflows: usize,
    underflows: usize,
}

impl From<&Loss> for Format {
    fn from(&Loss { exponent_bits, error, overflows, underflows }: &Loss) -> Self {
        Self {
            exponent_bits,
            mantissa_bits: 15 - exponent_bits,
            relative_rms: error.relative_rms,
            max: error.max,
            cosine: error.cosine,
            overflows,
            underflows,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    note_input(&args.file);
    let file = SafeTensors::open(&args.file).map_err(|error| Failure::Failed(error.to_string()))?;
    let names: Vec<&String> = file.entries().keys().filter(|name| name.contains(&args.tensor)).collect();
    if names.is_empty() {
        let there = match file.entries().keys().next() {
            Some(first) => format!("the file has {}, `{first}` the first", file.entries().len()),
            None => "the file has none".to_owned(),
        };
        return Err(Failure::Usage(format!("no tensor's name contains `{}`; {there}", args.tensor)));
    }
    let report = args.output.report()?;
    let mut screen = args.output.screen();
    let mut best_for: BTreeMap<u32, usize> = BTreeMap::new();
    let mut tensors = Vec::new();
    for name in names {
        let shown = if screen.is_terminal { printable(name) } else { name.into() };
        let mut surveyed = Surveyed { name: name.clone(), skipped: None, best: None, formats: Vec::new() };
        match file.read_f32(name) {
            Ok(values) => {
                let losses = survey(&values);
                if let Some(best) = print(&mut screen, &shown, &losses, args.all)? {
                    *best_for.entry(best.exponent_bits).or_default() += 1;
                    surveyed.best = Some(best.exponent_bits);
                }
                surveyed.formats = losses.iter().map(Format::from).collect();
            }
            Err(error) => {
                screen.text(&format!("{shown}: skipped: {error}"), Style::Plain)?;
                surveyed.skipped = Some(error.to_string());
            }
        }
        tensors.push(surveyed);
    }
    let measured: usize = best_for.values().sum();
    if measured == 0 {
        return Err(Failure::Failed("none of the tensors could be measured".into()));
    }
    if tensors.len() > 1 {
        let counts: Vec<_> = best_for.iter().map(|(bits, count)| format!("{bits} for {count}")).collect();
        let text = format!(
            "of {} tensors, {measured} measured; exponent bits that lose least: {}",
            tensors.len(),
            counts.join(", ")
        );
        screen.text(&text, Style::Plain)?;
    }
    let file = args.file.display().to_string();
    report.map_or(Ok(()), |report| report.write(&Json { file, tensors: &tensors, best_for: &best_for }))
}

/// Prints a tensor's row or rows; returns the format with the smallest error.
fn print(screen: &mut Screen, name: &str, losses: &[Loss], all: bool) -> Result<Option<Loss>, Failure> {
    let best = least(losses);
    if let Some(best) = best {
        screen.text(&format!("{name}: {best}"), Style::Plain)?;
    }
    for loss in losses.iter().filter(|_| all) {
        screen.text(&format!("    {loss}"), Style::Plain)?;
    }
    Ok(best)
}
