//! The position-wise part of a transformer block.

use super::{Linear, misfit};
use crate::{DType, Result, Tensor, TensorMut, ops};

/// Rows that are computed at a time: bounds the memory of the wide intermediate, and more rows would not make the
/// products faster.
const ROWS_PER_PIECE: usize = 4096;

/// What stands between two linear maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// GELU by the error function.
    GeluErf,
    /// GELU's tanh approximation.
    GeluTanh,
}

impl Activation {
    fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::GeluErf => ops::gelu_erf(x),
            Self::GeluTanh => ops::gelu_tanh(x),
        }
    }
}

/// A multilayer perceptron.
#[derive(Clone, Debug)]
pub enum Mlp {
    /// fc2(activation(fc1(x))).
    Plain {
        /// [mlp, hidden]
        fc1: Linear,
        /// Between the two.
        activation: Activation,
        /// [out, mlp]
        fc2: Linear,
    },
    /// down(silu(gate(x)) · up(x)): SwiGLU.
    Gated {
        /// [mlp, hidden]
        gate: Linear,
        /// [mlp, hidden]
        up: Linear,
        /// [out, mlp]
        down: Linear,
    },
}

impl Mlp {
    /// fc2(activation(fc1(x))).
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if the weights do not fit each other.
    pub fn plain(fc1: Linear, activation: Activation, fc2: Linear) -> Result<Self> {
        fits("fc2", &fc2, fc1.out_features())?;
        Ok(Self::Plain { fc1, activation, fc2 })
    }

    /// down(silu(gate(x)) · up(x)).
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if the weights do not fit each other.
    pub fn gated(gate: Linear, up: Linear, down: Linear) -> Result<Self> {
        fits("up", &up, gate.in_features())?;
        fits("down", &down, up.out_features())?;
        fits("down", &down, gate.out_features())?;
        Ok(Self::Gated { gate, up, down })
    }

    fn out_features(&self) -> usize {
        match self {
            Self::Plain { fc2: last, .. } | Self::Gated { down: last, .. } => last.out_features(),
        }
    }

    /// `x`: [rows, hidden] f32 → [rows, out] f32.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if `x` does not fit, or a device error.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let &[rows, _] = x.dims() else { return Err(misfit("Mlp", "x", "[rows, hidden]", x)) };
        let mut y = Tensor::uninitialized([rows, self.out_features()], DType::F32, &x.device())?;
        for start in (0..rows).step_by(ROWS_PER_PIECE) {
            let len = ROWS_PER_PIECE.min(rows - start);
            self.piece(y.view_mut()?.narrow(0, start, len)?, &x.narrow(0, start, len)?)?;
        }
        Ok(y)
    }

    fn piece(&self, y: TensorMut, x: &Tensor) -> Result<()> {
        match self {
            Self::Plain { fc1, activation, fc2 } => {
                fc2.forward_into(y, &activation.forward(&fc1.forward(x)?)?)
            }
            Self::Gated { gate, up, down } => {
                down.forward_into(y, &ops::silu_mul(&gate.forward(x)?, &up.forward(x)?)?)
            }
        }
    }

    /// Bytes of the weights.
    pub fn weight_bytes(&self) -> usize {
        match self {
            Self::Plain { fc1, fc2, .. } => fc1.weight_bytes() + fc2.weight_bytes(),
            Self::Gated { gate, up, down } => gate.weight_bytes() + up.weight_bytes() + down.weight_bytes(),
        }
    }
}

fn fits(argument: &'static str, linear: &Linear, width: usize) -> Result<()> {
    match linear.in_features() == width {
        true => Ok(()),
        false => Err(crate::Error::Shape {
            op: "Mlp",
            argument,
            expected: format!("[_, {width}]"),
            found: [linear.out_features(), linear.in_features()].into(),
        }),
    }
}
