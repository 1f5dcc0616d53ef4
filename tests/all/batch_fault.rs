//! A device fault ends all requests with the error, and no new ones are taken. In a process of its own, because a fault is
//! permanent.

use crate::common::process::in_own_process;
use pascaline::{Device, Error};
use pascaline_driver::faults;
use qwen3_vl::batch::{Batch, BatchOptions, Event};
use qwen3_vl::generate::user_turn;
use qwen3_vl::{Options, Qwen3Vl};
use std::path::Path;

#[test]
fn a_fault_ends_all_requests() {
    in_own_process!();
    let device = Device::virtual_gpu().unwrap();
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny");
    let model = Qwen3Vl::load(tiny, &device).unwrap();
    let mut batch =
        Batch::new(&model, BatchOptions { max_sequences: 2, ..BatchOptions::with_room(500) }).unwrap();
    let prompt = |text: &str| model.processor.prepare(&[user_turn(&[], text)], &[]).unwrap();
    let options = Options { max_new_tokens: 50, stop_at_eos: false, ..Options::default() };
    let mut ids: Vec<_> =
        ["One?", "Two?", "Three?"].iter().map(|text| batch.add(prompt(text), &options).unwrap()).collect();
    for _ in 0..4 {
        assert!(batch.step().iter().all(|event| matches!(event, Event::Token { .. })));
    }
    assert_eq!((batch.metrics().running, batch.metrics().waiting), (2, 1));
    faults::script("cuGraphLaunch:1=700").unwrap();
    let mut failed = Vec::new();
    for event in batch.step() {
        match event {
            Event::Failed { id, error: Error::DeviceLost { code: 700, .. } } => failed.push(id),
            other => panic!("{other:?}"),
        }
    }
    faults::clear();
    ids.sort();
    failed.sort();
    assert_eq!(failed, ids);
    assert!(batch.is_idle() && batch.step().is_empty());
    assert!(matches!(batch.fault(), Some(Error::DeviceLost { .. })));
    assert!(matches!(batch.add(prompt("Four?"), &options), Err(Error::DeviceLost { .. })));
    assert_eq!(batch.metrics().pages_used, 0);
}
