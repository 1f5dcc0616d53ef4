//! Models in GGUF files with their quantised matrices as they are: on the CPU, on a GPU, streamed, and replayed.

use crate::common;
use crate::common::process::in_own_process;
use pascaline::quant::ErrorReport;
use pascaline::{DType, Device};
use qwen3_vl::gguf::{GgmlType, Gguf};
use qwen3_vl::{LoadOptions, Options, Qwen3Vl, cases};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl-gguf")
}

const MODELS: [&str; 5] =
    ["model-Q4_K_M.gguf", "model-Q4_0.gguf", "model-Q8_0.gguf", "model-Q6_K.gguf", "model-IQ4_XS.gguf"];

/// Those that are computed on a GPU, which takes long on the virtual one.
fn on_a_gpu() -> &'static [&'static str] {
    common::extent::first_of(2, &MODELS, "quantised models on a GPU beside the CPU")
}

fn load(file: &str, device: &Device, options: LoadOptions) -> Qwen3Vl {
    let file = fixtures().join(file);
    Qwen3Vl::load_with(&file, device, options, |_| {}).unwrap()
}

/// Floating-point matrices in f32, so that only the quantised ones have an error.
fn kept(device: &Device) -> LoadOptions {
    LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(device) }
}

fn logits(model: &Qwen3Vl, ids: &[u32]) -> Vec<f32> {
    model.trace(ids, &[], &[], |_, _| {}).unwrap().to_vec::<f32>().unwrap()
}

fn options(max_new_tokens: usize) -> Options {
    Options { max_new_tokens, stop_at_eos: false, ..Options::default() }
}

/// The limit of [`logits_lose_what_activations_lose`].
const LIMIT: f64 = 0.034;

/// Weights are the file's, bit for bit, so what is lost is the activations' 8 bits: half a step of 1/127 of the largest of 32
/// normal values, 0.4 % in the root mean square of each product. Errors of one product after the other add up like
/// independent ones: of the four in each of four layers and the output's, 1.7 %. Twice that is allowed, as norms and
/// softmax may amplify; a wrong scale or a swapped block gives 100 %.
#[test]
fn logits_lose_what_activations_lose() {
    in_own_process!();
    for file in MODELS {
        let runs = cases::load(&fixtures().join(file)).unwrap().unwrap();
        let text = runs.iter().find(|run| run.images.is_empty()).unwrap();
        let (ids, want) = (text.input_ids().unwrap(), text.result("logits").unwrap().unwrap());
        for device in [Device::Cpu, common::cuda_device()] {
            if device.is_cuda() && !on_a_gpu().contains(&file) {
                continue;
            }
            let model = load(file, &device, kept(&device));
            assert!(model.conversions().is_empty());
            let report = ErrorReport::new(&want, &logits(&model, &ids));
            let answer = model.generate(&[], &text.question, &options(8)).unwrap().ids;
            let equal = answer.iter().zip(&text.generated_ids).take_while(|(a, b)| a == b).count();
            common::say(&format!("{file} on {device}: {report}, {equal} of 8 tokens"));
            assert!(report.relative_rms <= LIMIT, "{file} on {device}: {report}");
            assert!(report.relative_rms > 1e-4, "{file} on {device}: nothing was quantised");
        }
    }
}

/// Integer sums are exact, and the rest of the steps differ by the order of sums alone: logits agree to 1e-6, as those of
/// floating-point matrices do. Unless that difference moves an activation across the middle between two of its 255 steps, after
/// which they agree as closely as 8-bit activations let them. About one input in four has such an activation; of eight, three
/// without are asked for.
#[test]
fn devices_agree_on_the_logits() {
    in_own_process!();
    let (cpu, gpu) = (Device::Cpu, common::cuda_device());
    for file in on_a_gpu() {
        let [of_cpu, of_gpu] = [&cpu, &gpu].map(|device| load(file, device, kept(device)));
        let differences: Vec<f64> = (0..8)
            .map(|input| {
                let ids: Vec<u32> = (0..6).map(|i| 37 * input + 5 * i + 1).collect();
                ErrorReport::new(&logits(&of_cpu, &ids), &logits(&of_gpu, &ids)).relative_rms
            })
            .collect();
        let close = differences.iter().filter(|difference| **difference <= 1e-6).count();
        assert!(close >= 3, "{file}: {differences:?}");
        assert!(differences.iter().all(|difference| *difference <= LIMIT), "{file}: {differences:?}");
    }
}

/// A decoded token reads as many bytes as its matrices take in the file.
#[test]
fn matrices_take_the_files_bytes() {
    in_own_process!();
    for file in MODELS {
        let gguf = Gguf::open(fixtures().join(file)).unwrap();
        let tensors = gguf.names().map(|name| gguf.tensor(name).unwrap());
        let bytes: usize = tensors.filter(|info| info.shape.len() == 2).map(|info| info.bytes).sum();
        // in memory a super-block of Q6_K's scales has a word more than half of which is padding
        let blocks: usize = gguf
            .names()
            .map(|name| gguf.tensor(name).unwrap())
            .filter(|info| info.ty == GgmlType::Q6_K)
            .map(|info| info.values() / 256)
            .sum();
        assert_eq!(load(file, &Device::Cpu, kept(&Device::Cpu)).weight_bytes(), bytes + 2 * blocks, "{file}");
    }
}

/// Layers of a mixed file are stored in different formats; they are streamed through the same two buffers.
#[test]
fn mixed_layers_from_host_memory_give_the_same_bits() {
    in_own_process!();
    let device = common::cuda_device();
    let ids: Vec<u32> = (1..12).collect();
    let resident = load("model-Q4_K_M.gguf", &device, kept(&device));
    let expected: Vec<u32> = logits(&resident, &ids).into_iter().map(f32::to_bits).collect();
    for gpu_layers in [0, 1, 3] {
        let options = LoadOptions { gpu_layers: Some(gpu_layers), ..kept(&device) };
        let model = load("model-Q4_K_M.gguf", &device, options);
        assert_eq!(model.streamed_layers(), 4 - gpu_layers);
        assert_eq!(model.weight_bytes(), resident.weight_bytes());
        for _ in 0..2 {
            let found: Vec<u32> = logits(&model, &ids).into_iter().map(f32::to_bits).collect();
            assert_eq!(found, expected, "{gpu_layers} layers on the GPU");
        }
    }
}

/// A captured pass has the products of each part of a stacked matrix.
#[test]
fn a_replayed_pass_of_a_mixed_file_gives_the_same_tokens() {
    in_own_process!();
    let device = common::cuda_device();
    let model = load("model-Q4_K_M.gguf", &device, kept(&device));
    let answer = |graph| model.generate(&[], "Hello?", &Options { graph, ..options(5) }).unwrap();
    let (replayed, single) = (answer(true), answer(false));
    assert_eq!(replayed.ids, single.ids);
    assert!(replayed.statistics.graph_launches.is_some() && single.statistics.graph_launches.is_none());
}
