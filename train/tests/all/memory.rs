//! The planned memory of a fine-tune, compared with what its steps allocate.

use crate::common::process::in_own_process;
use pascaline::memory::{self, adaptor::Entry};
use pascaline::quant::Format;
use pascaline::{DType, Device};
use pascaline_train::finetune::{self, FineTune, Plan};
use pascaline_train::lora::{LoraOptions, is_of_vision};
use pascaline_train::model::Frozen;
use pascaline_train::optimizer::{Method, Schedule};
use pascaline_train::{Example, Lora, Model, Optimizer, reference};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

/// The most bytes that are live.
fn peak(entries: &[Entry]) -> usize {
    let (mut sizes, mut live, mut peak) = (HashMap::new(), 0, 0);
    for entry in entries {
        match *entry {
            Entry::Allocate { block, bytes, .. } => {
                sizes.insert(block, bytes);
                live += bytes;
                peak = peak.max(live);
            }
            Entry::Free { block, .. } => live -= sizes.remove(&block).unwrap_or(0),
        }
    }
    peak
}

/// A run's plan is never below what it allocates, and at most twice as much: two steps, on a real GPU or else the virtual one.
#[test]
fn plans_are_bounds_of_what_steps_allocate() {
    in_own_process!();
    let device = Device::cuda_or_virtual().unwrap();
    let (tiny, runs) = (fixture("qwen3-vl/tiny"), reference::load(&fixture("qwen3-vl-train/tiny")).unwrap());
    let examples: Vec<Example> = runs.iter().map(|run| run.example().unwrap()).collect();
    let config = qwen3_vl::config::load(&tiny).unwrap();
    let shapes = config.tensors();
    let targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let lora = LoraOptions {
        rank: 4,
        alpha: 8.0,
        targets: targets.map(str::to_owned).to_vec(),
        vision: false,
        seed: 1,
    };
    let (f32, q8_0) = (Frozen::Float(DType::F32), Frozen::Quantized(Format::Q8_0));
    let cases = [
        (false, f32, Method::default(), false),
        (false, q8_0, Method::default(), true),
        (true, f32, Method::default(), false),
        (true, f32, Method::adamw8bit(), true),
    ];
    let mut wrong = false;
    for (full, storage, method, checkpoint_layers) in cases {
        let of_lora = |(name, shape): (&String, &Vec<usize>)| {
            lora.map_of(name, shape).map_or(0, |(_, shape)| lora.rank * shape.iter().sum::<usize>())
        };
        let trained: usize = match full {
            true => shapes
                .iter()
                .filter(|(name, _)| !is_of_vision(name))
                .map(|(_, shape)| shape.iter().product::<usize>())
                .sum(),
            false => shapes.iter().map(of_lora).sum(),
        };
        let weights = shapes.iter().map(|(name, shape)| storage.bytes(name, shape).unwrap()).sum();
        let tokens = examples.iter().map(|example| example.ids.len()).sum();
        let patches = examples
            .iter()
            .flat_map(|example| &example.visuals)
            .map(|patches| patches.grid.iter().product::<usize>())
            .sum();
        let planned = finetune::memory(
            &config,
            weights,
            [trained, method.bytes(trained)],
            tokens,
            patches,
            [false, checkpoint_layers],
        );
        let (_, entries) = memory::trace(|| {
            let mut model = Model::load_frozen(&tiny, storage, &device).unwrap();
            model.checkpoint_layers = checkpoint_layers;
            match full {
                true => model.parameters.train(|name| !is_of_vision(name)),
                false => model.lora = Lora::add(&mut model.parameters, &lora, &device).unwrap(),
            }
            let plan = Plan { epochs: 2, batch: examples.len(), tokens, held_out: 0.0, seed: 0 };
            let optimizer = Optimizer::new(method, Schedule::constant(1e-3), 0.0).clip(1.0);
            let mut run = FineTune { model: &mut model, optimizer, plan };
            run.run(&examples, |_, _| Ok(ControlFlow::Continue(()))).unwrap();
        });
        let peak = peak(&entries);
        let case = format!("full {full}, {storage:?}, {method:?}, checkpoints {checkpoint_layers}");
        println!("{case}: {peak} bytes, {planned} planned");
        wrong |= !(peak <= planned && planned <= 2 * peak);
    }
    assert!(!wrong, "a plan is below what is allocated, or more than twice as much");
}
