//! Tokens per second of many answers at once, and how evenly they come while a long prompt arrives.
//!
//! `cargo run --release --example batch_bench -- MODEL [--device cuda:0] [--cache f16] [--quantize q4_0] [--prompt 200]
//! [--tokens 256] [--sequences 1,4,16,64] [--arrival 2000] [--prompt-tokens 512] [--json FILE]`

use pascaline::{Device, Result};
use qwen3_vl::batch::{Batch, BatchOptions, Event};
use qwen3_vl::generate::user_turn;
use qwen3_vl::{LoadOptions, Options, Prompt, Qwen3Vl};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// The measurements of a run with so many sequences.
#[derive(serde::Serialize)]
struct Run {
    sequences: usize,
    /// Tokens of answers per second, from the arrival of the requests to the last token.
    tokens_per_second: f64,
    /// The same while all sequences generate.
    together: f64,
    /// Seconds from the arrival of the requests to their first tokens.
    first_token_mean: f64,
    first_token_most: f64,
    /// Milliseconds between the steps of running answers.
    step_median_ms: f64,
    step_p99_ms: f64,
}

/// The time between tokens of running answers while a long prompt arrives.
#[derive(serde::Serialize)]
struct Arrival {
    sequences: usize,
    prompt: usize,
    quiet_median_ms: f64,
    median_ms: f64,
    most_ms: f64,
    first_token: f64,
}

#[derive(serde::Serialize)]
struct Report {
    model: String,
    device: String,
    cache: String,
    pool_bytes: usize,
    runs: Vec<Run>,
    arrivals: Vec<Arrival>,
}

/// A prompt of about so many tokens that differs from all before in its first tokens, so that no page of it is cached.
fn prompt(model: &Qwen3Vl, tokens: usize) -> Result<Prompt> {
    static NEXT: AtomicUsize = AtomicUsize::new(1000);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let words = ["river", "stone", "cloud", "light", "paper", "garden", "window", "seven"];
    let mut text = format!("{number}. Continue this list: ");
    loop {
        let prompt = model.processor.prepare(&[user_turn(&[], &text)], &[])?;
        if prompt.ids.len() >= tokens {
            return Ok(prompt);
        }
        // a word is at most about eight tokens
        for i in 0..(tokens - prompt.ids.len()).div_ceil(8) {
            text += words[(i * 7 + number * 3 + i / 5) % words.len()];
            text.push(' ');
        }
    }
}

fn quantile(times: &mut [f64], share: f64) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(((times.len() as f64 - 1.0) * share).round() as usize).copied().unwrap_or(0.0)
}

fn argument(name: &str, default: &str) -> String {
    let mut arguments = std::env::args();
    arguments.find(|argument| argument == name).and_then(|_| arguments.next()).unwrap_or(default.into())
}

fn number(name: &str, default: usize) -> usize {
    argument(name, &default.to_string()).parse().unwrap_or_else(|_| panic!("{name} is a number"))
}

/// `sequences` answers of `tokens` tokens.
fn run(batch: &mut Batch, model: &Qwen3Vl, sequences: usize, length: usize, tokens: usize) -> Result<Run> {
    let options = Options { max_new_tokens: tokens, stop_at_eos: false, ..Options::default() };
    let prompts = (0..sequences).map(|_| prompt(model, length)).collect::<Result<Vec<_>>>()?;
    let begin = Instant::now();
    for prompt in prompts {
        batch.add(prompt, &options)?;
    }
    let (mut first, mut steps) = (Vec::new(), Vec::new());
    let (mut all, mut answered, mut together): (_, _, Option<(Instant, Instant)>) = (0, 0, None);
    let mut last = Instant::now();
    let mut seen = HashSet::new();
    while !batch.is_idle() {
        let mut tokens = 0;
        for event in batch.step() {
            match event {
                Event::Token { id, .. } => {
                    tokens += 1;
                    if seen.insert(id) {
                        first.push(begin.elapsed().as_secs_f64());
                    }
                }
                Event::Failed { error, .. } => return Err(error),
                Event::Finished { .. } => {}
            }
        }
        let now = Instant::now();
        all += tokens;
        if seen.len() == sequences && batch.metrics().running == sequences {
            if let Some((_, until)) = &mut together {
                answered += tokens;
                steps.push((now - last).as_secs_f64() * 1e3);
                *until = now;
            }
            together.get_or_insert((now, now));
        }
        last = now;
    }
    let seconds = together.map_or(0.0, |(since, until)| (until - since).as_secs_f64());
    Ok(Run {
        sequences,
        tokens_per_second: all as f64 / begin.elapsed().as_secs_f64(),
        together: answered as f64 / seconds,
        first_token_mean: first.iter().sum::<f64>() / first.len().max(1) as f64,
        first_token_most: first.iter().copied().fold(0.0, f64::max),
        step_median_ms: quantile(&mut steps, 0.5),
        step_p99_ms: quantile(&mut steps, 0.99),
    })
}

/// While `sequences` answers run, a prompt of `length` tokens arrives.
fn arrival(batch: &mut Batch, model: &Qwen3Vl, sequences: usize, length: usize) -> Result<Arrival> {
    let options = Options { max_new_tokens: 400, stop_at_eos: false, ..Options::default() };
    let mut ids = Vec::new();
    for _ in 0..sequences {
        ids.push(batch.add(prompt(model, 100)?, &options)?);
    }
    let mut seen = HashSet::new();
    while seen.len() < sequences {
        for event in batch.step() {
            if let Event::Token { id, .. } = event {
                seen.insert(id);
            }
        }
    }
    let timed = |batch: &mut Batch| {
        let begin = Instant::now();
        let events = batch.step();
        (begin.elapsed().as_secs_f64() * 1e3, events)
    };
    for _ in 0..10 {
        batch.step();
    }
    let mut quiet: Vec<f64> = (0..30).map(|_| timed(batch).0).collect();
    let prompt = prompt(model, length)?;
    let begin = Instant::now();
    let late = batch.add(prompt, &options)?;
    let mut busy = Vec::new();
    let first_token = loop {
        let (time, events) = timed(batch);
        busy.push(time);
        if events.iter().any(|event| matches!(event, Event::Token { id, .. } if *id == late)) {
            break begin.elapsed().as_secs_f64();
        }
    };
    ids.push(late);
    for id in ids {
        batch.remove(id);
    }
    Ok(Arrival {
        sequences,
        prompt: length,
        quiet_median_ms: quantile(&mut quiet, 0.5),
        median_ms: quantile(&mut busy, 0.5),
        most_ms: quantile(&mut busy, 1.0),
        first_token,
    })
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("the first argument is a model")?;
    let device: Device = argument("--device", "auto").parse()?;
    let mut load = LoadOptions::for_device(&device);
    load.cache = argument("--cache", "f16").parse()?;
    if let Some(format) = Some(argument("--quantize", "")).filter(|format| !format.is_empty()) {
        let named = |known: &&pascaline::quant::Format| pascaline::quant::name(**known) == format;
        load.quantize = Some(*pascaline::quant::FORMATS.iter().find(named).ok_or("no such format")?);
    }
    let model = Qwen3Vl::load_with(&path, &device, load, |_| {})?;
    let (length, tokens, late) =
        (number("--prompt", 200), number("--tokens", 256), number("--arrival", 2000));
    let counts: Vec<usize> = argument("--sequences", "1,4,16,64")
        .split(',')
        .map(str::parse)
        .collect::<std::result::Result<_, _>>()?;
    let most = counts.iter().copied().max().unwrap_or(1);
    let room = (most * (length + tokens + 32)).max(most.min(16) * 600 + late + 500);
    let options = BatchOptions {
        prompt_tokens: number("--prompt-tokens", 512),
        max_sequences: most.max(17),
        ..BatchOptions::with_room(room)
    };
    let mut batch = Batch::new(&model, options)?;
    let mut report = Report {
        model: path,
        device: device.to_string(),
        cache: load.cache.to_string(),
        pool_bytes: batch.pool_bytes(),
        runs: Vec::new(),
        arrivals: Vec::new(),
    };
    println!("sequences  tokens/s  while all run     first token mean, most [s]  step median, p99 [ms]");
    for sequences in counts {
        run(&mut batch, &model, sequences, length, tokens.min(8))?; // loads kernels, captures passes
        let found = run(&mut batch, &model, sequences, length, tokens)?;
        println!(
            "{sequences:9}  {:8.1}  {:16.1}  {:9.3}, {:9.3}  {:9.2}, {:9.2}",
            found.tokens_per_second,
            found.together,
            found.first_token_mean,
            found.first_token_most,
            found.step_median_ms,
            found.step_p99_ms
        );
        report.runs.push(found);
    }
    for sequences in [1, 4, 15] {
        if late == 0 || sequences >= options.max_sequences {
            continue;
        }
        arrival(&mut batch, &model, sequences, late)?;
        let found = arrival(&mut batch, &model, sequences, late)?;
        println!(
            "{sequences} answers while a prompt of {late} tokens arrives: quiet {:.2} ms, then {:.2} ms (most {:.2} ms); \
             its first token after {:.3} s",
            found.quiet_median_ms, found.median_ms, found.most_ms, found.first_token
        );
        report.arrivals.push(found);
    }
    println!("{:?}", batch.metrics());
    if let Some(file) = Some(argument("--json", "")).filter(|file| !file.is_empty()) {
        std::fs::write(file, serde_json::to_string_pretty(&report)?)?;
    }
    Ok(())
}
