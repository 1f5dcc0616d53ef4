//! Compiles `kernels-gpu` to `$OUT_DIR/pascaline-kernels.ptx`, which `host/src/cuda/module.rs` embeds.

use cuda_builder::{CudaBuilder, NvvmArch};

fn main() {
    cuda_builder::stand_in_as_linker();
    println!("cargo:rerun-if-changed=build.rs");
    let built = CudaBuilder::new("kernels-gpu")
        .arch(NvvmArch::Compute61)
        .prebuilt("kernels-gpu/prebuilt/kernels.ptx")
        .build();
    match built {
        Ok(ptx) => println!("cargo:rustc-env=PASCALINE_PTX={}", ptx.display()),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
