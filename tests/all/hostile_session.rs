//! Requests that make no sense, made by a program or by a configuration: each is refused with a typed error, at once and
//! before memory is taken for it.

use pascaline::kv::{KvFormat, KvTensor};
use pascaline::nn::KvCache;
use pascaline::{DType, Device, Error, Result, Tensor};
use qwen3_vl::chat::{Media, Spellings, expand};
use qwen3_vl::config::seeing;
use qwen3_vl::generate::user_turn;
use qwen3_vl::positions::positions;
use qwen3_vl::preprocess::{Bounds, Patches, Picture, smart_resize};
use qwen3_vl::weights::Weights;
use qwen3_vl::{Options, Prompt, Qwen3Vl, Session, StopReason, Visual};
use serde_json::{Value, json};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tempfile::TempDir;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny")
}

static MODEL: LazyLock<Qwen3Vl> = LazyLock::new(|| Qwen3Vl::load(tiny(), &Device::Cpu).unwrap());

fn prompt(model: &Qwen3Vl, visuals: &[Visual]) -> Prompt {
    model.processor.prepare(&[user_turn(visuals, "What is it?")], visuals).unwrap()
}

fn generate(model: &Qwen3Vl, session: &mut Session, prompt: &Prompt, tokens: usize) -> Result<Vec<u32>> {
    let options = Options { max_new_tokens: tokens, ..Options::default() };
    model.generate_from(session, prompt, &options, |_| ControlFlow::Continue(())).map(|output| output.ids)
}

/// A copy of the checkpoint with one field of one of its files changed.
fn changed(file: &str, field: &str, value: Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(tiny()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
    }
    let mut root: Value = serde_json::from_slice(&fs::read(tiny().join(file)).unwrap()).unwrap();
    *root.pointer_mut(field).unwrap() = value;
    fs::write(folder.path().join(file), root.to_string()).unwrap();
    folder
}

/// The same shapes and other weights: the cache of one is useless to the other.
#[test]
fn a_session_is_refused_by_another_model() {
    let other = Qwen3Vl::load(tiny(), &Device::Cpu).unwrap();
    let (prompt, mut session) = (prompt(&MODEL, &[]), MODEL.session().unwrap());
    let ids = generate(&MODEL, &mut session, &prompt, 4).unwrap();
    let refused = generate(&other, &mut session, &prompt, 4);
    assert!(matches!(refused, Err(Error::Unsupported { argument: "session", .. })), "{refused:?}");
    assert_eq!(generate(&MODEL, &mut session, &prompt, 4).unwrap(), ids, "it is still good for its own");
    assert_eq!(generate(&other, &mut other.session().unwrap(), &prompt, 4).unwrap(), ids);
}

#[test]
fn numbers_beyond_all_sizes_are_refused() {
    let picture = Visual::image(&tiny().join("cases/small.png")).unwrap();
    let whole = prompt(&MODEL, &[picture]);
    let refused = |prompt: &Prompt, tokens: usize| {
        let mut session = MODEL.session().unwrap();
        let refused = generate(&MODEL, &mut session, prompt, tokens);
        assert!(generate(&MODEL, &mut session, &whole, 2).is_ok());
        refused.expect_err("it makes no sense")
    };
    for tokens in [usize::MAX, usize::MAX - whole.ids.len() + 1, 1 << 40, 1 << 24] {
        let options = Options { max_new_tokens: tokens, stop_at_eos: false, ..Options::default() };
        let mut session = MODEL.session().unwrap();
        let first = MODEL.generate_from(&mut session, &whole, &options, |piece| match piece {
            "" => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        });
        assert_eq!(
            first.unwrap().stop_reason,
            StopReason::Cancelled,
            "the answer ends where the context does"
        );
    }
    for rope_delta in [i64::MAX, i64::MIN, u32::MAX.into(), i64::from(u32::MAX) - 100, -1000] {
        let mut prompt = whole.clone();
        prompt.positions.rope_delta = rope_delta;
        assert!(matches!(refused(&prompt, 8), Error::Prompt { .. }), "{rope_delta}");
    }
    let huge = 1 << 32;
    for grid in
        [[usize::MAX; 3], [huge, huge, 1], [1, huge, huge], [0, 2, 2], [1, 1, 1], [2, 2, 2], [1, 0, 0]]
    {
        let mut prompt = whole.clone();
        prompt.patches[0].grid = grid;
        assert!(matches!(refused(&prompt, 8), Error::Shape { .. }), "{grid:?}");
        let see = MODEL.encode_image(&prompt.patches[0]);
        assert!(matches!(see, Err(Error::Shape { op: "VisionTower", .. })), "{grid:?}");
        let positions = MODEL.processor.positions(&whole.ids, [grid].into_iter());
        assert!(matches!(positions, Err(Error::Prompt { .. })), "{grid:?}");
    }
    assert!(MODEL.encode_image(&Patches { grid: [1, 2, 2], values: Vec::new() }).is_err());
    for id in [u32::MAX, MODEL.config().text.vocab_size as u32] {
        let mut prompt = whole.clone();
        *prompt.ids.last_mut().unwrap() = id;
        assert!(refused(&prompt, 8).to_string().contains("outside the vocabulary"));
    }
}

#[test]
fn positions_of_grids_beyond_all_sizes_are_refused() {
    let is_pad = |id| id == 9;
    let huge = usize::MAX / 2;
    for grid in [[huge, 2, 2], [2, huge, huge], [huge, 0, 0], [1, 1, 1]] {
        let found = positions(&[9; 4], is_pad, &[grid], 2);
        assert!(matches!(found, Err(Error::Prompt { .. })), "{grid:?}: {found:?}");
    }
    let spelled =
        Spellings::new(seeing(MODEL.config()).unwrap(), |id| MODEL.processor.tokenizer.spelling(id));
    let text = MODEL.processor.render(&[qwen3_vl::chat::Message::user(1, "x")], &[]).unwrap();
    for tokens in [usize::MAX, 1 << 40, 1 << 25] {
        let found = expand(&text, &[Media::Image { tokens }], &spelled);
        assert!(matches!(found, Err(Error::Prompt { .. })), "{tokens} pads");
    }
}

#[test]
fn a_cache_counts_no_tokens_beyond_its_room() {
    let mut cache = KvCache::new(2, 1, 4, KvFormat::F32, &Device::Cpu).unwrap();
    cache.reserve(8).unwrap();
    cache.advance(3).unwrap();
    for tokens in [6, usize::MAX, usize::MAX - 2] {
        assert!(matches!(cache.advance(tokens), Err(Error::Shape { .. })), "{tokens}");
        assert_eq!(cache.len(), 3);
    }
    for tokens in [usize::MAX, 1 << 40] {
        assert!(matches!(cache.reserve(tokens), Err(Error::TooLarge { .. })), "{tokens}");
    }
    assert_eq!((cache.len(), cache.capacity()), (3, 8));
}

/// The system refuses as much as this at once, whatever it promises otherwise.
#[test]
fn memory_that_the_machine_does_not_have_is_an_error() {
    let shape = [1 << 20, 1 << 25];
    for dtype in [DType::F32, DType::F16, DType::U32] {
        let refused = Tensor::zeros(shape, dtype, &Device::Cpu).map(drop);
        assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    }
    assert!(KvTensor::uninitialized([1 << 25, 8, 8], KvFormat::F32, &Device::Cpu).is_err());
}

/// Layers that no file has are counted and not listed: 2²⁴ of them would take gigabytes by their names alone.
#[test]
fn a_configuration_of_endless_layers_is_refused_at_once() {
    for (field, least) in [("/text_config/num_hidden_layers", 11u64), ("/vision_config/depth", 12)] {
        let folder = changed("config.json", field, json!(1 << 24));
        let config = qwen3_vl::config::load(folder.path()).unwrap();
        match Weights::open(folder.path(), &config, DType::F32, &Device::Cpu).map(drop) {
            Err(Error::Checkpoint { reason, .. }) => {
                let count = reason.split(' ').find_map(|word| word.parse::<u64>().ok());
                assert!(count.is_some_and(|count| count > least << 24), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_preprocessor_of_endless_pixels_is_refused_at_once() {
    for pixels in [1u64 << 28, 1 << 32] {
        let folder = changed("preprocessor_config.json", "/size", json!({}));
        let limits = json!({"shortest_edge": pixels, "longest_edge": pixels});
        let file = folder.path().join("preprocessor_config.json");
        let mut root: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        root["size"] = limits;
        fs::write(&file, root.to_string()).unwrap();
        let processor = qwen3_vl::processor(folder.path()).unwrap();
        let picture = Visual::from(Picture { height: 10, width: 10, pixels: vec![0; 300] });
        let refused = processor.prepare(&[user_turn(std::slice::from_ref(&picture), "x")], &[picture]);
        match refused {
            Err(Error::Image { reason, .. }) => {
                assert!(reason.contains("it takes more than 1.0 GiB"), "{reason}")
            }
            other => panic!("{:?}", other.map(|prompt| prompt.ids.len())),
        }
    }
}

#[test]
fn pictures_that_are_not_what_they_say_are_refused() {
    let processor = &MODEL.processor;
    for (height, width, values) in
        [(10, 10, 299), (1 << 40, 1 << 40, 0), (usize::MAX, usize::MAX, 3), (4, 4, 0)]
    {
        let picture = Visual::from(Picture { height, width, pixels: vec![0; values] });
        let refused =
            processor.prepare(&[user_turn(std::slice::from_ref(&picture), "x")], &[picture]).map(drop);
        assert!(matches!(refused, Err(Error::Image { .. })), "{height} × {width}: {refused:?}");
    }
    let huge = usize::MAX;
    for (size, frames) in [((huge, huge), 1), ((huge / 2, huge / 100), 7), ((8, 8), huge)] {
        let bounds = Bounds { factor: 32, min_pixels: 1, max_pixels: huge, frames, group: 2 };
        smart_resize("picture", size, bounds).unwrap(); // no overflow; what it takes is budgeted by who resizes
    }
}

/// A pipe in a file's place is refused; its writer, who never comes, is not waited for.
#[cfg(unix)]
#[test]
fn pipes_in_the_place_of_files_are_refused() {
    for name in ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"] {
        let folder = changed("config.json", "/model_type", json!("qwen3_vl"));
        let file = folder.path().join(name);
        fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let (sender, receiver) = std::sync::mpsc::channel();
        let dir = folder.path().to_owned();
        std::thread::spawn(move || sender.send(Qwen3Vl::load(dir, &Device::Cpu).map(drop)));
        let refused =
            receiver.recv_timeout(std::time::Duration::from_secs(20)).expect("it waits for the pipe");
        match refused {
            Err(Error::Checkpoint { file: found, reason, .. }) => {
                assert!(found.contains(name) && reason.contains("not an ordinary file"), "{found}: {reason}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}
