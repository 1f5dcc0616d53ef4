//! What GPU kernels are written with: Rust-CUDA's cuda_std interface over rustc's NVPTX back end.
