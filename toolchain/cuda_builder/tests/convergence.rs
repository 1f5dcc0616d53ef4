//! The convergence trap, provoked: shuffles after a divergent branch must come out as often as they are written. As inline
//! PTX without an anchor before it they come out twice, which shows that the test can fail.
//!
//! A program of its own and not a `#[test]`, because it sets a variable of its environment, as cargo does for build scripts.

use cuda_builder::{CudaBuilder, CudaBuilderError, ptx};
use std::path::Path;

fn main() {
    let crate_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/convergence");
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("OUT_DIR", env!("CARGO_TARGET_TMPDIR")) };
    let path = match CudaBuilder::new(crate_path).build() {
        Ok(path) => path,
        Err(error @ (CudaBuilderError::NoToolchain(_) | CudaBuilderError::Unavailable(_))) => {
            eprintln!("SKIPPED: the convergence of shuffles ({error})");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    let text = std::fs::read_to_string(path).expect("just written");
    let entries = ptx::entries(&text).expect("just checked");
    let shuffles = |name: &str| {
        let entry = entries.iter().find(|entry| entry.name == name);
        entry.unwrap_or_else(|| panic!("no kernel {name}")).count("shfl.sync")
    };
    let written = [
        ("divergent_shuffles", 2),
        ("divergent_sum", 5),
        ("divergent_sum_of_lanes", 5),
        ("divergent_max_or_nan", 5),
        ("divergent_argmax", 10),
    ];
    for (name, count) in written {
        assert_eq!(shuffles(name), count, "LLVM has copied a shuffle of {name} into the arms of a branch");
    }
    assert_eq!(
        shuffles("unanchored_sum"),
        2 * 5,
        "LLVM no longer copies inline PTX: are the anchors still needed?"
    );
    println!("test result: ok. 1 passed; 0 failed; shuffles are not copied");
}
