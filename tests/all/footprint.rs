//! Planned memory, compared with what loading and answering allocate.

use crate::common;
use crate::common::process::in_own_process;
use pascaline::kv::KvFormat;
use pascaline::memory::adaptor::{Entry, replay};
use pascaline::memory::{self, StreamHandle};
use pascaline::plan::{PlannedGpu, plan};
use pascaline::quant::Format;
use pascaline::{DType, Device};
use qwen3_vl::batch::{Batch, BatchOptions, Event};
use qwen3_vl::footprint::{Footprint, Gpu, Planned, Workload};
use qwen3_vl::generate::user_turn;
use qwen3_vl::{Checkpoint, ExpertPlacement, LoadOptions, Options, Qwen3Vl, VisionPlace, Visual};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The most bytes that are live in a recorded sequence, on a pool that nothing else uses.
fn peak_live(entries: &[Entry]) -> usize {
    let gpu = PlannedGpu { capability: (6, 1), multiprocessors: 1, memory: usize::MAX };
    let ((), books) = plan(&[gpu], |devices| {
        let pool = memory::pool(&devices[0])?;
        replay(entries, &*pool, &[StreamHandle::new(&devices[0])])
    })
    .unwrap();
    books[0].peak_live
}

/// The most bytes that are live while the model in `path` is loaded and answers, and its workload.
fn measured(path: &Path, device: &Device, options: LoadOptions, picture: &[Visual]) -> (usize, Workload) {
    let tokens = 3;
    let question = "What is it?".repeat(if picture.is_empty() { 12 } else { 1 });
    let (work, entries) = memory::trace(|| {
        let model = Qwen3Vl::load_with(path, device, options, |_| {}).unwrap();
        let prompt = model.processor.prepare(&[user_turn(picture, &question)], picture).unwrap();
        let generation = Options { max_new_tokens: tokens, stop_at_eos: false, ..Options::default() };
        let mut session = model.session().unwrap();
        let go_on = |_: &str| std::ops::ControlFlow::Continue(());
        model.generate_from(&mut session, &prompt, &generation, go_on).unwrap();
        let patches = prompt.patches.iter().map(|patches| patches.grid.iter().product()).max().unwrap_or(0);
        Workload { context: prompt.ids.len() + tokens, prompt: prompt.ids.len(), patches }
    });
    (peak_live(&entries), work)
}

fn planned(path: &Path, options: &LoadOptions, work: &Workload, gpu: &Gpu) -> Footprint {
    let checkpoint = Checkpoint::open(path, None).unwrap();
    let config = checkpoint.config().unwrap();
    let storage = |name: &str| checkpoint.storage(&config, options, name);
    Planned { config: &config, storage: &storage, options }.footprint(work, None, gpu).unwrap()
}

/// The most bytes that are live while the model answers many requests at once.
#[test]
fn plans_of_many_requests_are_what_is_allocated() {
    in_own_process!();
    let device = common::cuda_device();
    let Device::Cuda(cuda) = &device else { unreachable!("a CUDA device was asked for") };
    let path = fixtures().join("qwen3-vl/tiny");
    let picture = [Visual::image(&path.join("cases/square.png")).unwrap()];
    for (cache, graph, picture) in
        [(KvFormat::F32, false, &[][..]), (KvFormat::Q8_0, false, &picture[..]), (KvFormat::F16, true, &[])]
    {
        let options = LoadOptions { dtype: DType::F32, cache, ..LoadOptions::for_device(&device) };
        let batch =
            BatchOptions { max_sequences: 4, image_bytes: 1 << 17, graph, ..BatchOptions::with_room(600) };
        let (work, entries) = memory::trace(|| {
            let model = Qwen3Vl::load_with(&path, &device, options, |_| {}).unwrap();
            let mut together = Batch::new(&model, batch).unwrap();
            let prompt = model.processor.prepare(&[user_turn(picture, "What is it?")], picture).unwrap();
            let generation = Options { max_new_tokens: 3, stop_at_eos: false, ..Options::default() };
            for _ in 0..4 {
                together.add(prompt.clone(), &generation).unwrap();
            }
            while !together.is_idle() {
                for event in together.step() {
                    assert!(!matches!(event, Event::Failed { .. }), "{event:?}");
                }
            }
            let patches =
                prompt.patches.iter().map(|patches| patches.grid.iter().product()).max().unwrap_or(0);
            Workload { context: 0, prompt: prompt.ids.len(), patches }
        });
        let measured = peak_live(&entries);
        let checkpoint = Checkpoint::open(&path, None).unwrap();
        let config = checkpoint.config().unwrap();
        let storage = |name: &str| checkpoint.storage(&config, &options, name);
        let planned = Planned { config: &config, storage: &storage, options: &options };
        let planned = planned.footprint(&work, Some(&batch), &Gpu::from_device(cuda)).unwrap();
        common::say(&format!("{cache}, graph {graph}: {measured} bytes, {planned:?}"));
        let graphs = planned.peak - planned.live;
        assert!(planned.live + if graph { graphs } else { 0 } >= measured, "{measured} bytes, {planned:?}");
        assert!(planned.live <= measured + measured / 5, "{measured} bytes, {planned:?}");
    }
}

/// A mixture's experts in host memory, with a prompt that is streamed or computed by the CPU.
#[test]
fn plans_of_experts_in_host_memory_are_what_is_allocated() {
    in_own_process!();
    let device = common::cuda_device();
    let Device::Cuda(cuda) = &device else { unreachable!("a CUDA device was asked for") };
    let gpu = Gpu::from_device(cuda);
    let moe = fixtures().join("qwen3-vl/moe");
    let usual = LoadOptions { dtype: DType::F16, ..LoadOptions::for_device(&device) };
    let q4_k = LoadOptions { quantize: Some(Format::Q4K), ..usual };
    let mut host = Vec::new();
    for options in [
        usual.experts(ExpertPlacement::Stream),
        LoadOptions { cached_experts: 3, ..usual.experts(ExpertPlacement::Stream) },
        usual.experts(ExpertPlacement::Cpu),
        LoadOptions { cached_experts: 5, ..usual.experts(ExpertPlacement::Cpu) },
        LoadOptions { cached_experts: 2, ..q4_k.experts(ExpertPlacement::Mixed { cpu_rows: 4 }) },
        q4_k.experts(ExpertPlacement::Mixed { cpu_rows: 4 }),
    ] {
        let (measured, work) = measured(&moe, &device, options, &[]);
        let planned = planned(&moe, &options, &work, &gpu);
        common::say(&format!("{options:?} {work:?}: {measured} bytes, {planned:?}"));
        assert!(planned.live >= measured, "{options:?}: {measured} bytes, {planned:?}");
        assert!(planned.live <= measured + measured / 20, "{options:?}: {measured} bytes, {planned:?}");
        host.push(planned.host);
    }
    assert_eq!([host[1], host[2], host[3]], [host[0]; 3], "all experts are in host memory");
}

#[test]
fn plans_are_what_is_allocated() {
    in_own_process!();
    let device = common::cuda_device();
    let Device::Cuda(cuda) = &device else { unreachable!("a CUDA device was asked for") };
    let gpu = Gpu::from_device(cuda);
    let picture = [Visual::image(&fixtures().join("qwen3-vl/tiny/cases/square.png")).unwrap()];
    let usual = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&device) };
    let quantize = |format| LoadOptions { quantize: Some(format), ..usual };
    let streamed = LoadOptions { vision: VisionPlace::Streamed, ..usual };
    let q8_cache = LoadOptions { cache: KvFormat::Q8_0, ..streamed };
    let (tiny, gguf) = (fixtures().join("qwen3-vl/tiny"), |file| fixtures().join("qwen3-vl-gguf").join(file));
    let loads = [
        (&tiny, usual, &picture[..]),
        (&tiny, LoadOptions { tokens_per_pass: 13, ..quantize(Format::Q4_0) }, &picture),
        (&tiny, LoadOptions { dtype: DType::F16, cache: KvFormat::F16, ..usual }, &picture),
        (&tiny, LoadOptions { gpu_layers: Some(1), ..streamed }, &picture),
        (&gguf("model-Q4_K_M.gguf"), q8_cache, &picture),
        (&tiny, usual, &[]),
        (&tiny, LoadOptions { cache: KvFormat::Q8_0, ..quantize(Format::Q8_0) }, &picture),
        (&tiny, quantize(Format::Q4K), &picture),
        (&tiny, streamed, &picture),
        (&tiny, LoadOptions { vision: VisionPlace::Streamed, ..quantize(Format::Q4K) }, &picture),
        (&tiny, LoadOptions { vision: VisionPlace::Cpu, ..usual }, &picture),
        (&gguf("model-Q6_K.gguf"), usual, &picture),
        (&gguf("model-IQ4_XS.gguf"), LoadOptions { gpu_layers: Some(1), ..usual }, &picture),
    ];
    for &(path, options, picture) in
        common::extent::first_of(5, &loads, "ways to load a model whose plan is compared")
    {
        let (measured, work) = measured(path, &device, options, picture);
        let planned = planned(path, &options, &work, &gpu);
        let file = path.display();
        common::say(&format!("{file} {options:?} {work:?}: {measured} bytes, {planned:?}"));
        assert!(planned.live >= measured, "{file} {options:?}: {measured} bytes, {planned:?}");
        assert!(
            planned.live <= measured + measured / 20,
            "{file} {options:?}: {measured} bytes, {planned:?}"
        );
    }
}
