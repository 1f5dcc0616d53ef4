//! Plans of how to load a model on a card, and the report of `doctor`.

use crate::device::{self, detached};
use crate::error::{Result, unsupported};
use crate::model::{matrices, place};
use pascaline::cuda::{self, CudaDevice};
use pascaline::{Device, Error, quant};
use pascaline_virtual_gpu::Card;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use qwen3_vl::adapter::AdapterBytes;
use qwen3_vl::estimate::{Estimate, Peaks, estimate};
use qwen3_vl::fit::{Asked, Choice, Model};
use qwen3_vl::footprint::{Gpu, Workload};
use qwen3_vl::{Checkpoint, ExpertPlacement, LoadOptions, VisionPlace};
use std::path::PathBuf;

/// The memory of a driver's context, for planning without the card: an estimate for driver 580.
const CONTEXT: usize = 128 << 20;
/// Bytes per second from host memory: four lanes of PCIe 3, and sixteen.
const FOUR_LANES: f64 = 3e9;
const SIXTEEN_LANES: f64 = 12e9;

/// A card to plan for.
struct Target {
    name: String,
    gpu: Gpu,
    limit: usize,
    peaks: Peaks,
}

impl Target {
    fn of_card(id: &str) -> Result<Self> {
        let card = Card::by_name(id).ok_or_else(|| {
            let names = Card::KNOWN.map(|card| card.id).join(", ");
            unsupported("fit", "card", id, format!("use one of {names}"))
        })?;
        let gpu = Gpu::pascal(card.sms);
        // a multiply-add in each of a multiprocessor's 128 lanes
        let flops = 2.0 * 128.0 * f64::from(card.sms) * f64::from(card.boost_mhz) * 1e6;
        let host = if card.sms < 4 { FOUR_LANES } else { SIXTEEN_LANES };
        let peaks = Peaks { flops, memory: card.bandwidth * 1e9, host };
        let limit = (card.memory as usize).saturating_sub(CONTEXT);
        Ok(Self { name: card.name.to_owned(), gpu, limit, peaks })
    }

    fn of_device(device: &Device) -> Result<Self> {
        let Device::Cuda(cuda) = device else {
            let reason = "there is no GPU to plan for; name one with `card=`";
            return Err(unsupported("fit", "device", "cpu", reason));
        };
        let properties = cuda.properties();
        let clock = f64::from(properties.clock_khz) * 1e3;
        let flops = 2.0 * 128.0 * f64::from(properties.multiprocessors) * clock;
        // two transfers a clock
        let memory =
            2.0 * f64::from(properties.memory_clock_khz) * 1e3 * f64::from(properties.memory_bus_bits) / 8.0;
        let peaks = Peaks { flops, memory, host: SIXTEEN_LANES };
        Ok(Self {
            name: properties.name.clone(),
            gpu: Gpu::from_device(cuda),
            limit: cuda.memory_info()?.0,
            peaks,
        })
    }
}

/// How to load a model so that it fits a GPU: planned from sizes, before anything is loaded.
///
/// path: as for ``Qwen3VL.load``. device: a GPU of this machine; or card: "mx330", "gtx1050ti", "gtx1060", "gtx1070", "gtx1080", "gtx1080ti", "p4" or "p40",
/// which need not be present. context: the tokens of prompt, pictures and answer together. image: (width, height) of the largest
/// picture, None for none. dtype, cache, gpu_layers, vision: as for ``load``; options that are not given are chosen. memory_limit: bytes.
/// A mixture's experts that do not fit are planned in host memory: ``load`` has ``experts`` and ``cached_experts`` then.
///
/// Returns a dict: ``load``, the arguments for ``Qwen3VL.load``, ``peak`` (bytes planned), ``limit``, ``weights``, ``cache``, ``layers``, and
/// estimates of ``first_token`` (seconds) and ``tokens_per_second``. Raises UnsupportedError if nothing fits, CheckpointError.
#[pyfunction]
#[pyo3(signature = (path, device = None, *, card = None, context = 4096, image = Some((1024, 1024)), dtype = None, cache = None,
    gpu_layers = None, vision = None, memory_limit = None, mmproj = None))]
fn fit<'py>(
    py: Python<'py>,
    path: PathBuf,
    device: Option<&Bound<'py, PyAny>>,
    card: Option<&str>,
    context: usize,
    image: Option<(usize, usize)>,
    dtype: Option<&str>,
    cache: Option<&str>,
    gpu_layers: Option<usize>,
    vision: Option<&str>,
    memory_limit: Option<usize>,
    mmproj: Option<PathBuf>,
) -> Result<Bound<'py, PyDict>> {
    let target = match card {
        Some(card) => Target::of_card(card)?,
        None => Target::of_device(&device::given(device, "auto")?)?,
    };
    let asked = Asked {
        matrices: dtype.map(matrices).transpose()?,
        cache: cache.map(str::parse).transpose()?,
        gpu_layers,
        vision: vision.map(place).transpose()?,
        ..Asked::default()
    };
    let limit = memory_limit.map_or(target.limit, |limit| limit.min(target.limit));
    let Planned { choice, estimate, layers, is_quantized } = detached(py, || {
        let checkpoint = Checkpoint::open(&path, mmproj.as_deref())?;
        plan(&checkpoint, context, image, &asked, &target, limit)
    })?;
    let load = PyDict::new(py);
    let options = choice.options;
    let dtype = match (options.quantize, options.dtype) {
        (Some(format), _) => Some(quant::name(format)),
        (None, _) if is_quantized && options.keep_quantized => None, // the types of the file
        (None, dtype) => Some(dtype.name()),
    };
    load.set_item("dtype", dtype)?;
    load.set_item("cache", options.cache.name())?;
    load.set_item("gpu_layers", options.gpu_layers)?;
    if options.experts != ExpertPlacement::Gpu {
        load.set_item("experts", options.experts.name())?;
        load.set_item("cached_experts", options.cached_experts)?;
    }
    load.set_item(
        "vision",
        match options.vision {
            VisionPlace::Resident => "gpu",
            VisionPlace::Streamed => "stream",
            VisionPlace::Cpu => "cpu",
        },
    )?;
    let dict = PyDict::new(py);
    dict.set_item("load", load)?;
    dict.set_item("card", target.name)?;
    dict.set_item("limit", limit)?;
    dict.set_item("peak", choice.peak())?;
    dict.set_item("weights", choice.footprint.weights)?;
    dict.set_item("cache", choice.footprint.cache)?;
    dict.set_item("layers", layers)?;
    dict.set_item("first_token", estimate.first_token)?;
    dict.set_item("tokens_per_second", estimate.tokens_per_second)?;
    Ok(dict)
}

struct Planned {
    choice: Choice,
    estimate: Estimate,
    layers: usize,
    is_quantized: bool,
}

fn plan(
    checkpoint: &Checkpoint,
    context: usize,
    image: Option<(usize, usize)>,
    asked: &Asked,
    target: &Target,
    limit: usize,
) -> pascaline::Result<Planned> {
    /// Tokens of text besides the picture.
    const TEXT: usize = 256;
    let config = checkpoint.config()?;
    let (tokens, patches) = image.map_or((0, 0), |(width, height)| config.picture([width, height]));
    let context = context.min(config.text.max_position_embeddings);
    let work = Workload { context, prompt: (tokens + TEXT).min(context), patches };
    let storage = |options: &LoadOptions, name: &str| checkpoint.storage(&config, options, name);
    let is_quantized = checkpoint.is_quantized();
    let model =
        Model { config: &config, is_quantized, storage: &storage, adapter: &|_| AdapterBytes::default() };
    // matrices on a GPU are f16 if not given
    let usual = LoadOptions::for_gpu();
    let choice = model.fit(usual, asked, &work, &target.gpu, limit)?;
    let stored = |name: &str| storage(&choice.options, name);
    let estimate = estimate(&config, &choice, &stored, &work, &target.peaks)?;
    Ok(Planned { choice, estimate, layers: config.text.num_hidden_layers, is_quantized })
}

/// The driver, the devices, and the device that "auto" takes and why, as a dict. Raises nothing.
#[pyfunction]
fn doctor(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let found = py.detach(|| {
        cuda::forget_current();
        let none = device::no_real_device().map(|reason| Error::NoDevice { reason });
        let (version, count) = match none {
            Some(error) => (Err(error.clone()), Err(error)),
            None => (cuda::driver_version(), CudaDevice::count()),
        };
        let opened = (0..*count.as_ref().unwrap_or(&0)).map(|ordinal| {
            let opened = device::ordinal(ordinal);
            let free = match &opened {
                Ok(Device::Cuda(device)) => device.memory_info().ok().map(|(free, _)| free),
                _ => None,
            };
            (CudaDevice::properties_of(ordinal), free, opened.err())
        });
        let opened = opened.collect::<Vec<_>>();
        (version, count, opened, device::choose())
    });
    let (version, count, opened, choice) = found;
    let devices = PyList::empty(py);
    for (properties, free, error) in opened {
        let item = PyDict::new(py);
        let problem = properties.as_ref().err().or(error.as_ref()).map(ToString::to_string);
        if let Ok(properties) = properties {
            item.set_item("name", properties.name)?;
            item.set_item("compute_capability", properties.capability)?;
            item.set_item("multiprocessors", properties.multiprocessors)?;
            item.set_item("memory_bytes", properties.memory_bytes)?;
        }
        item.set_item("memory_free", free)?;
        item.set_item("problem", problem)?;
        devices.append(item)?;
    }
    let backend = match pascaline_driver::backend() {
        Some(pascaline_driver::Backend::Virtual) => "virtual",
        _ => "real",
    };
    let dict = PyDict::new(py);
    dict.set_item("pascaline", env!("CARGO_PKG_VERSION"))?;
    dict.set_item("kernels", cuda::PTX_ORIGIN)?;
    dict.set_item("backend", backend)?;
    dict.set_item("driver", version.as_ref().ok())?;
    dict.set_item("problem", version.err().or(count.err()).map(|error| error.to_string()))?;
    dict.set_item("devices", devices)?;
    dict.set_item("auto", device::name(&choice.device))?;
    dict.set_item("auto_because", choice.reason)?;
    Ok(dict)
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(fit, module)?)?;
    module.add_function(wrap_pyfunction!(doctor, module)?)
}
