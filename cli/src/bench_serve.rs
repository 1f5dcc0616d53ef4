//! `pascaline bench --serve URL`: load-tests a server: throughput and time to first token per number of clients.

use super::bench::Args;
use super::failure::Failure;
use super::screen::Style;
use super::table::Column;
use serde::Serialize;
use serde_json::{Value, json};
use std::env;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use ureq::{Agent, AgentBuilder};

/// Requests of each client, one after the other.
const REQUESTS: usize = 3;
/// Words of a question.
const WORDS: usize = 60;
/// Long prompts that arrive during an answer.
const INTRUSIONS: usize = 3;

#[derive(Serialize)]
struct Json<'a> {
    url: &'a str,
    model: &'a str,
    tokens_per_answer: usize,
    loads: &'a [Load],
    long_prompt: Option<LongPrompt>,
}

/// The results for a number of clients.
#[derive(Clone, Debug, Serialize)]
struct Load {
    clients: usize,
    answers: usize,
    failed: usize,
    /// Throughput over all answers, from the first request to the last token.
    tokens_per_second: f64,
    /// In seconds.
    first_token: Spread,
    next_token: Spread,
}

/// A running answer while long prompts arrive.
#[derive(Clone, Copy, Debug, Serialize)]
struct LongPrompt {
    prompt_tokens: usize,
    /// In seconds.
    quiet: Spread,
    during: Spread,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Spread {
    median: f64,
    /// The 95th percentile.
    p95: f64,
    largest: f64,
}

impl Spread {
    fn new(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (share * times.len() as f64) as usize;
            times.get(index.min(times.len().saturating_sub(1))).copied().unwrap_or(0.0)
        };
        Self { median: at(0.5), p95: at(0.95), largest: at(1.0) }
    }
}

/// A streamed answer as its client saw it.
struct Answer {
    prompt_tokens: usize,
    tokens: usize,
    first: f64,
    /// The arrival of each later chunk, and the time since the one before.
    gaps: Vec<(Instant, f64)>,
}

struct Target<'a> {
    url: &'a str,
    key: Option<String>,
    agent: Agent,
    /// Makes each question unique.
    asked: AtomicUsize,
}

impl<'a> Target<'a> {
    fn new(url: &'a str) -> Self {
        let agent =
            AgentBuilder::new().timeout_connect(Duration::from_secs(10)).max_idle_connections_per_host(256);
        let key = env::var("PASCALINE_API_KEY").ok();
        Self { url: url.trim_end_matches('/'), key, agent: agent.build(), asked: AtomicUsize::new(0) }
    }

    fn request(&self, method: &str, path: &str) -> ureq::Request {
        let request = self.agent.request(method, &format!("{}{path}", self.url));
        match &self.key {
            Some(key) => request.set("Authorization", &format!("Bearer {key}")),
            None => request,
        }
    }

    fn model(&self) -> Result<String, Failure> {
        let unknown = |reason: String| Failure::Failed(format!("{}/v1/models: {reason}", self.url));
        let response =
            self.request("GET", "/v1/models").call().map_err(|error| unknown(error.to_string()))?;
        let text = response.into_string().map_err(|error| unknown(error.to_string()))?;
        let models: Value = serde_json::from_str(&text).map_err(|error| unknown(error.to_string()))?;
        let name = models["data"][0]["id"].as_str();
        name.map(str::to_owned).ok_or_else(|| unknown("it names no model".to_owned()))
    }

    /// Asks a unique question of this many words; `None` if it is not answered.
    fn ask(&self, model: &str, words: usize, tokens: usize) -> Option<Answer> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let question: Vec<String> = (0..words).map(|word| format!("{}", number * 7919 + word * 31)).collect();
        let body = json!({
            "model": model,
            "messages": [{ "role": "user", "content": question.join(" ") }],
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let begin = Instant::now();
        let request = self.request("POST", "/v1/chat/completions").set("Content-Type", "application/json");
        let response = request.send_string(&body.to_string()).ok()?;
        let mut answer = Answer { prompt_tokens: 0, tokens: 0, first: 0.0, gaps: Vec::new() };
        let mut last = None;
        for line in BufReader::new(response.into_reader()).lines() {
            let line = line.ok()?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return Some(answer);
            }
            let event: Value = serde_json::from_str(data).ok()?;
            if event["error"].is_object() {
                return None;
            }
            let count = |name: &str| event["usage"][name].as_u64().map(|count| count as usize);
            if let (Some(prompt), Some(completion)) = (count("prompt_tokens"), count("completion_tokens")) {
                (answer.prompt_tokens, answer.tokens) = (prompt, completion);
            }
            if event["choices"][0]["delta"]["content"].is_string() {
                let now = Instant::now();
                match last.replace(now) {
                    None => answer.first = (now - begin).as_secs_f64(),
                    Some(before) => answer.gaps.push((now, (now - before).as_secs_f64())),
                }
            }
        }
        None // it ended before it was complete
    }
}

pub(super) fn run(args: &Args, url: &str, tokens: usize) -> Result<(), Failure> {
    let report = args.select.output.report()?;
    let mut screen = args.select.output.screen();
    let target = Target::new(url);
    let model = target.model()?;
    screen.text(&format!("{url}, {model}: answers of {} tokens", tokens), Style::Plain)?;
    // the first answer may wait for kernels to be loaded
    if target.ask(&model, WORDS, 8).is_none() {
        return Err(Failure::Failed(format!("{url} does not answer a question of {WORDS} words")));
    }
    let table = screen.table(vec![
        Column::right("clients", 7),
        Column::right("tokens/s", 10),
        Column::right("first token", 12),
        Column::right("95 % within", 12).rank(2),
        Column::right("next token", 12),
        Column::right("95 % within", 12).rank(1),
        Column::right("failed", 6),
    ]);
    screen.line(&table.header(""))?;
    let mut loads = Vec::new();
    for &clients in &args.clients {
        let load = measure(&target, &model, clients, tokens);
        let time = |seconds: f64| (format!("{:.1} ms", seconds * 1e3), Style::Plain);
        let failed = if load.failed > 0 { Style::Bad } else { Style::Plain };
        screen.line(&table.row(&[
            (clients.to_string(), Style::Plain),
            (format!("{:.1}", load.tokens_per_second), Style::Plain),
            time(load.first_token.median),
            time(load.first_token.p95),
            time(load.next_token.median),
            time(load.next_token.p95),
            (load.failed.to_string(), failed),
        ]))?;
        loads.push(load);
    }
    let long_prompt = args.long_prompt.map(|words| intrude(&target, &model, words)).transpose()?;
    if let Some(LongPrompt { prompt_tokens, quiet, during }) = long_prompt {
        screen.text(
            &format!(
                "next token of a running answer: {:.1} ms when quiet, {:.1} ms (95 % within {:.1} ms, at most {:.1} ms) while \
                 a prompt of {prompt_tokens} tokens arrives",
                quiet.median * 1e3,
                during.median * 1e3,
                during.p95 * 1e3,
                during.largest * 1e3,
            ),
            Style::Plain,
        )?;
    }
    let failed: usize = loads.iter().map(|load| load.failed).sum();
    if let Some(report) = report {
        report.write(&Json { url, model: &model, tokens_per_answer: tokens, loads: &loads, long_prompt })?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Failed(format!("{failed} requests were not answered"))),
    }
}

/// Runs all clients at once; each asks one question after the other.
fn measure(target: &Target, model: &str, clients: usize, tokens: usize) -> Load {
    let begin = Instant::now();
    let answers: Vec<Option<Answer>> = thread::scope(|scope| {
        let ask = || (0..REQUESTS).map(|_| target.ask(model, WORDS, tokens)).collect::<Vec<_>>();
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let seconds = begin.elapsed().as_secs_f64();
    let asked = clients * REQUESTS;
    let answers: Vec<Answer> = answers.into_iter().flatten().collect();
    let gaps = answers.iter().flat_map(|answer| &answer.gaps).map(|(_, gap)| *gap);
    Load {
        clients,
        answers: answers.len(),
        failed: asked - answers.len(),
        tokens_per_second: answers.iter().map(|answer| answer.tokens).sum::<usize>() as f64 / seconds,
        first_token: Spread::new(answers.iter().map(|answer| answer.first).collect()),
        next_token: Spread::new(gaps.collect()),
    }
}

/// Sends long prompts during an answer, which continues until the last of them is complete.
fn intrude(target: &Target, model: &str, words: usize) -> Result<LongPrompt, Failure> {
    const TOKENS: usize = 64;
    let unanswered = || Failure::Failed("an answer broke off while the long prompt was computed".to_owned());
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            let mut gaps = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                gaps.extend(target.ask(model, WORDS, TOKENS)?.gaps);
            }
            Some(gaps)
        });
        let (mut times, mut tokens) = (Vec::new(), None);
        for _ in 0..INTRUSIONS {
            thread::sleep(Duration::from_secs(1));
            let begin = Instant::now();
            let answer = target.ask(model, words, 1);
            times.push((begin, Instant::now()));
            tokens = answer.map(|answer| answer.prompt_tokens);
        }
        ended.store(true, Ordering::Relaxed);
        let gaps = running.join().ok().flatten().ok_or_else(unanswered)?;
        let is_during = |at: Instant, gap: f64| {
            let since = at - Duration::from_secs_f64(gap);
            times.iter().any(|(begin, end)| since < *end && at > *begin)
        };
        let (during, quiet): (Vec<_>, Vec<_>) = gaps.into_iter().partition(|&(at, gap)| is_during(at, gap));
        let spread = |gaps: Vec<(Instant, f64)>| Spread::new(gaps.into_iter().map(|(_, gap)| gap).collect());
        let prompt_tokens = tokens.ok_or_else(unanswered)?;
        Ok(LongPrompt { prompt_tokens, quiet: spread(quiet), during: spread(during) })
    })
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn a_spread_is_of_sorted_times() {
        let spread = Spread::new((1..=100).rev().map(f64::from).collect());
        assert_eq!((spread.median, spread.p95, spread.largest), (51.0, 96.0, 100.0));
        assert_eq!(Spread::new(vec![2.0]).p95, 2.0);
        assert_eq!(Spread::new(Vec::new()).largest, 0.0);
    }
}
