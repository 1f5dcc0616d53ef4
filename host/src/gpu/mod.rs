//! One file per op: choose the kernel and the grid by shape, and launch. `ops` has checked the arguments.

pub(crate) mod activate;
pub(crate) mod activate_backward;
pub(crate) mod adamw8bit;
pub(crate) mod attention;
pub(crate) mod attention_backward;
pub(crate) mod cast;
pub(crate) mod column_sum;
pub(crate) mod copy;
pub(crate) mod cross_entropy;
pub(crate) mod dequant_linear;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod embedding_backward;
pub(crate) mod float16;
pub(crate) mod layer_norm;
pub(crate) mod matmul;
pub(crate) mod norm_backward;
pub(crate) mod optimizer;
pub(crate) mod paged_attention;
pub(crate) mod peak;
pub(crate) mod probe;
pub(crate) mod quant;
pub(crate) mod quantize_scaled;
pub(crate) mod reduce;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod rope_append;
mod rows;
pub(crate) mod softmax;
pub(crate) mod softmax_backward;
#[cfg(feature = "sparse")]
pub(crate) mod sparse_attention;
pub(crate) mod transpose;
pub(crate) mod vectors;

use crate::memory::DeviceBuffer;
use crate::{DType, Tensor, TensorMut};
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
