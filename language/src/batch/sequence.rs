//! A request's place in a batch: how many of its tokens are computed, its pages, and its pictures.

use super::images::Images;
use super::pages::Pages;
use super::prefix::{Key, KeyedPrompt, PromptProgress, ReceiveProgress, page_key};

use crate::media::{VisionOutput, VisionProgress};
use crate::model::LanguageModel;
use crate::network::{Network, clip};
use crate::pass::pages_of;
use crate::processor::Prompt;
use crate::request::{Accepted, Options, Output, Request, StopReason};
use crate::sampling::Sampler;
use crate::text::ImageRun;
use pascaline::Result;
use pascaline::ops::PAGE;
use std::ops::ControlFlow;
use std::sync::Arc;

/// The id of a request of a [`Batch`](super::Batch), unique within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// A request with its place in the pool. It holds its prompt and its answer so far, so it can be computed again after preemption.
pub(super) struct Sequence<'m> {
    pub id: RequestId,
    request: Request<'m>,
    /// As in [`KeyedPrompt`].
    pub network: usize,
    /// How many of its tokens are computed: their keys and values are in `pages`.
    pub computed: usize,
    pub pages: Vec<u32>,
    /// Tokens that were found in the pool.
    shared: usize,
    receive: Option<ReceiveProgress>,
    /// Keys of the full pages of `ids`, as far as computed.
    keys: Vec<Key>,
    /// The prompt, which the choices of a request share.
    prompt: Arc<Prompt>,
    /// The runs of image tokens, counted from the start of the prompt.
    runs: Vec<ImageRun>,
    digests: Vec<Key>,
    /// Embeddings of images that are still needed.
    outputs: Vec<Option<VisionOutput>>,
    /// The image that is in the vision tower, and its index.
    progress: Option<(usize, VisionProgress)>,
}

/// The vision tower's work in a step.
pub(super) struct VisionWork<'w> {
    /// The most patches times blocks; at least one block runs.
    pub most: usize,
    /// How much has run, if any; one image at most per step.
    pub passed: Option<usize>,
    /// Asked before each block; it ends the work of this step.
    pub go_on: &'w mut dyn FnMut() -> ControlFlow<()>,
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
        let KeyedPrompt { prompt, network, runs, digests, keys, receive } = prompt;
        Ok(Self {
            id,
            request: Request::new(model, &prompt, options, sampler, capacity)?,
            network,
            computed: 0,
            pages: Vec::new(),
            shared: 0,
            receive,
            keys,
            runs,
            digests,
            outputs: vec![None; prompt.patches.len()],
            prompt,
            progress: None,
        })
    }

    /// The prompt's tokens and the answer's.
    pub fn ids(&self) -> &[u32] {
        &self.request.ids
    }

    pub fn sampler(&mut self) -> &mut Sampler {
        &mut self.request.sampler
    }

    /// Tokens that are not computed yet.
    pub fn left(&self) -> usize {
        self.request.ids.len() - self.computed
    }

    /// Tokens that have a place in its pages.
    pub fn tokens_held(&self) -> usize {
        self.request.ids.len().min(self.pages.len() * PAGE)
    }

    /// Whether its next row is the last token alone, and that one no image token.
    pub fn decodes(&self) -> bool {
        self.left() == 1 && self.runs.last().is_none_or(|run| run.start + run.len <= self.computed)
    }

    /// Whether it ends without a token.
    pub fn wants_nothing(&self) -> bool {
        self.request.limit() == 0
    }

    /// The positions of token `i` on the three axes.
    pub fn position(&self, i: usize) -> [u32; 3] {
        let after = || [self.request.first_position() + (i - self.request.prompt_len()) as u32; 3];
        self.prompt.positions.axes.get(i).copied().unwrap_or_else(after)
    }

    /// The row of the pool for token `i`'s keys and values. The page must be allocated.
    pub fn place(&self, i: usize) -> u32 {
        self.pages[i / PAGE] * PAGE as u32 + (i % PAGE) as u32
    }

    /// The key of the full page number `page`.
    fn key(&mut self, page: usize) -> Key {
        while self.keys.len() <= page {
            self.keys.push(page_key(&self.keys, self.network, &self.request.ids, &self.runs, &self.digests));
        }
        self.keys[page]
    }

    /// Allocates pages for all its tokens, sharing those of a prefix that the pool holds, and leaves `spare` pages free.
    /// Returns the number of tokens in shared pages, or `None` if there are too few pages.
    pub fn admit(&mut self, pages: &mut Pages, spare: usize) -> Option<usize> {
        let full = self.request.ids.len().saturating_sub(1) / PAGE; // the last token passes in any case
        let (mut shared, mut idle) = (0, 0);
        while shared < full {
            let key = self.key(shared);
            if !pages.has(key) {
                break;
            }
            idle += usize::from(pages.is_idle(key));
            shared += 1;
        }
        let needed = pages_of(self.request.ids.len()) - shared;
        if pages.available() < needed + idle + spare {
            return None;
        }
        for page in 0..shared {
            let key = self.key(page);
            self.pages.extend(pages.find(key));
        }
        // found pages have a user now and can't be evicted, so as many as counted are left
        while self.pages.len() < pages_of(self.request.ids.len()) {
            let Some(page) = pages.take() else {
                self.release(pages);
                return None;
            };
            self.pages.push(page);
        }
        self.computed = shared * PAGE;
        self.shared = self.computed;
        Some(self.computed)
    }

    /// Allocates a page if the next token needs one. Returns whether the token has room.
    pub fn grow(&mut self, pages: &mut Pages) -> bool {
        if self.pages.len() < pages_of(self.request.ids.len()) {
            self.pages.extend(pages.take());
        }
        self.pages.len() >= pages_of(self.request.ids.len())
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
        self.request.passed(tokens);
        if let Some(receive) = self.receive.as_ref().filter(|_| !self.request.has_begun()) {
            receive(PromptProgress {
                total: self.request.prompt_len(),
                cached: self.shared,
                processed: self.computed,
                time: self.request.time(),
            });
        }
        if self.left() == 0 {
            self.outputs.fill(None);
        }
    }

    /// How many of the next `count` tokens can be computed now: those before the first image without embeddings. At most
    /// one image runs through the vision tower in a step, perhaps only some of the blocks.
    pub fn encode_image(
        &mut self,
        network: &Network,
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
                let mut go_on = |_| (vision.go_on)();
                let output = network.encode_image_on(patches, &mut progress, blocks, &mut go_on)?;
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

    /// The runs of image tokens, counted from the start of the prompt.
    pub fn pictures(&self) -> &[ImageRun] {
        &self.runs
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

    /// Appends the next token of the answer.
    pub fn accept(&mut self, token: u32) -> Accepted {
        self.request.accept(token)
    }

    /// As [`Request::finish`].
    pub fn finish(self, model: &LanguageModel, reason: StopReason, cache_bytes: usize) -> (String, Output) {
        self.request.finish(model, reason, cache_bytes)
    }
}
