//! Adapters that requests choose, of a model whose layers are on several virtual devices, in host memory or divided: the same bits as on
//! one device, and with a row split the same tokens. The virtual GPU finds nothing.

use crate::adapter::write;
use crate::common;
use crate::common::process::in_own_process;
use crate::common::several::no_findings;
use crate::qwen3_vl_offload::untied;
use pascaline::{DType, Device, memory};
use pascaline_virtual_gpu::{Config, MX330, configure};
use qwen3_vl::batch::{Batch, BatchOptions, Event, KeyedPrompt};
use qwen3_vl::generate::user_turn;
use qwen3_vl::sampling::Sampler;
use qwen3_vl::{
    Checkpoint, ExpertPlacement, LanguageModel, LoadOptions, Options, Placement, Qwen3Vl, VisionPlace, Visual,
};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const TINY: &str = "fixtures/qwen3-vl/tiny";
const LAYERS: usize = 3;
/// An adapter's name, the map that it changes, and its alpha.
type Named = (&'static str, &'static str, f32);
/// Of the first layer, of the last, of the tower, and of the embedding, which is the output projection too.
const NAMED: [Named; 4] = [
    ("query", "model.language_model.layers.0.self_attn.q_proj", 2.0),
    ("down", "model.language_model.layers.2.mlp.down_proj", 1.0),
    ("tower", "model.visual.merger.linear_fc2", 4.0),
    ("table", "model.language_model.embed_tokens", 0.5),
];

/// The checkpoint with adapters, whose files are in `dir`.
fn checkpoint(path: &Path, dir: &Path, named: &[Named]) -> Checkpoint {
    let open = Checkpoint::open(path, None).unwrap();
    let tensors: BTreeMap<_, _> = open.config().unwrap().tensors().into_iter().collect();
    named.iter().fold(open, |checkpoint, &(name, module, alpha)| {
        let shape = [0, 1].map(|at| tensors[&format!("{module}.weight")][at]);
        let folder = dir.join(name);
        if !folder.is_dir() {
            fs::create_dir(&folder).unwrap();
            write(&folder, module, shape, alpha);
        }
        checkpoint.with_named_adapter(name, &folder).unwrap()
    })
}

/// The tokens of an answer, and the bits of their log-probabilities.
type Answer = (Vec<u32>, Vec<u32>);

/// Answers about a picture that are computed together: without an adapter and with each.
fn answers(model: &LanguageModel, named: &[Named]) -> Vec<Answer> {
    let picture = [Visual::image(&Path::new(TINY).join("cases/square.png")).unwrap()];
    let prompt = model.processor.prepare(&[user_turn(&picture, "What colour?")], &picture).unwrap();
    let options = Options { max_new_tokens: 3, stop_at_eos: false, ..Options::default() };
    // passes that are captured have rows that no request needs, and none are captured with streamed layers
    let batch = BatchOptions { pages: 400, graph: false, ..BatchOptions::with_room(0) };
    let mut batch = Batch::new(model, batch).unwrap();
    let add = |name: Option<&str>| {
        let keyed = KeyedPrompt::new_adapted(model, prompt.clone(), name, &|| true).unwrap();
        let sampler = Sampler::new(options.sampling.clone(), &prompt.ids).unwrap().reporting(Some(1));
        batch.add_keyed(keyed, &options, sampler).unwrap()
    };
    let names = [None].into_iter().chain(named.iter().map(|(name, ..)| Some(*name)));
    let ids: Vec<_> = names.map(add).collect();
    let mut found: BTreeMap<_, Answer> = BTreeMap::new();
    while !batch.is_idle() {
        for event in batch.step() {
            match event {
                Event::Token { id, token, logprobs, .. } => {
                    let (tokens, bits) = found.entry(id).or_default();
                    tokens.push(token);
                    bits.push(logprobs.unwrap().chosen.to_bits());
                }
                Event::Finished { .. } => {}
                Event::Failed { error, .. } => panic!("{error}"),
            }
        }
    }
    ids.iter().map(|id| found[id].clone()).collect()
}

fn load(dir: &Path, placement: &Placement, options: LoadOptions) -> Qwen3Vl {
    Qwen3Vl::load_placed(&checkpoint(Path::new(TINY), dir, &NAMED), None, placement, options, |_| {}).unwrap()
}

fn live(device: &Device) -> usize {
    match device {
        Device::Cuda(device) => memory::pool(device).unwrap().statistics().live,
        Device::Cpu => 0,
    }
}

/// The answers of a model at `path`. What its adapters take on each device is what is planned, besides the pass: their tensors are where their
/// matrices are, and nothing is there twice.
fn checked(path: &Path, dir: &Path, placement: &Placement, options: LoadOptions) -> Vec<Answer> {
    let live = || placement.devices().map(live).collect::<Vec<_>>();
    let before = live();
    let (with, plain) = (checkpoint(path, dir, &NAMED), Checkpoint::open(path, None).unwrap());
    let planned = with.adapter_bytes(&plain.config().unwrap(), &options);
    let load = |checkpoint| Qwen3Vl::load_placed(checkpoint, None, placement, options, |_| {}).unwrap();
    let own = load(&plain);
    let of_plain = live();
    drop(own);
    let model = load(&with);
    let layers: Vec<_> = placement.layers().into_iter().map(|layers| layers.len()).collect();
    let planned = planned.on_each(placement.mode(), &layers, placement.vision()).into_iter();
    let tensors: Vec<_> =
        planned.map(|bytes| bytes - with.adapter_bytes(&plain.config().unwrap(), &options).pass).collect();
    for (index, now) in live().into_iter().enumerate() {
        let more = now - of_plain[index];
        assert!(of_plain[index] > before[index] && more > 0);
        let ratio = tensors[index] as f64 / more as f64;
        assert!((1.0..=2.1).contains(&ratio), "{options:?}: {more} on device {index}, planned {tensors:?}");
    }
    answers(&model, &NAMED)
}

/// The devices, f32 options for them, and the answers of one device, which all differ.
fn on_one(dir: &Path) -> ([Device; 2], LoadOptions, Vec<Answer>) {
    // of one kind: kernels divide their sums by a card's multiprocessors
    configure(Config { card: &MX330, others: vec![(&MX330, None)], ..Config::from_env().unwrap() }).unwrap();
    let devices = [0, 1].map(|ordinal| Device::virtual_gpu_number(ordinal).unwrap());
    let options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&devices[0]) };
    let expected = answers(&load(dir, &Placement::one(&devices[0], LAYERS), options), &NAMED);
    for (at, answer) in expected.iter().enumerate() {
        assert!(!expected[..at].contains(answer), "{at} changes something");
    }
    (devices, options, expected)
}

#[test]
fn adapters_of_a_pipeline_give_the_bits_of_one_device() {
    in_own_process!();
    let dir = tempfile::tempdir().unwrap();
    let (devices, options, expected) = on_one(dir.path());
    let placement = Placement::split(&devices, &[1, 2], 1).unwrap();
    assert_eq!(checked(Path::new(TINY), dir.path(), &placement, options), expected);
    no_findings("a pipeline");
}

#[test]
fn adapters_of_divided_layers_give_the_tokens_of_one_device() {
    in_own_process!();
    let dir = tempfile::tempdir().unwrap();
    let (devices, options, expected) = on_one(dir.path());
    let tokens = |answers: Vec<Answer>| answers.into_iter().map(|(tokens, _)| tokens).collect::<Vec<_>>();
    let rows = Placement::rows(&devices, LAYERS, 0).unwrap();
    assert_eq!(tokens(answers(&load(dir.path(), &rows, options), &NAMED)), tokens(expected));
    no_findings("a row split");
}

#[test]
fn adapters_of_streamed_layers_give_the_bits_of_resident_ones() {
    in_own_process!();
    let dir = tempfile::tempdir().unwrap();
    let (devices, options, expected) = on_one(dir.path());
    let one = Placement::one(&devices[0], LAYERS);
    for (gpu_layers, vision) in [(0, VisionPlace::Resident), (1, VisionPlace::Streamed)] {
        let streamed = LoadOptions { gpu_layers: Some(gpu_layers), vision, ..options };
        let found = checked(Path::new(TINY), dir.path(), &one, streamed);
        assert_eq!(found, expected, "{gpu_layers} resident layers");
        no_findings("streamed layers");
    }
    let other = tempfile::tempdir().unwrap();
    untied(other.path());
    let [device, host] = [false, true].map(|host_embedding| {
        checked(other.path(), dir.path(), &one, LoadOptions { host_embedding, ..options })
    });
    assert!(device == host && host != expected, "an embedding in host memory");
    no_findings("an embedding in host memory");
}

#[test]
fn adapters_of_a_mixture_whose_experts_are_in_host_memory() {
    in_own_process!();
    let (dir, moe, named) = (tempfile::tempdir().unwrap(), Path::new("fixtures/qwen3-vl/moe"), &NAMED[..1]);
    let device = common::cuda_device();
    let options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&device) };
    let with = checkpoint(moe, dir.path(), named);
    let one = Placement::one(&device, with.config().unwrap().text.num_hidden_layers);
    let found = |experts: ExpertPlacement| {
        let model = Qwen3Vl::load_placed(&with, None, &one, options.experts(experts), |_| {}).unwrap();
        answers(&model, named)
    };
    let resident = found(ExpertPlacement::Gpu);
    assert_ne!(resident[0], resident[1], "the adapter changes something");
    assert_eq!(found(ExpertPlacement::Stream), resident);
    let tokens = |answers: &[Answer]| answers.iter().map(|(tokens, _)| tokens.clone()).collect::<Vec<_>>();
    assert_eq!(tokens(&found(ExpertPlacement::Cpu)), tokens(&resident));
    no_findings("experts in host memory");
}
