//! The language model: embeddings → hidden states → logits, on one device or on several in turn.

use super::config::Config;
use super::layers::Layers;
use super::placement::Placement;
use super::positions::text_rope;
use super::vision::VisionOutput;
use super::weights::{EMBEDDING, LM_HEAD, Weights};
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::memory::{self, Link};
use pascaline::nn::{
    Attention, Cache, Embedding, KvCache, KvPages, Linear, Mlp, Norm, RmsNorm, Rope, TransformerBlock,
};
use pascaline::ops::{self, Activation};
use pascaline::{DType, Device, Error, Result, Tensor};
use std::ops::Range;

/// The decoder with its embedding and output projection.
pub struct TextModel {
    config: super::config::TextConfig,
    /// The format of keys and values.
    cache: KvFormat,
    /// On the first device.
    embed_tokens: Embedding,
    /// One at least.
    stages: Vec<Stage>,
    /// From each stage to the next, and from the last to the first; none for one stage.
    links: Vec<Link>,
    /// On the last device.
    norm: RmsNorm,
    /// On the first device.
    lm_head: Linear,
}

/// The part of the decoder on one device.
pub(super) struct Stage {
    pub device: Device,
    /// Its layers' numbers in the model.
    pub range: Range<usize>,
    layers: Layers,
}

/// Consecutive image tokens of a sequence, and where their features are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ImageRun {
    /// The first one's place in the sequence.
    pub start: usize,
    /// Their number.
    pub len: usize,
    /// Which of the outputs of the vision tower.
    pub output: usize,
    /// The first one's row in that output.
    pub row: usize,
}

/// The inputs of a pass in addition to its tokens.
#[derive(Clone, Copy, Default)]
pub(super) struct Images<'a> {
    /// The vision tower's output for each image and video.
    pub outputs: &'a [VisionOutput],
    /// The runs of image tokens, counted from the start of the pass.
    pub runs: &'a [ImageRun],
}

impl TextModel {
    /// Takes the language model's tensors, onto the devices that `placement` says. Keys and values will be stored as `cache`; the
    /// weights of layers from number `gpu_layers` on stay in host memory; `done` is called after each layer.
    pub(super) fn load(
        weights: &mut Weights,
        config: &Config,
        placement: &Placement,
        cache: KvFormat,
        gpu_layers: usize,
        done: &mut dyn FnMut(&Weights),
    ) -> Result<Self> {
        let text = &config.text;
        let embed_tokens = Embedding::new(weights.weight(&[EMBEDDING])?)?;
        let lm_head = match config.tie_word_embeddings {
            true => embed_tokens.tied()?,
            false => Linear::new(weights.weight(&[LM_HEAD])?, None)?,
        };
        done(weights);
        let mut stages = Vec::new();
        for (device, range) in placement.devices().zip(placement.layers()) {
            // a device that has the vision tower alone takes no part in the decoder
            if stages.is_empty() || !range.is_empty() {
                stages.push(Stage { device: device.clone(), range, layers: Layers::default() });
            }
        }
        for Stage { device, range, layers } in &mut stages {
            weights.load_onto(device);
            for index in range.clone() {
                let name = |part: &str| format!("model.language_model.layers.{index}.{part}.weight");
                let mut linear = |parts: &[&str]| {
                    let names: Vec<_> = parts.iter().map(|part| name(part)).collect();
                    Linear::new(weights.weight(&names)?, None)
                };
                let qkv = linear(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"])?;
                let out = linear(&["self_attn.o_proj"])?;
                let gate_up = linear(&["mlp.gate_proj", "mlp.up_proj"])?;
                let mlp = Mlp::new(gate_up, Activation::SwiGlu, linear(&["mlp.down_proj"])?)?;
                let mut norm = |part: &str| RmsNorm::new(weights.vector(&name(part))?, text.rms_norm_eps);
                let norms = Some((norm("self_attn.q_norm")?, norm("self_attn.k_norm")?));
                let heads = [text.num_attention_heads, text.num_key_value_heads, text.head_dim];
                let block = TransformerBlock {
                    norm1: Norm::Rms(norm("input_layernorm")?),
                    attention: Attention::new(qkv, norms, out, heads, true)?,
                    norm2: Norm::Rms(norm("post_attention_layernorm")?),
                    mlp,
                };
                match device {
                    Device::Cuda(device) if index >= gpu_layers => layers.push_streamed(&block, device)?,
                    _ => layers.push(block),
                }
                done(weights);
            }
        }
        let norm = RmsNorm::new(weights.vector("model.language_model.norm.weight")?, text.rms_norm_eps)?;
        let mut links = Vec::new();
        for (index, from) in stages.iter().enumerate().take(if stages.len() > 1 { stages.len() } else { 0 }) {
            let to = &stages[(index + 1) % stages.len()];
            if let (Device::Cuda(from), Device::Cuda(to)) = (&from.device, &to.device) {
                links.push(Link::new(from, to, placement.way())?);
            }
        }
        Ok(Self { config: text.clone(), cache, embed_tokens, stages, links, norm, lm_head })
    }

    /// How many layers' weights are in host memory and pass through the device.
    pub(super) fn streamed_layers(&self) -> usize {
        self.stages.iter().map(|stage| stage.layers.streamed()).sum()
    }

    /// The parts of the decoder, in the order of a pass.
    pub(super) fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The device that tokens come to and logits come from.
    pub(super) fn device(&self) -> &Device {
        &self.stages[0].device // `load` makes one at least
    }

    /// Values of a hidden state.
    pub(super) fn width(&self) -> usize {
        self.config.hidden_size
    }

    /// The ways that hidden states take from device to device.
    pub(super) fn links(&self) -> &[Link] {
        &self.links
    }

    /// The device of each layer.
    fn layer_devices(&self) -> impl Iterator<Item = &Device> {
        self.stages.iter().flat_map(|stage| std::iter::repeat_n(&stage.device, stage.range.len()))
    }

    /// Waits for the devices after the first, and reports their errors: what comes from them is to be used only then. The first
    /// one's are reported when its results are read.
    pub(super) fn settle(&self) -> Result<()> {
        self.stages.iter().skip(1).try_for_each(|stage| stage.device.synchronize())
    }

    /// The most tokens that there is memory for in half of what is left on each device.
    pub(super) fn room_for_tokens(&self) -> Result<usize> {
        let per_layer = self.token_bytes() / self.config.num_hidden_layers.max(1);
        let mut least = usize::MAX;
        for Stage { device, range, .. } in &self.stages {
            if let Device::Cuda(device) = device {
                least = least.min(memory::available(device)? / 2 / (per_layer * range.len()).max(1));
            }
        }
        Ok(least)
    }

    /// An empty cache for this model.
    ///
    /// # Errors
    /// A device error.
    pub fn cache(&self) -> Result<KvCache> {
        let (heads, d) = (self.config.num_key_value_heads, self.config.head_dim);
        KvCache::across(self.layer_devices(), heads, d, self.cache)
    }

    /// So many pages of keys and values for this model.
    ///
    /// # Errors
    /// A device error.
    pub fn pages(&self, pages: usize) -> Result<KvPages> {
        let (heads, d) = (self.config.num_key_value_heads, self.config.head_dim);
        KvPages::across(self.layer_devices(), pages, heads, d, self.cache)
    }

    /// The format of keys and values.
    pub(super) fn cache_format(&self) -> KvFormat {
        self.cache
    }

    /// Bytes of a token's keys and values in all layers.
    pub(super) fn token_bytes(&self) -> usize {
        let dims = [1, self.config.num_key_value_heads, self.config.head_dim];
        2 * self.config.num_hidden_layers * KvTensor::part_bytes(self.cache, dims).iter().sum::<usize>()
    }

    /// The rotary angles of tokens at these positions: cosines and sines, each [positions, head_dim / 2], for each stage.
    ///
    /// # Errors
    /// A device error.
    pub fn angles(&self, axes: &[[u32; 3]]) -> Result<Vec<[Tensor; 2]>> {
        let tables = text_rope(&self.config, axes);
        let shape = [axes.len(), self.config.head_dim / 2];
        let on = |stage: &Stage| {
            let table = |values: &[f32]| Tensor::from_slice(values, shape, &stage.device);
            Ok([table(&tables.cos)?, table(&tables.sin)?])
        };
        self.stages.iter().map(on).collect()
    }

    /// Passes tokens (`ids`: [tokens] u32) through all layers: their keys and values go to the layers' caches. Gives the normalised hidden
    /// states [tokens, hidden], on the last device. `ropes` has the angles for each stage. `trace` sees the embeddings as number 0
    /// and then each layer's output, before the deepstack features are added.
    pub(super) fn forward<'a>(
        &self,
        ids: &Tensor,
        ropes: &[Rope],
        images: Images,
        mut caches: impl Iterator<Item = Cache<'a>>,
        trace: &mut dyn FnMut(usize, &Tensor),
    ) -> Result<Tensor> {
        let mut h = self.embed(ids, images)?;
        trace(0, &h);
        for (stage, rope) in ropes.iter().enumerate() {
            if stage > 0 {
                h = self.pass_on(stage - 1, &h)?;
            }
            h = self.run(stage, h, rope, images, &mut caches, trace)?;
        }
        Ok(h)
    }

    /// The embeddings of tokens, and in the places of image tokens the images': what the first stage begins with.
    pub(super) fn embed(&self, ids: &Tensor, images: Images) -> Result<Tensor> {
        let mut h = self.embed_tokens.forward(ids)?;
        for run in images.runs {
            let features = images.outputs[run.output].embeddings.narrow(0, run.row, run.len)?;
            ops::copy_into(h.view_mut()?.narrow(0, run.start, run.len)?, &features)?;
        }
        Ok(h)
    }

    /// The layers of one stage, whose caches are next; after the last one's, the norm.
    pub(super) fn run<'a>(
        &self,
        stage: usize,
        mut h: Tensor,
        rope: &Rope,
        images: Images,
        caches: &mut dyn Iterator<Item = Cache<'a>>,
        trace: &mut dyn FnMut(usize, &Tensor),
    ) -> Result<Tensor> {
        let Stage { range, layers, device } = &self.stages[stage];
        for (at, index) in range.clone().enumerate() {
            let Some(cache) = caches.next() else { break }; // as many as layers: `cache` and `pages` make them
            h = layers.forward(at, &h, rope, Some(cache))?;
            trace(index + 1, &h);
            let deep = images.outputs.first().is_some_and(|output| index < output.deepstack.len());
            if deep && !images.runs.is_empty() {
                h = ops::add(&h, &self.deepstack(index, images, h.dims()[0], device)?)?;
            }
        }
        if stage + 1 == self.stages.len() { self.norm.forward(&h) } else { Ok(h) }
    }

    /// Queues a copy of hidden states to the device of the next stage, or from the last one to the first.
    pub(super) fn send(&self, stage: usize, hidden: &Tensor, target: &mut Tensor) -> Result<()> {
        let Some(link) = self.links.get(stage) else {
            let (argument, value) = ("stage", stage.to_string());
            let reason = "the model is on one device".into();
            return Err(Error::Unsupported { op: "send", argument, value, reason });
        };
        hidden.contiguous()?.send(link, target)
    }

    /// As [`send`](Self::send), to a new tensor.
    pub(super) fn pass_on(&self, stage: usize, hidden: &Tensor) -> Result<Tensor> {
        let next = &self.stages[(stage + 1) % self.stages.len()].device;
        let mut there = Tensor::uninitialized(hidden.shape().clone(), DType::F32, next)?;
        self.send(stage, hidden, &mut there)?;
        Ok(there)
    }

    /// The deepstack features of a layer at the image tokens, zero elsewhere: [tokens, hidden].
    fn deepstack(&self, layer: usize, images: Images, tokens: usize, device: &Device) -> Result<Tensor> {
        let mut sparse = Tensor::zeros([tokens, self.config.hidden_size], DType::F32, device)?;
        for run in images.runs {
            let features = images.outputs[run.output].deepstack[layer].narrow(0, run.row, run.len)?;
            let features = features.to_device(device)?; // the embeddings are on the first one
            ops::copy_into(sparse.view_mut()?.narrow(0, run.start, run.len)?, &features)?;
        }
        Ok(sparse)
    }

    /// [tokens, hidden], normalised, as the last stage gives it → [tokens, vocab], on the first device.
    ///
    /// # Errors
    /// A device error.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        match self.stages.len() {
            1 => self.lm_head.forward(hidden),
            stages => self.logits_at_home(&self.pass_on(stages - 1, hidden)?),
        }
    }

    /// As [`logits`](Self::logits), of hidden states that are on the first device already.
    pub(super) fn logits_at_home(&self, hidden: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(hidden)
    }

    /// Bytes of weights that a decoded token reads.
    pub fn weight_bytes(&self) -> usize {
        let layers: usize = self.stages.iter().map(|stage| stage.layers.weight_bytes()).sum();
        layers + self.lm_head.weight_bytes()
    }
}
