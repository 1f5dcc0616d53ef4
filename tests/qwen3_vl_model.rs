//! The model itself against the reference: embeddings, deepstack features, hidden states, logits, tokens.

use pascaline::qwen3_vl::validate::{Limits, check_run};
use pascaline::qwen3_vl::{LoadOptions, Qwen3Vl, cases};
use pascaline::{DType, Device};
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3-vl/tiny")
}

#[test]
fn tiny_on_the_cpu() {
    let model = Qwen3Vl::load_with(tiny(), &Device::Cpu, LoadOptions { dtype: DType::F32 }, |_| {}).unwrap();
    for run in cases::load(&tiny()).unwrap().unwrap() {
        let report = check_run(&model, &run).unwrap();
        println!("{report:?}");
        assert!(report.passed(&Limits::F32, true), "{report:#?}");
    }
}
