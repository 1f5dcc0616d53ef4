//! One request in a batch: its tokens, how many of them are computed, and its pages.

use super::images::Images;
use super::pages::Pages;
use super::prefix::{Key, KeyedPrompt, page_key};
use crate::generate::{Options, Output, Statistics, StopReason, first_position, rate};
use crate::media::{VisionOutput, VisionProgress};
use crate::model::LanguageModel;
use crate::network::clip;
use crate::pass::pages_of;
use crate::processor::Prompt;
use crate::sampling::Sampler;
use crate::stream::TextStream;
use crate::text::ImageRun;
use pascaline::ops::PAGE;
use pascaline::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The id of a request of a [`Batch`](super::Batch), unique within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// A request. `ids` holds its prompt and its answer so far, so it can be computed again after preemption.
pub(super) struct Sequence<'m> {
    pub id: RequestId,
    /// The prompt's tokens and the answer's.
    pub ids: Vec<u32>,
    /// How many of them are computed: their keys and values are in `pages`.
    pub computed: usize,
    pub pages: Vec<u32>,
    /// Keys of the full pages of `ids`, as far as computed.
    keys: Vec<Key>,
    prompt_len: usize,
    /// The prompt, which the choices of a request share.
    prompt: Arc<Prompt>,
    /// The position of the first token after it.
    first: u32,
    /// The runs of image tokens, counted from the start of the prompt.
    runs: Vec<ImageRun>,
    digests: Vec<Key>,
    /// Embeddings of images that are still needed.
    outputs: Vec<Option<VisionOutput>>,
    /// The image that is in the vision tower, and its index.
    progress: Option<(usize, VisionProgress)>,
    pub sampler: Sampler,
    stream: TextStream<'m>,
    eos: Vec<u32>,
    limit: usize,
    /// Why it ends at the limit.
    at_limit: StopReason,
    text: String,
    begin: Instant,
    first_token: Option<Duration>,
    prefilled: usize,
}

/// The vision tower's work in a step.
pub(super) struct VisionWork {
    /// The most patches times blocks; at least one block runs.
    pub most: usize,
    /// How much has run, if any; one image at most per step.
    pub passed: Option<usize>,
}

impl<'m> Sequence<'m> {
    /// Checks a request; `capacity` is the pool's size in tokens.
    pub fn new(
        model: &'m LanguageModel,
        id: RequestId,
        prompt: KeyedPrompt,
        options: &Options,
        sampler: Sampler,
        capacity: usize,
    ) -> Result<Self> {
        let KeyedPrompt { prompt, runs, digests, keys } = prompt;
        let room = model.room_after(&prompt)?;
        let fits = (capacity + 1).saturating_sub(prompt.ids.len()); // the last token is never passed
        let limit = options.max_new_tokens.min(room).min(fits);
        let at_limit = match limit < options.max_new_tokens {
            true => StopReason::ContextFull,
            false => StopReason::MaxNewTokens,
        };
        if (room.min(fits), options.max_new_tokens > 0) == (0, true) {
            let most =
                if room == 0 { "the model's context".into() } else { format!("{capacity} in the cache") };
            let reason = format!("its {} tokens fill {most}", prompt.ids.len());
            return Err(Error::Prompt { reason });
        }
        model.capacity(&prompt, limit)?;
        let first = first_position(&prompt, limit)?;
        let eos = match options.stop_at_eos {
            true => model.processor.generation.eos_token_ids.clone(),
            false => Vec::new(),
        };
        Ok(Self {
            id,
            prompt_len: prompt.ids.len(),
            ids: prompt.ids.clone(),
            computed: 0,
            pages: Vec::new(),
            keys,
            first,
            runs,
            digests,
            outputs: vec![None; prompt.patches.len()],
            prompt,
            progress: None,
            sampler,
            stream: TextStream::new(&model.processor.tokenizer, &options.stop),
            eos,
            limit,
            at_limit,
            text: String::new(),
            begin: Instant::now(),
            first_token: None,
            prefilled: 0,
        })
    }

    /// Tokens that are not computed yet.
    pub fn left(&self) -> usize {
        self.ids.len() - self.computed
    }

    /// Tokens that have a place in its pages.
    pub fn tokens_held(&self) -> usize {
        self.ids.len().min(self.pages.len() * PAGE)
    }

    /// Whether its next row is the last token alone, and that one no image token.
    pub fn decodes(&self) -> bool {
        self.left() == 1 && self.runs.last().is_none_or(|run| run.start + run.len <= self.computed)
    }

    /// Whether it ends without a token.
    pub fn wants_nothing(&self) -> bool {
        self.limit == 0
    }

    /// The positions of token `i` on the three axes.
    pub fn position(&self, i: usize) -> [u32; 3] {
        let after = || [self.first + (i - self.prompt_len) as u32; 3];
        self.prompt.positions.axes.get(i).copied().unwrap_or_else(after)
    }

    /// The row of the pool for token `i`'s keys and values. The page must be allocated.
    pub fn place(&self, i: usize) -> u32 {
        self.pages[i / PAGE] * PAGE as u32 + (i % PAGE) as u32
    }

    /// The key of the full page number `page`.
    fn key(&mut self, page: usize) -> Key {
        while self.keys.len() <= page {
            self.keys.push(page_key(&self.keys, &self.ids, &self.runs, &self.digests));
        }
        self.keys[page]
    }

    /// Allocates pages for all its tokens, sharing those of a prefix that the pool holds, and leaves `spare` pages free.
    /// Returns the number of tokens in shared pages, or `None` if there are too few pages.
    pub fn admit(&mut self, pages: &mut Pages, spare: usize) -> Option<usize> {
        let full = self.ids.len().saturating_sub(1) / PAGE; // the last token passes in any case
        let (mut shared, mut idle) = (0, 0);
        while shared < full {
            let key = self.key(shared);
            if !pages.has(key) {
                break;
            }
            idle += usize::from(pages.is_idle(key));
            shared += 1;
        }
        let needed = pages_of(self.ids.len()) - shared;
        if pages.available() < needed + idle + spare {
            return None;
        }
        for page in 0..shared {
            let key = self.key(page);
            self.pages.extend(pages.find(key));
        }
        // found pages have a user now and can't be evicted, so as many as counted are left
        while self.pages.len() < pages_of(self.ids.len()) {
            let Some(page) = pages.take() else {
                self.release(pages);
                return None;
            };
            self.pages.push(page);
        }
        self.computed = shared * PAGE;
        Some(self.computed)
    }

    /// Allocates a page if the next token needs one. Returns whether the token has room.
    pub fn grow(&mut self, pages: &mut Pages) -> bool {
        if self.pages.len() < pages_of(self.ids.len()) {
            self.pages.extend(pages.take());
        }
        self.pages.len() >= pages_of(self.ids.len())
    }

    /// Releases its pages; all its tokens have to be computed again.
    pub fn release(&mut self, pages: &mut Pages) {
        pages.release(&self.pages);
        self.pages.clear();
        self.computed = 0;
        self.progress = None;
    }

    /// Counts computed tokens, and records the contents of the pages that they filled.
    pub fn advance(&mut self, tokens: usize, pages: &mut Pages) {
        let before = self.computed / PAGE;
        self.computed += tokens;
        for page in before..self.computed / PAGE {
            let key = self.key(page);
            pages.set_key(self.pages[page], key);
        }
        if self.first_token.is_none() {
            self.prefilled += tokens;
        }
        if self.left() == 0 {
            self.outputs.fill(None);
        }
    }

    /// How many of the next `count` tokens can be computed now: those before the first image without embeddings. At most
    /// one image runs through the vision tower in a step, perhaps only some of the blocks.
    pub fn encode_image(
        &mut self,
        model: &LanguageModel,
        images: &mut Images,
        count: usize,
        vision: &mut VisionWork,
    ) -> Result<usize> {
        for run in clip(&self.runs, self.computed, count) {
            let key = self.digests[run.output];
            if self.outputs[run.output].is_none() {
                self.outputs[run.output] = images.get(key);
            }
            if self.outputs[run.output].is_none() {
                if vision.passed.is_some() {
                    return Ok(run.start);
                }
                let patches = &self.prompt.patches[run.output];
                let of_block = patches.grid[1..].iter().product::<usize>().max(1);
                let blocks = (vision.most / of_block).max(1);
                let begun = self.progress.take().filter(|(image, _)| *image == run.output);
                let mut progress = begun.map_or_else(VisionProgress::default, |(_, progress)| progress);
                let before = progress.passed;
                vision.passed = Some(0);
                let output = model.network.encode_image_on(patches, &mut progress, blocks)?;
                vision.passed = Some((progress.passed - before).saturating_mul(of_block));
                let Some(output) = output else {
                    self.progress = Some((run.output, progress));
                    return Ok(run.start);
                };
                images.put(key, &output);
                self.outputs[run.output] = Some(output);
            }
        }
        Ok(count)
    }

    /// Whether there are image tokens among the next `count`.
    pub fn has_images(&self, count: usize) -> bool {
        !clip(&self.runs, self.computed, count).is_empty()
    }

    /// The image tokens among the next `count`, counted from `at`. Appends their embeddings to `outputs`.
    pub fn images(&self, count: usize, at: usize, outputs: &mut Vec<VisionOutput>, runs: &mut Vec<ImageRun>) {
        for run in clip(&self.runs, self.computed, count) {
            if let Some(output) = &self.outputs[run.output] {
                runs.push(ImageRun { start: at + run.start, output: outputs.len(), ..run });
                outputs.push(output.clone());
            }
        }
    }

    /// Appends the next token of the answer. Returns its text, unless it is no part of the answer, and why the answer ends,
    /// if it does.
    pub fn accept(&mut self, token: u32) -> (Option<String>, Option<StopReason>) {
        self.first_token.get_or_insert_with(|| self.begin.elapsed());
        self.ids.push(token);
        if self.eos.contains(&token) {
            return (None, Some(StopReason::Eos));
        }
        let piece = self.stream.push(token);
        self.text += &piece;
        let end = match (self.stream.stopped(), self.ids.len() - self.prompt_len >= self.limit) {
            (true, _) => Some(StopReason::StopString),
            (false, true) => Some(self.at_limit),
            (false, false) => None,
        };
        (Some(piece), end)
    }

    /// The complete answer, and the text that had been held back.
    pub fn finish(
        mut self,
        model: &LanguageModel,
        stop_reason: StopReason,
        cache_bytes: usize,
    ) -> (String, Output) {
        let rest = self.stream.finish();
        self.text += &rest;
        let elapsed = self.begin.elapsed();
        let first = self.first_token.unwrap_or(elapsed);
        let ids = self.ids.split_off(self.prompt_len);
        let decode_tokens = ids.len().saturating_sub(1);
        let statistics = Statistics {
            prompt_tokens: self.prompt_len,
            prefill_tokens: self.prefilled,
            time_to_first_token: first.as_secs_f64(),
            prefill_tokens_per_second: rate(self.prefilled, first),
            decode_tokens,
            decode_tokens_per_second: rate(decode_tokens, elapsed.saturating_sub(first)),
            streamed_layers: model.streamed_layers(),
            weight_bytes_per_token: model.weight_bytes(),
            cache_bytes,
            ..Statistics::default()
        };
        (rest, Output { ids, text: self.text, stop_reason, statistics })
    }
}
