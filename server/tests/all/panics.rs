//! A bug in the computation, which is a panic, ends the answers that run; the server goes on, or ends so that it is started again.

use crate::common::process::in_own_process;
use crate::common::{PATIENCE, Server, config, model, question, read_until};
use pascaline::{Device, Result, memory};
use pascaline_server::worker::{Event, Failure, Health, Job, Worker};
use pascaline_server::{Config, End, Limits};
use qwen3_vl::batch::{Batch, BatchOptions, KeyedPrompt};
use qwen3_vl::generate::user_turn;
use qwen3_vl::sampling::Constraint;
use qwen3_vl::{LanguageModel, Options};
use serde_json::{Value, json};
use std::sync::Arc;
use std::thread;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const CHAT: &str = "/v1/chat/completions";

/// A rule with a bug.
enum Bug {
    /// At the token of this number.
    AtToken(usize),
    /// When the request is let go.
    AtItsEnd,
}

impl Constraint for Bug {
    fn mask(&mut self, _: &mut [f32]) -> Result<()> {
        assert!(!matches!(self, Self::AtToken(0)), "a bug of the test's");
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        if let Self::AtToken(at) = self {
            *at -= 1;
        }
        Ok(())
    }
}

impl Drop for Bug {
    fn drop(&mut self) {
        assert!(!matches!(self, Self::AtItsEnd) || thread::panicking(), "a bug of the test's");
    }
}

fn job(worker: &Worker, bug: Bug) -> (Job, UnboundedReceiver<Event>) {
    let model = worker.model();
    let prompt = model.processor.prepare(&[user_turn(&[], "Hello")], &[]).unwrap();
    let (prompt, (events, receiver)) = (KeyedPrompt::new(model, prompt).unwrap(), unbounded_channel());
    let options = Options { max_new_tokens: 1000, stop_at_eos: false, ..Options::default() };
    (
        Job {
            prompt,
            options,
            logprobs: None,
            constraint: Some(Box::new(bug)),
            events,
            charge: None,
            taken: None,
        },
        receiver,
    )
}

/// The answer's end.
fn end(receiver: &mut UnboundedReceiver<Event>) -> Event {
    loop {
        match receiver.blocking_recv().expect("it has an end") {
            Event::Token { .. } => {}
            end => return end,
        }
    }
}

fn options() -> BatchOptions {
    BatchOptions { max_sequences: 4, ..BatchOptions::with_room(20_000) }
}

/// Memory for the model and the pages of one batch, but not for those of two.
fn limit_memory(model: &LanguageModel) {
    let Device::Cuda(cuda) = model.device() else { return };
    let pool = memory::pool(cuda).unwrap();
    let batch = Batch::new(model, options()).unwrap();
    let (reserved, pages) = (pool.statistics().reserved, batch.pool_bytes());
    let rest = 8 << 20; // activations and graphs
    assert!(reserved + rest < pool.statistics().live + pages, "two would fit");
    drop(batch);
    cuda.synchronize().unwrap();
    pool.trim().unwrap();
    memory::set_limit(cuda, reserved + rest).unwrap();
}

#[test]
fn answers_that_run_end_and_others_come() {
    in_own_process!();
    for device in [Device::Cpu, Device::virtual_gpu().expect("the virtual GPU")] {
        let model = model(&device);
        limit_memory(&model);
        let worker = Arc::new(Worker::start_with(model, 8, options()).unwrap());
        let limits = Limits { time: PATIENCE, ..Limits::for_context(16_000) };
        let server = Server::start_with(Arc::clone(&worker), Config { limits, ..config() });
        let mut small = question("Hi");
        small["max_tokens"] = json!(4);
        let expected = server.chat(&small)["choices"].clone();

        let mut long = question("Go on and on");
        (long["max_tokens"], long["ignore_eos"]) = (json!(15_000), json!(true));
        let mut streamed = long.clone();
        streamed["stream"] = json!(true);
        let mut stream = server.raw(CHAT, &streamed.to_string());
        read_until(&mut stream, "data: ");
        thread::scope(|scope| {
            let whole = scope.spawn(|| server.post(CHAT, &long));
            server.wait_for("pascaline_requests_running", 2);
            let (job, mut events) = job(&worker, Bug::AtToken(3));
            worker.submit(vec![job]).unwrap();
            assert!(matches!(end(&mut events), Event::Failed(Failure::Panicked)));
            let (status, answer) = whole.join().expect("an answer");
            assert_eq!((status, &answer["error"]["code"]), (500, &json!("internal")), "{answer}");
        });
        read_until(&mut stream, "a bug ended this answer");
        assert_eq!(server.metric("pascaline_requests_total{outcome=\"failed\"}"), 3);
        assert_eq!(server.chat(&small)["choices"], expected, "after it, on {device}");

        // also where no token is computed
        let (ending, mut events) = job(&worker, Bug::AtItsEnd);
        worker.submit(vec![ending]).unwrap();
        assert!(matches!(events.blocking_recv(), Some(Event::Token { .. })));
        drop(events);
        server.wait_for("pascaline_requests_total{outcome=\"failed\"}", 4);
        assert_eq!(server.chat(&small)["choices"], expected, "after the other, on {device}");
        // and where a job is taken: the batch may have been left half changed, so that what runs ends too
        let (running, mut others) = job(&worker, Bug::AtToken(usize::MAX));
        worker.submit(vec![running]).unwrap();
        assert!(matches!(others.blocking_recv(), Some(Event::Token { .. })));
        let (mut refused, mut events) = job(&worker, Bug::AtItsEnd);
        refused.options.sampling.top_p = 0.0;
        worker.submit(vec![refused]).unwrap();
        assert!(matches!(end(&mut events), Event::Failed(Failure::Panicked)));
        assert!(matches!(end(&mut others), Event::Failed(Failure::Panicked)));
        assert_eq!(server.chat(&small)["choices"], expected, "after the third, on {device}");

        let (status, health) = server.get("/health");
        let health: Value = serde_json::from_str(&health).unwrap();
        assert_eq!((status, &health["status"]), (200, &json!("ok")));
        server.wait_for("pascaline_pages{state=\"used\"}", 0);
        server.stop();
        assert_eq!(server.wait(), End::Stopped { cut_off: 0 });
    }
}

#[test]
fn a_server_that_can_not_go_on_ends() {
    in_own_process!();
    let model = model(&Device::Cpu);
    // the bug strikes once more while what the first has left is cleared away
    let worker = Arc::new(Worker::start_with(model, 8, options()).unwrap());
    let (first, mut its_events) = job(&worker, Bug::AtToken(3));
    let (second, mut others) = job(&worker, Bug::AtItsEnd);
    let server = Server::start_with(Arc::clone(&worker), config());
    worker.submit(vec![first, second]).unwrap();
    assert!(matches!(end(&mut its_events), Event::Failed(Failure::Panicked)));
    assert!(matches!(end(&mut others), Event::Failed(Failure::Panicked)));
    assert!(matches!(&*worker.health().borrow(), Health::Lost(_)));
    let (status, answer) = server.post(CHAT, &question("Hi"));
    assert_eq!(status, 503, "{answer}");
    assert!(matches!(server.wait(), End::DeviceLost(_)));
}
