//! Fuzz targets: everything that reads what strangers wrote. A target takes any bytes and must come back: with an answer or with
//! a typed error, within [`SECONDS`] and [`MEMORY`].
//!
//! `scripts/fuzz` searches for inputs that break this. `corpus/TARGET/` keeps seeds and every input that once did, and
//! `cargo test -p pascaline-fuzz` replays them.

mod checkpoint;
mod ptx;
mod request;

use qwen3_vl::preprocess::Picture;

/// The most time that an input may take.
pub const SECONDS: u64 = 10;
/// The most bytes of memory that the process may have.
pub const MEMORY: u64 = 1500 << 20;

/// What a target does with an input.
pub type Run = fn(&[u8]);

/// All targets by name, which is also that of the folder in `corpus/`. Other readers get their line here and their seeds there.
pub const TARGETS: [(&str, Run); 12] = [
    ("safetensors", checkpoint::safetensors),
    ("index", checkpoint::index),
    ("gguf", checkpoint::gguf),
    ("config", checkpoint::config),
    ("tokenizer", checkpoint::tokenizer),
    ("template", checkpoint::template),
    ("preprocessor", checkpoint::preprocessor),
    ("picture", picture),
    ("ptx_parse", ptx::parse),
    ("ptx_run", ptx::run),
    ("ptx_program", ptx::program),
    ("request", request::request),
];

/// The target of this name.
pub fn target(name: &str) -> Option<Run> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, run)| *run)
}

/// PNG, JPEG and WebP.
fn picture(input: &[u8]) {
    let _ = Picture::from_bytes("input", input);
}
