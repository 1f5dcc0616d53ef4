//! `pascaline run-ptx`: runs a kernel of any PTX file on the virtual GPU, checked, counted and costed, or on a real GPU.

use super::costs::{Costs, MODEL, print_assumptions};
use super::failure::Failure;
use super::files::{self, read_input, read_input_text};
use super::json::Report;
use super::output::{Output, complain};
use super::printable::printable;
use super::ptx_argument::{Argument, dimensions, fit, fit_files};
use super::ptxas::{self, Registers};
use super::screen::{Screen, Style};
use super::table::{self, Column, percent};
use pascaline::cuda::CudaDevice;
use pascaline::memory::DeviceBuffer;
use pascaline_virtual_gpu::{
    Card, Config, Finding, Gpu, Kernel, Launch, LaunchReport, LineCost, MemoryError, Module, POISON,
    SourceLine,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::process::exit;
use std::ptr;
use std::thread;
use std::time::Duration;

/// The most bytes of a PTX file.
const MAX_PTX: u64 = 256 << 20;
/// The most bytes of an argument: no card of these has more memory.
const MAX_BUFFER: u64 = 24 << 30;

/// Runs one launch. On the virtual GPU it prints findings, counts and the estimated time on Pascal cards; on a real one,
/// its time.
///
/// Buffers begin at addresses that are multiples of 256. `out` buffers are undefined before the launch; bytes
/// that the kernel does not write come back as ff.
#[derive(clap::Args)]
pub(super) struct Args {
    /// PTX for sm_61 or older, from any compiler.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The kernel's name in the PTX.
    #[arg(long, value_name = "NAME")]
    kernel: String,

    /// Blocks.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = dimensions)]
    grid: [u32; 3],

    /// Threads of a block.
    #[arg(long, value_name = "X[,Y[,Z]]", value_parser = dimensions)]
    block: [u32; 3],

    /// Bytes of dynamic shared memory.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    shared: u32,

    /// An argument, in the kernel's order: in:FILE (raw bytes, uploaded), inout:FILE:OUTFILE, out:BYTES:OUTFILE, a
    /// number as i32:V, u32:V, i64:V, u64:V, f32:V or f64:V, or bytes:FILE (a structure that is passed by value).
    #[arg(long = "arg", value_name = "ARG")]
    arguments: Vec<Argument>,

    /// Where to run: virtual (an sm_61 GPU in software), cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "virtual")]
    device: On,

    /// Simulate this card and estimate only for it: mx330, gtx1050ti, gtx1060, gtx1070, gtx1080, gtx1080ti, p4 or p40.
    #[arg(long, value_name = "CARD", value_parser = card)]
    card: Option<&'static Card>,

    /// End with an error after so many seconds, whatever the kernel does.
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    time_limit: u64,

    #[command(flatten)]
    ptxas: ptxas::Choice,

    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq)]
enum On {
    Virtual,
    Cuda(u32),
}

impl std::str::FromStr for On {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match name {
            "virtual" => Ok(Self::Virtual),
            "cuda" => Ok(Self::Cuda(0)),
            _ => match name.strip_prefix("cuda:").map(str::parse) {
                Some(Ok(ordinal)) => Ok(Self::Cuda(ordinal)),
                _ => Err("use virtual, cuda or cuda:N"),
            },
        }
    }
}

fn card(name: &str) -> Result<&'static Card, String> {
    Card::by_name(name).ok_or_else(|| format!("use one of {}", Card::KNOWN.map(|card| card.id).join(", ")))
}

#[derive(Serialize)]
struct Json<'a> {
    kernel: &'a str,
    device: &'a str,
    findings: Vec<Found>,
    /// On the virtual GPU.
    launch: Option<Costs>,
    /// By line of the source, if the PTX holds lines; the most instructions first.
    lines: Vec<OfLine>,
    model: Option<[&'static str; 2]>,
    registers: Option<&'a str>,
    /// Measured on a real GPU: the first launch after loading.
    milliseconds: Option<f64>,
    /// The kernel's printed output on the virtual GPU; on a real GPU the driver prints it.
    printed: Option<&'a str>,
}

#[derive(Serialize)]
struct Found {
    kind: String,
    kernel: String,
    /// The line in the PTX; 0 if the launch did not begin.
    line: u32,
    block: [u32; 3],
    thread: [u32; 3],
    message: String,
    /// The places in the kernel's source, from the inside out; empty for PTX without lines.
    source: Vec<Place>,
}

/// A place in the source of a kernel.
#[derive(Serialize)]
struct Place {
    file: String,
    line: u32,
    column: u32,
}

impl From<&Finding> for Found {
    fn from(finding: &Finding) -> Self {
        let Finding { kind, kernel, line, block, thread, message, source } = finding.clone();
        let place = |SourceLine { file, line, column }| Place { file: file.to_string(), line, column };
        let source = source.into_iter().map(place).collect();
        Self { kind: format!("{kind:?}"), kernel, line, block, thread, message, source }
    }
}

/// A parameter's value; for a buffer, its bytes before the launch.
struct Input {
    argument: Argument,
    bytes: Vec<u8>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.card.is_some() && args.device != On::Virtual {
        return Err(Failure::Usage("--card is for `--device virtual`".into()));
    }
    end_after(args.time_limit);
    let file = args.file.display();
    let ptx = read_input_text(&args.file, MAX_PTX)
        .map_err(|error| Failure::Failed(format!("{file} can't be read: {error}")))?;
    let module = Module::parse(&ptx).map_err(|error| Failure::Failed(format!("{file}: {error}")))?;
    let kernel = module.kernel(&args.kernel).cloned().ok_or_else(|| {
        let names: Vec<_> = module.kernels().iter().map(|kernel| kernel.name.as_str()).collect();
        Failure::Failed(format!("{file} has no kernel {}; it has {}", args.kernel, names.join(", ")))
    })?;
    fit(&kernel, &args.arguments).map_err(|misfit| Failure::Usage(misfit.to_string()))?;
    let buffers = args.arguments.iter().filter_map(|argument| match argument {
        Argument::Buffer { from, to, .. } => Some((from.as_deref(), to.as_deref())),
        Argument::Bytes(from) => Some((Some(from.as_path()), None)),
        Argument::Scalar { .. } => None,
    });
    let (sources, targets): (Vec<_>, Vec<_>) = buffers.unzip();
    let sources = sources.into_iter().flatten().chain([args.file.as_path()]);
    let targets: Vec<_> = targets.into_iter().flatten().collect();
    files::check_apart(sources, targets.iter().copied().chain(args.output.file()))?;
    targets.iter().try_for_each(|target| files::check(target, args.output.may_replace()))?;
    let inputs = args.arguments.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let sizes = inputs.iter().map(|input| (&input.argument, input.bytes.len()));
    fit_files(&kernel, sizes).map_err(|misfit| Failure::Usage(misfit.to_string()))?;
    let report = args.output.report()?;
    let mut screen = args.output.screen();
    match args.device {
        On::Virtual => on_virtual(args, &ptx, module, &kernel, &inputs, &mut screen, report),
        On::Cuda(ordinal) => on_cuda(args, ordinal, &ptx, &inputs, &mut screen, report),
    }
}

/// Ends the process after some seconds. Outputs that were not complete then do not appear.
fn end_after(seconds: u64) {
    thread::spawn(move || {
        thread::sleep(Duration::from_secs(seconds));
        complain(&format!(
            "error: stopped after {seconds} s, before the kernel was done: an endless loop, or much work for a simulated GPU; \
             --time-limit SECONDS allows more"
        ));
        exit(1);
    });
}

fn on_virtual(
    args: &Args,
    ptx: &str,
    module: Module,
    kernel: &Kernel,
    inputs: &[Input],
    screen: &mut Screen,
    report: Option<Report>,
) -> Result<(), Failure> {
    let force = args.output.may_replace();
    let registers = Registers::count(&args.ptxas, ptx, &module, &[&kernel.name])?;
    let config = Config::from_env().map_err(Failure::Usage)?;
    let cards = args.card.map_or(Card::ALL.to_vec(), |card| vec![card]);
    let mut gpu = Gpu::new(Config { card: args.card.unwrap_or(config.card), traffic: true, ..config });
    let module = gpu.load(module).map_err(memory)?;
    let mut params = vec![0; kernel.param_bytes as usize];
    let mut addresses = Vec::new();
    for (parameter, input) in kernel.params.iter().zip(inputs) {
        let value = match input.argument {
            Argument::Scalar { bits, .. } => bits,
            Argument::Bytes(_) => {
                params[parameter.offset as usize..][..input.bytes.len()].copy_from_slice(&input.bytes);
                addresses.push(0);
                continue;
            }
            Argument::Buffer { .. } if input.bytes.is_empty() => 0,
            Argument::Buffer { ref from, .. } => {
                let address = gpu.alloc(input.bytes.len() as u64).map_err(memory)?;
                if from.is_some() {
                    gpu.write(address, &input.bytes).map_err(memory)?;
                }
                address
            }
        };
        addresses.push(value);
        let (offset, bytes) = (parameter.offset as usize, parameter.bytes as usize);
        params[offset..offset + bytes].copy_from_slice(&value.to_le_bytes()[..bytes]);
    }
    let launch = Launch { grid: args.grid, block: args.block, dynamic_shared: args.shared, params: &params };
    let launched = gpu.launch(&module, &kernel.name, launch);
    let printed = gpu.take_printed();
    for line in printable(&printed).lines() {
        screen.line(line)?;
    }
    let mut lines = Vec::new();
    let (launch, findings) = match launched {
        Ok(launched) => {
            lines = by_line([&launched]);
            (Some(Costs::new(&launched, &registers, &cards)), Vec::new())
        }
        Err(finding) => {
            for line in finding.to_string().lines() {
                screen.text(line, Style::Bad)?;
            }
            screen.line("no counts, and no output was written")?;
            (None, vec![Found::from(&finding)])
        }
    };
    let failed = launch.is_none();
    if let Some(costs) = &launch {
        for (input, address) in inputs.iter().zip(addresses) {
            write(&input.argument, input.bytes.len(), force, |bytes| {
                gpu.read(address, bytes).map_err(memory)
            })?;
        }
        costs.print(screen)?;
        print_lines(&lines, screen)?;
        screen.line("no findings")?;
        print_assumptions(&registers, screen)?;
    }
    if let Some(report) = report {
        let (model, registers) = (Some(MODEL), Some(registers.source.as_str()));
        let kernel = &kernel.name;
        let milliseconds = None;
        report.write(&Json {
            kernel,
            device: "virtual",
            findings,
            launch,
            lines,
            model,
            registers,
            milliseconds,
            printed: Some(&printed),
        })?;
    }
    if failed { Err(Failure::Wrong) } else { Ok(()) }
}

/// Costs of a line of the source, over all launches.
#[derive(Serialize)]
pub(super) struct OfLine {
    file: String,
    line: u32,
    /// As it is shown: relative to the working directory.
    #[serde(skip)]
    place: String,
    /// Its text, if the file can be read.
    text: Option<String>,
    warp_instructions: u64,
    /// Of all instructions that have a line.
    share: f64,
    /// 32-byte sectors of global memory.
    sectors: u64,
    bank_conflicts: u64,
}

/// The lines of some launches, the most instructions first.
pub(super) fn by_line<'a>(reports: impl IntoIterator<Item = &'a LaunchReport>) -> Vec<OfLine> {
    let mut sums: BTreeMap<&SourceLine, [u64; 3]> = BTreeMap::new();
    for LineCost { line, warp_instructions, sectors, bank_conflicts } in
        reports.into_iter().flat_map(|report| &report.lines)
    {
        let sum = sums.entry(line).or_default();
        sum.iter_mut().zip([warp_instructions, sectors, bank_conflicts]).for_each(|(sum, one)| *sum += one);
    }
    let total = sums.values().map(|sum| sum[0]).sum::<u64>().max(1) as f64;
    let mut lines: Vec<_> = sums
        .into_iter()
        .map(|(line, [warp_instructions, sectors, bank_conflicts])| OfLine {
            file: line.file.to_string(),
            line: line.line,
            place: line.to_string(),
            text: line.text(),
            warp_instructions,
            share: warp_instructions as f64 / total,
            sectors,
            bank_conflicts,
        })
        .collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.warp_instructions));
    lines
}

/// Lines that are shown; the report in JSON has all.
const MOST_LINES: usize = 12;

/// Prints the costliest lines, if there are any.
pub(super) fn print_lines(lines: &[OfLine], screen: &mut Screen) -> Result<(), Failure> {
    if lines.is_empty() {
        return Ok(());
    }
    let shown = &lines[..lines.len().min(MOST_LINES)];
    let width = shown.iter().map(|line| line.place.chars().count() + 2).max().unwrap_or(0);
    let table = screen.table(vec![
        Column::left("", width),
        Column::right("instr.", 8),
        Column::right("sectors", 8),
        Column::right("conflicts", 9).rank(1),
        Column::left("", 0).rank(2),
    ]);
    screen.line(&table.header("  source line"))?;
    for line in shown {
        let text = line.text.as_deref().unwrap_or_default();
        let cells = [
            format!("  {}", printable(&line.place)),
            percent(line.share),
            line.sectors.to_string(),
            line.bank_conflicts.to_string(),
            printable(text).into_owned(),
        ];
        screen.line(&table.row(&cells.map(|cell| (cell, Style::Plain))))?;
    }
    match lines.len() - shown.len() {
        0 => Ok(()),
        more => screen.line(&format!("  and {more} more lines")),
    }
}

fn on_cuda(
    args: &Args,
    ordinal: u32,
    ptx: &str,
    inputs: &[Input],
    screen: &mut Screen,
    report: Option<Report>,
) -> Result<(), Failure> {
    let force = args.output.may_replace();
    let device = CudaDevice::new(ordinal)
        .map_err(|error| Failure::Failed(format!("{error}; `--device virtual` needs no GPU")))?;
    let kernel = device.load_ptx(ptx)?.get_function(&args.kernel)?;
    let (mut values, mut buffers) = (Vec::new(), Vec::new());
    for input in inputs {
        let (value, buffer) = match input.argument {
            Argument::Scalar { bits, .. } => (bits, None),
            Argument::Bytes(_) => (0, None),
            Argument::Buffer { .. } => {
                let mut buffer = DeviceBuffer::uninitialized(&device, input.bytes.len())?;
                buffer.upload(0, &input.bytes)?;
                (buffer.address(), Some(buffer))
            }
        };
        values.push(value);
        buffers.push(buffer);
    }
    let place = |(input, value): (&Input, _)| match input.argument {
        Argument::Bytes(_) => input.bytes.as_ptr().cast_mut().cast(),
        _ => ptr::from_ref::<u64>(value).cast_mut().cast(),
    };
    let arguments: Vec<*mut c_void> = inputs.iter().zip(&values).map(place).collect();
    let ([gx, gy, gz], [bx, by, bz]) = (args.grid, args.block);
    let (begin, end) = (device.event()?, device.event()?);
    begin.record(device.stream())?;
    // SAFETY: `fit` has checked that there are as many arguments as parameters, each of 4 or 8 bytes, and every value has
    // 8; `fit_files` has checked that raw bytes have their parameters' sizes. Addresses are of buffers on this stream that
    // live until it is synchronised. A wrong kernel's accesses to device memory can't reach the host's.
    unsafe { device.stream().launch(&kernel, (gx, gy, gz), (bx, by, bz), args.shared, &arguments)? };
    end.record(device.stream())?;
    device.synchronize()?;
    let time = end.since(&begin)?;
    for (input, buffer) in inputs.iter().zip(&buffers) {
        if let Some(buffer) = buffer {
            write(&input.argument, input.bytes.len(), force, |bytes| Ok(buffer.download(0, bytes)?))?;
        }
    }
    let name = format!("{device:?}");
    let heading = screen.colours.paint(Style::Heading, &args.kernel);
    screen.line(&format!("{heading} on {name}: {} by device events, one launch", table::time(time)))?;
    screen.line("no findings and no counts, which only `--device virtual` gives")?;
    if let Some(report) = report {
        report.write(&Json {
            kernel: &args.kernel,
            device: &name,
            findings: Vec::new(),
            launch: None,
            lines: Vec::new(),
            model: None,
            registers: None,
            milliseconds: Some(time.as_secs_f64() * 1e3),
            printed: None,
        })?;
    }
    Ok(())
}

/// Reads the file of an argument, if it has one; an output's bytes are filled with a pattern.
fn read(argument: &Argument) -> Result<Input, Failure> {
    let bytes = match argument {
        Argument::Buffer { from: Some(from), .. } => read_input(from, MAX_BUFFER)
            .map_err(|error| Failure::Failed(format!("{} can't be read: {error}", from.display())))?,
        Argument::Buffer { from: None, bytes, .. } => poison(*bytes)?,
        Argument::Bytes(from) => read_input(from, MAX_BUFFER)
            .map_err(|error| Failure::Failed(format!("{} can't be read: {error}", from.display())))?,
        Argument::Scalar { .. } => Vec::new(),
    };
    Ok(Input { argument: argument.clone(), bytes })
}

fn poison(bytes: u64) -> Result<Vec<u8>, Failure> {
    let no_room = || Failure::Failed(format!("there is no memory for an output of {bytes} bytes"));
    let bytes = usize::try_from(bytes).map_err(|_| no_room())?;
    let mut poison = Vec::new();
    poison.try_reserve_exact(bytes).map_err(|_| no_room())?;
    poison.resize(bytes, POISON);
    Ok(poison)
}

/// Writes a buffer's bytes after the launch to its file, if it has one.
fn write(
    argument: &Argument,
    bytes: usize,
    force: bool,
    download: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Argument::Buffer { to: Some(to), .. } = argument else { return Ok(()) };
    let mut held = vec![0; bytes];
    if bytes > 0 {
        download(&mut held)?;
    }
    files::write(to, &held, force)
}

/// With correct addresses, only out of memory is possible.
fn memory(error: MemoryError) -> Failure {
    Failure::Failed(match error {
        MemoryError::OutOfMemory => "the card or this machine does not have that much memory".to_owned(),
        MemoryError::UnknownPointer | MemoryError::OutOfBounds => {
            format!("the virtual GPU's memory: {error:?}")
        }
    })
}
