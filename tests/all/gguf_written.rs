//! GGUF files that Pascaline writes: they are those of llama.cpp's converter, and they can be read back.

use crate::common;
use crate::common::process::in_own_process;
use half::f16;
use pascaline::quant::{self, ErrorReport, Format, QuantTensor};
use pascaline::{DType, Device, ops};
use qwen3_vl::gguf::{
    DeviceStorage, GgmlType, Gguf, Mix, Plan, PlannedTensor, dequantize, encode, text_plan, vision_plan_of,
};
use qwen3_vl::{Checkpoint, LoadOptions, Qwen3Vl};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl-gguf")
}

/// Writes a file whose tensors' bytes `of` makes.
fn write(to: &Path, plan: &Plan, mut of: impl FnMut(&PlannedTensor) -> Vec<u8>) {
    let mut bytes = plan.header();
    for tensor in &plan.tensors {
        bytes.extend(of(tensor));
        bytes.resize(bytes.len().next_multiple_of(Plan::ALIGNMENT), 0);
    }
    fs::write(to, bytes).unwrap();
}

/// The keys and their values, and the tensors with their types and shapes, but for the keys named.
fn assert_same(found: &Gguf, want: &Gguf, added: &[&str]) {
    let keys = |gguf: &Gguf| -> Vec<String> {
        let keys = gguf.metadata().keys().filter(|key| !added.contains(key));
        keys.map(|key| format!("{key} = {:?}", gguf.metadata().get(key))).collect()
    };
    assert_eq!(keys(found), keys(want));
    assert!(
        added.iter().all(|key| found.metadata().get(key).is_some() && want.metadata().get(key).is_none())
    );
    let tensors = |gguf: &Gguf| -> Vec<String> {
        let of = |name| {
            let info = gguf.tensor(name).unwrap();
            format!("{name} {:?} {:?}", info.ty, info.shape)
        };
        gguf.names().map(of).collect()
    };
    assert_eq!(tensors(found), tensors(want));
}

/// The fixtures are the converter's and the quantiser's own, of the checkpoint in `source`.
#[test]
fn files_have_the_converters_keys_and_types() {
    let (source, folder) = (fixtures().join("source"), tempfile::tempdir().unwrap());
    let processor = qwen3_vl::processor(&source).unwrap();
    let zeros = |tensor: &PlannedTensor| vec![0; tensor.bytes()];
    let path = folder.path().join("written.gguf");
    for mix in [Mix::Q8_0, Mix::Q6_K, Mix::Q4_K_M, Mix::Q4_0, Mix::IQ4_XS] {
        write(&path, &text_plan(&source, &processor.config, mix).unwrap(), zeros);
        let want = Gguf::open(fixtures().join(format!("model-{}.gguf", mix.name()))).unwrap();
        assert_same(&Gguf::open(&path).unwrap(), &want, &["general.name"]);
    }
    let plan = vision_plan_of(&source, &processor).unwrap().unwrap();
    write(&path, &plan, zeros);
    let limits = ["clip.vision.image_max_pixels", "clip.vision.image_min_pixels"];
    assert_same(
        &Gguf::open(&path).unwrap(),
        &Gguf::open(fixtures().join("mmproj-F16.gguf")).unwrap(),
        &limits,
    );
}

/// Numbers like those of trained matrices: normal, of standard deviation 0.05.
fn normal(count: usize, seed: u64) -> Vec<f32> {
    let random = pascaline::Tensor::randn([count], DType::F32, seed, &Device::Cpu).unwrap();
    random.to_vec::<f32>().unwrap().into_iter().map(|value| 0.05 * value).collect()
}

/// Blocks of a type that Pascaline does not write, with the simplest scales. `values` are whole blocks.
fn plain_blocks(ty: GgmlType, values: &[f32]) -> Vec<u8> {
    let half = |value: f32| f16::from_f32(value).to_le_bytes();
    let mut bytes = Vec::new();
    for block in values.chunks_exact(ty.block()) {
        let (low, high) = block.iter().fold((0f32, 0f32), |(low, high), &x| (low.min(x), high.max(x)));
        let most = high.max(-low);
        let start = bytes.len();
        bytes.resize(start + ty.block_bytes(), 0);
        let out = &mut bytes[start..];
        let levels = |steps: f32, d: f32, from: f32| -> Vec<u8> {
            block.iter().map(|x| ((x - from) / d).round().clamp(0.0, steps) as u8).collect()
        };
        // two of a byte, and fifth bits in a word before them
        let pack = |out: &mut [u8], q: &[u8], at: usize| {
            for i in 0..16 {
                out[at + i] = (q[i] & 15) | (q[i + 16] & 15) << 4;
            }
        };
        let fifths = |q: &[u8]| q.iter().enumerate().fold(0u32, |bits, (i, q)| bits | u32::from(q >> 4) << i);
        match ty {
            GgmlType::Q4_1 => {
                let d = (high - low) / 15.0;
                out[..2].copy_from_slice(&half(d));
                out[2..4].copy_from_slice(&half(low));
                pack(out, &levels(15.0, d, low), 4);
            }
            GgmlType::Q5_0 => {
                let (d, from) = (most / 15.5, -most / 15.5 * 16.0);
                let q = levels(31.0, d, from);
                out[..2].copy_from_slice(&half(d));
                out[2..6].copy_from_slice(&fifths(&q).to_le_bytes());
                pack(out, &q, 6);
            }
            GgmlType::Q5_1 => {
                let d = (high - low) / 31.0;
                let q = levels(31.0, d, low);
                out[..2].copy_from_slice(&half(d));
                out[2..4].copy_from_slice(&half(low));
                out[4..8].copy_from_slice(&fifths(&q).to_le_bytes());
                pack(out, &q, 8);
            }
            other => unreachable!("{other:?} is written"),
        }
    }
    bytes
}

/// The blocks of any type, and their values.
fn blocks(ty: GgmlType, values: &[f32], shape: [usize; 2]) -> (Vec<u8>, Vec<f32>) {
    let bytes = match DeviceStorage::from(ty) {
        DeviceStorage::Converted(_) => plain_blocks(ty, values),
        _ => encode(ty, values, shape, &Device::Cpu).unwrap(),
    };
    let mut decoded = vec![f32::NAN; values.len()];
    dequantize(ty, &bytes, &mut decoded);
    (bytes, decoded)
}

/// A type without kernels loses less by its conversion than it has lost already, so that the sum is at most 1.4 times that.
#[test]
fn conversions_lose_less_than_their_types_have_lost() {
    let (rows, columns) = (64, 1024);
    let original = normal(rows * columns, 3);
    for ty in GgmlType::ALL {
        let DeviceStorage::Converted(format) = DeviceStorage::from(ty) else { continue };
        let (_, values) = blocks(ty, &original, [rows, columns]);
        let lost = ErrorReport::new(&original, &values).relative_rms;
        let converted = |format: Format| {
            let matrix = QuantTensor::from_f32(&values, [rows, columns], format, &Device::Cpu).unwrap();
            let converted = ops::dequantize(&matrix, DType::F32).unwrap().to_vec::<f32>().unwrap();
            ErrorReport::new(&values, &converted).relative_rms
        };
        let more = converted(format);
        let others = [Format::Q8_0, Format::Q6K, Format::Q5K, Format::Q4K, Format::Iq4Xs];
        let others = others.map(|other| format!("{} {:.4}", quant::name(other), converted(other)));
        common::say(&format!(
            "{}: {lost:.4}, to {} {more:.4} ({})",
            ty.name(),
            quant::name(format),
            others.join(", ")
        ));
        assert!(lost < 0.6 && more < lost, "{ty:?}: {lost}, then {more}");
    }
}

/// A model with a matrix of every type, rows of all of them beside each other: kept and converted it is what it is
/// dequantised, but for the activations' 8 bits and the conversions.
#[test]
fn a_model_of_all_types_is_read() {
    in_own_process!();
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("source");
    let config = qwen3_vl::config::load(&source).unwrap();
    let mut plan = text_plan(&source, &config, Mix::Q8_0).unwrap();
    let matrices = plan.tensors.iter_mut().filter(|tensor| tensor.shape.len() == 2);
    for (tensor, ty) in matrices.zip(GgmlType::ALL.into_iter().cycle().skip(3)) {
        tensor.ty = ty;
    }
    let path = folder.path().join("model.gguf");
    write(&path, &plan, |tensor| match tensor.shape.len() {
        1 => encode(GgmlType::F32, &vec![1.0; tensor.shape[0]], [1, tensor.shape[0]], &Device::Cpu).unwrap(),
        _ => blocks(tensor.ty, &normal(tensor.shape.iter().product(), 5), tensor.matrix()).0,
    });
    let ids: Vec<u32> = (1..20).collect();
    let logits = |device: &Device, keep_quantized| {
        let checkpoint = Checkpoint::open(&path, Some(&fixtures().join("mmproj-F16.gguf"))).unwrap();
        let options = LoadOptions { dtype: DType::F32, keep_quantized, ..LoadOptions::for_device(device) };
        let model = Qwen3Vl::load_checkpoint(&checkpoint, device, options, |_| {}).unwrap();
        let converted = model.conversions().iter();
        let converted: Vec<_> =
            converted.map(|conversion| (conversion.from.name(), conversion.matrices)).collect();
        (model.trace(&ids, &[], &[], |_, _| {}).unwrap().to_vec::<f32>().unwrap(), converted)
    };
    let (want, none) = logits(&Device::Cpu, false);
    assert!(none.is_empty());
    for device in [Device::Cpu, common::cuda_device()] {
        let (found, converted) = logits(&device, true);
        let expected = [GgmlType::Q4_1, GgmlType::Q5_0, GgmlType::Q5_1].map(|ty| {
            (
                ty.name(),
                plan.tensors.iter().filter(|tensor| tensor.shape.len() == 2 && tensor.ty == ty).count(),
            )
        });
        assert_eq!(converted, expected);
        let report = ErrorReport::new(&want, &found);
        common::say(&format!("all types on {device}: {report}"));
        // a wrong scale or a swapped part gives 100 %
        assert!(report.relative_rms < 0.15 && report.relative_rms > 1e-4, "{device}: {report}");
    }
}

#[test]
fn matrices_in_f16_stay_so_on_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("source");
    let config = qwen3_vl::config::load(&source).unwrap();
    let mut plan = text_plan(&source, &config, Mix::Q8_0).unwrap();
    plan.tensors.iter_mut().find(|tensor| tensor.shape.len() == 2).unwrap().ty = GgmlType::BF16;
    let wider = folder.path().join("model.gguf");
    write(&wider, &plan, |tensor| {
        let values = vec![1.0; tensor.shape.iter().product()];
        encode(tensor.ty, &values, tensor.matrix(), &Device::Cpu).unwrap()
    });
    let vision = fixtures().join("mmproj-F16.gguf");
    let of = |path: &Path, vision: Option<&Path>| {
        Checkpoint::open(path, vision).unwrap().usual_options(&Device::Cpu).dtype
    };
    assert_eq!(of(&fixtures().join("model-Q8_0.gguf"), Some(&vision)), DType::F16);
    assert_eq!(of(&wider, Some(&vision)), DType::F32); // BF16 has values that f16 lacks
    assert_eq!(of(&source, None), DType::F32);

    let checkpoint = Checkpoint::open(fixtures().join("model-Q8_0.gguf"), Some(&vision)).unwrap();
    let logits = |dtype| {
        let options = LoadOptions { dtype, keep_quantized: false, ..LoadOptions::for_device(&Device::Cpu) };
        let model = Qwen3Vl::load_checkpoint(&checkpoint, &Device::Cpu, options, |_| {}).unwrap();
        let logits = model.trace(&[1, 2, 3], &[], &[], |_, _| {}).unwrap();
        ops::cast(&logits, DType::F32).unwrap().to_vec::<f32>().unwrap()
    };
    let report = ErrorReport::new(&logits(DType::F32), &logits(DType::F16));
    assert!(report.relative_rms < 0.01, "{report}");
}

/// Merges may be spelled as one text, and an identifier outside the vocabulary is left out.
#[test]
fn the_tokenizer_is_written_however_it_is_spelled() {
    let (source, folder) = (fixtures().join("source"), tempfile::tempdir().unwrap());
    let config = qwen3_vl::config::load(&source).unwrap();
    let changed = |name: &str, change: &dyn Fn(&mut Value)| {
        let mut value = serde_json::from_slice(&fs::read(source.join(name)).unwrap()).unwrap();
        change(&mut value);
        fs::write(folder.path().join(name), value.to_string()).unwrap();
    };
    for file in fs::read_dir(&source).unwrap().map(|file| file.unwrap().path()).filter(|file| file.is_file())
    {
        fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let key = |key: &str| {
        let plan = text_plan(folder.path(), &config, Mix::Q8_0).unwrap();
        plan.keys.into_iter().find(|(name, _)| name == key).map(|(_, value)| format!("{value:?}"))
    };
    let merges = key("tokenizer.ggml.merges");
    changed("tokenizer.json", &|root| {
        for merge in root["model"]["merges"].as_array_mut().unwrap() {
            *merge = format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()).into();
        }
    });
    assert!(merges.is_some() && key("tokenizer.ggml.merges") == merges);

    changed("tokenizer_config.json", &|settings| settings["pad_token"] = Value::Null);
    let padding = |id: usize| {
        changed("config.json", &|top| top["text_config"]["pad_token_id"] = id.into());
        key("tokenizer.ggml.padding_token_id")
    };
    let size = config.text.vocab_size;
    assert!(padding(size - 1).is_some() && padding(size).is_none());
}
