//! `pascaline generate`: a question about images, and the answer as it comes.

use super::ceiling;
use super::environment::is_virtual;
use super::failure::Failure;
use super::measure::Clock;
use super::model::{ModelArgs, SamplingArgs};
use super::output::{self, Overwrite};
use super::screen::{Colours, Style};
use super::table::percent;
use crate::Device;
use crate::error::bytes;
use crate::memory::{self, adaptor::to_text};
use crate::qwen3_vl::generate::user_turn;
use crate::qwen3_vl::{Qwen3Vl, Statistics, StopReason, Visual};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

/// Answers one question. Images and videos stand before the text in one user turn, through the checkpoint's own chat
/// template.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// A PNG, JPEG or WebP file; may be given more than once.
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,

    /// A folder of pictures, in the order of their names: the frames of a video; behind the images.
    #[arg(long, value_name = "FOLDER")]
    video: Vec<PathBuf>,

    /// Frames per second of the videos.
    #[arg(long, value_name = "RATE", default_value_t = 2.0)]
    fps: f64,

    /// The question.
    #[arg(long, value_name = "TEXT")]
    prompt: String,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// Print one JSON object behind the end, with tokens, text and statistics, and nothing else.
    #[arg(long)]
    json: bool,

    /// Write what was allocated and freed on the GPU for the answer, for `bench --memory --trace`.
    #[arg(long, value_name = "FILE")]
    memory_trace: Option<PathBuf>,

    #[command(flatten)]
    overwrite: Overwrite,
}

#[derive(Serialize)]
struct Json<'a> {
    prompt_ids: &'a [u32],
    generated_ids: &'a [u32],
    text: &'a str,
    stop_reason: StopReason,
    device: String,
    parameters: usize,
    load_seconds: f64,
    /// Bytes of weights read per second of decoding, over those that a copy on this GPU reads and writes.
    decode_bandwidth_share: Option<f64>,
    #[serde(flatten)]
    statistics: Statistics,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    // pictures are small and quick to refuse, the model is neither
    let images = args.image.iter().map(|file| Visual::image(file));
    let videos = args.video.iter().map(|folder| Visual::video(folder, args.fps));
    let visuals = images.chain(videos).collect::<Result<Vec<_>, _>>()?;
    if let Some(file) = &args.memory_trace {
        output::check(file, args.overwrite.force)?;
    }
    let (model, load_time) = args.model.load()?;
    if args.memory_trace.is_some() && !model.device().is_cuda() {
        return Err(Failure::Failed("only a GPU's memory is traced; add `--device cuda`".into()));
    }
    let prompt = model.processor.prepare(&[user_turn(&visuals, &args.prompt)], &visuals)?;
    let options = args.sampling.options(&model);

    let mut closed = None;
    let mut session = model.session()?;
    let mut receive = |piece: &str| match if args.json { Ok(()) } else { print(piece) } {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            closed = Some(error);
            ControlFlow::Break(())
        }
    };
    let mut answer = || model.generate_from(&mut session, &prompt, &options, &mut receive);
    let output = match &args.memory_trace {
        None => answer()?,
        Some(file) => {
            let (output, entries) = memory::trace(answer);
            output::write(file, to_text(&entries).as_bytes(), args.overwrite.force)?;
            output?
        }
    };
    if let Some(error) = closed {
        return Err(error.into());
    }
    let share = bandwidth_share(&model, &output.statistics)?;
    if !args.json {
        print("\n")?;
        let colours = Colours::for_stream(io::stderr().is_terminal());
        let of_a_copy = share.map(|share| format!(", {} of a copy's bandwidth", percent(share)));
        let line = summary(&output.statistics) + &of_a_copy.unwrap_or_default();
        eprintln!("{}", colours.paint(Style::Faint, &line));
        return Ok(());
    }
    let json = Json {
        prompt_ids: &prompt.ids,
        generated_ids: &output.ids,
        text: &output.text,
        stop_reason: output.stop_reason,
        device: model.device().to_string(),
        parameters: model.parameters(),
        load_seconds: load_time.as_secs_f64(),
        decode_bandwidth_share: share,
        statistics: output.statistics,
    };
    let text = serde_json::to_string(&json)
        .map_err(|error| Failure::Failed(format!("the answer can't be made into JSON: {error}")))?;
    print(&text)?;
    print("\n").map_err(Failure::from)
}

/// Measures a copy for it, which takes a moment, so only on a real GPU.
fn bandwidth_share(model: &Qwen3Vl, statistics: &Statistics) -> Result<Option<f64>, Failure> {
    let Device::Cuda(device) = model.device() else { return Ok(None) };
    if is_virtual() || statistics.decode_tokens == 0 {
        return Ok(None);
    }
    let copy = ceiling::cuda_copy(device, &mut Clock::new(model.device())?)?;
    let read = statistics.weight_bytes_per_token as f64 * statistics.decode_tokens_per_second;
    Ok(Some(read / copy.per_second))
}

pub(super) fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The statistics in a line.
pub(super) fn summary(statistics: &Statistics) -> String {
    let Statistics { prompt_tokens, prefill_tokens, time_to_first_token, .. } = statistics;
    let cached = match prompt_tokens - prefill_tokens {
        0 => String::new(),
        cached => format!(" ({cached} cached)"),
    };
    let peak = statistics.peak_bytes.map(|peak| format!(", {} in use", bytes(peak))).unwrap_or_default();
    let paused = match statistics.paused_seconds {
        0.0 => String::new(),
        paused => format!(", {paused:.1} s of it held back by heat"),
    };
    let streamed = match statistics.streamed_layers {
        0 => String::new(),
        layers => format!(", {layers} layers from host memory, launched kernel by kernel"),
    };
    format!(
        "{prompt_tokens} prompt tokens{cached}, first token after {time_to_first_token:.2} s, \
         then {} tokens at {:.1} per second{streamed}{paused}{peak}",
        statistics.decode_tokens, statistics.decode_tokens_per_second
    )
}
