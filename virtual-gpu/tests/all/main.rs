//! The virtual GPU by itself.

mod common;

mod checks;
mod control_flow;
mod driver_api;
mod foreign;
mod gpu;
mod graphs;
mod instructions;
mod lines;
mod newer_api;
mod nvcc;
mod pointer_calls;
mod several_devices;
mod video;
