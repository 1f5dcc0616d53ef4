//! A model over devices of which one is lost: how it is loaded, and what it answers.

use qwen3_vl::{Checkpoint, LoadOptions, Options, Placement, Qwen3Vl};
use std::path::Path;

pub fn load(placement: &Placement) -> Qwen3Vl {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3-vl/tiny");
    let checkpoint = Checkpoint::open(tiny, None).unwrap();
    let options = LoadOptions::for_device(placement.first());
    Qwen3Vl::load_placed(&checkpoint, None, placement, options, |_| {}).unwrap()
}

pub fn answer(model: &Qwen3Vl) -> pascaline::Result<Vec<u32>> {
    let options = Options { max_new_tokens: 6, stop_at_eos: false, ..Options::default() };
    model.generate(&[], "Hello", &options).map(|output| output.ids)
}
