//! `pascaline finetune`: adapters, or all weights, trained on conversations with pictures.

use super::device::DeviceArg;
use super::failure::Failure;
use super::files::{OutputFile, check_apart, keep_all, note_input, read_input, unwritable, whole};
use super::gguf_file::{GgufFile, names};
use super::hub;
use super::interrupt;
use super::model::check_directory;
use super::output::Output;
use pascaline::quant::Format;
use pascaline::{DType, Device, Error, format_bytes};
use pascaline_train::curve::{self, Point};
use pascaline_train::finetune::{self, End, Event, FineTune, memory};
use pascaline_train::lora::{LoraOptions, is_of_vision};
use pascaline_train::model::Frozen;
use pascaline_train::optimizer::{Decay, Method, Schedule};
use pascaline_train::{
    Example, Lora, Model, Optimizer, QuantizeAware, StateFolder, data, fingerprint, state,
};
use qwen3_vl::Processor;
use qwen3_vl::adapter::{ADAPTER_CONFIG, ADAPTER_TENSORS};
use qwen3_vl::checkpoint::SMALL_FILES;
use qwen3_vl::config::Config;
use qwen3_vl::gguf::{Mix, Plan, text_plan, vision_plan_of};
use serde::Serialize;
use serde_json::json;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Trains a model on conversations with pictures, in f32.
///
/// The data is a file with a conversation on each line, in the format of Qwen's own fine-tuning: {"image": PATH or list of them,
/// "conversations": [{"from": "human", "value": "<image>\\nWhat is it?"}, {"from": "gpt", "value": "a red circle"}]}. Paths are
/// relative to the file. Only what `gpt` says is learned. `tools`, and turns from `function_call` and `observation`, teach calls of tools.
///
/// The folder gets adapter_config.json and adapter_model.safetensors, as PEFT has them, for `--adapter` of `generate`, `chat` and `serve`; or
/// with --full a whole checkpoint, or with --quantize-aware a pair of GGUF files. losses.csv and losses.png show how it went. Ctrl-C stores the state after the step at hand, and the
/// same command with --resume goes on to the same bits.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The checkpoint to begin with: a directory with config.json, safetensors and tokenizer.json, as published, or its
    /// name on the Hugging Face hub.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,

    /// The conversations.
    #[arg(long, value_name = "FILE")]
    data: PathBuf,

    /// Where to write; made if it is not there.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,

    /// The rank of the adapters.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    rank: u32,

    /// The adapters' product is multiplied by this over the rank; if not given, twice the rank.
    #[arg(long)]
    alpha: Option<f32>,

    /// The linear maps that get adapters, by the last parts of their names.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj"
    )]
    targets: Vec<String>,

    /// How weights that carry adapters are stored. With q8_0, q4_0 or q4_k those are the decoder layers' matrices, which are dequantised for
    /// each product, and all others are f16.
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    dtype: FrozenArg,

    /// Train all weights, and write a whole checkpoint.
    #[arg(long, conflicts_with_all = ["rank", "alpha", "targets", "dtype"])]
    full: bool,

    /// Compute with the weights as a GGUF file of this type will hold them, and write that pair of files: what is trained is what
    /// generates. Without --full, those are the weights with their adapters merged.
    #[arg(long, value_name = "TYPE")]
    quantize_aware: Option<QuantizeAwareArg>,

    /// With --quantize-aware, the scales of the file's blocks: determined by the weights, or learned beside them (Esser et al. 2020).
    #[arg(long, default_value = "fixed", requires = "quantize_aware")]
    scales: ScalesArg,

    /// Train the vision tower too: with --full its weights, else adapters of those of its maps that --targets names.
    #[arg(long)]
    vision: bool,

    /// With --full, begin from random weights of this seed.
    #[arg(long, value_name = "SEED", requires = "full")]
    from_random: Option<u64>,

    /// Passes over the data.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,

    /// Conversations of a step.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,

    /// The most tokens of one pass through the model, into which conversations of a step are packed. Those that do not fit it
    /// together go through one after the other, and their gradients are added.
    #[arg(long, value_name = "TOKENS", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..))]
    pack: u32,

    /// The largest learning rate.
    #[arg(long, default_value_t = 2e-4)]
    rate: f32,

    /// How the learning rate goes on after the warm-up.
    #[arg(long, default_value = "cosine")]
    schedule: DecayArg,

    /// Steps in which the learning rate grows from 0.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    warmup: u32,

    /// How much of the weights goes at each step, times the learning rate; norms and biases keep theirs.
    #[arg(long, value_name = "SHARE", default_value_t = 0.01)]
    weight_decay: f32,

    /// How steps are made. adamw8bit stores AdamW's moments in 2 bytes of a trained parameter where adamw takes 8; sgd has a
    /// momentum of 0.9.
    #[arg(long, default_value = "adamw", conflicts_with = "sgd")]
    optimizer: OptimizerArg,

    /// Gradient descent with this momentum in place of AdamW.
    #[arg(long, value_name = "MOMENTUM")]
    sgd: Option<f32>,

    /// The largest norm of the gradients; larger ones are scaled down to it.
    #[arg(long, value_name = "NORM", default_value_t = 1.0)]
    clip: f32,

    /// The share of the conversations that is not learned but evaluated after each pass.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    hold_out: f64,

    /// Decides the order, what is held out, and the adapters' first values.
    #[arg(long, default_value_t = 0)]
    seed: u64,

    /// Compute layers again in the backward pass: less memory, a third more time.
    #[arg(long)]
    checkpoint_layers: bool,

    /// Store the state after every so many steps too.
    #[arg(long, value_name = "STEPS")]
    save_every: Option<u32>,

    /// Go on from the state in the folder.
    #[arg(long)]
    resume: bool,

    #[command(flatten)]
    device: DeviceArg,

    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum DecayArg {
    Constant,
    Linear,
    Cosine,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OptimizerArg {
    Adamw,
    Adamw8bit,
    Sgd,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum QuantizeAwareArg {
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum ScalesArg {
    Fixed,
    Learned,
}

impl QuantizeAwareArg {
    fn mix(self) -> Mix {
        match self {
            Self::Q8_0 => Mix::Q8_0,
            Self::Q4_0 => Mix::Q4_0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
enum FrozenArg {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "q4_k")]
    Q4K,
}

impl FrozenArg {
    fn storage(self) -> Frozen {
        match self {
            Self::F32 => Frozen::Float(DType::F32),
            Self::F16 => Frozen::Float(DType::F16),
            Self::Q8_0 => Frozen::Quantized(Format::Q8_0),
            Self::Q4_0 => Frozen::Quantized(Format::Q4_0),
            Self::Q4K => Frozen::Quantized(Format::Q4K),
        }
    }
}

#[derive(Serialize)]
struct Json {
    finished: bool,
    steps: u32,
    trained_parameters: usize,
    planned_bytes: usize,
    loss: Option<f64>,
    held_out_loss: Option<f64>,
    held_out_right: Option<f64>,
}

/// The folder of the state, in that of the results.
const STATE: &str = "state";
/// The weights of a whole checkpoint.
const WEIGHTS: &str = "model.safetensors";
/// The most bytes of a checkpoint's file that is copied.
const MAX_SMALL: u64 = 64 << 20;

pub(super) fn run(mut args: Args) -> Result<(), Failure> {
    args.model = hub::locate(&args.model, &args.output)?;
    let args = &args;
    check_directory(&args.model)?;
    check(args)?;
    note_input(&args.data);
    let report = args.output.report()?;
    let processor = qwen3_vl::processor(&args.model)?;
    let conversations = data::read(&args.data)?;
    let (device, reason) = args.device.open()?;
    if let Some(reason) = reason {
        args.output.note(&format!("on {device}, because {reason}"));
    }
    let examples: Vec<Example> = conversations
        .iter()
        .map(|conversation| conversation.example(&processor))
        .collect::<Result<_, _>>()?;
    let planned_bytes = plan_memory(args, &processor.config, &examples, &device)?;

    let exported = args.quantize_aware.map(|ty| Export::new(args, ty.mix(), &processor)).transpose()?;
    let pictures = conversations.iter().flat_map(|conversation| conversation.images.clone());
    prepare_folder(args, exported.as_ref(), pictures)?;
    let state = StateFolder::open(&args.to.join(STATE))?.with_inputs(json!({
        "model": fingerprint::model(&args.model)?,
        "examples": fingerprint::examples(&examples),
        "dtype": format!("{:?}", args.dtype),
        "from_random": args.from_random,
    }));
    let load = if args.needs_tower(&examples) { Model::load_frozen } else { Model::load_text };
    let mut model = load(&args.model, args.dtype.storage(), &device)?;
    model.checkpoint_layers = args.checkpoint_layers;
    if let Some(exported) = &exported {
        model.quantize_aware = QuantizeAware::new(&exported.plans);
    }
    if let Some(seed) = args.from_random {
        model.randomize(seed)?;
    }
    match args.full {
        true => model.parameters.train(|name| args.vision || !is_of_vision(name)),
        false => model.lora = Lora::add(&mut model.parameters, &args.lora(), &device)?,
    }
    if args.scales == ScalesArg::Learned {
        model.learn_scales()?;
    }
    let trained = model.parameters.iter().filter(|parameter| parameter.is_trained());
    let trained_parameters = trained.map(|parameter| parameter.value().shape().elements()).sum();
    let plan = finetune::Plan {
        epochs: args.epochs,
        batch: args.batch as usize,
        tokens: args.pack as usize,
        held_out: args.hold_out,
        seed: args.seed,
    };
    let (learned, held_out) = plan.split(examples.len());
    let total = plan.steps(learned.len());
    let decay = match args.schedule {
        DecayArg::Constant => Decay::Constant,
        DecayArg::Linear => Decay::Linear,
        DecayArg::Cosine => Decay::Cosine,
    };
    let method = args.method();
    let schedule = Schedule { peak: args.rate, warmup: args.warmup, total, decay };
    let optimizer = Optimizer::new(method, schedule, args.weight_decay).clip(args.clip);
    let mut run = FineTune { model: &mut model, optimizer, plan };
    let mut points: Vec<Point> = Vec::new();
    if args.resume {
        match run.resume(&state)? {
            Some(stored) => points = stored,
            None => args.output.note("no state was completed there; it begins with the first step"),
        }
    }
    args.output.note(&format!(
        "{trained_parameters} parameters on {device}; {} conversations to learn, {} held out, {total} steps, of which {} are done; \
         at most {} planned",
        learned.len(),
        held_out.len(),
        run.optimizer.steps(),
        format_bytes(planned_bytes),
    ));

    let interrupted = interrupt::flag()?;
    let mut since = Instant::now();
    let mut screen = args.output.screen();
    let mut unwritable = None;
    let end = run.run(&examples, |run, event| {
        let line = match event {
            Event::Step { number, loss, tokens, step } => {
                let tokens_per_second = tokens as f64 / since.elapsed().as_secs_f64().max(1e-9);
                points.push(Point { step: number, loss, rate: step.rate, tokens_per_second, evaluation: None });
                let norm = step.norm.map_or(String::new(), |norm| format!(", norm {norm:.3}"));
                format!("step {number}/{total}: loss {loss:.4}, rate {:.2e}{norm}, {tokens_per_second:.0} tokens/s", step.rate)
            }
            Event::Evaluation { loss, right, .. } => {
                if let Some(point) = points.last_mut() {
                    point.evaluation = Some([loss, right]);
                }
                format!("held out: loss {loss:.4}, {:.1} % of the answers are right", 100.0 * right)
            }
        };
        let is_step = matches!(event, Event::Step { .. });
        let is_shown = !(is_step && args.output.is_quiet());
        if is_shown && let Err(failure) = screen.line(&line) {
            unwritable = Some(failure);
            return Ok(ControlFlow::Break(()));
        }
        let number = run.optimizer.steps();
        if is_step && args.save_every.is_some_and(|every| number.is_multiple_of(every.max(1))) {
            run.save(&state, &points)?;
        }
        since = Instant::now();
        Ok(if interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })
    .map_err(|error| explain(error, args))?;
    run.save(&state, &points)?;
    curve::write(&args.to, &points)?;
    if let Some(failure) = unwritable {
        return Err(failure);
    }
    let steps = run.optimizer.steps();
    let model = run.model;
    let finished = end == End::Done;
    if finished {
        match &exported {
            Some(exported) => exported.write(args, model)?,
            None => write_model(args, model)?,
        }
    }
    let evaluation = points.iter().rev().find_map(|point| point.evaluation);
    if let Some(report) = report {
        report.write(&Json {
            finished,
            steps,
            trained_parameters,
            planned_bytes,
            loss: points.last().map(|point| point.loss),
            held_out_loss: evaluation.map(|[loss, _]| loss),
            held_out_right: evaluation.map(|[_, right]| right),
        })?;
    }
    let to = args.to.display();
    match finished {
        true if exported.is_some() => {
            args.output.note(&format!("{to} has a pair of GGUF files; `generate --model {to}` takes them"))
        }
        true if args.full => {
            args.output.note(&format!("{to} is a checkpoint; `generate --model {to}` takes it"))
        }
        true => args.output.note(&format!(
            "{to} has the adapter; `generate --model {} --adapter {to}` takes it",
            args.model.display()
        )),
        false => {
            args.output.note(&format!("stopped after step {steps}; the same command with --resume goes on"))
        }
    }
    Ok(())
}

impl Args {
    fn method(&self) -> Method {
        match (self.sgd, self.optimizer) {
            (Some(momentum), _) => Method::Sgd { momentum },
            (None, OptimizerArg::Adamw) => Method::default(),
            (None, OptimizerArg::Adamw8bit) => Method::adamw8bit(),
            (None, OptimizerArg::Sgd) => Method::Sgd { momentum: 0.9 },
        }
    }

    /// Whether the vision tower is computed or written.
    fn needs_tower(&self, examples: &[Example]) -> bool {
        self.full
            || self.vision
            || self.quantize_aware.is_some()
            || examples.iter().any(|example| !example.visuals.is_empty())
    }

    fn lora(&self) -> LoraOptions {
        let alpha = self.alpha.unwrap_or(2.0 * self.rank as f32);
        LoraOptions {
            rank: self.rank as usize,
            alpha,
            targets: self.targets.clone(),
            vision: self.vision,
            seed: self.seed,
        }
    }
}

/// Refuses numbers that no option's text can.
fn check(args: &Args) -> Result<(), Failure> {
    let positive = |x: f32| x.is_finite() && x > 0.0;
    let wrong = [
        (!positive(args.rate), "--rate must be positive"),
        (!positive(args.clip), "--clip must be positive"),
        (!(args.weight_decay.is_finite() && args.weight_decay >= 0.0), "--weight-decay must not be negative"),
        (args.alpha.is_some_and(|alpha| !positive(alpha)), "--alpha must be positive"),
        (args.sgd.is_some_and(|momentum| !(0.0..1.0).contains(&momentum)), "--sgd must be from 0 to below 1"),
        (!(0.0..1.0).contains(&args.hold_out), "--hold-out must be from 0 to below 1"),
        (
            args.quantize_aware.is_some() && args.dtype != FrozenArg::F32,
            "--quantize-aware rounds weights that are in f32; leave --dtype out",
        ),
    ];
    match wrong.into_iter().find(|(is_wrong, _)| *is_wrong) {
        Some((_, text)) => Err(Failure::Usage(text.to_owned())),
        None => Ok(()),
    }
}

/// The most bytes that it will take, refused where the GPU does not have them.
fn plan_memory(
    args: &Args,
    config: &Config,
    examples: &[Example],
    device: &Device,
) -> Result<usize, Failure> {
    let shapes = config.tensors();
    let storage = args.dtype.storage();
    let needs_tower = args.needs_tower(examples);
    let loaded = shapes.iter().filter(|(name, _)| needs_tower || !is_of_vision(name));
    let sizes = loaded.map(|(name, shape)| storage.bytes(name, shape));
    let weights = sizes.sum::<Result<usize, _>>()?;
    let trained: usize = match args.full {
        true => {
            let trained = shapes.iter().filter(|(name, _)| args.vision || !is_of_vision(name));
            trained.map(|(_, shape)| shape.iter().product::<usize>()).sum()
        }
        false => {
            let lora = args.lora();
            let adapted = shapes.iter().filter(|(name, shape)| lora.map_of(name, shape).is_some());
            adapted.map(|(_, shape)| lora.rank * shape.iter().sum::<usize>()).sum()
        }
    };
    let mut lens: Vec<usize> = examples.iter().map(|example| example.ids.len()).collect();
    lens.sort_unstable_by(|x, y| y.cmp(x));
    // the longest conversations of a step, or those of them that are packed
    let together = lens.iter().take(args.batch.max(1) as usize).sum();
    let tokens = lens.first().copied().unwrap_or(0).max((args.pack as usize).min(together));
    let patches_of = |example: &Example| -> usize {
        example.visuals.iter().map(|patches| patches.grid.iter().product::<usize>()).sum()
    };
    // of the densest example as many as fit a pass
    let patches = examples
        .iter()
        .map(|example| patches_of(example) * (tokens / example.ids.len().max(1)).max(1))
        .max()
        .unwrap_or(0);
    let is_learned = args.scales == ScalesArg::Learned;
    // rounded weights lie beside those that are trained; merged ones too, until learned scales have their gradients
    let copies = usize::from(args.quantize_aware.is_some()) + usize::from(is_learned && !args.full);
    let all = weights;
    let weights = (1 + copies) * weights;
    // a factor and a first scale for each 32 values
    let (trained, weights) = match is_learned {
        true => (trained + all / DType::F32.size() / 32, weights + all / 32),
        false => (trained, weights),
    };
    let of_steps = [trained, args.method().bytes(trained)];
    let bytes = memory(config, weights, of_steps, tokens, patches, [args.vision, args.checkpoint_layers]);
    if let Device::Cuda(cuda) = device {
        let (free, _) = cuda.memory_info()?;
        if bytes > free {
            return Err(Failure::Failed(format!(
                "up to {} are needed, {} are free; less is needed with --checkpoint-layers, a smaller --pack{}",
                format_bytes(bytes),
                format_bytes(free),
                if args.full { ", or adapters in place of --full" } else { " or a smaller --rank" },
            )));
        }
    }
    Ok(bytes)
}

/// The files of a run's end, its weights last.
fn results(args: &Args, exported: Option<&Export>) -> Vec<PathBuf> {
    let mut names = vec![curve::TABLE, curve::PICTURE];
    match args.full {
        _ if exported.is_some() => {}
        true => {
            names.extend(SMALL_FILES.into_iter().filter(|name| args.model.join(name).exists()));
            names.push(WEIGHTS);
        }
        false => names.extend([ADAPTER_CONFIG, ADAPTER_TENSORS]),
    }
    let files = exported.map_or(&[][..], |exported| &exported.files[..]);
    names.into_iter().map(|name| args.to.join(name)).chain(files.iter().cloned()).collect()
}

/// Makes the folder, which holds no other results unless they may be replaced or gone on with.
fn prepare_folder(
    args: &Args,
    exported: Option<&Export>,
    pictures: impl Iterator<Item = PathBuf>,
) -> Result<(), Failure> {
    let to = args.to.display();
    let cannot = |error: std::io::Error| Failure::Failed(format!("{to}: {error}"));
    let state = args.to.join(STATE);
    if args.to.exists() && matches!((whole(&args.to), whole(&args.model)), (Ok(to), Ok(model)) if to == model)
    {
        return Err(Failure::Usage("--to is --model; name another folder".to_owned()));
    }
    let results = results(args, exported);
    let read: Vec<_> = files_of(&args.model)
        .map_err(cannot)?
        .into_iter()
        .chain([args.data.clone()])
        .chain(pictures)
        .collect();
    check_apart(
        read.iter().map(PathBuf::as_path),
        results.iter().map(PathBuf::as_path).chain(args.output.file()),
    )?;
    let has_run = state.join(state::MANIFEST).exists();
    if has_run && !args.resume && !args.output.may_replace() {
        return Err(Failure::Failed(format!(
            "{to} has a run; --resume goes on with it, --force replaces it"
        )));
    }
    // what lies beside a run's state is of that run
    let may_replace = args.output.may_replace() || (args.resume && has_run);
    if let Some(found) = results.iter().find(|result| result.exists()).filter(|_| !may_replace) {
        return Err(Failure::Failed(format!("{} exists; --force replaces it", found.display())));
    }
    if (args.full || exported.is_some()) && args.to.exists() {
        let ours = args.to.join(WEIGHTS);
        let others = files_of(&args.to).map_err(cannot)?.into_iter();
        let others = others.filter(|file| exported.is_some() || *file != ours);
        if let Some(other) = others.into_iter().find(|file| is_of_weights(file)) {
            let other = other.display();
            return Err(Failure::Failed(format!("{other} is of another checkpoint; name another folder")));
        }
    }
    fs::create_dir_all(&args.to).map_err(cannot)
}

fn files_of(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

/// Whether a checkpoint's weights are read from a file of this name, beside others or by its list.
fn is_of_weights(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("model") && (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"))
}

/// The pair of GGUF files that a run ends with.
struct Export {
    /// The vision tower's and the text model's.
    /// The vision file first, if the model has one.
    files: Vec<PathBuf>,
    plans: Vec<Plan>,
}

impl Export {
    fn new(args: &Args, mix: Mix, processor: &Processor) -> Result<Self, Failure> {
        let [text, vision] = names(mix.name());
        let mut plans = Vec::new();
        plans.extend(
            vision_plan_of(&args.model.join("config.json"), processor)?
                .map(|plan| (args.to.join(vision), plan)),
        );
        plans.push((args.to.join(text), text_plan(&args.model, &processor.config, mix)?));
        let (files, plans) = plans.into_iter().unzip();
        Ok(Self { files, plans })
    }

    fn write(&self, args: &Args, model: &Model) -> Result<(), Failure> {
        let may_replace = args.output.may_replace() || args.resume;
        let mut finished = Vec::new();
        for (to, plan) in self.files.iter().zip(&self.plans) {
            let mut file = GgufFile::create(to, plan, may_replace)?;
            for tensor in &plan.tensors {
                file.write(&model.encoded(tensor)?)?;
                file.pad()?;
            }
            finished.push(file.finished());
        }
        // the text file last: where it is, the pair is whole
        keep_all(finished)
    }
}

/// The results, which [`prepare_folder`] has found no other files in the place of.
fn write_model(args: &Args, model: &Model) -> Result<(), Failure> {
    if !args.full {
        let base = args.model.display().to_string();
        return Ok(model.lora.save(&model.parameters, &args.to, &base)?);
    }
    let may_replace = args.output.may_replace() || args.resume;
    for name in SMALL_FILES {
        let (from, to) = (args.model.join(name), args.to.join(name));
        if from.exists() {
            let bytes = read_input(&from, MAX_SMALL);
            let bytes = bytes.map_err(|error| Failure::Failed(format!("{}: {error}", from.display())))?;
            let mut file = OutputFile::create(&to, may_replace)?;
            file.write_all(&bytes).map_err(|error| unwritable(&to, &error))?;
            file.keep()?;
        }
    }
    Ok(model.save(&args.to)?)
}

fn explain(error: Error, args: &Args) -> Failure {
    match error {
        Error::OutOfMemory { .. } if !args.checkpoint_layers => {
            Failure::Failed(format!("{error}; less is needed with --checkpoint-layers or a smaller --pack"))
        }
        Error::NotFinite { .. } => Failure::Failed(format!(
            "{error}: training has diverged; a smaller --rate or a --warmup may help"
        )),
        _ => error.into(),
    }
}
