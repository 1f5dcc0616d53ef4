//! Every case of the table, on the CPU and on a CUDA device: a real one, or else the virtual GPU.

use crate::common::{self, extent, say};
use pascaline::Device;
use pascaline_testing::{self as testing, Case, Purpose};
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn cpu() {
    run(&Device::Cpu);
}

#[test]
fn cuda() {
    run(&common::cuda_device());
}

/// The op with its types, and the shape: the two parts of a case's id.
fn parts(id: &str) -> (&str, &str) {
    id.split_once('/').expect("OP_TYPES/SHAPE")
}

/// Of the cases that differ in their types alone one each, the types in turn, and of all types at least one.
fn each_shape_once(cases: &[&dyn Case]) -> BTreeSet<String> {
    let (mut shapes, mut types) = (BTreeMap::<_, Vec<String>>::new(), BTreeMap::new());
    for case in cases {
        let id = case.id();
        let (op, shape) = parts(&id);
        shapes.entry((case.op(), shape.to_owned())).or_default().push(id.clone());
        types.entry(op.to_owned()).or_insert(id);
    }
    let in_turn = shapes.into_values().enumerate().map(|(turn, ids)| ids[turn % ids.len()].clone());
    let mut chosen: BTreeSet<_> = in_turn.collect();
    for id in &chosen {
        types.remove(parts(id).0);
    }
    chosen.extend(types.into_values());
    chosen
}

/// The floating-point operations of the cases that are as large as they are for a limit of size or for many tiles: a second or more on the
/// virtual GPU.
const LARGE: f64 = 3e8;

/// Checks the test cases and reports every failure, not only the first.
fn run(device: &Device) {
    let cases: Vec<Box<dyn Case>> = testing::cases();
    let tests = cases.iter().map(AsRef::as_ref).filter(|case| case.purpose() == Purpose::Test);
    let mut tests: Vec<&dyn Case> = tests.collect();
    if !extent::all() {
        let all = tests.len();
        tests.retain(|case| case.flops() < LARGE);
        let chosen = each_shape_once(&tests);
        tests.retain(|case| chosen.contains(&case.id()));
        extent::left_out(&format!("{} of {all} cases of ops on {device}", all - tests.len()));
    }
    let mut failures = Vec::new();
    for case in &tests {
        match testing::check(*case, device) {
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
