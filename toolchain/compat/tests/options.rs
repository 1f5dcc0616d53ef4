//! PTX that was compiled with other options than the default ones, on the virtual GPU: with lines of the source, smaller, with
//! contracted products and without subnormals.
//!
//! A program of its own and not a `#[test]`, because it sets a variable of its environment, as cargo does for build scripts.

mod common;

use cuda_builder::{DebugInfo, OptLevel, ptx};
use cust::prelude::*;
use pascaline_driver as driver;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let builder = common::builder();
    let Some(plain) = common::ptx(builder.clone(), "options of cuda_builder")? else { return Ok(()) };
    let other =
        builder.debug(DebugInfo::LineTables).opt_level(OptLevel::Size).fma_contraction(true).ftz(true);
    let other = std::fs::read_to_string(other.build()?)?;
    assert!(other.contains("\t.loc\t") && other.contains("\tadd.ftz.f32"));
    assert_eq!(ptx::target(&other)?, "sm_61");
    assert!(!other.contains(", debug"), "ptxas would not optimise");
    // each kernel's own text is complete, with the names of the files
    let (_, module) = &ptx::modules(&other)?[0];
    assert!(module.contains(".file"));

    driver::select(driver::Backend::Virtual).expect("nothing has asked for a device yet");
    let _context = cust::quick_init()?;
    let stream = Stream::new(StreamFlags::NON_BLOCKING, None)?;
    let subnormal = 1e-40f32;
    assert_eq!(add(&plain, &stream, [1.5, subnormal])?, [3.0, 2.0 * subnormal]);
    for text in [&other, module] {
        assert_eq!(add(text, &stream, [1.5, subnormal])?, [3.0, 0.0]);
    }
    println!("test result: ok. 1 passed; 0 failed");
    Ok(())
}

/// Twice each value, by the kernel `add`.
fn add(text: &str, stream: &Stream, values: [f32; 2]) -> Result<[f32; 2]> {
    let module = Module::from_ptx(text, &[])?;
    let (a, sum) = (DeviceBuffer::from_slice(&values)?, DeviceBuffer::from_slice(&[-1.0f32; 2])?);
    // SAFETY: `add` takes two slices, each a pointer and a length, and a pointer to as many elements.
    unsafe {
        launch!(module.add<<<1, 32, 0, stream>>>(
            a.as_device_ptr(), a.len(), a.as_device_ptr(), a.len(), sum.as_device_ptr()
        ))?;
    }
    stream.synchronize()?;
    let sum = sum.as_host_vec()?;
    Ok([sum[0], sum[1]])
}
