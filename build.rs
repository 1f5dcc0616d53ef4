//! Compiles `kernels-gpu` to `$OUT_DIR/pascaline-kernels.ptx`, which `host/src/cuda/module.rs` embeds.
//!
//! With `PASCALINE_UPDATE_PREBUILT=1` in the environment the PTX also replaces the committed one, which machines without
//! `core`'s sources use; a test fails while the two differ.

use cuda_builder::{CudaBuilder, NvvmArch};
use std::env;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=PASCALINE_UPDATE_PREBUILT");
    let mut builder = CudaBuilder::new("kernels-gpu")
        .arch(NvvmArch::Compute61)
        .prebuilt("kernels-gpu/prebuilt/kernels.ptx");
    if env::var_os("PASCALINE_UPDATE_PREBUILT").is_some() {
        builder = builder.copy_to("kernels-gpu/prebuilt/kernels.ptx");
    }
    match builder.build() {
        Ok(ptx) => println!("cargo:rustc-env=PASCALINE_PTX={}", ptx.display()),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
