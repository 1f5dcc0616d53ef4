//! Compiling the kernels of `gpu/` from a program's test, as a build script does.

use cuda_builder::{CudaBuilder, CudaBuilderError};
use std::path::Path;

/// The builder of the GPU crate. Call it first: it sets a variable of the environment, as cargo does for build scripts.
pub fn builder() -> CudaBuilder {
    // SAFETY: no other thread runs yet: each of these tests is a program of its own, which calls this first.
    unsafe { std::env::set_var("OUT_DIR", env!("CARGO_TARGET_TMPDIR")) };
    CudaBuilder::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu"))
}

/// The PTX; `None`, with a line that says which test is skipped, where it can't be compiled.
pub fn ptx(builder: CudaBuilder, what: &str) -> Result<Option<String>, Box<dyn std::error::Error>> {
    match builder.build() {
        Err(error @ (CudaBuilderError::NoToolchain(_) | CudaBuilderError::Unavailable(_))) => {
            eprintln!("SKIPPED: {what} ({error})");
            Ok(None)
        }
        built => Ok(Some(std::fs::read_to_string(built?)?)),
    }
}
