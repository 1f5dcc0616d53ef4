//! A model over two and three virtual devices: the same bits as on one, whichever way values take between them, and no
//! finding of the virtual GPU, which looks for missing waits in every order.

use crate::common::process::in_own_process;
use crate::common::several::{no_findings, three_devices, together};
use pascaline::memory::Way;
use pascaline::{DType, Device, Error, memory};
use qwen3_vl::{Checkpoint, LoadOptions, Options, Placement, Qwen3Vl, Visual};
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl").join(name)
}

fn load(name: &str, placement: &Placement, options: LoadOptions) -> Qwen3Vl {
    let checkpoint = Checkpoint::open(fixture(name), None).unwrap();
    Qwen3Vl::load_placed(&checkpoint, None, placement, options, |_| {}).unwrap()
}

fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

/// Logits of a text, and of an answer about a picture the tokens.
fn results(model: &Qwen3Vl, graph: bool) -> (Vec<u32>, Vec<u32>) {
    let ids: Vec<u32> = (1..12).collect();
    let logits = model.trace(&ids, &[], &[], |_, _| {}).unwrap().to_vec().unwrap();
    let picture = [Visual::image(&fixture("tiny/cases/square.png")).unwrap()];
    let options = Options { max_new_tokens: 5, stop_at_eos: false, graph, ..Options::default() };
    (bits(logits), model.generate(&picture, "What colour?", &options).unwrap().ids)
}

#[test]
fn a_split_model_gives_the_same_bits() {
    in_own_process!();
    let devices = three_devices();
    // in passes of 13 tokens, so that several parts of a prompt are on their way at the same time
    let usual =
        LoadOptions { tokens_per_pass: 13, dtype: DType::F32, ..LoadOptions::for_device(&devices[0]) };
    let expected = results(&load("tiny", &Placement::one(&devices[0], 3), usual), true);
    for (layers, vision, way, graph) in [
        (vec![2, 1], 0, Way::Peer, true),
        (vec![1, 2], 1, Way::Pinned, true),
        (vec![0, 3], 0, Way::Peer, false),
        (vec![1, 1, 1], 2, Way::Pinned, false),
    ] {
        let placement = Placement::split(&devices[..layers.len()], &layers, vision).unwrap().by(way);
        let model = load("tiny", &placement, usual);
        assert!(model.ways().iter().all(|taken| *taken == way));
        assert_eq!(results(&model, graph), expected, "{layers:?}, {way:?}, graph {graph}");
        no_findings(&format!("{layers:?}, {way:?}"));
    }
    // each device holds its own layers and nothing of the others'
    let live = |device: &Device| match device {
        Device::Cuda(device) => memory::pool(device).unwrap().statistics().live,
        Device::Cpu => 0,
    };
    let before: Vec<_> = devices.iter().map(live).collect();
    let model = load("tiny", &Placement::split(&devices, &[1, 1, 1], 0).unwrap(), usual);
    let taken: Vec<_> = devices.iter().map(live).zip(before).map(|(now, before)| now - before).collect();
    assert!(taken[0] > taken[1] && taken[2].abs_diff(taken[1]) < 4096, "{taken:?}");
    assert!(taken[1] > 0 && taken[1] * 3 < model.weight_bytes() * 2, "{taken:?}");
}

#[test]
fn guessed_tokens_are_the_same_over_devices() {
    in_own_process!();
    let devices = three_devices();
    let usual = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&devices[0]) };
    // a small model repeats itself, which is what guesses are for
    let answer = |model: &Qwen3Vl, prompt_lookup, graph| {
        let options =
            Options { max_new_tokens: 40, stop_at_eos: false, prompt_lookup, graph, ..Options::default() };
        let question = "one two three one two three one two three one two";
        let output = model.generate(&[], question, &options).unwrap();
        (output.ids, output.statistics.guessed_tokens)
    };
    let (expected, none) = answer(&load("tiny", &Placement::one(&devices[0], 3), usual), false, true);
    assert_eq!((expected.len(), none), (40, 0));
    for (placement, graph) in [
        (Placement::split(&devices[..2], &[2, 1], 0).unwrap(), true),
        (Placement::split(&devices, &[1, 1, 1], 0).unwrap(), false),
        (Placement::rows(&devices[..2], 3, 0).unwrap(), true),
    ] {
        let (ids, guessed) = answer(&load("tiny", &placement, usual), true, graph);
        assert_eq!(ids, expected, "{placement:?}");
        assert!(guessed > 0, "nothing was guessed, so nothing was shown: {placement:?}");
        no_findings("guesses");
    }
}

#[test]
fn many_requests_share_split_devices() {
    in_own_process!();
    let devices = three_devices();
    let usual = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&devices[0]) };
    let expected = together(150, &load("tiny", &Placement::one(&devices[0], 3), usual));
    assert_eq!(expected.len(), 3);
    for (layers, way) in [(vec![2, 1], Way::Peer), (vec![1, 1, 1], Way::Pinned)] {
        let placement = Placement::split(&devices[..layers.len()], &layers, 0).unwrap().by(way);
        assert_eq!(together(150, &load("tiny", &placement, usual)), expected, "{layers:?}");
        no_findings(&format!("{layers:?}"));
    }
}

#[test]
fn what_is_no_split_is_refused() {
    in_own_process!();
    let devices = three_devices();
    let error = |devices: &[Device], layers: &[usize], vision| {
        Placement::split(devices, layers, vision).unwrap_err().to_string()
    };
    assert!(error(&devices, &[1, 2], 0).contains("2 numbers for 3 devices"));
    assert!(error(&devices, &[0, 0, 0], 0).contains("no device gets any"));
    assert!(error(&[devices[0].clone(), devices[0].clone()], &[1, 2], 0).contains("it comes twice"));
    assert!(error(&[devices[0].clone(), Device::Cpu], &[1, 2], 0).contains("only GPUs can share a model"));
    assert!(error(&devices, &[1, 1, 1], 3).contains("no device of this number"));
    let checkpoint = Checkpoint::open(fixture("tiny"), None).unwrap();
    let load = |layers: &[usize], options: LoadOptions| {
        let placement = Placement::split(&devices[..layers.len()], layers, 0).unwrap();
        Qwen3Vl::load_placed(&checkpoint, None, &placement, options, |_| {}).map(|_| ()).unwrap_err()
    };
    let usual = LoadOptions::for_device(&devices[0]);
    assert!(load(&[2, 2], usual).to_string().contains("the model has 3 decoder layers"));
    let streamed = load(&[2, 1], LoadOptions { gpu_layers: Some(1), ..usual });
    assert!(matches!(streamed, Error::Unsupported { argument: "gpu_layers", .. }), "{streamed}");
}
