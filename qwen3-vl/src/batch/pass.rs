//! One pass of rows of several sequences through the model. On a GPU passes of one row for each are captured and replayed.

use crate::model::Qwen3Vl;
use crate::positions::{RopeTables, text_rope};
use crate::text::{ImageRun, Images};
use crate::vision::VisionOutput;
use pascaline::cuda::Graph;
use pascaline::nn::{KvPages, PagedRows, PromptRows, Rope};
use pascaline::{DType, Device, Result, Tensor, ops};

/// A place beyond any pool: what goes there is not written.
const NOWHERE: u32 = u32::MAX;
/// The fewest pages of a captured pass's tables. The number is a power of two, so that few passes are captured.
const LEAST_WIDTH: usize = 16;

/// A token of a pass.
pub(super) struct Row {
    pub id: u32,
    /// The pool's row that its keys and values go to.
    pub place: u32,
    pub position: [u32; 3],
}

/// The last token of a sequence.
pub(super) struct Last<'s> {
    pub row: Row,
    pub pages: &'s [u32],
    /// Tokens of the sequence, this one included.
    pub len: usize,
}

/// Tokens of a prompt that follow each other.
pub(super) struct Part<'s> {
    pub rows: Vec<Row>,
    pub pages: &'s [u32],
    /// Tokens of the sequence up to these, and these.
    pub len: usize,
    /// Whether the token after them is wanted.
    pub wanted: bool,
}

/// What passes: the last token of some sequences, then parts of prompts, with the image tokens among all rows.
#[derive(Default)]
pub(super) struct Work<'s> {
    pub last: Vec<Last<'s>>,
    pub parts: Vec<Part<'s>>,
    pub outputs: Vec<VisionOutput>,
    pub runs: Vec<ImageRun>,
}

/// What came out, a row for each sequence whose next token is wanted, in the order of the work.
#[derive(Clone)]
pub(super) struct Logits {
    /// [rows, vocab]
    pub all: Tensor,
    /// Where the largest is, and what: [rows] each.
    pub best: [Tensor; 2],
}

/// The sizes of a pass: what its tensors' shapes depend on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Sequences with their last token.
    last: usize,
    /// Pages of their tables.
    width: usize,
}

/// A captured pass.
struct Captured {
    shape: Shape,
    inputs: Inputs,
    graph: Graph,
    logits: Logits,
    used: u64,
}

/// What differs from pass to pass of one shape, in device memory.
struct Inputs {
    /// u32: ids, places and angles of all rows; lengths and tables of sequences with their last token; tables of prompts;
    /// the rows whose logits are wanted.
    numbers: Tensor,
    /// [2, rows, head_dim / 2]: cosines and sines.
    angles: Tensor,
}

/// Passes through a model.
pub(super) struct Passes<'m> {
    model: &'m Qwen3Vl,
    /// Of text: row p is position p's on all axes.
    known: RopeTables,
    /// Each has the memory of its activations.
    graphs: Vec<Captured>,
    /// The most rows of all captured passes together.
    captured_rows: usize,
    capture: bool,
    clock: u64,
}

impl<'m> Passes<'m> {
    /// With `capture`, by graphs where that is possible, of at most so many rows together.
    pub fn new(model: &'m Qwen3Vl, capture: bool, captured_rows: usize) -> Self {
        let capture = capture && model.device().is_cuda() && model.streamed_layers() == 0;
        let known = RopeTables { cos: Vec::new(), sin: Vec::new() };
        Self { model, known, graphs: Vec::new(), captured_rows, capture, clock: 0 }
    }

    /// Passes the work's rows: their keys and values are in the pool then.
    pub fn run(&mut self, pool: &mut KvPages, work: &Work) -> Result<Logits> {
        if !work.parts.is_empty() || !self.capture {
            let width = work.last.iter().map(|last| last.pages.len()).max().unwrap_or(0);
            let shape = Shape { last: work.last.len(), width };
            let inputs = self.inputs(work, shape)?;
            return forward(self.model, pool, &inputs, shape, work);
        }
        let Device::Cuda(device) = self.model.device() else { unreachable!("only GPUs capture") };
        let pages = work.last.iter().map(|last| last.pages.len()).max().unwrap_or(0);
        let shape = Shape {
            last: work.last.len().next_power_of_two(),
            width: pages.next_power_of_two().max(LEAST_WIDTH),
        };
        self.clock += 1;
        let clock = self.clock;
        let numbers = self.numbers(work, shape);
        let angles = self.angles(work, shape);
        if let Some(captured) = self.graphs.iter_mut().find(|captured| captured.shape == shape) {
            captured.inputs.numbers.view_mut()?.write(&numbers)?;
            captured.inputs.angles.view_mut()?.write(&angles)?;
            captured.used = clock;
            captured.graph.launch()?;
            return Ok(captured.logits.clone());
        }
        let rows = |graphs: &[Captured]| graphs.iter().map(|captured| captured.shape.last).sum::<usize>();
        while rows(&self.graphs) + shape.last > self.captured_rows
            && let Some(oldest) = (0..self.graphs.len()).min_by_key(|&i| self.graphs[i].used)
        {
            self.graphs.swap_remove(oldest);
        }
        let inputs = self.inputs(work, shape)?;
        let none = Work::default();
        let (graph, logits) = Graph::capture(device, || forward(self.model, pool, &inputs, shape, &none))?;
        graph.launch()?;
        self.graphs.push(Captured { shape, inputs, graph, logits: logits.clone(), used: clock });
        Ok(logits)
    }

    /// Forgets captured passes, and with them their memory.
    pub fn forget(&mut self) {
        self.graphs.clear();
    }

    fn inputs(&mut self, work: &Work, shape: Shape) -> Result<Inputs> {
        let (numbers, angles) = (self.numbers(work, shape), self.angles(work, shape));
        let (device, half) = (self.model.device(), self.model.config().text.head_dim / 2);
        Ok(Inputs {
            numbers: Tensor::from_slice(&numbers, [numbers.len()], device)?,
            angles: Tensor::from_slice(&angles, [2, angles.len() / (2 * half), half], device)?,
        })
    }

    /// The contents of [`Inputs::numbers`]. Sequences that the shape has and the work does not are empty ones.
    fn numbers(&self, work: &Work, shape: Shape) -> Vec<u32> {
        let padding = shape.last - work.last.len();
        let filled = |of: fn(&Row) -> u32, other: u32| {
            let last = work.last.iter().map(move |last| of(&last.row));
            let rest = work.parts.iter().flat_map(|part| &part.rows).map(of);
            last.chain(std::iter::repeat_n(other, padding)).chain(rest).collect::<Vec<_>>()
        };
        let mut numbers = filled(|row| row.id, 0);
        let rows = numbers.len();
        numbers.extend(filled(|row| row.place, NOWHERE));
        numbers.extend(0..rows as u32);
        numbers.extend(work.last.iter().map(|last| last.len as u32));
        numbers.extend(std::iter::repeat_n(0, padding));
        for last in &work.last {
            numbers.extend_from_slice(last.pages);
            numbers.extend(std::iter::repeat_n(0, shape.width - last.pages.len()));
        }
        numbers.extend(std::iter::repeat_n(0, padding * shape.width));
        work.parts.iter().for_each(|part| numbers.extend_from_slice(part.pages));
        numbers.extend(picks(work, shape));
        numbers
    }

    /// The contents of [`Inputs::angles`].
    fn angles(&mut self, work: &Work, shape: Shape) -> Vec<f32> {
        let text = &self.model.config().text;
        let half = text.head_dim / 2;
        let padding = shape.last - work.last.len();
        let last = work.last.iter().map(|last| last.row.position);
        let last = last.chain(std::iter::repeat_n([0; 3], padding));
        let all: Vec<_> =
            last.chain(work.parts.iter().flat_map(|part| &part.rows).map(|row| row.position)).collect();
        let text_only = |[t, h, w]: [u32; 3]| t == h && h == w;
        let most = all.iter().filter(|axes| text_only(**axes)).map(|axes| axes[0] as usize).max();
        let held = self.known.cos.len() / half.max(1);
        if let Some(most) = most.filter(|most| *most >= held) {
            // ahead, so that it is not every token that makes one more
            let more: Vec<_> = (held as u32..=(most as u32).saturating_add(255)).map(|p| [p; 3]).collect();
            let more = text_rope(text, &more);
            self.known.cos.extend(more.cos);
            self.known.sin.extend(more.sin);
        }
        let (mut cos, mut sin) =
            (Vec::with_capacity(2 * all.len() * half), Vec::with_capacity(all.len() * half));
        for axes in all {
            if text_only(axes) {
                let at = axes[0] as usize * half;
                cos.extend_from_slice(&self.known.cos[at..at + half]);
                sin.extend_from_slice(&self.known.sin[at..at + half]);
            } else {
                let one = text_rope(text, &[axes]);
                cos.extend(one.cos);
                sin.extend(one.sin);
            }
        }
        cos.extend(sin);
        cos
    }
}

/// The rows whose logits are wanted; none if these are the first ones.
fn picks(work: &Work, shape: Shape) -> Vec<u32> {
    if work.parts.is_empty() {
        return Vec::new();
    }
    let mut picks: Vec<u32> = (0..work.last.len() as u32).collect();
    let mut end = shape.last;
    for part in &work.parts {
        end += part.rows.len();
        if part.wanted {
            picks.push(end as u32 - 1);
        }
    }
    picks
}

/// The pass itself: launches only, whose arguments are the same for all work of one shape. Of `work` the parts count.
fn forward(
    model: &Qwen3Vl,
    pool: &mut KvPages,
    inputs: &Inputs,
    shape: Shape,
    work: &Work,
) -> Result<Logits> {
    let Inputs { numbers, angles } = inputs;
    let &[_, rows, half] = angles.dims() else { unreachable!("three dimensions") };
    let mut at = 0;
    let mut next = |len: usize| {
        at += len;
        numbers.narrow(0, at - len, len)
    };
    let (ids, places) = (next(rows)?, next(2 * rows)?.reshape([2, rows])?);
    let (lens, tables) = (next(shape.last)?, next(shape.last * shape.width)?);
    let each = match shape.last {
        0 => None,
        last => Some([tables.reshape([last, shape.width])?, lens]),
    };
    let mut prompts = Vec::with_capacity(work.parts.len());
    for part in &work.parts {
        prompts.push(PromptRows { rows: part.rows.len(), table: next(part.pages.len())?, len: part.len });
    }
    let picked = next(picks(work, shape).len())?;
    let table = |side: usize| angles.narrow(0, side, 1)?.reshape([rows, half]);
    let rope = Rope { cos: table(0)?, sin: table(1)?, at: places };
    let images = Images { outputs: &work.outputs, runs: &work.runs };
    let reads = PagedRows { each, prompts };
    let hidden = model.text.forward(&ids, &rope, images, pool.caches(&reads), &mut |_, _| {})?;
    let hidden = match (work.parts.is_empty(), picked.dims()[0]) {
        (true, _) => hidden,
        (false, 0) => {
            let none = Tensor::zeros([0, 0], DType::F32, model.device())?;
            let (ids, values) = (Tensor::zeros([0], DType::U32, model.device())?, none.reshape([0])?);
            return Ok(Logits { all: none, best: [ids, values] });
        }
        (false, _) => ops::embedding(&hidden, &picked)?,
    };
    let all = model.text.logits(&hidden)?;
    let best = [ops::argmax(&all)?, ops::max(&all)?];
    Ok(Logits { all, best })
}
