//! The kernels of `compat`, for the GPU.

#![no_std]
#![feature(abi_ptx, asm_experimental_arch)] // the second for `constant!`

mod constants;
mod examples;
mod float_list;
mod floats;
mod indirect;
mod lowering;
mod output;
mod path_tracer;
mod planted;
mod scene;
mod shuffles;

include!("../../src/kernels.rs");
