//! `pascaline._native`: the library and the model for Python. The package's other files are Python, in `package/`.
//!
//! Work runs with the GIL released. Memory is shared with numpy, and by DLPack with others, where it can be.

#![allow(clippy::too_many_arguments, reason = "a Python function's keyword arguments are parameters here")]

mod address;
mod device;
mod dlpack;
mod error;
mod gguf;
mod kv;
mod mask;
mod model;
mod ops;
mod picture;
mod plan;
mod quant;
mod tensor;
mod torch;

use pyo3::prelude::*;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    tensor::register(module)?;
    ops::register(module)?;
    quant::register(module)?;
    mask::register(module)?;
    module.add_class::<kv::PyKvTensor>()?;
    model::register(module)?;
    plan::register(module)?;
    gguf::register(module)?;
    torch::register(module)
}
