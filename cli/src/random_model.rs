//! `pascaline random-model`: a checkpoint of a published model's true size whose weights are random, to measure time
//! and memory without a download.

use super::failure::Failure;
use super::files::{OutputFile, unwritable};
use super::model::check_directory;
use super::output::Output;
use half::bf16;
use qwen3_vl::config::Config;
use qwen3_vl::weights::expected;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes config.json and model.safetensors (bf16), and copies tokenizer and templates from another checkpoint.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The checkpoint to take everything but size and weights from.
    #[arg(long, value_name = "DIR")]
    from: PathBuf,

    /// Where to write; made if it is not there.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    /// The published model whose size to take.
    #[arg(long, default_value = "2b")]
    size: Size,

    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Json {
    file: String,
    parameters: usize,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Size {
    /// Qwen3-VL-2B-Instruct: 28 layers of width 2048, 24 vision blocks of width 1024.
    #[value(name = "2b")]
    TwoB,
}

/// The files that are copied where they exist.
const COPIED: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    check_directory(&args.from)?;
    Config::load(&args.from)?;
    let report = args.output.report()?;
    fs::create_dir_all(&args.to).map_err(|error| cannot("made", &args.to, &error))?;
    let whole = |path: &Path| fs::canonicalize(path).map_err(|error| cannot("read", path, &error));
    if whole(&args.from)? == whole(&args.to)? {
        let to = args.to.display();
        return Err(Failure::Usage(format!("{to} is --from as well as --to; name another folder")));
    }
    // All files get their names at the end, the weights last: a folder that has them is a whole checkpoint.
    let mut files = Vec::new();
    let mut write = |name: &str, bytes: &[u8]| -> Result<(), Failure> {
        let to = args.to.join(name);
        let mut file = OutputFile::create(&to, args.output.may_replace())?;
        file.write_all(bytes).map_err(|error| unwritable(&to, &error))?;
        files.push(file);
        Ok(())
    };
    let read = |from: &Path| fs::read(from).map_err(|error| cannot("read", from, &error));
    for name in COPIED {
        let from = args.from.join(name);
        if from.exists() {
            write(name, &read(&from)?)?;
        }
    }
    let changed = |name: &str, changes: Value| -> Result<Vec<u8>, Failure> {
        let from = args.from.join(name);
        let mut value: Value =
            serde_json::from_slice(&read(&from)?).map_err(|error| cannot("read", &from, &error))?;
        merge(&mut value, changes);
        Ok(value.to_string().into_bytes())
    };
    let config = changed("config.json", args.size.config())?;
    write("config.json", &config)?;
    write("preprocessor_config.json", &changed("preprocessor_config.json", args.size.preprocessor())?)?;
    let config = Config::parse(&args.to.join("config.json"), &config)?;
    let to = args.to.join("model.safetensors");
    let mut file = OutputFile::create(&to, args.output.may_replace())?;
    let parameters = write_weights(&mut file, &config).map_err(|error| unwritable(&to, &error))?;
    files.push(file);
    files.into_iter().try_for_each(OutputFile::keep)?;
    if !args.output.stdout_is_taken() {
        args.output.screen().line(&format!("{}: {parameters} parameters in bf16", to.display()))?;
    }
    let file = to.display().to_string();
    report.map_or(Ok(()), |report| report.write(&Json { file, parameters }))
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(format!("{} can't be {what}: {error}", path.display()))
}

impl Size {
    fn config(self) -> Value {
        match self {
            Self::TwoB => json!({
                "tie_word_embeddings": true,
                "text_config": {
                    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
                    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
                    "rms_norm_eps": 1e-6, "rope_theta": 5e6, "max_position_embeddings": 262144,
                    "rope_scaling": {"mrope_section": [24, 20, 20]}, "tie_word_embeddings": true,
                },
                "vision_config": {
                    "depth": 24, "hidden_size": 1024, "num_heads": 16, "intermediate_size": 4096, "patch_size": 16,
                    "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304,
                    "deepstack_visual_indexes": [5, 11, 17], "out_hidden_size": 2048,
                },
            }),
        }
    }

    fn preprocessor(self) -> Value {
        json!({"size": {"shortest_edge": 65536, "longest_edge": 16777216}})
    }
}

/// Puts the fields of `changes` into `value`, objects field by field.
fn merge(value: &mut Value, changes: Value) {
    match (value, changes) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (name, change) in changes {
                merge(fields.entry(name).or_insert(Value::Null), change);
            }
        }
        (value, change) => *value = change,
    }
}

/// Matrices uniform with the standard deviation that such models are initialised with, norms one, biases zero.
fn write_weights(file: &mut OutputFile, config: &Config) -> std::io::Result<usize> {
    const DEVIATION: f32 = 0.02;
    let tensors = expected(config);
    let mut header = Map::new();
    let mut at = 0;
    for (name, shape) in &tensors {
        let bytes = 2 * shape.iter().product::<usize>();
        header
            .insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let header = Value::Object(header).to_string();
    let mut out = BufWriter::with_capacity(1 << 20, file);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;

    // 256 values that a random byte chooses from: fast, and random enough to measure with
    let half_width = DEVIATION * 3f32.sqrt();
    let values: Vec<[u8; 2]> =
        (0..256).map(|i| bf16::from_f32((i as f32 - 127.5) / 127.5 * half_width).to_le_bytes()).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut random = vec![0u8; 1 << 16];
    let mut piece = Vec::with_capacity(2 << 16);
    for (name, shape) in &tensors {
        let mut left = shape.iter().product::<usize>();
        while left > 0 {
            let count = left.min(random.len());
            piece.clear();
            if shape.len() == 1 {
                let value = if name.ends_with("bias") { bf16::ZERO } else { bf16::ONE };
                piece.extend(std::iter::repeat_n(value.to_le_bytes(), count).flatten());
            } else {
                rng.fill_bytes(&mut random[..count]);
                piece.extend(random[..count].iter().flat_map(|&byte| values[usize::from(byte)]));
            }
            out.write_all(&piece)?;
            left -= count;
        }
    }
    out.flush()?;
    Ok(at / 2)
}
