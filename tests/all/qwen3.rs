//! The text model Qwen3 against transformers' results on a small checkpoint of random weights, which `scripts/qwen3-reference` made.

use crate::common;
use pascaline::{DType, Device, Error, Result};
use qwen3_vl::generate::user_turn;
use qwen3_vl::gguf::{Mix, encode, text_plan, vision_plan_of};
use qwen3_vl::preprocess::Picture;
use qwen3_vl::validate::{Limits, check_run};
use qwen3_vl::weights::Weights;
use qwen3_vl::{Checkpoint, LoadOptions, Options, Qwen3Vl, Visual, cases};
use std::fs;
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3/tiny")
}

fn computes_the_references_results(path: &Path, device: &Device, limits: &Limits, exact_ids: bool) {
    let options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(device) };
    let model = Qwen3Vl::load_with(path, device, options, |_| {}).unwrap();
    let runs = cases::load(&tiny()).unwrap().unwrap();
    assert_eq!(runs.len(), 2);
    for run in runs {
        let report = check_run(&model, &run).unwrap();
        assert!(report.passed(limits, exact_ids), "{report:#?}");
    }
}

#[test]
fn the_cpu_gives_the_references_tokens() {
    computes_the_references_results(&tiny(), &Device::Cpu, &Limits::F32, true);
}

#[test]
fn a_gpu_gives_the_references_tokens() {
    computes_the_references_results(&tiny(), &common::cuda_device(), &Limits::F32_GPU, true);
}

/// A GGUF file of the same values, as `quantize` writes it, has everything but the template's file.
#[test]
fn a_gguf_file_is_one_file() -> Result<()> {
    let processor = qwen3_vl::processor(tiny())?;
    let folder = tempfile::tempdir().unwrap();
    let plan = text_plan(&tiny(), &processor.config, Mix::F16)?;
    assert!(vision_plan_of(&tiny().join("config.json"), &processor)?.is_none());
    let mut weights = Weights::open(&tiny(), &processor.config, DType::F32, &Device::Cpu)?;
    let mut file = plan.header();
    for tensor in &plan.tensors {
        let values = weights.host(&tensor.published)?;
        let mut bytes = encode(tensor.ty, &values, tensor.matrix(), &Device::Cpu)?;
        bytes.resize(bytes.len().next_multiple_of(qwen3_vl::gguf::Plan::ALIGNMENT), 0);
        file.extend(bytes);
    }
    let path = folder.path().join("model.gguf");
    fs::write(&path, file).unwrap();
    let read = Checkpoint::open(&path, None)?;
    assert_eq!((&read.config()?.text, read.config()?.tie_word_embeddings), (&processor.config.text, false));
    // f16 rounds weights by 2⁻¹¹ each
    computes_the_references_results(&path, &Device::Cpu, &Limits::F16, false);

    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl-gguf/mmproj-F16.gguf");
    let refused = Checkpoint::open(&path, Some(&other))?.config();
    assert!(
        matches!(&refused, Err(Error::Checkpoint { reason, .. }) if reason.contains("text alone")),
        "{refused:?}"
    );
    Ok(())
}

#[test]
fn pictures_are_refused() -> Result<()> {
    let model = Qwen3Vl::load(tiny(), &Device::Cpu)?;
    let picture = Visual::from(Picture { height: 2, width: 2, pixels: vec![0; 12] });
    let refused = model.generate(std::slice::from_ref(&picture), "What is it?", &Options::default());
    assert!(matches!(refused, Err(Error::Unsupported { argument: "pictures", .. })), "{refused:?}");
    let message = user_turn(std::slice::from_ref(&picture), "What is it?");
    let refused = model.processor.prepare(&[message], &[]);
    assert!(matches!(refused, Err(Error::Unsupported { argument: "pictures", .. })), "{refused:?}");
    Ok(())
}

#[test]
fn other_models_are_refused_with_the_list() {
    for (from, to, item, part) in [
        ("\"qwen3\"", "\"llama\"", "model_type", "llama is not \"qwen3_vl\" or \"qwen3\""),
        (
            "\"use_sliding_window\": false",
            "\"use_sliding_window\": true",
            "use_sliding_window",
            "not supported",
        ),
        ("\"attention_bias\": false", "\"attention_bias\": true", "attention_bias", "not supported"),
        (
            "\"rope_type\": \"default\"",
            "\"rope_type\": \"yarn\"",
            "rope_parameters.rope_type",
            "only \"default\"",
        ),
        ("\"rope_theta\": 1000000.0", "\"rope_theta\": 0.0", "rope_theta", "positive"),
        ("\"head_dim\": 32", "\"head_dim\": 31", "head_dim", "even"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = fs::read_to_string(tiny().join("config.json")).unwrap();
        assert!(config.contains(from), "{from}");
        fs::write(folder.path().join("config.json"), config.replacen(from, to, 1)).unwrap();
        match qwen3_vl::config::load(folder.path()) {
            Err(Error::Checkpoint { item: Some(found), reason, .. }) => {
                assert_eq!(found, item, "{reason}");
                assert!(reason.contains(part), "{reason}");
            }
            other => panic!("{to}: {other:?}"),
        }
    }
}
