//! Many requests at once: each answer is the same as alone, whatever requests start and end meanwhile.

use crate::common;
use crate::common::process::in_own_process;
use pascaline::kv::KvFormat;
use pascaline::{DType, Device, Error, memory};
use qwen3_vl::batch::{Batch, BatchOptions, Event, PAGE, RequestId};
use qwen3_vl::chat::Message;
use qwen3_vl::generate::user_turn;
use qwen3_vl::{LoadOptions, Options, Output, Prompt, Qwen3Vl, Sampling, StopReason, Visual};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny")
}

fn load(device: &Device, change: impl Fn(&mut LoadOptions)) -> Qwen3Vl {
    let mut options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(device) };
    change(&mut options);
    Qwen3Vl::load_with(tiny(), device, options, |_| {}).unwrap()
}

fn picture(name: &str) -> Visual {
    Visual::image(&tiny().join("cases").join(name)).unwrap()
}

fn prompt(model: &Qwen3Vl, visuals: &[Visual], text: &str) -> Prompt {
    model.processor.prepare(&[user_turn(visuals, text)], visuals).unwrap()
}

fn options(max_new_tokens: usize) -> Options {
    Options { max_new_tokens, stop_at_eos: false, ..Options::default() }
}

/// The answer of `generate`.
fn alone(model: &Qwen3Vl, prompt: &Prompt, options: &Options) -> Output {
    let go_on = |_: &str| ControlFlow::Continue(());
    model.generate_from(&mut model.session().unwrap(), prompt, options, go_on).unwrap()
}

/// All pages are free, and no request is left.
fn assert_empty(batch: &Batch, pages: usize) {
    let metrics = batch.metrics();
    assert!(batch.is_idle());
    assert_eq!((metrics.pages_used, metrics.pages_free), (0, pages), "{metrics:?}");
    assert_eq!((metrics.running, metrics.waiting, metrics.tokens_held), (0, 0, 0), "{metrics:?}");
}

/// Outcomes of requests, and the output so far of those that still run.
#[derive(Default)]
struct Outcomes {
    tokens: HashMap<RequestId, (Vec<u32>, String)>,
    finished: HashMap<RequestId, Output>,
    failed: HashMap<RequestId, Error>,
}

impl Outcomes {
    /// One step.
    fn step(&mut self, batch: &mut Batch) {
        for event in batch.step() {
            match event {
                Event::Token { id, token, text, .. } => {
                    let (ids, all) = self.tokens.entry(id).or_default();
                    ids.push(token);
                    all.push_str(&text);
                }
                Event::Finished { id, rest, output } => {
                    let (ids, text) = self.tokens.remove(&id).unwrap_or_default();
                    assert_eq!((&output.ids, &output.text), (&ids, &(text + &rest)), "what came in pieces");
                    assert!(self.finished.insert(id, *output).is_none());
                }
                Event::Failed { id, error } => assert!(self.failed.insert(id, error).is_none()),
            }
        }
    }

    fn run(&mut self, batch: &mut Batch) {
        for _ in 0..10_000 {
            if batch.is_idle() {
                return;
            }
            self.step(batch);
        }
        panic!("no end: {:?}", batch.metrics());
    }
}

/// The steps after which requests are added; `answers` are those of `generate`.
fn run_together(
    batch: &mut Batch,
    requests: &[(Prompt, Options)],
    come: impl Fn(usize) -> usize,
) -> Vec<Output> {
    let (mut outcomes, mut ids) = (Outcomes::default(), vec![None; requests.len()]);
    let mut step = 0;
    while ids.iter().any(Option::is_none) {
        for (i, (prompt, options)) in requests.iter().enumerate().filter(|(i, _)| come(*i) == step) {
            ids[i] = Some(batch.add(prompt.clone(), options).unwrap());
        }
        outcomes.step(batch);
        step += 1;
    }
    outcomes.run(batch);
    assert!(outcomes.failed.is_empty(), "{:?}", outcomes.failed);
    ids.iter().map(|id| outcomes.finished.remove(&id.unwrap()).unwrap()).collect()
}

fn check_together(model: &Qwen3Vl, count: usize, tokens: usize, pages: usize, visuals: &[&[Visual]]) -> u64 {
    let texts =
        ["Hm", "What is that?", "Why is the sky blue, and the grass green, and the sun yellow?", "Go on."];
    let requests: Vec<_> = (0..count)
        .map(|i| {
            let text = format!("{} {i}", texts[i % texts.len()]);
            (prompt(model, visuals[i % visuals.len()], &text), options(tokens - i * 5 % tokens))
        })
        .collect();
    let expected: Vec<_> = requests.iter().map(|(prompt, options)| alone(model, prompt, options)).collect();
    let batch_options = BatchOptions { pages, prompt_tokens: 24, ..BatchOptions::with_room(0) };
    let mut batch = Batch::new(model, batch_options).unwrap();
    let found = run_together(&mut batch, &requests, |i| i / 2);
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found.ids, expected.ids, "request {i} of {count}");
        assert_eq!((&found.text, found.stop_reason), (&expected.text, expected.stop_reason), "request {i}");
    }
    assert_empty(&batch, pages);
    batch.metrics().preemptions
}

#[test]
fn answers_together_are_those_alone_on_the_cpu() {
    let model = load(&Device::Cpu, |_| {});
    let pictures = [picture("square.png"), picture("wide.png")];
    check_together(&model, 1, 8, 40, &[&[]]);
    check_together(&model, 16, 12, 400, &[&[]]);
    check_together(&model, 16, 12, 400, &[&[], &pictures[..1], &pictures[1..], &pictures]);
}

#[test]
fn answers_together_are_those_alone_on_a_cuda_device() {
    in_own_process!();
    let model = load(&common::cuda_device(), |_| {});
    let small = [picture("small.png")];
    check_together(&model, 1, 4, 40, &[&[]]);
    check_together(&model, 16, 6, 200, &[&[]]);
    check_together(&model, 3, 4, 100, &[&small, &[]]);
}

/// While another request generates, a prompt is computed a few rows at a time, in the captured pass for as many answers.
#[test]
fn prompts_pass_row_by_row_beside_answers() {
    in_own_process!();
    let model = load(&common::cuda_device(), |_| {});
    let text = "Why is the sky blue, and the grass green, and the sun yellow?";
    let requests = [(prompt(&model, &[], "Hm"), options(12)), (prompt(&model, &[], text), options(3))];
    let mut batch = Batch::new(&model, BatchOptions::with_room(1000)).unwrap();
    let found = run_together(&mut batch, &requests, |i| 3 * i);
    for (found, (prompt, options)) in found.iter().zip(&requests) {
        assert_eq!(found.ids, alone(&model, prompt, options).ids);
    }
    let [_, (late, _)] = &requests;
    assert!(late.ids.len() > 32, "more than one part");
    assert_eq!(batch.metrics().tokens_by_rows as usize, late.ids.len());
}

/// The tiny vision tower has four blocks, of which the first step passes one.
#[test]
fn answers_go_on_while_a_picture_is_encoded() {
    in_own_process!();
    for device in [Device::Cpu, common::cuda_device()] {
        let model = load(&device, |_| {});
        let shown = [picture("small.png")];
        let asked = [prompt(&model, &[], "Go on."), prompt(&model, &shown, "What is that?")];
        let expected = asked.each_ref().map(|prompt| alone(&model, prompt, &options(8)).ids);
        let mut batch = Batch::new(&model, BatchOptions::with_room(1000)).unwrap();
        let running = batch.add(asked[0].clone(), &options(8)).unwrap();
        let first = batch.step(); // its prompt
        assert!(matches!(first[..], [Event::Token { .. }]), "{first:?}");
        let with_picture = batch.add(asked[1].clone(), &options(8)).unwrap();
        let (mut found, mut before) = ([Vec::new(), Vec::new()], 0);
        let mut take = |events: Vec<Event>| {
            for event in events {
                match event {
                    Event::Token { id, .. } if id == running && found[1].is_empty() => before += 1,
                    Event::Token { id, token, .. } if id == with_picture => found[1].push(token),
                    Event::Token { .. } => {}
                    Event::Finished { id, output, .. } => found[usize::from(id != running)] = output.ids,
                    Event::Failed { error, .. } => panic!("{error}"),
                }
            }
        };
        take(first);
        while !batch.is_idle() {
            take(batch.step());
        }
        assert_eq!(found, expected, "{device}");
        assert!(before >= 5, "on {device} {before} tokens came before the picture's answer");
    }
}

/// With pages for two or three requests at a time, the youngest free theirs and are computed again.
#[test]
fn few_pages_are_enough() {
    in_own_process!();
    let model = load(&Device::Cpu, |_| {});
    let preemptions = check_together(&model, 8, 40, 6, &[&[]]);
    assert!(preemptions > 0);
    let gpu = load(&common::cuda_device(), |_| {});
    assert!(check_together(&gpu, 3, 24, 5, &[&[]]) > 0);
}

/// With every cache format and with streamed layers, answers together are those alone.
#[test]
fn formats_and_streamed_layers() {
    in_own_process!();
    for cache in [KvFormat::F16, KvFormat::BF16, KvFormat::Q8_0] {
        let model = load(&Device::Cpu, |options| options.cache = cache);
        check_together(&model, 5, 6, 60, &[&[]]);
    }
    let device = common::cuda_device();
    check_together(&load(&device, |options| options.cache = KvFormat::F16), 3, 3, 60, &[&[]]);
    check_together(&load(&device, |options| options.cache = KvFormat::Q8_0), 3, 3, 60, &[&[]]);
    check_together(&load(&device, |options| options.gpu_layers = Some(1)), 3, 3, 60, &[&[]]);
}

#[test]
fn draws_are_those_of_a_request_alone() {
    let model = load(&Device::Cpu, |_| {});
    let requests: Vec<_> = (0..6)
        .map(|seed| {
            let sampling = match seed {
                0 => Sampling::GREEDY,
                1 => Sampling { presence_penalty: 1.0, ..Sampling::GREEDY },
                _ => Sampling { temperature: 1.2, top_k: 50, seed, ..Sampling::GREEDY },
            };
            (prompt(&model, &[], "Tell me."), Options { sampling, ..options(10) })
        })
        .collect();
    let mut batch = Batch::new(&model, BatchOptions::with_room(2000)).unwrap();
    for ((prompt, options), found) in requests.iter().zip(run_together(&mut batch, &requests, |_| 0)) {
        assert_eq!(found.ids, alone(&model, prompt, options).ids, "{:?}", options.sampling);
    }
}

/// A long prefix and a picture that an earlier request had are not computed again, and the answers are the same.
#[test]
fn prefixes_are_shared() {
    let model = load(&Device::Cpu, |_| {});
    let system =
        Message::text("system", "You answer in rhymes, as briefly as you can, and never twice the same.");
    let square = [picture("square.png")];
    let ask = |visuals: &[Visual], text: &str| {
        let messages = [system.clone(), user_turn(visuals, text)];
        model.processor.prepare(&messages, visuals).unwrap()
    };
    let prompts = [ask(&[], "One?"), ask(&[], "Two?"), ask(&square, "Three?"), ask(&square, "Four?")];
    let mut batch = Batch::new(&model, BatchOptions::with_room(4000)).unwrap();
    let (mut hits, mut held) = (Vec::new(), 0);
    for prompt in &prompts {
        let before = batch.metrics().prefix_hits;
        let found = run_together(&mut batch, &[(prompt.clone(), options(6))], |_| 0);
        assert_eq!(found[0].ids, alone(&model, prompt, &options(6)).ids);
        hits.push((batch.metrics().prefix_hits - before) as usize);
        assert_eq!(found[0].statistics.prefill_tokens, prompt.ids.len() - hits[hits.len() - 1]);
        held = held.max(batch.metrics().image_bytes);
    }
    let pads = prompts[3].ids.iter().filter(|id| model.processor.is_pad(**id)).count();
    assert!(hits[0] == 0 && hits[1] >= PAGE && hits[2] >= PAGE, "{hits:?}");
    assert!(hits[3] > hits[2] && hits[3] + PAGE > pads + hits[2], "{hits:?}, {pads} image tokens");
    assert!(held > 0 && batch.metrics().image_bytes == held, "one picture, seen once");

    // the same text with another picture of the same size is another prefix
    let other = Visual::Image {
        name: "other".into(),
        picture: match &square[0] {
            Visual::Image { picture, .. } => {
                let mut picture = picture.clone();
                picture.pixels.iter_mut().for_each(|pixel| *pixel = 255 - *pixel);
                picture
            }
            Visual::Video { .. } => unreachable!("a picture"),
        },
    };
    let prompt = ask(&[other], "Four?");
    assert_eq!(prompt.ids, prompts[3].ids);
    let before = batch.metrics().prefix_hits;
    let found = run_together(&mut batch, &[(prompt.clone(), options(6))], |_| 0);
    assert_eq!(found[0].ids, alone(&model, &prompt, &options(6)).ids);
    assert_eq!((batch.metrics().prefix_hits - before) as usize, hits[2], "up to the picture");
    assert_empty(&batch, 4000 / PAGE);
}

/// The next turn of a conversation finds the pages of the answer before.
#[test]
fn a_conversation_goes_on_in_its_pages() {
    let model = load(&Device::Cpu, |_| {});
    let mut batch = Batch::new(&model, BatchOptions::with_room(4000)).unwrap();
    // the weights are drawn at random, so an answer may have tokens that stand for images: one that begins without them
    let (first, mut next) = (0..50)
        .find_map(|i| {
            let first = prompt(&model, &[], &format!("Tell me more{}", "!".repeat(i)));
            let answer = run_together(&mut batch, &[(first.clone(), options(3 * PAGE))], |_| 0);
            let text = answer[0].ids.iter().take_while(|id| !model.processor.is_pad(**id)).copied();
            let ids: Vec<u32> = first.ids.iter().copied().chain(text).collect();
            let long = (ids.len() - 1) / PAGE * PAGE > first.ids.len(); // a page with tokens of the answer is full
            long.then(|| (first.clone(), Prompt { ids, ..first }))
        })
        .expect("one of fifty answers");
    let before = batch.metrics().prefix_hits;
    next.positions = model.processor.positions(&next.ids, [].into_iter()).unwrap();
    let found = run_together(&mut batch, &[(next.clone(), options(5))], |_| 0);
    assert_eq!(found[0].ids, alone(&model, &next, &options(5)).ids);
    let hits = (batch.metrics().prefix_hits - before) as usize;
    assert!(hits > first.ids.len(), "{hits} of {} and the answer", first.ids.len());
}

#[test]
fn a_removed_request_frees_its_pages_at_once() {
    let model = load(&Device::Cpu, |_| {});
    let mut batch = Batch::new(&model, BatchOptions { pages: 64, ..BatchOptions::with_room(0) }).unwrap();
    let stays = (prompt(&model, &[], "Who stays?"), options(30));
    let expected = alone(&model, &stays.0, &stays.1).ids;
    let kept = batch.add(stays.0, &stays.1).unwrap();
    let gone: Vec<_> = (0..5)
        .map(|i| batch.add(prompt(&model, &[], &format!("{i} leaves")), &options(50)).unwrap())
        .collect();
    let mut outcomes = Outcomes::default();
    for id in gone {
        outcomes.step(&mut batch);
        outcomes.step(&mut batch);
        let before = batch.metrics().pages_used;
        assert!(batch.remove(id) && !batch.remove(id));
        assert!(batch.metrics().pages_used < before, "{:?}", batch.metrics());
    }
    outcomes.run(&mut batch);
    assert_eq!(outcomes.finished[&kept].ids, expected);
    assert_empty(&batch, 64);
}

#[test]
fn what_can_not_be_answered_is_refused() {
    let model = load(&Device::Cpu, |_| {});
    let mut batch = Batch::new(&model, BatchOptions { pages: 3, ..BatchOptions::with_room(0) }).unwrap();
    let long = prompt(&model, &[], &"long ".repeat(60));
    assert!(long.ids.len() > 3 * PAGE);
    assert!(matches!(batch.add(long, &options(1)), Err(Error::Prompt { .. })));
    let short = prompt(&model, &[], "Hm");
    let none = Prompt { ids: vec![], patches: vec![], ..short.clone() };
    assert!(matches!(batch.add(none, &options(1)), Err(Error::Prompt { .. })));
    let wrong = Options { sampling: Sampling { temperature: -1.0, ..Sampling::GREEDY }, ..options(1) };
    assert!(matches!(batch.add(short.clone(), &wrong), Err(Error::Unsupported { .. })));
    // an answer is cut where the pages end, and one of no tokens is whole at once
    let found =
        run_together(&mut batch, &[(short.clone(), options(500)), (short.clone(), options(0))], |_| 0);
    assert_eq!(
        (found[0].ids.len() + short.ids.len(), found[0].stop_reason),
        (3 * PAGE + 1, StopReason::ContextFull)
    );
    assert_eq!((found[1].ids.len(), found[1].stop_reason), (0, StopReason::MaxNewTokens));
    assert_empty(&batch, 3);
}

/// Only the last page of each request is partly unused.
#[test]
fn pages_waste_little() {
    let model = load(&Device::Cpu, |_| {});
    let mut batch = Batch::new(&model, BatchOptions::with_room(16 * 500)).unwrap();
    for i in 0..16 {
        let mut long = prompt(&model, &[], &format!("{i}"));
        long.ids.extend((0..250 + 17 * i).map(|j| 5 + (i * 31 + j * 7) as u32 % 200));
        long.positions = model.processor.positions(&long.ids, [].into_iter()).unwrap();
        batch.add(long, &options(70)).unwrap();
    }
    let mut outcomes = Outcomes::default();
    let mut most = 0;
    while !batch.is_idle() {
        let metrics = batch.metrics();
        if metrics.tokens_held > most {
            most = metrics.tokens_held;
            let room = metrics.pages_used * PAGE;
            assert!(room - metrics.tokens_held <= room / 20, "{metrics:?}");
        }
        outcomes.step(&mut batch);
    }
    assert!(most > 4000, "{most}");
}

/// Whichever allocation fails, one request ends with that, and the others are answered.
#[test]
fn out_of_memory_ends_one_request() {
    in_own_process!();
    let model = load(&common::cuda_device(), |_| {});
    let small = [picture("small.png")];
    let requests = [
        (prompt(&model, &[], "One?"), options(4)),
        (prompt(&model, &small, "Two?"), options(3)),
        (prompt(&model, &[], "Three?"), options(2)),
    ];
    let expected: Vec<_> =
        requests.iter().map(|(prompt, options)| alone(&model, prompt, options).ids).collect();
    let batch_options = BatchOptions { pages: 30, prompt_tokens: 24, ..BatchOptions::with_room(0) };
    let mut which = 1;
    loop {
        let mut batch = Batch::new(&model, batch_options).unwrap();
        let mut outcomes = Outcomes::default();
        let mut ids = vec![batch.add(requests[0].0.clone(), &requests[0].1).unwrap()];
        outcomes.step(&mut batch);
        ids.extend(requests[1..].iter().map(|(prompt, options)| batch.add(prompt.clone(), options).unwrap()));
        let ((), allocations) = memory::refusing(which, || outcomes.run(&mut batch));
        assert!(outcomes.failed.len() <= 1, "allocation {which}: {:?}", outcomes.failed);
        assert!(outcomes.failed.values().all(|error| matches!(error, Error::OutOfMemory { .. })));
        for (id, expected) in ids.iter().zip(&expected) {
            match outcomes.finished.get(id) {
                Some(output) => assert_eq!(&output.ids, expected, "allocation {which}"),
                None => assert!(outcomes.failed.contains_key(id), "allocation {which}"),
            }
        }
        assert_empty(&batch, 30);
        if allocations < which {
            assert!(which > 100 && outcomes.failed.is_empty(), "{which} of {allocations}");
            return;
        }
        which += 1 + which / 3; // all of them take minutes on the virtual GPU
    }
}
