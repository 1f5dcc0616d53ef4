//! Models in GGUF files, compared with the reference on the same weights.

use crate::common;
use crate::common::process::in_own_process;
use pascaline::{DType, Device};
use qwen3_vl::config::seeing;
use qwen3_vl::gguf::{GgmlType, Gguf, dequantize};
use qwen3_vl::validate::{Limits, check_run};
use qwen3_vl::{Checkpoint, LoadOptions, Processor, Qwen3Vl, cases, pictures};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl-gguf")
}

/// Every model of `cases_gguf.json`.
fn models() -> Vec<PathBuf> {
    let cases: Value =
        serde_json::from_slice(&fs::read(fixtures().join("cases_gguf.json")).unwrap()).unwrap();
    let files = cases["runs"].as_array().unwrap().iter().map(|run| run["file"].as_str().unwrap());
    let files: Vec<_> = files.map(|file| fixtures().join(file)).collect();
    assert_eq!(files.len(), 5);
    files
}

fn load(model: &Path, device: &Device, options: LoadOptions) -> Qwen3Vl {
    Qwen3Vl::load_with(model, device, options, |_| {}).unwrap()
}

fn hex(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap().as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks_exact(2).map(byte).collect()
}

/// The blocks are random, their values those of gguf-py's `quants.dequantize`.
#[test]
fn blocks_have_the_references_bits() {
    let blocks = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("data/gguf_blocks.json")).unwrap();
    let blocks: Value = serde_json::from_slice(&blocks).unwrap();
    assert_eq!(blocks.as_object().unwrap().len(), GgmlType::ALL.len());
    for ty in GgmlType::ALL {
        let case = &blocks[ty.name()];
        let bytes = hex(&case["blocks"]);
        let want: Vec<u32> = hex(&case["values"])
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        assert_eq!(ty.bytes(want.len()), bytes.len(), "{ty:?}");
        let mut values = vec![f32::NAN; want.len()];
        dequantize(ty, &bytes, &mut values);
        let found: Vec<u32> = values.iter().map(|value| value.to_bits()).collect();
        assert_eq!(found, want, "{ty:?}");
    }
}

/// Every run that `suits`, with weights dequantised and activations in f32: all tokens are the reference's, and the logits to
/// rounding.
fn check(file: &Path, device: &Device, limits: &Limits, suits: impl Fn(&str) -> bool) {
    let options = LoadOptions { dtype: DType::F32, keep_quantized: false, ..LoadOptions::for_device(device) };
    let model = load(file, device, options);
    let runs = cases::load(file).unwrap().unwrap();
    assert_eq!(runs.len(), 3);
    for run in runs.iter().filter(|run| suits(&run.name)) {
        let report = check_run(&model, run).unwrap();
        assert!(report.passed(limits, true), "{} on {device}: {report:#?}", file.display());
        assert!(report.worst("logits").is_some() && report.prompt_ids_equal, "{report:#?}");
        assert_eq!(report.pixels.is_some(), !run.images.is_empty());
    }
}

#[test]
fn dequantized_models_are_the_references() {
    models().iter().for_each(|file| check(file, &Device::Cpu, &Limits::F32, |_| true));
}

/// Pictures take long on the virtual GPU, so there one run of one file is checked.
#[test]
fn dequantized_models_are_the_references_on_a_cuda_device() {
    in_own_process!();
    let device = common::cuda_device();
    match format!("{device}").contains("Virtual") {
        true => {
            check(&fixtures().join("model-Q4_K_M.gguf"), &device, &Limits::F32_GPU, |name| name == "text")
        }
        false => models().iter().for_each(|file| check(file, &device, &Limits::F32_GPU, |_| true)),
    }
}

/// The metadata says the same as the source's own files, as far as both say it.
#[test]
fn metadata_says_what_the_source_says() {
    let mut found = Checkpoint::open(fixtures().join("model-Q8_0.gguf"), None).unwrap().processor().unwrap();
    let source = qwen3_vl::processor(fixtures().join("source")).unwrap();
    assert_eq!(seeing(&found.config), seeing(&source.config));
    let mut text = source.config.text.clone();
    text.rms_norm_eps = found.config.text.rms_norm_eps; // as f32 either way, but 1e-6 and its nearest f32 are two f64
    assert!((text.rms_norm_eps - 1e-6).abs() < 1e-12);
    assert_eq!((&found.config.text, found.config.tie_word_embeddings), (&text, true));
    found.generation.eos_token_ids.sort_unstable();
    assert_eq!(found.generation.eos_token_ids, [488, 490]);
    let images = |processor: &Processor| pictures(processor).unwrap().images.clone();
    let limits = |processor: &Processor| (images(processor).min_pixels, images(processor).max_pixels);
    assert_eq!(limits(&found), (4096, 262_144), "of the folder that the files were made from");
    let alone = tempfile::tempdir().unwrap();
    for file in ["model-Q8_0.gguf", "mmproj-F16.gguf"] {
        fs::copy(fixtures().join(file), alone.path().join(file)).unwrap();
    }
    let without = Checkpoint::open(alone.path().join("model-Q8_0.gguf"), None).unwrap().processor().unwrap();
    assert_eq!(limits(&without), (65_536, 16_777_216), "the published ones");
    assert_eq!(
        (images(&found).image_mean, images(&found).image_std),
        (images(&source).image_mean, images(&source).image_std)
    );
    for text in ["Count the warps: 12 345 <|im_end|><|image_pad|>\n\n  x", "一张图片胜过千言 it's", ""]
    {
        assert_eq!(found.tokenizer.encode(text).unwrap(), source.tokenizer.encode(text).unwrap());
    }
    for id in 0..500 {
        assert_eq!(found.tokenizer.token_bytes(id), source.tokenizer.token_bytes(id), "{id}");
    }
}

#[test]
fn tensors_of_all_types_are_read_in_pieces() {
    let file = Gguf::open(fixtures().join("model-Q4_K_M.gguf")).unwrap();
    for name in file.names() {
        let info = file.tensor(name).unwrap();
        let mut bytes = vec![0; info.bytes];
        file.read_bytes(name, &mut bytes).unwrap();
        let mut want = vec![0.0; info.values()];
        dequantize(info.ty, &bytes, &mut want);
        assert_eq!(file.read::<f32>(name).unwrap(), want, "{name}");
        let halves: Vec<_> = want.iter().map(|&value| half::f16::from_f32(value)).collect();
        assert_eq!(file.read::<half::f16>(name).unwrap(), halves, "{name}");
    }
}
