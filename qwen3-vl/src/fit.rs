//! How to load a model so that it fits a GPU: the first of a list of ways whose planned memory is within a limit.
//!
//! The ways are in the order of their cost to the user. Ways that leave the answer as it is come before ways that round more,
//! and fast ones before slow ones.

use super::batch::{BatchOptions, PAGE};
use super::config::Config;
use super::footprint::{Footprint, Gpu, Storage, Workload, batch_footprint, footprint};
use super::model::{LoadOptions, Matrices};
use super::vision::VisionPlace;
use pascaline::kv::KvFormat;
use pascaline::quant::Format;
use pascaline::{Error, Result};

/// The options that were given; `None` is open.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// The type of matrices: in floating point or quantised.
    pub matrices: Option<Matrices>,
    /// The cache's format.
    pub cache: Option<KvFormat>,
    /// Layers that stay on the GPU.
    pub gpu_layers: Option<usize>,
    /// Where the vision tower is.
    pub vision: Option<VisionPlace>,
    /// The type of its matrices.
    pub vision_matrices: Option<Matrices>,
}

impl Asked {
    /// `usual` with what has been asked for.
    pub fn apply(&self, usual: LoadOptions) -> LoadOptions {
        let options = self.matrices.map_or(usual, |matrices| matrices.apply(usual));
        LoadOptions {
            cache: self.cache.unwrap_or(usual.cache),
            gpu_layers: self.gpu_layers,
            vision: self.vision.unwrap_or(usual.vision),
            vision_matrices: self.vision_matrices,
            ..options
        }
    }
}

/// A way to load that fits.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// How to load.
    pub options: LoadOptions,
    /// The memory that it takes.
    pub footprint: Footprint,
}

impl Choice {
    /// The most of the GPU's memory that is in use at a time, the context not counted.
    pub fn peak(&self) -> usize {
        self.footprint.peak
    }
}

/// A model whose memory is planned.
#[derive(Clone, Copy)]
pub struct Model<'a> {
    /// Its sizes.
    pub config: &'a Config,
    /// Whether its matrices are quantised in its files, and stay so if nothing is asked for.
    pub is_quantized: bool,
    /// The storage of the matrix with a published name.
    pub storage: &'a dyn Fn(&LoadOptions, &str) -> Storage,
}

impl Model<'_> {
    /// The memory of one way to load.
    ///
    /// # Errors
    /// As [`footprint`].
    pub fn plan(&self, options: LoadOptions, work: &Workload, gpu: &Gpu) -> Result<Choice> {
        let storage = |name: &str| (self.storage)(&options, name);
        Ok(Choice { options, footprint: footprint(self.config, &storage, &options, work, gpu)? })
    }

    /// As many pages as there is room for within `limit` bytes of the GPU's memory, at most those of `batch`, and the memory that is
    /// taken then; `options` is how the model is loaded.
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
        let (storage, limited) = (|name: &str| (self.storage)(options, name), Gpu { memory: limit, ..*gpu });
        let plan = |pages| {
            let batch = BatchOptions { pages, ..batch };
            match batch_footprint(self.config, &storage, options, work, &batch, &limited) {
                Ok(footprint) => Ok(Some((batch, footprint))),
                Err(Error::OutOfMemory { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let least = work.context.div_ceil(PAGE).max(1);
        let Some(mut fits) = plan(least)? else {
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
            match plan(pages)? {
                Some(found) => (fits, from) = (found, pages + 1),
                None => to = pages,
            }
        }
        Ok(fits)
    }

    /// The first way to load that takes no more than `limit` bytes of the GPU's memory; `usual` is what is taken where nothing
    /// is asked for and everything fits.
    ///
    /// # Errors
    /// [`Error::Unsupported`] that says how much the least takes, if nothing fits.
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
            if let Some(choice) = plan(options)? {
                return Ok(choice);
            }
        }
        // The layers that there is room for, of the way that takes least.
        let smallest = ways.last().copied().unwrap_or(usual);
        let (mut fits, mut from) = (None, 0);
        let mut to = if asked.gpu_layers.is_some() { 0 } else { self.config.text.num_hidden_layers };
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
        let least = LoadOptions { gpu_layers: asked.gpu_layers.or(Some(0)), ..smallest };
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

    /// All that may be tried with every layer on the GPU, the best first.
    pub(super) fn ways(&self, usual: LoadOptions, asked: &Asked) -> Vec<LoadOptions> {
        let Asked { gpu_layers, vision_matrices, .. } = *asked;
        let usual = LoadOptions { gpu_layers, vision_matrices, ..usual };
        let matrices: Vec<LoadOptions> = match asked.matrices {
            Some(matrices) => vec![matrices.apply(usual)],
            None if self.is_quantized => vec![usual],
            None => {
                let formats = [Format::Q8_0, Format::Q6K, Format::Q4K].map(Matrices::Quantized);
                [usual].into_iter().chain(formats.map(|matrices| matrices.apply(usual))).collect()
            }
        };
        // The same answers with embedding rows from host memory, which costs next to no time, and with a tower that passes through;
        // so these come before a cache that rounds. A tied embedding is the output projection too, and stays.
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
                if !ways.contains(&way) {
                    ways.push(way);
                }
            }
        }
        ways
    }
}
