//! libcuda.so.1 over the virtual GPU: CUDA programs run, checked, on machines without a GPU.
//!
//! Every function of cuda.h is exported. One that the virtual GPU has is its own; the others return
//! `CUDA_ERROR_NOT_SUPPORTED`, and the report names those that were called.
//!
//! * `names`: the names; `entry`: the exported functions; `lookup`: which function stands for a name, and `cuGetProcAddress`;
//!   `texts`: errors' names; `record`: what is reported at the end.
//!
//! For Linux on x86-64; elsewhere the library is empty.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

#[cfg(test)]
mod documented;
mod entry;
mod lookup;
mod names;
mod record;
#[allow(dead_code)] // the driver's seam needs more of it
#[path = "../../../driver/src/code_texts.rs"]
mod texts;

/// When the library is loaded.
extern "C" fn load() {
    entry::fill();
    record::begin();
}

/// When the process ends by `exit` or by returning from `main`.
extern "C" fn unload() {
    record::end();
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOAD: extern "C" fn() = unload;
