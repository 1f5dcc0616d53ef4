//! Low-rank adapters of linear maps: y = x·Wᵀ + scale · (x·Aᵀ)·Bᵀ (Hu et al. 2021, "LoRA").

use crate::files;
use crate::parameters::Parameters;
use pascaline::{DType, Device, Error, Result, Tensor};
use qwen3_vl::adapter::{ADAPTER_CONFIG, ADAPTER_PREFIX, ADAPTER_TENSORS};
pub use qwen3_vl::seam::is_of_vision;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The adapters of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lora {
    rank: usize,
    alpha: f32,
    /// By the names of the linear maps.
    adapters: BTreeMap<String, Adapter>,
}

/// The parameters of one adapter, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// A: [rank, in]
    pub a: usize,
    /// B: [out, rank]
    pub b: usize,
}

/// Which linear maps get adapters, and of which size.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraOptions {
    /// The rank r of B·A.
    pub rank: usize,
    /// B·A is multiplied by alpha / rank.
    pub alpha: f32,
    /// The last parts of the modules' names, such as `q_proj`.
    pub targets: Vec<String>,
    /// Whether the vision tower's maps of these names get adapters too.
    pub vision: bool,
    /// Seeds the initial values of A.
    pub seed: u64,
}

impl LoraOptions {
    /// The linear map whose weight is this tensor, if it gets an adapter: its name and [out, in].
    pub fn map_of<'n>(&self, tensor: &'n str, shape: &[usize]) -> Option<(&'n str, [usize; 2])> {
        let (name, &[n, k]) = (tensor.strip_suffix(".weight")?, shape) else { return None };
        let last = name.rsplit('.').next()?;
        let is_target = self.targets.iter().any(|target| target == last);
        (is_target && (self.vision || !is_of_vision(name))).then_some((name, [n, k]))
    }
}

impl Lora {
    /// Adds adapters to `parameters`, and freezes the existing ones. A starts with uniform numbers of ±1/√in, as in PEFT, and B
    /// with zeros, so that the model is unchanged at first.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no linear map has such a name or the rank is 0, or a device error.
    pub fn add(parameters: &mut Parameters, options: &LoraOptions, device: &Device) -> Result<Self> {
        let LoraOptions { rank, alpha, targets, seed, .. } = options;
        let unsupported = |argument, value: String, reason: &str| {
            Err(Error::Unsupported { op: "lora", argument, value, reason: reason.into() })
        };
        if *rank == 0 {
            return unsupported("rank", "0".into(), "it must be at least 1");
        }
        parameters.train(|_| false);
        let maps: Vec<(String, [usize; 2])> = parameters
            .matrices()
            .into_iter()
            .filter_map(|(name, shape)| {
                let (name, shape) = options.map_of(name, shape.dims())?;
                Some((name.to_owned(), shape))
            })
            .collect();
        if maps.is_empty() {
            return unsupported("targets", targets.join(","), "no linear map has such a name");
        }
        let mut adapters = BTreeMap::new();
        for (number, (name, [n, k])) in maps.into_iter().enumerate() {
            let a = uniform([*rank, k], 1.0 / (k as f32).sqrt(), seed.wrapping_add(number as u64), device)?;
            let b = Tensor::zeros([n, *rank], DType::F32, device)?;
            let a = parameters.add(format!("{name}.lora_A.weight"), a, true)?;
            let b = parameters.add(format!("{name}.lora_B.weight"), b, true)?;
            adapters.insert(name, Adapter { a, b });
        }
        Ok(Self { rank: *rank, alpha: *alpha, adapters })
    }

    /// Adds the adapters of a folder that PEFT or [`save`](Self::save) has written, and freezes the existing parameters.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and what is wrong in it, or a device error.
    pub fn load(parameters: &mut Parameters, dir: &Path, device: &Device) -> Result<Self> {
        let found = qwen3_vl::adapter::Adapter::load(dir)?;
        let file = dir.join(ADAPTER_TENSORS);
        for (name, low) in found.maps() {
            let matrices = parameters.matrices();
            let shape = matrices.get(format!("{name}.weight").as_str()).map(|shape| shape.dims());
            if shape != Some(&low.shape) {
                let (item, reason) =
                    (Some(name.clone()), format!("is no linear map of shape {:?}", low.shape));
                return Err(Error::Checkpoint { file: file.display().to_string(), item, reason });
            }
        }
        parameters.train(|_| false);
        let (rank, alpha, mut adapters) = (found.rank(), found.alpha(), BTreeMap::new());
        for (name, low) in found.maps() {
            let [n, k] = low.shape;
            let a = Tensor::from_slice(&low.a, [rank, k], device)?;
            let b = Tensor::from_slice(&low.b, [n, rank], device)?;
            let a = parameters.add(format!("{name}.lora_A.weight"), a, true)?;
            let b = parameters.add(format!("{name}.lora_B.weight"), b, true)?;
            adapters.insert(name.clone(), Adapter { a, b });
        }
        Ok(Self { rank, alpha, adapters })
    }

    /// Writes `adapter_config.json` and `adapter_model.safetensors` as PEFT does, for the model of this name or path.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file that can't be written, or a device error.
    pub fn save(&self, parameters: &Parameters, dir: &Path, base_model: &str) -> Result<()> {
        let parts: Vec<_> = self
            .adapters
            .iter()
            .flat_map(|(name, adapter)| {
                let of = |part: &str, number: usize| {
                    (format!("{ADAPTER_PREFIX}{name}.{part}.weight"), parameters.get(number).value())
                };
                [of("lora_A", adapter.a), of("lora_B", adapter.b)]
            })
            .collect();
        // an old configuration goes first, and the new one comes last: it never stands beside other tensors than its own
        let old = dir.join(ADAPTER_CONFIG);
        if old.exists() {
            fs::remove_file(&old).map_err(|error| files::bad(&old, error))?;
        }
        files::write_tensors(&dir.join(ADAPTER_TENSORS), &parts, |_, tensor| tensor.dims().to_vec())?;
        // whole names: a last part alone would match the vision tower's modules too
        let targets: BTreeSet<&String> = self.adapters.keys().collect();
        let config = json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": base_model,
            "r": self.rank,
            "lora_alpha": self.alpha,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": false,
            "use_dora": false,
            "use_rslora": false,
            "inference_mode": true,
            "target_modules": targets,
        });
        files::write(&dir.join(ADAPTER_CONFIG), format!("{config:#}\n").as_bytes())
    }

    /// The adapter of a linear map, if it has one.
    pub fn adapter(&self, name: &str) -> Option<Adapter> {
        self.adapters.get(name).copied()
    }

    /// The factor of B·A.
    pub fn scale(&self) -> f32 {
        self.alpha / self.rank.max(1) as f32
    }

    /// The adapters by the names of their linear maps.
    pub fn adapters(&self) -> &BTreeMap<String, Adapter> {
        &self.adapters
    }
}

/// Uniform numbers of (−bound, bound), from the normal ones of a seed.
fn uniform(shape: [usize; 2], bound: f32, seed: u64, device: &Device) -> Result<Tensor> {
    // the angle of two independent normals is uniform
    let normals =
        Tensor::randn([shape[0] * shape[1] * 2], DType::F32, seed, &Device::Cpu)?.to_vec::<f32>()?;
    let pairs = normals.as_chunks::<2>().0;
    let values: Vec<f32> = pairs.iter().map(|[x, y]| bound * (y.atan2(*x) / std::f32::consts::PI)).collect();
    Tensor::from_slice(&values, shape, device)
}
