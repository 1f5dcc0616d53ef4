//! The model part of a report: a model with random weights and the published 2B model's size, in the best type in which it
//! fits the card whole. Its files are written for the report and deleted.

use super::time::{MODEL, MODEL_FILES, Part, TimeLimit};
use crate::device::DeviceArg;
use crate::environment::is_virtual;
use crate::failure::Failure;
use crate::fit::{Target, first_that_fits};
use crate::model::{LoadArgs, ModelArgs, Work, of_prompt};
use crate::output::Output;
use crate::published::Size;
use crate::random_model::{changed, write_gguf};
use crate::screen::Screen;
use pascaline::cuda::is_lost;
use pascaline::{Device, format_bytes};
use qwen3_vl::estimate::Estimate;
use qwen3_vl::footprint::Workload;
use qwen3_vl::generate::user_turn;
use qwen3_vl::gguf::Mix;
use qwen3_vl::preprocess::Picture;
use qwen3_vl::sampling::Sampler;
use qwen3_vl::{LanguageModel, Options, Prompt, Statistics, StopReason, Visual};
use serde::Serialize;
use serde_json::json;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Everything except size and weights, from a small checkpoint.
const FILES: [(&str, &str); 4] = [
    ("config.json", include_str!("../../../tests/fixtures/qwen3-vl/tiny/config.json")),
    (
        "preprocessor_config.json",
        include_str!("../../../tests/fixtures/qwen3-vl/tiny/preprocessor_config.json"),
    ),
    ("tokenizer.json", include_str!("../../../tests/fixtures/qwen3-vl/tiny/tokenizer.json")),
    ("tokenizer_config.json", include_str!("../../../tests/fixtures/qwen3-vl/tiny/tokenizer_config.json")),
];
/// The types to choose from, the best first; the last is used if none fits whole.
const MIXES: [Mix; 2] = [Mix::Q8_0, Mix::Q4_K_M];
/// The most tokens to generate.
const TOKENS: usize = 64;
/// The tokens that are generated however late it is, as fewer tell no rate: on the slowest cards a matter of seconds.
const LEAST_TOKENS: usize = 16;
/// Those of the answer before the one that counts.
const FIRST_TOKENS: usize = 2;

/// The results.
#[derive(Default, Serialize)]
pub(super) struct Modelled {
    /// Why it ended early, or why there are no results.
    message: Option<String>,
    pub size: Option<&'static str>,
    pub matrices: Option<&'static str>,
    parameters: Option<usize>,
    write_seconds: Option<f64>,
    load_seconds: Option<f64>,
    /// The planned peak of the GPU's memory in bytes, without the context.
    planned_bytes: Option<usize>,
    /// Bytes in use before; `peak_bytes` includes them.
    context_bytes: Option<usize>,
    pub estimate: Option<Estimate>,
    stop_reason: Option<StopReason>,
    pub measured: Option<Statistics>,
}

impl Modelled {
    /// One line for people.
    pub fn line(&self) -> String {
        let (Some(measured), Some(size), Some(matrices)) = (&self.measured, self.size, self.matrices) else {
            return format!("model: {}", self.message.as_deref().unwrap_or("nothing was measured"));
        };
        let estimate =
            self.estimate.map_or_else(String::new, |Estimate { first_token, tokens_per_second }| {
                format!(" (estimated: {first_token:.2} s, {tokens_per_second:.1})")
            });
        let peak =
            measured.peak_bytes.map_or_else(String::new, |peak| format!(", {} in use", format_bytes(peak)));
        let message = self.message.as_ref().map_or_else(String::new, |message| format!("; {message}"));
        format!(
            "model: random {size} in {matrices}: {} prompt tokens with a picture, first token after {:.2} s, then {} tokens \
             at {:.1} per second{estimate}{peak}{message}",
            measured.prompt_tokens,
            measured.time_to_first_token,
            measured.decode_tokens,
            measured.decode_tokens_per_second,
        )
    }
}

/// Writes, loads and runs the model; its files are in `folder` meanwhile. Never fails: errors become messages.
pub(super) fn measure(
    device: &Device,
    folder: Option<&Path>,
    time: &TimeLimit,
    screen: &mut Screen,
) -> Modelled {
    let mut found = Modelled::default();
    if is_lost() {
        found.message = Some("not measured after the GPU stopped".to_owned());
        return found;
    }
    screen.start(3);
    if let Err(failure) = all(device, folder, time, screen, &mut found) {
        found.message = Some(failure.sentence().unwrap_or_default().to_owned());
    }
    screen.finish();
    found
}

fn no_time() -> Failure {
    Failure::Failed("there was no time for it".to_owned())
}

fn all(
    device: &Device,
    folder: Option<&Path>,
    time: &TimeLimit,
    screen: &mut Screen,
    found: &mut Modelled,
) -> Result<(), Failure> {
    let unwritable = |error: std::io::Error| Failure::Failed(format!("the model can't be written: {error}"));
    let mut builder = tempfile::Builder::new();
    let folder = builder.prefix(".pascaline-report-").tempdir_in(folder.unwrap_or(Path::new(".")));
    let folder = folder.map_err(unwritable)?;
    let at = folder.path();
    for (name, text) in FILES {
        fs::write(at.join(name), text).map_err(unwritable)?;
    }
    // the virtual GPU would take hours for the published size
    let size = (!is_virtual()).then_some(Size::TwoB);
    let target = Target::of_device(device)?;
    let (fields, mix) = match size {
        Some(size) => {
            // with the picture's 256 tokens
            let work = Workload { context: 1024, prompt: 768, patches: 1024 };
            let [.., least] = MIXES;
            (size.fields(), first_that_fits(size, &MIXES, &work, &target)?.unwrap_or(least))
        }
        None => (json!({}), Mix::Q8_0),
    };
    found.size = Some(size.map_or("tiny", Size::name));
    found.matrices = Some(mix.name());
    let config = changed(&at.join("config.json"), fields)?;
    let (begun, part) = (Instant::now(), time.until(MODEL_FILES));
    let what = format!("a model of random weights in {}", mix.name());
    let (file, parameters) = write_gguf(at, at, &config, mix, true, |bytes, _| {
        screen.doing(&format!("writing {what}: {}", format_bytes(bytes as usize)));
        if part.is_over() { Err(no_time()) } else { Ok(()) }
    })?;
    (found.parameters, found.write_seconds) = (Some(parameters), Some(begun.elapsed().as_secs_f64()));
    screen.done();

    screen.doing(&format!("loading {what}"));
    let quiet = Output::silent();
    let arguments = ModelArgs::new(file, DeviceArg::default(), LoadArgs::default());
    let opened = arguments.open(device, &quiet)?;
    let (visuals, question) = ([picture(if is_virtual() { 64 } else { 512 })], question());
    let messages = [user_turn(&visuals, &question)];
    let work = Work {
        most: None,
        exactly: &|processor| {
            Ok(vec![of_prompt(&processor.prepare(&messages, &visuals)?, TOKENS, &processor.config)])
        },
    };
    let loaded = arguments.load(&opened, device, &work, &quiet)?;
    let prompt = loaded.model.processor.prepare(&messages, &visuals)?;
    let work = of_prompt(&prompt, TOKENS, &opened.config);
    found.load_seconds = Some(loaded.seconds);
    found.context_bytes = loaded.context_bytes;
    found.planned_bytes = loaded.planned_bytes(&opened, &work)?;
    // these are the simulation's times, which have no estimate
    found.estimate = if is_virtual() { None } else { loaded.estimate(&opened, &work, &target.peaks)? };
    screen.done();

    screen.doing(&format!("answering with {what}"));
    let part = time.until(MODEL);
    // the first answer loads kernels
    answer(&loaded.model, &prompt, FIRST_TOKENS, &part)?;
    let answer = answer(&loaded.model, &prompt, TOKENS, &part)?;
    found.stop_reason = Some(answer.stop_reason);
    match answer.statistics.time_to_first_token > 0.0 {
        true => found.measured = Some(answer.statistics),
        false => return Err(no_time()),
    }
    screen.done();
    Ok(())
}

/// At most so many tokens, and the [`LEAST_TOKENS`] first of them however late it is.
fn answer(
    model: &LanguageModel,
    prompt: &Prompt,
    tokens: usize,
    part: &Part,
) -> pascaline::Result<qwen3_vl::Output> {
    let options = Options { max_new_tokens: tokens, stop_at_eos: false, ..Options::default() };
    let sampler = Sampler::new(options.sampling.clone(), &prompt.ids)?;
    let mut done = 0;
    model.generate_with(&mut model.session()?, prompt, &options, sampler, |step| {
        done += usize::from(step.id.is_some());
        match part.is_over_after(done / LEAST_TOKENS) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    })
}

/// Every pixel has another colour than its neighbours.
fn picture(side: usize) -> Visual {
    let pixels = (0..side * side * 3).map(|i| ((i * 7919) >> 3) as u8).collect();
    Visual::Image { name: "report".into(), picture: Picture { height: side, width: side, pixels } }
}

/// A question of some hundred tokens.
fn question() -> String {
    "Say what is in this picture, where it is, and what it is made of. ".repeat(if is_virtual() {
        1
    } else {
        8
    })
}
