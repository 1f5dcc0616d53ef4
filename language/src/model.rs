//! The whole model: loading and prefill. `generate` answers one conversation with it, `batch` many requests at once.

use super::checkpoint::{Checkpoint, NamedAdapter};
use super::config::TextConfig;
use super::footprint::{Gpu, Planned};
use super::media::Patches;
use super::media::{VisionOutput, VisionProgress};
use super::network::{Network, Phase, Prefill, Progress};
use super::options::{BatchOptions, ExpertPlacement, LoadOptions, Storage};
use super::placement::{Placement, SplitMode};
use super::processor::{Processor, Prompt};
use super::rows;
use super::seam::{self, Config, VISION, VisionPlace};
use super::text::{ImageRun, Images};
use super::weights::Conversion;
use pascaline::cuda::CudaDevice;
use pascaline::memory::Way;
use pascaline::nn::{Hits, KvCache, Rope};
use pascaline::ops::PAGE;
use pascaline::{Device, Error, MAX_ELEMENTS, Result, Tensor};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};

/// A model on a device.
pub struct LanguageModel {
    /// Everything that needs no weights.
    pub processor: Processor,
    pub(super) network: Network,
    /// With each adapter that requests choose by its name.
    pub(super) adapted: Vec<(String, Network)>,
    parameters: usize,
    conversions: Vec<Conversion>,
    /// How it was loaded, for plans.
    matrices: BTreeMap<String, Storage>,
    options: LoadOptions,
    id: ModelId,
}

/// Identifies a model, so that its sessions are not used with another. Unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModelId(u64);

impl ModelId {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A conversation: the KV cache and its tokens. The prefix that the next prompt shares with it is not computed again.
pub struct Session {
    /// The model that computed the keys and values.
    model: ModelId,
    pub(super) cache: KvCache,
    /// The tokens in the cache.
    pub(super) ids: Vec<u32>,
    /// The images and videos among them.
    pub(super) patches: Vec<Patches>,
}

impl Session {
    /// Makes room for so many tokens in all. A conversation that keeps within them never has its keys and values moved.
    ///
    /// # Errors
    /// As [`KvCache::reserve`].
    pub fn reserve(&mut self, tokens: usize) -> Result<()> {
        self.cache.reserve(tokens)
    }
}

impl LanguageModel {
    /// Loads a checkpoint onto `device`; `progress` is called after each layer.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and what is wrong in it, or a device error.
    pub fn load_checkpoint(
        checkpoint: &Checkpoint,
        device: &Device,
        options: LoadOptions,
        progress: impl FnMut(seam::Progress),
    ) -> Result<Self> {
        Self::load_placed(checkpoint, None, &on_one(checkpoint, device)?, options, progress)
    }

    /// As [`load_checkpoint`](Self::load_checkpoint), with the result of [`Checkpoint::processor`].
    ///
    /// # Errors
    /// As [`load_checkpoint`](Self::load_checkpoint).
    pub fn load_prepared(
        checkpoint: &Checkpoint,
        processor: Processor,
        device: &Device,
        options: LoadOptions,
        progress: impl FnMut(seam::Progress),
    ) -> Result<Self> {
        Self::load_placed(checkpoint, Some(processor), &on_one(checkpoint, device)?, options, progress)
    }

    /// As [`load_prepared`](Self::load_prepared), with the layers and the vision tower on several devices. With layers
    /// split (pipeline), hidden states are copied from device to device, and a prompt is split into as many micro-batches
    /// as keep all devices busy. The answers equal those of one device bit for bit, given the same tokens in a pass. With
    /// [`SplitMode::Row`] each device has a part of every layer, and the answers are those of one device within f32's
    /// rounding.
    ///
    /// # Errors
    /// As [`load_checkpoint`](Self::load_checkpoint); [`Error::Unsupported`] if the placement is of another number of layers, if layers or the
    /// vision tower are to be streamed, or if the model's sizes do not divide by the number of devices that share each
    /// layer.
    pub fn load_placed(
        checkpoint: &Checkpoint,
        prepared: Option<Processor>,
        placement: &Placement,
        options: LoadOptions,
        mut progress: impl FnMut(seam::Progress),
    ) -> Result<Self> {
        let device = placement.first();
        let path = checkpoint.path().to_owned();
        let config = &checkpoint.config()?;
        options.cache.check("load", "cache")?;
        let layers = config.text.num_hidden_layers;
        let gpu_layers = options.gpu_layers.unwrap_or(layers);
        placement.check(layers)?;
        if placement.mode() == SplitMode::Row {
            rows::check(config, placement.devices().len(), &|name| {
                checkpoint.storage(config, &options, name)
            })?;
        }
        if gpu_layers < layers && placement.devices().len() > 1 {
            let (argument, value) = ("gpu_layers", gpu_layers.to_string());
            let reason = "layers either pass through one device or are spread over several".into();
            return Err(Error::Unsupported { op: "load", argument, value, reason });
        }
        if gpu_layers < layers && !device.is_cuda() {
            let (argument, value) = ("gpu_layers", gpu_layers.to_string());
            let reason = "on the CPU all weights are in host memory already".into();
            return Err(Error::Unsupported { op: "load", argument, value, reason });
        }
        check_experts(config, placement, &options)?;
        if options.host_embedding && (config.tie_word_embeddings || !device.is_cuda()) {
            let reason = match config.tie_word_embeddings {
                true => "the output projection reads the same weights whole for each token",
                false => "on the CPU all weights are in host memory already",
            };
            let (argument, value, reason) = ("host_embedding", "true".to_owned(), reason.to_owned());
            return Err(Error::Unsupported { op: "load", argument, value, reason });
        }
        let storage = |name: &str| checkpoint.storage(config, &options, name);
        let (weights, network, adapted, processor) = thread::scope(|scope| -> Result<_> {
            // A vocabulary of 152 thousand tokens takes about as long as a small model's weights.
            let processor = scope.spawn(|| prepared.map_or_else(|| checkpoint.processor(), Ok));
            // the driver compiles while the weights are read
            let ahead = placement.devices().filter_map(Device::as_cuda).map(|device| {
                let modules = || {
                    let planned = Planned { config, storage: &storage, options: &options };
                    device.load_modules(&planned.modules(None, &Gpu::from_device(device))?).map(drop)
                };
                scope.spawn(modules)
            });
            let ahead: Vec<_> = ahead.collect();
            let mut weights = checkpoint.weights(config, options.dtype, device)?;
            weights = weights.stored_as(&options);
            let named = checkpoint.named_adapters();
            named.iter().try_for_each(|named| weights.check(&named.adapter, &named.file))?;
            // a tower that passes through the device is copied to host memory, from where no other takes its tensors
            let share_tower = options.vision != VisionPlace::Streamed
                && named.iter().any(|named| named.adapter.changes_below(VISION));
            let host = &Device::Cpu;
            let network =
                Network::load(&mut weights, config, placement, &options, host, share_tower, &mut progress)?;
            let mut adapted = Vec::new();
            for NamedAdapter { name, adapter, .. } in named {
                adapted.push((name.clone(), network.adapted(&mut weights, adapter, placement, &options)?));
            }
            if let Some(name) = weights.unused().first() {
                return Err(Error::Checkpoint {
                    file: path.display().to_string(),
                    item: Some((*name).to_owned()),
                    reason: "the model does not use it".into(),
                });
            }
            ahead.into_iter().try_for_each(joined)?;
            Ok((weights, network, adapted, joined(processor)?))
        })?;
        let (parameters, conversions) = (weights.parameters(), weights.conversions());
        let matrices = weights.names().map(|name| (name.clone(), storage(name))).collect();
        Ok(Self {
            network,
            adapted,
            parameters,
            conversions,
            matrices,
            options,
            id: ModelId::new(),
            processor,
        })
    }

    /// Loads the modules of the kernels that many answers at once launch.
    pub(super) fn load_modules(&self, batch: &BatchOptions) -> Result<()> {
        let (config, options) = (&self.network.config, &self.options);
        let modules = |device: &CudaDevice| {
            let dtype = Storage::Float(options.dtype);
            let storage = |name: &str| self.matrices.get(name).copied().unwrap_or(dtype);
            Planned { config, storage: &storage, options }.modules(Some(batch), &Gpu::from_device(device))
        };
        for device in self.devices().filter_map(Device::as_cuda) {
            // on a thread of its own, as a caller's trace or fault is not the plan's
            let planned = thread::scope(|scope| joined(scope.spawn(|| modules(device))))?;
            device.load_modules(&planned)?;
        }
        Ok(())
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.processor.config
    }

    /// The names of the adapters that requests of a [`Batch`](super::batch::Batch) choose among.
    pub fn adapters(&self) -> impl ExactSizeIterator<Item = &str> {
        self.adapted.iter().map(|(name, _)| name.as_str())
    }

    /// The first device.
    pub fn device(&self) -> &Device {
        self.network.device()
    }

    /// All devices that have decoder layers or parts of them, in the order of a pass.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.network.devices()
    }

    /// How values are copied between devices: with layers split, from each device to the next and from the last to the
    /// first; with a row split, from each to the others.
    pub fn ways(&self) -> Vec<Way> {
        self.network.text.ways()
    }

    /// The number of parameters.
    pub fn parameters(&self) -> usize {
        self.parameters
    }

    /// The types of matrices in its file that have no kernels, and the formats that they were converted to.
    pub fn conversions(&self) -> &[Conversion] {
        &self.conversions
    }

    /// The most pages of a [`Batch`](super::batch::Batch): all keys of a layer are one tensor.
    pub fn most_pages(&self) -> usize {
        let text = &self.config().text;
        let width = text.head_dim.next_multiple_of(32) + 32; // with the most that a format adds to a row
        MAX_ELEMENTS / (PAGE * text.num_key_value_heads * width).max(1)
    }

    /// Bytes of weights that a decoded token reads.
    pub fn weight_bytes(&self) -> usize {
        self.network.text.weight_bytes()
    }

    /// Streamed layers: decoder layers whose weights are in host memory and are copied for each pass.
    pub fn streamed_layers(&self) -> usize {
        self.network.text.streamed_layers()
    }

    /// Decoder layers whose experts are in host memory.
    pub fn host_expert_layers(&self) -> usize {
        self.network.text.host_expert_layers()
    }

    /// How often the router's choice was in device memory, of experts in host memory of which some are there too
    /// ([`LoadOptions::cached_experts`](super::LoadOptions::cached_experts)). Counts reach the host a few passes later.
    pub fn expert_hits(&self) -> Hits {
        self.network.text.expert_hits()
    }

    /// An empty conversation with this model.
    ///
    /// # Errors
    /// A device error.
    pub fn session(&self) -> Result<Session> {
        let (ids, patches) = (Vec::new(), Vec::new());
        Ok(Session { model: self.id, cache: self.network.text.cache()?, ids, patches })
    }

    /// The vision tower's embeddings of an image or video.
    ///
    /// # Errors
    /// As [`Tower::advance`](super::seam::Tower::advance), and [`Error::Unsupported`] for a model of text alone.
    pub fn encode_image(&self, patches: &Patches) -> Result<VisionOutput> {
        self.network.encode_image(patches)
    }

    /// Computes the logits of a whole prompt and reports every layer's hidden states, for comparison with a reference.
    /// `trace` is called with the embeddings as number 0, then with each layer's output (before deepstack features are
    /// added to it); the last one is replaced by the normalised hidden states. `outputs` are the images' embeddings, as
    /// [`encode_image`](Self::encode_image) returns them.
    ///
    /// # Errors
    /// [`Error::Prompt`] if tokens and images do not fit each other, or a device error.
    pub fn trace(
        &self,
        ids: &[u32],
        outputs: &[VisionOutput],
        grids: &[[usize; 3]],
        mut trace: impl FnMut(usize, &Tensor),
    ) -> Result<Tensor> {
        let positions = self.processor.positions(ids, grids.iter().copied())?;
        let runs = self.runs(ids, 0, outputs)?;
        let text = &self.network.text;
        let mut cache = text.cache()?;
        cache.reserve(ids.len())?;
        let layers = self.config().text.num_hidden_layers;
        let ropes = text.angles(&positions.axes)?.into_iter();
        let ropes = ropes.map(|[cos, sin]| Rope::new(cos, sin, 0, 0)).collect::<Result<Vec<_>>>()?;
        let ids = Tensor::from_slice(ids, [ids.len()], self.device())?;
        let images = Images { outputs, runs: &runs };
        let mut all_but_last = |index: usize, h: &Tensor| {
            if index < layers {
                trace(index, h);
            }
            Ok(())
        };
        let hidden = text.forward(&ids, &ropes, images, cache.caches(), &mut all_but_last)?;
        trace(layers, &hidden[0]);
        let logits = text.logits(&hidden)?;
        text.settle()?;
        Ok(logits)
    }

    /// How many tokens the model's context has room for after a prompt.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the prompt alone is longer than the context.
    pub fn room_after(&self, prompt: &Prompt) -> Result<usize> {
        let (tokens, limit) = (prompt.ids.len(), self.config().text.max_position_embeddings);
        limit.checked_sub(tokens).ok_or_else(|| Error::Prompt {
            reason: format!("it has {tokens} tokens, the model's context {limit}"),
        })
    }

    /// The number of tokens that the cache must hold for a prompt and `spare` more.
    pub(super) fn capacity(&self, prompt: &Prompt, spare: usize) -> Result<usize> {
        if prompt.ids.is_empty() {
            return Err(Error::Prompt { reason: "it has no tokens".into() });
        }
        if prompt.positions.axes.len() != prompt.ids.len() {
            return Err(Error::Prompt { reason: "it does not have one position for each token".into() });
        }
        let TextConfig { max_position_embeddings: limit, vocab_size, .. } = self.config().text;
        if let Some(id) = prompt.ids.iter().find(|&&id| id as usize >= vocab_size) {
            let reason = format!("token {id} is outside the vocabulary of {vocab_size}");
            return Err(Error::Prompt { reason });
        }
        let capacity = prompt.ids.len().checked_add(spare).filter(|&tokens| tokens <= limit);
        capacity.ok_or_else(|| Error::Prompt {
            reason: format!("{} tokens and {spare} to come; the model has {limit}", prompt.ids.len()),
        })
    }

    /// Computes the tokens of a prompt that are not in the session's cache, at least one, and returns the logits after its
    /// last token. The cache gets room for `spare` more tokens. `go_on` is called before each layer; if it breaks, the result is
    /// `None`. Then, and after an error, the session holds what was computed.
    pub(super) fn prefill(
        &self,
        session: &mut Session,
        prompt: &Prompt,
        spare: usize,
        go_on: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> Result<Option<Prefill>> {
        if session.model != self.id {
            let (argument, value) = ("session", "another model's".to_owned());
            let reason =
                "what it holds was computed with other weights; take `session()` of this model".into();
            return Err(Error::Unsupported { op: "generate", argument, value, reason });
        }
        let capacity = self.capacity(prompt, spare)?;
        let spans = self.spans(prompt)?;
        let mut start = shared_prefix(session, prompt, &spans).min(prompt.ids.len() - 1);
        // the embeddings of an image or video are needed from its first token on
        if let Some(cut) = spans.iter().find(|span| span.start < start && start < span.end) {
            start = cut.start;
        }
        session.cache.truncate(start);
        session.ids.truncate(start);
        // images whose tokens are not computed yet are never compared: `ids` ends before them
        session.patches.clone_from(&prompt.patches);
        session.cache.reserve(capacity)?;

        // images before `start` are in the cache; the others are encoded now
        let first_new = spans.iter().filter(|span| span.end <= start).count();
        let new = &prompt.patches[first_new..];
        let mut outputs = Vec::with_capacity(new.len());
        let (mut done, total) = (0, spans[first_new..].iter().map(Range::len).sum());
        for (at, patches) in new.iter().enumerate() {
            let tokens = spans.get(first_new + at).map_or(0, Range::len);
            let blocks = self.network.blocks_of(patches).max(1);
            let mut ask = |passed: usize| {
                go_on(Progress { phase: Phase::Images, done: done + tokens * passed / blocks, total })
            };
            let mut progress = VisionProgress::default();
            let Some(output) = self.network.encode_image_on(patches, &mut progress, usize::MAX, &mut ask)?
            else {
                return Ok(None);
            };
            outputs.push(output);
            done += tokens;
        }
        let runs = self.runs(&prompt.ids[start..], start, &outputs)?;
        let images = Images { outputs: &outputs, runs: &runs };
        let Session { cache, ids, .. } = session;
        let mut passed = |tokens: &[u32]| ids.extend_from_slice(tokens);
        let total = prompt.ids.len() - start;
        let mut ask = |done: usize| go_on(Progress { phase: Phase::Prompt, done, total });
        self.network.pass_prompt(cache, &prompt.ids, &prompt.positions.axes, images, &mut passed, &mut ask)
    }

    /// The tokens of each image and video of a prompt, from its first to one after its last.
    fn spans(&self, prompt: &Prompt) -> Result<Vec<Range<usize>>> {
        let tokens = |patches: &Patches| self.patch_tokens(patches);
        let counts = prompt.patches.iter().map(tokens).collect::<Result<Vec<_>>>()?;
        let runs = self.runs_of(&prompt.ids, &counts)?;
        let mut spans: Vec<Range<usize>> = Vec::new();
        for run in runs {
            let end = run.start + run.len;
            match spans.get_mut(run.output) {
                Some(span) => span.end = end,
                None => spans.push(run.start..end),
            }
        }
        Ok(spans)
    }

    fn patch_tokens(&self, patches: &Patches) -> Result<usize> {
        let vision = self.config().vision.as_ref().ok_or_else(|| self.config().blind())?;
        patches.tokens(&vision.sizes())
    }

    /// The runs of image tokens in `ids`, whose features are in `outputs`.
    fn runs(&self, ids: &[u32], at: usize, outputs: &[VisionOutput]) -> Result<Vec<ImageRun>> {
        let counts: Vec<_> = outputs.iter().map(|output| output.embeddings.dims()[0]).collect();
        self.whole_runs(ids, at, &counts)
    }

    /// The runs of image tokens of a prompt.
    pub(super) fn prompt_runs(&self, prompt: &Prompt) -> Result<Vec<ImageRun>> {
        let tokens = |patches: &Patches| self.patch_tokens(patches);
        let counts = prompt.patches.iter().map(tokens).collect::<Result<Vec<_>>>()?;
        self.whole_runs(&prompt.ids, 0, &counts)
    }

    /// The runs of image tokens in `ids`, which must be all tokens of images with these numbers of tokens.
    fn whole_runs(&self, ids: &[u32], at: usize, counts: &[usize]) -> Result<Vec<ImageRun>> {
        let runs = self.runs_of(ids, counts)?;
        let used: usize = runs.iter().map(|run| run.len).sum();
        match used == counts.iter().sum::<usize>() {
            true => Ok(runs),
            false => {
                Err(Error::Prompt { reason: format!("fewer image tokens than images after token {at}") })
            }
        }
    }

    /// The runs of image tokens in `ids`, of images with these numbers of tokens.
    fn runs_of(&self, ids: &[u32], counts: &[usize]) -> Result<Vec<ImageRun>> {
        let mut runs: Vec<ImageRun> = Vec::new();
        let (mut output, mut row) = (0, 0);
        for (at, _) in ids.iter().enumerate().filter(|(_, id)| self.processor.is_pad(**id)) {
            if counts.get(output) == Some(&row) {
                (output, row) = (output + 1, 0);
            }
            if output >= counts.len() {
                return Err(Error::Prompt { reason: "more image tokens than images".into() });
            }
            match runs.last_mut() {
                Some(run) if run.start + run.len == at && run.output == output => run.len += 1,
                _ => runs.push(ImageRun { start: at, len: 1, output, row }),
            }
            row += 1;
        }
        Ok(runs)
    }
}

/// Refuses experts in host memory where that means nothing, or is not there.
fn check_experts(config: &Config, placement: &Placement, options: &LoadOptions) -> Result<()> {
    let layers = config.text.num_hidden_layers;
    let reason = if options.experts == ExpertPlacement::Gpu {
        return Ok(());
    } else if config.text.experts.is_none() {
        "the model is dense, it has no experts; `gpu_layers` keeps whole layers in host memory"
    } else if !placement.first().is_cuda() {
        "on the CPU all weights are in host memory already"
    } else if placement.devices().len() > 1 {
        "experts are in host memory beside one device, or a model is spread over several"
    } else if options.gpu_layers.is_some_and(|on_gpu| on_gpu < layers) {
        "experts or whole layers are in host memory; leave out `gpu_layers`"
    } else {
        return Ok(());
    };
    let (argument, value) = ("experts", options.experts.name().to_owned());
    Err(Error::Unsupported { op: "load", argument, value, reason: reason.into() })
}

/// All layers of a checkpoint on one device.
fn on_one(checkpoint: &Checkpoint, device: &Device) -> Result<Placement> {
    Ok(Placement::one(device, checkpoint.config()?.text.num_hidden_layers))
}

/// The result of a thread; panics if the thread panicked.
fn joined<T>(thread: ScopedJoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// How many tokens of the prompt, from its start, are in the session's cache with the same images.
fn shared_prefix(session: &Session, prompt: &Prompt, spans: &[Range<usize>]) -> usize {
    let equal = session.ids.iter().zip(&prompt.ids).take_while(|(a, b)| a == b).count();
    let same_images = session.patches.iter().zip(&prompt.patches).take_while(|(a, b)| a == b).count();
    equal.min(spans.get(same_images).map_or(equal, |other| other.start))
}
