//! Checkpoint files that are damaged, cut short or made with ill intent: each is refused with an error that names the
//! file and what is wrong in it, before anything is loaded.

use half::f16;
use pascaline::{DType, Device, Error, Result};
use proptest::prelude::*;
use qwen3_vl::chat::{self, Media, Message};
use qwen3_vl::config::{GenerationConfig, PreprocessorConfig, seeing};
use qwen3_vl::preprocess::Picture;
use qwen3_vl::safetensors::{MAX_HEADER, SafeTensors};
use qwen3_vl::weights::Weights;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder of its own for each test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pascaline-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let file = self.0.join(name);
        fs::write(&file, bytes).unwrap();
        file
    }

    /// A copy of the checkpoint in the repository, to damage.
    fn of_checkpoint() -> Self {
        let folder = Self::new();
        for entry in fs::read_dir(tiny()).unwrap() {
            let file = entry.unwrap().path();
            if file.is_file() {
                fs::copy(&file, folder.0.join(file.file_name().unwrap())).unwrap();
            }
        }
        folder
    }

    /// Changes a JSON file.
    fn edit(&self, name: &str, change: impl Fn(&mut Value)) {
        let mut value: Value = serde_json::from_slice(&fs::read(self.0.join(name)).unwrap()).unwrap();
        change(&mut value);
        self.write(name, value.to_string());
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny")
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// The item and reason of a [`Error::Checkpoint`] for `file`.
fn refused<T>(file: &Path, result: Result<T>) -> (String, String) {
    match result {
        Err(Error::Checkpoint { file: found, item, reason }) => {
            assert!(found.contains(&*file.display().to_string()), "{found} is not {}", file.display());
            (item.unwrap_or_default(), reason)
        }
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("{} is accepted", file.display()),
    }
}

const TWO: &str = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[3,1],"data_offsets":[8,14]}}"#;

fn two() -> Vec<u8> {
    let mut data: Vec<u8> = [1.5f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    data.extend([0.5, 65504.0, -1.0].iter().flat_map(|&v| f16::from_f32(v).to_le_bytes()));
    with_header(TWO, &data)
}

#[test]
fn valid_files_are_read() {
    let folder = Folder::new();
    let file = SafeTensors::open(folder.write("m.safetensors", two())).unwrap();
    assert_eq!(file.read_f32("a").unwrap(), [1.5, -2.0]);
    assert_eq!(file.read_f32("b").unwrap(), [0.5, 65504.0, -1.0]);
    assert_eq!(file.read_f16("b").unwrap()[1], f16::MAX);
    assert_eq!(file.entries()["b"].shape, [3, 1]);
    assert_eq!(refused(file.path(), file.read_f32("c")), ("c".into(), "missing".into()));
}

/// Every beginning of a file is refused, and names a tensor once the header is whole.
#[test]
fn a_cut_file_is_refused_wherever_it_is_cut() {
    let (folder, whole) = (Folder::new(), two());
    for len in 0..whole.len() {
        let file = folder.write("cut.safetensors", &whole[..len]);
        let (item, reason) = refused(&file, SafeTensors::open(&file));
        assert!(reason.contains("truncated"), "{len}: {reason}");
        if len >= 8 + TWO.len() {
            let first_lost = if len < 8 + TWO.len() + 8 { ["a", "b"].contains(&&*item) } else { item == "b" };
            assert!(first_lost, "{len}: {item}");
        }
    }
}

/// A file that shrinks after it was opened and checked gives an error that names the tensor.
#[test]
fn a_file_that_shrinks_while_in_use_is_an_error() {
    let folder = Folder::new();
    let path = folder.write("shrinks.safetensors", two());
    let file = SafeTensors::open(&path).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(8 + TWO.len() as u64 + 9).unwrap();
    assert!(file.read_f32("a").is_ok());
    let (item, reason) = refused(&path, file.read_f32("b"));
    assert!(item == "b" && reason.contains("can't be read"), "{item}: {reason}");
}

#[test]
fn malformed_headers_are_refused() {
    let folder = Folder::new();
    let entry = |dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#)
    };
    let f32s = |n: u64, begin: u64| entry("F32", &format!("[{n}]"), begin, begin + 4 * n);
    for (header, data, item, reason) in [
        (format!(r#"{{"a":{},"a":{}}}"#, f32s(1, 0), f32s(1, 4)), 8, "a", "twice"),
        (format!(r#"{{"a":{},"b":{}}}"#, f32s(2, 0), f32s(1, 4)), 8, "b", "overlaps"),
        (format!(r#"{{"a":{},"b":{}}}"#, f32s(1, 0), f32s(1, 0)), 4, "b", "overlaps"),
        (format!(r#"{{"a":{},"b":{}}}"#, f32s(1, 0), f32s(1, 8)), 12, "b", "hole"),
        (format!(r#"{{"a":{}}}"#, f32s(1, 4)), 8, "a", "hole"),
        (format!(r#"{{"a":{}}}"#, f32s(1, 0)), 9, "", "after the last"),
        (format!(r#"{{"a":{}}}"#, f32s(2, 0)), 4, "a", "truncated"),
        (format!(r#"{{"a":{}}}"#, entry("F32", "[2]", 0, 4)), 4, "a", "8 bytes by type and shape"),
        (format!(r#"{{"a":{}}}"#, entry("F32", "[1]", 4, 0)), 4, "a", "range"),
        (format!(r#"{{"a":{}}}"#, entry("F32", "[0]", 0, 0)), 0, "a", "no elements"),
        (format!(r#"{{"a":{}}}"#, entry("F32", "[4294967296,4294967296]", 0, 0)), 0, "a", "overflows"),
        (format!(r#"{{"a":{}}}"#, entry("F32", "[-1]", 0, 4)), 4, "a", "malformed"),
        (format!(r#"{{"a":{}}}"#, entry("F8_E5M2", "[4]", 0, 4)), 4, "a", "F8_E5M2"),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}"#.into(), 4, "a", "malformed"),
        (
            r#"{"a":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}}"#.into(),
            4,
            "a",
            "malformed",
        ),
        (r#"{"a":{"dtype":"F32","shape":[1]}}"#.into(), 4, "a", "malformed"),
        (r#"{"__metadata__":{"x":1}}"#.into(), 0, "__metadata__", "malformed"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.into(), 0, "__metadata__", "twice"),
        ("[]".into(), 0, "", "expected an object of tensors"),
        ("".into(), 0, "", "malformed"),
        ("{} {}".into(), 0, "", "malformed"),
        (format!("{}{}", r#"{"a":"#.repeat(200), "}".repeat(200)), 0, "a", "malformed"),
    ] {
        let file = folder.write("bad.safetensors", with_header(&header, &vec![0; data]));
        let (found_item, found_reason) = refused(&file, SafeTensors::open(&file));
        assert_eq!(found_item, item, "{header}: {found_reason}");
        assert!(found_reason.contains(reason), "{header}: {found_reason}");
    }
    let huge = [&(MAX_HEADER + 1).to_le_bytes()[..], &[b' '; 64]].concat();
    let file = folder.write("huge.safetensors", huge);
    assert!(refused(&file, SafeTensors::open(&file)).1.contains("at most"));
    let file = folder.write("large.safetensors", MAX_HEADER.to_le_bytes());
    assert!(refused(&file, SafeTensors::open(&file)).1.contains("truncated"));
    let file = folder.write("endless.safetensors", u64::MAX.to_le_bytes());
    assert!(refused(&file, SafeTensors::open(&file)).1.contains("at most"));
}

proptest! {
    /// Whatever is changed in a file, it is refused or every tensor in it can be read.
    #[test]
    fn no_byte_is_trusted(at in 0..two().len(), byte: u8, cut in 0..two().len() + 40) {
        let folder = Folder::new();
        let mut bytes = two();
        bytes[at] = byte;
        bytes.resize(cut, 0);
        let path = folder.write("fuzzed.safetensors", bytes);
        if let Ok(file) = SafeTensors::open(&path) {
            for (name, entry) in file.entries() {
                match file.read_f32(name) {
                    Ok(values) => prop_assert_eq!(values.len(), entry.shape.iter().product::<usize>()),
                    Err(Error::Checkpoint { .. }) => {} // NaN or integers
                    Err(other) => prop_assert!(false, "{}", other),
                }
            }
        }
    }
}

#[test]
fn values_beyond_the_storage_type_are_refused() {
    let folder = Folder::new();
    let of = |dtype: &str, data: &[u8]| {
        let size = data.len();
        let header = json!({"w": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]}}).to_string();
        SafeTensors::open(folder.write("w.safetensors", with_header(&header, data))).unwrap()
    };
    let large = of("BF16", &half::bf16::from_f32(1e5).to_le_bytes());
    assert!((large.read_f32("w").unwrap()[0] - 1e5).abs() < 500.0);
    assert!(refused(large.path(), large.read_f16("w")).1.contains("65504"));
    let large = of("F32", &65520f32.to_le_bytes()); // rounds to 2¹⁶
    assert!(refused(large.path(), large.read_f16("w")).1.contains("65504"));
    assert_eq!(of("F32", &65519f32.to_le_bytes()).read_f16("w").unwrap(), [f16::MAX]);
    for broken in [of("F32", &f32::NAN.to_le_bytes()), of("BF16", &[0x80, 0x7f])] {
        assert!(broken.read_f32("w").is_err() && broken.read_f16("w").is_err());
    }
}

fn open_weights(folder: &Folder) -> Result<Weights> {
    Weights::open(&folder.0, &qwen3_vl::config::load(&folder.0)?, DType::F32, &Device::Cpu)
}

/// The checkpoint in the repository with its header changed; the data stays.
fn with_changed_header(change: impl Fn(&mut serde_json::Map<String, Value>)) -> Folder {
    let folder = Folder::of_checkpoint();
    let bytes = fs::read(folder.0.join("model.safetensors")).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    change(&mut header);
    let header = Value::Object(header).to_string();
    folder.write("model.safetensors", with_header(&header, &bytes[8 + len..]));
    folder
}

#[test]
fn missing_extra_and_misshaped_tensors_are_named() {
    let open = |folder: &Folder| refused(&folder.0, open_weights(folder));
    let norm = "model.language_model.layers.1.self_attn.q_norm.weight";

    let renamed = with_changed_header(|header| {
        let entry = header.remove(norm).unwrap();
        header.insert("model.language_model.layers.3.self_attn.q_norm.weight".into(), entry);
    });
    let (item, reason) = open(&renamed);
    assert!(item.contains("layers.3") && reason.contains("not a tensor of this model"), "{item}: {reason}");

    let turned = "model.language_model.layers.0.mlp.down_proj.weight";
    let misshaped = with_changed_header(|header| header[turned]["shape"] = json!([160, 64]));
    let (item, reason) = open(&misshaped);
    assert!(
        item == turned && reason.contains("[160, 64]") && reason.contains("[64, 160]"),
        "{item}: {reason}"
    );

    let longer = Folder::of_checkpoint();
    longer.edit("config.json", |config| config["text_config"]["num_hidden_layers"] = json!(4));
    let (item, reason) = open(&longer);
    assert!(item.contains("layers.3") && reason.contains("and 10 more"), "{item}: {reason}");

    let untied = Folder::of_checkpoint();
    untied.edit("config.json", |config| config["tie_word_embeddings"] = json!(false));
    assert_eq!(open(&untied).0, "lm_head.weight");
}

/// Splits the checkpoint's tensors into two files with an index.
fn sharded() -> Folder {
    let folder = Folder::of_checkpoint();
    let bytes = fs::read(folder.0.join("model.safetensors")).unwrap();
    fs::remove_file(folder.0.join("model.safetensors")).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let mut map = serde_json::Map::new();
    for (file, vision) in [("one.safetensors", false), ("two.safetensors", true)] {
        let (mut entries, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, entry) in &header {
            if name == "__metadata__" || name.contains("visual") != vision {
                continue;
            }
            let range = |i: usize| 8 + len + entry["data_offsets"][i].as_u64().unwrap() as usize;
            let at = data.len();
            data.extend(&bytes[range(0)..range(1)]);
            let mut entry = entry.clone();
            entry["data_offsets"] = json!([at, data.len()]);
            entries.insert(name.clone(), entry);
            map.insert(name.clone(), json!(file));
        }
        folder.write(file, with_header(&Value::Object(entries).to_string(), &data));
    }
    folder.write("model.safetensors.index.json", json!({"metadata": {}, "weight_map": map}).to_string());
    folder
}

#[test]
fn several_files_are_one_checkpoint() {
    let folder = sharded();
    let mut weights = open_weights(&folder).unwrap();
    assert_eq!(weights.progress().total, qwen3_vl::config::load(&folder.0).unwrap().tensor_count());
    let whole = SafeTensors::open(tiny().join("model.safetensors")).unwrap();
    let name = "model.visual.patch_embed.proj.weight";
    let matrix = weights.matrix(name).unwrap();
    assert_eq!(matrix.dims(), [48, 1536]);
    assert_eq!(matrix.to_vec::<f32>().unwrap(), whole.read_f32(name).unwrap());
    let (unused, bias) = (weights.unused(), "model.visual.patch_embed.proj.bias");
    assert!(!unused.contains(&name) && unused.contains(&bias));
    let sizes = whole.entries().values().map(|entry| entry.shape.iter().product::<usize>());
    assert_eq!(weights.parameters(), sizes.sum::<usize>());
    let config = qwen3_vl::config::load(&folder.0).unwrap();
    let integers = Weights::open(&folder.0, &config, DType::U32, &Device::Cpu);
    assert!(matches!(integers, Err(Error::DType { .. })));

    let index = "model.safetensors.index.json";
    let change = |value: Option<&str>| {
        let folder = sharded();
        folder.edit(index, |index| match value {
            Some(file) => index["weight_map"][bias] = json!(file),
            None => drop(index["weight_map"].as_object_mut().unwrap().remove(bias)),
        });
        refused(&folder.0, open_weights(&folder))
    };
    for bad in ["../two.safetensors", "/two.safetensors", "..", "", "sub/two.safetensors"] {
        let (item, reason) = change(Some(bad));
        assert!(item == bias && reason.contains("not a file name"), "{bad}: {item}: {reason}");
    }
    assert_eq!(change(Some("one.safetensors")).0, bias);
    assert_eq!(change(None).0, bias);
    let lost = sharded();
    fs::remove_file(lost.0.join("two.safetensors")).unwrap();
    refused(&lost.0, open_weights(&lost));
}

#[test]
fn wrong_configurations_name_the_field() {
    for (file, path, value, part) in [
        ("config.json", "/model_type", json!("llama"), "qwen3_vl"),
        ("config.json", "/text_config/hidden_size", json!("64"), "whole number"),
        ("config.json", "/text_config/hidden_size", json!(0), "between 1"),
        ("config.json", "/text_config/num_hidden_layers", json!(1u64 << 40), "between 1"),
        ("config.json", "/text_config/num_key_value_heads", json!(3), "does not divide"),
        ("config.json", "/text_config/hidden_act", json!("gelu"), "silu"),
        ("config.json", "/text_config/attention_bias", json!(true), "not supported"),
        ("config.json", "/text_config/rms_norm_eps", json!(-1.0), "positive"),
        ("config.json", "/text_config/rms_norm_eps", json!(0.0), "positive"),
        ("config.json", "/text_config/head_dim", json!(33), "even"),
        ("config.json", "/text_config/rope_scaling/mrope_section", json!([6, 5]), "three"),
        ("config.json", "/text_config/rope_scaling/mrope_section", json!([6, 5, 6]), "sum"),
        ("config.json", "/text_config/rope_scaling/rope_type", json!("yarn"), "yarn"),
        ("config.json", "/text_config/rope_scaling", json!(null), "missing"),
        ("config.json", "/vision_config/num_heads", json!(5), "divide"),
        ("config.json", "/vision_config/num_position_embeddings", json!(63), "square"),
        ("config.json", "/vision_config/deepstack_visual_indexes", json!([0, 2, 4]), "below 4"),
        ("config.json", "/vision_config/deepstack_visual_indexes", json!([2, 1]), "ascending"),
        ("config.json", "/vision_config/deepstack_visual_indexes", json!([1, 1]), "ascending"),
        ("config.json", "/vision_config/patch_size", json!(257), "above 256"),
        ("config.json", "/vision_config/temporal_patch_size", json!(17), "above 16"),
        ("config.json", "/vision_config/spatial_merge_size", json!(17), "above 16"),
        ("config.json", "/vision_config/out_hidden_size", json!(32), "64"),
        ("config.json", "/vision_config/hidden_act", json!("gelu"), "gelu_pytorch_tanh"),
        ("config.json", "/image_token_id", json!(400), "vocabulary"),
        ("config.json", "/image_token_id", json!(null), "missing"),
        ("generation_config.json", "/eos_token_id", json!([1, 400]), "vocabulary"),
        ("generation_config.json", "/eos_token_id", json!("x"), "token id"),
        ("preprocessor_config.json", "/size/shortest_edge", json!(1e9 as u64), "above"),
        ("preprocessor_config.json", "/size/longest_edge", json!(0), "between 1"),
        ("preprocessor_config.json", "/patch_size", json!(14), "16"),
        ("preprocessor_config.json", "/image_std", json!([0.5, 0.5]), "per channel"),
        ("preprocessor_config.json", "/image_std", json!([0.5, 0.0, 0.5]), "positive"),
        ("preprocessor_config.json", "/do_resize", json!(false), "not supported"),
    ] {
        let folder = Folder::of_checkpoint();
        folder.edit(file, |root| *root.pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone());
        if path == "/do_resize" {
            folder.edit(file, |root| root["do_resize"] = value.clone());
        }
        let result = qwen3_vl::config::load(&folder.0).and_then(|config| {
            GenerationConfig::load(&folder.0, &config.text)?;
            PreprocessorConfig::load(&folder.0, &seeing(&config).unwrap().tower)
        });
        let (item, reason) = refused(&folder.0.join(file), result);
        assert_eq!(item, path[1..].replace('/', "."), "{reason}");
        assert!(reason.contains(part), "{path}: {reason}");
    }
    for garbage in ["", "[]", "{", "nul", &"[".repeat(100_000)] {
        let folder = Folder::of_checkpoint();
        let file = folder.write("config.json", garbage);
        refused(&file, qwen3_vl::config::load(&folder.0));
    }
}

/// Values exactly at a limit are accepted, and optional fields may be left out.
#[test]
fn limits_are_inclusive_and_defaults_are_the_references() {
    let folder = Folder::of_checkpoint();
    folder.edit("config.json", |config| {
        let vision = &mut config["vision_config"];
        (vision["patch_size"], vision["temporal_patch_size"]) = (json!(256), json!(16));
        vision["spatial_merge_size"] = json!(16);
        let text = config["text_config"].as_object_mut().unwrap();
        text.remove("head_dim").unwrap();
        text["num_attention_heads"] = json!(2);
    });
    let config = qwen3_vl::config::load(&folder.0).unwrap();
    let tower = &seeing(&config).unwrap().tower;
    assert_eq!((tower.patch_size, tower.merge_len(), config.text.head_dim), (256, 256, 32));

    let folder = Folder::of_checkpoint();
    fs::remove_file(folder.0.join("generation_config.json")).unwrap();
    let config = qwen3_vl::config::load(&folder.0).unwrap();
    let generation = GenerationConfig::load(&folder.0, &config.text).unwrap();
    assert_eq!(generation, GenerationConfig { eos_token_ids: vec![394], ..Default::default() });

    folder.edit("preprocessor_config.json", |root| root["size"]["longest_edge"] = json!(4096));
    let images = PreprocessorConfig::load(&folder.0, &seeing(&config).unwrap().tower).unwrap();
    assert_eq!((images.min_pixels, images.max_pixels), (4096, 4096));
    // transformers' 128 and 768 tokens, of (16 · 2)² pixels
    let videos = images.for_video();
    assert_eq!((videos.min_pixels, videos.max_pixels), (128 * 32 * 32, 768 * 32 * 32));
    assert_eq!(PreprocessorConfig { min_pixels: 4096, max_pixels: 4096, ..videos }, images);

    let mut tower = seeing(&config).unwrap().tower.clone();
    tower.spatial_merge_size = 3;
    assert_eq!(tower.merge_len(), 9);
}

/// A checkpoint may name several templates in its tokenizer's configuration.
#[test]
fn the_default_template_is_taken() {
    let folder = Folder::of_checkpoint();
    fs::remove_file(folder.0.join("chat_template.jinja")).unwrap();
    let named = |name: &str, template: &str| json!({"name": name, "template": template});
    folder.edit("tokenizer_config.json", |root| {
        root["chat_template"] =
            json!([named("tool_use", "no"), named("default", "of {{ messages[0].role }}")]);
    });
    let processor = qwen3_vl::processor(&folder.0).unwrap();
    assert_eq!(processor.render(&[Message::user(0, "hello")], &[]).unwrap(), "of user");
    // more pad tokens than any prompt has are refused before they are written
    let pad = "<|image_pad|>";
    let spelled =
        chat::Spellings::new(seeing(&processor.config).unwrap(), |id| processor.tokenizer.spelling(id));
    let expanded = |tokens: usize| chat::expand(pad, &[Media::Image { tokens }], &spelled);
    assert!(matches!(expanded(usize::MAX), Err(Error::Prompt { .. })));
    assert_eq!(expanded(2).unwrap(), pad.repeat(2));
}

#[test]
fn both_spellings_of_rope_are_read() {
    let folder = Folder::of_checkpoint();
    let old = qwen3_vl::config::load(&folder.0).unwrap();
    folder.edit("config.json", |config| {
        let text = config["text_config"].as_object_mut().unwrap();
        let mut rope = text.remove("rope_scaling").unwrap();
        rope["rope_theta"] = text.remove("rope_theta").unwrap();
        text.insert("rope_parameters".into(), rope);
    });
    let new = qwen3_vl::config::load(&folder.0).unwrap();
    assert_eq!((&old.text, seeing(&old)), (&new.text, seeing(&new)));
    assert_eq!((new.text.rope_theta, new.text.mrope_section), (5e6, [6, 5, 5]));
}

/// A PNG file that announces an image of this size and has no pixels.
fn png_without_pixels(width: u32, height: u32) -> Vec<u8> {
    let chunk = |name: &[u8], data: &[u8]| {
        let named = [name, data].concat();
        let crc = named.iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
        });
        [&(data.len() as u32).to_be_bytes(), &named[..], &(!crc).to_be_bytes()].concat()
    };
    let size = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, 6, 0, 0, 0]].concat();
    [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &size), chunk(b"IDAT", b""), chunk(b"IEND", b"")].concat()
}

#[test]
fn pictures_are_bounded_and_checked() {
    let refused = |bytes: &[u8]| match Picture::from_bytes("p", bytes) {
        Err(Error::Image { file, reason }) => {
            assert_eq!(file, "p");
            reason
        }
        other => panic!("{other:?}"),
    };
    for (width, height) in [(40_000, 1), (1, 40_000), (32_000, 32_000)] {
        let reason = refused(&png_without_pixels(width, height));
        assert!(reason.contains("limit") || reason.contains("allowed"), "{width} × {height}: {reason}");
    }
    refused(&png_without_pixels(u32::MAX, u32::MAX));
    refused(&png_without_pixels(0, 5));
    refused(b"");
    refused(b"no picture at all");
    let png = fs::read(tiny().join("cases/small.png")).unwrap();
    assert!(Picture::from_bytes("p", &png).is_ok());
    for len in [8, 20, 60, png.len() / 2] {
        refused(&png[..len]);
    }
}
