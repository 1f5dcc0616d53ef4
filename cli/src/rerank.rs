//! `pascaline rerank`: how well texts, pictures and videos answer a query.

use super::content::{Item, ItemArgs};
use super::embed::write_line;
use super::failure::Failure;
use super::model::ModelArgs;
use super::output::Output;
use super::source::image;
use qwen3_vl::embed::Content;
use qwen3_vl::video::FrameSampling;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

/// Ranks documents by their relevance to a query, and writes them as JSON lines, the best first: the fields of the document, its index
/// and its score from 0 to 1.
///
/// The model is a Qwen3-VL-Reranker; others were not trained for it.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// The text of the query.
    #[arg(long, short = 'p', value_name = "TEXT", allow_hyphen_values = true)]
    query: Option<String>,

    /// A picture of the query; may be given more than once.
    #[arg(long, value_name = "FILE")]
    query_image: Vec<PathBuf>,

    /// A document of text; may be given more than once.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    document: Vec<String>,

    #[command(flatten)]
    items: ItemArgs,

    /// The task; "Given a search query, retrieve relevant candidates that answer the query." if not given.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    instruction: Option<String>,

    /// The number of documents to print; all if not given.
    #[arg(long, value_name = "N")]
    top: Option<usize>,

    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Json {
    documents: usize,
    tokens: usize,
    seconds: f64,
    device: String,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.query.is_none() && args.query_image.is_empty() {
        return Err(Failure::Usage("a query is needed: --query, --query-image or both".to_owned()));
    }
    args.model.check()?;
    let output = &args.output;
    let report = output.report()?;
    let pictures = args.query_image.iter().map(|file| image(file, &FrameSampling::default()));
    let visuals = pictures.collect::<Result<Vec<_>, _>>()?;
    let query = Content { text: args.query.clone().unwrap_or_default(), visuals };
    let (model, device) = args.model.load_for_items(output)?;
    let failure = |error| args.model.failure(error);
    let mut session = model.session().map_err(failure)?; // what all prompts begin with is computed once
    let begun = Instant::now();
    let (mut ranked, mut tokens) = (Vec::new(), 0);
    args.items.each(&args.document, |index, Item { mut fields, content }| {
        let found = model.relevance(&mut session, &query, &content, args.instruction.as_deref());
        let found = found.map_err(failure)?;
        tokens += found.tokens;
        fields.insert("index".into(), index.into());
        fields.insert("score".into(), found.score.into());
        ranked.push((found.score, fields));
        Ok(())
    })?;
    ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let (count, seconds) = (ranked.len(), begun.elapsed().as_secs_f64());
    for (_, fields) in ranked.iter().take(args.top.unwrap_or(usize::MAX)) {
        write_line(fields, output)?;
    }
    output.note(&format!("{count} documents of {tokens} tokens in {seconds:.1} s"));
    report.map_or(Ok(()), |report| {
        report.write(&Json { documents: count, tokens, seconds, device: device.to_string() })
    })
}
