//! `pascaline tune`: times every matmul kernel on a card and stores what the choice between them needs.

use super::device::asked_for;
use super::environment::is_virtual;
use super::failure::Failure;
use super::files::{self, unwritable};
use super::measure::{Clock, Way};
use super::output::Output;
use super::screen::{Screen, Style};
use super::table::{Column, digits};
use kernels_gpu::matmul::regtile::FAMILIES;
use pascaline::cuda::{CudaDevice, Properties};
use pascaline::governor::nvml::Monitor;
use pascaline::internals::select::{Layouts, Query, candidates};
use pascaline::internals::table::{Sample, Table, user_file};
use pascaline::ops::{Matmul, Variant, matmul_into};
use pascaline::{DType, Device, Error, Result, Tensor};
use pascaline_testing::data;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long each kernel is timed on each shape.
const TIME: Duration = Duration::from_millis(20);
/// How long each kernel runs before its power is read, and how long it is read: NVML's reading is a mean of up to a second.
const POWER: Duration = Duration::from_secs(1);
/// m, n and k of the product that power is measured on: enough tiles for every multiprocessor.
const POWER_SIZE: usize = 4096;
/// Rows, and n and k of the model's linear layers; and squares.
const ROWS: [u32; 5] = [16, 32, 64, 256, 1024];
const LINEAR: [(u32, u32); 3] = [(2048, 2048), (6144, 2048), (2048, 6144)];
const SQUARES: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Times every matmul kernel with every split-K on the shapes of the model and on squares, fits the cost estimate that
/// chooses kernels to these times, and stores it for this card, where it is used from then on. If the card reports its
/// power, that of each kernel is stored too, for the choice when the card is hot.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The GPU: cuda or cuda:N. If not given, as PASCALINE_DEVICE says, else cuda.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,

    /// The file for the table; if not given, one in the user's configuration folder.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    report: Output,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let device: Device = match asked_for(args.device.as_deref()).as_deref().unwrap_or("cuda").parse() {
        Err(error @ Error::NoDevice { .. }) => {
            return Err(Failure::Failed(format!("{error}; without a GPU there is nothing to tune")));
        }
        device => device?,
    };
    let Device::Cuda(cuda) = &device else {
        return Err(Failure::Usage(
            "`tune` times a GPU's kernels, and the CPU has none to choose from; with a GPU, use `--device cuda`".into(),
        ));
    };
    if is_virtual() {
        return Err(Failure::Usage("the virtual GPU's times are estimates; `tune` needs a real one".into()));
    }
    let card = cuda.properties().clone();
    let output = match &args.output {
        Some(path) => path.clone(),
        None => user_file(&card.name).ok_or_else(|| {
            Failure::Failed(
                "there is no configuration folder (HOME is not set); name a file with --output".into(),
            )
        })?,
    };
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map_or(Ok(()), fs::create_dir_all).map_err(|error| unwritable(&output, &error))?;
    files::check(&output, args.report.may_replace())?;
    let report = args.report.report()?;
    let mut screen = args.report.screen();
    let shapes = shapes();
    screen.text(&format!("{}: {} shapes", card.name, shapes.len()), Style::Heading)?;
    screen.start(shapes.len());
    let mut clock = Clock::new(&device)?;
    let mut samples = Vec::new();
    for (layouts, dims) in shapes {
        let q = Query::plain(layouts, dims, card.multiprocessors);
        screen.doing(&q.to_string());
        samples.extend(measure(&mut clock, &device, &card, q)?);
        screen.done();
    }
    screen.finish();
    if let Some(report) = report {
        report.write(&samples)?;
    }
    let watts = match Monitor::new(cuda) {
        Ok(monitor) => power(&mut screen, cuda, &monitor)?,
        Err(reason) => {
            screen.text(&format!("power is not measured: {reason}"), Style::Plain)?;
            BTreeMap::new()
        }
    };
    let table = Table { watts, ..Table::fit(&samples) };
    show(&mut screen, &table, &samples)?;
    let mut text = serde_json::to_vec_pretty(&table)
        .map_err(|error| Failure::Failed(format!("the table can't be written as JSON: {error}")))?;
    text.push(b'\n');
    files::write(&output, &text, args.report.may_replace())?;
    screen.line(&format!("stored in {}", output.display()))
}

fn shapes() -> Vec<(Layouts, [u32; 3])> {
    let linear = ROWS.into_iter().flat_map(|m| LINEAR.map(|(n, k)| [m, n, k]));
    let dims: Vec<_> = linear.chain(SQUARES.map(|n| [n; 3])).collect();
    let both = [Layouts::Nn, Layouts::Nt].into_iter();
    both.flat_map(|layouts| dims.iter().map(move |&dims| (layouts, dims))).collect()
}

/// The time of every kernel and split for a shape.
fn measure(clock: &mut Clock, device: &Device, card: &Properties, q: Query) -> Result<Vec<Sample>> {
    let [m, n, k] = [q.m, q.n, q.k].map(|size| size as usize);
    let tensor =
        |argument: &str, shape: [usize; 2]| data::normal("tune", argument, shape, DType::F32).to(device);
    let a = tensor("a", [m, k])?;
    let b = match q.tile_layouts {
        Some(Layouts::Nt) => tensor("b", [n, k])?.swap_dims(0, 1)?,
        _ => tensor("b", [k, n])?,
    };
    let c = RefCell::new(Tensor::uninitialized([m, n], DType::F32, device)?);
    let kernels = candidates(&q);
    let mut ways: Vec<Way> = Vec::new();
    for &(family, splits) in &kernels {
        let (a, b, c) = (&a, &b, &c);
        let options = Matmul { variant: Variant::Tile(family), splits: Some(splits), ..Matmul::default() };
        ways.push(Box::new(move || matmul_into(c.borrow_mut().view_mut()?, a, b, &options)));
    }
    let times = clock.time_for(&mut ways, TIME)?;
    let clocks = |time: Duration| time.as_secs_f64() * f64::from(card.clock_khz) * 1e3;
    let samples = kernels.iter().zip(times).map(|(&(family, splits), times)| Sample {
        q,
        family: family.to_owned(),
        splits,
        clocks: clocks(times.median),
    });
    Ok(samples.collect())
}

/// Watts of every kernel while it runs back to back; empty if the card does not report power.
fn power(
    screen: &mut Screen,
    cuda: &CudaDevice,
    monitor: &Monitor,
) -> Result<BTreeMap<String, f64>, Failure> {
    let device = Device::Cuda(cuda.clone());
    let square = |argument| data::normal("tune", argument, [POWER_SIZE; 2], DType::F32).to(&device);
    let (a, b) = (square("a")?, square("b")?.swap_dims(0, 1)?);
    let mut c = Tensor::uninitialized([POWER_SIZE; 2], DType::F32, &device)?;
    let mut all = BTreeMap::new();
    for family in FAMILIES {
        let options = Matmul { variant: Variant::Tile(family.name), splits: Some(1), ..Matmul::default() };
        let drawn = drawn(cuda, monitor, || matmul_into(c.view_mut()?, &a, &b, &options))?;
        let Some((watts, seconds)) = drawn else {
            screen.line("power is not measured: the card does not report its power")?;
            return Ok(BTreeMap::new());
        };
        let joules = watts * seconds;
        screen.line(&format!("{:<12}{watts:>6.1} W, {joules:.3} J for {POWER_SIZE}³", family.name))?;
        all.insert(family.name.to_owned(), watts);
    }
    Ok(all)
}

/// The watts that a kernel draws back to back, and its seconds.
fn drawn(
    cuda: &CudaDevice,
    monitor: &Monitor,
    mut kernel: impl FnMut() -> Result<()>,
) -> Result<Option<(f64, f64)>> {
    let mut run = |runs: usize| -> Result<Duration> {
        let begun = Instant::now();
        (0..runs).try_for_each(|_| kernel())?;
        cuda.synchronize()?;
        Ok(begun.elapsed())
    };
    run(1)?;
    // Batches are long enough that the card does not idle between them, and short enough for many readings.
    let batch = (0.05 / run(1)?.as_secs_f64().max(1e-6)).ceil() as usize;
    let warm = Instant::now();
    while warm.elapsed() < POWER {
        run(batch)?;
    }
    let (begun, joules) = (Instant::now(), monitor.joules());
    let (mut readings, mut runs) = (Vec::new(), 0);
    while begun.elapsed() < POWER {
        run(batch)?;
        runs += batch;
        readings.extend(monitor.sample().map(|sample| f64::from(sample.power)).filter(|watts| *watts > 0.0));
    }
    let seconds = begun.elapsed().as_secs_f64();
    let counted = joules.zip(monitor.joules()).map(|(before, after)| (after - before) / seconds);
    let read = (!readings.is_empty()).then(|| readings.iter().sum::<f64>() / readings.len() as f64);
    let watts = counted.filter(|watts| *watts > 0.0).or(read);
    Ok(watts.map(|watts| (watts, seconds / runs as f64)))
}

/// A row per shape: the fastest kernel, the table's choice, and how much slower that is.
fn show(screen: &mut Screen, table: &Table, samples: &[Sample]) -> Result<(), Failure> {
    let columns = screen.table(vec![
        Column::left("", 24),
        Column::left("fastest", 16),
        Column::left("chosen", 16),
        Column::right("ratio", 8),
    ]);
    screen.line(&columns.header("shape"))?;
    for shape in table.outcomes(samples) {
        let kernel = |(family, splits): (&str, u32)| format!("{family} / {splits}");
        let cells = [shape.q.to_string(), kernel(shape.fastest), kernel(shape.chosen), digits(shape.ratio)];
        let cells = cells.map(|text| (text, Style::Plain));
        screen.line(&columns.row(&cells))?;
    }
    Ok(())
}
