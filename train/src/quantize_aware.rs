//! Quantisation-aware training: the forward pass computes with the weights that a GGUF file will hold.

use pascaline::{DType, Error, Result, Tensor, ops};
use qwen3_vl::gguf::{GgmlType, Kept, Plan};
use std::collections::BTreeMap;

/// The types that tensors will be stored in, by their published names; none if they are stored as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantizeAware(BTreeMap<String, GgmlType>);

impl QuantizeAware {
    /// For the files of these plans, the text model's and the vision tower's.
    pub fn of(plans: &[Plan]) -> Self {
        let tensors = plans.iter().flat_map(|plan| &plan.tensors);
        let rounded = tensors.filter(|tensor| tensor.ty != GgmlType::F32);
        Self(rounded.map(|tensor| (tensor.published.clone(), tensor.ty)).collect())
    }

    /// The type of a tensor that is rounded.
    pub fn ty(&self, name: &str) -> Option<GgmlType> {
        self.0.get(name).copied()
    }

    /// Whether nothing is rounded.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The values that a file has of a matrix stored in this type, bit for bit.
///
/// # Errors
/// [`Error::Unsupported`] for types that nothing here writes, or a device error.
pub fn rounded(w: &Tensor, ty: GgmlType) -> Result<Tensor> {
    match (ty, Kept::of(ty)) {
        (GgmlType::F32, _) => Ok(w.clone()),
        (GgmlType::F16, _) => ops::cast(&ops::cast(w, DType::F16)?, DType::F32),
        (_, Kept::AsIs(format)) => ops::fake_quantize(w, format),
        _ => Err(Error::Unsupported {
            op: "fake_quantize",
            argument: "type",
            value: ty.name().into(),
            reason: "nothing here writes it".into(),
        }),
    }
}
