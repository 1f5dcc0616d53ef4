//! One file per op: choose the kernel and the grid by shape, and launch. `ops` has checked the arguments.

pub(crate) mod activate;
pub(crate) mod attention;
pub(crate) mod cast;
pub(crate) mod chosen_attention;
pub(crate) mod copy;
mod copy_flat;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod experts;
pub(crate) mod float16;
pub(crate) mod int8_attention;
pub(crate) mod layer_norm;
pub(crate) mod lora;
pub(crate) mod matmul;
pub(crate) mod paged_attention;
pub(crate) mod peak;
pub(crate) mod probe;
pub(crate) mod quant;
mod quant_tiles;
pub(crate) mod reduce;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod rope_append;
mod rows;
pub(crate) mod softmax;
#[cfg(feature = "sparse")]
pub(crate) mod sparse_attention;
pub(crate) mod transpose;
pub(crate) mod vectors;

#[cfg(feature = "training")]
#[path = "."]
mod training {
    use super::*;
    pub(crate) mod activate_backward;
    pub(crate) mod adamw8bit;
    pub(crate) mod attention_backward;
    pub(crate) mod column_sum;
    pub(crate) mod cross_entropy;
    pub(crate) mod dequant_linear;
    pub(crate) mod embedding_backward;
    pub(crate) mod norm_backward;
    pub(crate) mod optimizer;
    pub(crate) mod quantize_scaled;
    pub(crate) mod softmax_backward;
}
#[cfg(feature = "training")]
pub(crate) use training::*;

use crate::memory::DeviceBuffer;
use crate::{DType, Shape, Tensor, TensorMut};
use kernels_gpu::device::F16;

/// An element type of tensors in kernels.
pub(crate) trait DeviceElement: Copy + 'static {
    /// The tensor's type.
    const DTYPE: DType;
}

impl DeviceElement for f32 {
    const DTYPE: DType = DType::F32;
}

impl DeviceElement for F16 {
    const DTYPE: DType = DType::F16;
}

impl DeviceElement for u32 {
    const DTYPE: DType = DType::U32;
}

/// Rows and columns of a checked shape in the kernels' type.
pub(crate) fn matrix(shape: &Shape) -> [u32; 2] {
    let (rows, cols) = shape.rows_cols();
    [rows as u32, cols as u32]
}

/// Runs `$body` with `$T` bound to the element type of kernels for a floating-point `DType`, and `$kernels` to a reference to what there
/// is for f32 or for f16; `ops` has refused all others.
macro_rules! by_dtype {
    ($dtype:expr, $T:ident, $kernels:pat = [$of_f32:expr, $of_f16:expr] => $body:block) => {
        match $dtype {
            $crate::DType::F16 => {
                type $T = kernels_gpu::device::F16;
                let $kernels = &$of_f16;
                $body
            }
            _ => {
                type $T = f32;
                let $kernels = &$of_f32;
                $body
            }
        }
    };
}
pub(crate) use by_dtype;

impl Tensor {
    /// The device address of the first element; null on the CPU and for views without elements.
    pub(crate) fn ptr<T: DeviceElement>(&self) -> *const T {
        assert_eq!(self.dtype(), T::DTYPE, "the launch was chosen by the tensor's type");
        self.address() as *const T
    }
}

impl TensorMut<'_> {
    /// As [`Tensor::ptr`], for writing.
    pub(crate) fn ptr<T: DeviceElement>(&self) -> *mut T {
        assert_eq!(self.dtype(), T::DTYPE, "the launch was chosen by the tensor's type");
        self.address() as *mut T
    }
}

impl DeviceBuffer {
    /// The device address of its first byte, as a pointer to elements.
    pub(crate) fn ptr<T>(&self) -> *mut T {
        self.address_to_queue() as *mut T
    }
}
