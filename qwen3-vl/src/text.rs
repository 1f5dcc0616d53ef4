//! The language model: embeddings → hidden states → logits.

use super::config::Config;
use super::layers::Layers;
use super::positions::text_rope;
use super::vision::VisionOutput;
use super::weights::{EMBEDDING, LM_HEAD, Weights};
use pascaline::kv::{KvFormat, KvTensor};
use pascaline::nn::{
    Attention, Cache, Embedding, KvCache, KvPages, Linear, Mlp, Norm, RmsNorm, Rope, TransformerBlock,
};
use pascaline::ops::{self, Activation};
use pascaline::{DType, Device, Result, Tensor};

/// The decoder with its embedding and output projection.
pub struct TextModel {
    config: super::config::TextConfig,
    device: Device,
    /// The format of keys and values.
    cache: KvFormat,
    embed_tokens: Embedding,
    layers: Layers,
    norm: RmsNorm,
    lm_head: Linear,
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
    /// Takes the language model's tensors. Keys and values will be stored as `cache`; the weights of layers from number
    /// `gpu_layers` on stay in host memory; `done` is called after each layer.
    pub(super) fn load(
        weights: &mut Weights,
        config: &Config,
        device: &Device,
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
        let mut layers = Layers::default();
        for index in 0..text.num_hidden_layers {
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
        let norm = RmsNorm::new(weights.vector("model.language_model.norm.weight")?, text.rms_norm_eps)?;
        let (config, device) = (text.clone(), device.clone());
        Ok(Self { config, device, cache, embed_tokens, layers, norm, lm_head })
    }

    /// How many layers' weights are in host memory and pass through the device.
    pub(super) fn streamed_layers(&self) -> usize {
        self.layers.streamed()
    }

    /// An empty cache for this model.
    ///
    /// # Errors
    /// A device error.
    pub fn cache(&self) -> Result<KvCache> {
        let (heads, d) = (self.config.num_key_value_heads, self.config.head_dim);
        KvCache::new(self.config.num_hidden_layers, heads, d, self.cache, &self.device)
    }

    /// So many pages of keys and values for this model.
    ///
    /// # Errors
    /// A device error.
    pub fn pages(&self, pages: usize) -> Result<KvPages> {
        let (heads, d) = (self.config.num_key_value_heads, self.config.head_dim);
        KvPages::new(self.config.num_hidden_layers, pages, heads, d, self.cache, &self.device)
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

    /// The rotary angles of tokens at these positions: cosines and sines, each [positions, head_dim / 2].
    ///
    /// # Errors
    /// A device error.
    pub fn angles(&self, axes: &[[u32; 3]]) -> Result<[Tensor; 2]> {
        let tables = text_rope(&self.config, axes);
        let shape = [axes.len(), self.config.head_dim / 2];
        Ok([
            Tensor::from_slice(&tables.cos, shape, &self.device)?,
            Tensor::from_slice(&tables.sin, shape, &self.device)?,
        ])
    }

    /// Passes tokens (`ids`: [tokens] u32) through all layers: their keys and values go to the layers' caches. Gives the normalised hidden
    /// states [tokens, hidden]. `trace` sees the embeddings as number 0 and then each layer's output, before the
    /// deepstack features are added.
    pub(super) fn forward<'a>(
        &self,
        ids: &Tensor,
        rope: &Rope,
        images: Images,
        caches: impl Iterator<Item = Cache<'a>>,
        trace: &mut dyn FnMut(usize, &Tensor),
    ) -> Result<Tensor> {
        let mut h = self.embed_tokens.forward(ids)?;
        for run in images.runs {
            let features = images.outputs[run.output].embeddings.narrow(0, run.row, run.len)?;
            ops::copy_into(h.view_mut()?.narrow(0, run.start, run.len)?, &features)?;
        }
        trace(0, &h);
        for (index, cache) in caches.enumerate() {
            h = self.layers.forward(index, &h, rope, Some(cache))?;
            trace(index + 1, &h);
            let deep = images.outputs.first().is_some_and(|output| index < output.deepstack.len());
            if deep && !images.runs.is_empty() {
                h = ops::add(&h, &self.deepstack(index, images, h.dims()[0])?)?;
            }
        }
        self.norm.forward(&h)
    }

    /// The deepstack features of a layer at the image tokens, zero elsewhere: [tokens, hidden].
    fn deepstack(&self, layer: usize, images: Images, tokens: usize) -> Result<Tensor> {
        let mut sparse = Tensor::zeros([tokens, self.config.hidden_size], DType::F32, &self.device)?;
        for run in images.runs {
            let features = images.outputs[run.output].deepstack[layer].narrow(0, run.row, run.len)?;
            ops::copy_into(sparse.view_mut()?.narrow(0, run.start, run.len)?, &features)?;
        }
        Ok(sparse)
    }

    /// [tokens, hidden], normalised → [tokens, vocab]
    ///
    /// # Errors
    /// A device error.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.lm_head.forward(hidden)
    }

    /// Bytes of weights that a decoded token reads.
    pub fn weight_bytes(&self) -> usize {
        self.layers.weight_bytes() + self.lm_head.weight_bytes()
    }
}
