//! One forward pass over rows of several sequences. On a GPU, passes in which every row has a page table of its own are
//! captured and replayed: decode, and a few prompt tokens beside it.

use crate::media::VisionOutput;
use crate::network::{LAYERS_QUEUED, LEAST_BOUNDED, Network, Queue, clip, interrupted};
use crate::relay::Relay;
use crate::rope::RopeTables;
use crate::sparse::{SoftmaxShare, local_keys};
use crate::text::{ImageRun, Images};
use pascaline::nn::{KvPages, PagedRows, PromptRows, Rope, SparsePrompt};
use pascaline::ops::PAGE;
use pascaline::{DType, Device, Result, Tensor, ops};
use std::ops::ControlFlow;

/// Pages for `tokens` tokens.
pub(crate) fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE)
}

/// The most rows of a pass in which prompt tokens run row by row. Each row reads the keys of all tokens before it. For a
/// few rows that is faster than the tiles of prefill attention, which do not fill a GPU then.
pub(crate) const MOST_BY_ROWS: usize = 64;
/// A row beyond any pool: keys and values for it are not written.
const NOWHERE: u32 = u32::MAX;
/// The fewest pages per table of a captured pass. The number is rounded up to a power of two, so that few passes are
/// captured.
pub(crate) const LEAST_WIDTH: usize = 16;

/// A token of a pass.
#[derive(Clone, Copy)]
pub(crate) struct Row {
    pub id: u32,
    /// The row of the pool that its keys and values are written to.
    pub place: u32,
    pub position: [u32; 3],
}

/// A row with a page table of its own: the last token of a sequence, or one of a few prompt tokens.
#[derive(Clone, Copy)]
pub(crate) struct Last<'s> {
    pub row: Row,
    pub pages: &'s [u32],
    /// Tokens of the sequence up to and including this one.
    pub len: usize,
}

/// Consecutive tokens of a prompt.
#[derive(Clone)]
pub(crate) struct Part<'s> {
    pub rows: Vec<Row>,
    pub pages: &'s [u32],
    /// Tokens of the sequence up to and including these.
    pub len: usize,
    /// The sequence's pictures, counted from its first token.
    pub pictures: &'s [ImageRun],
    /// Whether the token after them is to be chosen.
    pub wanted: bool,
}

impl Part<'_> {
    /// The keys that its rows read in any case, if they do not read all.
    fn local_keys(&self, share: Option<SoftmaxShare>) -> Vec<u32> {
        let rows = self.rows.len();
        local_keys(share, self.len - rows, rows, self.pictures)
    }
}

/// The rows of a pass: the last tokens of some sequences, then parts of prompts, with the image tokens among all rows.
#[derive(Default)]
pub(crate) struct Work<'s> {
    pub last: Vec<Last<'s>>,
    pub parts: Vec<Part<'s>>,
    pub outputs: Vec<VisionOutput>,
    pub runs: Vec<ImageRun>,
}

/// The result of a pass: a row for each sequence whose next token is chosen, in the order of the work.
#[derive(Clone)]
pub(crate) struct BatchLogits {
    /// [rows, vocab]
    pub all: Tensor,
    /// Index and value of each row's largest logit: [rows] each.
    pub best: [Tensor; 2],
}

/// The sizes that determine the shapes of a pass's tensors.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    /// Rows with a page table of their own.
    last: usize,
    /// Pages in each of their tables.
    width: usize,
}

/// Asked before each layer; its error ends the pass.
type Ask<'a> = dyn FnMut(usize, &Tensor) -> Result<()> + 'a;

/// A captured pass.
struct Captured {
    /// The number of its network.
    network: usize,
    shape: Shape,
    /// One for each stage.
    inputs: Vec<Inputs>,
    relay: Relay<BatchLogits>,
    used: u64,
}

/// The inputs that differ between passes of one shape, in device memory.
struct Inputs {
    /// u32: ids, cache rows and angle indices of all rows; lengths and page tables of decoding sequences; page tables of
    /// prompts; the rows whose logits are needed.
    numbers: Tensor,
    /// [2, rows, head_dim / 2]: cosines and sines.
    angles: Tensor,
}

/// Runs and captures passes through a model's networks: its own, and those with an adapter. A pass is through one of them.
pub(crate) struct Passes<'m> {
    networks: Vec<&'m Network>,
    /// The number of the one that the next pass is through.
    network: usize,
    /// Each owns the memory of its activations.
    graphs: Vec<Captured>,
    /// The most rows of all captured passes together.
    captured_rows: usize,
    capture: bool,
    clock: u64,
    /// Whether the last pass was captured just now.
    pub is_first: bool,
}

impl<'m> Passes<'m> {
    /// Captures passes where possible if `capture`, of at most `captured_rows` rows together.
    pub fn new(model: &'m Network, capture: bool, captured_rows: usize) -> Self {
        let capture = capture && model.text.is_capturable();
        let (networks, network) = (vec![model], 0);
        Self { networks, network, graphs: Vec::new(), captured_rows, capture, clock: 0, is_first: false }
    }

    /// With further networks of the same sizes on the same devices, numbered from 1 on.
    pub fn with(mut self, more: impl Iterator<Item = &'m Network>) -> Self {
        self.networks.extend(more);
        self
    }

    /// The next passes are through the network of this number, which must be there.
    pub fn through(&mut self, network: usize) {
        self.network = network;
    }

    /// The network that passes are through.
    pub fn chosen(&self) -> &'m Network {
        self.networks[self.network]
    }

    /// Whether this many prompt tokens run faster as rows of a captured pass of `last` decoding sequences.
    pub fn by_rows(&self, last: usize, tokens: usize) -> bool {
        self.capture && last > 0 && last + tokens <= MOST_BY_ROWS.min(self.captured_rows)
    }

    /// Computes the work's rows and stores their keys and values in the pool.
    pub fn run(&mut self, pool: &mut KvPages, work: &Work) -> Result<BatchLogits> {
        self.is_first = false;
        let logits = self.queue(pool, work, &mut |_, _| Ok(()))?;
        self.chosen().text.settle()?;
        Ok(logits)
    }

    /// As [`run`](Self::run). `go_on` is called before each layer of a pass with prompts, and ends it with `None`; the pool's rows
    /// for the work then have no meaning.
    pub fn run_while(
        &mut self,
        pool: &mut KvPages,
        work: &Work,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<BatchLogits>> {
        self.is_first = false;
        let (text, mut queue) = (&self.chosen().text, Queue::new(LAYERS_QUEUED));
        let is_bounded = text.pipeline_depth() == 1;
        let mut ended = false;
        let mut ask = |layer: usize, h: &Tensor| {
            if is_bounded && layer > 0 && h.dims()[0] >= LEAST_BOUNDED {
                queue.bound(h.device().as_cuda())?;
            }
            ended = go_on().is_break();
            if ended { Err(interrupted()) } else { Ok(()) }
        };
        let logits = match self.queue(pool, work, &mut ask) {
            Err(_) if ended => return self.chosen().text.settle().map(|()| None),
            logits => logits?,
        };
        self.chosen().text.settle()?;
        Ok(Some(logits))
    }

    /// Queues the pass. Prompts are split into micro-batches that keep all devices busy.
    fn queue(&mut self, pool: &mut KvPages, work: &Work, ask: &mut Ask) -> Result<BatchLogits> {
        let rows: usize = work.parts.iter().map(|part| part.rows.len()).sum();
        let most = self.chosen().tokens_of_pass(rows);
        if rows <= most {
            return self.queue_at_once(pool, work, ask);
        }
        let mut found = Vec::new();
        for part in in_parts(work, most) {
            let logits = self.queue_at_once(pool, &part, ask)?;
            if logits.all.dims()[0] > 0 {
                found.push(logits);
            }
        }
        match found.len() {
            0 => none(self.chosen().device()),
            1 => Ok(found.swap_remove(0)),
            _ => {
                let joined = |of: &dyn Fn(&BatchLogits) -> &Tensor| {
                    ops::cat(&found.iter().map(|logits| of(logits).clone()).collect::<Vec<_>>(), 0)
                };
                let best = [joined(&|logits| &logits.best[0])?, joined(&|logits| &logits.best[1])?];
                Ok(BatchLogits { all: joined(&|logits| &logits.all)?, best })
            }
        }
    }

    fn queue_at_once(&mut self, pool: &mut KvPages, work: &Work, ask: &mut Ask) -> Result<BatchLogits> {
        if !work.parts.is_empty() || !self.capture {
            let width = work.last.iter().map(|last| last.pages.len()).max().unwrap_or(0);
            let shape = Shape { last: work.last.len(), width };
            let inputs = self.inputs(work, shape)?;
            return forward(self.chosen(), pool, &inputs, shape, work, ask);
        }
        let pages = work.last.iter().map(|last| last.pages.len()).max().unwrap_or(0);
        let width = pages.next_power_of_two().max(LEAST_WIDTH);
        let shape = Shape { last: work.last.len().next_power_of_two(), width };
        self.clock += 1;
        let clock = self.clock;
        let numbers = self.numbers(work, shape);
        let angles = self.angles(work, shape);
        let (model, network) = (self.chosen(), self.network);
        let is_it = |captured: &&mut Captured| captured.network == network && captured.shape == shape;
        if let Some(captured) = self.graphs.iter_mut().find(is_it) {
            for inputs in &mut captured.inputs {
                inputs.numbers.view_mut()?.write(&numbers)?;
                inputs.angles.view_mut()?.write(&angles)?;
            }
            captured.used = clock;
            return captured.relay.launch(&model.text).cloned();
        }
        let rows = |graphs: &[Captured]| graphs.iter().map(|captured| captured.shape.last).sum::<usize>();
        while rows(&self.graphs) + shape.last > self.captured_rows
            && let Some(oldest) = (0..self.graphs.len()).min_by_key(|&i| self.graphs[i].used)
        {
            self.graphs.swap_remove(oldest);
        }
        self.is_first = true;
        let inputs = self.inputs(work, shape)?;
        let none = Work::default();
        let text = &model.text;
        let mut relay = if text.pipeline_depth() == 1 {
            Relay::capture_at_once(text, || {
                forward(self.chosen(), pool, &inputs, shape, &none, &mut |_, _| Ok(()))
            })?
        } else {
            let stage = |stage: usize, input: Option<&Tensor>| {
                stage_of(
                    self.chosen(),
                    pool,
                    &view(&inputs[stage], shape, &none, None)?,
                    stage,
                    input.cloned(),
                    &none,
                )
            };
            let end = |hidden: &Tensor| BatchLogits::new(text.logits_at_home(hidden)?);
            Relay::capture(text, shape.last, stage, end)?
        };
        let logits = relay.launch(text)?.clone();
        self.graphs.push(Captured { network, shape, inputs, relay, used: clock });
        Ok(logits)
    }

    /// Drops captured passes and their memory.
    pub fn forget(&mut self) {
        self.graphs.clear();
    }

    /// The inputs for each stage.
    fn inputs(&mut self, work: &Work, shape: Shape) -> Result<Vec<Inputs>> {
        let (numbers, angles) = (self.numbers(work, shape), self.angles(work, shape));
        let half = self.chosen().config.text.head_dim / 2;
        let on = |device: &Device| {
            Ok(Inputs {
                numbers: Tensor::from_slice(&numbers, [numbers.len()], device)?,
                angles: Tensor::from_slice(&angles, [2, angles.len() / (2 * half), half], device)?,
            })
        };
        self.chosen().devices().map(on).collect()
    }

    /// The contents of [`Inputs::numbers`]. Sequences of the shape beyond those of the work are empty.
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
        let share = self.chosen().sparse_prefill;
        for part in &work.parts {
            numbers.extend_from_slice(part.pages);
            numbers.extend(part.local_keys(share));
        }
        numbers.extend(picks(work, shape));
        numbers
    }

    /// The contents of [`Inputs::angles`].
    fn angles(&self, work: &Work, shape: Shape) -> Vec<f32> {
        let padding = shape.last - work.last.len();
        let last = work.last.iter().map(|last| last.row.position);
        let last = last.chain(std::iter::repeat_n([0; 3], padding));
        let all: Vec<_> =
            last.chain(work.parts.iter().flat_map(|part| &part.rows).map(|row| row.position)).collect();
        let RopeTables { mut cos, sin } = self.chosen().text.rotations(&all);
        cos.extend(sin);
        cos
    }
}

/// The rows whose logits are needed; empty if these are the first ones.
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

/// Splits the work into parts of at most `most` prompt rows, in order; the decode rows are in the first.
fn in_parts<'s>(work: &Work<'s>, most: usize) -> Vec<Work<'s>> {
    let mut all = vec![Work { last: work.last.to_vec(), ..Work::default() }];
    let (mut room, mut from, mut len) = (most, 0, work.last.len());
    let close = |part: &mut Work<'s>, from: usize, len: usize| {
        part.runs = clip(&work.runs, from, len);
        part.outputs = work.outputs.clone();
    };
    for part in &work.parts {
        let before = part.len - part.rows.len();
        let mut at = 0;
        while at < part.rows.len() {
            if room == 0 {
                if let Some(full) = all.last_mut() {
                    close(full, from, len);
                }
                all.push(Work::default());
                (room, from, len) = (most, from + len, 0);
            }
            let count = room.min(part.rows.len() - at);
            let end = at + count;
            let tokens = before + end;
            let piece = Part {
                rows: part.rows[at..end].to_vec(),
                pages: &part.pages[..pages_of(tokens).min(part.pages.len())],
                len: tokens,
                pictures: part.pictures,
                wanted: part.wanted && end == part.rows.len(),
            };
            if let Some(open) = all.last_mut() {
                open.parts.push(piece);
            }
            (at, room, len) = (end, room - count, len + count);
        }
    }
    if let Some(open) = all.last_mut() {
        close(open, from, len);
    }
    all
}

/// Views of a stage's inputs.
struct View {
    ids: Tensor,
    rope: Rope,
    reads: PagedRows,
    /// The rows whose logits are needed.
    picked: Tensor,
}

/// `sparse` is what long prompts read.
fn view(
    Inputs { numbers, angles }: &Inputs,
    shape: Shape,
    work: &Work,
    sparse: Option<SoftmaxShare>,
) -> Result<View> {
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
        let table = next(part.pages.len())?;
        let local = next(part.local_keys(sparse).len())?;
        let sparse = sparse.filter(|_| local.shape().elements() > 0);
        let sparse = sparse.map(|share| SparsePrompt { share: share.value(), local });
        prompts.push(PromptRows { rows: part.rows.len(), table, len: part.len, sparse });
    }
    let picked = next(picks(work, shape).len())?;
    let table = |side: usize| angles.narrow(0, side, 1)?.reshape([rows, half]);
    let rope = Rope { cos: table(0)?, sin: table(1)?, at: places };
    Ok(View { ids, rope, reads: PagedRows { each, prompts }, picked })
}

/// The part of a pass on one device: only launches, whose arguments are the same for all work of one shape. Of `work`, only
/// the parts and images are used.
fn stage_of(
    model: &Network,
    pool: &mut KvPages,
    view: &View,
    stage: usize,
    hidden: Option<Tensor>,
    work: &Work,
) -> Result<Tensor> {
    let (text, images) = (&model.text, Images { outputs: &work.outputs, runs: &work.runs });
    let hidden = match hidden {
        Some(hidden) => hidden,
        None => text.embed(&view.ids, images)?,
    };
    let mut caches = pool.caches_of(text.stages()[stage].range.clone(), &view.reads);
    text.run(stage, hidden, &view.rope, images, &mut caches, &mut |_, _| Ok(()))
}

/// The whole pass, launched kernel by kernel.
fn forward(
    model: &Network,
    pool: &mut KvPages,
    inputs: &[Inputs],
    shape: Shape,
    work: &Work,
    ask: &mut Ask,
) -> Result<BatchLogits> {
    let (text, images) = (&model.text, Images { outputs: &work.outputs, runs: &work.runs });
    let views = inputs
        .iter()
        .map(|inputs| view(inputs, shape, work, model.sparse_prefill))
        .collect::<Result<Vec<_>>>()?;
    let ropes: Vec<_> = views.iter().map(|view| view.rope.clone()).collect();
    let reads = text.stages().iter().zip(&views).map(|(stage, view)| (stage.range.len(), &view.reads));
    let mut hidden = text.forward(&views[0].ids, &ropes, images, pool.caches_of_each(reads), ask)?;
    if !work.parts.is_empty() {
        if views[0].picked.dims()[0] == 0 {
            return none(model.device());
        }
        // with a row split each device has them, else only the last one
        let views = &views[views.len() - hidden.len()..];
        let picked = hidden.iter().zip(views).map(|(hidden, view)| ops::embedding(hidden, &view.picked));
        hidden = picked.collect::<Result<_>>()?;
    }
    BatchLogits::new(text.logits(&hidden)?)
}

/// No logits, for a pass after which no token is chosen.
fn none(device: &Device) -> Result<BatchLogits> {
    let none = Tensor::zeros([0, 0], DType::F32, device)?;
    let (ids, values) = (Tensor::zeros([0], DType::U32, device)?, none.reshape([0])?);
    Ok(BatchLogits { all: none, best: [ids, values] })
}

impl BatchLogits {
    fn new(all: Tensor) -> Result<Self> {
        let best = [ops::argmax(&all)?, ops::max(&all)?];
        Ok(Self { all, best })
    }
}
