//! `pascaline generate`: answers a question about images and prints the answer as it is generated.

use super::answer::{Answer, cut, summary};
use super::environment::is_virtual;
use super::failure::Failure;
use super::files;
use super::measure::{Clock, copy_rate};
use super::model::{DevicePart, ModelArgs, Work, at_most, of_prompt};
use super::output::Output;
use super::sampling::SamplingArgs;
use super::source::{Text, image, is_stdin, video};
use super::table::percent;
use pascaline::memory::{self, adaptor::to_text};
use pascaline::{Device, Error};
use qwen3_vl::chat::Message;
use qwen3_vl::generate::user_turn;
use qwen3_vl::sampling::Sampler;
use qwen3_vl::video::FrameSampling;
use qwen3_vl::{LanguageModel, Options, Statistics, StopReason, Visual};
use serde::Serialize;
use std::path::PathBuf;

/// Answers one question. Images and videos come before the text in one user turn, through the checkpoint's own chat
/// template.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// A PNG, JPEG, WebP, GIF, BMP or TIFF file, an http or https address, or - for a file on stdin; may be given more than
    /// once. An animated GIF or WebP file is a video.
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,

    /// A video: a folder of pictures, ordered by name; an animated GIF or WebP file; or any file that the program ffmpeg reads,
    /// if it is installed. Videos come after the images.
    #[arg(long, value_name = "FILE")]
    video: Vec<PathBuf>,

    /// Frames per second that are seen of the videos; those of a folder.
    #[arg(long, value_name = "RATE", default_value = "2", value_parser = rate, allow_negative_numbers = true)]
    fps: f64,

    /// The most frames that are seen of a video file; a longer one is seen at fewer frames per second.
    #[arg(long, value_name = "N", default_value = "64", value_parser = frames)]
    max_frames: usize,

    /// The question: a text, - for stdin, or @FILE for a file's text; @@ begins a text that begins with @.
    #[arg(long, short, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Text,

    /// The system turn before the question: a text, or @FILE, as for --prompt.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<Text>,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// Guess tokens from what followed the last ones where these occurred before, and check several in one pass: faster
    /// where an answer repeats parts of its prompt or of itself.
    #[arg(long)]
    prompt_lookup: bool,

    /// Leave out what the model thinks before it answers. Otherwise a terminal shows it dimmed, and a pipe gets it as the
    /// model writes it, up to `</think>`.
    #[arg(long)]
    hide_thinking: bool,

    #[command(flatten)]
    output: Output,

    /// Write a trace of the answer's GPU allocations to this file, for `bench --memory --trace`.
    #[arg(long, value_name = "FILE")]
    memory_trace: Option<PathBuf>,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| *rate > 0.0 && rate.is_finite());
    rate.ok_or_else(|| "it must be a number above 0".to_owned())
}

fn frames(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=4096).contains(count));
    count.ok_or_else(|| "it must be a whole number from 1 to 4096".to_owned())
}

#[derive(Serialize)]
struct Json<'a> {
    prompt_ids: &'a [u32],
    generated_ids: &'a [u32],
    text: &'a str,
    stop_reason: StopReason,
    /// The seed that reproduces the tokens; none if no tokens are drawn.
    seed: Option<u64>,
    device: String,
    parameters: usize,
    load_seconds: f64,
    /// The planned peak of the GPU's memory for this answer in bytes, without the context.
    planned_bytes: Option<usize>,
    /// Each GPU's part of the model, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    devices: Option<Vec<DevicePart>>,
    /// Bytes in use on the GPU before the model was loaded: its context, and other processes. `peak_bytes` includes them.
    context_bytes: Option<usize>,
    /// Bytes of weights read per second of decode, as a share of the bandwidth of a copy on this GPU.
    decode_bandwidth_share: Option<f64>,
    #[serde(flatten)]
    statistics: Statistics,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let on_stdin = args.image.iter().filter(|file| is_stdin(file)).count();
    let texts = [Some(&args.prompt), args.system.as_ref()];
    if on_stdin + texts.iter().filter(|text| **text == Some(&Text::Stdin)).count() > 1 {
        return Err(Failure::Usage("stdin holds one thing: the prompt, the system turn or one image".into()));
    }
    args.model.check()?;
    // pictures are checked first: they are small, and the model takes long to load
    let question = args.prompt.read()?;
    let system = args.system.as_ref().map(Text::read).transpose()?;
    let sampling = FrameSampling { rate: args.fps, most: args.max_frames };
    let images = args.image.iter().map(|file| image(file, &sampling));
    let videos = args.video.iter().map(|file| video(file, &sampling));
    let mut visuals = images.chain(videos).collect::<Result<Vec<_>, _>>()?;
    visuals.sort_by_key(|visual| matches!(visual, Visual::Video { .. }));
    let output = &args.output;
    let device = args.model.device(output)?;
    if args.memory_trace.is_some() && !device.is_cuda() {
        return Err(Failure::Usage("only a GPU's memory is traced; add `--device cuda`".into()));
    }
    let report = output.report()?;
    let trace_file = args.memory_trace.as_deref();
    trace_file.map_or(Ok(()), |file| files::check(file, output.may_replace()))?;
    let opened = args.model.open(&device, output)?;
    let mut messages: Vec<_> = system.iter().map(|text| Message::text("system", text)).collect();
    messages.push(user_turn(&visuals, &question));
    let most_to_come = args.sampling.planned_tokens(None)[0]; // there is one at least
    let texts = [&question, system.as_deref().unwrap_or_default()];
    let work = Work {
        most: at_most(&texts, &visuals, most_to_come, &opened),
        exactly: &|processor| {
            let prompt = processor.prepare(&messages, &visuals)?;
            let to_come = args.sampling.planned_tokens(args.sampling.max_new_tokens(processor));
            Ok(to_come.into_iter().map(|to_come| of_prompt(&prompt, to_come, &processor.config)).collect())
        },
    };
    let loaded = args.model.load(&opened, &device, &work, output)?;
    let model = &loaded.model;
    let prompt = model.processor.prepare(&messages, &visuals)?;
    opened.say_shrunk(&visuals, &model.processor, output)?;
    let to_come = args.sampling.max_new_tokens(&model.processor).unwrap_or_else(|| {
        let context = loaded.work.map_or(0, |work| work.context);
        context.saturating_sub(prompt.ids.len()).min(most_to_come)
    });
    let planned_work = of_prompt(&prompt, to_come, &opened.config);
    let planned_bytes = loaded.planned_bytes(&opened, &planned_work)?;
    let options = Options { prompt_lookup: args.prompt_lookup, ..args.sampling.options(model) };
    args.sampling.say_seed(&options, output);
    args.sampling.say_room(model, &prompt, output)?;

    let answer = if output.stdout_is_taken() { Answer::nowhere() } else { Answer::on_stdout() };
    let mut answer = answer.with_progress(output);
    answer.tell_thoughts(model.processor.begins_in_thought(&prompt.ids), args.hide_thinking);
    let mut session = model.session().map_err(|error| args.model.failure(error))?;
    if loaded.work.is_some() {
        session.reserve(planned_work.context).map_err(|error| args.model.failure(error))?;
    }
    let sampler = Sampler::new(options.sampling.clone(), &prompt.ids)?;
    let generate =
        || model.generate_with(&mut session, &prompt, &options, sampler, |step| answer.step(&step));
    let found = match trace_file {
        None => generate(),
        Some(file) => {
            let (found, entries) = memory::trace(generate);
            files::write(file, to_text(&entries).as_bytes(), output.may_replace())?;
            found
        }
    };
    let found = found.map_err(|error| {
        answer.abandon();
        args.model.failure(error)
    })?;
    answer.end()?;
    let goes_on = "a larger --max-new-tokens goes on";
    let text = cut(found.stop_reason, model, &prompt, found.ids.len(), goes_on);
    if let Some(text) = text.filter(|_| !output.stdout_is_taken()) {
        output.note(&text); // a report has it as `stop_reason`
    }
    let share = bandwidth_share(model, &found.statistics)?;
    if !output.stdout_is_taken() {
        let of_a_copy = share.map(|share| format!(", {} of a copy's bandwidth", percent(share)));
        output.note(&(summary(&found.statistics) + &of_a_copy.unwrap_or_default()));
    }
    let Some(report) = report else { return Ok(()) };
    report.write(&Json {
        prompt_ids: &prompt.ids,
        generated_ids: &found.ids,
        text: &found.text,
        stop_reason: found.stop_reason,
        seed: (!options.sampling.is_greedy()).then_some(options.sampling.seed),
        device: device.to_string(),
        parameters: model.parameters(),
        load_seconds: loaded.seconds,
        planned_bytes,
        devices: loaded.parts(&opened, &planned_work)?,
        context_bytes: loaded.context_bytes,
        decode_bandwidth_share: share,
        statistics: found.statistics,
    })
}

/// Measures a copy for comparison. That takes a moment and only makes sense on a real GPU.
fn bandwidth_share(model: &LanguageModel, statistics: &Statistics) -> Result<Option<f64>, Failure> {
    let Device::Cuda(device) = model.device() else { return Ok(None) };
    if is_virtual() || statistics.decode_tokens == 0 || model.devices().len() > 1 {
        return Ok(None);
    }
    // the clock has memory of its own
    let (_, copy) = match Clock::new(model.device()).and_then(|mut clock| copy_rate(device, &mut clock)) {
        Err(Error::OutOfMemory { .. }) => return Ok(None), // no room next to the model
        copy => copy?,
    };
    // a right guess took no pass of its own
    let passes = 1.0 - statistics.right_guesses as f64 / statistics.decode_tokens as f64;
    let read = statistics.weight_bytes_per_token as f64 * statistics.decode_tokens_per_second * passes;
    Ok(Some(read / copy))
}
