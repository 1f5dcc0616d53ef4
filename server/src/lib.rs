//! Qwen3-VL behind an OpenAI-compatible HTTP interface, with a page to talk to.

pub mod metrics;
pub mod worker;
