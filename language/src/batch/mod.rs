//! Continuous batching: many requests share a pool of KV cache pages. A step computes the last token of every running
//! request and parts of the prompts of new ones in one pass through the model.
//!
//! Sources: Yu et al. 2022, "Orca" (scheduling by iteration); Kwon et al. 2023, "Efficient memory management for large
//! language model serving with PagedAttention"; Agrawal et al. 2023, "Sarathi" (chunked prefill beside decode).
//!
//! 1. Requests wait in order of arrival. The first is admitted when there are pages for its whole prompt, which it takes at
//!    once. Full pages that already hold a prefix of the prompt, of any request, are shared and not computed again.
//! 2. A step computes prompt tokens up to a limit. The limit is lower while answers run, so that these are not held up. A
//!    few prompt tokens run as extra rows of the captured decode pass. A picture runs some blocks of the vision tower in
//!    each step, at least one.
//! 3. An answer takes a page when it needs one. If there is none, the youngest request is preempted: it gives its pages
//!    back and waits again, before all others. Its tokens are computed again later; the text that it has produced stays.
//! 4. A pass is through one network. With adapters that requests choose, the steps take turns: each computes the requests of one
//!    adapter, or those of none, and those of the next come in the next step.
//! 5. An error that concerns one request ends that one. Out of memory is such an error. It ends the youngest prompt of the
//!    pass, or the youngest answer if there is no prompt; the other rows are computed again in the next step.
//!
//! An answer's attention gives the same bits whichever other requests run. Matrix products do not, as the kernels for one
//! row, for few and for many rows add in different orders. Neither does the attention of prompts, whose tokens run row by
//! row or in tiles. So a near tie between two tokens may be decided differently.

mod budget;
mod images;
mod pages;
mod prefix;
mod sequence;

use crate::model::LanguageModel;
use crate::pass::{BatchLogits, Last, Part, Passes, Row, Work, pages_of};
use crate::processor::Prompt;
use crate::request::{Accepted, Options, Output, StopReason};
use crate::sampling::{Logprobs, Sampler, checked};
use budget::Budget;
use images::Images;
use pages::Pages;
use pascaline::governor::Pacer;
use pascaline::nn::KvPages;
use pascaline::{Device, Error, Result};

use rayon::prelude::*;
use sequence::{Sequence, VisionWork};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

pub use crate::options::BatchOptions;
pub use pascaline::ops::PAGE;
pub use prefix::{KeyedPrompt, Prefixes, PromptProgress};
pub use sequence::RequestId;

impl BatchOptions {
    /// As [`with_room`](Self::with_room), with pages in half of the GPU's free memory; the other half is for activations
    /// and pictures ([`fit::Model::fit_pages`](crate::fit::Model::fit_pages) plans what they take). On the CPU it is room
    /// for 16384 tokens. It is never more than 16 times the model's context.
    ///
    /// # Errors
    /// A device error.
    pub fn for_model(model: &LanguageModel) -> Result<Self> {
        let context = model.config().text.max_position_embeddings;
        let tokens = match model.device() {
            Device::Cpu => 16 << 10,
            Device::Cuda(_) => model.network.text.room_for_tokens()?,
        };
        let room = Self::with_room(tokens.min(context.saturating_mul(16)));
        Ok(Self { pages: room.pages.min(model.most_pages()), ..room })
    }
}

/// A result of a step, of one request.
#[derive(Debug)]
pub enum Event {
    /// A token of the answer. The checkpoint's stop tokens give no such event.
    Token {
        /// The request.
        id: RequestId,
        /// The token.
        token: u32,
        /// The text that is final now, perhaps empty.
        text: String,
        /// Its probability, if the request's sampler reports it.
        logprobs: Option<Logprobs>,
    },
    /// The answer is complete. No more events of this request follow.
    Finished {
        /// The request.
        id: RequestId,
        /// The rest of the text, after that of the tokens.
        rest: String,
        /// The whole answer.
        output: Box<Output>,
    },
    /// The request failed. No more events of it follow.
    Failed {
        /// The request.
        id: RequestId,
        /// Why.
        error: Error,
    },
}

/// The state of a [`Batch`], and counts since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Metrics {
    /// Requests that have pages.
    pub running: usize,
    /// Requests that wait for admission.
    pub waiting: usize,
    /// Pages that requests use.
    pub pages_used: usize,
    /// Pages that no request uses, with or without reusable contents.
    pub pages_free: usize,
    /// Tokens of running requests that have pages; tokens in shared pages count once for each request.
    pub tokens_held: usize,
    /// Bytes of picture embeddings that are kept.
    pub image_bytes: usize,
    /// Steps that computed rows.
    pub steps: u64,
    /// Prompt tokens of all requests, counted at admission.
    pub prompt_tokens: u64,
    /// Of these, the tokens whose keys and values were found in the pool.
    pub prefix_hits: u64,
    /// Prompt tokens that were computed as rows of a decode pass.
    pub tokens_by_rows: u64,
    /// Tokens of answers.
    pub answer_tokens: u64,
    /// How often a request was preempted.
    pub preemptions: u64,
}

/// Requests of one model that run together.
///
/// ```
/// use language::batch::{Batch, BatchOptions, Event};
/// use language::generate::user_turn;
/// use language::{LanguageModel, Options};
/// fn answer(model: &LanguageModel) -> pascaline::Result<()> {
///     let mut batch = Batch::new(model, BatchOptions::with_room(8192))?;
///     for question in ["Why is the sky blue?", "Why is the grass green?"] {
///         batch.add(model.processor.prepare(&[user_turn(&[], question)], &[])?, &Options::default())?;
///     }
///     while !batch.is_idle() {
///         for event in batch.step() {
///             if let Event::Finished { id, output, .. } = event {
///                 println!("{id:?}: {}", output.text);
///             }
///         }
///     }
///     Ok(())
/// }
/// ```
pub struct Batch<'m> {
    model: &'m LanguageModel,
    options: BatchOptions,
    pool: KvPages,
    pages: Pages,
    images: Images,
    passes: Passes<'m>,
    budget: Budget,
    /// The network of the last step.
    turn: usize,
    waiting: VecDeque<Sequence<'m>>,
    /// In order of arrival.
    running: Vec<Sequence<'m>>,
    next: u64,
    lost: Option<Error>,
    counted: Metrics,
    pacers: Vec<Pacer>,
}

impl<'m> Batch<'m> {
    /// An empty batch; allocates the pages.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no memory for the pages, [`Error::TooLarge`], or another device error.
    pub fn new(model: &'m LanguageModel, options: BatchOptions) -> Result<Self> {
        let options = BatchOptions {
            pages: options.pages.max(1),
            max_sequences: options.max_sequences.max(1),
            prompt_tokens: options.prompt_tokens.max(1),
            ..options
        };
        model.load_modules(&options)?; // before the first request, whose answer would wait for the driver's compiler
        Ok(Self {
            model,
            options,
            pool: model.network.text.pages(options.pages)?,
            pages: Pages::new(options.pages),
            images: Images::new(options.image_bytes),
            passes: Passes::new(&model.network, options.graph, options.captured_rows())
                .with(model.adapted.iter().map(|(_, network)| network)),
            turn: 0,
            budget: Budget::new(options.prompt_tokens, model.network.rows_that_fill(options.prompt_tokens)),
            waiting: VecDeque::new(),
            running: Vec::new(),
            next: 0,
            lost: None,
            counted: Metrics::default(),
            pacers: model.devices().map(Pacer::new).collect(),
        })
    }

    /// Adds a request, which starts in one of the next steps. The answer has at most as many tokens as the pages have room
    /// for.
    ///
    /// # Errors
    /// [`Error::Prompt`] for an empty or malformed prompt or one that the pages have no room for, [`Error::Unsupported`]
    /// for sampling options out of range, or the device's error after it was lost.
    pub fn add(&mut self, prompt: Prompt, options: &Options) -> Result<RequestId> {
        let sampler = Sampler::new(options.sampling.clone(), &prompt.ids)?;
        self.add_with(prompt, options, sampler)
    }

    /// As [`add`](Self::add), with a sampler of the caller's; `options.sampling` is ignored.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_with(&mut self, prompt: Prompt, options: &Options, sampler: Sampler) -> Result<RequestId> {
        self.add_keyed(KeyedPrompt::new(self.model, prompt)?, options, sampler)
    }

    /// As [`add_with`](Self::add_with), of a prompt whose prefix keys were computed by the caller: with pictures that takes
    /// a while.
    ///
    /// # Errors
    /// As [`add_with`](Self::add_with).
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

    /// Cancels a request and frees its pages at once. Returns whether there was one.
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

    /// The error that made the device unusable, if there was one.
    pub fn fault(&self) -> Option<&Error> {
        self.lost.as_ref()
    }

    /// The prompt prefixes that the pages hold; it stays current.
    pub fn prefixes(&self) -> Prefixes {
        self.pages.prefixes().clone()
    }

    /// Bytes of device memory that the pages take.
    pub fn pool_bytes(&self) -> usize {
        self.pool.bytes()
    }

    /// The state and the counts.
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

    /// Admits new requests and computes one pass for all running ones. Errors are returned as events of the requests that
    /// they end.
    pub fn step(&mut self) -> Vec<Event> {
        self.step_while(&mut || ControlFlow::Continue(()))
    }

    /// As [`step`](Self::step). `go_on` is called before each layer of a pass that has parts of prompts, and ends the pass: then no
    /// request has advanced, and the next step computes it again.
    pub fn step_while(&mut self, go_on: &mut dyn FnMut() -> ControlFlow<()>) -> Vec<Event> {
        let mut events = Vec::new();
        if self.lost.is_none() {
            self.make_room();
            let begin = Instant::now();
            if self.running.is_empty() {
                self.admit(&mut events);
            }
            self.take_turn();
            let (parts, seen) = self.take_prompts(go_on, &mut events);
            let looked = begin.elapsed();
            let decodes = |&i: &usize| self.has_turn(i) && self.running[i].decodes();
            let last: Vec<usize> = (0..self.running.len()).filter(decodes).collect();
            if self.lost.is_none() && !(last.is_empty() && parts.is_empty()) {
                self.pacers.iter_mut().for_each(Pacer::pace);
                let begin = Instant::now();
                match self.pass(&last, &parts, go_on) {
                    Ok(None) => {}
                    Ok(Some(tokens)) => {
                        match seen {
                            Some(patches) if !last.is_empty() => {
                                self.budget.record_vision(patches, looked + begin.elapsed());
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

    /// The turn goes to the next network, in a circle, that running requests are answered with.
    fn take_turn(&mut self) {
        let count = self.model.adapted.len() + 1;
        let after = |network: usize| (network + count - self.turn - 1) % count;
        let next = self.running.iter().map(|sequence| sequence.network).min_by_key(|&network| after(network));
        self.turn = next.unwrap_or(self.turn);
        self.passes.through(self.turn);
    }

    /// Whether running request `i` is one of this step.
    fn has_turn(&self, i: usize) -> bool {
        self.running[i].network == self.turn
    }

    /// Gives the time of a pass to the budget.
    fn measure(&mut self, last: &[usize], parts: &[(usize, usize)], time: Duration) {
        match (last.is_empty() || self.passes.is_first, parts.is_empty()) {
            (false, true) => self.budget.record_decode(time),
            (false, false) => {
                self.budget.record_shared(parts.iter().map(|&(_, count)| count).sum(), time);
            }
            (true, _) => {}
        }
    }

    /// Takes a page for every answer that needs one; preempts the youngest requests if there are too few.
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

    /// Chooses the prompt parts of this step, and admits requests for it. Returns (index of the running request, number of
    /// tokens) for each, and how many patches times blocks went through the vision tower, if any.
    fn take_prompts(
        &mut self,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
        events: &mut Vec<Event>,
    ) -> (Vec<(usize, usize)>, Option<usize>) {
        let turn = self.turn;
        let has_turn = |sequence: &&Sequence| sequence.network == turn;
        let answers = self.running.iter().filter(has_turn).filter(|sequence| sequence.decodes()).count();
        let mut room = match answers {
            0 => self.model.network.tokens_per_pass(),
            _ => self.budget.tokens(answers, self.without_answer()),
        };
        let most = if answers > 0 { self.budget.patches() } else { usize::MAX };
        let mut vision = VisionWork { most, passed: None, go_on };
        let (mut parts, mut i) = (Vec::new(), 0);
        while room > 0 && self.lost.is_none() {
            if i == self.running.len() && !self.admit(events) {
                break;
            }
            let is_next = |sequence: &&mut Sequence| sequence.network == turn && !sequence.decodes();
            let Some(sequence) = self.running.get_mut(i).filter(is_next) else {
                i += 1;
                continue;
            };
            let count = room.min(sequence.left());
            match sequence.encode_image(self.passes.chosen(), &mut self.images, count, &mut vision) {
                Ok(0) => i += 1,
                Ok(count) => {
                    parts.push((i, count));
                    room -= count;
                    i += 1;
                }
                Err(error) => self.fail(i, error, events),
            }
        }
        (parts, vision.passed)
    }

    /// How many requests have no token yet.
    fn without_answer(&self) -> usize {
        self.running.iter().filter(|sequence| !sequence.decodes()).count() + self.waiting.len()
    }

    /// Admits the first waiting request, if there are pages for it.
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
        // a spare page for each running request, or else this one would soon be preempted
        match sequence.admit(&mut self.pages, self.running.len()) {
            Some(shared) => {
                self.counted.prompt_tokens += sequence.ids().len() as u64;
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

    /// Computes the last token of some running requests and prompt parts of others. Returns the next token of each that has
    /// one, or `None` if `go_on` ended the pass.
    fn pass(
        &mut self,
        last: &[usize],
        parts: &[(usize, usize)],
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Vec<Result<u32>>>> {
        let mut work = Work::default();
        let row = |sequence: &Sequence, i: usize| Row {
            id: sequence.ids()[i],
            place: sequence.place(i),
            position: sequence.position(i),
        };
        for &i in last {
            let sequence = &self.running[i];
            let (len, row) = (sequence.ids().len(), row(sequence, sequence.computed));
            work.last.push(Last { row, pages: &sequence.pages, len });
        }
        let tokens = parts.iter().map(|&(_, count)| count).sum();
        let by_rows = self.passes.by_rows(last.len(), tokens)
            && parts.iter().all(|&(i, count)| !self.running[i].has_images(count));
        // indices into the pass's logits
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
                wanted.extend((len == sequence.ids().len()).then(|| work.last.len() - 1));
                continue;
            }
            wanted.extend((len == sequence.ids().len()).then_some(wanted.len()));
            let rows = (sequence.computed..len).map(|i| row(sequence, i)).collect();
            let (pages, wanted) = (&sequence.pages[..pages_of(len)], len == sequence.ids().len());
            work.parts.push(Part { rows, pages, len, pictures: sequence.pictures(), wanted });
            sequence.images(count, at, &mut work.outputs, &mut work.runs);
            at += count;
        }
        self.counted.tokens_by_rows += if by_rows { tokens as u64 } else { 0 };
        let Some(logits) = self.passes.run_while(&mut self.pool, &work, go_on)? else { return Ok(None) };
        drop(work);
        self.choose(&logits, &wanted, &self.sequences_to_sample(last, parts)).map(Some)
    }

    /// The sequences whose next token is chosen, in the order of the logits' rows.
    fn sequences_to_sample(&self, last: &[usize], parts: &[(usize, usize)]) -> Vec<usize> {
        let whole = parts.iter().filter(|&&(i, count)| self.running[i].left() == count).map(|&(i, _)| i);
        last.iter().copied().chain(whole).collect()
    }

    /// Chooses the next tokens from these rows of the logits. A sequence whose logits are not finite gets an error of its
    /// own.
    fn choose(
        &mut self,
        logits: &BatchLogits,
        rows: &[usize],
        sequences: &[usize],
    ) -> Result<Vec<Result<u32>>> {
        if sequences.is_empty() {
            self.model.device().synchronize()?; // as the other branches do, so that steps do not run ahead
            return Ok(Vec::new());
        }
        let [best, largest] = &logits.best;
        let (best, largest) = (best.to_vec::<u32>()?, largest.to_vec::<f32>()?);
        let mut samplers: Vec<_> = self.running.iter_mut().map(|sequence| Some(sequence.sampler())).collect();
        let samplers: Vec<&mut Sampler> = sequences.iter().filter_map(|&i| samplers[i].take()).collect();
        // greedy sampling needs no other logits on the host
        let row = |(&row, sampler): (&usize, &&mut Sampler)| match sampler.takes_the_largest() {
            true => Ok(None),
            false => logits.all.narrow(0, row, 1)?.to_vec::<f32>().map(Some),
        };
        let copied: Vec<_> = rows.iter().zip(&samplers).map(row).collect::<Result<_>>()?;
        if copied.iter().all(Option::is_none) {
            return Ok(rows.iter().map(|&row| checked(best[row], largest[row])).collect()); // waking threads takes longer
        }
        let choose = |((sampler, logits), &row): ((&mut Sampler, Option<Vec<f32>>), &usize)| match logits {
            Some(mut logits) => sampler.next(&mut logits),
            None => checked(best[row], largest[row]),
        };
        Ok(samplers.into_par_iter().zip(copied).zip(rows).map(choose).collect())
    }

    /// After a pass: counts what was computed, and gives each sequence its token.
    fn take_tokens(
        &mut self,
        last: &[usize],
        parts: &[(usize, usize)],
        tokens: Vec<Result<u32>>,
        events: &mut Vec<Event>,
    ) {
        self.counted.steps += 1;
        let wanting = self.sequences_to_sample(last, parts);
        for (i, count) in last.iter().map(|&i| (i, 1)).chain(parts.iter().copied()) {
            self.running[i].advance(count, &mut self.pages);
        }
        let mut ended: Vec<(usize, Result<StopReason>)> = Vec::new();
        for (i, token) in wanting.into_iter().zip(tokens) {
            match token {
                Ok(token) => {
                    let sequence = &mut self.running[i];
                    let (id, Accepted { text, logprobs, end }) = (sequence.id, sequence.accept(token));
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

    /// Ends a running request with an error, or all of them if the device is lost.
    fn fail(&mut self, i: usize, error: Error, events: &mut Vec<Event>) {
        if matches!(error, Error::DeviceLost { .. }) {
            self.lost = Some(error);
            return;
        }
        let mut sequence = self.running.remove(i);
        sequence.release(&mut self.pages);
        events.push(Event::Failed { id: sequence.id, error });
    }

    /// After a pass that failed, for instance out of memory: drops captured passes and cached embeddings, and ends the
    /// youngest prompt, or else the youngest answer, with the error.
    fn refuse(&mut self, last: &[usize], parts: &[(usize, usize)], error: Error, events: &mut Vec<Event>) {
        self.passes.forget();
        self.images.shrink(0);
        let youngest = parts.last().map(|&(i, _)| i).or(last.last().copied());
        if let Some(i) = youngest {
            self.fail(i, error, events);
        }
    }
}
