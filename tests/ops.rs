//! Every case of the table, on the CPU and on a CUDA device: a real one, or else the virtual GPU.

mod common;

use common::say;
use pascaline::Device;
use pascaline_testing::{self as testing, Case, Purpose};

#[test]
fn cpu() {
    run(&Device::Cpu);
}

#[test]
fn cuda() {
    run(&common::cuda_device());
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

#[test]
fn ids_are_unique() {
    let mut ids: Vec<_> = testing::cases().iter().map(|case| case.id()).collect();
    ids.sort();
    let twice: Vec<_> = ids.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}
