//! The path tracer of `gpu/src/path_tracer.rs` on the virtual GPU, against the same source on the host.

#[path = "../../gpu/src/scene.rs"]
mod scene;

use crate::common::{Result, load_plain};
use cust::memory::DeviceCopy;
use cust::prelude::*;
use glam::Vec3;
use scene::{Material, Sphere, sampled};

const WIDTH: u32 = 37;
const HEIGHT: u32 = 21;
const SAMPLES: u32 = 3;
const PIXELS: usize = (WIDTH * HEIGHT) as usize;

// SAFETY: numbers, and a material whose bytes both compilations lay out alike, as `repr(u32)` asks.
unsafe impl DeviceCopy for Sphere {}

/// One of each material over a large sphere, the ground.
fn spheres() -> Vec<Sphere> {
    let sphere = |centre: [f32; 3], radius, colour: [f32; 3], material| Sphere {
        centre: centre.into(),
        radius,
        colour: colour.into(),
        material,
    };
    vec![
        sphere([0.0, -100.5, -1.0], 100.0, [0.5, 0.6, 0.4], Material::Diffuse),
        sphere([-1.1, 0.0, -1.0], 0.5, [0.7, 0.3, 0.3], Material::Diffuse),
        sphere([0.0, 0.0, -1.0], 0.5, [0.95; 3], Material::Glass { index: 1.5 }),
        sphere([1.1, 0.0, -1.0], 0.5, [0.8, 0.6, 0.2], Material::Metal { roughness: 0.2 }),
    ]
}

#[test]
fn each_pixel_of_the_path_tracer_is_the_hosts() -> Result<()> {
    let Some(gpu) = load_plain()? else { return Ok(()) };
    let (module, stream) = (&gpu.module, &gpu.stream);
    let spheres = spheres();
    let scene = DeviceBuffer::from_slice(&spheres)?;
    let sums = DeviceBuffer::from_slice(&[[0.0f32; 3]; PIXELS])?;
    let means = DeviceBuffer::from_slice(&[[f32::NAN; 3]; PIXELS])?;
    let bytes = DeviceBuffer::from_slice(&[[7u8; 3]; PIXELS])?;
    let grid = PIXELS.div_ceil(128) as u32;
    // SAFETY: slices are pointers and lengths; all but the scene have an element for each pixel.
    unsafe {
        for sample in 0..SAMPLES {
            launch!(module.add_sample<<<grid, 128, 0, stream>>>(
                scene.as_device_ptr(), scene.len(), sums.as_device_ptr(), WIDTH, HEIGHT, sample
            ))?;
        }
        launch!(module.scale_buffer<<<grid, 128, 0, stream>>>(
            sums.as_device_ptr(), PIXELS, means.as_device_ptr(), SAMPLES
        ))?;
        launch!(module.postprocess<<<grid, 128, 0, stream>>>(means.as_device_ptr(), PIXELS, bytes.as_device_ptr()))?;
    }
    stream.synchronize()?;
    let got = bytes.as_host_vec()?.concat();

    let wanted: Vec<u8> = (0..PIXELS as u32)
        .flat_map(|pixel| {
            let sum = (0..SAMPLES)
                .fold(Vec3::ZERO, |sum, sample| sum + sampled(&spheres, pixel, sample, WIDTH, HEIGHT));
            (sum / SAMPLES as f32).to_array().map(|light| (light.sqrt() * 255.0 + 0.5) as u8)
        })
        .collect();
    if let Some(file) = std::env::var_os("PATH_TRACER_PICTURE") {
        std::fs::write(file, [format!("P6 {WIDTH} {HEIGHT} 255\n").as_bytes(), &got].concat())?; // a PPM file
    }
    assert!(got.iter().any(|&byte| byte < 60) && got.iter().any(|&byte| byte > 220), "light and shadow");
    assert_eq!(got, wanted, "each pixel as on the host");
    Ok(())
}
