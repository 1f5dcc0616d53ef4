//! Each target returns for every input of its corpus, within the limits on time and memory.

use pascaline_fuzz::ops::{difference, random};
use pascaline_fuzz::{MEMORY, SECONDS, TARGETS};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "../../tests/all/common/extent.rs"]
mod extent;

#[test]
fn every_input_returns_within_the_limits() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (name, run) in TARGETS {
        let files = fs::read_dir(corpus.join(name)).unwrap_or_else(|error| panic!("corpus/{name}: {error}"));
        let mut inputs = 0;
        for file in files.map(|file| file.unwrap().path()) {
            let (input, begin) = (fs::read(&file).unwrap(), Instant::now());
            run(&input);
            let time = begin.elapsed();
            assert!(time < Duration::from_secs(SECONDS), "{}: {time:?}", file.display());
            inputs += 1;
        }
        assert!(inputs > 0, "corpus/{name} has no seeds");
    }
    // The process's peak memory, which only Linux reports here.
    if let Ok(status) = fs::read_to_string("/proc/self/status") {
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the peak");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        assert!(kib << 10 < MEMORY, "{kib} KiB");
    }
}

/// The corpus is small enough to be committed.
#[test]
fn no_input_is_large() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut bytes = 0;
    for (name, _) in TARGETS {
        for file in fs::read_dir(corpus.join(name)).unwrap() {
            bytes += file.unwrap().metadata().unwrap().len();
        }
    }
    assert!(bytes < 4 << 20, "{bytes} bytes");
}

/// Calls of ops that nobody chose. `PASCALINE_TESTS=all` makes more of them, and `examples/differential.rs` as many as are asked for.
#[test]
fn random_calls_of_ops_agree() {
    for number in 0..if extent::all() { 60_000 } else { 3_000 } {
        if let Some(text) = difference(&random(number)) {
            panic!("call {number}: {text}");
        }
    }
}
