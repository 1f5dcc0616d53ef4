//! Compiles the crate in `kernels` to `kernels.ptx`, which `src/main.rs` embeds. Where it can't be compiled, the committed
//! `prebuilt.ptx` is used, and a warning says what is missing.

use cuda_builder::{CudaBuilder, CudaBuilderError};

fn main() -> Result<(), CudaBuilderError> {
    println!("cargo:rerun-if-changed=build.rs");
    CudaBuilder::new("kernels").prebuilt("prebuilt.ptx").copy_to("kernels.ptx").build()?;
    Ok(())
}
