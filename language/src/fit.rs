//! Finds load options with which a model fits a GPU: the first of a list of candidates whose planned memory is within a
//! limit.
//!
//! The candidates are in the order of their cost to the user: those that keep the answer bit for bit before those that
//! round more, and fast ones before slow ones.

use super::adapter::AdapterBytes;
use super::footprint::{Footprint, Gpu, Planned, Workload};
use super::options::{BatchOptions, ExpertPlacement, LoadOptions, Matrices, Storage};
use super::seam::Config;
use super::seam::VisionPlace;
use super::spec::FeedForwardSpec;
use pascaline::kv::KvFormat;
use pascaline::ops::PAGE;
use pascaline::quant::Format;
use pascaline::{Error, Result};

/// The options that the user gave; `None` is open.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// The type of matrices: in floating point or quantised.
    pub matrices: Option<Matrices>,
    /// The cache's format.
    pub cache: Option<KvFormat>,
    /// Layers that stay on the GPU.
    pub gpu_layers: Option<usize>,
    /// Where the experts of a mixture are. [`Mixed`](ExpertPlacement::Mixed), or `None`, is on the GPU if they fit, and otherwise as many
    /// of each layer as fit; the others are as it says.
    pub experts: Option<ExpertPlacement>,
    /// The most bytes of the GPU's memory for experts, if the others are in host memory. `None`: with a given place none, otherwise all that
    /// is left.
    pub expert_cache: Option<usize>,
    /// Where the vision tower is.
    pub vision: Option<VisionPlace>,
    /// The type of its matrices.
    pub vision_matrices: Option<Matrices>,
}

impl Asked {
    /// `usual` with the options that were given.
    pub fn apply(&self, usual: LoadOptions) -> LoadOptions {
        let options = self.matrices.map_or(usual, |matrices| matrices.apply(usual));
        LoadOptions {
            cache: self.cache.unwrap_or(usual.cache),
            gpu_layers: self.gpu_layers,
            experts: self.experts_first(),
            vision: self.vision.unwrap_or(usual.vision),
            vision_matrices: self.vision_matrices,
            ..options
        }
    }

    /// The place that is tried first.
    fn experts_first(&self) -> ExpertPlacement {
        match self.experts {
            None | Some(ExpertPlacement::Mixed { .. }) => ExpertPlacement::Gpu,
            Some(given) => given,
        }
    }
}

/// Load options that fit.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// How to load.
    pub options: LoadOptions,
    /// The memory that it takes.
    pub footprint: Footprint,
}

impl Choice {
    /// Peak use of the GPU's memory in bytes, without the context.
    pub fn peak(&self) -> usize {
        self.footprint.peak
    }
}

/// A model whose memory is planned.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Its sizes.
    pub config: &'a Config,
    /// Whether its matrices are quantised in its files, and stay so if no type is given.
    pub is_quantized: bool,
    /// The storage of the matrix with a published name.
    pub storage: &'a dyn Fn(&LoadOptions, &str) -> Storage,
    /// Bytes of adapters beside the matrices.
    pub adapter: &'a dyn Fn(&LoadOptions) -> AdapterBytes,
}

/// The part of a GPU's memory that pages may take, beyond those of one request. Graphs of many rows are not in the plan, which was
/// short by 8 MiB of 79 GiB on an H100 whose 64 requests came at once, and other programs, such as a desktop, take memory later.
pub(super) fn for_pages(limit: usize) -> usize {
    limit - limit / 50
}

impl Model<'_> {
    /// The planned memory for given load options.
    ///
    /// # Errors
    /// As [`Planned::footprint`].
    pub fn plan(&self, options: LoadOptions, work: &Workload, gpu: &Gpu) -> Result<Choice> {
        let storage = |name: &str| (self.storage)(&options, name);
        let gpu = self.beside_adapter(&options, gpu);
        let planned = Planned { config: self.config, storage: &storage, options: &options };
        Ok(Choice { options, footprint: planned.footprint(work, None, &gpu)? })
    }

    /// A GPU of whose memory an adapter has its part.
    fn beside_adapter(&self, options: &LoadOptions, gpu: &Gpu) -> Gpu {
        Gpu { beside_pool: gpu.beside_pool + (self.adapter)(options).on_one(), ..*gpu }
    }

    /// Plans as many pages as fit within `limit` bytes of the GPU's memory, at most those of `batch`; pages beyond those of one request leave
    /// a part of them free. Returns the number and the memory in use then; `options` is how the model is loaded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no room for the pages of one request of `work.context` tokens.
    pub fn fit_pages(
        &self,
        options: &LoadOptions,
        work: &Workload,
        batch: BatchOptions,
        gpu: &Gpu,
        limit: usize,
    ) -> Result<(BatchOptions, Footprint)> {
        let storage = |name: &str| (self.storage)(options, name);
        let planned = Planned { config: self.config, storage: &storage, options };
        let plan = |pages, limit| {
            let limited = Gpu { memory: limit, ..self.beside_adapter(options, gpu) };
            let batch = BatchOptions { pages, ..batch };
            match planned.footprint(work, Some(&batch), &limited) {
                Ok(footprint) => Ok(Some((batch, footprint))),
                Err(Error::OutOfMemory { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let least = work.context.div_ceil(PAGE).max(1);
        let Some(mut fits) = plan(least, limit)? else {
            let tokens = work.context;
            return Err(Error::Unsupported {
                op: "fit",
                argument: "memory",
                value: format!("{} MiB", limit >> 20),
                reason: format!("{tokens} tokens of {} requests do not fit", batch.max_sequences),
            });
        };
        let (mut from, mut to) = (least + 1, batch.pages.max(least) + 1);
        while from < to {
            let pages = from + (to - from) / 2;
            match plan(pages, for_pages(limit))? {
                Some(found) => (fits, from) = (found, pages + 1),
                None => to = pages,
            }
        }
        Ok(fits)
    }

    /// The first candidate that takes no more than `limit` bytes of the GPU's memory; `usual` is what is loaded if no
    /// option is given and everything fits.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if nothing fits; it says how much the smallest candidate takes.
    pub fn fit(
        &self,
        usual: LoadOptions,
        asked: &Asked,
        work: &Workload,
        gpu: &Gpu,
        limit: usize,
    ) -> Result<Choice> {
        let limited = Gpu { memory: limit, ..*gpu };
        let plan = |options| match self.plan(options, work, &limited) {
            Err(Error::OutOfMemory { .. }) => Ok(None),
            choice => choice.map(Some),
        };
        let ways = self.ways(usual, asked);
        for &options in &ways {
            if self.exceeds_cache(&options, asked)? {
                continue;
            }
            if let Some(choice) = plan(options)? {
                return Ok(choice);
            }
        }
        if let Some(choice) = self.fit_experts(&ways, asked, &plan)? {
            return Ok(choice);
        }
        // For the candidate that takes least: as many resident layers as there is room for.
        let smallest = ways.last().copied().unwrap_or(usual);
        let (mut fits, mut from) = (None, 0);
        let is_given = asked.gpu_layers.is_some() || self.experts_are_given(asked);
        let mut to = if is_given { 0 } else { self.config.text.num_hidden_layers };
        while from < to {
            let layers = from + (to - from) / 2;
            match plan(LoadOptions { gpu_layers: Some(layers), ..smallest })? {
                Some(choice) => (fits, from) = (Some(choice), layers + 1),
                None => to = layers,
            }
        }
        if let Some(choice) = fits {
            return Ok(choice);
        }
        let least = match is_given {
            true => smallest,
            false => LoadOptions { gpu_layers: Some(0), ..smallest },
        };
        let needed = self.plan(least, work, gpu)?.peak().div_ceil(1 << 20);
        let Workload { context, patches, .. } = work;
        Err(Error::Unsupported {
            op: "fit",
            argument: "memory",
            value: format!("{} MiB", limit >> 20),
            reason: format!(
                "{needed} MiB are needed for a context of {context} tokens and pictures of {patches} patches"
            ),
        })
    }

    /// Whether the place of experts is given, and there are any.
    fn experts_are_given(&self, asked: &Asked) -> bool {
        let given = asked.experts.filter(|given| !matches!(given, ExpertPlacement::Mixed { .. }));
        given.is_some() && self.config.text.experts.is_some()
    }

    /// The first candidate whose experts are in host memory, with as many of each layer as fit on the GPU. Of matrices whose type is
    /// open the smallest: the others' experts would take much host memory.
    fn fit_experts(
        &self,
        ways: &[LoadOptions],
        asked: &Asked,
        plan: &dyn Fn(LoadOptions) -> Result<Option<Choice>>,
    ) -> Result<Option<Choice>> {
        let mixed = asked.experts.unwrap_or(ExpertPlacement::AUTO);
        let is_open = matches!(mixed, ExpertPlacement::Mixed { .. }) && asked.gpu_layers.is_none();
        if self.config.text.experts.is_none() || !is_open {
            return Ok(None);
        }
        let matrices = ways.last().map(|way| (way.quantize, way.dtype));
        for way in ways.iter().filter(|way| Some((way.quantize, way.dtype)) == matrices) {
            let way = way.experts(mixed);
            let Some(mut fits) = plan(way)? else { continue };
            let count = self.experts_of_layer();
            let most = match asked.expert_cache {
                Some(bytes) => self.experts_in(&way, bytes)?,
                None => count,
            };
            let most = most.min(count.saturating_sub(1)); // with all of them, they would have been on the GPU
            let (mut from, mut to) = (1, most + 1);
            while from < to {
                let cached_experts = from + (to - from) / 2;
                match plan(LoadOptions { cached_experts, ..way })? {
                    Some(choice) => (fits, from) = (choice, cached_experts + 1),
                    None => to = cached_experts,
                }
            }
            return Ok(Some(fits));
        }
        Ok(None)
    }

    /// Whether all experts would be on the GPU, and are more than may be there.
    fn exceeds_cache(&self, options: &LoadOptions, asked: &Asked) -> Result<bool> {
        let (Some(bytes), ExpertPlacement::Gpu) = (asked.expert_cache, options.experts) else {
            return Ok(false);
        };
        Ok(self.experts_in(options, bytes)? < self.experts_of_layer())
    }

    /// The experts of a layer; 0 of a dense model.
    fn experts_of_layer(&self) -> usize {
        self.config.text.experts.as_ref().map_or(0, |experts| experts.count)
    }

    /// How many experts of each layer take at most so many bytes together.
    fn experts_in(&self, options: &LoadOptions, bytes: usize) -> Result<usize> {
        let (count, mut all) = (self.experts_of_layer(), 0usize);
        for layer in 0..self.config.text.num_hidden_layers {
            let FeedForwardSpec::Experts(spec) = self.config.block(layer).mlp else { continue };
            let (count, width, hidden) = (spec.experts.count, spec.experts.width, spec.hidden);
            let shapes = [[count * width, hidden], [count * width, hidden], [count * hidden, width]];
            for (name, shape) in spec.matrices.iter().zip(shapes) {
                all = all.saturating_add((self.storage)(options, name).bytes(shape)?);
            }
        }
        Ok((bytes / (all / count.max(1)).max(1)).min(count))
    }

    /// All candidates with every layer resident on the GPU, the best first.
    pub(super) fn ways(&self, usual: LoadOptions, asked: &Asked) -> Vec<LoadOptions> {
        let Asked { gpu_layers, vision_matrices, .. } = *asked;
        let usual = LoadOptions { gpu_layers, vision_matrices, experts: asked.experts_first(), ..usual };
        let matrices: Vec<LoadOptions> = match asked.matrices {
            Some(matrices) => vec![matrices.apply(usual)],
            None if self.is_quantized => vec![usual],
            None => {
                let formats = [Format::Q8_0, Format::Q6K, Format::Q4K].map(Matrices::Quantized);
                [usual].into_iter().chain(formats.map(|matrices| matrices.apply(usual))).collect()
            }
        };
        // Embedding rows from host memory and a streamed vision tower give the same answers, so they come before a cache that
        // rounds. A tied embedding is the output projection too, and stays on the GPU.
        let has_head = !self.config.tie_word_embeddings;
        let rest = [
            (false, VisionPlace::Resident, usual.cache),
            (true, VisionPlace::Resident, usual.cache),
            (true, VisionPlace::Streamed, usual.cache),
            (true, VisionPlace::Streamed, KvFormat::F16),
            (true, VisionPlace::Streamed, KvFormat::Q8_0),
        ];
        let mut ways = Vec::new();
        for matrices in matrices {
            for (host_embedding, vision, cache) in rest {
                let way = LoadOptions {
                    host_embedding: usual.host_embedding || (host_embedding && has_head),
                    vision: asked.vision.unwrap_or(vision),
                    cache: asked.cache.unwrap_or(cache),
                    ..matrices
                };
                let cached = asked.expert_cache.filter(|_| way.experts != ExpertPlacement::Gpu);
                let cached = cached.map_or(Ok(0), |bytes| self.experts_in(&way, bytes));
                let way = LoadOptions { cached_experts: cached.unwrap_or(0), ..way }; // an error is the plan's too
                if !ways.contains(&way) {
                    ways.push(way);
                }
            }
        }
        ways
    }
}
