//! Steps of optimisers over all parameters at once.

use crate::Tensor;

/// A step of AdamW (Loshchilov & Hutter 2019, algorithm 2) where the decay is multiplied by the learning rate, as in
/// PyTorch.
///
/// With g the gradient times `gradient_scale`: m = β₁m + (1 − β₁)g, v = β₂v + (1 − β₂)g²,
/// p = p(1 − lr·decay) − lr·m̂ / (√v̂ + eps), m̂ = m / (1 − β₁ᵗ), v̂ = v / (1 − β₂ᵗ).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// The learning rate.
    pub lr: f32,
    /// β₁ and β₂.
    pub betas: [f32; 2],
    /// Added to the root of the second moment.
    pub eps: f32,
    /// t, the number of this step: 1 for the first.
    pub step: u32,
    /// A factor on the gradients, for clipping and to undo a scaled loss.
    pub gradient_scale: f32,
}

impl AdamW {
    /// 1 / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ).
    pub(crate) fn corrections(&self) -> [f32; 2] {
        let [first, second] = self.betas.map(|beta| 1.0 - f64::from(beta).powf(self.step.into()));
        [(1.0 / first) as f32, (1.0 / second.sqrt()) as f32]
    }
}

impl Default for AdamW {
    fn default() -> Self {
        Self { lr: 1e-3, betas: [0.9, 0.999], eps: 1e-8, step: 1, gradient_scale: 1.0 }
    }
}

/// A parameter of [`adamw_step`](crate::ops::adamw_step): tensors of equal size, f32 and contiguous.
pub struct AdamWTensor<'a> {
    /// p; read and written.
    pub parameter: &'a mut Tensor,
    /// The gradient.
    pub gradient: &'a Tensor,
    /// m, the running mean of the gradient; zeros at first.
    pub first: &'a mut Tensor,
    /// v, the running mean of its square; zeros at first.
    pub second: &'a mut Tensor,
    /// The decay.
    pub weight_decay: f32,
}

/// A step of gradient descent with momentum, as in PyTorch. With g the gradient times `gradient_scale` plus decay·p: b =
/// momentum·b + g, p = p − lr·b.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// The learning rate.
    pub lr: f32,
    /// The factor on the previous step.
    pub momentum: f32,
    /// A factor on the gradients, for clipping and to undo a scaled loss.
    pub gradient_scale: f32,
}

/// A parameter of [`sgd_step`](crate::ops::sgd_step): tensors of equal size, f32 and contiguous.
pub struct SgdTensor<'a> {
    /// p; read and written.
    pub parameter: &'a mut Tensor,
    /// The gradient.
    pub gradient: &'a Tensor,
    /// b; zeros at first.
    pub momentum: &'a mut Tensor,
    /// The decay.
    pub weight_decay: f32,
}
