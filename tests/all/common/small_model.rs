//! A checkpoint as small as the kernels allow, with random weights: for tests that generate thousands of times.

use qwen3_vl::config::Config;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Tokenizer, template and preprocessor are those of the tiny fixture, whose folder is given.
pub fn write(tiny: &Path) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for entry in fs::read_dir(tiny).expect("the fixture").flatten().filter(|entry| entry.path().is_file()) {
        fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a copy of the fixture's files");
    }
    let text = fs::read(tiny.join("config.json")).expect("the fixture's configuration");
    let mut root: Value = serde_json::from_slice(&text).expect("JSON");
    for (part, field, value) in [
        ("text_config", "hidden_size", json!(32)),
        ("text_config", "intermediate_size", json!(32)),
        ("text_config", "num_hidden_layers", json!(2)),
        ("text_config", "num_attention_heads", json!(2)),
        ("text_config", "num_key_value_heads", json!(1)),
        ("vision_config", "depth", json!(1)),
        ("vision_config", "deepstack_visual_indexes", json!([0])),
        ("vision_config", "hidden_size", json!(32)),
        ("vision_config", "num_heads", json!(1)),
        ("vision_config", "intermediate_size", json!(32)),
        ("vision_config", "out_hidden_size", json!(32)),
    ] {
        root[part][field] = value;
    }
    // of its own, as a head that is the embedding answers with the token it was given
    root["tie_word_embeddings"] = json!(false);
    root["text_config"]["tie_word_embeddings"] = json!(false);
    let file = folder.path().join("config.json");
    fs::write(&file, root.to_string()).expect("the configuration");
    let config = qwen3_vl::config::load(folder.path()).expect("a configuration that is accepted");
    fs::write(folder.path().join("model.safetensors"), weights(&config)).expect("the weights");
    folder
}

/// Matrices uniform in ±0.3, large enough for answers that vary; norms one, biases zero.
fn weights(config: &Config) -> Vec<u8> {
    let (mut header, mut data) = (Map::new(), Vec::new());
    let mut random = ChaCha8Rng::seed_from_u64(0);
    for (name, shape) in config.tensors() {
        let begin = data.len();
        for _ in 0..shape.iter().product() {
            let value = match shape.len() {
                1 if name.ends_with("bias") => 0.0,
                1 => 1.0,
                _ => (random.next_u32() as f32 / u32::MAX as f32 - 0.5) * 0.6,
            };
            data.extend(value.to_le_bytes());
        }
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()]});
        header.insert(name, entry);
    }
    let header = Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}
