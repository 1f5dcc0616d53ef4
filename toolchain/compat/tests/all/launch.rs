//! The kernels of `src/kernels.rs` on the virtual GPU, launched as a host program of Rust-CUDA launches them: by cust alone, a
//! slice as pointer and length.

use crate::common::{Result, load_plain};
use cust::prelude::*;

#[test]
fn a_slice_is_a_pointer_and_a_length() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let a: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let b: Vec<f32> = (0..900).map(|i| 0.5 * i as f32).collect();
    let (a, b) = (DeviceBuffer::from_slice(&a)?, DeviceBuffer::from_slice(&b)?);
    let sum = DeviceBuffer::from_slice(&[-1.0f32; 1000])?;
    // SAFETY: `add` takes two slices, each a pointer and a length, and a pointer to as many elements.
    unsafe {
        launch!(module.add<<<8, 128, 0, stream>>>(
            a.as_device_ptr(), a.len(), b.as_device_ptr(), b.len(), sum.as_device_ptr()
        ))?;
    }
    stream.synchronize()?;
    let wanted: Vec<f32> = (0..1000).map(|i| if i < 900 { 1.5 * i as f32 } else { -1.0 }).collect();
    assert_eq!(sum.as_host_vec()?, wanted, "the shorter slice ends the sum");
    Ok(())
}

#[test]
fn arguments_of_each_width_are_passed() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let (x, weights, shift) = ([1u16, 10, 100, 1000, 10000], [1.0f64, 2.0, 4.0], 3u8);
    let y = DeviceBuffer::from_slice(&[0.0f64; 5])?;
    let (x_device, weights_device) = (DeviceBuffer::from_slice(&x)?, DeviceBuffer::from_slice(&weights)?);
    // SAFETY: `correlate` takes a pointer to 5 elements, a byte, a slice, a number and a slice.
    unsafe {
        launch!(module.correlate<<<1, 32, 0, stream>>>(
            y.as_device_ptr(), shift, x_device.as_device_ptr(), x_device.len(), 5u32,
            weights_device.as_device_ptr(), weights_device.len()
        ))?;
    }
    stream.synchronize()?;
    let at = |i: usize| f64::from(x[(i + usize::from(shift)) % 5]);
    let wanted: Vec<f64> = (0..5).map(|i| at(i) + 2.0 * at(i + 1) + 4.0 * at(i + 2)).collect();
    assert_eq!(y.as_host_vec()?, wanted);
    Ok(())
}

#[test]
fn dynamic_shared_memory_and_atomics_are_the_blocks() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let values: Vec<i32> = (0..64).collect();
    let (x, cycles) = (DeviceBuffer::from_slice(&values)?, DeviceBuffer::from_slice(&[0u64])?);
    let total = DeviceBuffer::from_slice(&[0.0f32])?;
    // SAFETY: 64 elements, one count and one float, which `AtomicF32` is in memory; one block of 64 threads with dynamic
    // shared memory for a word.
    unsafe {
        launch!(module.reverse<<<1, 64, 4, stream>>>(
            x.as_device_ptr(), cycles.as_device_ptr(), total.as_device_ptr()
        ))?;
    }
    stream.synchronize()?;
    let mut reversed = values;
    reversed.reverse();
    assert_eq!(x.as_host_vec()?, reversed);
    assert_eq!(total.as_host_vec()?, [64.0]);
    Ok(())
}
