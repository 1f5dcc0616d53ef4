//! The kernels of `compat`, for the GPU.

#![no_std]
#![feature(abi_ptx)]

include!("../../src/kernels.rs");
