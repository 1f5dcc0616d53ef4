//! The parts of a model that compute: the tower and the decoder, with weights and without tokenizer and files.
//!
//! `model` loads one from a checkpoint; `footprint` makes one on planned devices.

use super::adapter::Adapter;
use super::media::Patches;
use super::media::{VisionOutput, VisionProgress};
use super::options::LoadOptions;
use super::placement::Placement;
use super::seam::Config;
use super::seam::{self, Tower, VISION, Vision, VisionPlace};
use super::sparse::{self, SoftmaxShare};
use super::text::{ImageRun, Images, TextModel};
use super::weights::Weights;
use pascaline::cuda::{CudaDevice, Event};
use pascaline::nn::{KvCache, Rope};
use pascaline::{Device, Error, Result, Tensor, memory};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The tower, if the model has one, and the decoder.
pub(super) struct Network {
    pub config: Config,
    /// `None` for a model of text alone.
    tower: Option<Arc<dyn Tower>>,
    pub text: TextModel,
    tokens_per_pass: usize,
    /// What long prompts read, if not all keys.
    pub sparse_prefill: Option<SoftmaxShare>,
}

impl Network {
    /// Takes the model's tensors. `host` is where the tower is if it is on no GPU; `done` is called after each layer. With `share_tower` the
    /// tower's tensors are kept in `weights` for adapters that change it.
    pub fn load(
        weights: &mut Weights,
        config: &Config,
        placement: &Placement,
        options: &LoadOptions,
        host: &Device,
        share_tower: bool,
        done: &mut dyn FnMut(seam::Progress),
    ) -> Result<Self> {
        let text = TextModel::load(weights, config, placement, options, done)?;
        if share_tower {
            weights.share();
        }
        let tower = tower(weights, config, placement, options, host, done)?;
        if options.is_streaming(config.text.num_hidden_layers) || options.host_embedding {
            trim(placement)?;
        }
        Ok(Self {
            config: config.clone(),
            tower,
            text,
            tokens_per_pass: options.tokens_per_pass.max(1),
            // of a share of 1 the choice would be all keys, for its own time
            sparse_prefill: options.sparse_prefill.filter(|share| share.value() < 1.0),
        })
    }

    /// The network with an adapter beside its matrices, whose memory both share. `weights` are those that it was loaded from.
    pub fn adapted(
        &self,
        weights: &mut Weights,
        adapter: &Arc<Adapter>,
        placement: &Placement,
        options: &LoadOptions,
    ) -> Result<Self> {
        let text = self.text.adapted(weights, &self.config, adapter)?;
        let tower = if adapter.changes_below(VISION) {
            weights.beside(Arc::clone(adapter));
            tower(weights, &self.config, placement, options, &Device::Cpu, &mut |_| {})?
        } else {
            self.tower.clone()
        };
        Ok(Self { config: self.config.clone(), tower, text, ..*self })
    }

    /// The first device.
    pub fn device(&self) -> &Device {
        self.text.device()
    }

    /// All devices that have decoder layers or parts of them, in the order of a pass.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.text.stages().iter().map(|stage| &stage.device)
    }

    /// Prompt tokens of one pass on one device.
    pub fn tokens_per_pass(&self) -> usize {
        self.tokens_per_pass
    }

    /// Prompt tokens of one pass. With several devices it is a micro-batch, so that all are busy: with n micro-batches,
    /// each of s devices computes in n of n + s - 1 steps.
    pub fn tokens_of_pass(&self, prompt: usize) -> usize {
        micro_batch(prompt, self.text.pipeline_depth()).min(self.tokens_per_pass)
    }

    /// Rows of a pass that fill the first GPU with blocks, and so cost each row as little as in longer passes; at least `least`, at most a pass.
    pub fn rows_that_fill(&self, least: usize) -> usize {
        let multiprocessors = self.device().as_cuda().map_or(0, |device| device.properties().multiprocessors);
        (ROWS_PER_SM * multiprocessors as usize).min(self.tokens_per_pass).max(least)
    }

    /// The tower's embeddings of an image or video.
    pub fn encode_image(&self, patches: &Patches) -> Result<VisionOutput> {
        let mut progress = VisionProgress::default();
        loop {
            let output =
                self.encode_image_on(patches, &mut progress, usize::MAX, &mut |_| ControlFlow::Continue(()))?;
            if let Some(output) = output {
                return Ok(output);
            }
        }
    }

    /// As [`encode_image`](Self::encode_image), through the next `blocks` blocks of the tower, one at least; returns the embeddings
    /// after the last block. `go_on` is given the blocks passed so far, before each, and ends the call.
    pub fn encode_image_on(
        &self,
        patches: &Patches,
        progress: &mut VisionProgress,
        blocks: usize,
        go_on: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<VisionOutput>> {
        let tower = self.tower.as_ref().ok_or_else(|| self.config.blind())?;
        let mut queue = Queue::new(LAYERS_QUEUED);
        for _ in 0..blocks.max(1) {
            if go_on(progress.passed).is_break() {
                return Ok(None);
            }
            if let Some(output) = tower.advance(patches, progress, 1)? {
                return output.to_device(self.device()).map(Some);
            }
            queue.bound(tower.device().as_cuda())?;
        }
        Ok(None)
    }

    /// Blocks that an image passes.
    pub fn blocks_of(&self, patches: &Patches) -> usize {
        self.tower.as_ref().map_or(0, |tower| tower.depth().saturating_mul(patches.grid[0]))
    }

    /// Computes the tokens of a prompt that come after those in the cache, at least one, and returns the logits after the last.
    /// `images` has their pictures, counted from the first of them. `passed` is given the tokens of each pass; `go_on` is given the
    /// tokens passed so far, before each layer, and ends the prompt with `None`.
    pub fn pass_prompt(
        &self,
        cache: &mut KvCache,
        ids: &[u32],
        axes: &[[u32; 3]],
        images: Images,
        passed: &mut dyn FnMut(&[u32]),
        go_on: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Prefill>> {
        let passed_tokens = ids.len() - cache.len();
        let Some(hidden) = self.hidden_of_prompt(cache, ids, axes, images, passed, go_on)? else {
            return Ok(None);
        };
        let logits = self.text.logits(&hidden)?;
        self.text.settle()?;
        Ok(Some(Prefill { logits, passed: passed_tokens }))
    }

    /// As [`pass_prompt`](Self::pass_prompt), and returns the last token's normalised hidden state, [1, hidden], as
    /// [`TextModel::forward`] gives it.
    pub fn hidden_of_prompt(
        &self,
        cache: &mut KvCache,
        ids: &[u32],
        axes: &[[u32; 3]],
        images: Images,
        passed: &mut dyn FnMut(&[u32]),
        go_on: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<Vec<Tensor>>> {
        let start = cache.len();
        let angles = self.text.angles(&axes[start..])?;
        let mut hidden = None;
        let count = ids.len() - start;
        let tokens = self.tokens_of_pass(count);
        let (layers, depth) = (self.config.text.num_hidden_layers.max(1), self.text.pipeline_depth());
        // a pipeline computes as many micro-batches at a time as it has devices, so it is bounded by these
        let mut queue = Queue::new(if depth > 1 { depth + 1 } else { LAYERS_QUEUED });
        let pictures: Vec<_> =
            images.runs.iter().map(|run| ImageRun { start: start + run.start, ..*run }).collect();
        for from in (0..count).step_by(tokens) {
            let len = tokens.min(count - from);
            let runs = clip(images.runs, from, len);
            let images = Images { runs: &runs, ..images };
            let ids = &ids[start + from..start + from + len];
            let on_device = Tensor::from_slice(ids, [len], self.device())?;
            let ropes =
                angles.iter().map(|[cos, sin]| Rope::new(cos.clone(), sin.clone(), start + from, from));
            let ropes = ropes.collect::<Result<Vec<_>>>()?;
            let local = sparse::local_keys(self.sparse_prefill, start + from, len, &pictures);
            let reads = self.devices().map(|device| sparse::on_device(self.sparse_prefill, &local, device));
            let reads = reads.collect::<Result<Vec<_>>>()?;
            let layers_of = self.text.stages().iter().map(|stage| stage.range.len());
            let mut ended = false;
            let mut ask = |layer: usize, h: &Tensor| {
                if depth == 1 && layer > 0 && len >= LEAST_BOUNDED {
                    queue.bound(h.device().as_cuda())?;
                }
                let is_asked = layer == 0 || len >= LEAST_ASKED && layer < layers;
                ended = is_asked && go_on(from + len * layer / layers).is_break();
                if ended { Err(interrupted()) } else { Ok(()) }
            };
            let caches = cache.caches_of_each(layers_of.zip(reads.iter().map(Option::as_ref)));
            let h = match self.text.forward(&on_device, &ropes, images, caches, &mut ask) {
                Err(_) if ended => {
                    cache.truncate(start + from);
                    return Ok(None);
                }
                h => h?,
            };
            if depth > 1 {
                queue.bound(h[0].device().as_cuda())?;
            }
            hidden = Some(h.iter().map(|h| h.narrow(0, len - 1, 1)).collect::<Result<Vec<_>>>()?);
            passed(ids);
        }
        hidden.map(Some).ok_or_else(|| Error::Prompt { reason: "it has no tokens".into() })
    }
}

/// The tower, if the model has one: on its device, or in `host`.
fn tower(
    weights: &mut Weights,
    config: &Config,
    placement: &Placement,
    options: &LoadOptions,
    host: &Device,
    done: &mut dyn FnMut(seam::Progress),
) -> Result<Option<Arc<dyn Tower>>> {
    let with_tower = placement.devices().nth(placement.vision()).unwrap_or(placement.first());
    let place = if options.vision == VisionPlace::Cpu { host } else { with_tower };
    let passing = (options.vision == VisionPlace::Streamed).then_some(host);
    weights.load_onto(place);
    if let Some(matrices) = options.vision_matrices {
        weights.store_as(matrices);
    }
    let load = |vision: &dyn Vision| vision.tower(weights, place, passing, options.vision_scores, done);
    let tower = config.vision.as_deref().map(load).transpose()?.map(Arc::from);
    if passing.is_some() {
        trim(placement)?;
    }
    Ok(tower)
}

/// Gives back memory that weights took while they were copied to host memory.
fn trim(placement: &Placement) -> Result<()> {
    placement
        .devices()
        .filter_map(Device::as_cuda)
        .try_for_each(|device| memory::pool(device)?.trim().map(drop))
}

/// How far the work before an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is computed.
    pub phase: Phase,
    /// Tokens that are computed. Those of a pass count as its layers are computed.
    pub done: usize,
    /// Tokens of this phase, without those that the cache has already.
    pub total: usize,
}

/// The work before an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Pictures and videos pass through the part that sees.
    Images,
    /// The prompt passes through the decoder.
    Prompt,
}

/// Rows for each multiprocessor: two tiles of 128 × 64 each, where a product has 2,048 columns, the fewest of the family's.
const ROWS_PER_SM: usize = 8;

/// Layers that a GPU has in its queue, at least: one that it computes, and the next.
pub(super) const LAYERS_QUEUED: usize = 2;
/// The most seconds of work in the queue, if these are more layers: so long goes on what was ended.
const SECONDS_QUEUED: f64 = 0.05;
/// The fewest tokens of a pass whose queue is bounded. With fewer, a whole pass is about as short as one token's.
pub(super) const LEAST_BOUNDED: usize = 64;

/// Ends a pass from within. Whoever began the pass knows that it ended it, and drops the error.
pub(super) fn interrupted() -> Error {
    Error::Prompt { reason: "it was interrupted".into() }
}

/// The fewest tokens of a pass that can be ended between its layers. One of fewer tokens is over soon.
const LEAST_ASKED: usize = 16;

/// Bounds how far a GPU's queue runs ahead, so that work can be ended soon.
///
/// It marks the end of some parts of the work by events, and has at most so many of these open. An event costs a GPU time whose
/// parts are short, so two waits, one after the other, show how long a part takes, and later events have as many between them as
/// [`SECONDS_QUEUED`] allows. Parts of one queue are alike. Of layers that are longer than that the queue has one: the GPU waits between
/// them for as long as it takes to queue a few kernels.
pub(super) struct Queue {
    most: usize,
    /// Whether a layer is longer than what may be in the queue.
    is_long: bool,
    queued: VecDeque<Event>,
    /// Parts from event to event, once it is known how long they take; one before.
    every: Option<usize>,
    /// Parts since the last event.
    parts: usize,
    /// When the first event was reached.
    ended: Option<Instant>,
}

impl Queue {
    /// A bound of `most` parts, or of [`SECONDS_QUEUED`] if these are more.
    pub fn new(most: usize) -> Self {
        Self { most, is_long: false, queued: VecDeque::new(), every: None, parts: 0, ended: None }
    }

    /// Notes the end of a part of the work on `device`, and waits until the bound is kept. Does nothing on the CPU.
    pub fn bound(&mut self, device: Option<&CudaDevice>) -> Result<()> {
        let Some(device) = device.filter(|device| !device.is_planned()) else { return Ok(()) };
        self.parts += 1;
        if self.parts < self.every.unwrap_or(1) {
            return Ok(());
        }
        self.parts = 0;
        let oldest = if self.queued.len() < self.most { None } else { self.queued.pop_front() };
        let event = match oldest {
            None => device.untimed_event()?,
            Some(oldest) => {
                oldest.synchronize()?;
                if self.every.is_none() {
                    let now = Instant::now();
                    let before = self.ended.replace(now);
                    self.every =
                        before.map(|before| parts_of(SECONDS_QUEUED / self.most as f64, now - before));
                    self.is_long = self.most <= LAYERS_QUEUED
                        && before.is_some_and(|before| (now - before).as_secs_f64() > SECONDS_QUEUED);
                }
                oldest
            }
        };
        event.record(device.stream())?;
        if self.is_long {
            event.synchronize()?;
        }
        self.queued.push_back(event);
        Ok(())
    }
}

/// How many parts of this length end within `seconds`, one at least.
fn parts_of(seconds: f64, part: Duration) -> usize {
    ((seconds / part.as_secs_f64().max(1e-6)) as usize).max(1)
}

/// The most bytes that were in use on each device.
pub(super) fn peaks<'d>(devices: impl Iterator<Item = &'d Device>) -> Result<Vec<usize>> {
    let peak = |device| Ok(memory::pool(device)?.statistics().peak_live);
    devices.filter_map(Device::as_cuda).map(peak).collect()
}

/// The result of prefill.
pub(super) struct Prefill {
    /// [1, vocab]
    pub logits: Tensor,
    /// Tokens that were computed.
    pub passed: usize,
}

/// The fewest tokens of a micro-batch: the matrix products of fewer take as long.
const LEAST_PART: usize = 128;
/// Micro-batches per device, at least: with 4, two devices compute in 8 of 9 steps.
const PARTS: usize = 4;

/// Tokens of a micro-batch for a pipeline of `devices` devices: a multiple of the largest tile's rows.
pub(super) fn micro_batch(prompt: usize, devices: usize) -> usize {
    match devices {
        0 | 1 => usize::MAX,
        _ => (prompt / (PARTS * devices) / LEAST_PART).max(1) * LEAST_PART,
    }
}

/// The parts of the runs that are in `from..from + len`, counted from `from`.
pub(super) fn clip(runs: &[ImageRun], from: usize, len: usize) -> Vec<ImageRun> {
    let inside = |run: &ImageRun| {
        let start = run.start.max(from);
        let end = (run.start + run.len).min(from + len);
        (start < end).then(|| ImageRun {
            start: start - from,
            len: end - start,
            row: run.row + start - run.start,
            ..*run
        })
    };
    runs.iter().filter_map(inside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_prompt_keep_all_devices_busy() {
        assert_eq!(micro_batch(2242, 1), usize::MAX);
        assert_eq!(micro_batch(2242, 2), 256); // 9 parts
        assert_eq!(micro_batch(2242, 3), 128);
        assert_eq!(micro_batch(100, 2), 128);
        assert_eq!(micro_batch(32_768, 2), 4096);
    }

    #[test]
    fn a_queue_has_as_many_layers_as_end_soon() {
        assert_eq!(parts_of(SECONDS_QUEUED, Duration::from_micros(250)), 200);
        assert_eq!(parts_of(SECONDS_QUEUED, Duration::from_millis(100)), 1, "each of these is bounded");
        assert_eq!(parts_of(SECONDS_QUEUED, Duration::ZERO), 50_000);
    }

    #[test]
    fn runs_are_cut_at_the_borders_of_a_pass() {
        let run = |start, len, output, row| ImageRun { start, len, output, row };
        let runs = [run(2, 5, 0, 0), run(9, 4, 1, 3)];
        assert_eq!(clip(&runs, 0, 20), runs);
        assert_eq!(clip(&runs, 4, 6), [run(0, 3, 0, 2), run(5, 1, 1, 3)]);
        assert_eq!(clip(&runs, 7, 2), []);
    }
}
