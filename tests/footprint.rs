//! What a plan of memory says against what loading and answering really allocate, to the byte.

mod common;

use pascaline::kv::KvFormat;
use pascaline::memory::adaptor::Entry;
use pascaline::memory::{self, Rehearsal};
use pascaline::quant::Format;
use pascaline::{DType, Device};
use qwen3_vl::footprint::{Footprint, Gpu, Storage, Workload, footprint};
use qwen3_vl::generate::user_turn;
use qwen3_vl::{LoadOptions, Options, Qwen3Vl, VisionPlace, Visual};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3-vl/tiny")
}

/// What a recorded sequence has live and reserved at most.
fn books(entries: &[Entry]) -> (usize, usize) {
    let pool = Rehearsal::new();
    let mut live = HashMap::new();
    for entry in entries {
        match *entry {
            Entry::Allocate { block, bytes, .. } => {
                live.insert(block, pool.take(bytes).unwrap());
            }
            Entry::Free { block, .. } => drop(live.remove(&block)),
        }
    }
    (pool.statistics().peak_live, pool.statistics().peak_reserved)
}

fn measured(device: &Device, options: LoadOptions, picture: &[Visual], tokens: usize) -> (usize, Workload) {
    let question = "What is it?".repeat(if picture.is_empty() { 12 } else { 1 });
    let (work, entries) = memory::trace(|| {
        let model = Qwen3Vl::load_with(tiny(), device, options, |_| {}).unwrap();
        let prompt = model.processor.prepare(&[user_turn(picture, &question)], picture).unwrap();
        let generation = Options { max_new_tokens: tokens, stop_at_eos: false, ..Options::default() };
        let mut session = model.session().unwrap();
        let go_on = |_: &str| std::ops::ControlFlow::Continue(());
        model.generate_from(&mut session, &prompt, &generation, go_on).unwrap();
        let patches = prompt.patches.iter().map(|patches| patches.grid.iter().product()).max().unwrap_or(0);
        Workload { context: prompt.ids.len() + tokens, prompt: prompt.ids.len(), patches }
    });
    (books(&entries).0, work)
}

fn planned(options: &LoadOptions, work: &Workload, gpu: &Gpu) -> Footprint {
    let config = qwen3_vl::config::Config::load(&tiny()).unwrap();
    let storage = match options.quantize {
        Some(format) => Storage::Quantized(format),
        None => Storage::Float(options.dtype),
    };
    footprint(&config, &|_| storage, options, work, gpu).unwrap()
}

#[test]
fn plans_are_what_is_allocated() {
    let device = common::cuda_device();
    let Device::Cuda(cuda) = &device else { unreachable!("a CUDA device was asked for") };
    let (capability, multiprocessors) = (cuda.properties().capability, cuda.properties().multiprocessors);
    let gpu = Gpu { capability, multiprocessors };
    let picture = [Visual::image(&tiny().join("cases/square.png")).unwrap()];
    let usual = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&device) };
    let quantize = |format| LoadOptions { quantize: Some(format), ..usual };
    let streamed = LoadOptions { vision: VisionPlace::Streamed, ..usual };
    for (options, picture) in [
        (usual, &picture[..]),
        (usual, &[]),
        (LoadOptions { dtype: DType::F16, cache: KvFormat::F16, ..usual }, &picture),
        (LoadOptions { cache: KvFormat::Q8_0, ..quantize(Format::Q8_0) }, &picture),
        (quantize(Format::Q4K), &picture),
        (LoadOptions { tokens_per_pass: 13, ..quantize(Format::Q4_0) }, &picture),
        (streamed, &picture),
        (LoadOptions { vision: VisionPlace::Streamed, ..quantize(Format::Q4K) }, &picture),
        (LoadOptions { vision: VisionPlace::Cpu, ..usual }, &picture),
        (LoadOptions { gpu_layers: Some(1), ..streamed }, &picture),
    ] {
        let (measured, work) = measured(&device, options, picture, 3);
        let planned = planned(&options, &work, &gpu);
        common::say(&format!("{options:?} {work:?}: {measured} bytes, {planned:?}"));
        assert!(planned.live >= measured, "{options:?}: {measured} bytes, {planned:?}");
        assert!(planned.live <= measured + measured / 20, "{options:?}: {measured} bytes, {planned:?}");
    }
}
