//! Every driver function that the library calls × every kind of fault × first, middle and last call × when it shows, in
//! everything that the library does. Each cell must have the outcome that `fault_matrix/expected.txt` lists.
//!
//! Cells run in processes of their own (`worker.rs`), because a fault of the device is permanent. A summary is printed past the
//! harness. `FAULT_MATRIX_OUTCOMES=FILE` writes what was found, a line for each cell.

mod expected;
mod worker;

use crate::common::{extent, small_model};
use expected::Expected;
use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::iter;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The kinds of fault and a code of each.
const KINDS: [(&str, u32); 7] = [
    ("out of memory", 2),
    ("illegal address", 700),
    ("launch time-out", 702),
    ("launch failure", 719),
    ("not supported", 801),
    ("device lost", 46),
    ("unknown code", 12345),
];

/// When a fault shows, and its spelling in a rule.
const WHEN: [(&str, &str); 3] = [("now", ""), ("sync", "@sync"), ("sticky", "!sticky")];

/// The longest that a cell may take, so that a fault that makes the library wait for ever is detected.
const PATIENCE: Duration = Duration::from_secs(20);

/// One fault in one place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    pub phase: &'static str,
    pub function: String,
    pub call: u64,
    pub code: u32,
    pub when: &'static str,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = WHEN.iter().find(|(when, _)| *when == self.when).map_or("", |(_, suffix)| suffix);
        write!(f, "{} {}:{}={}{suffix}", self.phase, self.function, self.call, self.code)
    }
}

/// Runs in the processes that this test starts, and nowhere else.
#[test]
fn child_runs_cells() {
    if let Some(folder) = env::var_os(worker::VARIABLE) {
        worker::main(Path::new(&folder));
    }
}

#[test]
fn every_fault_has_its_outcome() {
    if env::var_os(worker::VARIABLE).is_some() {
        return;
    }
    let model = small_model::write(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/qwen3-vl/tiny")));
    let begin = Instant::now();
    let extent = Extent::get();
    let cells = cells(model.path(), extent);
    if extent == Extent::Each {
        extent::left_out("most cells of the fault matrix");
    }
    let least = if extent == Extent::Each { 40 } else { 2000 };
    assert!(cells.len() >= least, "{} cells", cells.len());
    let next = Mutex::new(cells.iter());
    let found = Mutex::new(BTreeMap::new());
    let work = || {
        let mut worker = None;
        loop {
            let cell = next.lock().unwrap().next();
            let Some(cell) = cell else { break };
            let ask = || ask(&mut worker, model.path(), &cell.to_string());
            let answers = iter::repeat_with(ask).take(3); // how often an event is asked for depends on time
            let mut reached = answers.skip_while(|answer| answer.starts_with(worker::NOT_REACHED));
            let answer = reached.next().unwrap_or_else(|| worker::NOT_REACHED.into());
            found.lock().unwrap().insert(cell, answer);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from).min(4);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    report(&found.into_inner().unwrap(), extent, begin.elapsed());
}

/// Compares with the table, prints the summary and fails if anything is not as the table says.
fn report(found: &BTreeMap<&Cell, String>, extent: Extent, elapsed: Duration) {
    if let Some(file) = env::var_os("FAULT_MATRIX_OUTCOMES") {
        let lines: String = found.iter().map(|(cell, answer)| format!("{cell}\t{answer}\n")).collect();
        fs::write(file, lines).unwrap();
    }
    let expected = Expected::read();
    let (mut counts, mut wrong, mut unreached) = (BTreeMap::new(), Vec::new(), 0);
    for (cell, answer) in found {
        let (outcome, detail) = answer.split_once('\t').unwrap_or((answer, ""));
        *counts.entry((cell.phase, outcome)).or_insert(0usize) += 1;
        match outcome {
            worker::NOT_REACHED => unreached += 1,
            _ if expected.allows(cell, outcome) => {}
            _ => wrong.push(format!("{cell}: {outcome}: {detail}")),
        }
    }
    let outcomes: BTreeSet<_> = counts.keys().map(|(_, outcome)| *outcome).collect();
    let heads: String = outcomes.iter().map(|outcome| format!(" {outcome:>17}")).collect();
    say(&format!("fault matrix: {} cells in {:.0} s", found.len(), elapsed.as_secs_f64()));
    say(&format!("{:13}{heads}", "phase"));
    for phase in worker::PHASES {
        let count = |outcome| counts.get(&(phase, outcome)).copied().unwrap_or(0);
        let row: String = outcomes.iter().map(|outcome| format!(" {:17}", count(outcome))).collect();
        say(&format!("{phase:13}{row}"));
    }
    assert!(wrong.is_empty(), "{} of {} cells:\n{}", wrong.len(), found.len(), wrong.join("\n"));
    assert!(unreached * 100 <= found.len(), "{unreached} cells were not reached");
    let unused = expected.unused();
    assert!(
        extent == Extent::Each || unused.is_empty(),
        "lines of expected.txt that no cell needs: {unused:#?}"
    );
}

/// Prints past the test harness, which shows nothing of tests that pass.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Which cells run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Extent {
    /// Each function fails once; phase, kind, call and when it shows take turns.
    Each,
    /// All kinds: those that show at once in the first, middle and last call, others in the middle one.
    Most,
    /// All kinds in these calls, whenever they show.
    All,
}

impl Extent {
    fn get() -> Self {
        match (env::var_os("FAULT_MATRIX_ALL").is_some(), extent::all()) {
            (true, _) => Self::All,
            (false, true) => Self::Most,
            (false, false) => Self::Each,
        }
    }
}

/// Every function that a phase calls, with the faults of this extent.
fn cells(model: &Path, extent: Extent) -> Vec<Cell> {
    let mut cells = BTreeSet::new();
    let mut worker = None;
    for phase in worker::PHASES {
        // how often an event is asked for depends on time: a number that is reached again
        let counts = [0; 3].map(|_| ask(&mut worker, model, phase));
        let counts = counts.map(|counts| parse_counts(&counts));
        for function in counts[0].keys() {
            let Some(calls) = counts.iter().map(|counts| counts.get(function).copied()).min().flatten()
            else {
                continue;
            };
            let middle = calls.div_ceil(2);
            if extent == Extent::Each {
                let turn = cells.len();
                let call = [1, middle, calls][turn % 3];
                let ((_, code), (when, _)) = (KINDS[turn % KINDS.len()], WHEN[turn / 2 % WHEN.len()]);
                cells.insert(Cell { phase, function: function.clone(), call, code, when });
                continue;
            }
            for (call, (when, _)) in
                [1, middle, calls].into_iter().flat_map(|call| WHEN.map(|when| (call, when)))
            {
                if when == "now" || call == middle || extent == Extent::All {
                    let cell = |(_, code)| Cell { phase, function: function.clone(), call, code, when };
                    cells.extend(KINDS.map(cell));
                }
            }
        }
    }
    if extent == Extent::Each { once_each(cells) } else { cells.into_iter().collect() }
}

/// Of each function's cells one; the phases take turns.
fn once_each(cells: BTreeSet<Cell>) -> Vec<Cell> {
    let mut of_functions = BTreeMap::<_, Vec<Cell>>::new();
    for cell in cells {
        of_functions.entry(cell.function.clone()).or_default().push(cell);
    }
    of_functions
        .into_values()
        .enumerate()
        .filter_map(|(turn, mut cells)| {
            let at = turn % cells.len().max(1);
            (at < cells.len()).then(|| cells.swap_remove(at))
        })
        .collect()
}

fn parse_counts(line: &str) -> BTreeMap<String, u64> {
    let pair = |pair: &str| {
        let (name, count) = pair.split_once('=').expect("NAME=COUNT");
        (name.to_owned(), count.parse().expect("a count"))
    };
    line.split_whitespace().map(pair).collect()
}

struct Worker {
    process: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Worker {
    fn start(model: &Path) -> Self {
        let mut process = Command::new(env::current_exe().expect("the path of this test"))
            .args(["--exact", "fault_matrix::child_runs_cells", "--nocapture"])
            .env(worker::VARIABLE, model)
            .env("RAYON_NUM_THREADS", "1")
            .env("PASCALINE_VIRTUAL_THREADS", "1")
            .env_remove("PASCALINE_FAULTS")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this test, started again");
        let (input, output) = (process.stdin.take().expect("piped"), process.stdout.take().expect("piped"));
        let (sender, answers) = channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // the harness prints the test's name in front of its first line
                if let Some((_, answer)) = line.split_once(worker::ANSWER)
                    && sender.send(answer.to_owned()).is_err()
                {
                    break;
                }
            }
        });
        Self { process, input, answers }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The answer of the worker, or of a new one if there is none or it has ended.
fn ask(worker: &mut Option<Worker>, model: &Path, line: &str) -> String {
    if line.starts_with("start") {
        *worker = None; // nothing may have been opened before
    }
    for _ in 0..2 {
        let fresh = worker.is_none();
        let at_hand = worker.get_or_insert_with(|| Worker::start(model));
        let asked = writeln!(at_hand.input, "{line}").and_then(|()| at_hand.input.flush());
        let answer = asked.is_ok().then(|| at_hand.answers.recv_timeout(PATIENCE));
        match answer {
            Some(Ok(answer)) => {
                if line.starts_with("start") || (line.contains(' ') && !worker::is_whole(&answer)) {
                    *worker = None;
                }
                return answer;
            }
            Some(Err(RecvTimeoutError::Timeout)) => {
                *worker = None;
                return "hangs".into();
            }
            Some(Err(RecvTimeoutError::Disconnected)) | None => {
                *worker = None;
                if fresh {
                    return "ends the process".into();
                }
            }
        }
    }
    "ends the process".into()
}
