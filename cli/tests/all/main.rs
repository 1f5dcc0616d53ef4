//! The program's tests: each starts it as a user does.

mod common;

mod cli;
mod conversations;
mod devices;
mod embed;
mod experts;
mod finetune;
mod fit;
mod gguf_cli;
mod hub;
mod media;
mod new;
mod outputs;
mod profile;
mod qwen3_vl_cli;
mod report;
#[cfg(unix)]
mod serve;
#[cfg(unix)]
mod terminal;
mod virtual_driver;
