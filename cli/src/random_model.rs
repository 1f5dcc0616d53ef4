//! `pascaline random-model`: writes a checkpoint of a published model's size with random weights, to measure time and
//! memory without a download.

use super::failure::Failure;
use super::files::{OutputFile, keep_all, read_input, unwritable, whole};
use super::gguf_file::{GgufFile, targets};
use super::hub;
use super::model::check_directory;
use super::output::Output;
use super::published::Size;
use super::quantize::mixes;
use super::screen::Screen;
use super::unfinished;
use qwen3_vl::config::{Config, PUBLISHED_PIXELS, PreprocessorConfig, seeing};
use qwen3_vl::gguf::{Fill, GgmlType, Mix, RandomValues, text_plan, vision_plan};
use qwen3_vl::json::parse;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes config.json and model.safetensors (bf16), and copies tokenizer and templates from another checkpoint; with
/// --type, a pair of GGUF files instead.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The checkpoint to copy everything from except size and weights: its folder, or its name on the hub, of which no weights
    /// are fetched.
    #[arg(long, value_name = "MODEL")]
    from: PathBuf,

    /// Where to write; created if necessary.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    /// The published model whose size to use.
    #[arg(long, default_value = "2b")]
    size: Size,

    /// Write GGUF files, with the text model's matrices in this type: model-‹TYPE›.gguf and mmproj-F16.gguf.
    #[arg(long = "type", value_name = "TYPE", ignore_case = true, value_parser = mixes())]
    mix: Option<Mix>,

    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Json {
    file: String,
    parameters: usize,
}

/// The most bytes of a file that is copied or changed.
const MAX_SMALL: u64 = 64 << 20;

/// The files that are copied if they exist.
const COPIED: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

pub(super) fn run(mut args: Args) -> Result<(), Failure> {
    let scratch = tempfile::tempdir().map_err(|error| cannot("made", &args.to, &error))?;
    args.from = hub::locate_headers(&args.from, scratch.path(), &args.output)?;
    let args = &args;
    check_directory(&args.from)?;
    qwen3_vl::config::load(&args.from)?;
    let report = args.output.report()?;
    let replace = args.output.may_replace();
    fs::create_dir_all(&args.to).map_err(|error| cannot("made", &args.to, &error))?;
    let whole = |path: &Path| whole(path).map_err(|error| cannot("read", path, &error));
    if whole(&args.from)? == whole(&args.to)? {
        let to = args.to.display();
        return Err(Failure::Usage(format!("{to} is --from as well as --to; name another folder")));
    }
    unfinished::leave_none()?;
    let config = changed(&args.from.join("config.json"), args.size.fields())?;
    let (to, parameters) = match args.mix {
        None => write_checkpoint(args, &config)?,
        Some(mix) => {
            let (mut screen, mut before) = (args.output.screen(), None);
            write_gguf(&args.from, &args.to, &config, mix, replace, |bytes, total| {
                if before.is_none() {
                    screen.start_smooth(total as usize);
                }
                screen.advance((bytes - before.unwrap_or(0)) as usize);
                before = Some(bytes);
                Ok(())
            })?
        }
    };
    if !args.output.stdout_is_taken() {
        let kind = args.mix.map_or("bf16", Mix::name);
        args.output.screen().line(&format!("{}: {parameters} parameters in {kind}", to.display()))?;
    }
    let file = to.display().to_string();
    report.map_or(Ok(()), |report| report.write(&Json { file, parameters }))
}

/// A JSON file with some of its fields changed.
pub(super) fn changed(from: &Path, changes: Value) -> Result<Vec<u8>, Failure> {
    let bytes = read_input(from, MAX_SMALL).map_err(|error| cannot("read", from, &error))?;
    let mut value = parse(&bytes).map_err(|error| cannot("read", from, &error))?;
    merge(&mut value, changes);
    Ok(value.to_string().into_bytes())
}

/// A directory in the published layout; returns the weights' file and the number of parameters.
fn write_checkpoint(args: &Args, config: &[u8]) -> Result<(PathBuf, usize), Failure> {
    // All files get their names at the end, the weights last: a folder with weights is a complete checkpoint.
    let mut files = Vec::new();
    let mut write = |name: &str, bytes: &[u8]| -> Result<(), Failure> {
        let to = args.to.join(name);
        let mut file = OutputFile::create(&to, args.output.may_replace())?;
        file.write_all(bytes).map_err(|error| unwritable(&to, &error))?;
        files.push(file);
        Ok(())
    };
    for name in COPIED {
        let from = args.from.join(name);
        if from.exists() {
            write(name, &read_input(&from, MAX_SMALL).map_err(|error| cannot("read", &from, &error))?)?;
        }
    }
    write("config.json", config)?;
    let name = "preprocessor_config.json";
    write(name, &changed(&args.from.join(name), args.size.preprocessor())?)?;
    let config = qwen3_vl::config::parse(&args.to.join("config.json"), config)?;
    let to = args.to.join("model.safetensors");
    let mut file = OutputFile::create(&to, args.output.may_replace())?;
    let parameters = write_weights(&mut file, &to, &config, &mut args.output.screen())?;
    files.push(file);
    keep_all(files)?;
    Ok((to, parameters))
}

/// A pair of GGUF files; returns the text file and the number of parameters of both. `proceed` is called with the bytes so
/// far and those of all tensors, and may stop it.
pub(super) fn write_gguf(
    from: &Path,
    to: &Path,
    config: &[u8],
    mix: Mix,
    replace: bool,
    mut proceed: impl FnMut(u64, u64) -> Result<(), Failure>,
) -> Result<(PathBuf, usize), Failure> {
    let config = qwen3_vl::config::parse(&from.join("config.json"), config)?;
    let [text, vision] = targets(to, mix.name())?;
    let mut plans = vec![(&text, text_plan(from, &config, mix)?)];
    if let Some(seeing) = seeing(&config) {
        let images = PreprocessorConfig::load(from, &seeing.tower)?;
        let [min_pixels, max_pixels] = PUBLISHED_PIXELS;
        let images = PreprocessorConfig { min_pixels, max_pixels, ..images };
        plans.insert(0, (&vision, vision_plan(&from.join("config.json"), &config, &images)?));
    }
    let tensors = plans.iter().flat_map(|(_, plan)| &plan.tensors);
    let total = tensors.map(|tensor| tensor.ty.bytes(tensor.shape.iter().product()) as u64).sum();
    let (mut files, mut seed, mut before) = (Vec::new(), 0, 0);
    for (to, plan) in &plans {
        let mut file = GgufFile::create(to, plan, replace)?;
        for tensor in &plan.tensors {
            let fill = Fill::for_tensor(&tensor.published, &tensor.shape);
            RandomValues::new(tensor.ty, fill, seed)?.each(tensor.shape.iter().product(), |bytes| {
                file.write(bytes)?;
                proceed(before + file.bytes(), total)
            })?;
            file.pad()?;
            seed += 1;
        }
        before += file.bytes();
        files.push(file.finished());
    }
    keep_all(files)?;
    let parameters = plans.iter().map(|(_, plan)| plan.parameters()).sum();
    Ok((text, parameters))
}

fn cannot(what: &str, path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Failed(format!("{} can't be {what}: {error}", path.display()))
}

/// Merges the fields of `changes` into `value`, recursively for objects.
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

/// Writes a safetensors file in bf16; returns the number of parameters.
fn write_weights(
    file: &mut OutputFile,
    to: &Path,
    config: &Config,
    screen: &mut Screen,
) -> Result<usize, Failure> {
    let tensors = config.published_tensors();
    let mut header = Map::new();
    let mut at = 0;
    for (name, shape) in &tensors {
        let bytes = 2 * shape.iter().product::<usize>();
        header
            .insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes]}));
        at += bytes;
    }
    let header = Value::Object(header).to_string();
    screen.start_smooth(at);
    let mut write = |bytes: &[u8]| {
        screen.advance(bytes.len());
        file.write_all(bytes).map_err(|error| unwritable(to, &error))
    };
    write(&(header.len() as u64).to_le_bytes())?;
    write(header.as_bytes())?;
    for (seed, (name, shape)) in tensors.iter().enumerate() {
        let fill = Fill::for_tensor(name, shape);
        RandomValues::new(GgmlType::BF16, fill, seed as u64)?.each(shape.iter().product(), &mut write)?;
    }
    screen.finish();
    Ok(at / 2)
}
