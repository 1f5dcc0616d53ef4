//! Kernels that are written as for Rust-CUDA, compiled by `cuda_builder` and launched on the virtual GPU, where other tests look at their PTX.

extern crate ours as cuda_std; // for the path in a list of functions

mod common;

mod constants;
mod examples;
mod findings;
mod floats;
mod indirect;
mod launch;
mod lowering;
mod options;
mod output;
mod path_tracer;
mod shuffles;
