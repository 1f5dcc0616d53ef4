//! Adapters of PEFT's files: merged into plain matrices as they are loaded, and beside quantised ones.

use crate::common::process::in_own_process;
use pascaline::{DType, Device, Result, Tensor};
use qwen3_vl::{Checkpoint, LoadOptions, Qwen3Vl};
use serde_json::json;
use std::fs;
use std::path::Path;

/// An adapter of rank 1 whose A and B are ones, so that alpha is added to every weight.
fn write(dir: &Path, module: &str, [n, k]: [usize; 2], alpha: f32) {
    let name = |part: &str| format!("base_model.model.{module}.lora_{part}.weight");
    let header = json!({
        name("A"): {"dtype": "F32", "shape": [1, k], "data_offsets": [0, 4 * k]},
        name("B"): {"dtype": "F32", "shape": [n, 1], "data_offsets": [4 * k, 4 * (k + n)]},
    });
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend((0..n + k).flat_map(|_| 1f32.to_le_bytes()));
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
    let (tiny, gguf) = ("tests/fixtures/qwen3-vl/tiny", "tests/fixtures/qwen3-vl-gguf/model-Q8_0.gguf");
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
    let open = || Checkpoint::open("tests/fixtures/qwen3-vl/tiny", None).unwrap().with_adapter(dir.path());
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
    ] {
        config(text);
        let error = open().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}
