//! Low-rank adapters of linear maps: y = x·Wᵀ + scale · (x·Aᵀ)·Bᵀ (Hu et al. 2021, "LoRA").

use crate::parameters::Parameters;
use pascaline::{DType, Device, Error, Result, Tensor};
use std::collections::BTreeMap;

/// The adapters of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lora {
    rank: usize,
    alpha: f32,
    /// By the name of the linear map.
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
    /// For the random numbers that A begins with.
    pub seed: u64,
}

impl Lora {
    /// Adds adapters to `parameters`, and freezes all that were there. A begins with the uniform numbers of ±1/√in, as PEFT's, and B
    /// with zeros, so that the model is at first what it was.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if no linear map has such a name or the rank is 0, or a device error.
    pub fn add(parameters: &mut Parameters, options: &LoraOptions) -> Result<Self> {
        let LoraOptions { rank, alpha, targets, vision, seed } = options;
        let unsupported = |argument, value: String, reason: &str| {
            Err(Error::Unsupported { op: "lora", argument, value, reason: reason.into() })
        };
        if *rank == 0 {
            return unsupported("rank", "0".into(), "it must be at least 1");
        }
        parameters.train(|_| false);
        let is_target = |name: &str| {
            let last = name.rsplit('.').next().unwrap_or(name);
            targets.iter().any(|target| target == last) && (*vision || !name.starts_with("model.visual."))
        };
        let maps: Vec<(String, [usize; 2], Device)> = parameters
            .iter()
            .filter_map(|parameter| {
                let name = parameter.name().strip_suffix(".weight")?;
                let &[n, k] = parameter.value().dims() else { return None };
                is_target(name).then(|| (name.to_owned(), [n, k], parameter.value().device()))
            })
            .collect();
        if maps.is_empty() {
            return unsupported("targets", targets.join(","), "no linear map has such a name");
        }
        let mut adapters = BTreeMap::new();
        for (number, (name, [n, k], device)) in maps.into_iter().enumerate() {
            let a = uniform([*rank, k], 1.0 / (k as f32).sqrt(), seed.wrapping_add(number as u64), &device)?;
            let b = Tensor::zeros([n, *rank], DType::F32, &device)?;
            let a = parameters.add(format!("{name}.lora_A.weight"), a, true)?;
            let b = parameters.add(format!("{name}.lora_B.weight"), b, true)?;
            adapters.insert(name, Adapter { a, b });
        }
        Ok(Self { rank: *rank, alpha: *alpha, adapters })
    }

    /// The adapter of a linear map, if it has one.
    pub fn of(&self, name: &str) -> Option<Adapter> {
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
    // of two independent normals the angle is uniform
    let normals =
        Tensor::randn([shape[0] * shape[1] * 2], DType::F32, seed, &Device::Cpu)?.to_vec::<f32>()?;
    let pairs = normals.as_chunks::<2>().0;
    let values: Vec<f32> = pairs.iter().map(|[x, y]| bound * (y.atan2(*x) / std::f32::consts::PI)).collect();
    Tensor::from_slice(&values, shape, device)
}
