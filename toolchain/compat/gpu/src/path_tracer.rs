//! What the kernels of Rust-CUDA's path tracer do: a sample for each pixel, their mean, and bytes to look at.

use crate::scene::{Sphere, sampled};
use cuda_std::{GpuFloat, kernel, thread};
use glam::Vec3;

/// Adds a sample to each pixel.
///
/// # Safety
/// `sums` has width · height elements, of which nobody else reads or writes.
#[kernel]
pub unsafe fn add_sample(spheres: &[Sphere], sums: *mut Vec3, width: u32, height: u32, sample: u32) {
    let pixel = thread::index_1d();
    if pixel < width * height {
        // SAFETY: the pixel is in the picture, and is this thread's.
        unsafe { *sums.add(pixel as usize) += sampled(spheres, pixel, sample, width, height) };
    }
}

/// Sums become means.
///
/// # Safety
/// `means` has as many elements as `sums`, of which nobody else reads or writes.
#[kernel]
pub unsafe fn scale_buffer(sums: &[Vec3], means: *mut Vec3, samples: u32) {
    let i = thread::index_1d() as usize;
    if let Some(&sum) = sums.get(i) {
        // SAFETY: i is inside `sums`.
        unsafe { *means.add(i) = sum / samples as f32 };
    }
}

/// Means become bytes of a picture, by a gamma of 2.
///
/// # Safety
/// `bytes` has 3 bytes for each element of `means`, which nobody else reads or writes.
#[kernel]
pub unsafe fn postprocess(means: &[Vec3], bytes: *mut [u8; 3]) {
    let i = thread::index_1d() as usize;
    if let Some(mean) = means.get(i) {
        let byte = |light: f32| (light.sqrt() * 255.0 + 0.5) as u8; // `as` keeps it in 0 to 255
        // SAFETY: i is inside `means`.
        unsafe { *bytes.add(i) = [byte(mean.x), byte(mean.y), byte(mean.z)] };
    }
}
