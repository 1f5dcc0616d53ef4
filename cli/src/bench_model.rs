//! `pascaline bench --model`: prefill, decode and picture encoding in tokens per second, as mean and standard deviation of
//! repeated runs. Tests have llama-bench's names, so that the results can be compared side by side.

use super::bench::Args;
use super::bench_model_args::Format;
use super::environment::Environment;
use super::failure::Failure;
use super::model::{ModelArgs, Work};
use super::screen::{Screen, Style};
use super::table::{Column, Table};
use pascaline::format_bytes;
use pascaline::kv::KvFormat;
use qwen3_vl::batch::{Batch, BatchOptions, Event};
use qwen3_vl::config::Config;
use qwen3_vl::footprint::Workload;
use qwen3_vl::generate::user_turn;
use qwen3_vl::preprocess::{Patches, Picture};
use qwen3_vl::{LanguageModel, Options, Prompt, Visual};
use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

/// A measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Test {
    Prompt { tokens: usize, depth: usize },
    Generation { tokens: usize, depth: usize, sequences: usize },
    Picture { size: [usize; 2] },
}

impl Test {
    /// As llama-bench writes it: `pp512`, `tg128 @ d4096`.
    fn name(self) -> String {
        let at = |depth| if depth == 0 { String::new() } else { format!(" @ d{depth}") };
        match self {
            Self::Prompt { tokens, depth } => format!("pp{tokens}{}", at(depth)),
            Self::Generation { tokens, depth, sequences: 1 } => format!("tg{tokens}{}", at(depth)),
            Self::Generation { tokens, depth, sequences } => format!("tg{tokens} x{sequences}{}", at(depth)),
            Self::Picture { size: [width, height] } => format!("picture {width}x{height}"),
        }
    }

    /// Tokens that the cache must have room for.
    fn context(self) -> usize {
        match self {
            Self::Prompt { tokens, depth } => depth.saturating_add(tokens).saturating_add(1),
            Self::Generation { tokens, depth, .. } => depth.saturating_add(tokens).saturating_add(2),
            Self::Picture { .. } => 0,
        }
    }
}

/// The result of a test.
#[derive(Debug, Serialize)]
struct Row {
    test: String,
    /// Computed tokens of a prompt, decoded tokens of each answer, or tokens of a picture.
    tokens: usize,
    /// Tokens in the cache before the test.
    depth: usize,
    /// Concurrent answers.
    sequences: usize,
    /// Tokens per second: mean and standard deviation over the repetitions.
    tokens_per_second: f64,
    deviation: f64,
    /// Seconds of each repetition.
    seconds: Vec<f64>,
}

impl Row {
    /// `counted`: the tokens of one repetition, over all answers.
    fn new(test: Test, counted: usize, seconds: Vec<f64>) -> Self {
        let (depth, sequences) = match test {
            Test::Prompt { depth, .. } => (depth, 1),
            Test::Generation { depth, sequences, .. } => (depth, sequences),
            Test::Picture { .. } => (0, 1),
        };
        let rates: Vec<f64> = seconds.iter().map(|seconds| counted as f64 / seconds.max(1e-9)).collect();
        let (tokens_per_second, deviation) = mean_and_deviation(&rates);
        let tokens = counted / sequences.max(1);
        Self { test: test.name(), tokens, depth, sequences, tokens_per_second, deviation, seconds }
    }

    /// `36.12 ± 0.42`
    fn rate(&self) -> String {
        format!("{:.2} ± {:.2}", self.tokens_per_second, self.deviation)
    }
}

/// Mean and sample standard deviation; the deviation of one value is 0.
fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, if values.len() < 2 { 0.0 } else { (squares / (count - 1.0)).sqrt() })
}

#[derive(Serialize)]
struct Json<'a> {
    environment: &'a Environment,
    /// Threads used on the CPU.
    threads: usize,
    model: &'a Model,
    tests: &'a [Row],
}

/// The measured model, repeated in every row.
#[derive(Serialize)]
struct Model {
    /// The file or folder.
    name: String,
    parameters: usize,
    /// Bytes of the language model's matrices that a decoded token reads.
    weight_bytes: usize,
    /// The type of keys and values.
    cache: &'static str,
    device: String,
    load_seconds: f64,
}

pub(super) fn run(args: &Args, path: &Path) -> Result<(), Failure> {
    let (own, output) = (&args.of_model, &args.select.output);
    let tests = tests(args)?;
    let model_args = ModelArgs::new(path.to_owned(), args.select.device.clone(), own.load.clone());
    let (device, reason) = model_args.first_device()?;
    model_args.check()?;
    let report = output.report()?;
    let opened = model_args.open(&device, output)?;
    let limit = opened.config.text.max_position_embeddings;
    if let Some(test) = tests.iter().find(|test| test.context() > limit) {
        let (name, needed) = (test.name(), test.context());
        return Err(Failure::Usage(format!("{name} needs {needed} tokens; the model has {limit}")));
    }
    let most = workload(&tests, &opened.config);
    let work = Work { most: Some(most), exactly: &|_| Ok(vec![most]) };
    let loaded = model_args.load(&opened, &device, &work, output)?;
    let devices: Vec<_> = loaded.model.devices().map(ToString::to_string).collect();
    let model = Model {
        name: name(path),
        parameters: loaded.model.parameters(),
        weight_bytes: loaded.model.weight_bytes(),
        cache: own.load.cache.unwrap_or(KvFormat::F32).name(),
        device: devices.join(" + "),
        load_seconds: loaded.seconds,
    };
    let environment = Environment::new(&device);
    let mut screen = output.screen();
    if own.format == Format::Table {
        screen.text(&environment.line(), Style::Heading)?;
        if let Some(reason) = reason {
            screen.faint(&format!("taken because {reason}"))?;
        }
    }
    let mut printer = Printer::new(own.format, &model, &mut screen)?;
    let subject = Subject::new(&loaded.model)?;
    screen.start(tests.len() * usize::from(own.repetitions));
    let mut rows = Vec::new();
    for test in tests {
        screen.doing(&test.name());
        let failed = |error| model_args.failure(error);
        let row = subject.measure(test, own.repetitions.into(), || screen.done()).map_err(failed)?;
        printer.row(&row, &mut screen)?;
        rows.push(row);
    }
    screen.finish();
    let threads = rayon::current_num_threads();
    let json = Json { environment: &environment, threads, model: &model, tests: &rows };
    report.map_or(Ok(()), |report| report.write(&json))
}

/// The last part of a path, as the model's name.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// The requested tests: prompts, answers, pictures.
fn tests(args: &Args) -> Result<Vec<Test>, Failure> {
    let own = &args.of_model;
    if own.sequences.contains(&0) {
        return Err(Failure::Usage("--sequences must be at least 1".to_owned()));
    }
    let some = |counts: &[usize]| counts.iter().copied().filter(|&count| count > 0).collect::<Vec<_>>();
    let (prompts, answers) = (some(&own.prompt_tokens), some(&args.tokens));
    let mut tests = Vec::new();
    for &depth in &own.depth {
        tests.extend(prompts.iter().map(|&tokens| Test::Prompt { tokens, depth }));
    }
    for &depth in &own.depth {
        for &sequences in &own.sequences {
            tests.extend(answers.iter().map(|&tokens| Test::Generation { tokens, depth, sequences }));
        }
    }
    tests.extend(own.picture.iter().map(|&size| Test::Picture { size }));
    match tests.is_empty() {
        true => Err(Failure::Usage("nothing to measure: all numbers of tokens are 0".to_owned())),
        false => Ok(tests),
    }
}

/// The largest workload of the tests.
fn workload(tests: &[Test], config: &Config) -> Workload {
    let of = |test: &Test| match *test {
        Test::Prompt { tokens, depth } => {
            Workload { context: test.context(), prompt: tokens.max(depth), patches: 0 }
        }
        Test::Generation { depth, sequences, .. } => {
            Workload { context: test.context().saturating_mul(sequences), prompt: depth.max(1), patches: 0 }
        }
        // small pictures are enlarged
        Test::Picture { size: [width, height] } => {
            let patches = config.picture([width, height]).1.max(1024);
            Workload { context: 1, prompt: 1, patches }
        }
    };
    let none = Workload { context: 1, prompt: 1, patches: 0 };
    tests.iter().map(of).fold(none, |a, b| Workload {
        context: a.context.max(b.context),
        prompt: a.prompt.max(b.prompt),
        patches: a.patches.max(b.patches),
    })
}

/// A model, and the tokens that prompts consist of.
pub(super) struct Subject<'m> {
    model: &'m LanguageModel,
    /// Ordinary tokens, all different.
    vocabulary: Vec<u32>,
}

impl<'m> Subject<'m> {
    pub fn new(model: &'m LanguageModel) -> Result<Self, Failure> {
        let letters: String = ('a'..='z').chain('0'..='9').flat_map(|letter| [letter, ' ']).collect();
        let ids: BTreeSet<u32> = model.processor.tokenizer.encode_ordinary(&letters)?.into_iter().collect();
        match ids.len() {
            0 | 1 => Err(Failure::Failed("the tokenizer has no two ordinary tokens".to_owned())),
            _ => Ok(Self { model, vocabulary: ids.into_iter().collect() }),
        }
    }

    /// `depth` tokens that are the same for every `number`, then `tokens` tokens whose first one differs between
    /// consecutive numbers.
    pub fn prompt(&self, depth: usize, tokens: usize, number: usize) -> pascaline::Result<Prompt> {
        let token = |i: usize| self.vocabulary[i % self.vocabulary.len()];
        let ids: Vec<u32> =
            (0..depth).map(token).chain((0..tokens).map(|i| token(depth + number + i))).collect();
        let positions = self.model.processor.positions(&ids, std::iter::empty())?;
        Ok(Prompt { ids, positions, patches: Vec::new() })
    }

    /// Runs a test once to warm up and then `repetitions` times; `done` is called after each.
    fn measure(&self, test: Test, repetitions: usize, done: impl Fn()) -> pascaline::Result<Row> {
        let mut counted = 0;
        let mut repeat = |run: &mut dyn FnMut(usize) -> pascaline::Result<(usize, f64)>| {
            run(0)?;
            let mut seconds = Vec::new();
            for number in 1..=repetitions {
                let (tokens, time) = run(number)?;
                counted = tokens;
                seconds.push(time);
                done();
            }
            Ok(seconds)
        };
        let seconds = match test {
            Test::Prompt { tokens, depth } => {
                let mut session = self.model.session()?;
                repeat(&mut |number| {
                    let prompt = self.prompt(depth, tokens, number)?;
                    if number == 0 && depth > 0 {
                        let before = self.prompt(depth, 0, 0)?;
                        self.model.generate_from(&mut session, &before, &options(1), |_| GO_ON)?;
                    }
                    let output = self.model.generate_from(&mut session, &prompt, &options(1), |_| GO_ON)?;
                    Ok((output.statistics.prefill_tokens, output.statistics.time_to_first_token))
                })?
            }
            Test::Generation { tokens, depth, sequences: 1 } => {
                let mut session = self.model.session()?;
                let prompt = self.prompt(depth.max(1), 0, 0)?;
                repeat(&mut |_| {
                    let output =
                        self.model.generate_from(&mut session, &prompt, &options(tokens + 1), |_| GO_ON)?;
                    let statistics = output.statistics;
                    let seconds = statistics.decode_tokens as f64 / statistics.decode_tokens_per_second;
                    Ok((statistics.decode_tokens, seconds))
                })?
            }
            Test::Generation { tokens, depth, sequences } => {
                repeat(&mut |_| self.together(tokens, depth, sequences))?
            }
            Test::Picture { size } => {
                let patches = self.patches(size)?;
                repeat(&mut |_| {
                    let begin = Instant::now();
                    let seen = self.model.encode_image(&patches)?;
                    self.model.device().synchronize()?;
                    Ok((seen.embeddings.dims()[0], begin.elapsed().as_secs_f64()))
                })?
            }
        };
        Ok(Row::new(test, counted, seconds))
    }

    /// Generates `sequences` answers at a time. Returns the tokens of all after the first of each, and their time.
    fn together(&self, tokens: usize, depth: usize, sequences: usize) -> pascaline::Result<(usize, f64)> {
        let each = depth.max(1) + tokens + 2;
        let room = BatchOptions::with_room(each.saturating_mul(sequences));
        let options_of_batch =
            BatchOptions { max_sequences: sequences, pages: room.pages + sequences, ..room };
        let mut batch = Batch::new(self.model, options_of_batch)?;
        for number in 0..sequences {
            // prompts with an equal prefix would share pages; these differ unless they are very many
            batch.add(self.prompt(0, depth.max(1), number)?, &options(tokens + 1))?;
        }
        let (mut seen, mut rest, mut time) = (0, 0, Duration::ZERO);
        while !batch.is_idle() {
            let begin = Instant::now();
            let before = seen;
            for event in batch.step() {
                match event {
                    Event::Token { .. } => seen += 1,
                    Event::Finished { .. } => {}
                    Event::Failed { error, .. } => return Err(error),
                }
            }
            if before >= sequences {
                rest += seen - before;
                time += begin.elapsed();
            }
        }
        Ok((rest, time.as_secs_f64()))
    }

    /// A picture's patches, as the model's input.
    fn patches(&self, [width, height]: [usize; 2]) -> pascaline::Result<Patches> {
        let pixels = (0..width * height * 3).map(|i| (i * 7 % 251) as u8).collect();
        let picture = Picture { height, width, pixels };
        let visuals = [Visual::Image { name: "the picture".to_owned(), picture }];
        let prompt = self.model.processor.prepare(&[user_turn(&visuals, "?")], &visuals)?;
        prompt.patches.into_iter().next().ok_or_else(|| pascaline::Error::Prompt {
            reason: "the chat template has no place for a picture".to_owned(),
        })
    }
}

pub(super) const GO_ON: ControlFlow<()> = ControlFlow::Continue(());

/// Exactly this many tokens, whatever they are.
pub(super) fn options(max_new_tokens: usize) -> Options {
    Options { max_new_tokens, stop_at_eos: false, ..Options::default() }
}

/// Prints rows as they are measured.
enum Printer<'a> {
    Table(Table, &'a Model),
    Markdown(&'a Model),
    Csv(&'a Model),
}

impl<'a> Printer<'a> {
    fn new(format: Format, model: &'a Model, screen: &mut Screen) -> Result<Self, Failure> {
        match format {
            Format::Table => {
                let table = screen.table(vec![
                    Column::left("model", model.name.chars().count()),
                    Column::right("weights", 10).rank(3),
                    Column::right("parameters", 10).rank(4),
                    Column::left("device", model.device.len().max(6)).rank(2),
                    Column::right("test", 16),
                    Column::right("tokens/s", 18),
                    Column::right("time", 11).rank(1),
                ]);
                screen.line(&table.header("model"))?;
                Ok(Self::Table(table, model))
            }
            Format::Markdown => {
                screen
                    .line("| model | weights | parameters | device | cache | threads | test | tokens/s |")?;
                screen.line("|---|---:|---:|---|---|---:|---:|---:|")?;
                Ok(Self::Markdown(model))
            }
            Format::Csv => {
                screen.line(
                    "model,weight_bytes,parameters,device,cache,threads,test,tokens,depth,sequences,\
                     tokens_per_second,deviation,seconds",
                )?;
                Ok(Self::Csv(model))
            }
        }
    }

    fn row(&mut self, row: &Row, screen: &mut Screen) -> Result<(), Failure> {
        let threads = rayon::current_num_threads();
        let billions = |model: &Model| format!("{:.2} B", model.parameters as f64 / 1e9);
        match self {
            Self::Table(table, model) => {
                let (mean, _) = mean_and_deviation(&row.seconds);
                let cells = [
                    model.name.clone(),
                    format_bytes(model.weight_bytes),
                    billions(model),
                    model.device.clone(),
                    row.test.clone(),
                    row.rate(),
                    super::table::time(Duration::from_secs_f64(mean)),
                ];
                screen.line(&table.row(&cells.map(|cell| (cell, Style::Plain))))
            }
            Self::Markdown(model) => screen.line(&format!(
                "| {} | {} | {} | {} | {} | {threads} | {} | {} |",
                model.name,
                format_bytes(model.weight_bytes),
                billions(model),
                model.device,
                model.cache,
                row.test,
                row.rate()
            )),
            Self::Csv(model) => {
                let seconds: Vec<_> = row.seconds.iter().map(|seconds| format!("{seconds:.6}")).collect();
                let fields = [
                    quoted(&model.name),
                    model.weight_bytes.to_string(),
                    model.parameters.to_string(),
                    quoted(&model.device),
                    model.cache.to_owned(),
                    threads.to_string(),
                    quoted(&row.test),
                    row.tokens.to_string(),
                    row.depth.to_string(),
                    row.sequences.to_string(),
                    format!("{:.4}", row.tokens_per_second),
                    format!("{:.4}", row.deviation),
                    seconds.join(" "),
                ];
                screen.line(&fields.join(","))
            }
        }
    }
}

/// A text as a field of CSV (RFC 4180).
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_deviation_of_few() {
        assert_eq!(mean_and_deviation(&[4.0]), (4.0, 0.0));
        assert_eq!(mean_and_deviation(&[1.0, 3.0]), (2.0, 2f64.sqrt()));
    }

    #[test]
    fn names_are_llama_benchs() {
        assert_eq!(Test::Prompt { tokens: 512, depth: 0 }.name(), "pp512");
        assert_eq!(Test::Generation { tokens: 128, depth: 4096, sequences: 1 }.name(), "tg128 @ d4096");
        assert_eq!(Test::Generation { tokens: 8, depth: 0, sequences: 4 }.name(), "tg8 x4");
        assert_eq!(Test::Picture { size: [640, 480] }.name(), "picture 640x480");
    }

    #[test]
    fn fields_of_csv() {
        assert_eq!(quoted("a \"b\", c"), "\"a \"\"b\"\", c\"");
    }
}
