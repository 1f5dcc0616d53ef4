//! Compiles a GPU crate to PTX in a build script, with Rust-CUDA's interface, over rustc's NVPTX back end.
