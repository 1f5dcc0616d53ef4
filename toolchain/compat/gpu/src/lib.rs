//! The kernels of `compat`, for the GPU.

#![no_std]
#![feature(abi_ptx)]

mod examples;
mod float_list;
mod floats;
mod indirect;
mod lowering;
mod output;
mod planted;
mod shuffles;

include!("../../src/kernels.rs");
