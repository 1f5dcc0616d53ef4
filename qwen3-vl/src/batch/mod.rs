//! Many requests at once. Their keys and values share a pool of pages; a step passes the last token of every running request and
//! parts of the prompts of new ones in one go.
//!
//! Sources: Yu et al. 2022, "Orca" (scheduling by iteration); Kwon et al. 2023, "Efficient memory management for large
//! language model serving with PagedAttention"; Agrawal et al. 2023, "Sarathi" (prompts in parts, beside running answers).
//!
//! 1. Requests wait in the order of their coming. The first is admitted when there are pages for all its tokens, which it takes at
//!    once. Pages that hold its beginning already, of whatever request, are shared and not computed again.
//! 2. A step has rows for prompts up to a limit, which is lower while answers run, so that these go on coming. Few rows beside
//!    answers pass as if each were an answer's, in the captured pass of so many answers.
//!    A picture passes so many blocks of the vision tower in a step, too: at least one.
//! 3. An answer takes a page when it needs one. If there is none, the youngest request gives its pages back and waits again, before
//!    all others. Its tokens are passed anew later; what has come of it stays.
//! 4. An error that concerns one request ends that one. Out of memory is such an error: of a pass with prompts it is the youngest
//!    prompt's, else the youngest answer's; the others' rows are passed again in the next step.
//!
//! An answer's attention gives the same bits whichever others there are. Matrix products do not, as the kernels for one row, for
//! few and for many add in different orders, and neither does the attention of prompts, whose tokens pass row by row or in tiles;
//! so a near tie between two tokens may be decided differently.

mod budget;
mod images;
mod pages;
mod pass;
mod prefix;
mod sequence;

use crate::generate::{Options, Output, StopReason};
use crate::kernels;
use crate::model::Qwen3Vl;
use crate::processor::Prompt;
use crate::sampling::{Logprobs, Sampler, checked};
use budget::Budget;
use images::Images;
use pages::{Pages, pages_of};
use pascaline::governor::Pacer;
use pascaline::nn::KvPages;
use pascaline::{Device, Error, Result};
use pass::{Last, Logits, Part, Passes, Row, Work};
use rayon::prelude::*;
use sequence::{Sequence, Sight};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub use pascaline::ops::PAGE;
pub use prefix::{KeyedPrompt, Prefixes};

/// How a [`Batch`] uses memory and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchOptions {
    /// Pages of keys and values, each of [`PAGE`] tokens, which all requests share.
    pub pages: usize,
    /// The most requests that run at once; more wait.
    pub max_sequences: usize,
    /// The most tokens of prompts that pass in a step while answers run: as many as keep the step within three times one without
    /// prompts, but no more than these; these while more requests wait for their first token than have it. Without running
    /// answers it is the model's [`tokens_per_pass`](crate::LoadOptions::tokens_per_pass).
    pub prompt_tokens: usize,
    /// The most bytes of pictures' embeddings that are kept for requests to come.
    pub image_bytes: usize,
    /// Whether, on a GPU, passes of running answers are captured into graphs and replayed.
    pub graph: bool,
}

impl BatchOptions {
    /// Room for `tokens` tokens of all requests together, 64 requests, up to 512 tokens of prompts beside running answers, and 256 MiB of
    /// pictures.
    pub fn with_room(tokens: usize) -> Self {
        let pages = pages_of(tokens).max(1);
        Self { pages, max_sequences: 64, prompt_tokens: 512, image_bytes: 256 << 20, graph: true }
    }

    /// The most rows of all captured passes together: the largest pass, and smaller ones.
    pub(super) fn captured_rows(&self) -> usize {
        (2 * self.max_sequences.next_power_of_two()).max(32)
    }

    /// As [`with_room`](Self::with_room), for as many tokens as half of the memory that is free on the model's GPU holds; the
    /// other half is for activations and pictures ([`fit::Model::fit_pages`](crate::fit::Model::fit_pages) plans what they take); on the CPU for 16384 tokens. No more than 16 contexts of the model.
    ///
    /// # Errors
    /// A device error.
    pub fn for_model(model: &Qwen3Vl) -> Result<Self> {
        let context = model.config().text.max_position_embeddings;
        let tokens = match model.device() {
            Device::Cpu => 16 << 10,
            Device::Cuda(_) => model.text.room_for_tokens()?,
        };
        let room = Self::with_room(tokens.min(context.saturating_mul(16)));
        Ok(Self { pages: room.pages.min(model.most_pages()), ..room })
    }
}

/// Names a request of a [`Batch`]; never given twice by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(u64);

/// What came of a request in a step.
#[derive(Debug)]
pub enum Event {
    /// A token of the answer; one of the checkpoint's stop tokens is none.
    Token {
        /// Whose.
        id: RequestId,
        /// The token.
        token: u32,
        /// The text that is certain now, perhaps empty.
        text: String,
        /// Its probability, if the request's sampler reports it.
        logprobs: Option<Logprobs>,
    },
    /// The answer is whole; nothing more comes of this request.
    Finished {
        /// Whose.
        id: RequestId,
        /// The end of the text, after that of the tokens.
        rest: String,
        /// All of it.
        output: Box<Output>,
    },
    /// Nothing more comes of this request.
    Failed {
        /// Whose.
        id: RequestId,
        /// Why.
        error: Error,
    },
}

/// How things stand, and what has been counted since the [`Batch`] was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Metrics {
    /// Requests that have pages.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Pages that requests use.
    pub pages_used: usize,
    /// Pages that no request uses, contents or not.
    pub pages_free: usize,
    /// Tokens of running requests that the pages in use are for; those in shared pages count for each.
    pub tokens_held: usize,
    /// Bytes of pictures' embeddings that are kept.
    pub image_bytes: usize,
    /// Steps that passed rows.
    pub steps: u64,
    /// Tokens of prompts, of all requests when they were admitted.
    pub prompt_tokens: u64,
    /// Of these, the ones that the pages held already.
    pub prefix_hits: u64,
    /// Tokens of prompts that passed row by row beside answers.
    pub tokens_by_rows: u64,
    /// Tokens of answers.
    pub answer_tokens: u64,
    /// How often a request gave its pages back for others.
    pub preemptions: u64,
}

/// Requests of one model that run together.
///
/// ```no_run
/// use qwen3_vl::batch::{Batch, BatchOptions, Event};
/// use qwen3_vl::generate::user_turn;
/// use qwen3_vl::{Options, Qwen3Vl};
/// let model = Qwen3Vl::load("Qwen3-VL-2B-Instruct", &pascaline::Device::auto())?;
/// let mut batch = Batch::new(&model, BatchOptions::with_room(8192))?;
/// for question in ["Why is the sky blue?", "Why is the grass green?"] {
///     batch.add(model.processor.prepare(&[user_turn(&[], question)], &[])?, &Options::default())?;
/// }
/// while !batch.is_idle() {
///     for event in batch.step() {
///         if let Event::Finished { id, output, .. } = event {
///             println!("{id:?}: {}", output.text);
///         }
///     }
/// }
/// # Ok::<(), pascaline::Error>(())
/// ```
pub struct Batch<'m> {
    model: &'m Qwen3Vl,
    options: BatchOptions,
    pool: KvPages,
    pages: Pages,
    images: Images,
    passes: Passes<'m>,
    budget: Budget,
    waiting: VecDeque<Sequence<'m>>,
    /// In the order of their coming.
    running: Vec<Sequence<'m>>,
    next: u64,
    lost: Option<Error>,
    counted: Metrics,
    pacers: Vec<Pacer>,
}

impl<'m> Batch<'m> {
    /// With no requests; the pages are allocated.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for the pages, [`Error::TooLarge`], or another device error.
    pub fn new(model: &'m Qwen3Vl, options: BatchOptions) -> Result<Self> {
        let options = BatchOptions {
            pages: options.pages.max(1),
            max_sequences: options.max_sequences.max(1),
            prompt_tokens: options.prompt_tokens.max(1),
            ..options
        };
        for device in model.devices() {
            // before the first request, whose answer would wait for the driver's compiler
            if let Device::Cuda(device) = device {
                let text = &model.config().text;
                device.load_modules(&kernels::of_pages(model.text.cache_format(), text.head_dim))?;
            }
        }
        Ok(Self {
            model,
            options,
            pool: model.text.pages(options.pages)?,
            pages: Pages::new(options.pages),
            images: Images::new(options.image_bytes),
            passes: Passes::new(model, options.graph, options.captured_rows()),
            budget: Budget::new(options.prompt_tokens),
            waiting: VecDeque::new(),
            running: Vec::new(),
            next: 0,
            lost: None,
            counted: Metrics::default(),
            pacers: model.devices().map(Pacer::new).collect(),
        })
    }

    /// Takes a request in, which begins in one of the next steps. The answer has at most as many tokens as the pages have room for.
    ///
    /// # Errors
    /// [`Error::Prompt`] for a prompt that is none, or that the pages have no room for, [`Error::Unsupported`] for sampling options
    /// out of range, or the device's error after it was lost.
    pub fn add(&mut self, prompt: Prompt, options: &Options) -> Result<RequestId> {
        let sampler = Sampler::new(options.sampling.clone(), &prompt.ids)?;
        self.add_with(prompt, options, sampler)
    }

    /// As [`add`](Self::add), with tokens of a sampler in place of `options.sampling`.
    ///
    /// # Errors
    /// As there.
    pub fn add_with(&mut self, prompt: Prompt, options: &Options, sampler: Sampler) -> Result<RequestId> {
        self.add_keyed(KeyedPrompt::new(self.model, prompt)?, options, sampler)
    }

    /// As [`add_with`](Self::add_with), of a prompt whose keys were made elsewhere: with pictures that takes a while.
    ///
    /// # Errors
    /// As there.
    pub fn add_keyed(
        &mut self,
        prompt: KeyedPrompt,
        options: &Options,
        sampler: Sampler,
    ) -> Result<RequestId> {
        if let Some(error) = &self.lost {
            return Err(error.clone());
        }
        let (id, capacity) = (RequestId(self.next), self.options.pages * PAGE);
        let sequence = Sequence::new(self.model, id, prompt, options, sampler, capacity)?;
        self.next += 1;
        self.waiting.push_back(sequence);
        Ok(id)
    }

    /// Lets a request go, whose pages are free at once. Whether there was one.
    pub fn remove(&mut self, id: RequestId) -> bool {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            let mut sequence = self.running.remove(at);
            sequence.release(&mut self.pages);
            return true;
        }
        let before = self.waiting.len();
        self.waiting.retain(|sequence| sequence.id != id);
        self.waiting.len() < before
    }

    /// Whether there are no requests.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// The error after which the device can't be used, if there was one.
    pub fn fault(&self) -> Option<&Error> {
        self.lost.as_ref()
    }

    /// The beginnings of prompts that the pages hold, now and later.
    pub fn prefixes(&self) -> Prefixes {
        self.pages.prefixes().clone()
    }

    /// Bytes of device memory that the pages take.
    pub fn pool_bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// How things stand.
    pub fn metrics(&self) -> Metrics {
        Metrics {
            running: self.running.len(),
            waiting: self.waiting.len(),
            pages_used: self.pages.len() - self.pages.available(),
            pages_free: self.pages.available(),
            tokens_held: self.running.iter().map(Sequence::tokens_held).sum(),
            image_bytes: self.images.bytes(),
            ..self.counted
        }
    }

    /// One pass for all running requests, and the admission of new ones. Errors are events, of the requests that they end.
    pub fn step(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.lost.is_none() {
            self.make_room();
            let begin = Instant::now();
            let (parts, seen) = self.take_prompts(&mut events);
            let looked = begin.elapsed();
            let last: Vec<usize> = (0..self.running.len()).filter(|&i| self.running[i].decodes()).collect();
            if self.lost.is_none() && !(last.is_empty() && parts.is_empty()) {
                self.pacers.iter_mut().for_each(Pacer::pace);
                let begin = Instant::now();
                match self.pass(&last, &parts) {
                    Ok(tokens) => {
                        match seen {
                            Some(patches) if !last.is_empty() => {
                                self.budget.was_seeing(patches, looked + begin.elapsed());
                            }
                            _ => self.measure(&last, &parts, begin.elapsed()),
                        }
                        self.take_tokens(&last, &parts, tokens, &mut events);
                    }
                    Err(error) => self.refuse(&last, &parts, error, &mut events),
                }
            }
        }
        if let Some(error) = self.lost.clone() {
            self.passes.forget();
            let all = self.running.drain(..).chain(self.waiting.drain(..));
            events.extend(all.map(|sequence| Event::Failed { id: sequence.id, error: error.clone() }));
            self.pages = Pages::new(self.options.pages);
        }
        events
    }

    /// Takes the time of a pass into account.
    fn measure(&mut self, last: &[usize], parts: &[(usize, usize)], time: Duration) {
        match (last.is_empty() || self.passes.is_first, parts.is_empty()) {
            (false, true) => self.budget.was_quiet(time),
            (false, false) => {
                self.budget.was_shared(parts.iter().map(|&(_, count)| count).sum(), time);
            }
            (true, _) => {}
        }
    }

    /// A page for every answer that needs one; the youngest requests make room.
    fn make_room(&mut self) {
        let mut i = 0;
        while i < self.running.len() {
            if !self.running[i].decodes() || self.running[i].grow(&mut self.pages) {
                i += 1;
            } else if let Some(mut youngest) = self.running.pop() {
                youngest.release(&mut self.pages);
                self.counted.preemptions += 1;
                self.waiting.push_front(youngest);
            }
        }
    }

    /// Chooses the parts of prompts that pass in this step, and admits requests for that: (which of the running, how many tokens). Gives
    /// also what has passed through the vision tower, if something has.
    fn take_prompts(&mut self, events: &mut Vec<Event>) -> (Vec<(usize, usize)>, Option<usize>) {
        let answers = self.running.iter().filter(|sequence| sequence.decodes()).count();
        let without_answer = self.running.len() - answers + self.waiting.len();
        let mut room = match answers {
            0 => self.model.tokens_per_pass(),
            _ if without_answer > answers => self.options.prompt_tokens,
            _ => self.budget.tokens(answers),
        };
        let most = if answers > 0 { self.budget.patches() } else { usize::MAX };
        let mut sight = Sight { most, passed: None };
        let (mut parts, mut i) = (Vec::new(), 0);
        while room > 0 && self.lost.is_none() {
            if i == self.running.len() && !self.admit(events) {
                break;
            }
            let Some(sequence) = self.running.get_mut(i).filter(|sequence| !sequence.decodes()) else {
                i += 1;
                continue;
            };
            let count = room.min(sequence.left());
            match sequence.see(self.model, &mut self.images, count, &mut sight) {
                Ok(0) => i += 1,
                Ok(count) => {
                    parts.push((i, count));
                    room -= count;
                    i += 1;
                }
                Err(error) => self.fail(i, error, events),
            }
        }
        (parts, sight.passed)
    }

    /// Lets the first of the waiting requests run, if there are pages for it.
    fn admit(&mut self, events: &mut Vec<Event>) -> bool {
        if self.running.len() >= self.options.max_sequences {
            return false;
        }
        while self.waiting.front().is_some_and(Sequence::wants_nothing) {
            if let Some(sequence) = self.waiting.pop_front() {
                self.finish(sequence, StopReason::MaxNewTokens, events);
            }
        }
        let Some(mut sequence) = self.waiting.pop_front() else { return false };
        // a page for each that runs, or else it would soon have to leave again
        match sequence.admit(&mut self.pages, self.running.len()) {
            Some(shared) => {
                self.counted.prompt_tokens += sequence.ids.len() as u64;
                self.counted.prefix_hits += shared as u64;
                self.running.push(sequence);
                true
            }
            None => {
                self.waiting.push_front(sequence);
                false
            }
        }
    }

    /// Passes the last token of some of the running, and parts of others. Gives the next token of each that has one.
    fn pass(&mut self, last: &[usize], parts: &[(usize, usize)]) -> Result<Vec<Result<u32>>> {
        let mut work = Work::default();
        let row = |sequence: &Sequence, i: usize| Row {
            id: sequence.ids[i],
            place: sequence.place(i),
            position: sequence.position(i),
        };
        for &i in last {
            let sequence = &self.running[i];
            let (len, row) = (sequence.ids.len(), row(sequence, sequence.computed));
            work.last.push(Last { row, pages: &sequence.pages, len });
        }
        let tokens = parts.iter().map(|&(_, count)| count).sum();
        let by_rows = self.passes.by_rows(last.len(), tokens)
            && parts.iter().all(|&(i, count)| !self.running[i].has_images(count));
        // of the pass's logits
        let mut wanted: Vec<usize> = (0..last.len()).collect();
        let mut at = last.len();
        for &(i, count) in parts {
            let sequence = &self.running[i];
            let len = sequence.computed + count;
            if by_rows {
                work.last.extend((sequence.computed..len).map(|i| Last {
                    row: row(sequence, i),
                    pages: &sequence.pages,
                    len: i + 1,
                }));
                wanted.extend((len == sequence.ids.len()).then(|| work.last.len() - 1));
                continue;
            }
            wanted.extend((len == sequence.ids.len()).then_some(wanted.len()));
            let rows = (sequence.computed..len).map(|i| row(sequence, i)).collect();
            let (pages, wanted) = (&sequence.pages[..pages_of(len)], len == sequence.ids.len());
            work.parts.push(Part { rows, pages, len, wanted });
            sequence.images(count, at, &mut work.outputs, &mut work.runs);
            at += count;
        }
        self.counted.tokens_by_rows += if by_rows { tokens as u64 } else { 0 };
        let logits = self.passes.run(&mut self.pool, &work)?;
        drop(work);
        self.choose(&logits, &wanted, &self.wanting(last, parts))
    }

    /// The sequences whose next token is chosen, in the order of the logits.
    fn wanting(&self, last: &[usize], parts: &[(usize, usize)]) -> Vec<usize> {
        let whole = parts.iter().filter(|&&(i, count)| self.running[i].left() == count).map(|&(i, _)| i);
        last.iter().copied().chain(whole).collect()
    }

    /// The next tokens, of these rows of the logits. A sequence whose logits are broken has an error of its own.
    fn choose(&mut self, logits: &Logits, rows: &[usize], sequences: &[usize]) -> Result<Vec<Result<u32>>> {
        if sequences.is_empty() {
            self.model.device().synchronize()?; // the others were waited for; so that steps do not run ahead of the device
            return Ok(Vec::new());
        }
        let [best, largest] = &logits.best;
        let (best, largest) = (best.to_vec::<u32>()?, largest.to_vec::<f32>()?);
        let mut samplers: Vec<_> =
            self.running.iter_mut().map(|sequence| Some(&mut sequence.sampler)).collect();
        let samplers: Vec<&mut Sampler> = sequences.iter().filter_map(|&i| samplers[i].take()).collect();
        // whoever takes the largest needs no others on the host
        let row = |(&row, sampler): (&usize, &&mut Sampler)| match sampler.takes_the_largest() {
            true => Ok(None),
            false => logits.all.narrow(0, row, 1)?.to_vec::<f32>().map(Some),
        };
        let copied: Vec<_> = rows.iter().zip(&samplers).map(row).collect::<Result<_>>()?;
        if copied.iter().all(Option::is_none) {
            return Ok(rows.iter().map(|&row| checked(best[row], largest[row])).collect()); // threads take longer to wake
        }
        let choose = |((sampler, logits), &row): ((&mut Sampler, Option<Vec<f32>>), &usize)| match logits {
            Some(mut logits) => sampler.next(&mut logits),
            None => checked(best[row], largest[row]),
        };
        Ok(samplers.into_par_iter().zip(copied).zip(rows).map(choose).collect())
    }

    /// After a pass: counts what has passed, and gives each sequence its token.
    fn take_tokens(
        &mut self,
        last: &[usize],
        parts: &[(usize, usize)],
        tokens: Vec<Result<u32>>,
        events: &mut Vec<Event>,
    ) {
        self.counted.steps += 1;
        let wanting = self.wanting(last, parts);
        for (i, count) in last.iter().map(|&i| (i, 1)).chain(parts.iter().copied()) {
            self.running[i].advance(count, &mut self.pages);
        }
        let mut ended: Vec<(usize, Result<StopReason>)> = Vec::new();
        for (i, token) in wanting.into_iter().zip(tokens) {
            match token {
                Ok(token) => {
                    let sequence = &mut self.running[i];
                    let (id, logprobs) = (sequence.id, sequence.sampler.take_logprobs());
                    let (text, end) = sequence.accept(token);
                    self.counted.answer_tokens += 1;
                    events.extend(text.map(|text| Event::Token { id, token, text, logprobs }));
                    ended.extend(end.map(|reason| (i, Ok(reason))));
                }
                Err(error) => ended.push((i, Err(error))),
            }
        }
        ended.sort_by_key(|&(i, _)| i);
        for (i, end) in ended.into_iter().rev() {
            match end {
                Ok(reason) => {
                    let mut sequence = self.running.remove(i);
                    sequence.release(&mut self.pages);
                    self.finish(sequence, reason, events);
                }
                Err(error) => self.fail(i, error, events),
            }
        }
    }

    fn finish(&self, sequence: Sequence<'m>, reason: StopReason, events: &mut Vec<Event>) {
        let id = sequence.id;
        let (rest, output) = sequence.finish(self.model, reason, self.pool.bytes());
        events.push(Event::Finished { id, rest, output: Box::new(output) });
    }

    /// Ends one of the running with an error, or all if the device is lost.
    fn fail(&mut self, i: usize, error: Error, events: &mut Vec<Event>) {
        if matches!(error, Error::DeviceLost { .. }) {
            self.lost = Some(error);
            return;
        }
        let mut sequence = self.running.remove(i);
        sequence.release(&mut self.pages);
        events.push(Event::Failed { id: sequence.id, error });
    }

    /// After a pass that failed, such as for want of memory: the youngest prompt, or else the youngest answer, ends with the error. What is kept
    /// for later goes before.
    fn refuse(&mut self, last: &[usize], parts: &[(usize, usize)], error: Error, events: &mut Vec<Event>) {
        self.passes.forget();
        self.images.shrink(0);
        let youngest = parts.last().map(|&(i, _)| i).or(last.last().copied());
        if let Some(i) = youngest {
            self.fail(i, error, events);
        }
    }
}
