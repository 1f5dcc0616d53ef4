//! `pascaline virtual`: runs any program of the CUDA driver API on the virtual GPU, and reports what it found there.

// elsewhere the library does not exist
#![cfg_attr(not(all(target_os = "linux", target_arch = "x86_64")), allow(dead_code, unused_imports))]

use super::failure::Failure;
use super::output::complain;
use super::printable::printable;
use pascaline_virtual_gpu::{Arch, Card};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, exit};

/// The library's file, as cargo builds it and as it is installed beside the program.
const LIBRARY: &str = "libpascaline_virtual_driver.so";
/// The names under which programs ask for the driver.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Runs a program with the virtual GPU in place of the CUDA driver, on a machine without a GPU.
///
/// The program finds libcuda.so.1 of the virtual GPU on its library path. Its kernels must be PTX that the architecture can run. Races, reads
/// of memory never written, accesses out of bounds and other findings are printed as they happen and again at the end, with the
/// functions that were refused and the estimated time of each kernel.
///
/// Exit status: the program's own, 128 and the signal's number if a signal ended it, or 1 if it succeeded and there was a finding.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The card to simulate: mx330, gtx1050ti, gtx1060, gtx1070, gtx1080, gtx1080ti, p4 or p40 of sm_61, v100 of sm_70, t4 of sm_75.
    /// Without it that of the architecture: gtx1080, v100 or t4.
    #[arg(long, value_name = "CARD", value_parser = card)]
    card: Option<&'static Card>,

    /// The architecture: sm_61, sm_70 or sm_75. Without it the card's, or sm_61. Times are estimated with Pascal's model on all.
    #[arg(long, value_name = "ARCH", value_parser = arch)]
    arch: Option<Arch>,

    /// How many such cards.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    devices: u8,

    /// The checks that end a kernel: all, none, or some of uninitialized (or uninit),races,convergence; bounds are always checked.
    #[arg(long, visible_alias = "check", value_name = "CHECKS")]
    checks: Option<String>,

    /// The form of the report.
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Text)]
    report: Form,

    /// Write the report to FILE instead of stderr.
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,

    /// The program and its arguments.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Form {
    /// For people.
    Text,
    /// One JSON object.
    Json,
    /// SARIF 2.1.0, for code scanning.
    Sarif,
}

fn card(name: &str) -> Result<&'static Card, String> {
    let all = || Card::KNOWN.into_iter().chain(Card::NEWER).map(|card| card.id).collect::<Vec<_>>();
    Card::of_any_arch(name).ok_or_else(|| format!("use one of {}", all().join(", ")))
}

fn arch(name: &str) -> Result<Arch, String> {
    Arch::by_name(name).ok_or_else(|| format!("use one of {}", Arch::ALL.map(Arch::name).join(", ")))
}

/// The card that is simulated.
fn chosen(args: &Args) -> Result<&'static Card, Failure> {
    match (args.card, args.arch) {
        (Some(card), Some(arch)) if card.arch != arch => Err(Failure::Usage(format!(
            "--arch {}, and the card {} is {}",
            arch.name(),
            card.id,
            card.arch.name()
        ))),
        (Some(card), _) => Ok(card),
        (None, arch) => Ok(arch.unwrap_or(Arch::Sm61).card()),
    }
}

/// A line of a process's record, as the library writes it.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Loaded,
    Finding(Finding),
    Refused(String),
    Launches(Vec<Launches>),
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Finding {
    kind: String,
    kernel: String,
    /// The line in the PTX; 0 if the launch did not begin.
    line: u32,
    block: [u32; 3],
    thread: [u32; 3],
    message: String,
    /// The source's file and line, where the PTX has them.
    place: Option<(String, u32)>,
    /// All of it, as a sentence.
    text: String,
}

/// The launches of a kernel on a card.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Launches {
    card: String,
    kernel: String,
    launches: u64,
    /// Estimated, of all together.
    seconds: f64,
    /// The bound of the longest.
    bound: String,
}

/// What all processes of the program report.
#[derive(Debug, Default, Serialize)]
struct Summary {
    /// How many processes have loaded the driver.
    processes: usize,
    findings: Vec<Finding>,
    refused: BTreeSet<String>,
    /// The longest first.
    launches: Vec<Launches>,
}

impl Summary {
    /// Reads the records in a folder.
    fn read(folder: &Path) -> io::Result<Self> {
        let mut files = fs::read_dir(folder)?.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?;
        files.sort();
        let mut summary = Self { processes: files.len(), ..Self::default() };
        let mut kernels = BTreeMap::new();
        for file in files {
            let text = fs::read_to_string(file)?;
            let mut last = Vec::new();
            // a process that was killed may have left half a line
            for line in text.lines().filter_map(|line| serde_json::from_str(line).ok()) {
                match line {
                    Line::Loaded => {}
                    Line::Finding(finding) => summary.findings.push(finding),
                    Line::Refused(what) => drop(summary.refused.insert(what)),
                    Line::Launches(launches) => last = launches,
                }
            }
            for row in last {
                let key = (row.card.clone(), row.kernel.clone());
                let sum = kernels.entry(key).or_insert(Launches { launches: 0, seconds: 0.0, ..row.clone() });
                sum.launches += row.launches;
                sum.seconds += row.seconds;
            }
        }
        summary.launches = kernels.into_values().collect();
        summary.launches.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Ok(summary)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |line: &str| {
            let _ = writeln!(text, "virtual GPU: {line}"); // a String takes any
        };
        if self.processes == 0 {
            line("the program has not loaded libcuda.so.1");
            return text;
        }
        for Launches { card, kernel, launches, seconds, bound } in &self.launches {
            let time = super::table::time(std::time::Duration::from_secs_f64(*seconds));
            let times = if *launches == 1 { "launch" } else { "launches" };
            let model =
                if Card::NEWER.iter().any(|newer| newer.name == card) { " with Pascal's model" } else { "" };
            line(&format!(
                "{time} estimated{model} on {card}, {launches} {times}, bound by {bound}: {kernel}"
            ));
        }
        for what in &self.refused {
            line(&format!("refused: {what}"));
        }
        for finding in &self.findings {
            line(&format!("finding: {}", finding.text));
        }
        line(&match self.findings.len() {
            0 => "no findings".to_owned(),
            1 => "1 finding".to_owned(),
            n => format!("{n} findings"),
        });
        text
    }

    fn json(&self, status: ExitStatus) -> String {
        #[derive(Serialize)]
        struct Json<'a> {
            /// The program's; none if a signal ended it.
            exit_status: Option<i32>,
            #[serde(flatten)]
            summary: &'a Summary,
        }
        let json = Json { exit_status: status.code(), summary: self };
        serde_json::to_string_pretty(&json).unwrap_or_default() + "\n"
    }

    /// SARIF 2.1.0 (OASIS). A result's place is its kernel, and the source's line where the PTX has it.
    fn sarif(&self) -> String {
        let kinds: BTreeSet<&str> = self.findings.iter().map(|finding| finding.kind.as_str()).collect();
        let rules: Vec<_> = kinds.iter().map(|kind| serde_json::json!({ "id": kind })).collect();
        let result = |finding: &Finding| {
            let mut location =
                serde_json::json!({ "logicalLocations": [{ "name": finding.kernel, "kind": "function" }] });
            if let Some((file, line)) = &finding.place {
                location["physicalLocation"] = serde_json::json!({
                    "artifactLocation": { "uri": file },
                    "region": { "startLine": line },
                });
            }
            serde_json::json!({
                "ruleId": finding.kind,
                "level": "error",
                "message": { "text": finding.text },
                "locations": [location],
            })
        };
        let sarif = serde_json::json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": { "driver": { "name": "pascaline virtual", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
                "results": self.findings.iter().map(result).collect::<Vec<_>>(),
            }],
        });
        serde_json::to_string_pretty(&sarif).unwrap_or_default() + "\n"
    }
}

/// Finds the library: where the environment says, beside the program, above it (cargo's tests), or in the lib folder of where it
/// is installed.
fn library() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os("PASCALINE_VIRTUAL_DRIVER") {
        let path = PathBuf::from(path);
        return if path.is_file() {
            Ok(path)
        } else {
            Err(Failure::Failed(format!("PASCALINE_VIRTUAL_DRIVER={} is no file", path.display())))
        };
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("the program's own folder is unknown: {error}")))?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let places = [folder.join(LIBRARY), folder.join("..").join(LIBRARY), folder.join("../lib").join(LIBRARY)];
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        Failure::Failed(format!(
            "{LIBRARY} is not beside this program: build it with `cargo build -p pascaline-virtual-driver`, or name the file in \
             PASCALINE_VIRTUAL_DRIVER"
        ))
    })
}

/// The library path of the program: the folder first, then what it was.
fn library_path(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(before) = std::env::var_os("LD_LIBRARY_PATH").filter(|before| !before.is_empty()) {
        path.push(":");
        path.push(before);
    }
    path
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub(super) fn run(_: &Args) -> Result<(), Failure> {
    Err(Failure::Failed("the virtual GPU's driver library is for Linux on x86-64".into()))
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let card = chosen(args)?;
    let library = library()?.canonicalize()?;
    let folder =
        tempfile::tempdir().map_err(|error| Failure::Failed(format!("no temporary folder: {error}")))?;
    let (libraries, records) = (folder.path().join("lib"), folder.path().join("records"));
    fs::create_dir(&libraries)?;
    fs::create_dir(&records)?;
    for name in NAMES {
        std::os::unix::fs::symlink(&library, libraries.join(name))?;
    }
    let mut command = Command::new(&args.command[0]); // clap asks for one at least
    command.args(&args.command[1..]);
    command.env("LD_LIBRARY_PATH", library_path(&libraries)).env("PASCALINE_VIRTUAL_REPORT", &records);
    command.env_remove("PASCALINE_VIRTUAL_CARD").env("PASCALINE_VIRTUAL_ARCH", card.arch.name());
    let cards = vec![card.id; args.devices.into()].join(",");
    command.env("PASCALINE_VIRTUAL_DEVICES", cards);
    if let Some(checks) = &args.checks {
        command.env("PASCALINE_VIRTUAL_CHECKS", checks);
    }
    let status = wait(command, &args.command[0])?;
    let summary = Summary::read(&records)
        .map_err(|error| Failure::Failed(format!("the records of the program can't be read: {error}")))?;
    let text = match args.report {
        Form::Text => summary.text(),
        Form::Json => summary.json(status),
        Form::Sarif => summary.sarif(),
    };
    match &args.to {
        Some(file) => fs::write(file, text)
            .map_err(|error| Failure::Failed(format!("{} can't be written: {error}", file.display())))?,
        None => text.lines().for_each(|line| complain(&printable(line))),
    }
    drop(folder); // `exit` drops nothing
    match exit_status(status) {
        0 if summary.findings.is_empty() => Ok(()),
        0 => Err(Failure::Wrong),
        code => exit(code),
    }
}

/// The status that a shell gives.
#[cfg(unix)]
fn exit_status(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Runs the program to its end. Ctrl-C reaches it from the terminal; other requests to stop are passed on, so that it is still
/// reported on.
#[cfg(unix)]
fn wait(mut command: Command, name: &OsString) -> Result<ExitStatus, Failure> {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    let flags = signals.map(|_| Arc::new(AtomicBool::new(false)));
    for (signal, flag) in signals.iter().zip(&flags) {
        signal_hook::flag::register(*signal as i32, Arc::clone(flag))?;
    }
    let mut child = command.spawn().map_err(|error| {
        Failure::Failed(format!("{} can't be started: {error}", PathBuf::from(name).display()))
    })?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        for (signal, flag) in signals.iter().zip(&flags).skip(1) {
            if flag.swap(false, Ordering::Relaxed) {
                let _ = kill(Pid::from_raw(child.id() as i32), *signal); // it has just ended
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}
