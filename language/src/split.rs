//! Plans how to spread a model over several GPUs so that each part fits its GPU.
//!
//! With a row split each GPU gets an equal part of every layer. Otherwise the layers are split in the ratio of the cards'
//! memory bandwidths, which bound the time of a token; a GPU that would be too full gives layers to the one with the most
//! room left.

use super::fit::{Asked, Model, for_pages};
use super::footprint::{Footprint, Gpu, Places, Planned, Workload};
use super::options::{BatchOptions, LoadOptions};
use super::placement::{SplitMode, in_ratio};
use super::rows;
use pascaline::ops::PAGE;
use pascaline::{Error, Result};

/// One of the GPUs that a model is spread over.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The properties that decide which kernels run.
    pub gpu: Gpu,
    /// Bytes available, without the driver's context.
    pub limit: usize,
    /// Memory bandwidth in bytes per second; only the ratio matters.
    pub speed: f64,
}

/// A split that fits.
#[derive(Clone, Debug)]
pub struct Split {
    /// How to load.
    pub options: LoadOptions,
    /// Whether layers are split between GPUs or within each layer.
    pub mode: SplitMode,
    /// The decoder layers of each GPU, whole or in part.
    pub layers: Vec<usize>,
    /// The GPU that has the vision tower.
    pub vision: usize,
    /// The memory that each part takes.
    pub footprints: Vec<Footprint>,
}

impl Model<'_> {
    /// The memory of each part, whether or not it fits.
    fn footprints(
        &self,
        options: &LoadOptions,
        places: Places,
        work: &Workload,
        batch: Option<&BatchOptions>,
        targets: &[Target],
    ) -> Result<Vec<Footprint>> {
        let storage = |name: &str| (self.storage)(options, name);
        let planned = Planned { config: self.config, storage: &storage, options };
        let (mode, layers, vision) = places;
        let adapters = (self.adapter)(options).on_each(mode, layers, vision);
        let with = |(Target { gpu, .. }, adapters): (&Target, usize)| Gpu {
            memory: usize::MAX,
            beside_pool: gpu.beside_pool + adapters,
            ..*gpu
        };
        let gpus: Vec<_> = targets.iter().zip(adapters).map(with).collect();
        planned.footprints(work, batch, places, &gpus)
    }

    /// The memory of a given split.
    ///
    /// # Errors
    /// As [`footprint`](Planned::footprint).
    pub fn plan_split(&self, split: &Split, work: &Workload, targets: &[Target]) -> Result<Vec<Footprint>> {
        self.footprints(&split.options, split.places(), work, None, targets)
    }

    /// The first candidate of load options and split whose parts all fit their GPUs' limits. The layers are split in the
    /// given ratio, or by the GPUs' bandwidths if `None`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if nothing fits; it says how much is needed.
    pub fn fit_split(
        &self,
        usual: LoadOptions,
        asked: &Asked,
        work: &Workload,
        targets: &[Target],
        ratio: Option<&[f64]>,
    ) -> Result<Split> {
        let layers = self.config.text.num_hidden_layers;
        let speeds: Vec<f64> = targets.iter().map(|target| target.speed.max(1.0)).collect();
        let wanted = in_ratio(layers, ratio.unwrap_or(&speeds));
        let towers = towers(targets);
        let mut last = Vec::new();
        for options in self.ways(usual, asked) {
            for &vision in &towers {
                let mut layers = wanted.clone();
                loop {
                    let mode = SplitMode::Layer;
                    let found = self.footprints(&options, (mode, &layers, vision), work, None, targets)?;
                    if fits(&found, targets) {
                        return Ok(Split { options, mode, layers, vision, footprints: found });
                    }
                    let moved = ratio.is_none() && shift(&mut layers, &found, targets);
                    last = found;
                    if !moved {
                        break;
                    }
                }
            }
        }
        Err(too_large(&last, work, targets))
    }

    /// The first candidate with an equal part of every layer on each GPU whose parts all fit their GPUs' limits.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if sizes do not divide (it names them) or nothing fits (it says how much is needed).
    pub fn fit_rows(
        &self,
        usual: LoadOptions,
        asked: &Asked,
        work: &Workload,
        targets: &[Target],
    ) -> Result<Split> {
        let layers = vec![self.config.text.num_hidden_layers; targets.len()];
        let mut refusal = None;
        for options in self.ways(usual, asked) {
            let storage = |name: &str| (self.storage)(&options, name);
            if let Err(error) = rows::check(self.config, targets.len(), &storage) {
                refusal.get_or_insert(error); // another type may divide
                continue;
            }
            let mut last = Vec::new();
            for vision in towers(targets) {
                let places = (SplitMode::Row, &layers[..], vision);
                let found = self.footprints(&options, places, work, None, targets)?;
                if fits(&found, targets) {
                    return Ok(Split { options, mode: SplitMode::Row, layers, vision, footprints: found });
                }
                last = found;
            }
            refusal = Some(too_large(&last, work, targets));
        }
        Err(refusal.unwrap_or_else(|| too_large(&[], work, targets)))
    }

    /// As [`fit_pages`](Self::fit_pages), for a model over several GPUs.
    ///
    /// # Errors
    /// As [`fit_pages`](Self::fit_pages).
    pub fn fit_split_pages(
        &self,
        split: &Split,
        work: &Workload,
        batch: BatchOptions,
        targets: &[Target],
    ) -> Result<BatchOptions> {
        let have_room = |pages, targets: &[Target]| -> Result<bool> {
            let batch = BatchOptions { pages, ..batch };
            let found = self.footprints(&split.options, split.places(), work, Some(&batch), targets)?;
            Ok(fits(&found, targets))
        };
        let least = work.context.div_ceil(PAGE).max(1);
        if !have_room(least, targets)? {
            let limits: usize = targets.iter().map(|target| target.limit).sum();
            return Err(Error::Unsupported {
                op: "fit",
                argument: "memory",
                value: format!("{} MiB", limits >> 20),
                reason: format!("{} tokens of {} requests do not fit", work.context, batch.max_sequences),
            });
        }
        let (mut from, mut to) = (least, batch.pages.max(least));
        let smaller = |target: &Target| Target { limit: for_pages(target.limit), ..*target };
        let targets: Vec<_> = targets.iter().map(smaller).collect();
        while from < to {
            let pages = from + (to - from).div_ceil(2);
            match have_room(pages, &targets)? {
                true => from = pages,
                false => to = pages - 1,
            }
        }
        Ok(BatchOptions { pages: from, ..batch })
    }
}

impl Split {
    fn places(&self) -> Places<'_> {
        (self.mode, &self.layers, self.vision)
    }
}

/// The GPUs in the order in which they are tried for the vision tower: the first, then by free memory.
fn towers(targets: &[Target]) -> Vec<usize> {
    let mut towers: Vec<usize> = (1..targets.len()).collect();
    towers.sort_by_key(|&index| std::cmp::Reverse(targets[index].limit));
    towers.insert(0, 0);
    towers
}

fn fits(parts: &[Footprint], targets: &[Target]) -> bool {
    parts.iter().zip(targets).all(|(part, target)| part.peak <= target.limit)
}

/// The error for parts that do not fit.
fn too_large(parts: &[Footprint], work: &Workload, targets: &[Target]) -> Error {
    let mib = |bytes: usize| format!("{} MiB", bytes.div_ceil(1 << 20));
    let each = |all: Vec<usize>| all.into_iter().map(mib).collect::<Vec<_>>().join(" + ");
    let Workload { context, patches, .. } = work;
    Error::Unsupported {
        op: "fit",
        argument: "memory",
        value: each(targets.iter().map(|target| target.limit).collect()),
        reason: format!(
            "{} are needed for a context of {context} tokens and pictures of {patches} patches",
            each(parts.iter().map(|part| part.peak).collect())
        ),
    }
}

/// Moves a layer from the fullest GPU, which has too little memory, to the one with the most room for it. Returns whether
/// there was one.
fn shift(layers: &mut [usize], found: &[Footprint], targets: &[Target]) -> bool {
    let room = |index: usize| targets[index].limit as i64 - found[index].peak as i64;
    let over = (0..layers.len()).filter(|&index| room(index) < 0 && layers[index] > 0);
    let Some(from) = over.min_by_key(|&index| room(index)) else { return false };
    let Some(to) = (0..layers.len()).filter(|&index| index != from).max_by_key(|&index| room(index)) else {
        return false;
    };
    // the least that a layer takes, so that it does not move back and forth
    let layer = (found[from].weights + found[from].cache) / (layers[from] + 1);
    if room(to) < layer as i64 {
        return false;
    }
    layers[from] -= 1;
    layers[to] += 1;
    true
}
