//! The server's tests: it runs in their process, on the tiny model.
//!
//! Tests that change the state of their process run in one of their own (`tests/all/common/process.rs` of the workspace).

mod common;

mod api;
mod api_tools;
mod device_lost;
mod hostile;
mod interfaces;
mod media;
mod models;
mod out_of_memory;
mod panics;
mod replicas;
mod request_id;
mod together;
mod trouble;
mod virtual_gpu;
