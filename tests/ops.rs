//! Every case of the table, on the CPU and on a CUDA device.
//!
//! Without a GPU the CUDA half says that it was skipped; `REQUIRE_GPU=1` makes that a failure.

use pascaline::testing::{self, Case, Purpose};
use pascaline::{Device, Result};
use std::env;
use std::io::{self, Write};

#[test]
fn cpu() {
    run(&Device::Cpu);
}

#[test]
fn cuda() {
    match cuda_device() {
        Ok(device) => run(&device),
        Err(error) if env::var_os("REQUIRE_GPU").is_some_and(|value| value != "0") => {
            panic!("REQUIRE_GPU is set and there is no GPU: {error}")
        }
        Err(error) => say(&format!("SKIPPED: the cases on a CUDA device ({error})")),
    }
}

fn cuda_device() -> Result<Device> {
    Device::cuda(0)
}

/// Checks all test cases and reports every failure, not only the first.
fn run(device: &Device) {
    let cases: Vec<Box<dyn Case>> = testing::cases();
    let tests: Vec<_> = cases.iter().filter(|case| case.purpose() == Purpose::Test).collect();
    let mut failures = Vec::new();
    for case in &tests {
        match testing::check(case.as_ref(), device) {
            Ok(outcome) if outcome.passed() => {}
            Ok(outcome) => failures.push(format!("{}: {outcome:?}", case.id())),
            Err(error) => failures.push(format!("{}: {error}", case.id())),
        }
    }
    say(&format!("{device}: {} of {} cases passed", tests.len() - failures.len(), tests.len()));
    assert!(failures.is_empty(), "{} cases failed:\n{}", failures.len(), failures.join("\n"));
}

/// Prints past the test harness, which shows nothing of tests that pass.
fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

#[test]
fn ids_are_unique() {
    let mut ids: Vec<_> = testing::cases().iter().map(|case| case.id()).collect();
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count);
}
