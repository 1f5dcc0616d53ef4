//! The language model: embeddings → hidden states → logits, on one device, as a pipeline over several, or with layers split
//! over several.

use super::adapter::Adapter;
use super::config::TextConfig;
use super::cut::{self, Cut};
use super::forward;
pub(super) use super::forward::{ImageRun, Images};
use super::inference::{Pass, block, changes, rms_norm, sparse};
use super::layers::Layers;
use super::options::{ExpertPlacement, LoadOptions};
use super::placement::{Placement, SplitMode};
use super::rope::{KnownAngles, RopeTables};
use super::seam::Config;
use super::seam::Progress;
use super::weights::Weights;
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::memory::{self, Link, Way};
use pascaline::nn::{
    AllReduce, Cache, Embedding, ExpertStream, Hits, KvCache, KvPages, Linear, RmsNorm, Rope,
    TransformerBlock,
};
use pascaline::ops;
use pascaline::{DType, Device, Error, Result, Tensor};
use std::ops::Range;
use std::sync::Arc;
use std::vec::IntoIter;

/// The decoder with its embedding and output projection.
pub struct TextModel {
    config: TextConfig,
    known_angles: Arc<KnownAngles>,
    /// The format of keys and values.
    cache: KvFormat,
    /// On the first device.
    embed_tokens: Embedding,
    /// At least one.
    stages: Vec<Stage>,
    between: Arc<Between>,
    /// On the last device; with a row split, on each.
    norms: Vec<RmsNorm>,
    /// On the first device; with a row split, part of the rows on each.
    lm_heads: Vec<Linear>,
}

/// How values are exchanged between devices.
enum Between {
    /// From each stage to the next, and from the last to the first; none for one stage.
    Stages(Vec<Link>),
    /// Each device has a part of every layer, and the partial sums are added (all-reduce).
    Rows(Box<AllReduce>),
}

/// The part of the decoder that is on one device.
pub(super) struct Stage {
    pub device: Device,
    /// The numbers in the model of its layers, whole or in part.
    pub range: Range<usize>,
    layers: Layers,
}

impl TextModel {
    /// Loads the language model's tensors onto the devices of `placement`, or to host memory where the options say so. `done` is called
    /// after each layer.
    pub(super) fn load(
        weights: &mut Weights,
        config: &Config,
        placement: &Placement,
        options: &LoadOptions,
        done: &mut dyn FnMut(Progress),
    ) -> Result<Self> {
        let text = &config.text;
        let of = if placement.mode() == SplitMode::Row { placement.devices().len() } else { 1 };
        let sums = match placement.mode() {
            SplitMode::Row => {
                let devices: Vec<_> = placement.devices().cloned().collect();
                Some(AllReduce::new(&devices, placement.way())?)
            }
            SplitMode::Layer => None,
        };
        let mut table = match config.tie_word_embeddings && of > 1 {
            true => weights.cut(&[config.embedding()], Cut::Rows { index: 0, of: 1 })?, // the others take rows of it
            false => weights.weight(&[config.embedding()])?,
        };
        if options.host_embedding {
            table = table.in_host_memory()?;
        }
        let mut lm_heads = vec![match config.tie_word_embeddings {
            true => Linear::new(table.narrow(0, cut::share(text.vocab_size, 0, of).len())?, None)?,
            false => Linear::new(weights.cut(&[config.output()], Cut::Rows { index: 0, of })?, None)?,
        }];
        let embed_tokens = Embedding::new(table)?;
        done(weights.progress());
        for (index, device) in placement.devices().enumerate().take(of).skip(1) {
            weights.load_onto(device);
            lm_heads.push(Linear::new(weights.cut(&[config.output()], Cut::Rows { index, of })?, None)?);
        }
        weights.let_go();
        let mut stages = Vec::new();
        for (device, range) in placement.devices().zip(placement.layers()) {
            // a device that has only the vision tower takes no part in the decoder
            if stages.is_empty() || !range.is_empty() {
                stages.push(Stage { device: device.clone(), range, layers: Layers::default() });
            }
        }
        let mut norms = Vec::new();
        if of > 1 {
            for layer in 0..text.num_hidden_layers {
                for (index, stage) in stages.iter_mut().enumerate() {
                    weights.load_onto(&stage.device);
                    stage.layers.push(block(weights, &config.block(layer), (index, of))?);
                }
                weights.let_go();
                done(weights.progress());
            }
        }
        let stages_of_norms = if of > 1 { 0..of } else { stages.len() - 1..stages.len() };
        for (stage, Stage { device, range, layers }) in stages.iter_mut().enumerate() {
            weights.load_onto(device);
            let experts = match device {
                Device::Cuda(device) if options.experts != ExpertPlacement::Gpu => {
                    let stream = ExpertStream::new(device, options.experts.cpu_rows())?;
                    Some(stream.with_slots(options.cached_experts))
                }
                _ => None,
            };
            for layer in range.clone().filter(|_| of == 1) {
                let mut block = block(weights, &config.block(layer), (0, 1))?;
                if let Some(stream) = &experts {
                    block.mlp = block.mlp.experts_in_host_memory(stream)?;
                }
                match device {
                    Device::Cuda(device) if options.gpu_layers.is_some_and(|on_gpu| layer >= on_gpu) => {
                        layers.push_streamed(&block, device)?;
                    }
                    _ => layers.push(block),
                }
                done(weights.progress());
            }
            if stages_of_norms.contains(&stage) {
                norms.push(rms_norm(weights, &config.norm())?);
            }
        }
        let devices: Vec<_> = stages.iter().map(|stage| stage.device.clone()).collect();
        let between = match sums {
            Some(sums) => Between::Rows(Box::new(sums)),
            None => Between::Stages(ring(&devices, placement.way())?),
        };
        let (config, cache, between) = (text.clone(), options.cache, Arc::new(between));
        let known_angles = Arc::default();
        Ok(Self { config, known_angles, cache, embed_tokens, stages, between, norms, lm_heads })
    }

    /// The same model, whose weights both share wherever they are, with an adapter beside its matrices. Each change is on the device of its
    /// matrix, or of the layer whose matrix passes through the device. `weights` are those that this one was loaded from.
    pub(super) fn adapted(&self, weights: &mut Weights, config: &Config, adapter: &Adapter) -> Result<Self> {
        let of = self.parts();
        weights.load_onto(self.device());
        let table = weights.change(adapter, &[config.embedding()], Cut::Whole)?;
        let embed_tokens = Embedding::new(self.embed_tokens.table().with(&table)?)?;
        let mut lm_heads = Vec::with_capacity(self.lm_heads.len());
        for (index, (head, stage)) in self.lm_heads.iter().zip(&self.stages).enumerate() {
            weights.load_onto(&stage.device);
            let change = match &table {
                Some([a, b]) if config.tie_word_embeddings && index == 0 => {
                    Some([a.clone(), b.narrow(0, 0, head.out_features())?])
                }
                _ => weights.change(adapter, &[config.output()], Cut::Rows { index, of })?,
            };
            lm_heads.push(Linear::new(head.weight().with(&change)?, None)?);
        }
        let mut stages = Vec::with_capacity(self.stages.len());
        for (index, Stage { device, range, layers }) in self.stages.iter().enumerate() {
            weights.load_onto(device);
            let part = if of > 1 { (index, of) } else { (0, 1) };
            let changes = range.clone().map(|layer| changes(weights, adapter, &config.block(layer), part));
            let layers = layers.adapted(changes.collect::<Result<_>>()?)?;
            stages.push(Stage { device: device.clone(), range: range.clone(), layers });
        }
        let (between, norms) = (Arc::clone(&self.between), self.norms.clone());
        Ok(Self {
            config: self.config.clone(),
            known_angles: Arc::clone(&self.known_angles),
            cache: self.cache,
            embed_tokens,
            stages,
            between,
            norms,
            lm_heads,
        })
    }

    /// The number of layers that are streamed from host memory.
    pub(super) fn streamed_layers(&self) -> usize {
        self.stages.iter().map(|stage| stage.layers.streamed()).sum()
    }

    /// The number of layers whose experts are in host memory.
    pub(super) fn host_expert_layers(&self) -> usize {
        self.stages.iter().map(|stage| stage.layers.host_experts()).sum()
    }

    /// How often the router's choice was in device memory, of experts in host memory.
    pub(super) fn expert_hits(&self) -> Hits {
        self.stages.iter().map(|stage| stage.layers.expert_hits()).sum()
    }

    /// Whether a pass of few tokens can be captured: kernels alone, whose weights are where they were.
    pub(super) fn is_capturable(&self) -> bool {
        self.device().is_cuda() && self.streamed_layers() == 0 && self.host_expert_layers() == 0
    }

    /// The parts of the decoder, in the order of a pass.
    pub(super) fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The device that tokens are copied to and logits come from.
    pub(super) fn device(&self) -> &Device {
        &self.stages[0].device // `load` makes one at least
    }

    /// Elements of a token's hidden state.
    pub(super) fn width(&self) -> usize {
        self.config.hidden_size
    }

    /// How values are copied between devices.
    pub(super) fn ways(&self) -> Vec<Way> {
        match &*self.between {
            Between::Stages(links) => links.iter().map(Link::way).collect(),
            Between::Rows(sums) => sums.ways(),
        }
    }

    /// The number of devices that a pass goes through one after the other.
    pub(super) fn pipeline_depth(&self) -> usize {
        self.stages.len() / self.parts()
    }

    /// The number of devices that share each layer.
    pub(super) fn parts(&self) -> usize {
        if let Between::Rows(_) = *self.between { self.stages.len() } else { 1 }
    }

    /// The device of each layer.
    fn layer_devices(&self) -> impl Iterator<Item = &Device> {
        self.stages.iter().flat_map(|stage| std::iter::repeat_n(&stage.device, stage.range.len()))
    }

    /// Waits for the devices after the first and reports their errors; their results may only be used then. The first
    /// device's errors are reported when its results are read.
    pub(super) fn settle(&self) -> Result<()> {
        match &*self.between {
            Between::Stages(_) => self.stages.iter().skip(1).try_for_each(|stage| stage.device.synchronize()),
            Between::Rows(sums) => sums.wait(),
        }
    }

    /// The most tokens whose keys and values fit in half of each device's free memory.
    pub(super) fn room_for_tokens(&self) -> Result<usize> {
        let per_layer = self.token_bytes() / self.config.num_hidden_layers.max(1) / self.parts();
        let mut least = usize::MAX;
        for Stage { device, range, .. } in &self.stages {
            if let Device::Cuda(device) = device {
                least = least.min(memory::available(device)? / 2 / (per_layer * range.len()).max(1));
            }
        }
        Ok(least)
    }

    /// An empty cache for this model: all layers of the first device, then those of the next.
    ///
    /// # Errors
    /// A device error.
    pub fn cache(&self) -> Result<KvCache> {
        let (heads, d) = (self.config.num_key_value_heads / self.parts(), self.config.head_dim);
        KvCache::across(self.layer_devices(), heads, d, self.cache)
    }

    /// A pool of `pages` pages of keys and values for this model.
    ///
    /// # Errors
    /// A device error.
    pub fn pages(&self, pages: usize) -> Result<KvPages> {
        let (heads, d) = (self.config.num_key_value_heads / self.parts(), self.config.head_dim);
        KvPages::across(self.layer_devices(), pages, heads, d, self.cache)
    }

    /// Bytes of a token's keys and values in all layers.
    pub(super) fn token_bytes(&self) -> usize {
        let dims = [1, self.config.num_key_value_heads, self.config.head_dim];
        2 * self.config.num_hidden_layers * KvTensor::part_bytes(self.cache, dims).iter().sum::<usize>()
    }

    /// Cosines and sines of the rotary angles of tokens at these positions.
    pub(super) fn rotations(&self, axes: &[[u32; 3]]) -> RopeTables {
        self.known_angles.at(&self.config, axes)
    }

    /// The rotary angles of tokens at these positions: cosines and sines, each [positions, head_dim / 2], for each stage.
    ///
    /// # Errors
    /// A device error.
    pub fn angles(&self, axes: &[[u32; 3]]) -> Result<Vec<[Tensor; 2]>> {
        let shape = [axes.len(), self.config.head_dim / 2];
        let tables = match self.device().is_planned() {
            true => RopeTables::unknown(shape[0] * shape[1]),
            false => self.rotations(axes),
        };
        let on = |stage: &Stage| {
            let table = |values: &[f32]| Tensor::from_slice(values, shape, &stage.device);
            Ok([table(&tables.cos)?, table(&tables.sin)?])
        };
        self.stages.iter().map(on).collect()
    }

    /// Runs tokens (`ids`: [tokens] u32) through all layers and appends their keys and values to the layers' caches, which
    /// are in the order of [`cache`](Self::cache). Returns the normalised hidden states [tokens, hidden] on the last
    /// device; with a row split, the same on each device. `ropes` has the angles for each device. `trace` is called with
    /// the embeddings as number 0 and then with each layer's output, before deepstack features are added; its error ends the pass.
    pub(super) fn forward<'a>(
        &self,
        ids: &Tensor,
        ropes: &[Rope],
        images: Images,
        mut caches: impl Iterator<Item = Cache<'a>>,
        trace: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Vec<Tensor>> {
        let mut h = self.embed(ids, images)?;
        trace(0, &h)?;
        if let Between::Rows(sums) = &*self.between {
            return self.forward_in_parts(sums, h, ropes, images, caches, trace);
        }
        for (stage, rope) in ropes.iter().enumerate() {
            if stage > 0 {
                h = self.pass_on(stage - 1, &h)?;
            }
            h = self.run(stage, h, rope, images, &mut caches, trace)?;
        }
        Ok(vec![h])
    }

    /// Calls `f`, a pass of few rows, while the CPU's threads wait awake for their part of it: all, or the experts in host memory.
    pub(super) fn pass_of_few<R>(&self, f: impl FnOnce() -> R) -> R {
        match self.host_expert_layers() {
            0 => self.device().pass(f),
            _ => Device::Cpu.pass(f),
        }
    }

    /// The pass of a row split: each device computes its part of every layer.
    fn forward_in_parts<'a>(
        &self,
        sums: &AllReduce,
        h: Tensor,
        ropes: &[Rope],
        images: Images,
        mut caches: impl Iterator<Item = Cache<'a>>,
        trace: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Vec<Tensor>> {
        let own = |stage: &Stage| caches.by_ref().take(stage.range.len()).collect::<Vec<_>>().into_iter();
        let mut caches: Vec<_> = self.stages.iter().map(own).collect();
        let mut h = sums.broadcast(&h)?;
        for index in 0..self.config.num_hidden_layers {
            // exactly one part adds the residual
            let blocks = || self.stages.iter().filter_map(|stage| stage.layers.resident(index)).enumerate();
            let attend = |((part, block), cache): ((usize, &TransformerBlock), &mut IntoIter<Cache<'a>>)| {
                block.attend(&h[part], part == 0, &ropes[part], cache.next())
            };
            let attended = blocks().zip(&mut caches).map(attend).collect::<Result<_>>()?;
            let between = sums.sum(attended)?;
            let feed =
                |(part, block): (usize, &TransformerBlock)| block.feed_forward(&between[part], part == 0);
            h = sums.sum(blocks().map(feed).collect::<Result<_>>()?)?;
            trace(index + 1, &h[0])?;
            let features = images.deepstack(index);
            if !features.is_empty() {
                let features = sums.broadcast(&sparse(h[0].dims(), &features, self.device())?)?;
                h = h
                    .iter()
                    .zip(&features)
                    .map(|(h, features)| ops::add(h, features))
                    .collect::<Result<_>>()?;
            }
        }
        h.iter().zip(&self.norms).map(|(h, norm)| norm.forward(h)).collect()
    }

    /// The tokens' embeddings, with those of image tokens replaced by the images': the first stage's input.
    pub(super) fn embed(&self, ids: &Tensor, images: Images) -> Result<Tensor> {
        let tokens = self.embed_tokens.forward(ids)?;
        forward::embed(&mut Pass::new(self.device()), tokens, images)
    }

    /// The layers of one stage, with the next caches of the iterator; after the last stage, the final norm.
    pub(super) fn run<'a>(
        &self,
        stage: usize,
        h: Tensor,
        rope: &Rope,
        images: Images,
        caches: &mut dyn Iterator<Item = Cache<'a>>,
        trace: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        let Stage { range, layers, device } = &self.stages[stage];
        let mut pass = Pass::with_caches(device, caches);
        let h = forward::decode(&mut pass, layers, range.clone(), h, rope, images, trace)?;
        match self.norms.first() {
            Some(norm) if stage + 1 == self.stages.len() => norm.forward(&h),
            _ => Ok(h),
        }
    }

    /// Queues a copy of hidden states to the next stage's device, or from the last one to the first.
    pub(super) fn send(&self, stage: usize, hidden: &Tensor, target: &mut Tensor) -> Result<()> {
        match &*self.between {
            Between::Stages(links) if stage < links.len() => hidden.contiguous()?.send(&links[stage], target),
            _ => {
                let (argument, value) = ("stage", stage.to_string());
                let reason = "hidden states are not passed on after it".into();
                Err(Error::Unsupported { op: "send", argument, value, reason })
            }
        }
    }

    /// As [`send`](Self::send), into a new tensor.
    pub(super) fn pass_on(&self, stage: usize, hidden: &Tensor) -> Result<Tensor> {
        let next = &self.stages[(stage + 1) % self.stages.len()].device;
        let mut there = Tensor::uninitialized(hidden.shape().clone(), DType::F32, next)?;
        self.send(stage, hidden, &mut there)?;
        Ok(there)
    }

    /// [tokens, hidden], normalised, as [`forward`](Self::forward) gives it → [tokens, vocab], on the first device.
    pub(super) fn logits(&self, hidden: &[Tensor]) -> Result<Tensor> {
        match (&*self.between, hidden) {
            (Between::Stages(links), [last]) if !links.is_empty() => {
                self.logits_at_home(&self.pass_on(links.len() - 1, last)?)
            }
            (Between::Stages(_), hidden) => self.logits_at_home(&hidden[0]),
            (Between::Rows(sums), hidden) => {
                let part = |(head, hidden): (&Linear, &Tensor)| head.forward(hidden);
                sums.gather_columns(self.lm_heads.iter().zip(hidden).map(part).collect::<Result<_>>()?)
            }
        }
    }

    /// As [`logits`](Self::logits), for hidden states that are already on the first device; not for a row split.
    pub(super) fn logits_at_home(&self, hidden: &Tensor) -> Result<Tensor> {
        self.lm_heads[0].forward(hidden) // `load` makes one at least
    }

    /// Bytes of weights that a decoded token reads.
    pub fn weight_bytes(&self) -> usize {
        let layers: usize = self.stages.iter().map(|stage| stage.layers.weight_bytes()).sum();
        layers + self.lm_heads.iter().map(Linear::weight_bytes).sum::<usize>()
    }
}

/// Links from each device to the next, and from the last to the first; none for one device.
fn ring(devices: &[Device], way: Option<Way>) -> Result<Vec<Link>> {
    let next = |index: usize| &devices[(index + 1) % devices.len()];
    let pairs = devices.iter().enumerate().map(|(index, from)| (from, next(index)));
    let link = |pair: (&Device, &Device)| match pair {
        (Device::Cuda(from), Device::Cuda(to)) if devices.len() > 1 => Some(Link::new(from, to, way)),
        _ => None,
    };
    pairs.filter_map(link).collect()
}
