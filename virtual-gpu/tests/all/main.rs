//! The virtual GPU by itself.

mod common;

mod arrays;
mod checks;
mod context_limits;
mod control_flow;
mod driver_api;
mod foreign;
mod gpu;
mod graph_memory;
mod graphs;
mod independent_lanes;
mod instructions;
mod lines;
mod matrices;
mod newer_api;
mod newer_archs;
mod nvcc;
mod orders;
mod pointer_calls;
mod references;
mod several_devices;
mod surfaces;
mod textures;
mod video;
