//! The convergence trap, provoked: shuffles between two divergent branches must appear in the PTX as often as in the source.
//!
//! If the builder does not switch off rustc's jump threading, the single shuffle and the butterflies appear twice; if it does
//! not switch off LLVM's, the butterflies do.

use crate::extent;
use cuda_builder::{CudaBuilder, CudaBuilderError, OptLevel, ptx};
use std::path::Path;

#[test]
fn shuffles_are_not_copied_into_branches() {
    let crate_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convergence");
    let builder = CudaBuilder::new(crate_path).out_dir(crate::FOLDER);
    let levels = [OptLevel::O3, OptLevel::O1, OptLevel::O2, OptLevel::Size, OptLevel::MinSize];
    for &level in extent::first_of(1, &levels, "levels of optimisation at which shuffles are counted") {
        let path = match builder.clone().opt_level(level).build() {
            Ok(path) => path,
            Err(error @ (CudaBuilderError::NoToolchain(_) | CudaBuilderError::Unavailable(_))) => {
                return extent::skipped(&format!("the convergence of shuffles ({error})"));
            }
            Err(error) => panic!("{error}"),
        };
        check(&std::fs::read_to_string(path).expect("just written"), level);
    }
}

/// Counts the shuffles of each kernel.
fn check(text: &str, level: OptLevel) {
    let entries = ptx::entries(text).expect("just checked");
    let shuffles = |name: &str| {
        let entry = entries.iter().find(|entry| entry.name == name);
        entry.unwrap_or_else(|| panic!("no kernel {name}")).count("shfl.sync")
    };
    let written = [
        ("divergent_shuffle", 1),
        ("divergent_shuffles", 2),
        ("divergent_shuffle_of_64", 2),
        ("divergent_shuffle_of_128", 4),
        ("divergent_sum", 5),
        ("divergent_sum_of_lanes", 5),
        ("divergent_max_or_nan", 5),
        ("divergent_argmax", 10),
    ];
    for (name, count) in written {
        assert_eq!(
            shuffles(name),
            count,
            "{level:?}: a shuffle of {name} was copied into the arms of a branch"
        );
    }
}
