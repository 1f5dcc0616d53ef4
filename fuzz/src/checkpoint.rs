//! A checkpoint's files: each alone in a folder in memory, with the configuration of the tiny fixture where it needs one.

use pascaline::{DType, Device};
use qwen3_vl::chat::{ChatTemplate, Message, Part};
use qwen3_vl::config::{Config, GenerationConfig, PreprocessorConfig, seeing};
use qwen3_vl::gguf::Gguf;
use qwen3_vl::preprocess::{Picture, image_patches};
use qwen3_vl::safetensors::SafeTensors;
use qwen3_vl::tokenizer::Tokenizer;
use qwen3_vl::weights::Weights;
use qwen3_vl::{Checkpoint, Processor};
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use tempfile::TempDir;

/// The most layers whose tensors are listed: a configuration may claim more.
const LAYERS: usize = 64;

/// The context for which templates are rendered, in tokens.
const CONTEXT: usize = 4096;

static TINY: LazyLock<Processor> = LazyLock::new(|| qwen3_vl::processor(tiny()).expect("the fixture"));

pub fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny")
}

thread_local! {
    static FOLDER: RefCell<Option<TempDir>> = const { RefCell::new(None) };
    static CONFIG: Config = qwen3_vl::config::load(&tiny()).expect("the fixture's configuration");
}

/// Runs `work` in a folder that holds only this file, in memory where the system has `/dev/shm`.
fn with_file<R>(name: &str, content: &[u8], work: impl FnOnce(&Path) -> R) -> R {
    FOLDER.with_borrow_mut(|folder| {
        let folder = folder.get_or_insert_with(|| {
            let memory = Path::new("/dev/shm");
            let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
            made.expect("a temporary folder")
        });
        let file = folder.path().join(name);
        fs::write(&file, content).expect("room for the input");
        let result = work(folder.path());
        fs::remove_file(&file).expect("the file just written");
        result
    })
}

/// The header, and the data of every tensor that it accepts.
pub fn safetensors(input: &[u8]) {
    with_file("model.safetensors", input, |folder| {
        let Ok(file) = SafeTensors::open(folder.join("model.safetensors")) else { return };
        for name in file.entries().keys() {
            let _ = (file.read_f32(name), file.read_f16(name), file.read_i64(name));
        }
    });
}

/// A GGUF file: its header, every tensor that it accepts, and the configuration and tokenizer that it describes, as text file and vision file.
pub fn gguf(input: &[u8]) {
    with_file("model.gguf", input, |folder| {
        let path = folder.join("model.gguf");
        let Ok(file) = Gguf::open(&path) else { return };
        let names: Vec<String> = file.names().map(str::to_owned).collect();
        for name in &names {
            let _ = (file.read::<f32>(name), file.read::<half::f16>(name));
        }
        if let Ok(checkpoint) = Checkpoint::open(&path, Some(&path)) {
            let _ = (checkpoint.config(), checkpoint.processor());
        }
    });
}

/// `model.safetensors.index.json`, whose shards are missing.
pub fn index(input: &[u8]) {
    with_file("model.safetensors.index.json", input, |folder| {
        CONFIG.with(|config| {
            let _ = Weights::open(folder, config, DType::F32, &Device::Cpu);
        });
    });
}

/// `config.json`, and the tensors that a model of it would have.
pub fn config(input: &[u8]) {
    if let Ok(config) = qwen3_vl::config::parse(Path::new("config.json"), input)
        && config.text.num_hidden_layers.max(config.vision.as_ref().map_or(0, |vision| vision.sizes().depth))
            <= LAYERS
    {
        let _ = config.tensors();
    }
}

/// `tokenizer.json`, and a text encoded and decoded by it.
pub fn tokenizer(input: &[u8]) {
    with_file("tokenizer.json", input, |folder| {
        CONFIG.with(|config| {
            let Ok(tokenizer) = Tokenizer::load(folder, config) else { return };
            if let Ok(ids) = tokenizer.encode("<|vision_start|> What is it, at 3.5 °C? 🙂\n\n  x") {
                let _ = tokenizer.decode(&ids);
            }
        });
    });
}

/// `chat_template.jinja`, rendered and tokenised.
pub fn template(input: &[u8]) {
    with_file("chat_template.jinja", input, |folder| {
        let Ok(template) = ChatTemplate::load(folder) else { return };
        let pictures = Message { role: "user".into(), content: vec![Part::Image, Part::Video] };
        let messages = [Message::text("system", "Be brief."), Message::user(1, "What?"), pictures];
        if let Ok(text) = template.render(&messages, CONTEXT) {
            let _ = TINY.tokenizer.encode(&text);
        }
    });
}

/// Lines of training data, and the sequences that they become.
pub fn training(input: &[u8]) {
    with_file("data.jsonl", input, |folder| {
        let Ok(all) = pascaline_train::data::read(&folder.join("data.jsonl")) else { return };
        for conversation in all.iter().take(4) {
            let _ = conversation.example(&TINY);
        }
    });
}

/// `preprocessor_config.json` and `generation_config.json`, and a picture prepared.
pub fn preprocessor(input: &[u8]) {
    CONFIG.with(|config| {
        with_file("generation_config.json", input, |folder| {
            let _ = GenerationConfig::load(folder, &config.text);
        });
        with_file("preprocessor_config.json", input, |folder| {
            let Some(seeing) = seeing(config) else { return };
            let Ok(preprocessor) = PreprocessorConfig::load(folder, &seeing.tower) else { return };
            let picture = Picture { height: 40, width: 70, pixels: vec![128; 40 * 70 * 3] };
            let _ = image_patches("input", &picture, &preprocessor);
        });
    });
}
