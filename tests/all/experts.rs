//! Experts of a mixture in host memory: what the GPU computes has the same bits, and the CPU's sums are in another order.

use crate::common::process::in_own_process;
use crate::common::{self, extent};
use pascaline::memory;
use pascaline::quant::Format;
use pascaline::{DType, Device, Error};
use qwen3_vl::adapter::AdapterBytes;
use qwen3_vl::batch::{Batch, BatchOptions, Event};
use qwen3_vl::config::Config;
use qwen3_vl::estimate::{Peaks, estimate, expert_rows};
use qwen3_vl::fit::{Asked, Choice, Model};
use qwen3_vl::footprint::{Gpu, Workload};
use qwen3_vl::generate::user_turn;
use qwen3_vl::gguf::Mix;
use qwen3_vl::options::Storage;
use qwen3_vl::{ExpertPlacement, LoadOptions, Options, Qwen3Vl};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl").join(name)
}

fn load(device: &Device, options: LoadOptions) -> Qwen3Vl {
    Qwen3Vl::load_with(fixture("moe"), device, options, |_| {}).unwrap()
}

/// The model, and the bytes of device memory that it takes.
fn weighed(device: &Device, options: LoadOptions) -> (Qwen3Vl, usize) {
    let Device::Cuda(cuda) = device else { unreachable!("a CUDA device was asked for") };
    let live = || memory::pool(cuda).unwrap().statistics().live;
    let before = live();
    let model = load(device, options);
    (model, live() - before)
}

/// Logits of a pass of so many tokens.
fn logits(model: &Qwen3Vl, tokens: u32) -> Vec<f32> {
    let ids: Vec<u32> = (1..=tokens).collect();
    model.trace(&ids, &[], &[], |_, _| {}).unwrap().to_vec().unwrap()
}

fn answer(model: &Qwen3Vl) -> Vec<u32> {
    let options = Options { max_new_tokens: 6, stop_at_eos: false, ..Options::default() };
    model.generate(&[], "Count the warps in a block of 256 threads.", &options).unwrap().ids
}

/// Passes that read single experts over the bus, and passes of which each layer's experts are copied.
const TOKENS: [u32; 3] = [1, 7, 20];

fn kinds(device: &Device) -> Vec<LoadOptions> {
    let usual = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(device) };
    let quantize = |format| LoadOptions { quantize: Some(format), ..usual };
    let kinds = [quantize(Format::Q4K), LoadOptions { dtype: DType::F16, ..usual }, quantize(Format::Q8_0)];
    extent::first_of(1, &kinds, "storage formats of experts").to_vec()
}

#[test]
fn streamed_experts_give_the_same_bits_in_less_device_memory() {
    in_own_process!();
    let device = common::cuda_device();
    for usual in kinds(&device) {
        let (resident, all) = weighed(&device, usual);
        let bits = |model: &Qwen3Vl| TOKENS.map(|tokens| logits(model, tokens));
        let expected = (bits(&resident), answer(&resident));
        let layers = resident.config().text.num_hidden_layers;
        for cached_experts in [0, 3] {
            let options = LoadOptions { cached_experts, ..usual.experts(ExpertPlacement::Stream) };
            let (model, taken) = weighed(&device, options);
            assert_eq!(model.host_expert_layers(), layers);
            assert_eq!(model.weight_bytes(), resident.weight_bytes());
            assert!(bits(&model) == expected.0, "{options:?}: other bits");
            assert_eq!(answer(&model), expected.1, "{options:?}");
            // two places are in the place of three layers; with slots nothing is saved of so few
            assert!(taken < all || cached_experts > 0, "{options:?}: {taken} of {all} bytes");
        }
    }
}

/// A token again and again has the same experts, which take the slots. Another needs others, and has them in the end.
#[test]
fn the_most_used_experts_are_in_device_memory() {
    in_own_process!();
    let device = common::cuda_device();
    let usual = LoadOptions { quantize: Some(Format::Q8_0), ..LoadOptions::for_device(&device) };
    let resident = load(&device, usual);
    let pass = |model: &Qwen3Vl, id: u32| -> Vec<f32> {
        model.trace(&[id], &[], &[], |_, _| {}).unwrap().to_vec().unwrap()
    };
    let places = [ExpertPlacement::Stream, ExpertPlacement::Mixed { cpu_rows: 4 }, ExpertPlacement::Cpu];
    for &experts in extent::first_of(1, &places, "places of experts with slots") {
        let model = load(&device, LoadOptions { cached_experts: 3, ..usual.experts(experts) });
        assert_eq!(model.expert_hits().rate(), None);
        for (id, rounds) in [(7, 3), (300, 7)] {
            let want = pass(&resident, id);
            let (mut before, mut rates) = (model.expert_hits(), Vec::new());
            for _ in 0..rounds {
                for _ in 0..16 {
                    let found = pass(&model, id);
                    let scale = want.iter().fold(0f32, |most, x| most.max(x.abs()));
                    let worst = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    let limit = if experts == ExpertPlacement::Stream { 0.0 } else { 2e-2 };
                    assert!(worst <= limit * scale, "{experts:?}: {worst:e} of {scale}");
                }
                let now = model.expert_hits();
                rates.push((now.hits - before.hits) as f64 / (now.choices - before.choices) as f64);
                before = now;
            }
            common::say(&format!("{experts:?}, token {id}: hits {rates:?}"));
            assert_eq!(rates.last(), Some(&1.0), "{experts:?}, token {id}: {rates:?}");
        }
        // many rows, for which whole layers are copied, find the same experts
        if experts != ExpertPlacement::Cpu {
            assert!(logits(&model, 20) == logits(&resident, 20), "{experts:?}: other bits");
        }
    }
}

#[test]
fn experts_of_the_cpu_differ_by_rounding_alone() {
    in_own_process!();
    let device = common::cuda_device();
    for usual in kinds(&device) {
        let (resident, all) = weighed(&device, usual);
        let want = answer(&resident);
        let places = [
            (ExpertPlacement::Cpu, 3, 0),
            (ExpertPlacement::Mixed { cpu_rows: 7 }, 5, 8),
            (ExpertPlacement::Mixed { cpu_rows: 0 }, 0, 1),
            (ExpertPlacement::Cpu, 0, 0),
            (ExpertPlacement::Mixed { cpu_rows: 7 }, 0, 8),
        ];
        for &(experts, cached_experts, equal) in
            extent::first_of(3, &places, "places of experts that the CPU computes")
        {
            let options = LoadOptions { cached_experts, ..usual.experts(experts) };
            let (model, taken) = weighed(&device, options);
            assert!(experts != ExpertPlacement::Cpu || taken < all, "no less device memory");
            for tokens in TOKENS {
                let (found, want) = (logits(&model, tokens), logits(&resident, tokens));
                let scale = want.iter().fold(0f32, |most, x| most.max(x.abs()));
                let worst = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                // three layers' sums in another order, and activations that such a difference moves to the next of 8 bits
                let limit = if usual.quantize.is_some() { 2e-2 } else { 1e-4 };
                common::say(&format!("{experts:?}, {tokens} tokens: {worst:e} of {scale}"));
                assert!(worst <= limit * scale, "{experts:?}, {tokens} tokens: {worst:e} of {scale}");
                if equal > 0 && tokens >= equal {
                    assert!(
                        found == want,
                        "{experts:?}, {tokens} tokens: the GPU computes, so the bits are the same"
                    );
                }
            }
            assert_eq!(answer(&model), want, "{experts:?}");
        }
    }
}

/// Many requests at once, whose passes have rows of prompts and of answers.
#[test]
fn answers_together_are_the_same() {
    in_own_process!();
    let device = common::cuda_device();
    let usual = LoadOptions { quantize: Some(Format::Q8_0), ..LoadOptions::for_device(&device) };
    let together = |options: LoadOptions| {
        let model = load(&device, options);
        let mut batch = Batch::new(
            &model,
            BatchOptions { max_sequences: 3, image_bytes: 0, ..BatchOptions::with_room(600) },
        )
        .unwrap();
        let generation = Options { max_new_tokens: 4, stop_at_eos: false, ..Options::default() };
        let mut ids = BTreeMap::new();
        for question in ["What is it?", "Count the warps in a block of 256 threads.", "Why?"] {
            let prompt = model.processor.prepare(&[user_turn(&[], question)], &[]).unwrap();
            ids.insert(batch.add(prompt, &generation).unwrap(), Vec::new());
        }
        while !batch.is_idle() {
            for event in batch.step() {
                match event {
                    Event::Finished { id, output, .. } => drop(ids.insert(id, output.ids)),
                    Event::Failed { error, .. } => panic!("{options:?}: {error}"),
                    Event::Token { .. } => {}
                }
            }
        }
        ids.into_values().collect::<Vec<_>>()
    };
    let expected = together(usual);
    assert!(expected.len() == 3 && expected.iter().all(|ids| ids.len() == 4), "{expected:?}");
    for experts in [ExpertPlacement::Stream, ExpertPlacement::Cpu, ExpertPlacement::Mixed { cpu_rows: 2 }] {
        assert_eq!(together(usual.experts(experts)), expected, "{experts:?}");
    }
}

#[test]
fn places_that_cannot_be_are_refused() {
    let gpu = common::cuda_device();
    let refused = |name: &str, device: &Device, options: LoadOptions| match Qwen3Vl::load_with(
        fixture(name),
        device,
        options,
        |_| {},
    ) {
        Err(Error::Unsupported { op: "load", argument: "experts", value, reason }) => {
            format!("{value}: {reason}")
        }
        other => panic!("{name}: {:?}", other.err()),
    };
    let options = |device| LoadOptions::for_device(device).experts(ExpertPlacement::Stream);
    assert!(refused("tiny", &gpu, options(&gpu)).contains("stream: the model is dense"));
    assert!(refused("moe", &Device::Cpu, options(&Device::Cpu)).contains("host memory already"));
    let both = LoadOptions { gpu_layers: Some(1), ..options(&gpu) };
    assert!(refused("moe", &gpu, both).contains("gpu_layers"));
}

/// The sizes of Qwen3-VL-30B-A3B-Instruct.
fn published() -> Config {
    let fields = serde_json::json!({
        "model_type": "qwen3_vl_moe", "tie_word_embeddings": false,
        "image_token_id": 151655, "video_token_id": 151656, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
        "text_config": {
            "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
            "max_position_embeddings": 262144, "rope_scaling": {"mrope_section": [24, 20, 20]}, "tie_word_embeddings": false,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        "vision_config": {
            "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304, "patch_size": 16,
            "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24], "out_hidden_size": 2048,
        },
    });
    qwen3_vl::config::parse(Path::new("config.json"), fields.to_string().as_bytes()).unwrap()
}

/// In Q4_K_M, with a picture of 1024 × 1024 and a context of 4096.
#[test]
fn a_mixture_of_30_billion_is_planned_for_small_cards() {
    let config = published();
    let stored = Mix::Q4_K_M.storage(&config);
    let storage =
        |_: &LoadOptions, name: &str| stored.get(name).copied().unwrap_or(Storage::Float(DType::F16));
    let model = Model {
        config: &config,
        is_quantized: true,
        storage: &storage,
        adapter: &|_| AdapterBytes::default(),
    };
    let work = Workload { context: 4096, prompt: 1280, patches: 4096 };
    let fit = |asked: &Asked, limit: usize| {
        model.fit(LoadOptions::for_gpu(), asked, &work, &Gpu::pascal(20), limit)
    };
    let context = 128 << 20;
    let mut layers = Vec::new();
    for (card, host) in [(8usize, 24usize), (6, 32)] {
        let limit = (card << 30) - context;
        let choice = fit(&Asked::default(), limit).unwrap();
        let found = choice.footprint;
        common::say(&format!("{card} GB: {:?} {found:?}", choice.options));
        assert!(matches!(choice.options.experts, ExpertPlacement::Mixed { .. }));
        assert_eq!(choice.options.gpu_layers, None);
        assert!(found.peak <= limit && found.peak > limit / 4 * 3, "{found:?}");
        // a fifth of host memory is for the system
        assert!(found.host > 8 << 30 && found.host * 5 <= (host << 30) * 4, "{found:?}");
        layers.push(choice.options.cached_experts);
    }
    assert!(layers[0] > layers[1], "{layers:?}: a larger card has more");
    // on a card with room all stay there, and what is asked for is done or refused
    assert_eq!(fit(&Asked::default(), 40 << 30).unwrap().options.experts, ExpertPlacement::Gpu);
    let asked = |experts| Asked { experts: Some(experts), ..Asked::default() };
    let streamed = fit(&asked(ExpertPlacement::Stream), 40 << 30).unwrap();
    assert_eq!((streamed.options.experts, streamed.options.cached_experts), (ExpertPlacement::Stream, 0));
    let by_the_cpu = fit(&asked(ExpertPlacement::Cpu), 40 << 30).unwrap();
    // estimates: the bus is slower than the CPU's memory, and a prompt is sooner streamed
    let seconds = |choice: &Choice| {
        let storage = |name: &str| storage(&choice.options, name);
        let peaks = Peaks { flops: 8.9e12, memory: 320e9, host: 12e9 };
        estimate(&config, choice, &storage, &work, &peaks).unwrap()
    };
    let all = fit(&Asked::default(), 40 << 30).unwrap();
    let [gpu, stream, cpu] = [&all, &streamed, &by_the_cpu].map(seconds);
    common::say(&format!("gpu {gpu:?}, stream {stream:?}, cpu {cpu:?}"));
    assert!(
        gpu.tokens_per_second > cpu.tokens_per_second && cpu.tokens_per_second > stream.tokens_per_second
    );
    assert!(gpu.first_token <= stream.first_token && stream.first_token < cpu.first_token);
    // the CPU's need no places on the device: two layers' experts
    assert!(by_the_cpu.peak() + (600 << 20) < streamed.peak(), "{by_the_cpu:?} {streamed:?}");
    match fit(&asked(ExpertPlacement::Gpu), 6 << 30) {
        Err(Error::Unsupported { op: "fit", reason, .. }) => {
            assert!(reason.contains("MiB are needed"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
}

/// The estimate's answer to who is sooner: the CPU for few tokens, copies for many; the slower the bus, the more tokens. A bus that is
/// quicker than the CPU's memory leaves it none.
#[test]
fn the_cpu_computes_few_tokens() {
    let config = published();
    let stored = Mix::Q4_K_M.storage(&config);
    let storage = |name: &str| stored.get(name).copied().unwrap_or(Storage::Float(DType::F16));
    let rows = |host| {
        let peaks = Peaks { flops: 8.9e12, memory: 320e9, host };
        expert_rows(&config, &storage, &peaks).unwrap()
    };
    let (wide, narrow) = (rows(12e9), rows(3e9));
    common::say(&format!("sixteen lanes: {wide} tokens, four: {narrow}"));
    assert!((4..64).contains(&wide) && narrow > wide, "{wide} {narrow}");
    assert_eq!(rows(28e9), 0);
}
