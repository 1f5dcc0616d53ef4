//! The worker: sixteen answers at once are those that the model gives alone, whoever leaves meanwhile.

use pascaline::Device;
use pascaline_server::worker::{Event, Job, Worker};
use qwen3_vl::batch::KeyedPrompt;
use qwen3_vl::generate::user_turn;
use qwen3_vl::{Options, Prompt, Qwen3Vl};
use std::path::Path;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

fn job(worker: &Worker, prompt: &Prompt, tokens: usize) -> (Job, UnboundedReceiver<Event>) {
    let (events, receiver) = unbounded_channel();
    let prompt = KeyedPrompt::new(worker.model(), prompt.clone()).unwrap();
    let options = Options { max_new_tokens: tokens, stop_at_eos: false, ..Options::default() };
    (Job { prompt, options, logprobs: None, constraint: None, events, charge: None, taken: None }, receiver)
}

#[test]
fn answers_together_are_those_alone() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny");
    let model = Qwen3Vl::load(tiny, &Device::Cpu).unwrap();
    let prompts: Vec<Prompt> = (0..16)
        .map(|i| {
            let text = format!("Number {i} asks why the sky is blue.");
            model.processor.prepare(&[user_turn(&[], &text)], &[]).unwrap()
        })
        .collect();
    let expected: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let options = Options { max_new_tokens: 12, stop_at_eos: false, ..Options::default() };
            let mut session = model.session().unwrap();
            model
                .generate_from(&mut session, prompt, &options, |_| std::ops::ControlFlow::Continue(()))
                .unwrap()
        })
        .collect();
    let worker = Worker::start(model.into(), 40).unwrap();
    let (leaving, gone): (Vec<_>, Vec<_>) =
        prompts[..5].iter().map(|prompt| job(&worker, prompt, 3000)).unzip();
    worker.submit(leaving).unwrap();
    let (jobs, mut receivers): (Vec<_>, Vec<_>) =
        prompts.iter().map(|prompt| job(&worker, prompt, 12)).unzip();
    worker.submit(jobs).unwrap();
    drop(gone);
    for (receiver, expected) in receivers.iter_mut().zip(&expected) {
        let (mut ids, mut all) = (Vec::new(), String::new());
        loop {
            match receiver.blocking_recv().expect("an end comes before the worker's") {
                Event::Token { id, text, .. } => {
                    ids.push(id);
                    all.push_str(&text);
                }
                Event::Done { rest, reason, usage } => {
                    all.push_str(&rest);
                    assert_eq!((&ids, &all, reason), (&expected.ids, &expected.text, expected.stop_reason));
                    assert_eq!(usage.completion_tokens, 12);
                    assert!(usage.cached_tokens < usage.prompt_tokens);
                    break;
                }
                Event::Failed(failure) => panic!("{failure}"),
            }
        }
    }
    let metrics = worker.metrics();
    assert_eq!((metrics.finished.get(), metrics.failed.get(), metrics.left.get()), (16, 0, 5));
    let begin = std::time::Instant::now();
    while worker.gauges().replicas[0].batch.pages_used > 0 {
        assert!(begin.elapsed().as_secs() < 10, "{:?}", worker.gauges());
        std::thread::yield_now();
    }
    assert_eq!((worker.gauges().running(), worker.gauges().waiting()), (0, 0));
}

/// A client that has seen a token may ask at once how many run and wait.
#[test]
fn gauges_are_as_new_as_events() {
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny");
    let model = Qwen3Vl::load(tiny, &Device::Cpu).unwrap();
    let prompt = model.processor.prepare(&[user_turn(&[], "Hello")], &[]).unwrap();
    let worker = Worker::start(model.into(), 4).unwrap();
    for _ in 0..50 {
        let (job, mut events) = job(&worker, &prompt, 2);
        worker.submit(vec![job]).unwrap();
        loop {
            // without sleeping, so that the gauges are read at once
            let Ok(event) = events.try_recv() else { continue };
            let gauges = worker.gauges();
            let found = (gauges.running(), gauges.waiting());
            match event {
                Event::Token { .. } => assert!([(1, 0), (0, 0)].contains(&found), "{gauges:?}"),
                Event::Done { .. } => {
                    assert_eq!(found, (0, 0), "{gauges:?}");
                    break;
                }
                Event::Failed(failure) => panic!("{failure}"),
            }
        }
    }
}
