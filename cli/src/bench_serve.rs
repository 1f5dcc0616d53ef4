//! `pascaline bench --serve URL`: load-tests a server: throughput and time to first token per number of clients, or with `--burst` what clients who
//! come at once get of the rate that their prompts and their answers have alone.

use super::bench::Args;
use super::failure::Failure;
use super::screen::{Screen, Style};
use super::table::{Cell, Column};
use qwen3_vl::json::parse;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use ureq::{Agent, AgentBuilder};

/// Requests of each client, one after the other.
const REQUESTS: usize = 3;
/// Words of a question.
const WORDS: usize = 60;
/// Tokens of each prompt of a burst, about.
const BURST_PROMPT: usize = 400;
/// Bursts of each number of clients, of which the median one counts.
const BURSTS: usize = 3;
/// Long prompts that arrive during an answer.
const INTRUSIONS: usize = 3;

#[derive(Serialize)]
struct Json<'a> {
    url: &'a str,
    model: &'a str,
    tokens_per_answer: usize,
    loads: &'a [Load],
    bursts: &'a [Burst],
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

/// Clients who come at once, each with one question. Times are in seconds.
#[derive(Clone, Debug, Serialize)]
struct Burst {
    clients: usize,
    failed: usize,
    prompt_tokens: usize,
    seconds: f64,
    /// Of as many new prompts with answers of one token.
    prompts_alone: f64,
    /// Of the same answers to prompts whose keys and values the server still has.
    answers_alone: f64,
    /// The time of both alone over that of the burst.
    share: f64,
    tokens_per_second: f64,
    first_token: Spread,
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
    /// Why questions were not answered, and how many.
    reasons: Mutex<BTreeMap<String, usize>>,
}

impl<'a> Target<'a> {
    fn new(url: &'a str) -> Self {
        let agent =
            AgentBuilder::new().timeout_connect(Duration::from_secs(10)).max_idle_connections_per_host(256);
        let key = env::var("PASCALINE_API_KEY").ok();
        Self {
            url: url.trim_end_matches('/'),
            key,
            agent: agent.build(),
            asked: AtomicUsize::new(0),
            reasons: Mutex::default(),
        }
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
        let models = parse(text.as_bytes()).map_err(|error| unknown(error.to_string()))?;
        let name = models["data"][0]["id"].as_str();
        name.map(str::to_owned).ok_or_else(|| unknown("it names no model".to_owned()))
    }

    /// Asks a unique question of this many words; `None` if it is not answered.
    fn ask(&self, model: &str, words: usize, tokens: usize) -> Option<Answer> {
        self.ask_number(self.asked.fetch_add(1, Ordering::Relaxed), model, words, tokens)
    }

    /// Asks as many questions at once, those from number `first` on. Returns the seconds until all are answered too.
    fn ask_at_once(
        &self,
        first: usize,
        clients: usize,
        model: &str,
        words: usize,
        tokens: usize,
    ) -> (f64, Vec<Answer>) {
        let begin = Instant::now();
        let answers = thread::scope(|scope| {
            let ask = |number| scope.spawn(move || self.ask_number(number, model, words, tokens));
            let threads: Vec<_> = (first..first + clients).map(ask).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
        });
        (begin.elapsed().as_secs_f64(), answers)
    }

    /// Asks question `number` of this many words.
    fn ask_number(&self, number: usize, model: &str, words: usize, tokens: usize) -> Option<Answer> {
        let answer = self.answer(number, model, words, tokens);
        let note = |reason| {
            let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
            *reasons.entry(reason).or_default() += 1;
        };
        answer.map_err(note).ok()
    }

    /// Why questions were not answered.
    fn reasons(&self) -> String {
        let reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        let one = |(reason, count): (&String, &usize)| format!("{count} × {reason}");
        reasons.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    /// The answer, or why there is none.
    fn answer(&self, number: usize, model: &str, words: usize, tokens: usize) -> Result<Answer, String> {
        // numbers of six digits, so that a word has the same tokens in every question
        let word = |word: usize| (100_000 + (number * 7919 + word * 31) % 900_000).to_string();
        let question: Vec<String> = (0..words).map(word).collect();
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
        let response = request.send_string(&body.to_string()).map_err(why)?;
        let mut answer = Answer { prompt_tokens: 0, tokens: 0, first: 0.0, gaps: Vec::new() };
        let mut last = None;
        for line in BufReader::new(response.into_reader()).lines() {
            let line = line.map_err(|error| error.to_string())?;
            let Some(data) = line.strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return Ok(answer);
            }
            let event = parse(data.as_bytes()).map_err(|error| error.to_string())?;
            if event["error"].is_object() {
                return Err(sentence(&event).to_owned());
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
        Err("the answer ended before it was complete".to_owned())
    }
}

/// Why a request was refused: the status and the server's own words.
fn why(error: ureq::Error) -> String {
    match error {
        ureq::Error::Status(status, response) => {
            let body = response.into_string().ok().and_then(|text| parse(text.as_bytes()).ok());
            format!("{status}, {}", sentence(&body.unwrap_or_default()))
        }
        ureq::Error::Transport(error) => error.to_string(),
    }
}

fn sentence(body: &Value) -> &str {
    body["error"]["message"].as_str().unwrap_or("no reason is given")
}

pub(super) fn run(args: &Args, url: &str, tokens: usize) -> Result<(), Failure> {
    let report = args.select.output.report()?;
    let mut screen = args.select.output.screen();
    let target = Target::new(url);
    let model = target.model()?;
    screen.text(&format!("{url}, {model}: answers of {} tokens", tokens), Style::Plain)?;
    // the first answer may wait for kernels to be loaded
    let Some(first) = target.ask(&model, WORDS, 8) else {
        let reasons = target.reasons();
        return Err(Failure::Failed(format!("{url} does not answer a question of {WORDS} words: {reasons}")));
    };
    let (mut loads, mut bursts) = (Vec::new(), Vec::new());
    if args.burst {
        // the template's own tokens are a smaller part of a longer question, so a question of about the length says how many words
        let in_proportion = |words: usize, tokens: usize| (BURST_PROMPT * words).div_ceil(tokens.max(1));
        let near = in_proportion(WORDS, first.prompt_tokens);
        let tokens_of_near = target.ask(&model, near, 1).map_or(BURST_PROMPT, |answer| answer.prompt_tokens);
        let words = in_proportion(near, tokens_of_near);
        bursts = show_bursts(&target, &model, &args.clients, words, tokens, &mut screen)?;
    } else {
        loads = show_loads(&target, &model, &args.clients, tokens, &mut screen)?;
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
    let failed = loads.iter().map(|load| load.failed).chain(bursts.iter().map(|burst| burst.failed)).sum();
    if let Some(report) = report {
        let (loads, bursts) = (&*loads, &*bursts);
        report.write(&Json { url, model: &model, tokens_per_answer: tokens, loads, bursts, long_prompt })?;
    }
    match failed {
        0usize => Ok(()),
        _ => Err(Failure::Failed(format!("{failed} requests were not answered: {}", target.reasons()))),
    }
}

/// Measures and shows a load for each number of clients.
fn show_loads(
    target: &Target,
    model: &str,
    clients: &[usize],
    tokens: usize,
    screen: &mut Screen,
) -> Result<Vec<Load>, Failure> {
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
    for &clients in clients {
        let load = measure(target, model, clients, tokens);
        let failed = if load.failed > 0 { Style::Bad } else { Style::Plain };
        screen.line(&table.row(&[
            (clients.to_string(), Style::Plain),
            (format!("{:.1}", load.tokens_per_second), Style::Plain),
            milliseconds(load.first_token.median),
            milliseconds(load.first_token.p95),
            milliseconds(load.next_token.median),
            milliseconds(load.next_token.p95),
            (load.failed.to_string(), failed),
        ]))?;
        loads.push(load);
    }
    Ok(loads)
}

fn milliseconds(seconds: f64) -> Cell {
    (format!("{:.1} ms", seconds * 1e3), Style::Plain)
}

/// Measures and shows a burst of each number of clients.
fn show_bursts(
    target: &Target,
    model: &str,
    clients: &[usize],
    words: usize,
    tokens: usize,
    screen: &mut Screen,
) -> Result<Vec<Burst>, Failure> {
    let table = screen.table(vec![
        Column::right("clients", 7),
        Column::right("tokens/s", 10),
        Column::right("first token", 12),
        Column::right("burst", 11),
        Column::right("prompts alone", 13),
        Column::right("answers alone", 13),
        Column::right("both / burst", 12),
        Column::right("failed", 6),
    ]);
    screen.line(&table.header(""))?;
    let mut bursts = Vec::new();
    for &clients in clients {
        let mut all: Vec<Burst> = (0..BURSTS).map(|_| burst(target, model, clients, words, tokens)).collect();
        all.sort_by(|a, b| a.share.total_cmp(&b.share));
        let failed = all.iter().map(|burst| burst.failed).sum();
        let burst = Burst { failed, ..all.swap_remove(BURSTS / 2) };
        let style = if failed > 0 { Style::Bad } else { Style::Plain };
        screen.line(&table.row(&[
            (clients.to_string(), Style::Plain),
            (format!("{:.1}", burst.tokens_per_second), Style::Plain),
            milliseconds(burst.first_token.median),
            milliseconds(burst.seconds),
            milliseconds(burst.prompts_alone),
            milliseconds(burst.answers_alone),
            (format!("{:.2}", burst.share), Style::Plain),
            (failed.to_string(), style),
        ]))?;
        bursts.push(burst);
    }
    Ok(bursts)
}

/// Asks new questions at once for answers of one token, the same ones again for whole answers, whose prompts the server then has, and as many new
/// ones for whole answers.
fn burst(target: &Target, model: &str, clients: usize, words: usize, tokens: usize) -> Burst {
    let numbers = || target.asked.fetch_add(clients, Ordering::Relaxed);
    let known = numbers();
    let (prompts_alone, prompts) = target.ask_at_once(known, clients, model, words, 1);
    let (answers_alone, answers) = target.ask_at_once(known, clients, model, words, tokens);
    let (seconds, both) = target.ask_at_once(numbers(), clients, model, words, tokens);
    Burst {
        clients,
        failed: 3 * clients - prompts.len() - answers.len() - both.len(),
        prompt_tokens: both.iter().map(|answer| answer.prompt_tokens).sum::<usize>() / both.len().max(1),
        seconds,
        prompts_alone,
        answers_alone,
        share: (prompts_alone + answers_alone) / seconds,
        tokens_per_second: both.iter().map(|answer| answer.tokens).sum::<usize>() as f64 / seconds,
        first_token: Spread::new(both.iter().map(|answer| answer.first).collect()),
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
