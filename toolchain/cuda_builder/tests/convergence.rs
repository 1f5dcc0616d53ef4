//! The convergence trap, provoked: a kernel whose two shuffles stand behind divergent branches must come out with two.
//! With the shuffles as plain inline PTX it comes out with four.
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
    let shuffles: Vec<_> =
        entries.iter().map(|entry| (entry.name.as_str(), entry.count("shfl.sync"))).collect();
    assert_eq!(shuffles, [("divergent_sum", 2)], "LLVM has copied a shuffle into the arms of a branch");
    println!("test result: ok. 1 passed; 0 failed; two shuffles stay two");
}
