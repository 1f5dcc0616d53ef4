//! Mixtures of experts and FP8 checkpoints against transformers' results on small checkpoints of random weights.

use crate::common;
use half::f16;
use pascaline::quant::Format;
use pascaline::{DType, Device, Error, Result};
use qwen3_vl::config::Config;
use qwen3_vl::gguf::{Mix, Plan, encode, text_plan, vision_plan_of};
use qwen3_vl::validate::{Limits, check_run};
use qwen3_vl::weights::Weights;
use qwen3_vl::{Checkpoint, ExpertPlacement, LoadOptions, Options, Qwen3Vl, cases};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl").join(name)
}

/// Compares the model at `path` with the results of `reference`, the first `most` runs.
fn computes_the_references_results(
    path: &Path,
    reference: &str,
    device: &Device,
    (limits, exact_ids): (&Limits, bool),
    most: usize,
) {
    let options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(device) };
    let model = Qwen3Vl::load_with(path, device, options, |_| {}).unwrap();
    let runs = cases::load(&fixture(reference)).unwrap().unwrap();
    assert!(runs.len() >= 2);
    for run in runs.into_iter().take(most) {
        let report = check_run(&model, &run).unwrap();
        assert!(report.passed(limits, exact_ids), "{reference} {}: {report:#?}", run.name);
    }
}

#[test]
fn the_cpu_gives_the_references_tokens() {
    computes_the_references_results(&fixture("moe"), "moe", &Device::Cpu, (&Limits::F32, true), usize::MAX);
}

#[test]
fn the_cpu_gives_the_references_tokens_of_an_fp8_checkpoint() {
    let fp8 = fixture("moe-fp8");
    computes_the_references_results(&fp8, "moe-fp8", &Device::Cpu, (&Limits::F32, true), usize::MAX);
}

#[test]
fn a_gpu_gives_the_references_tokens() {
    let device = common::cuda_device();
    for name in ["moe", "moe-fp8"] {
        computes_the_references_results(&fixture(name), name, &device, (&Limits::F32_GPU, true), 2);
    }
}

/// A safetensors file's header, and the bytes of its tensors.
fn read(path: &Path) -> (Map<String, Value>, Vec<u8>) {
    let bytes = fs::read(path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + len]).unwrap(), bytes[8 + len..].to_vec())
}

/// A copy of a checkpoint whose tensors are changed by `f`: name, type, shape and bytes.
fn changed(
    from: &str,
    mut f: impl FnMut(&str, Value, Vec<u8>) -> Vec<(String, Value, Vec<u8>)>,
) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture(from)).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
        }
    }
    let (header, data) = read(&fixture(from).join("model.safetensors"));
    let (mut out, mut all) = (Map::new(), Vec::new());
    for (name, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let [begin, end] = [0, 1].map(|at| entry["data_offsets"][at].as_u64().unwrap() as usize);
        for (name, mut entry, bytes) in f(name, entry.clone(), data[begin..end].to_vec()) {
            entry["data_offsets"] = json!([all.len(), all.len() + bytes.len()]);
            all.extend(bytes);
            out.insert(name, entry);
        }
    }
    let header = Value::Object(out).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &all].concat();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

fn dims(entry: &Value) -> Vec<usize> {
    entry["shape"].as_array().unwrap().iter().map(|size| size.as_u64().unwrap() as usize).collect()
}

/// The matrices [rows, columns] of 16 bits of a stack, each transposed.
fn turned(entry: &Value, bytes: &[u8]) -> Vec<Vec<u8>> {
    let dims = dims(entry);
    let (rows, columns) = (dims[1], dims[2]);
    let turn = |matrix: &[u8]| {
        let value = |at: usize| &matrix[2 * at..2 * at + 2];
        (0..columns).flat_map(|c| (0..rows).flat_map(move |r| value(r * columns + c).to_vec())).collect()
    };
    bytes.chunks_exact(2 * rows * columns).map(turn).collect()
}

/// The values of experts' matrices of a checkpoint.
fn experts(dir: &Path) -> Vec<Vec<f32>> {
    let config = qwen3_vl::config::load(dir).unwrap();
    let mut weights = Weights::open(dir, &config, DType::F32, &Device::Cpu).unwrap();
    let names = config.tensors().into_keys().filter(|name| name.contains("experts"));
    names.map(|name| weights.matrix(&name).unwrap().to_vec::<f32>().unwrap()).collect()
}

/// Stacks of linear maps, and a tensor for each expert, are the same model.
#[test]
fn layouts_of_experts_are_told_apart() {
    let published = experts(&fixture("moe"));
    assert_eq!(published.len(), 9);
    assert!(published.iter().all(|values| values.len() == 8 * 96 * 160));
    let linear = changed("moe", |name, mut entry, bytes| {
        if !name.contains("experts") {
            return vec![(name.to_owned(), entry, bytes)];
        }
        let (dims, bytes) = (dims(&entry), turned(&entry, &bytes).concat());
        entry["shape"] = json!([dims[0], dims[2], dims[1]]);
        vec![(name.to_owned(), entry, bytes)]
    });
    assert!(experts(linear.path()) == published);
    let each = changed("moe", |name, entry, bytes| {
        let Some((prefix, part)) = name.split_once("experts.") else {
            return vec![(name.to_owned(), entry, bytes)];
        };
        let dims = dims(&entry);
        let mut all = Vec::new();
        for (expert, matrix) in turned(&entry, &bytes).into_iter().enumerate() {
            let mut add = |part: &str, rows: usize, bytes: &[u8]| {
                let entry = json!({"dtype": "F16", "shape": [rows, dims[1]]});
                all.push((format!("{prefix}experts.{expert}.{part}.weight"), entry, bytes.to_vec()));
            };
            match part {
                "down_proj" => add(part, dims[2], &matrix),
                _ => {
                    let (gate, up) = matrix.split_at(matrix.len() / 2);
                    add("gate_proj", dims[2] / 2, gate);
                    add("up_proj", dims[2] / 2, up);
                }
            }
        }
        all
    });
    assert!(experts(each.path()) == published);
}

fn open_error(folder: &Path) -> (String, String) {
    let config = qwen3_vl::config::load(folder).unwrap();
    match Weights::open(folder, &config, DType::F32, &Device::Cpu) {
        Err(Error::Checkpoint { item: Some(item), reason, .. }) => (item, reason),
        other => panic!("{:?}", other.err()),
    }
}

const CODES: &str = "model.language_model.layers.1.self_attn.q_proj.weight";
const SCALES: &str = "model.language_model.layers.1.self_attn.q_proj.weight_scale_inv";

#[test]
fn fp8_without_fitting_scales_is_refused() {
    let missing = changed("moe-fp8", |name, entry, bytes| match name {
        SCALES => vec![],
        _ => vec![(name.to_owned(), entry, bytes)],
    });
    let (item, reason) = open_error(missing.path());
    assert!(item == CODES && reason.contains("_scale_inv"), "{item}: {reason}");

    let odd = changed("moe-fp8", |name, mut entry, bytes| {
        if name == SCALES {
            entry["shape"] = json!([2, 1]); // as many, but of other blocks
        }
        vec![(name.to_owned(), entry, bytes)]
    });
    let (item, reason) = open_error(odd.path());
    assert!(item == SCALES && reason.contains("[1, 2]"), "{item}: {reason}");

    let plain = changed("moe-fp8", |name, entry, bytes| vec![(name.to_owned(), entry, bytes)]);
    fs::copy(fixture("moe").join("config.json"), plain.path().join("config.json")).unwrap();
    let (_, reason) = open_error(plain.path());
    assert!(reason.contains("not a tensor") || reason.contains("quantization_config"), "{reason}");
}

#[test]
fn fp8_codes_that_are_no_numbers_are_named() {
    for code in [0x7f, 0xff] {
        let nan = changed("moe-fp8", |name, entry, mut bytes| {
            if name == CODES {
                bytes[161] = code;
            }
            vec![(name.to_owned(), entry, bytes)]
        });
        for options in [
            LoadOptions { dtype: DType::F16, ..LoadOptions::for_device(&Device::Cpu) },
            LoadOptions { quantize: Some(Format::Q8_0), ..LoadOptions::for_device(&Device::Cpu) },
        ] {
            match Qwen3Vl::load_with(nan.path(), &Device::Cpu, options, |_| {}).err() {
                Some(Error::Checkpoint { item: Some(item), reason, .. }) => {
                    assert!(item == CODES && reason.contains("element 161 is NaN"), "{item}: {reason}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Every code, by the format's definition, times the scale of its block, as f32 and as f16.
#[test]
fn fp8_codes_are_their_numbers() {
    let of = |code: u8| {
        let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(-9),
            _ => (8.0 + fraction) * 2f64.powi(exponent - 10),
        };
        if code >= 128 { -magnitude } else { magnitude }
    };
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    let folder = changed("moe-fp8", |name, entry, mut bytes| {
        if name == CODES {
            bytes.iter_mut().zip((0..=255u8).cycle()).for_each(|(byte, code)| {
                *byte = if code & 127 == 127 { 0 } else { code };
            });
            codes = bytes.clone();
        } else if name == SCALES {
            scales = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        }
        vec![(name.to_owned(), entry, bytes)]
    });
    let config = qwen3_vl::config::load(folder.path()).unwrap();
    let columns = config.text.hidden_size; // 160: a block and a partial one
    let want: Vec<f32> = codes
        .iter()
        .enumerate()
        .map(|(at, &code)| (of(code) * f64::from(scales[at % columns / 128])) as f32)
        .collect();
    let open = |dtype| Weights::open(folder.path(), &config, dtype, &Device::Cpu).unwrap();
    assert_eq!(open(DType::F32).matrix(CODES).unwrap().to_vec::<f32>().unwrap(), want);
    let halves: Vec<f16> = want.iter().copied().map(f16::from_f32).collect();
    let found = open(DType::F16).weight(&[CODES]).unwrap();
    let pascaline::nn::Matrix::Plain(found) = found else { panic!("not in floating point") };
    assert_eq!(found.to_vec::<f16>().unwrap(), halves);
}

/// The text file of a checkpoint, as `quantize` writes it, and the vision file.
fn gguf(from: &str, mix: Mix, folder: &Path) -> PathBuf {
    let dir = fixture(from);
    let processor = qwen3_vl::processor(&dir).unwrap();
    let mut weights = Weights::open(&dir, &processor.config, DType::F32, &Device::Cpu).unwrap();
    let vision = vision_plan_of(&dir, &processor).unwrap().unwrap();
    let text = text_plan(&dir, &processor.config, mix).unwrap();
    for (name, plan) in [("model.gguf", &text), ("mmproj-F16.gguf", &vision)] {
        let mut file = plan.header();
        for tensor in &plan.tensors {
            let values = tensor.values(weights.host(&tensor.published).unwrap());
            file.extend(encode(tensor.ty, &values, tensor.matrix(), &Device::Cpu).unwrap());
            file.resize(file.len().next_multiple_of(Plan::ALIGNMENT), 0);
        }
        fs::write(folder.join(name), file).unwrap();
    }
    folder.join("model.gguf")
}

#[test]
fn a_gguf_file_is_the_same_model() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = gguf("moe", Mix::F16, folder.path());
    let read: Config = Checkpoint::open(&path, None)?.config()?;
    assert_eq!(read.model.architecture(), "qwen3vlmoe");
    assert_eq!(read.text.experts, qwen3_vl::config::load(&fixture("moe"))?.text.experts);
    // the checkpoint's own values are f16
    computes_the_references_results(&path, "moe", &Device::Cpu, (&Limits::F16, true), 2);
    Ok(())
}

/// Quantised while loading, or in a file: the devices agree on tokens, streamed or not.
#[test]
fn quantised_experts_run_on_every_device() -> Result<()> {
    let gpu = common::cuda_device();
    let folder = tempfile::tempdir().unwrap();
    let file = gguf("moe", Mix::Q4_K_M, folder.path());
    let answer = |path: &Path, device: &Device, options: LoadOptions| -> Result<Vec<u32>> {
        let model = Qwen3Vl::load_with(path, device, options, |_| {})?;
        let options = Options { max_new_tokens: 6, ..Options::default() };
        Ok(model.generate(&[], "Count the warps in a block of 256 threads.", &options)?.ids)
    };
    let quantize =
        |device: &Device| LoadOptions { quantize: Some(Format::Q8_0), ..LoadOptions::for_device(device) };
    let want = answer(&fixture("moe"), &Device::Cpu, quantize(&Device::Cpu))?;
    assert_eq!(answer(&fixture("moe"), &gpu, quantize(&gpu))?, want);
    let streamed = LoadOptions { gpu_layers: Some(1), ..quantize(&gpu) };
    assert_eq!(answer(&fixture("moe"), &gpu, streamed)?, want);
    let kept = |device: &Device| LoadOptions { keep_quantized: true, ..LoadOptions::for_device(device) };
    let want = answer(&file, &Device::Cpu, kept(&Device::Cpu))?;
    assert_eq!(answer(&file, &gpu, kept(&gpu))?, want);
    // layers of a mixed file differ in their formats, and so in their bytes
    for experts in [ExpertPlacement::Stream, ExpertPlacement::Cpu] {
        assert_eq!(answer(&file, &gpu, kept(&gpu).experts(experts))?, want, "{experts:?}");
    }
    Ok(())
}

#[test]
fn configurations_that_cannot_be_are_refused() {
    for (from, to, item) in [
        ("\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 9", "num_experts_per_tok"),
        ("\"num_local_experts\": 8", "\"num_local_experts\": 2000", "num_experts"),
        ("\"moe_intermediate_size\": 96", "\"moe_intermediate_size\": 0", "moe_intermediate_size"),
        ("\"quant_method\": \"fp8\"", "\"quant_method\": \"awq\"", "quantization_config.quant_method"),
        ("\"fmt\": \"e4m3\"", "\"fmt\": \"e5m2\"", "quantization_config.fmt"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = fs::read_to_string(fixture("moe-fp8").join("config.json")).unwrap();
        assert!(config.contains(from), "{from}");
        fs::write(folder.path().join("config.json"), config.replacen(from, to, 1)).unwrap();
        match qwen3_vl::config::load(folder.path()) {
            Err(Error::Checkpoint { item: Some(found), .. }) => assert!(found.ends_with(item), "{found}"),
            other => panic!("{to}: {other:?}"),
        }
    }
}

#[test]
fn an_adapter_of_a_router_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(fixture("moe"), None).unwrap();
    let hidden = checkpoint.config().unwrap().text.hidden_size;
    crate::adapter::write(folder.path(), "model.language_model.layers.0.mlp.gate", [8, hidden], 1.0);
    let checkpoint = checkpoint.with_adapter(folder.path()).unwrap();
    let (device, options) = (Device::Cpu, LoadOptions::for_device(&Device::Cpu));
    let error = Qwen3Vl::load_checkpoint(&checkpoint, &device, options, |_| {}).err().unwrap();
    assert!(error.to_string().contains("changes the router of a mixture"), "{error}");
}
