//! The position-wise part of a transformer block.

use super::checks::misfit;
use super::expert_cache::Hits;
use super::experts::Experts;
use super::hosted::ExpertStream;
use super::linear::Linear;
use super::map::Map;
use super::matrix::{Change, Matrix};
use super::norm::RmsNorm;
use crate::ops::{self, Activation, Epilogue};
use crate::problem::pieces::{MLP_ROWS, even_pieces, rows_per_launch};
use crate::quant::QuantTensor;
use crate::{DType, Device, Error, Result, Tensor};

/// fc2(activation(fc1(x))). With [`Activation::SwiGlu`] fc1 holds gate and up in one matrix, [2 · mlp, hidden], in that
/// order, so that one launch reads x once.
///
/// ```
/// use pascaline::nn::{Linear, Mlp};
/// use pascaline::ops::Activation;
/// use pascaline::{Device, Tensor};
/// let gate_up = Tensor::from_slice(&[100.0f32, 0.0, 0.0, 3.0], [2, 2], &Device::Cpu)?; // gate (100, 0), up (0, 3)
/// let down = Tensor::from_slice(&[1.0f32, -1.0], [2, 1], &Device::Cpu)?;
/// let mlp = Mlp::new(Linear::new(gate_up, None)?, Activation::SwiGlu, Linear::new(down, None)?)?;
/// let y = mlp.forward(&Tensor::from_slice(&[1.0f32, 2.0], [1, 2], &Device::Cpu)?)?; // silu(100) · 6
/// assert_eq!(y.to_vec::<f32>()?, [600.0, -600.0]);
/// # Ok::<(), pascaline::Error>(())
/// ```
///
/// In a mixture of experts it is [`Experts`], by `From`.
#[derive(Clone, Debug)]
pub struct Mlp(Kind);

#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are dense, and a model has few")]
enum Kind {
    Dense(Dense),
    Experts(Box<Experts>),
}

#[derive(Clone, Debug)]
struct Dense {
    fc1: Linear,
    activation: Activation,
    fc2: Linear,
}

impl From<Experts> for Mlp {
    fn from(experts: Experts) -> Self {
        Self(Kind::Experts(Box::new(experts)))
    }
}

impl Mlp {
    /// `fc1`: [mlp, hidden], `fc2`: [out, mlp], or [out, mlp/2] for [`Activation::SwiGlu`].
    ///
    /// # Errors
    /// [`Error::Shape`] if the weights do not match each other.
    pub fn new(fc1: Linear, activation: Activation, fc2: Linear) -> Result<Self> {
        let width = activation.columns(fc1.out_features());
        match width == Some(fc2.in_features()) {
            true => Ok(Self(Kind::Dense(Dense { fc1, activation, fc2 }))),
            false => Err(Error::Shape {
                op: "Mlp",
                argument: "fc2",
                expected: format!("[_, {}] after {activation:?}", width.unwrap_or(0)),
                found: [fc2.out_features(), fc2.in_features()].into(),
            }),
        }
    }

    /// `x`: [rows, hidden] f32 → [rows, out] f32.
    ///
    /// # Errors
    /// [`Error::Shape`] if `x` does not match.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_fused(x, None, None)
    }

    /// A copy with its weights on another device.
    pub fn to_device(&self, device: &Device) -> Result<Self> {
        self.map(&mut |tensor| tensor.to_device(device))
    }

    /// As [`Experts::in_host_memory`]; a copy of an MLP that has no experts.
    ///
    /// # Errors
    /// As there.
    pub fn experts_in_host_memory(&self, stream: &ExpertStream) -> Result<Self> {
        match &self.0 {
            Kind::Dense(_) => Ok(self.clone()),
            Kind::Experts(experts) => experts.in_host_memory(stream).map(Self::from),
        }
    }

    /// Whether its matrices are experts' in host memory.
    pub fn has_experts_in_host_memory(&self) -> bool {
        matches!(&self.0, Kind::Experts(experts) if experts.is_in_host_memory())
    }

    /// How often the router's choice was in device memory, where experts in host memory have slots there ([`ExpertStream::with_slots`]).
    pub fn expert_hits(&self) -> Hits {
        match &self.0 {
            Kind::Dense(_) => Hits::default(),
            Kind::Experts(experts) => experts.hits(),
        }
    }

    /// mlp(norm(x)) + residual.
    pub(super) fn forward_fused(
        &self,
        x: &Tensor,
        norm: Option<&RmsNorm>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        match &self.0 {
            Kind::Dense(dense) => dense.forward_fused(x, norm, residual),
            Kind::Experts(experts) => experts.forward_fused(x, norm, residual),
        }
    }

    /// As [`Linear::map`].
    pub(super) fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(Self(match &self.0 {
            Kind::Dense(dense) => Kind::Dense(dense.map(f)?),
            Kind::Experts(experts) => Kind::Experts(Box::new(experts.map(f)?)),
        }))
    }

    /// With low-rank changes beside its matrices; experts have none.
    pub(super) fn adapted(&self, changes: &[Change]) -> Result<Self> {
        match (&self.0, changes) {
            (Kind::Dense(dense), [fc1, fc2]) => Ok(Self(Kind::Dense(Dense {
                fc1: dense.fc1.adapted(fc1)?,
                fc2: dense.fc2.adapted(fc2)?,
                ..*dense
            }))),
            (Kind::Experts(_), changes) if changes.iter().all(Option::is_none) => Ok(self.clone()),
            (kind, changes) => {
                let value = format!("{} changes", changes.len());
                let reason = match kind {
                    Kind::Dense(_) => "each of two matrices has one or none",
                    Kind::Experts(_) => "experts' matrices have no adapter",
                };
                Err(Error::Unsupported { op: "Mlp", argument: "changes", value, reason: reason.into() })
            }
        }
    }

    /// The matrices, in the order of computation.
    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        match &self.0 {
            Kind::Dense(Dense { fc1, fc2, .. }) => vec![fc1.weight(), fc2.weight()],
            Kind::Experts(experts) => experts.matrices(),
        }
    }

    /// Bytes of the stored weights that a token reads: of experts, its own.
    pub fn weight_bytes(&self) -> usize {
        match &self.0 {
            Kind::Dense(Dense { fc1, fc2, .. }) => fc1.weight_bytes() + fc2.weight_bytes(),
            Kind::Experts(experts) => experts.weight_bytes(),
        }
    }
}

impl Dense {
    fn forward_fused(&self, x: &Tensor, norm: Option<&RmsNorm>, residual: Option<&Tensor>) -> Result<Tensor> {
        let &[rows, _] = x.dims() else { return Err(misfit("Mlp", "x", "[rows, hidden]", x)) };
        let mut y = Tensor::uninitialized([rows, self.fc2.out_features()], DType::F32, &x.device())?;
        // one row, which the first product's kernel quantises itself, stays f32
        let quantized = self.quantized().filter(|_| rows != 1);
        let piece = match quantized {
            Some([(fc1, _), _]) => {
                even_pieces(rows, rows_per_launch(2 * fc1.rows() * fc1.cols(), &x.device()).min(MLP_ROWS))
            }
            None => MLP_ROWS,
        };
        for start in (0..rows).step_by(piece) {
            let len = piece.min(rows - start);
            let (x, y) = (x.narrow(0, start, len)?, y.view_mut()?.narrow(0, start, len)?);
            let residual = residual.map(|residual| residual.narrow(0, start, len)).transpose()?;
            let add = Epilogue { residual: residual.as_ref(), ..Epilogue::default() };
            if let Some([(fc1, _), (fc2, bias)]) = quantized {
                let x = norm.map_or_else(|| ops::quantize_rows(&x), |norm| norm.forward_rows(&x))?;
                let inner = ops::quant_gated_rows(&x, fc1)?;
                ops::quant_matmul_rows_into(y, &inner, fc2, &Epilogue { bias, ..add })?;
            } else {
                let activate = Epilogue { activation: self.activation, ..Epilogue::default() };
                let inner = self.fc1.forward_fused(&x, norm, activate)?;
                self.fc2.forward_into(y, &inner, None, add)?;
            }
        }
        Ok(y)
    }

    /// Both maps, if what is between them can stay quantised.
    fn quantized(&self) -> Option<[(&QuantTensor, Option<&Tensor>); 2]> {
        match (self.fc1.quantized()?, self.fc2.quantized()?) {
            (fc1 @ (_, None), fc2) if self.activation == Activation::SwiGlu => Some([fc1, fc2]),
            _ => None,
        }
    }

    fn map(&self, f: &mut Map) -> Result<Self> {
        Ok(Self { fc1: self.fc1.map(f)?, fc2: self.fc2.map(f)?, ..*self })
    }
}
