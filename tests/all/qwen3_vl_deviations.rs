//! Mistakes of other implementations of Qwen3-VL: one test for each, which fails if the mistake is made here.

use pascaline::{DType, Device};
use qwen3_vl::config::{PreprocessorConfig, seeing};
use qwen3_vl::positions::{position_embeddings, text_rope};
use qwen3_vl::preprocess::{Bounds, Picture, image_patches, smart_resize};
use qwen3_vl::validate::{Limits, RunReport, check_run};
use qwen3_vl::{LoadOptions, Qwen3Vl, cases, pictures};
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny")
}

fn model() -> Qwen3Vl {
    let options = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&Device::Cpu) };
    Qwen3Vl::load_with(tiny(), &Device::Cpu, options, |_| {}).unwrap()
}

fn report(run: &str) -> RunReport {
    let runs = cases::load(&tiny()).unwrap().unwrap();
    check_run(&model(), runs.iter().find(|found| found.name == run).unwrap()).unwrap()
}

#[track_caller]
fn within_limits(report: &RunReport, stage: &str) {
    let worst = report.worst(stage).unwrap();
    assert!(worst <= Limits::F32.stage, "{stage}: {worst:e}");
}

/// 1. No causal mask in the prompt's pass.
#[test]
fn later_tokens_do_not_change_earlier_ones() {
    let model = model();
    let ids = [393, 40, 41, 42, 43, 44, 45, 46];
    let logits = |ids: &[u32]| model.trace(ids, &[], &[], |_, _| {}).unwrap().to_vec::<f32>().unwrap();
    let (short, long) = (logits(&ids[..4]), logits(&ids));
    for (a, b) in short.iter().zip(&long) {
        assert!((a - b).abs() <= 1e-5, "{a} became {b}");
    }
    // and each token sees those before it
    let other = logits(&[[394].as_slice(), &ids[1..]].concat());
    assert!(long[3 * 400..4 * 400].iter().zip(&other[3 * 400..]).any(|(a, b)| (a - b).abs() > 1e-3));
}

/// 2. The axes' frequencies concatenated and not interleaved.
#[test]
fn the_axes_frequencies_are_interleaved() {
    let mut config = qwen3_vl::config::load(&tiny()).unwrap().text;
    config.mrope_section = [8, 5, 3];
    let axes = [1, 2, 3];
    // of 16 frequencies: height at 1, 4, … < 15, width at 2, 5, 8 < 9, time elsewhere
    let axis = [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 0, 0, 1, 0, 0];
    let tables = text_rope(&config, &[axes]);
    for (i, axis) in axis.into_iter().enumerate() {
        let angle = f64::from(axes[axis]) * config.rope_theta.powf(-(i as f64) / 16.0);
        let (cos, sin) = (f64::from(tables.cos[i]), f64::from(tables.sin[i]));
        assert!((cos - angle.cos()).abs() < 1e-7 && (sin - angle.sin()).abs() < 1e-7, "frequency {i}");
    }
    within_limits(&report("one_image"), "logits");
}

/// 3. GELU's tanh form in the mergers: moves the embeddings by 2e-4.
#[test]
fn the_mergers_have_the_exact_gelu() {
    let report = report("odd_image");
    within_limits(&report, "image_embeds");
    within_limits(&report, "deepstack");
}

/// 4. Position embeddings interpolated without align_corners.
#[test]
fn the_images_corners_are_the_grids_corners() {
    let config = qwen3_vl::config::load(&tiny()).unwrap();
    let mut config = seeing(&config).unwrap().tower.clone();
    (config.hidden_size, config.num_position_embeddings) = (2, 49);
    // a grid of 7 × 7 that holds its own coordinates
    let table: Vec<f32> = (0..49).flat_map(|i| [(i / 7) as f32, (i % 7) as f32]).collect();
    let (rows, cols) = (4, 6);
    let found = position_embeddings(&config, &table, &[[1, rows, cols]]);
    for (index, place) in found.as_chunks::<2>().0.iter().enumerate() {
        let (block, within) = (index / 4, index % 4);
        let (row, col) = (block / 3 * 2 + within / 2, block % 3 * 2 + within % 2);
        let want = [row as f32 * 6.0 / (rows - 1) as f32, col as f32 * 6.0 / (cols - 1) as f32];
        let near = place.iter().zip(want).all(|(found, want)| (found - want).abs() < 1e-5);
        assert!(near, "patch ({row}, {col}) is at {place:?}, not {want:?}");
    }
    within_limits(&report("one_image"), "image_embeds");
}

/// 5. Halves rounded away from zero in smart_resize.
#[test]
fn halves_are_rounded_to_even() {
    let bounds = Bounds { factor: 32, min_pixels: 1, max_pixels: 1 << 30, frames: 1, group: 1 };
    let found =
        [16 * 5, 16 * 7, 16 * 9, 16 * 11].map(|side| smart_resize("", (side, 320), bounds).unwrap().0);
    assert_eq!(found, [64, 128, 128, 192]);
}

/// 6. Other limits on pixels than the checkpoint's.
#[test]
fn the_checkpoint_sets_the_pixel_limits() {
    let processor = qwen3_vl::processor(tiny()).unwrap();
    let mut images = pictures(&processor).unwrap().images.clone();
    assert_eq!((images.min_pixels, images.max_pixels), (4096, 262_144));
    let grid = |images: &PreprocessorConfig, side: usize| {
        let picture = Picture { height: side, width: side, pixels: vec![0; side * side * 3] };
        image_patches("", &picture, images).unwrap().grid
    };
    assert_eq!(grid(&images, 1000), [1, 32, 32]);
    assert_eq!(grid(&images, 33), [1, 4, 4]);
    (images.min_pixels, images.max_pixels) = (65_536, 16_777_216); // as published
    assert_eq!(grid(&images, 1000), [1, 62, 62]);
    assert_eq!(grid(&images, 33), [1, 16, 16]);
}

/// 7. Small images refused.
#[test]
fn small_images_are_enlarged() {
    let processor = qwen3_vl::processor(tiny()).unwrap();
    for (height, width) in [(1, 1), (1, 200), (31, 8), (5, 70)] {
        let picture = Picture { height, width, pixels: vec![100; height * width * 3] };
        let [_, rows, cols] = processor.image_patches("", picture).unwrap().grid;
        assert!(rows * cols * 256 >= 4096 && rows > 0 && cols > 0, "{width} × {height}");
    }
    let report = report("small_image");
    assert!(report.passed(&Limits::F32, true), "{report:#?}");
}

/// 8. Resized twice, or by another filter.
#[test]
fn images_are_resized_once_by_antialiased_bicubic() {
    for run in ["odd_image", "two_images", "small_image"] {
        let pixels = report(run).pixels.unwrap();
        assert_eq!((pixels.equal, pixels.most_steps), (1.0, 0.0), "{run}");
    }
}

/// 9. Deepstack features left out, or added after the wrong layer.
#[test]
fn deepstack_features_are_added_after_the_first_layers() {
    let report = report("one_image");
    for stage in ["deepstack", "hidden.1", "hidden.2", "hidden.3", "logits"] {
        within_limits(&report, stage);
    }
}
