//! PTX that was compiled with other options than the default ones, on the virtual GPU: with lines of the source, with contracted
//! products and without subnormals.

use crate::common::{FLUSHED, PLAIN, Result, load};
use cuda_builder::ptx;
use cust::prelude::*;

const SUBNORMAL: f32 = 1e-40;

#[test]
fn lines_are_in_the_text_which_stays_optimised() -> Result<()> {
    let Some(text) = FLUSHED.text() else { return Ok(()) };
    assert!(text.contains("\t.loc\t") && text.contains("\tadd.ftz.f32"));
    assert_eq!(ptx::target(text)?, "sm_61");
    assert!(!text.contains(", debug"), "ptxas would not optimise");
    Ok(())
}

#[test]
fn subnormals_stay_if_nothing_is_asked_for() -> Result<()> {
    let Some(text) = PLAIN.text() else { return Ok(()) };
    assert_eq!(add(text, [1.5, SUBNORMAL])?, [3.0, 2.0 * SUBNORMAL]);
    Ok(())
}

#[test]
fn subnormals_are_zeros_with_the_option() -> Result<()> {
    let Some(text) = FLUSHED.text() else { return Ok(()) };
    assert_eq!(add(text, [1.5, SUBNORMAL])?, [3.0, 0.0]);
    Ok(())
}

/// Each kernel's own text is complete, with the names of the files.
#[test]
fn a_module_with_lines_loads_alone() -> Result<()> {
    let Some(text) = FLUSHED.text() else { return Ok(()) };
    let (_, module) = &ptx::modules(text)?[0];
    assert!(module.contains(".file"));
    assert_eq!(add(module, [1.5, SUBNORMAL])?, [3.0, 0.0]);
    Ok(())
}

/// Twice each value, by the kernel `add`.
fn add(text: &str, values: [f32; 2]) -> Result<[f32; 2]> {
    let gpu = load(text)?;
    let (module, stream) = (&gpu.module, &gpu.stream);
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
