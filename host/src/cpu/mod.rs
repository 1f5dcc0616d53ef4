//! The fallback: one file per op, with the file names of `gpu/`. Correct first, then fast. `ops` has checked the arguments.

pub(crate) mod activate;
pub(crate) mod attention;
pub(crate) mod cast;
pub(crate) mod chosen_attention;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod experts;
pub(crate) mod float16;
pub(crate) mod int8_attention;
pub(crate) mod layer_norm;
pub(crate) mod matmul;
pub(crate) mod paged_attention;
mod pieces;
pub(crate) mod quant;
pub(crate) mod reduce;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod rope_append;
pub(crate) mod softmax;
#[cfg(feature = "sparse")]
pub(crate) mod sparse_attention;
pub(crate) mod transpose;

#[cfg(feature = "training")]
#[path = "."]
mod training {
    use super::*;
    pub(crate) mod activate_backward;
    pub(crate) mod adamw8bit;
    pub(crate) mod attention_backward;
    pub(crate) mod column_sum;
    pub(crate) mod cross_entropy;
    pub(crate) mod embedding_backward;
    pub(crate) mod norm_backward;
    pub(crate) mod optimizer;
    pub(crate) mod quantize_scaled;
    pub(crate) mod softmax_backward;
}
#[cfg(feature = "training")]
pub(crate) use training::*;

use crate::{DType, Element, Error, Result, Tensor, TensorMut};

/// Work per rayon task, in elements: below it a task costs more than it saves.
pub(crate) const ELEMENTS_PER_TASK: usize = 1 << 14;

/// Runs `$body` with `$T` bound to the Rust type of a floating-point `DType`; `ops` has refused all others.
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F16 => {
                type $T = half::f16;
                $body
            }
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}
pub(crate) use with_float;

/// The elements of a CPU tensor from its first on.
pub(crate) fn slice<T: Element>(x: &Tensor) -> Result<&[T]> {
    let found = x.dtype();
    x.cpu().ok_or_else(|| internal::<T>(found))
}

/// The elements of a CPU output from its first on.
pub(crate) fn slice_mut<'a, T: Element>(y: &'a mut TensorMut<'_>) -> Result<&'a mut [T]> {
    let found = y.dtype();
    y.cpu().ok_or_else(|| internal::<T>(found))
}

fn internal<T: Element>(found: DType) -> Error {
    Error::DType { op: "cpu", argument: "tensor", expected: format!("{} in host memory", T::DTYPE), found }
}
