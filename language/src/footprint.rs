//! The memory that a model takes on a GPU, from its sizes alone.
//!
//! Loading, encoding a picture, prefill and decode run on planned devices ([`pascaline::plan`]): the code is that of a real
//! answer, and tensors have no contents. So allocations, launches and modules are those of a real run. Tests compare the result with
//! the pool's books after one.

use super::decode::{CHECKED, Decoder};
use super::lookup::Lookup;
use super::media::{Patches, VisionSizes};
use super::network::Network;
use super::options::{BatchOptions, LoadOptions, Storage};
use super::pass::{Rehearsed, rehearse};
use super::placement::{Placement, SplitMode};
use super::sampling::{Sampler, Sampling};
use super::seam::Config;
use super::sparse::LEAST_KEYS;
use super::text::{ImageRun, Images};
use super::weights::Weights;
use super::workload::Seen;
use pascaline::cuda::CudaDevice;
use pascaline::plan::{Books, PlannedGpu, plan};
use pascaline::{Device, Error, Result, memory};
use std::ops::ControlFlow;

pub use super::workload::Workload;

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

    /// As [`BESIDE_STREAMING`](Self::BESIDE_STREAMING), and what it took besides with a mixture's experts that pass through, on an H100: 38 MiB
    /// together with 30B-A3B.
    const BESIDE_EXPERTS: usize = 16 << 20;

    /// Bytes beside the pool with these options for a model of `layers` layers. A pool that is limited to the others grows as it does in the
    /// plan; one with more room may take larger segments, after which a later allocation finds none.
    pub fn beside(&self, options: &LoadOptions, layers: usize) -> usize {
        let is_real = self.beside_streaming > 0;
        let streaming = if options.is_streaming(layers) { self.beside_streaming } else { 0 };
        let experts = if is_real && options.experts.is_streamed() { Self::BESIDE_EXPERTS } else { 0 };
        self.beside_pool + streaming + experts
    }

    /// A device; the virtual GPU keeps no code in its memory, and nothing for layers that pass through.
    pub fn from_device(device: &CudaDevice) -> Self {
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

/// The memory of a GPU that a model takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Footprint {
    /// Bytes on the GPU: weights that stay there, and the buffers of streamed layers.
    pub weights: usize,
    /// Bytes on the GPU: keys and values.
    pub cache: usize,
    /// Bytes on the GPU: the most that will be in use, graphs not counted.
    pub live: usize,
    /// Bytes on the GPU: the most that the pool will have reserved, and the driver's memory outside it.
    pub peak: usize,
    /// Bytes in host memory: streamed weights, and weights that never go to a GPU, of all devices together.
    pub host: usize,
    /// Kernels of a decoded token.
    pub launches: usize,
}

/// Which device has which part: how they share the decoder, the layers of each, and the device with the vision tower.
pub type Places<'a> = (SplitMode, &'a [usize], usize);

/// A model that is planned.
#[derive(Clone, Copy)]
pub struct Planned<'a> {
    /// Its sizes.
    pub config: &'a Config,
    /// How the matrix of a published name is stored.
    pub storage: &'a dyn Fn(&str) -> Storage,
    /// How it is loaded.
    pub options: &'a LoadOptions,
}

impl Planned<'_> {
    /// The footprint on one GPU: for one answer, or with `batch` for many at once. Then of `work` the prompt and the patches count,
    /// of one request; the tokens that the cache has room for are those of the pages.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if `gpu.memory` is too little, [`Error::TooLarge`] for sizes that overflow.
    pub fn footprint(&self, work: &Workload, batch: Option<&BatchOptions>, gpu: &Gpu) -> Result<Footprint> {
        let layers = [self.config.text.num_hidden_layers];
        let all = self.footprints(work, batch, (SplitMode::Layer, &layers, 0), &[*gpu])?;
        Ok(all.into_iter().next().unwrap_or_default()) // one for each GPU
    }

    /// The footprint on each of several GPUs.
    ///
    /// # Errors
    /// As [`footprint`](Self::footprint).
    pub fn footprints(
        &self,
        work: &Workload,
        batch: Option<&BatchOptions>,
        places: Places,
        gpus: &[Gpu],
    ) -> Result<Vec<Footprint>> {
        let (mut all, books) = self.run(&[*work], batch, places, gpus)?;
        for ((footprint, books), gpu) in all.iter_mut().zip(&books).zip(gpus) {
            if books.trimmed > 0 {
                // It fits only if the driver takes back every segment that the pool returns meanwhile. A driver's pool keeps parts.
                let (device, requested) = ("the memory limit".to_owned(), books.peak_live);
                return Err(Error::OutOfMemory { device, requested, free: 0, total: gpu.memory });
            }
            if books.peak_live > 0 {
                footprint.peak = books.peak_reserved
                    + books.peak_beside
                    + gpu.beside(self.options, self.config.text.num_hidden_layers);
            }
            footprint.host += books.host_bytes;
        }
        Ok(all)
    }

    /// The modules of the kernels that loading and answering launch, in the order of their first use.
    ///
    /// # Errors
    /// As [`footprint`](Self::footprint).
    pub fn modules(&self, batch: Option<&BatchOptions>, gpu: &Gpu) -> Result<Vec<&'static str>> {
        // few rows, many, and more than a pass, as kernels are chosen by their number
        let most = self.options.tokens_per_pass;
        let long = self.options.sparse_prefill.map(|_| (LEAST_KEYS, 16));
        let sizes = [(most + 40, 1024), (200, 256), (40, 64), (20, 16)].into_iter().chain(long);
        let works: Vec<_> =
            sizes.map(|(prompt, patches)| Workload { context: prompt + 64, prompt, patches }).collect();
        let layers = [self.config.text.num_hidden_layers];
        let (_, mut books) = self.run(&works, batch, (SplitMode::Layer, &layers, 0), &[*gpu])?;
        Ok(std::mem::take(&mut books[0].modules))
    }

    /// Loads the model on planned devices and does this work.
    fn run(
        &self,
        works: &[Workload],
        batch: Option<&BatchOptions>,
        (mode, layers, vision): Places,
        gpus: &[Gpu],
    ) -> Result<(Vec<Footprint>, Vec<Books>)> {
        let depth = self.config.text.num_hidden_layers;
        let planned = |gpu: &Gpu| PlannedGpu {
            capability: gpu.capability,
            multiprocessors: gpu.multiprocessors,
            memory: gpu.memory.saturating_sub(gpu.beside(self.options, depth)),
        };
        // the last one is in the place of host memory
        let host = PlannedGpu { capability: (6, 1), multiprocessors: 1, memory: usize::MAX };
        let devices: Vec<_> = gpus.iter().map(planned).chain([host]).collect();
        plan(&devices, |devices| {
            let Some((host, gpus)) = devices.split_last() else { return Ok(Vec::new()) };
            let all: Vec<_> = gpus.iter().cloned().map(Device::Cuda).collect();
            let placement = match mode {
                SplitMode::Layer => Placement::split(&all, layers, vision)?,
                SplitMode::Row => Placement::rows(&all, self.config.text.num_hidden_layers, vision)?,
            };
            let mut weights = Weights::planned(self.config, self.storage, &all[0]);
            let to = Device::Cuda(host.clone());
            let options = self.options;
            let network =
                Network::load(&mut weights, self.config, &placement, options, &to, false, &mut |_| {})?;
            let mut found = vec![Footprint::default(); gpus.len()];
            for (found, gpu) in found.iter_mut().zip(gpus) {
                found.weights = live(gpu)?;
            }
            found[0].host = live(host)?;
            let mut done = (0, vec![0; gpus.len()]);
            for work in works {
                done = match batch {
                    None => answer(&network, work, gpus, &mut found)?,
                    Some(batch) => {
                        let pool = network.text.pages(batch.pages)?;
                        count_cache(gpus, &mut found)?;
                        let seen = see(&network, work)?;
                        let Rehearsed { launches, live } = rehearse(&network, pool, work, batch, seen)?;
                        (launches, live)
                    }
                };
            }
            let (launches, live) = done;
            for (found, live) in found.iter_mut().zip(live) {
                (found.launches, found.live) = (launches, live);
            }
            Ok(found)
        })
    }
}

/// Bytes in use on a device.
fn live(device: &CudaDevice) -> Result<usize> {
    Ok(memory::pool(device)?.statistics().live)
}

fn count_cache(gpus: &[CudaDevice], found: &mut [Footprint]) -> Result<()> {
    for (found, gpu) in found.iter_mut().zip(gpus) {
        found.cache = live(gpu)?.saturating_sub(found.weights);
    }
    Ok(())
}

/// The patches of a picture; they are never read.
fn patches(sizes: VisionSizes, work: &Workload) -> Patches {
    let side = sizes.merge.max(1);
    let grid = [1, side, work.patches / side];
    Patches { grid, values: vec![0.0; grid.iter().product::<usize>() * sizes.patch_len] }
}

fn see(network: &Network, work: &Workload) -> Result<Seen> {
    let Some(vision) = network.config.vision.as_ref().filter(|_| work.patches > 0) else {
        return Ok(Seen { patches: None, outputs: Vec::new() });
    };
    let patches = patches(vision.sizes(), work);
    let outputs = vec![network.encode_image(&patches)?];
    Ok(Seen { patches: Some(patches), outputs })
}

/// A picture, the prompt, and a token. Gives the launches of a token, and the most that is live on each device outside graphs.
fn answer(
    network: &Network,
    work: &Workload,
    gpus: &[CudaDevice],
    found: &mut [Footprint],
) -> Result<(usize, Vec<usize>)> {
    let mut cache = network.text.cache()?;
    let vision = network.config.vision.as_ref();
    let tokens = vision.map_or(0, |vision| work.patches / vision.sizes().merge_len().max(1));
    let prompt = work.prompt.max(tokens).max(1);
    cache.reserve(work.context.max(prompt + 1))?;
    count_cache(gpus, found)?;
    let Seen { outputs, .. } = see(network, work)?;
    let run = ImageRun { start: 0, len: tokens, output: 0, row: 0 };
    let images = Images { outputs: &outputs, runs: if outputs.is_empty() { &[] } else { &[run] } };
    let (ids, axes) = (vec![0; prompt], vec![[0; 3]; prompt]);
    let mut go_on = |_| ControlFlow::Continue(());
    let passed = network.pass_prompt(&mut cache, &ids, &axes, images, &mut |_| {}, &mut go_on)?;
    drop(outputs);
    let sampler = Sampler::new(Sampling::GREEDY, &[])?;
    drop(passed);
    cache.truncate(cache.len().saturating_sub(2 * CHECKED)); // room for a pass that checks guesses
    let decoder = Decoder::new(network, 0, true, Some(Lookup::new(&[])))?;
    decoder.rehearse(&mut cache, &sampler)
}
