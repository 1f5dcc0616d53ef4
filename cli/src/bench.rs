//! `pascaline bench`: checks every bench case, times it and prints a row.

use super::bench_model_args::ModelBench;
use super::bench_row::{Row, cells, columns, ms, prefix, unit, variant};
use super::case_args::CaseArgs;
use super::ceiling::{Bound, Ceiling, Ceilings, Copies, Needs};
use super::cublas::Cublas;
use super::environment::{Environment, is_virtual};
use super::failure::Failure;
use super::measure::{Clock, Way};
use super::screen::{Screen, Style};
use super::table;
use pascaline::DType;
use pascaline::cuda::{is_lost, trace};
use pascaline::governor::{Pacer, Sustained};
use pascaline::ops;
use pascaline::{Device, Error, Result, Tensor, TensorMut};
use pascaline_testing::check::Run;
use pascaline_testing::{Case, Gemm, HostTensor, Purpose, check_with};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Checks each case against the reference, then times it: our kernels, for sparse attention the dense ones, and on
/// request cuBLAS, in turn.
///
/// Times are of single runs with cold caches; on a GPU by device events.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    pub select: CaseArgs,

    /// Also run cases that are left out because they are too large for a CPU (or for the virtual GPU), or might exceed the
    /// watchdog's limit on a card with a display.
    #[arg(long)]
    all: bool,

    /// Also time a library, in turn with our kernels on the same stream. cuBLAS is searched for where the loader looks, in
    /// CUDA's folders and in PyTorch's; PASCALINE_CUBLAS names its file.
    #[arg(long, value_name = "LIBRARY")]
    against: Option<Library>,

    /// Measure the memory pool, copies, graphs and prefetching instead of the ops, each against its target.
    #[arg(long, conflicts_with_all = ["only", "all", "against"])]
    pub memory: bool,

    /// Load-test a running server instead, such as `serve` or any other with OpenAI's interface. PASCALINE_API_KEY is sent.
    #[arg(long, value_name = "URL", group = "target", conflicts_with_all = ["only", "all", "against", "memory"])]
    pub serve: Option<String>,

    #[command(flatten)]
    pub of_model: ModelBench,

    /// Numbers of concurrent clients, measured one after the other.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,4,16,64", requires = "serve")]
    pub clients: Vec<usize>,

    /// Measure clients who come at once, each with one question of about 400 tokens, beside their prompts alone and their answers alone.
    #[arg(long, requires = "serve")]
    pub burst: bool,

    /// Tokens of each answer; with --model the lengths of answers, 0 for none.
    #[arg(
        long,
        short = 'n',
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "128",
        requires = "target",
        alias = "n-gen"
    )]
    pub tokens: Vec<usize>,

    /// Also measure a running answer while prompts of this many numbers arrive, of about seven tokens each.
    #[arg(long, value_name = "N", requires = "serve")]
    pub long_prompt: Option<usize>,

    /// The trace of allocations to replay, as `generate --memory-trace` writes it; if not given, a recorded one.
    #[arg(long, value_name = "FILE", requires = "memory")]
    pub trace: Option<PathBuf>,

    /// Before the first timing, keep a GPU busy until its temperature is steady, for at most this many seconds. 0 measures
    /// a cold GPU's burst.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, allow_negative_numbers = true)]
    warm_up: Duration,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Library {
    Cublas,
}

fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "it must be a number of seconds".to_owned())
}

/// The largest cases to run on a device that is slower than a GPU.
pub(super) struct Budget {
    /// Operations of compute-bound cases.
    compute_flops: f64,
    /// Operations of memory-bound cases.
    memory_flops: f64,
    /// Elements of the output.
    elements: usize,
    who: &'static str,
}

const CPU: Budget = Budget { compute_flops: 5e9, memory_flops: 2e8, elements: 1 << 24, who: "a CPU" };
pub(super) const VIRTUAL: Budget =
    Budget { compute_flops: 2e8, memory_flops: 5e6, elements: 1 << 20, who: "the virtual GPU" };

impl Budget {
    /// `None` for a GPU.
    pub fn for_device(device: &Device) -> Option<&'static Self> {
        match device {
            Device::Cpu => Some(&CPU),
            Device::Cuda(_) => is_virtual().then_some(&VIRTUAL),
        }
    }

    pub fn covers(&self, case: &dyn Case) -> bool {
        let flops = if case.compute_bound() { self.compute_flops } else { self.memory_flops };
        case.flops() <= flops && case.output().0.elements() <= self.elements
    }

    pub fn rule(&self) -> String {
        let Self { compute_flops, memory_flops, elements, who } = self;
        format!(
            "too large for a quick look on {who} (above {} GFLOP, {} GFLOP where memory is the limit, or 2^{} outputs)",
            compute_flops / 1e9,
            memory_flops / 1e9,
            elements.ilog2()
        )
    }
}

#[derive(Serialize)]
struct Json<'a> {
    /// Cases not run yet: above zero in the report of an interrupted run.
    cases_to_run: usize,
    /// All bench cases, whatever `--only` selects: shows whether several reports together are complete.
    cases_in_table: usize,
    environment: &'a Environment,
    ceilings: &'a Ceilings,
    /// The GPU's state over all timings.
    sustained: Option<Sustained>,
    cublas: Option<String>,
    cublas_geometric_mean: Option<f64>,
    /// Why cases with status `left out` and no message were left out.
    left_out_rule: Option<String>,
    cases: &'a [Row],
}

/// The longest estimated seconds at the GPU's peak rate. Kernels far below the peak stay under the 2 s that Windows allows
/// on a card with a display.
const LONG: f64 = 0.5;

/// Whether the watchdog of a display could stop such a case, which would lose all of the process's work on the GPU.
fn is_too_long(case: &dyn Case, multiprocessors: u32, clock_khz: u32) -> bool {
    let rate = f64::from(multiprocessors) * 2.0 * 128.0 * f64::from(clock_khz) * 1e3;
    let rate = if case.dp4a() { 4.0 * rate } else { rate };
    case.compute_bound() && case.flops() > LONG * rate
}

/// The state shared by all cases.
pub(super) struct Bench {
    device: Device,
    clock: Clock,
    pub ceilings: Ceilings,
    copies: Copies,
    cublas: Option<Cublas>,
    pub pacer: Pacer,
    /// Whether the baseline kernels are timed, too.
    pub baselines: bool,
    /// Whether cases are left out that the watchdog of a display could stop.
    pub mind_the_watchdog: bool,
    cases_in_table: usize,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let cases = args.select.cases(|case| case.purpose() == Purpose::Bench)?;
    let (device, reason) = args.select.device.open()?;
    let mut report = args.select.output.report()?;
    let mut screen = args.select.output.screen();
    let cublas = match (args.against, &device) {
        (None, _) => None,
        (Some(Library::Cublas), Device::Cuda(device)) if !is_virtual() => Some(Cublas::open(device)?),
        (Some(Library::Cublas), _) => {
            return Err(Failure::Usage("cuBLAS needs a real GPU; add `--device cuda`".into()));
        }
    };
    let environment = Environment::new(&device);
    screen.text(&environment.line(), Style::Heading)?;
    if let Some(reason) = reason {
        screen.faint(&format!("taken because {reason}"))?;
    }

    let budget = if args.all { None } else { Budget::for_device(&device) };
    let (chosen, left_out): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|case| budget.is_none_or(|budget| budget.covers(case.as_ref())));
    let chosen = grouped(chosen);
    screen.start(chosen.len());
    screen.doing("measuring what the device can do");
    let mut bench = Bench::new(device, &chosen, cublas)?;
    bench.mind_the_watchdog = !args.all;
    let ceilings = &bench.ceilings;
    if let Some(Ceiling { name, what, .. }) = &ceilings.launch {
        screen.entry(&format!("{name:<5} "), what, Style::Plain)?;
    }
    let known = [&ceilings.memory, &ceilings.compute, &ceilings.dp4a];
    for Ceiling { name, what, per_second } in known.into_iter().flatten() {
        let unit = unit(name);
        let text = format!("{} {unit}: {what}", table::digits(per_second / 1e9));
        screen.entry(&format!("{name:<5} "), &text, Style::Plain)?;
    }
    if let Some(cublas) = &bench.cublas {
        screen.text(&format!("against {}", cublas.line()), Style::Plain)?;
    }

    screen.doing("warming up");
    bench.warm_up(args.warm_up)?;
    let begun = Instant::now();
    // On a terminal each op has a table under its name; in a pipe there is one table, with full ids.
    let split = screen.is_terminal;
    let has_baselines = bench.device.is_cuda();
    let mut rows: Vec<Row> = Vec::new();
    for group in chosen.chunk_by(|a, b| !split || prefix(&a.id()) == prefix(&b.id())) {
        let table = screen.table(columns(group, split, has_baselines, bench.cublas.is_some()));
        let title = group.first().map_or_else(String::new, |case| prefix(&case.id()).to_owned());
        let title = if split { title } else { "case".to_owned() };
        screen.line("")?;
        screen.line(&table.header(&title))?;
        for case in group.iter().take_while(|_| !is_lost()) {
            screen.doing(&case.id());
            let row = bench.case(case.as_ref());
            screen.line(&table.row(&cells(&row, table.columns(), split)))?;
            if let Some(message) = &row.message {
                let style = if row.status == "failed" { Style::Bad } else { Style::Faint };
                screen.entry("    ", message, style)?;
            }
            screen.done();
            rows.push(row);
            if let Some(report) = &mut report {
                report.write_partial(&bench.json(
                    &environment,
                    chosen.len() - rows.len(),
                    begun,
                    None,
                    &rows,
                ))?;
            }
            bench.pacer.pace();
            for event in bench.pacer.events() {
                screen.entry("    ", &event.to_string(), Style::Faint)?;
            }
        }
        if is_lost() {
            break; // the process can't use the GPU any more
        }
    }
    screen.finish();
    screen.say_what_is_left_out()?;

    let not_run = chosen.len() - rows.len();
    let left_out_rule = (!left_out.is_empty()).then(|| budget.map(Budget::rule)).flatten();
    rows.extend(left_out.iter().map(|case| Row::new(case.as_ref(), "left out", None)));
    summary(&mut screen, &rows, left_out_rule.as_deref(), bench.cublas.is_some())?;
    if is_lost() {
        screen.line(&format!("{not_run} cases were not run after the GPU stopped"))?;
    }
    let sustained = bench.pacer.since(begun);
    if let Some(sustained) = &sustained {
        let pauses = match bench.pacer.paused() {
            Duration::ZERO => String::new(),
            paused => format!("; paused for {:.1} s to stay so", paused.as_secs_f64()),
        };
        screen.text(&format!("sustained: {sustained}{pauses}"), Style::Plain)?;
    }
    if let Some(report) = report {
        report.write(&bench.json(&environment, not_run, begun, left_out_rule, &rows))?;
    }
    if rows.iter().any(|row| row.status == "failed") { Err(Failure::Wrong) } else { Ok(()) }
}

impl Bench {
    /// Measures the ceilings that these cases need.
    pub fn new(device: Device, cases: &[Box<dyn Case>], cublas: Option<Cublas>) -> Result<Self> {
        let mut clock = Clock::new(&device)?;
        let bound = |bound| cases.iter().any(|case| Bound::new(case.as_ref()) == bound);
        let needs =
            Needs { memory: bound(Bound::Memory), compute: bound(Bound::Compute), dp4a: bound(Bound::Dp4a) };
        let ceilings = Ceilings::measure(&device, needs, &mut clock)?;
        let pacer = Pacer::new(&device);
        let in_table = pascaline_testing::cases();
        let cases_in_table = in_table.iter().filter(|case| case.purpose() == Purpose::Bench).count();
        Ok(Self {
            device,
            clock,
            ceilings,
            copies: Copies::default(),
            cublas,
            pacer,
            baselines: true,
            mind_the_watchdog: true,
            cases_in_table,
        })
    }

    /// The report with these rows.
    fn json<'a>(
        &'a self,
        environment: &'a Environment,
        cases_to_run: usize,
        begun: Instant,
        left_out_rule: Option<String>,
        cases: &'a [Row],
    ) -> Json<'a> {
        Json {
            cases_to_run,
            cases_in_table: self.cases_in_table,
            environment,
            ceilings: &self.ceilings,
            sustained: self.pacer.since(begun),
            cublas: self.cublas.as_ref().map(Cublas::line),
            cublas_geometric_mean: cublas_mean(cases),
            left_out_rule,
            cases,
        }
    }

    /// Checks and times a case.
    pub fn case(&mut self, case: &dyn Case) -> Row {
        if let Device::Cuda(device) = &self.device
            && let gpu = device.properties()
            && self.mind_the_watchdog
            && gpu.watchdog
            && is_too_long(case, gpu.multiprocessors, gpu.clock_khz)
        {
            return Row::new(case, "left out", Some("the display's watchdog could reset the GPU".into()));
        }
        match self.check_and_time(case) {
            Ok(row) => row,
            Err(error @ Error::OutOfMemory { .. }) => Row::new(case, "left out", Some(error.to_string())),
            Err(error) => Row::new(case, "failed", Some(error.to_string())),
        }
    }

    fn check_and_time(&mut self, case: &dyn Case) -> Result<Row> {
        let inputs = case.inputs();
        let on_device = inputs.iter().map(|input| input.to(&self.device)).collect::<Result<Vec<_>>>()?;
        let bytes = case.bytes(&inputs);

        let ours = |y: TensorMut, x: &[Tensor]| case.run(y, x);
        let outcome = check_with(case, &self.device, &inputs, &on_device, &ours)?;
        let mut row = Row::new(case, "ok", None);
        row.checked(&outcome);
        if !outcome.passed() {
            return Ok(row.failed(outcome.verdict.to_string()));
        }
        let mut y = match case.initial() {
            Some(initial) => initial.to(&self.device)?,
            None => Tensor::uninitialized(case.output().0, case.output().1, &self.device)?,
        };

        let baseline = |y: TensorMut, x: &[Tensor]| case.baseline(y, x).unwrap_or(Ok(()));
        // The baseline is a kernel; on a CPU it would only time the fallback again.
        let has_baseline = self.baselines
            && self.device.is_cuda()
            && match case.baseline(y.view_mut()?, &on_device) {
                None | Some(Err(Error::Unsupported { .. })) => false,
                Some(result) => result.map(|()| true)?,
            };
        if let (true, Some(wrong)) = (has_baseline, self.wrong(case, &inputs, &on_device, &baseline)?) {
            return Ok(row.failed(format!("the baseline is wrong: {wrong}")));
        }
        let peer = self.cublas.as_ref().zip(case.gemm());
        let cublas = |y: TensorMut, x: &[Tensor]| run_cublas(peer, y, x);
        if let (true, Some(wrong)) = (peer.is_some(), self.wrong(case, &inputs, &on_device, &cublas)?) {
            return Ok(row.failed(format!("cuBLAS computes something else: {wrong}")));
        }
        drop(inputs);

        let (result, kernels) = trace(|| case.run(y.view_mut()?, &on_device));
        result?;
        row.variant = Some(variant(&kernels));

        let mut done: Vec<&Run> = vec![&ours];
        if has_baseline {
            done.push(&baseline);
        }
        if peer.is_some() {
            done.push(&cublas);
        }
        let mut outputs = vec![y];
        for _ in 1..done.len() {
            outputs.push(Tensor::uninitialized(case.output().0, case.output().1, &self.device)?);
        }
        let on_device = &on_device;
        let ways = done.into_iter().zip(&mut outputs);
        let mut ways: Vec<Way> =
            ways.map(|(run, y)| Box::new(move || run(y.view_mut()?, on_device)) as Way).collect();
        let begun = Instant::now();
        let mut times = self.clock.time(&mut ways)?.into_iter();
        row.clock_mhz = self.pacer.since(begun).map(|held| held.clock_mhz[0]);
        if let Some(times) = times.next() {
            row.timed(case, bytes, times, &self.ceilings);
            if Bound::new(case) == Bound::Memory
                && let Some(copy) = self.copies.time(&self.device, bytes, &mut self.clock)?
            {
                row.same_size_percent = Some(100.0 * copy.as_secs_f64() / times.median.as_secs_f64());
            }
        }
        if has_baseline && let Some(times) = times.next() {
            row.baseline_ms = Some(ms(times.median));
            row.speedup = row.baseline_ms.zip(row.median_ms).map(|(theirs, ours)| theirs / ours);
        }
        if peer.is_some()
            && let Some(times) = times.next()
        {
            row.cublas_ms = Some(ms(times.median));
            row.ratio = row.cublas_ms.zip(row.median_ms).map(|(theirs, ours)| theirs / ours);
        }
        Ok(row)
    }

    /// Keeps a GPU busy until its temperature is steady, so that sustained rates are timed and not a burst.
    pub fn warm_up(&self, most: Duration) -> Result<()> {
        if most.is_zero() || is_virtual() || !self.device.is_cuda() {
            return Ok(());
        }
        let begun = Instant::now();
        let x = Tensor::zeros([1024, 1024], DType::F32, &self.device)?;
        while begun.elapsed() < most && !self.pacer.is_steady() {
            for _ in 0..16 {
                ops::matmul(&x, &x)?;
            }
            x.narrow(0, 0, 1)?.to_vec::<f32>()?; // synchronises
        }
        Ok(())
    }

    /// The error of another implementation of the case.
    fn wrong(
        &self,
        case: &dyn Case,
        inputs: &[HostTensor],
        on_device: &[Tensor],
        run: &Run,
    ) -> Result<Option<String>> {
        let outcome = check_with(case, &self.device, inputs, on_device, run)?;
        Ok((!outcome.passed()).then(|| outcome.verdict.to_string()))
    }
}

fn run_cublas(peer: Option<(&Cublas, Gemm)>, y: TensorMut, inputs: &[Tensor]) -> Result<()> {
    match (peer, inputs) {
        (Some((cublas, gemm)), [x, w, ..]) => cublas.gemm(&gemm, y, x, w),
        _ => Ok(()),
    }
}

/// Groups the cases by op and type, in the order of each group's first case.
fn grouped(cases: Vec<Box<dyn Case>>) -> Vec<Box<dyn Case>> {
    let mut groups: Vec<(String, Vec<Box<dyn Case>>)> = Vec::new();
    for case in cases {
        let id = case.id();
        match groups.iter_mut().find(|(name, _)| name == prefix(&id)) {
            Some((_, group)) => group.push(case),
            None => groups.push((prefix(&id).to_owned(), vec![case])),
        }
    }
    groups.into_iter().flat_map(|(_, group)| group).collect()
}

/// The geometric mean of cuBLAS's times over ours.
fn cublas_mean(rows: &[Row]) -> Option<f64> {
    let ratios = rows.iter().filter_map(|row| row.ratio);
    let (sum, count) = ratios.fold((0.0, 0usize), |(sum, count), ratio| (sum + ratio.ln(), count + 1));
    (count > 0).then(|| (sum / count as f64).exp())
}

fn summary(screen: &mut Screen, rows: &[Row], rule: Option<&str>, cublas: bool) -> Result<(), Failure> {
    let count = |status| rows.iter().filter(|row| row.status == status).count();
    let (ok, failed) = (count("ok"), count("failed"));
    let with_reason = rows.iter().filter(|row| row.status == "left out" && row.message.is_some()).count();
    let too_large = count("left out") - with_reason;
    screen.line("")?;
    let compared = rows.iter().filter(|row| row.ratio.is_some()).count();
    match (cublas, cublas_mean(rows)) {
        (true, Some(mean)) => {
            let text =
                format!("{mean:.2}× of cuBLAS, geometric mean of {compared} cases (above 1 ours is faster)");
            screen.text(&text, Style::Heading)?;
        }
        (true, None) => screen.line("none of these cases is a matrix product that cuBLAS has")?,
        (false, _) => {}
    }
    let right = match ok {
        1 => "1 case right within its tolerance".to_owned(),
        _ => format!("{ok} cases right within their tolerance"),
    };
    screen.line(&screen.colours.paint(if failed == 0 { Style::Good } else { Style::Plain }, &right))?;
    if failed > 0 {
        screen.line(&screen.colours.paint(Style::Bad, &format!("{failed} FAILED")))?;
    }
    if with_reason > 0 {
        screen.line(&format!("{with_reason} left out, for the reasons given there"))?;
    }
    if let (1.., Some(rule)) = (too_large, rule) {
        screen.text(&format!("{too_large} left out: {rule}; `--all` runs them"), Style::Plain)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_cases_are_those_that_a_small_card_takes_seconds_for() {
        let cases = pascaline_testing::cases();
        let case = |id: &str| cases.iter().find(|case| case.id() == id).unwrap().as_ref();
        let (large, small) =
            (case("matmul_f32/m=8192,n=8192,k=8192"), case("matmul_f32/m=4096,n=4096,k=4096"));
        let [mx330, p40] = [(3, 1_594_000), (30, 1_531_000)];
        assert!(is_too_long(large, mx330.0, mx330.1));
        assert!(!is_too_long(small, mx330.0, mx330.1) && !is_too_long(large, p40.0, p40.1));
    }
}
