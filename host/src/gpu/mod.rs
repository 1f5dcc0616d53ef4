//! One file per op: choose the kernel and the grid by shape, launch. Arguments have been checked by `ops`.

pub(crate) mod attention;
pub(crate) mod copy;
pub(crate) mod float16;
pub(crate) mod matmul;
pub(crate) mod quant;
pub(crate) mod softmax;
