//! Requests that run together.

use qwen3_vl::batch::{Batch, BatchOptions, Event};
use qwen3_vl::generate::user_turn;
use qwen3_vl::{Options, Qwen3Vl, Visual};
use std::collections::BTreeMap;
use std::path::Path;

/// Answers to a short question, one about a picture, and a long one of so many words, whose parts pass beside running answers.
pub fn together(whys: usize, model: &Qwen3Vl) -> Vec<Vec<u32>> {
    let mut options = BatchOptions::with_room(2048);
    options.prompt_tokens = 32;
    let mut batch = Batch::new(model, options).unwrap();
    let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3-vl/tiny/cases/square.png");
    let picture = [Visual::image(&picture).unwrap()];
    let long = "why ".repeat(whys);
    for (visuals, question) in [(&[][..], "Hello"), (&picture[..], "What colour?"), (&[][..], long.as_str())]
    {
        let prompt = model.processor.prepare(&[user_turn(visuals, question)], visuals).unwrap();
        let options = Options { max_new_tokens: 4, stop_at_eos: false, ..Options::default() };
        batch.add(prompt, &options).unwrap();
    }
    let mut answers = BTreeMap::new();
    while !batch.is_idle() {
        for event in batch.step() {
            match event {
                Event::Finished { id, output, .. } => _ = answers.insert(id, output.ids),
                Event::Failed { error, .. } => panic!("{error}"),
                Event::Token { .. } => {}
            }
        }
    }
    answers.into_values().collect()
}
