//! One file per op: choose the kernel and the grid by shape, launch. Arguments have been checked by `ops`.

pub(crate) mod activate;
pub(crate) mod attention;
pub(crate) mod cast;
pub(crate) mod copy;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod float16;
pub(crate) mod layer_norm;
pub(crate) mod matmul;
pub(crate) mod peak;
pub(crate) mod quant;
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
