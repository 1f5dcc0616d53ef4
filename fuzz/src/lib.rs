//! Fuzz targets for all parsers of untrusted input, and for ops on the CPU beside the virtual GPU. A target takes any bytes and must return, with a result or with a typed error,
//! within [`SECONDS`] and [`MEMORY`].
//!
//! `scripts/fuzz` searches for inputs that break this. `corpus/TARGET/` keeps seeds and every input that once did, and
//! `cargo test -p pascaline-fuzz` replays them.

mod checkpoint;
pub mod ops;
mod ptx;
mod request;

use qwen3_vl::preprocess::Picture;

/// The most time that an input may take.
pub const SECONDS: u64 = 10;
/// The most bytes of memory that the process may have.
pub const MEMORY: u64 = 1500 << 20;

/// A target: parses an input.
pub type Run = fn(&[u8]);

/// All targets by name, which is also that of the folder in `corpus/`. A new parser gets a line here and seeds there.
pub const TARGETS: [(&str, Run); 14] = [
    ("safetensors", checkpoint::safetensors),
    ("index", checkpoint::index),
    ("gguf", checkpoint::gguf),
    ("config", checkpoint::config),
    ("tokenizer", checkpoint::tokenizer),
    ("template", checkpoint::template),
    ("training", checkpoint::training),
    ("preprocessor", checkpoint::preprocessor),
    ("picture", picture),
    ("ptx_parse", ptx::parse),
    ("ptx_run", ptx::run),
    ("ptx_program", ptx::program),
    ("request", request::request),
    ("ops", ops::ops),
];

/// The target of this name.
pub fn target(name: &str) -> Option<Run> {
    TARGETS.iter().find(|(known, _)| *known == name).map(|(_, run)| *run)
}

/// A picture in PNG, JPEG or WebP.
fn picture(input: &[u8]) {
    let _ = Picture::from_bytes("input", input);
}
