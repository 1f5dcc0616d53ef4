//! `pascaline embed`: vectors of texts, pictures and videos, and the nearest of them.

use super::content::{ItemArgs, lines};
use super::failure::Failure;
use super::files::note_input;
use super::model::ModelArgs;
use super::output::Output;
use qwen3_vl::embed::{shortened, similarity};
use qwen3_vl::json::numbers;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::PathBuf;
use std::time::Instant;

/// Writes the embeddings of texts, pictures and videos as JSON lines: the fields of the item, embedding and tokens. The scalar product
/// of two embeddings says how near their meanings are.
///
/// The model is a Qwen3-VL-Embedding; others give vectors that were not trained for it.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// A text; may be given more than once. Each is an item.
    #[arg(long, short = 'p', value_name = "TEXT", allow_hyphen_values = true)]
    text: Vec<String>,

    #[command(flatten)]
    items: ItemArgs,

    /// The task, in the words of the model's card; "Represent the user's input." if not given. A line's field instruction comes
    /// before it.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    instruction: Option<String>,

    /// Shorten embeddings to this many numbers, which the published models are trained for.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dimensions: Option<u32>,

    /// Instead of the embedding, print the nearest lines of this file, which `embed` has written, with their scores.
    #[arg(long, value_name = "FILE")]
    search: Option<PathBuf>,

    /// The number of lines that --search prints for each item.
    #[arg(long, value_name = "N", default_value = "5", requires = "search")]
    top: usize,

    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Json {
    items: usize,
    tokens: usize,
    seconds: f64,
    device: String,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    args.model.check()?;
    let output = &args.output;
    let report = output.report()?;
    let stored = args.search.as_ref().map(read_stored).transpose()?;
    let (model, device) = args.model.load_for_items(output)?;
    let begun = Instant::now();
    let (mut count, mut tokens) = (0, 0);
    args.items.each(&args.text, |_, mut item| {
        let own = item.fields.get("instruction").and_then(Value::as_str);
        let found = model.embed(&item.content, own.or(args.instruction.as_deref()));
        let found = found.map_err(|error| args.model.failure(error))?;
        let vector = match args.dimensions {
            Some(dimensions) => shortened(&found.vector, dimensions as usize)?,
            None => found.vector,
        };
        (count, tokens) = (count + 1, tokens + found.tokens);
        match &stored {
            Some(stored) => say_nearest(stored, &vector, args.top, output),
            None => {
                item.fields.insert("embedding".into(), vector.into());
                item.fields.insert("tokens".into(), found.tokens.into());
                write_line(&item.fields, output)
            }
        }
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    output.note(&format!("{count} embeddings of {tokens} tokens in {seconds:.1} s"));
    report.map_or(Ok(()), |report| {
        report.write(&Json { items: count, tokens, seconds, device: device.to_string() })
    })
}

/// Writes a line to stdout, unless the report is there.
pub(super) fn write_line(fields: &Map<String, Value>, output: &Output) -> Result<(), Failure> {
    if output.stdout_is_taken() {
        return Ok(());
    }
    let mut line = serde_json::to_vec(fields).map_err(io::Error::from)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    Ok(out.flush()?)
}

/// A line of an earlier run.
struct Stored {
    fields: Map<String, Value>,
    vector: Vec<f32>,
}

fn read_stored(file: &PathBuf) -> Result<Vec<Stored>, Failure> {
    note_input(file);
    let name = file.display().to_string();
    let opened = File::open(file).map_err(|error| Failure::Failed(format!("{name}: {error}")))?;
    let mut stored = Vec::new();
    lines(&name, BufReader::new(opened), |mut fields| {
        let vector = fields.remove("embedding").as_ref().and_then(numbers);
        let vector = vector.ok_or_else(|| Failure::Failed("it has no embedding".into()))?;
        fields.remove("tokens");
        stored.push(Stored { fields, vector });
        Ok(())
    })?;
    Ok(stored)
}

fn say_nearest(stored: &[Stored], vector: &[f32], top: usize, output: &Output) -> Result<(), Failure> {
    if let Some(other) = stored.iter().find(|line| line.vector.len() != vector.len()) {
        let (found, wanted) = (other.vector.len(), vector.len());
        return Err(Failure::Failed(format!(
            "the stored embeddings have {found} numbers, these {wanted}; --dimensions makes them equal"
        )));
    }
    let scored = stored.iter().map(|line| Ok((similarity(&line.vector, vector)?, line)));
    let mut scored = scored.collect::<Result<Vec<(f64, &Stored)>, Failure>>()?;
    scored.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    for (score, line) in scored.into_iter().take(top) {
        let mut fields = line.fields.clone();
        fields.insert("score".into(), score.into());
        write_line(&fields, output)?;
    }
    Ok(())
}
