//! Adapters of PEFT's files: merged into plain matrices as they are loaded, and beside quantised ones.

use crate::common;
use crate::common::process::in_own_process;
use pascaline::{DType, Device, Error, Result, Tensor};
use qwen3_vl::batch::{Batch, BatchOptions, Event, KeyedPrompt};
use qwen3_vl::generate::user_turn;
use qwen3_vl::sampling::Sampler;
use qwen3_vl::{Checkpoint, LanguageModel, LoadOptions, Options, Prompt, Qwen3Vl, Visual};
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

/// An adapter of rank 1 that adds about alpha to every weight, as A and B are about 1.
pub fn write(dir: &Path, module: &str, [n, k]: [usize; 2], alpha: f32) {
    let name = |part: &str| format!("base_model.model.{module}.lora_{part}.weight");
    let header = json!({
        name("A"): {"dtype": "F32", "shape": [1, k], "data_offsets": [0, 4 * k]},
        name("B"): {"dtype": "F32", "shape": [n, 1], "data_offsets": [4 * k, 4 * (k + n)]},
    });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    // unlike in each part of a matrix
    file.extend((0..n + k).flat_map(|i| (0.5 + (i * 7 % 11) as f32 / 10.0).to_le_bytes()));
    fs::write(dir.join("adapter_model.safetensors"), file).unwrap();
    let config = json!({"peft_type": "LORA", "r": 1, "lora_alpha": alpha, "bias": "none"});
    fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
}

/// The logits of a few tokens, with a GGUF file's matrices kept quantised.
fn logits(checkpoint: &Checkpoint, dtype: DType) -> Result<Vec<f32>> {
    let options = LoadOptions { dtype, ..LoadOptions::for_device(&Device::Cpu) };
    let model = Qwen3Vl::load_checkpoint(checkpoint, &Device::Cpu, options, |_| {})?;
    model.trace(&[1, 2, 3], &[], &[], |_, _: &Tensor| {})?.to_vec()
}

#[test]
fn an_adapter_changes_plain_and_quantized_matrices() {
    in_own_process!();
    let (tiny, gguf) = ("fixtures/qwen3-vl/tiny", "fixtures/qwen3-vl-gguf/model-Q8_0.gguf");
    for (path, dtype) in [(tiny, DType::F32), (tiny, DType::F16), (gguf, DType::F32)] {
        let config = Checkpoint::open(path, None).unwrap().config().unwrap().text;
        let (module, shape) =
            ("model.language_model.layers.1.mlp.down_proj", [config.hidden_size, config.intermediate_size]);
        let dir = tempfile::tempdir().unwrap();
        let adapted = |alpha: f32| {
            write(dir.path(), module, shape, alpha);
            logits(&Checkpoint::open(path, None).unwrap().with_adapter(dir.path()).unwrap(), dtype).unwrap()
        };
        let plain = logits(&Checkpoint::open(path, None).unwrap(), dtype).unwrap();
        let apart = |found: &[f32]| {
            let differences = found.iter().zip(&plain).map(|(a, b)| f64::from((a - b).abs()));
            differences.fold(0.0, f64::max)
        };
        let (nothing, something) = (apart(&adapted(0.0)), apart(&adapted(0.01)));
        // quantised matrices stay as they are
        assert!(nothing == 0.0 && something > 1e-3, "{path} in {dtype:?}: {nothing} {something}");
    }
}

#[test]
fn an_adapter_of_another_model_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Checkpoint::open("fixtures/qwen3-vl/tiny", None).unwrap().with_adapter(dir.path());
    let error = |module: &str, shape: [usize; 2]| {
        write(dir.path(), module, shape, 1.0);
        logits(&open().unwrap(), DType::F32).unwrap_err().to_string()
    };
    let q_proj = "model.language_model.layers.0.self_attn.q_proj";
    assert!(error("model.language_model.layers.99.mlp.up_proj", [3, 3]).contains("no linear map"));
    assert!(error(q_proj, [3, 64]).contains("changes a matrix of [3, 64]"));

    write(dir.path(), q_proj, [128, 64], 1.0);
    let config = |value: &str| fs::write(dir.path().join("adapter_config.json"), value).unwrap();
    for (text, part) in [
        (r#"{"peft_type": "IA3", "r": 1, "lora_alpha": 1}"#, "IA3"),
        (r#"{"r": 2, "lora_alpha": 1}"#, "rank"),
        (r#"{"lora_alpha": 1}"#, "r:"),
        (r#"{"r": 1, "lora_alpha": 1, "use_dora": true}"#, "use_dora"),
        (r#"{"r": 1, "lora_alpha": 1e39}"#, "lora_alpha"),
        (r#"{"r": 1, "lora_alpha": -16777217}"#, "lora_alpha"),
    ] {
        config(text);
        let error = open().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

const TINY: &str = "fixtures/qwen3-vl/tiny";
/// The adapters that requests choose among, each of one matrix: of the decoder, of its stacked projections, and of the tower.
const NAMED: [(&str, &str, f32); 3] = [
    ("down", "model.language_model.layers.1.mlp.down_proj", 1.0),
    ("query", "model.language_model.layers.0.self_attn.q_proj", 2.0),
    ("tower", "model.visual.merger.linear_fc2", 4.0),
];

fn answer(model: &LanguageModel, prompt: &Prompt, options: &Options) -> Vec<u32> {
    let go_on = |_: &str| ControlFlow::Continue(());
    model.generate_from(&mut model.session().unwrap(), prompt, options, go_on).unwrap().ids
}

/// Requests at once, of which each names an adapter or none, are answered as by a model with this adapter alone.
fn check_named(path: &str, device: &Device, named: &[(&str, &str, f32)], visuals: &[Visual], tokens: usize) {
    let dir = tempfile::tempdir().unwrap();
    let open = || Checkpoint::open(path, None).unwrap();
    let options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(device) };
    let load =
        |checkpoint: &Checkpoint| Qwen3Vl::load_checkpoint(checkpoint, device, options, |_| {}).unwrap();
    let tensors: BTreeMap<_, _> = open().config().unwrap().tensors().into_iter().collect();
    let folders = named.iter().map(|&(name, module, alpha)| {
        let shape = [0, 1].map(|at| tensors[&format!("{module}.weight")][at]);
        let folder = dir.path().join(name);
        fs::create_dir(&folder).unwrap();
        write(&folder, module, shape, alpha);
        (name, folder)
    });
    let folders: Vec<_> = folders.collect();
    let mut alone = BTreeMap::from([(None, load(&open()))]);
    for (name, folder) in &folders {
        alone.insert(Some(*name), load(&open().with_adapter(folder).unwrap()));
    }
    let checkpoint = folders
        .iter()
        .fold(open(), |checkpoint, (name, folder)| checkpoint.with_named_adapter(name, folder).unwrap());
    let model = load(&checkpoint);
    assert!(model.adapters().eq(named.iter().map(|(name, ..)| *name)));

    let text = "Why is the sky blue, and the grass green, and the sun yellow?";
    let prompts = [&[][..], visuals]
        .map(|visuals| model.processor.prepare(&[user_turn(visuals, text)], visuals).unwrap());
    let options = Options { max_new_tokens: tokens, stop_at_eos: false, ..Options::default() };
    let cases: Vec<_> =
        alone.keys().flat_map(|name| prompts.iter().map(move |prompt| (*name, prompt))).collect();
    let expected: Vec<_> =
        cases.iter().map(|(name, prompt)| answer(&alone[name], prompt, &options)).collect();
    for (at, pair) in expected.chunks(2).enumerate().skip(1) {
        assert_ne!(*pair, expected[..2], "{:?} changes something", cases[2 * at].0);
    }

    let mut batch = Batch::new(&model, BatchOptions { pages: 400, ..BatchOptions::with_room(0) }).unwrap();
    for held in [false, true] {
        let add = |(name, prompt): &(Option<&str>, &Prompt)| {
            let keyed = KeyedPrompt::new_adapted(&model, (*prompt).clone(), *name, &|| true).unwrap();
            let sampler = Sampler::new(options.sampling.clone(), &prompt.ids).unwrap();
            batch.add_keyed(keyed, &options, sampler).unwrap()
        };
        let ids: Vec<_> = cases.iter().map(add).collect();
        let mut found = BTreeMap::new();
        while !batch.is_idle() {
            for event in batch.step() {
                match event {
                    Event::Token { .. } => {}
                    Event::Finished { id, output, .. } => _ = found.insert(id, output.ids),
                    Event::Failed { error, .. } => panic!("{error}"),
                }
            }
        }
        for ((id, expected), (name, _)) in ids.iter().zip(&expected).zip(&cases) {
            assert_eq!(found[id], *expected, "{name:?} of {path}, {held}");
        }
        assert_eq!(batch.metrics().prefix_hits > 0, held, "an adapter's keys and values are its own");
    }
    let unknown = KeyedPrompt::new_adapted(&model, prompts[0].clone(), Some("up"), &|| true);
    assert!(matches!(unknown, Err(Error::Prompt { .. })));
}

#[test]
fn requests_choose_an_adapter_on_the_cpu() {
    let picture = [Visual::image(&Path::new(TINY).join("cases/small.png")).unwrap()];
    check_named(TINY, &Device::Cpu, &NAMED, &picture, 6);
    check_named("fixtures/qwen3-vl-gguf/model-Q8_0.gguf", &Device::Cpu, &NAMED, &picture, 6);
}

#[test]
fn requests_choose_an_adapter_on_a_cuda_device() {
    in_own_process!();
    check_named(TINY, &common::cuda_device(), &NAMED[..1], &[], 3);
}

#[test]
fn adapters_by_name_are_refused_where_they_cannot_share_the_matrices() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), NAMED[0].1, [64, 160], 1.0);
    let open = || Checkpoint::open(TINY, None).unwrap();
    let error = |checkpoint: Result<Checkpoint>| checkpoint.unwrap_err().to_string();
    let twice = open().with_named_adapter("a", dir.path()).unwrap().with_named_adapter("a", dir.path());
    assert!(error(twice).contains("two adapters"));
    let merged = open().with_adapter(dir.path()).unwrap().with_named_adapter("a", dir.path());
    assert!(error(merged).contains("merged"));
}
