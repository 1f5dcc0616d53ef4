//! The whole model: loading and prefill. `generate` answers one conversation with it, `batch` many requests at once.

use super::checkpoint::Checkpoint;
use super::config::{Config, TextConfig};
use super::kernels;
use super::placement::{Placement, SplitMode};
use super::preprocess::Patches;
use super::processor::{Processor, Prompt};
use super::rows;
use super::text::{ImageRun, Images, TextModel};
use super::vision::{VisionOutput, VisionPlace, VisionProgress, VisionTower};
use super::weights::{Conversion, Progress, Weights};
use pascaline::kv::KvFormat;
use pascaline::memory::Way;
use pascaline::nn::{KvCache, Rope};
use pascaline::ops::PAGE;
use pascaline::quant::Format;
use pascaline::{DType, Device, Error, MAX_ELEMENTS, Result, Tensor, memory};
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};

/// How [`Qwen3Vl::load_with`] loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// The type of matrices on the device: f32 or f16. All arithmetic is f32.
    pub dtype: DType,
    /// The cache's format: f32, or one that rounds keys and values and takes a half or a quarter of the memory.
    pub cache: KvFormat,
    /// The format that the matrices of linear maps and embeddings are quantised to on the device; it overrides `dtype`.
    pub quantize: Option<Format>,
    /// Whether matrices that are quantised in a GGUF file stay quantised on the device. This overrides `dtype`; `quantize`
    /// overrides it. Types without kernels are converted to the nearest format with kernels ([`Qwen3Vl::conversions`] lists
    /// them).
    pub keep_quantized: bool,
    /// The number of decoder layers whose weights stay on the GPU; `None`: all. The weights of the layers after them stay
    /// in pinned host memory. They are streamed through two buffers on the device, each while the layer before computes.
    /// This is for cards that can't hold the model. The results are the same. A decoded token takes at least the time of
    /// copying these weights, and uses no graph.
    pub gpu_layers: Option<usize>,
    /// Whether the embedding stays in pinned host memory, where the kernel that looks up rows reads them. For models whose output
    /// projection has weights of its own: the others' embedding is read whole for each token.
    pub host_embedding: bool,
    /// Where the vision tower is, for cards that can't hold both it and the text model.
    pub vision: VisionPlace,
    /// The type of the vision tower's matrices, if not that of the others.
    pub vision_matrices: Option<Matrices>,
    /// Prompt tokens of one pass. A lower number bounds the memory of a long prompt's activations, a higher one keeps a GPU
    /// busy.
    pub tokens_per_pass: usize,
}

impl LoadOptions {
    /// Matrices in f32 on the CPU, where conversion costs more than it saves, and in f16 on a GPU; those that are quantised
    /// in a GGUF file as they are. The cache in f32.
    pub fn for_device(device: &Device) -> Self {
        let dtype = if device.is_cuda() { DType::F16 } else { DType::F32 };
        Self {
            dtype,
            quantize: None,
            keep_quantized: true,
            cache: KvFormat::F32,
            gpu_layers: None,
            host_embedding: false,
            vision: VisionPlace::Resident,
            vision_matrices: None,
            tokens_per_pass: 1024,
        }
    }
}

/// A type for matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrices {
    /// In f32 or f16.
    Float(DType),
    /// Quantised while they are loaded.
    Quantized(Format),
}

impl Matrices {
    /// `options` with this type for all matrices.
    pub fn apply(self, options: LoadOptions) -> LoadOptions {
        match self {
            Self::Float(dtype) => LoadOptions { dtype, quantize: None, keep_quantized: false, ..options },
            Self::Quantized(format) => LoadOptions { quantize: Some(format), ..options },
        }
    }
}

/// A Qwen3-VL model on a device.
pub struct Qwen3Vl {
    /// Everything that needs no weights.
    pub processor: Processor,
    pub(super) vision: VisionTower,
    pub(super) text: TextModel,
    parameters: usize,
    conversions: Vec<Conversion>,
    tokens_per_pass: usize,
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

impl Qwen3Vl {
    /// Loads a checkpoint onto `device`, with matrices in the device's usual type: a directory as published, or a GGUF file
    /// with its vision file (mmproj) in the same folder.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and what is wrong in it, or a device error.
    pub fn load(path: impl AsRef<Path>, device: &Device) -> Result<Self> {
        Self::load_with(path, device, LoadOptions::for_device(device), |_| {})
    }

    /// As [`load`](Self::load); `progress` is called after each layer.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(
        path: impl AsRef<Path>,
        device: &Device,
        options: LoadOptions,
        progress: impl FnMut(Progress),
    ) -> Result<Self> {
        Self::load_checkpoint(&Checkpoint::open(path, None)?, device, options, progress)
    }

    /// As [`load_with`](Self::load_with), of a checkpoint that is open already.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_checkpoint(
        checkpoint: &Checkpoint,
        device: &Device,
        options: LoadOptions,
        progress: impl FnMut(Progress),
    ) -> Result<Self> {
        Self::load_placed(checkpoint, None, &on_one(checkpoint, device)?, options, progress)
    }

    /// As [`load_checkpoint`](Self::load_checkpoint), with the result of [`Checkpoint::processor`].
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_prepared(
        checkpoint: &Checkpoint,
        processor: Processor,
        device: &Device,
        options: LoadOptions,
        progress: impl FnMut(Progress),
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
    /// As [`load`](Self::load); [`Error::Unsupported`] if the placement is of another number of layers, if layers or the
    /// vision tower are to be streamed, or if the model's sizes do not divide by the number of devices that share each
    /// layer.
    pub fn load_placed(
        checkpoint: &Checkpoint,
        prepared: Option<Processor>,
        placement: &Placement,
        options: LoadOptions,
        mut progress: impl FnMut(Progress),
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
        if options.host_embedding && (config.tie_word_embeddings || !device.is_cuda()) {
            let reason = match config.tie_word_embeddings {
                true => "the output projection reads the same weights whole for each token",
                false => "on the CPU all weights are in host memory already",
            };
            let (argument, value, reason) = ("host_embedding", "true".to_owned(), reason.to_owned());
            return Err(Error::Unsupported { op: "load", argument, value, reason });
        }
        let stored = checkpoint.stored(&options);
        let (weights, text, vision, processor) = thread::scope(|scope| -> Result<_> {
            // A vocabulary of 152 thousand tokens takes about as long as a small model's weights.
            let processor = scope.spawn(|| prepared.map_or_else(|| checkpoint.processor(), Ok));
            let ahead = placement.devices().filter_map(|device| match device {
                Device::Cuda(device) => Some(kernels::load_ahead(scope, device, config, &options, &stored)),
                Device::Cpu => None,
            });
            let ahead: Vec<_> = ahead.collect();
            let mut weights = checkpoint.weights(config, options.dtype, device)?;
            if let Some(format) = options.quantize {
                weights = weights.quantized(format);
            } else if options.keep_quantized {
                weights = weights.kept();
            }
            let mut done = |weights: &Weights| progress(weights.progress());
            let (cache, in_host) = (options.cache, options.host_embedding);
            let text =
                TextModel::load(&mut weights, config, placement, cache, gpu_layers, in_host, &mut done)?;
            let with_tower = placement.devices().nth(placement.vision()).unwrap_or(device);
            let (place, streamed) = match options.vision {
                VisionPlace::Resident => (with_tower, false),
                VisionPlace::Streamed => (with_tower, true),
                VisionPlace::Cpu => (&Device::Cpu, false),
            };
            weights.load_onto(place);
            if let Some(matrices) = options.vision_matrices {
                weights.store_as(matrices);
            }
            let vision = VisionTower::load(&mut weights, &config.vision, place, streamed, &mut done)?;
            if let Some(name) = weights.unused().first() {
                return Err(Error::Checkpoint {
                    file: path.display().to_string(),
                    item: Some((*name).to_owned()),
                    reason: "the model does not use it".into(),
                });
            }
            ahead.into_iter().try_for_each(joined)?;
            Ok((weights, text, vision, joined(processor)?))
        })?;
        let passes_through =
            text.streamed_layers() > 0 || options.vision == VisionPlace::Streamed || options.host_embedding;
        for device in placement.devices() {
            if let (Device::Cuda(device), true) = (device, passes_through) {
                memory::pool(device)?.trim()?; // memory that the layers took while they were copied to host memory
            }
        }
        let (parameters, conversions) = (weights.parameters(), weights.conversions());
        let tokens_per_pass = options.tokens_per_pass.max(1);
        let id = ModelId::new();
        Ok(Self { vision, text, parameters, conversions, tokens_per_pass, id, processor })
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.processor.config
    }

    /// The first device.
    pub fn device(&self) -> &Device {
        self.text.device()
    }

    /// All devices that have decoder layers or parts of them, in the order of a pass.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = &Device> {
        self.text.stages().iter().map(|stage| &stage.device)
    }

    /// How values are copied between devices: with layers split, from each device to the next and from the last to the
    /// first; with a row split, from each to the others.
    pub fn ways(&self) -> Vec<Way> {
        self.text.ways()
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

    /// Prompt tokens of one pass on one device.
    pub(super) fn tokens_per_pass(&self) -> usize {
        self.tokens_per_pass
    }

    /// Prompt tokens of one pass. With several devices it is a micro-batch, so that all are busy: with n micro-batches,
    /// each of s devices computes in n of n + s - 1 steps.
    pub(super) fn tokens_of_pass(&self, prompt: usize) -> usize {
        micro_batch(prompt, self.text.pipeline_depth()).min(self.tokens_per_pass)
    }

    /// Bytes of weights that a decoded token reads.
    pub fn weight_bytes(&self) -> usize {
        self.text.weight_bytes()
    }

    /// Streamed layers: decoder layers whose weights are in host memory and are copied for each pass.
    pub fn streamed_layers(&self) -> usize {
        self.text.streamed_layers()
    }

    /// An empty conversation with this model.
    ///
    /// # Errors
    /// A device error.
    pub fn session(&self) -> Result<Session> {
        let (ids, patches) = (Vec::new(), Vec::new());
        Ok(Session { model: self.id, cache: self.text.cache()?, ids, patches })
    }

    /// The vision tower's embeddings of an image or video.
    ///
    /// # Errors
    /// As [`VisionTower::forward`].
    pub fn encode_image(&self, patches: &Patches) -> Result<VisionOutput> {
        self.vision.forward(patches)?.to_device(self.device())
    }

    /// As [`encode_image`](Self::encode_image), through the next `blocks` blocks of the tower; returns the embeddings after the last block.
    pub(super) fn encode_image_on(
        &self,
        patches: &Patches,
        progress: &mut VisionProgress,
        blocks: usize,
    ) -> Result<Option<VisionOutput>> {
        let output = self.vision.advance(patches, progress, blocks)?;
        output.map(|output| output.to_device(self.device())).transpose()
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
        let mut cache = self.text.cache()?;
        cache.reserve(ids.len())?;
        let layers = self.config().text.num_hidden_layers;
        let ropes = self.text.angles(&positions.axes)?.into_iter();
        let ropes = ropes.map(|[cos, sin]| Rope::new(cos, sin, 0, 0)).collect::<Result<Vec<_>>>()?;
        let ids = Tensor::from_slice(ids, [ids.len()], self.device())?;
        let images = Images { outputs, runs: &runs };
        let mut all_but_last = |index: usize, h: &Tensor| {
            if index < layers {
                trace(index, h);
            }
        };
        let hidden = self.text.forward(&ids, &ropes, images, cache.caches(), &mut all_but_last)?;
        trace(layers, &hidden[0]);
        let logits = self.text.logits(&hidden)?;
        self.text.settle()?;
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
    /// last token. The cache gets room for `spare` more tokens. `go_on` is called before each image and each pass; if it
    /// returns false, the result is `None`. Then, and after an error, the session holds what was computed.
    pub(super) fn prefill(
        &self,
        session: &mut Session,
        prompt: &Prompt,
        spare: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
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
        for patches in new {
            if go_on().is_break() {
                return Ok(None);
            }
            outputs.push(self.encode_image(patches)?);
        }
        let runs = self.runs(&prompt.ids[start..], start, &outputs)?;
        let angles = self.text.angles(&prompt.positions.axes[start..])?;

        let mut hidden = None;
        let count = prompt.ids.len() - start;
        let tokens = self.tokens_of_pass(count);
        for from in (0..count).step_by(tokens) {
            if go_on().is_break() {
                return Ok(None);
            }
            let len = tokens.min(count - from);
            let runs = clip(&runs, from, len);
            let images = Images { outputs: &outputs, runs: &runs };
            let ids = &prompt.ids[start + from..start + from + len];
            let ids = Tensor::from_slice(ids, [len], self.device())?;
            let ropes =
                angles.iter().map(|[cos, sin]| Rope::new(cos.clone(), sin.clone(), start + from, from));
            let ropes = ropes.collect::<Result<Vec<_>>>()?;
            let h = self.text.forward(&ids, &ropes, images, session.cache.caches(), &mut |_, _| {})?;
            hidden = Some(h.iter().map(|h| h.narrow(0, len - 1, 1)).collect::<Result<Vec<_>>>()?);
            session.ids.extend_from_slice(&prompt.ids[start + from..start + from + len]);
        }
        let hidden = hidden.ok_or_else(|| Error::Prompt { reason: "it has no tokens".into() })?;
        let logits = self.text.logits(&hidden)?;
        self.text.settle()?;
        Ok(Some(Prefill { logits, passed: count }))
    }

    /// The tokens of each image and video of a prompt, from its first to one after its last.
    fn spans(&self, prompt: &Prompt) -> Result<Vec<Range<usize>>> {
        let tokens = |patches: &Patches| patches.tokens(&self.config().vision);
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

    /// The runs of image tokens in `ids`, whose features are in `outputs`.
    fn runs(&self, ids: &[u32], at: usize, outputs: &[VisionOutput]) -> Result<Vec<ImageRun>> {
        let counts: Vec<_> = outputs.iter().map(|output| output.embeddings.dims()[0]).collect();
        self.whole_runs(ids, at, &counts)
    }

    /// The runs of image tokens of a prompt.
    pub(super) fn prompt_runs(&self, prompt: &Prompt) -> Result<Vec<ImageRun>> {
        let tokens = |patches: &Patches| patches.tokens(&self.config().vision);
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

/// All layers of a checkpoint on one device.
fn on_one(checkpoint: &Checkpoint, device: &Device) -> Result<Placement> {
    Ok(Placement::one(device, checkpoint.config()?.text.num_hidden_layers))
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

/// The result of a thread; panics if the thread panicked.
fn joined<T>(thread: ScopedJoinHandle<Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The result of prefill.
pub(super) struct Prefill {
    /// [1, vocab]
    pub logits: Tensor,
    /// Tokens that were computed.
    pub passed: usize,
}

/// How many tokens of the prompt, from its start, are in the session's cache with the same images.
fn shared_prefix(session: &Session, prompt: &Prompt, spans: &[Range<usize>]) -> usize {
    let equal = session.ids.iter().zip(&prompt.ids).take_while(|(a, b)| a == b).count();
    let same_images = session.patches.iter().zip(&prompt.patches).take_while(|(a, b)| a == b).count();
    equal.min(spans.get(same_images).map_or(equal, |other| other.start))
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
    fn runs_are_cut_at_the_borders_of_a_pass() {
        let run = |start, len, output, row| ImageRun { start, len, output, row };
        let runs = [run(2, 5, 0, 0), run(9, 4, 1, 3)];
        assert_eq!(clip(&runs, 0, 20), runs);
        assert_eq!(clip(&runs, 4, 6), [run(0, 3, 0, 2), run(5, 1, 1, 3)]);
        assert_eq!(clip(&runs, 7, 2), []);
    }
}
