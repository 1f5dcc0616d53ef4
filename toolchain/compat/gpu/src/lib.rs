//! The kernels of `compat`, for the GPU.

#![no_std]
#![feature(abi_ptx)]

mod lowering;

include!("../../src/kernels.rs");
