//! The memory that a model takes on a GPU, computed from its sizes alone.
//!
//! Loading, encoding a picture, prefill and decode are rehearsed: their allocations are made in the same order as in the
//! modules, on the pool's own logic but without memory ([`Rehearsal`]). Tests compare the result with the pool's books after a
//! real answer.

use super::batch::{BatchOptions, PAGE};
use super::config::{Config, VisionConfig};
use super::decode::{ANGLES_AHEAD, CHECKED};
use super::model::{LoadOptions, micro_batch};
use super::rows;
use super::vision::VisionPlace;
use super::weights::{EMBEDDING, LM_HEAD};
use pascaline::cuda::CudaDevice;
use pascaline::internals::pieces::{
    MLP_ROWS, QUANTIZE_PIECE, even_pieces, prefill_partial_bytes, rows_per_launch, unfused_gate_rows,
};
use pascaline::internals::select::{Layouts, Query, Types, scratch_bytes};
use pascaline::internals::table::Table;
use pascaline::kv::KvTensor;
use pascaline::memory::{Link, Rehearsal, Rehearsed};
use pascaline::ops::Activation;
use pascaline::quant::{Format, QuantRows, QuantTensor};
use pascaline::{DType, Error, Result};
use std::ops::Range;

/// The storage of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In f32 or f16.
    Float(DType),
    /// As it comes from a file of this format.
    Stored(Format),
    /// Quantised on the device while it is loaded.
    Quantized(Format),
}

/// The work that the memory must be enough for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Tokens that the cache has room for: prompt, pictures and answer.
    pub context: usize,
    /// Tokens of the prompt among them.
    pub prompt: usize,
    /// Patches of the largest picture; 0 without pictures.
    pub patches: usize,
}

/// The properties of a GPU that decide which kernels run, and so their scratch memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Compute capability, such as (6, 1).
    pub capability: (i32, i32),
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Bytes that the driver takes outside the pool.
    pub beside_pool: usize,
    /// Bytes that it takes besides with layers that pass through.
    pub beside_streaming: usize,
    /// Available bytes without the driver's context; `usize::MAX` plans without a limit.
    pub memory: usize,
}

impl Gpu {
    /// Memory of the driver outside the pool: the code of the kernels, and graphs. Measured with driver 580.159 on an H200:
    /// 20 to 24 MiB.
    const BESIDE_POOL: usize = 24 << 20;

    /// The counters of streams, which kernels share.
    const COUNTERS: usize = 64 << 10;

    /// Memory that a real driver took beyond the plan with streamed layers, on an H200: at most 26 MiB with the 8B size, 2 with the
    /// 2B size. Its use is not known.
    const BESIDE_STREAMING: usize = 24 << 20;

    /// A device; the virtual GPU keeps no code in its memory, and nothing for layers that pass through.
    pub fn of(device: &CudaDevice) -> Self {
        let properties = device.properties();
        let (beside_pool, beside_streaming) = match device.is_virtual() {
            true => (Self::COUNTERS, 0),
            false => (Self::BESIDE_POOL, Self::BESIDE_STREAMING),
        };
        let (capability, multiprocessors) = (properties.capability, properties.multiprocessors);
        Self { capability, multiprocessors, beside_pool, beside_streaming, memory: usize::MAX }
    }

    /// A Pascal card that is not there.
    pub fn pascal(multiprocessors: u32) -> Self {
        let (beside_pool, beside_streaming) = (Self::BESIDE_POOL, Self::BESIDE_STREAMING);
        Self { capability: (6, 1), multiprocessors, beside_pool, beside_streaming, memory: usize::MAX }
    }
}

/// Bytes that a model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Footprint {
    /// On the GPU: weights that stay there, and the buffers of streamed layers.
    pub weights: usize,
    /// On the GPU: keys and values.
    pub cache: usize,
    /// On the GPU: the most that will be in use.
    pub live: usize,
    /// On the GPU: the most that the pools will have reserved, and the driver's memory outside them.
    pub peak: usize,
    /// In host memory: streamed weights, and weights that never go to the GPU.
    pub host: usize,
}

/// The part of a model that is on one of several devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its decoder layers.
    pub layers: Range<usize>,
    /// Whether tokens come to it and logits from it.
    pub is_first: bool,
    /// Whether it has the vision tower.
    pub has_vision: bool,
    /// How many devices a pass goes through one after the other.
    pub stages: usize,
    /// Of a row split, which part of each layer, and of how many; else the first of one.
    pub share: [usize; 2],
}

impl Part {
    /// All of a model.
    pub fn whole(config: &Config) -> Self {
        let layers = 0..config.text.num_hidden_layers;
        Self { layers, is_first: true, has_vision: true, stages: 1, share: [0, 1] }
    }

    /// Rows of the output matrix.
    fn vocabulary(&self, config: &Config) -> usize {
        let [index, of] = self.share;
        match (of, self.is_first) {
            (1, false) => 0,
            _ => rows::share(config.text.vocab_size, index, of).len(),
        }
    }
}

/// The footprint of a model whose matrix of a published name is stored as `storage` says.
///
/// # Errors
/// [`Error::OutOfMemory`] if `gpu.memory` is too little, [`Error::TooLarge`] for sizes that overflow.
pub fn footprint(
    config: &Config,
    storage: &dyn Fn(&str) -> Storage,
    options: &LoadOptions,
    work: &Workload,
    gpu: &Gpu,
) -> Result<Footprint> {
    part_footprint(config, storage, options, work, None, (&Part::whole(config), gpu))
}

/// The footprint of a model that answers many requests at once: of `work` the prompt and the patches count, of one request; the
/// tokens that the cache has room for are those of the pages.
///
/// # Errors
/// As [`footprint`].
pub fn batch_footprint(
    config: &Config,
    storage: &dyn Fn(&str) -> Storage,
    options: &LoadOptions,
    work: &Workload,
    batch: &BatchOptions,
    gpu: &Gpu,
) -> Result<Footprint> {
    part_footprint(config, storage, options, work, Some(batch), (&Part::whole(config), gpu))
}

/// The footprint of a part of a model on its device: for one answer, or with `batch` for many.
///
/// # Errors
/// As [`footprint`].
pub fn part_footprint(
    config: &Config,
    storage: &dyn Fn(&str) -> Storage,
    options: &LoadOptions,
    work: &Workload,
    batch: Option<&BatchOptions>,
    (part, gpu): (&Part, &Gpu),
) -> Result<Footprint> {
    // the most rows that come from another device at a time: the last one sends those alone whose next token is wanted
    let arriving = match (part.stages, part.is_first) {
        _ if part.share[1] > 1 => 0, // parts are read where they are
        (0 | 1, _) => 0,
        (_, true) => batch.map_or(1, |batch| batch.max_sequences),
        (stages, false) => {
            micro_batch(work.prompt, stages).min(options.tokens_per_pass)
                + batch.map_or(0, |batch| batch.max_sequences)
        }
    };
    let hidden = config.text.hidden_size;
    let slots = Link::slot_bytes(arriving * hidden * size_of::<f32>());
    let streaming = if layers_pass(config, options) { gpu.beside_streaming } else { 0 };
    let beside = gpu.beside_pool + streaming + slots;
    let pool = Rehearsal::within(gpu.memory.saturating_sub(beside));
    let table = Table::built_in(gpu.capability)?;
    let mut walk = Walk {
        pool,
        table,
        gpu: *gpu,
        config,
        storage,
        options,
        part,
        weights: Vec::new(),
        stacks: Vec::new(),
        host: 0,
    };
    walk.load_text()?;
    walk.load_vision()?;
    let passes_through = !walk.stacks.is_empty() || options.host_embedding;
    if passes_through {
        walk.pool.trim()?;
    }
    let weights = walk.pool.statistics().live;
    let cache = walk.cache(batch.map_or(work.context, |batch| batch.pages * PAGE))?;
    let cache_bytes = walk.pool.statistics().live - weights;
    let live = match batch {
        None => walk.answer(work)?,
        Some(batch) => {
            let graphs = walk.answers(work, batch)?;
            let live = walk.pool.statistics().peak_live;
            drop(walk.pool.take_on(SERVICE, graphs)?);
            live
        }
    };
    let books = walk.pool.statistics();
    if books.found.trimmed > 0 {
        // It fits only if the driver takes back every segment that the pool returns meanwhile. A driver's pool keeps parts.
        let (device, requested) = ("the memory limit".to_owned(), books.peak_live);
        return Err(Error::OutOfMemory { device, requested, free: 0, total: gpu.memory });
    }
    drop(cache);
    Ok(Footprint { weights, cache: cache_bytes, live, peak: books.peak_reserved + beside, host: walk.host })
}

/// Whether some layers pass through the GPU from host memory.
fn layers_pass(config: &Config, options: &LoadOptions) -> bool {
    options.gpu_layers.is_some_and(|resident| resident < config.text.num_hidden_layers)
}

struct Walk<'a> {
    pool: Rehearsal,
    table: Table,
    gpu: Gpu,
    config: &'a Config,
    storage: &'a dyn Fn(&str) -> Storage,
    options: &'a LoadOptions,
    part: &'a Part,
    /// The weights that stay on the device.
    weights: Vec<Rehearsed>,
    /// For each stack of blocks that pass through the device, the bytes of a place, and its two places.
    stacks: Vec<(usize, Vec<Rehearsed>)>,
    host: usize,
}

/// A linear map: the rows of its matrix and their storage, from the top, and its width.
struct Linear {
    parts: Vec<(usize, Storage)>,
    out: usize,
    width: usize,
}

impl Linear {
    /// The bytes of the tensors that a part is made of.
    fn part_bytes(&self, (rows, storage): (usize, Storage)) -> Result<Vec<usize>> {
        match storage {
            Storage::Float(dtype) => Ok(vec![rows * self.width * dtype.size()]),
            Storage::Stored(format) | Storage::Quantized(format) => {
                QuantTensor::part_bytes(format, [rows, self.width]).map(Into::into)
            }
        }
    }

    /// The bytes of all its tensors.
    fn tensors(&self) -> Result<Vec<usize>> {
        let parts = self.parts.iter().map(|&part| self.part_bytes(part)).collect::<Result<Vec<_>>>()?;
        Ok(parts.concat())
    }
}

/// A thing that is loaded.
#[derive(Clone, Copy)]
enum Piece<'a> {
    Matrix(&'a Linear),
    Vector(usize),
}

impl Piece<'_> {
    /// The bytes of its tensors.
    fn tensors(&self) -> Result<Vec<usize>> {
        match self {
            Self::Matrix(linear) => linear.tensors(),
            Self::Vector(len) => Ok(vec![len * size_of::<f32>()]),
        }
    }
}

impl Walk<'_> {
    fn floats(&self, count: usize) -> Result<Rehearsed> {
        self.pool.take(count * size_of::<f32>())
    }

    /// Matrices of these names and rows, of equal width, as one; neighbours that are stored alike are one tensor.
    fn linear(&self, matrices: &[(String, usize)], width: usize) -> Linear {
        let mut parts: Vec<(usize, Storage)> = Vec::new();
        for (name, rows) in matrices {
            let storage = (self.storage)(name);
            match parts.last_mut() {
                Some((above, same)) if *same == storage => *above += rows,
                _ => parts.push((*rows, storage)),
            }
        }
        Linear { parts, out: matrices.iter().map(|(_, rows)| rows).sum(), width }
    }

    /// Loads a matrix.
    fn matrix(&self, linear: &Linear, to: &mut Vec<Rehearsed>) -> Result<()> {
        for &(rows, storage) in &linear.parts {
            for bytes in linear.part_bytes((rows, storage))? {
                to.push(self.pool.take(bytes)?);
            }
            if let Storage::Quantized(_) = storage {
                let rows = (QUANTIZE_PIECE / linear.width.max(1)).clamp(1, rows.max(1));
                let _values = self.floats(rows * linear.width)?;
                let piece = linear.part_bytes((rows, storage))?;
                let _quants: Vec<_> =
                    piece.into_iter().map(|bytes| self.pool.take(bytes)).collect::<Result<_>>()?;
            }
        }
        Ok(())
    }

    fn text_linears(&self, layer: usize) -> [Linear; 4] {
        let text = &self.config.text;
        let (hidden, mlp, head) = (text.hidden_size, text.intermediate_size, text.head_dim);
        let of = self.part.share[1];
        let (q, kv) = (text.num_attention_heads / of * head, text.num_key_value_heads / of * head);
        let mlp = mlp / of;
        let name = |part: &str, rows| (format!("model.language_model.layers.{layer}.{part}.weight"), rows);
        let qkv = [name("self_attn.q_proj", q), name("self_attn.k_proj", kv), name("self_attn.v_proj", kv)];
        [
            self.linear(&qkv, hidden),
            self.linear(&[name("self_attn.o_proj", hidden)], q),
            self.linear(&[name("mlp.gate_proj", mlp), name("mlp.up_proj", mlp)], hidden),
            self.linear(&[name("mlp.down_proj", hidden)], mlp),
        ]
    }

    fn load_text(&mut self) -> Result<()> {
        let config = self.config;
        let (hidden, vocab, head) = (config.text.hidden_size, config.text.vocab_size, config.text.head_dim);
        let mut weights = Vec::new();
        if self.part.is_first {
            let linear = self.linear(&[(EMBEDDING.into(), vocab)], hidden);
            let mut table = Vec::new();
            self.matrix(&linear, &mut table)?;
            match self.options.host_embedding {
                true => self.host += linear.tensors()?.iter().sum::<usize>(),
                false => weights.append(&mut table),
            }
        }
        let own = self.part.vocabulary(config);
        match config.tie_word_embeddings {
            true if self.part.is_first => {} // a part of the embedding
            true => self.matrix(&self.linear(&[(EMBEDDING.into(), own)], hidden), &mut weights)?,
            false => self.matrix(&self.linear(&[(LM_HEAD.into(), own)], hidden), &mut weights)?,
        }
        let layers = config.text.num_hidden_layers;
        let resident = self.options.gpu_layers.unwrap_or(layers).min(layers);
        for layer in self.part.layers.clone() {
            let linears = self.text_linears(layer);
            let norms = [head, head, hidden, hidden].map(Piece::Vector);
            let pieces: Vec<_> = linears.iter().map(Piece::Matrix).chain(norms).collect();
            self.block(&pieces, layer == resident, layer >= resident, &mut weights)?;
        }
        weights.push(self.floats(hidden)?);
        self.weights.append(&mut weights);
        Ok(())
    }

    /// Loads one thing after another.
    fn load(&self, pieces: &[Piece], to: &mut Vec<Rehearsed>) -> Result<()> {
        pieces.iter().try_for_each(|piece| match piece {
            Piece::Matrix(linear) => self.matrix(linear, to),
            Piece::Vector(len) => self.floats(*len).map(|vector| to.push(vector)),
        })
    }

    /// Loads a block; the first of those that pass through makes the places for all.
    fn block(
        &mut self,
        pieces: &[Piece],
        first_streamed: bool,
        streamed: bool,
        weights: &mut Vec<Rehearsed>,
    ) -> Result<()> {
        let mut block = Vec::new();
        self.load(pieces, &mut block)?;
        if !streamed {
            weights.append(&mut block);
            return Ok(());
        }
        let tensors = pieces.iter().map(Piece::tensors).collect::<Result<Vec<_>>>()?.concat();
        let bytes = tensors.into_iter().map(|tensor| tensor.next_multiple_of(ALIGNMENT)).sum();
        self.host += bytes;
        if first_streamed {
            self.stacks.push((0, Vec::new()));
        }
        if let Some((held, places)) = self.stacks.last_mut().filter(|(held, _)| *held < bytes) {
            let larger = [self.pool.take(bytes)?, self.pool.take(bytes)?];
            (*held, *places) = (bytes, larger.into());
        }
        Ok(())
    }

    fn vision_linears(&self, block: usize) -> [Linear; 4] {
        let vision = &self.config.vision;
        let (hidden, mlp) = (vision.hidden_size, vision.intermediate_size);
        let linear = |part: &str, rows, width| {
            self.linear(&[(format!("model.visual.blocks.{block}.{part}.weight"), rows)], width)
        };
        [
            linear("attn.qkv", 3 * hidden, hidden),
            linear("attn.proj", hidden, hidden),
            linear("mlp.linear_fc1", mlp, hidden),
            linear("mlp.linear_fc2", hidden, mlp),
        ]
    }

    fn merger_linears(&self, name: &str) -> [Linear; 2] {
        let vision = &self.config.vision;
        let joined = vision.hidden_size * vision.merge_len();
        let linear =
            |part: &str, rows| self.linear(&[(format!("model.visual.{name}.{part}.weight"), rows)], joined);
        [linear("linear_fc1", joined), linear("linear_fc2", vision.out_hidden_size)]
    }

    fn patch_embed(&self) -> Linear {
        let vision = &self.config.vision;
        self.linear(
            &[("model.visual.patch_embed.proj.weight".into(), vision.hidden_size)],
            vision.patch_len(),
        )
    }

    /// The mergers' names in the order of their use.
    fn mergers(vision: &VisionConfig) -> Vec<String> {
        let deepstack = 0..vision.deepstack_visual_indexes.len();
        deepstack.map(|i| format!("deepstack_merger_list.{i}")).chain(["merger".into()]).collect()
    }

    fn load_vision(&mut self) -> Result<()> {
        let vision = &self.config.vision;
        if self.options.vision == VisionPlace::Cpu || !self.part.has_vision {
            return Ok(());
        }
        let streamed = self.options.vision == VisionPlace::Streamed;
        let hidden = vision.hidden_size;
        let mut weights = Vec::new();
        for block in 0..vision.depth {
            use Piece::{Matrix, Vector};
            let [qkv, proj, fc1, fc2] = &self.vision_linears(block);
            let linear = |linear| [Matrix(linear), Vector(linear.out)];
            let norm = || [Vector(hidden), Vector(hidden)];
            let pieces = [norm(), linear(qkv), linear(proj), norm(), linear(fc1), linear(fc2)].concat();
            self.block(&pieces, block == 0, streamed, &mut weights)?;
        }
        for merger in Self::mergers(vision) {
            let loaded = self.merger(&merger)?;
            if streamed {
                self.host += self.merger_tensors(&merger)?.iter().sum::<usize>();
            } else {
                weights.extend(loaded);
            }
        }
        self.matrix(&self.patch_embed(), &mut weights)?;
        weights.push(self.floats(hidden)?);
        self.weights.append(&mut weights);
        Ok(())
    }

    /// Loads a merger.
    fn merger(&self, name: &str) -> Result<Vec<Rehearsed>> {
        let mut weights = Vec::new();
        let linears = self.merger_linears(name);
        let [norm, mlp] = self.merger_pieces(name, &linears);
        self.load(&mlp, &mut weights)?;
        self.load(&norm, &mut weights)?;
        Ok(weights)
    }

    /// A merger's norm, and its linear maps.
    fn merger_pieces<'a>(&self, name: &str, [fc1, fc2]: &'a [Linear; 2]) -> [Vec<Piece<'a>>; 2] {
        use Piece::{Matrix, Vector};
        let norm = if name == "merger" { self.config.vision.hidden_size } else { fc1.width };
        let mlp = vec![Matrix(fc1), Vector(fc1.out), Matrix(fc2), Vector(fc2.out)];
        [vec![Vector(norm), Vector(norm)], mlp]
    }

    /// The bytes of a merger's tensors, in the order in which they pass through.
    fn merger_tensors(&self, name: &str) -> Result<Vec<usize>> {
        let linears = self.merger_linears(name);
        let pieces = self.merger_pieces(name, &linears);
        Ok(pieces.iter().flatten().map(Piece::tensors).collect::<Result<Vec<_>>>()?.concat())
    }

    fn cache(&self, context: usize) -> Result<Vec<Rehearsed>> {
        let text = &self.config.text;
        let dims = [context, text.num_key_value_heads / self.part.share[1], text.head_dim];
        let mut cache = Vec::new();
        for _ in 0..2 * self.part.layers.len() {
            for bytes in KvTensor::part_bytes(self.options.cache, dims) {
                cache.push(self.pool.take(bytes)?);
            }
        }
        Ok(cache)
    }

    /// The temporaries of a product whose result is allocated already: x with its norm applied, x in 8 bits, and the sums
    /// before an activation that is a separate kernel.
    fn product(&self, rows: usize, linear: &Linear, normed: bool, activation: Activation) -> Result<()> {
        let most = rows_per_launch(2 * linear.out * linear.width);
        let rows = rows.min(most);
        let is_float = |part: &(usize, Storage)| matches!(part.1, Storage::Float(_));
        let plain = linear.parts.iter().all(is_float);
        let unquantized = rows == 1 || linear.parts.iter().any(is_float);
        let _normed = if normed && unquantized { Some(self.floats(rows * linear.width)?) } else { None };
        let fused = match activation {
            Activation::Identity => true,
            Activation::GeluErf | Activation::SwiGlu => false,
            _ => !plain && linear.parts.len() == 1,
        };
        let _sums = if fused { None } else { Some(self.floats(rows * linear.out)?) };
        let _rows = match plain {
            true => None,
            false => Some(self.quant_rows(rows, linear.width)?),
        };
        for part in &linear.parts {
            // the columns of one part among others' are copied to their place
            let _own = if linear.parts.len() > 1 { Some(self.floats(rows * part.0)?) } else { None };
            if let (out, Storage::Float(dtype)) = *part {
                let size = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
                let dims = [size(rows), size(out), size(linear.width)];
                let types = if dtype == DType::F16 { Types::Mixed } else { Types::F32 };
                let query = Query { types, ..Query::plain(Layouts::Nt, dims, self.gpu.multiprocessors) };
                let _partial = self.pool.take(scratch_bytes(&self.table, &query))?;
            }
        }
        Ok(())
    }

    fn quant_rows(&self, rows: usize, width: usize) -> Result<[Rehearsed; 2]> {
        let [quants, scales] = QuantRows::part_bytes(rows, width);
        Ok([self.pool.take(quants)?, self.pool.take(scales)?])
    }

    /// The temporaries of fc2(silu(gate)·up) where both matrices are quantised: 8-bit rows, and for few rows the product.
    fn gated(&self, rows: usize, [fc1, fc2]: [&Linear; 2]) -> Result<()> {
        let piece = even_pieces(rows, rows_per_launch(2 * fc1.out * fc1.width).min(MLP_ROWS));
        let (rows, rest) = (rows.min(piece), rows % 128);
        let few = rows.min(unfused_gate_rows(fc1.out, self.gpu.multiprocessors));
        let apart = [
            self.quant_rows(few, fc1.width)?,
            [self.floats(few * fc1.out)?, self.floats(few * fc2.width)?],
            self.quant_rows(few, fc2.width)?,
        ];
        drop(apart);
        let _rows = [self.quant_rows(rows, fc1.width)?, self.quant_rows(rows, fc2.width)?];
        // the rows after the last whole tile, if they are few
        if rows > few && (1..=64).contains(&rest) {
            let _apart = [self.floats(rest * fc1.out)?, self.floats(rest * fc2.width)?];
        }
        Ok(())
    }

    /// y = fc2(act(fc1(x)))
    fn mlp(
        &self,
        rows: usize,
        [fc1, fc2]: [&Linear; 2],
        normed: bool,
        activation: Activation,
    ) -> Result<Rehearsed> {
        let y = self.floats(rows * fc2.out)?;
        let quantized =
            |linear: &Linear| matches!(linear.parts[..], [(_, Storage::Stored(_) | Storage::Quantized(_))]);
        if rows > 1 && activation == Activation::SwiGlu && quantized(fc1) && quantized(fc2) {
            self.gated(rows, [fc1, fc2])?;
            return Ok(y);
        }
        let rows = rows.min(MLP_ROWS);
        let inner = self.floats(rows * fc2.width)?;
        self.product(rows, fc1, normed, activation)?;
        self.product(rows, fc2, false, Activation::Identity)?;
        drop(inner);
        Ok(y)
    }

    /// A transformer block of `x`, which attends to `kv_len` keys in one piece. With `kv`, the width of keys and values of its own,
    /// its norms are LayerNorms.
    fn transformer(
        &self,
        rows: usize,
        x: Rehearsed,
        [qkv, out, fc1, fc2]: &[Linear; 4],
        kv: Option<usize>,
        kv_len: usize,
        activation: Activation,
    ) -> Result<Rehearsed> {
        let hidden = out.out;
        let own = kv.is_some();
        // the last sum's part, which others may still read
        let _read = if !own && self.part.share[1] > 1 { Some(self.floats(rows * hidden)?) } else { None };
        let layer_normed = || if own { self.floats(rows * hidden).map(Some) } else { Ok(None) };
        let normed = layer_normed()?;
        let keys =
            kv.map(|width| Ok((self.floats(rows * width)?, self.floats(rows * width)?))).transpose()?;
        let projected = self.floats(rows * qkv.out)?;
        self.product(rows, qkv, !own, Activation::Identity)?;
        let queries = self.floats(rows * out.width)?;
        drop(projected);
        let attended = self.floats(rows * out.width)?;
        let head_dim = if own { self.config.vision.head_dim() } else { self.config.text.head_dim };
        let (heads, sms) = (out.width / head_dim.max(1), self.gpu.multiprocessors);
        drop(self.pool.take(prefill_partial_bytes(heads, rows, kv_len, head_dim, sms))?);
        drop(queries);
        let h = self.floats(rows * hidden)?;
        self.product(rows, out, false, Activation::Identity)?;
        drop((attended, keys, normed));
        let h = if own { h } else { self.summed(rows * hidden, h)? };
        let normed = layer_normed()?;
        let y = self.mlp(rows, [fc1, fc2], !own, activation)?;
        drop((normed, h, x));
        if own { Ok(y) } else { self.summed(rows * hidden, y) }
    }

    /// A part of a sum over the devices that share each layer, and the sum.
    fn summed(&self, count: usize, part: Rehearsed) -> Result<Rehearsed> {
        let of = self.part.share[1];
        if of == 1 {
            return Ok(part);
        }
        let first = self.floats(count)?;
        (2..of).try_fold(first, |_sum, _| self.floats(count))
    }

    /// How many layers' outputs get a picture's features.
    fn deepstack(&self, seen: &[Rehearsed], patches: usize) -> usize {
        match self.part.share {
            [_, 1] => seen.len().saturating_sub(1),
            _ if patches == 0 => 0,
            _ => self.config.vision.deepstack_visual_indexes.len(),
        }
    }

    /// Whether decoding is captured: copies of layers are no part of a graph.
    fn is_captured(&self) -> bool {
        !layers_pass(self.config, self.options)
    }

    /// A picture's embeddings.
    fn see(&self, patches: usize) -> Result<Vec<Rehearsed>> {
        let vision = &self.config.vision;
        let (tokens, hidden) = (patches / vision.merge_len().max(1), self.config.text.hidden_size);
        let outputs = 1 + vision.deepstack_visual_indexes.len();
        if self.options.vision == VisionPlace::Cpu || !self.part.has_vision {
            return (0..outputs).map(|_| self.floats(tokens * hidden)).collect();
        }
        let half = vision.head_dim() / 2;
        let _angles = [self.floats(patches * half)?, self.floats(patches * half)?, self.floats(2)?];
        let values = self.floats(patches * vision.patch_len())?;
        let embedded = self.floats(patches * vision.hidden_size)?;
        self.product(patches, &self.patch_embed(), false, Activation::Identity)?;
        drop(values);
        let positions = self.floats(patches * vision.hidden_size)?;
        let mut h = self.floats(patches * vision.hidden_size)?;
        drop(positions);
        drop(embedded);
        let mut found = Vec::new();
        let names = Self::mergers(vision);
        for block in 0..vision.depth {
            let linears = self.vision_linears(block);
            h = self.transformer(
                patches,
                h,
                &linears,
                Some(vision.hidden_size),
                patches,
                Activation::GeluTanh,
            )?;
            if let Some(i) = vision.deepstack_visual_indexes.iter().position(|&at| at == block) {
                found.push(self.merge(tokens, &names[i])?);
            }
        }
        found.push(self.merge(tokens, names.last().map_or("merger", String::as_str))?);
        Ok(found)
    }

    fn merge(&self, tokens: usize, name: &str) -> Result<Rehearsed> {
        let linears = self.merger_linears(name);
        let _passing = match self.options.vision {
            VisionPlace::Streamed => {
                self.merger_tensors(name)?.into_iter().map(|bytes| self.pool.take(bytes)).collect()
            }
            _ => Ok(Vec::new()),
        }?;
        let [fc1, fc2] = &linears;
        let _normed = self.floats(tokens * fc1.width)?;
        self.mlp(tokens, [fc1, fc2], false, Activation::GeluErf)
    }

    /// A picture and steps of many requests. Gives the bytes of the graphs that are kept.
    fn answers(&self, work: &Workload, batch: &BatchOptions) -> Result<usize> {
        let _kept = if work.patches > 0 { Some(self.pool.take(batch.image_bytes)?) } else { None };
        let seen = self.seen(work)?;
        let (rows, last) = (self.options.tokens_per_pass.max(1), batch.max_sequences);
        let rows =
            rows.min(work.prompt.saturating_mul(last)).max(batch.prompt_tokens.min(work.prompt) + last);
        let rows = match self.part.stages {
            0 | 1 => rows,
            stages => rows.min(micro_batch(rows, stages) + last),
        };
        let on_its_way = self.on_its_way(work)?;
        self.pass(rows, last, batch.pages, self.deepstack(&seen, work.patches))?;
        drop((seen, on_its_way));
        let one = self.with(Rehearsal::new());
        one.pass(last, last, batch.pages, 0)?;
        let captures = batch.graph && self.is_captured();
        let bytes = one.pool.statistics().peak_live.div_ceil(last.max(1)) * batch.captured_rows();
        Ok(if captures { bytes + GRAPH_POOL } else { 0 })
    }

    /// A picture between two blocks of the tower, beside a pass.
    fn on_its_way(&self, work: &Workload) -> Result<Vec<Rehearsed>> {
        let vision = &self.config.vision;
        if work.patches == 0 || self.options.vision == VisionPlace::Cpu || !self.part.has_vision {
            return Ok(Vec::new());
        }
        let half = vision.head_dim() / 2;
        let counts = [work.patches * half, work.patches * half, 2, work.patches * vision.hidden_size];
        counts.into_iter().map(|count| self.floats(count)).collect()
    }

    /// The same model with another pool.
    fn with(&self, pool: Rehearsal) -> Walk<'_> {
        Walk { pool, table: self.table.clone(), weights: Vec::new(), stacks: Vec::new(), ..*self }
    }

    /// The memory of a graph that passes so many tokens, which is its own until it is dropped.
    fn captured(&self, tokens: usize) -> Result<Rehearsal> {
        self.pool.settle()?;
        let graph = self.pool.graph(SERVICE);
        self.with(graph.clone()).pass(tokens, tokens, 0, 0)?;
        Ok(graph)
    }

    /// A picture's embeddings where they are needed: made here if the tower is here, and kept if tokens come here.
    fn seen(&self, work: &Workload) -> Result<Vec<Rehearsed>> {
        if work.patches == 0 || !(self.part.has_vision || self.part.is_first) {
            return Ok(Vec::new());
        }
        let seen = self.see(work.patches)?;
        Ok(if self.part.is_first { seen } else { Vec::new() })
    }

    /// Rows of several sequences, of which `wanted` get a next token; so many layers' outputs get a picture's features.
    fn pass(&self, rows: usize, wanted: usize, pages: usize, deepstack: usize) -> Result<()> {
        let text = &self.config.text;
        let (hidden, half) = (text.hidden_size, text.head_dim / 2);
        let _inputs = [self.floats(3 * rows + wanted + pages)?, self.floats(2 * rows * half)?];
        let mut h = self.floats(rows * hidden)?;
        for layer in self.part.layers.clone() {
            // partial results of attention, which is over before the products that follow
            let heads = text.num_attention_heads / self.part.share[1];
            drop(self.floats(wanted * heads * MOST_PARTIAL * (text.head_dim + 4))?);
            h = self.transformer(rows, h, &self.text_linears(layer), None, 0, Activation::SwiGlu)?;
            if layer < deepstack {
                let features = self.floats(rows * hidden)?;
                let sum = self.floats(rows * hidden)?;
                drop(features);
                h = sum;
            }
        }
        let normed = self.floats(rows * hidden)?;
        drop(h);
        let _wanted = self.floats(wanted * hidden)?;
        drop(normed);
        let _logits = self.logits(wanted)?;
        let _best = [self.floats(wanted)?, self.floats(wanted)?];
        Ok(())
    }

    /// The logits of so many rows, where they are wanted, or the own part of them.
    fn logits(&self, rows: usize) -> Result<Rehearsed> {
        let own = self.floats(rows * self.part.vocabulary(self.config))?;
        let all = self.config.text.vocab_size;
        match self.part.share {
            [0, of] if of > 1 => self.floats(rows * all),
            _ => Ok(own),
        }
    }

    /// A picture, the prompt, and a token. Gives the most that is live outside graphs.
    fn answer(&self, work: &Workload) -> Result<usize> {
        let text = &self.config.text;
        let (hidden, half) = (text.hidden_size, text.head_dim / 2);
        let seen = self.seen(work)?;
        let deepstack = self.deepstack(&seen, work.patches);
        let _angles = [self.floats(work.prompt * half)?, self.floats(work.prompt * half)?];
        let mut last = None;
        let most = micro_batch(work.prompt, self.part.stages).min(self.options.tokens_per_pass).max(1);
        for start in (0..work.prompt).step_by(most) {
            let rows = most.min(work.prompt - start);
            let _ids = self.floats(rows)?;
            let _at = self.floats(2)?;
            let mut h = self.floats(rows * hidden)?;
            for layer in self.part.layers.clone() {
                h = self.transformer(
                    rows,
                    h,
                    &self.text_linears(layer),
                    None,
                    start + rows,
                    Activation::SwiGlu,
                )?;
                if layer < deepstack {
                    let features = self.floats(rows * hidden)?;
                    let sum = self.floats(rows * hidden)?;
                    drop(features);
                    h = sum;
                }
            }
            let normed = self.floats(rows * hidden)?;
            drop(h);
            last = Some(normed);
        }
        let logits = self.logits(1)?;
        drop((seen, last));
        let _decoding =
            [self.floats(ANGLES_AHEAD as usize * half)?, self.floats(ANGLES_AHEAD as usize * half)?];
        let next = self.logits(1)?;
        drop((logits, next));
        let live = self.pool.statistics().peak_live;
        if self.is_captured() {
            // one for each token, and one that checks guesses, whether there will be any or not
            let _graphs = [self.captured(1)?, self.captured(CHECKED)?];
        }
        Ok(live)
    }
}

/// Partial results of attention for each query and head, at most: as many splits.
const MOST_PARTIAL: usize = 64;
/// A graph that decodes has a pool of its own for the activations of a token, whose memory is allocated on another stream.
const GRAPH_POOL: usize = 4 << 20;
/// The number of that stream.
const SERVICE: u32 = 1000;
/// Tensors of a block that passes through begin at multiples of this.
const ALIGNMENT: usize = 256;
