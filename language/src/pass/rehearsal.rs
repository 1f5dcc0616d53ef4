//! The passes of a batch that take the most memory, for plans: on planned devices, by the code of a real step.

use super::rows::{LEAST_WIDTH, Last, Part, Passes, Row, Work, pages_of};
use crate::media::VisionProgress;
use crate::network::{Network, peaks};
use crate::options::BatchOptions;
use crate::text::ImageRun;
use crate::workload::{Seen, Workload};
use pascaline::nn::KvPages;
use pascaline::ops::PAGE;
use pascaline::{DType, Result, Tensor, cuda};
use std::ops::ControlFlow;

/// The memory of a batch beside its pages.
pub(crate) struct Rehearsed {
    /// Kernels of a pass of one answer's token.
    pub launches: usize,
    /// The most bytes in use on each device, graphs not counted.
    pub live: Vec<usize>,
}

/// A row of the pool's first token.
const ROW: Row = Row { id: 0, place: 0, position: [0; 3] };

/// Passes the prompts of as many requests as there may be, then one prompt beside their answers, with a picture on its way through
/// the tower, and captures passes of answers until no more are kept.
pub(crate) fn rehearse(
    network: &Network,
    mut pool: KvPages,
    work: &Workload,
    batch: &BatchOptions,
    seen: Seen,
) -> Result<Rehearsed> {
    let mut passes = Passes::new(network, batch.graph, batch.captured_rows());
    let kept = if seen.patches.is_some() { batch.image_bytes / DType::F32.size() } else { 0 };
    let _kept = Tensor::uninitialized([kept], DType::F32, network.device())?;
    let mut progress = VisionProgress::default();
    if let Some(patches) = &seen.patches {
        network.encode_image_on(patches, &mut progress, 1, &mut |_| ControlFlow::Continue(()))?;
    }
    let (answers, prompt) = (batch.max_sequences, work.prompt.max(1));
    let numbers: Vec<u32> = (0..batch.pages as u32).collect();
    let pages = |tokens: usize| &numbers[..pages_of(tokens).clamp(1, batch.pages)];
    let part = |rows: usize| {
        let pages = pages(prompt);
        let len = rows.min(pages.len() * PAGE);
        Part { rows: vec![ROW; len], pages, len, pictures: &[], wanted: true }
    };
    let last = |count: usize, width: usize| vec![Last { row: ROW, pages: &numbers[..width], len: 1 }; count];
    let most = network.tokens_per_pass().min(prompt.saturating_mul(answers));
    let wanting = answers.min(most);
    let shares = (0..wanting).map(|index| part((index + 1) * most / wanting - index * most / wanting));
    passes.run(&mut pool, &with(&seen, Vec::new(), shares.collect()))?;
    let width = pages(work.context).len().min((batch.pages / answers).max(1));
    let beside = network.rows_that_fill(batch.prompt_tokens).min(prompt);
    passes.run(&mut pool, &with(&seen, last(answers, width), vec![part(beside)]))?;
    drop(seen);
    let live = peaks(network.devices())?;
    let (mut rows, mut width, mut launches) = (0, LEAST_WIDTH, 0);
    'all: while width <= batch.pages.next_power_of_two().max(LEAST_WIDTH) {
        let mut count = answers.next_power_of_two();
        while count > 0 {
            if rows + count > batch.captured_rows() {
                break 'all;
            }
            let work = Work { last: last(count.min(answers), width.min(batch.pages)), ..Work::default() };
            let (passed, launched) = cuda::trace(|| passes.run(&mut pool, &work).map(drop));
            passed?;
            (rows, launches, count) = (rows + count, launched.len(), count / 2);
        }
        width *= 2;
    }
    Ok(Rehearsed { launches, live })
}

/// The rows of a pass, with a picture as far as its prompts have room.
fn with<'s>(seen: &Seen, last: Vec<Last<'s>>, parts: Vec<Part<'s>>) -> Work<'s> {
    let tokens = seen.outputs.first().map_or(0, |output| output.embeddings.dims()[0]);
    let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
    let run = ImageRun { start: last.len(), len: tokens.min(rows), output: 0, row: 0 };
    let runs = if run.len > 0 { vec![run] } else { Vec::new() };
    Work { last, parts, outputs: seen.outputs.clone(), runs }
}
