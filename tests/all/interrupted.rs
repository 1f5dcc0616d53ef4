//! Work before an answer shows its progress and can be ended between layers; answers without a limit, and ones that go on.

use pascaline::{DType, Device};
use qwen3_vl::batch::{Batch, BatchOptions, Event, KeyedPrompt, PromptProgress};
use qwen3_vl::generate::{Step, user_turn};
use qwen3_vl::sampling::Sampler;
use qwen3_vl::{
    LoadOptions, Options, Output, Phase, Progress, Prompt, Qwen3Vl, Sampling, Session, StopReason, Visual,
};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny")
}

fn load(device: &Device) -> Qwen3Vl {
    let options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(device) };
    Qwen3Vl::load_with(tiny(), device, options, |_| {}).unwrap()
}

/// A picture, and text of more than 64 tokens.
fn long_prompt(model: &Qwen3Vl) -> Prompt {
    let visuals = [Visual::image(&tiny().join("cases/square.png")).unwrap()];
    let text = "Count the warps in a block of 256 threads, and say how many there are. ".repeat(3);
    model.processor.prepare(&[user_turn(&visuals, &text)], &visuals).unwrap()
}

fn options(max_new_tokens: usize) -> Options {
    Options { max_new_tokens, stop_at_eos: false, ..Options::default() }
}

fn generate(
    model: &Qwen3Vl,
    session: &mut Session,
    prompt: &Prompt,
    options: &Options,
    receive: impl FnMut(Step) -> ControlFlow<()>,
) -> Output {
    let sampler = Sampler::new(Sampling::GREEDY, &prompt.ids).unwrap();
    model.generate_with(session, prompt, options, sampler, receive).unwrap()
}

fn go_on(_: Step) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn devices() -> [Device; 2] {
    [Device::Cpu, Device::virtual_gpu().unwrap()]
}

/// Of the calls that may end work: each on the CPU, every third on a GPU, which may be a slow one.
fn stride(device: &Device) -> usize {
    if device.is_cuda() { 3 } else { 1 }
}

#[test]
fn pictures_and_prompts_end_between_layers_and_the_session_stays_good() {
    for device in devices() {
        let model = load(&device);
        let prompt = long_prompt(&model);
        let mut seen: Vec<Progress> = Vec::new();
        let whole = generate(&model, &mut model.session().unwrap(), &prompt, &options(3), |step| {
            seen.extend(step.progress);
            ControlFlow::Continue(())
        });
        let layers = model.config().text.num_hidden_layers;
        let images = seen.iter().filter(|progress| progress.phase == Phase::Images).count();
        assert!(images > 1, "a call before each block: {seen:?}");
        assert_eq!(seen.len() - images, layers, "one before each layer of the only pass");
        for pair in seen.windows(2).filter(|pair| pair[0].phase == pair[1].phase) {
            assert!(pair[0].done < pair[1].done && pair[0].total == pair[1].total, "{seen:?}");
        }
        assert!(seen.iter().all(|progress| progress.done < progress.total), "{seen:?}");
        assert_eq!(seen.last().unwrap().total, prompt.ids.len());

        for last in (0..seen.len()).step_by(stride(&device)) {
            let mut session = model.session().unwrap();
            let mut calls = 0;
            let ended = generate(&model, &mut session, &prompt, &options(3), |step| {
                assert_eq!(step.progress, Some(seen[calls]), "nothing comes after the end");
                calls += 1;
                if calls > last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!((ended.stop_reason, ended.ids.len(), calls), (StopReason::Cancelled, 0, last + 1));
            let again = generate(&model, &mut session, &prompt, &options(3), go_on);
            assert_eq!(again.ids, whole.ids, "after {last} calls on {device}");
        }
    }
}

/// The cache has room for less than the answer and moves under the captured graph.
#[test]
fn an_answer_without_a_limit_grows_its_cache() {
    for (device, tokens) in devices().into_iter().zip([600, 12]) {
        let model = load(&device);
        let prompt = long_prompt(&model);
        let bounded = generate(&model, &mut model.session().unwrap(), &prompt, &options(tokens), go_on);
        assert_eq!((bounded.ids.len(), bounded.stop_reason), (tokens, StopReason::MaxNewTokens));
        for prompt_lookup in [false, true] {
            let mut session = model.session().unwrap();
            if tokens < 512 {
                session.reserve(prompt.ids.len() + 3).unwrap();
            }
            let mut count = 0;
            let unlimited = Options { prompt_lookup, ..options(usize::MAX) };
            let found = generate(&model, &mut session, &prompt, &unlimited, |step| {
                count += usize::from(step.id.is_some());
                if count == tokens { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert_eq!(
                (found.stop_reason, found.ids),
                (StopReason::Cancelled, bounded.ids.clone()),
                "{device}"
            );
        }
    }
}

#[test]
fn an_answer_goes_on_after_its_first_tokens() {
    let model = load(&Device::Cpu);
    let prompt = long_prompt(&model);
    let mut session = model.session().unwrap();
    let whole = generate(&model, &mut model.session().unwrap(), &prompt, &options(9), go_on);
    let first = generate(&model, &mut session, &prompt, &options(4), go_on);
    let rest = generate(&model, &mut session, &prompt.continued(&first.ids).unwrap(), &options(5), go_on);
    assert_eq!([first.ids, rest.ids].concat(), whole.ids);
    assert_eq!(rest.statistics.prefill_tokens, 1, "the others are in the cache");
}

/// A pass that is ended leaves every request as it was, and its progress is reported once it is computed.
#[test]
fn a_step_that_is_ended_is_computed_again() {
    for device in devices() {
        let model = load(&device);
        let prompt = long_prompt(&model);
        let alone = generate(&model, &mut model.session().unwrap(), &prompt, &options(4), go_on);
        let (most, layers) = (prompt.ids.len(), model.config().text.num_hidden_layers);
        for last in (0..layers + 1).step_by(stride(&device)) {
            let mut batch = Batch::new(&model, BatchOptions::with_room(1024)).unwrap();
            let seen: Arc<Mutex<Vec<PromptProgress>>> = Arc::default();
            let to = Arc::clone(&seen);
            let keyed = KeyedPrompt::new(&model, prompt.clone()).unwrap();
            let keyed = keyed.reporting(move |progress| to.lock().unwrap().push(progress));
            let sampler = Sampler::new(Sampling::GREEDY, &prompt.ids).unwrap();
            batch.add_keyed(keyed, &options(4), sampler).unwrap();
            let mut calls = 0;
            let events = batch.step_while(&mut || {
                calls += 1;
                if calls > last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            assert!(events.is_empty() && seen.lock().unwrap().is_empty(), "{events:?}");
            let mut found = None;
            while !batch.is_idle() {
                for event in batch.step() {
                    if let Event::Finished { output, .. } = event {
                        found = Some(output.ids);
                    }
                }
            }
            assert_eq!(found.as_ref(), Some(&alone.ids), "after {last} calls on {device}");
            let seen = seen.lock().unwrap();
            assert!(seen.iter().all(|progress| (progress.total, progress.cached) == (most, 0)), "{seen:?}");
            assert_eq!(seen.last().map(|progress| progress.processed), Some(most), "{seen:?}");
        }
    }
}
