//! Quantisation-aware training: the forward pass computes with the weights that a GGUF file will hold, by scales that the weights
//! determine or that are learned beside them.

use pascaline::quant::Format;
use pascaline::{DType, Error, Result, Tensor, ops};
use qwen3_vl::gguf::{DeviceStorage, GgmlType, Plan};
use std::collections::BTreeMap;

/// The types that tensors will be stored in, by their published names; tensors that are not rounded have none.
#[derive(Clone, Debug, Default)]
pub struct QuantizeAware {
    types: BTreeMap<String, GgmlType>,
    /// For tensors whose blocks' scales are learned.
    learned: BTreeMap<String, Learned>,
}

/// The learned scales of a tensor: initial ones, and a factor for each.
///
/// A step of AdamW changes every parameter by about the learning rate, however small the parameter is. Scales are much smaller than
/// weights, so factors of them, which are 1 at first, are trained instead.
#[derive(Clone, Debug)]
pub(crate) struct Learned {
    pub format: Format,
    /// [n, k / 32]
    pub first: Tensor,
    /// The number of the parameter [n · k / 32].
    pub factors: usize,
}

impl Learned {
    /// The initial scales: those by which `w` would be stored if they were not learned. A block of zeros gets the mean of the
    /// others', since a scale of 0 could not be learned.
    ///
    /// # Errors
    /// A device error.
    pub fn first(w: &Tensor, format: Format) -> Result<Tensor> {
        let scales = ops::quantize(w, format)?.block_scales()?;
        let mut values = scales.to_vec::<f32>()?;
        let usable = |scale: &f32| scale.is_normal();
        let (sum, count) = values
            .iter()
            .filter(|scale| usable(scale))
            .fold((0.0, 0u32), |(sum, count), scale| (sum + f64::from(scale.abs()), count + 1));
        let mean = if count > 0 { (sum / f64::from(count)) as f32 } else { 1.0 };
        values.iter_mut().filter(|scale| **scale == 0.0).for_each(|scale| *scale = mean);
        Tensor::from_slice(&values, scales.shape(), &w.device())
    }

    /// The scales for these factors.
    ///
    /// # Errors
    /// A device error.
    pub fn scales(&self, factors: &Tensor) -> Result<Tensor> {
        ops::mul(&self.first, &factors.reshape(self.first.shape())?)
    }
}

impl QuantizeAware {
    /// The rounding of the files of these plans, the text model's and the vision tower's.
    pub fn new(plans: &[Plan]) -> Self {
        let tensors = plans.iter().flat_map(|plan| &plan.tensors);
        let rounded = tensors.filter(|tensor| tensor.ty != GgmlType::F32);
        let types = rounded.map(|tensor| (tensor.published.clone(), tensor.ty)).collect();
        Self { types, learned: BTreeMap::new() }
    }

    /// The type of a tensor that is rounded.
    pub fn ty(&self, name: &str) -> Option<GgmlType> {
        self.types.get(name).copied()
    }

    /// Whether nothing is rounded.
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }

    /// The tensors that have a scale for each block, and their format.
    pub(crate) fn scaled(&self) -> Vec<(String, Format)> {
        let format = |ty| match DeviceStorage::from(ty) {
            DeviceStorage::AsIs(format @ (Format::Q8_0 | Format::Q4_0)) => Some(format),
            _ => None,
        };
        self.types.iter().filter_map(|(name, &ty)| Some((name.clone(), format(ty)?))).collect()
    }

    /// The learned scales of a tensor.
    pub(crate) fn learned(&self, name: &str) -> Option<&Learned> {
        self.learned.get(name)
    }

    pub(crate) fn learn(&mut self, name: String, scales: Learned) {
        self.learned.insert(name, scales);
    }

    /// The tensors that are rounded, and how: a stored state of another run has another text.
    pub(crate) fn describe(&self) -> String {
        let scales = if self.learned.is_empty() { "fixed" } else { "learned" };
        format!("{:?}, {scales} scales", self.types)
    }
}

/// The values of a matrix as a file stores them in this type, bit for bit.
///
/// # Errors
/// [`Error::Unsupported`] for types without an encoder, or a device error.
pub fn rounded(w: &Tensor, ty: GgmlType) -> Result<Tensor> {
    match (ty, DeviceStorage::from(ty)) {
        (GgmlType::F32, _) => Ok(w.clone()),
        (GgmlType::F16, _) => ops::cast(&ops::cast(w, DType::F16)?, DType::F32),
        (_, DeviceStorage::AsIs(format)) => ops::fake_quantize(w, format),
        _ => Err(Error::Unsupported {
            op: "fake_quantize",
            argument: "type",
            value: ty.name().into(),
            reason: "there is no encoder for it".into(),
        }),
    }
}
