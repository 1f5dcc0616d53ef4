//! Several virtual devices, models over them, and requests that run together.

use pascaline::Device;
use pascaline_virtual_gpu::{Config, GTX1060, GTX1080, MX330, configure, take_findings};
use qwen3_vl::batch::{Batch, BatchOptions, Event};
use qwen3_vl::generate::user_turn;
use qwen3_vl::{Checkpoint, LanguageModel, LoadOptions, Options, Placement, Visual};
use std::collections::BTreeMap;
use std::path::Path;

/// Answers to a short question, one about a picture, and a long one of so many words, whose parts pass beside running answers.
pub fn together(whys: usize, model: &LanguageModel) -> Vec<Vec<u32>> {
    let mut options = BatchOptions::with_room(2048);
    options.prompt_tokens = 32;
    let mut batch = Batch::new(model, options).unwrap();
    let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny/cases/square.png");
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

/// The virtual GPUs of a process of its own: an MX330, a GTX 1060 and a GTX 1080.
pub fn three_devices() -> Vec<Device> {
    let others = vec![(&GTX1060, None), (&GTX1080, None)];
    configure(Config { card: &MX330, others, traffic: false, ..Config::from_env().unwrap() }).unwrap();
    (0..3).map(|ordinal| Device::virtual_gpu_number(ordinal).unwrap()).collect()
}

pub fn no_findings(what: &str) {
    let findings = take_findings();
    assert!(findings.is_empty(), "{what}: {findings:?}");
}

/// The tiny model on these devices.
pub fn load(placement: &Placement) -> LanguageModel {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny");
    let checkpoint = Checkpoint::open(tiny, None).unwrap();
    let options = LoadOptions::for_device(placement.first());
    LanguageModel::load_placed(&checkpoint, None, placement, options, |_| {}).unwrap()
}

/// A short answer, or why there is none.
pub fn answer(model: &LanguageModel) -> pascaline::Result<Vec<u32>> {
    let options = Options { max_new_tokens: 6, stop_at_eos: false, ..Options::default() };
    model.generate(&[], "Hello", &options).map(|output| output.ids)
}
