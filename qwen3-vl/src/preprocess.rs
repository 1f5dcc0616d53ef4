//! Pictures → patches, as the reference's `Qwen2VLImageProcessor` makes them.

use super::config::PreprocessorConfig;
use super::resize;
use pascaline::{Error, Result};
use rayon::prelude::*;

pub use language::media::{ImagePlan, MAX_PATCHES, Patches};
pub use language::picture::{MAX_DECODED, MAX_PIXELS, MAX_SIDE, Picture, PictureHeader};

/// The largest ratio of a picture's sides; the reference's.
const MAX_ASPECT: usize = 200;
/// The pixels that a picture or a video may have once it is resized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Sides become multiples of this.
    pub factor: usize,
    /// The fewest pixels, of all frames together.
    pub min_pixels: usize,
    /// The most pixels, of all frames together.
    pub max_pixels: usize,
    /// Frames; 1 for a still image.
    pub frames: usize,
    /// Frames in a group, which the last one is filled up to; 1 for a still image.
    pub group: usize,
}

/// The size that pictures are resized to: (height, width), near their aspect ratio and inside the bounds.
///
/// # Errors
/// [`Error::Image`] for a side of zero or an aspect ratio above 200.
pub fn smart_resize(name: &str, (height, width): (usize, usize), bounds: Bounds) -> Result<(usize, usize)> {
    let refuse = |reason: String| Err(Error::Image { file: name.to_owned(), reason });
    let (shorter, longer) = (height.min(width), height.max(width));
    if shorter == 0 || bounds.frames == 0 {
        return refuse(format!("{} frames of {width} × {height} pixels", bounds.frames));
    }
    if longer as f64 / shorter as f64 > MAX_ASPECT as f64 {
        return refuse(format!("{width} × {height}: an aspect ratio above {MAX_ASPECT}"));
    }
    let Bounds { factor, min_pixels, max_pixels, frames, group } = bounds;
    let (h, w, f) = (height as f64, width as f64, factor as f64);
    // Sides and frames that overflow saturate, which is above any limit.
    let sides = |factors: f64| (factors as usize).saturating_mul(factor);
    let rounded = |side: f64| sides((side / f).round_ties_even());
    let (new_height, new_width) = (rounded(h), rounded(w));
    let frames_in_groups = frames.checked_next_multiple_of(group).unwrap_or(usize::MAX);
    let pixels = frames_in_groups.saturating_mul(new_height).saturating_mul(new_width);
    Ok(if pixels > max_pixels {
        let beta = (frames as f64 * h * w / max_pixels as f64).sqrt();
        let down = |side: f64| sides((side / beta / f).floor()).max(factor);
        (down(h), down(w))
    } else if pixels < min_pixels {
        let beta = (min_pixels as f64 / (frames as f64 * h * w)).sqrt();
        let up = |side: f64| sides((side * beta / f).ceil());
        (up(h), up(w))
    } else {
        (new_height, new_width)
    })
}

/// The tokens and the memory of a picture with this header.
///
/// # Errors
/// As [`image_patches`].
pub fn image_plan(name: &str, header: PictureHeader, config: &PreprocessorConfig) -> Result<ImagePlan> {
    plan(name, header, still(config), header.bytes, config)
}

/// The tokens and the memory of a video of `frames` decoded frames, each with this header.
///
/// # Errors
/// As [`video_patches`].
pub fn video_plan(
    name: &str,
    header: PictureHeader,
    frames: usize,
    config: &PreprocessorConfig,
) -> Result<ImagePlan> {
    plan(name, header, moving(frames, config), 0, config)
}

/// `decoding` bytes are taken besides those for resizing.
fn plan(
    name: &str,
    header: PictureHeader,
    bounds: Bounds,
    decoding: usize,
    config: &PreprocessorConfig,
) -> Result<ImagePlan> {
    let (height, width) = resized(name, (header.height, header.width), bounds.frames, bounds, config)?;
    let side = config.patch_size;
    let [groups, rows, cols] =
        [bounds.frames.div_ceil(config.temporal_patch_size), height / side, width / side];
    let patches = groups * rows * cols;
    Ok(ImagePlan {
        grid: [groups, rows, cols],
        tokens: patches / (config.merge_size * config.merge_size),
        bytes: patches * side * side * 3 * config.temporal_patch_size * size_of::<f32>(),
        // a frame resized along its rows, and all along their columns
        scratch: decoding + 3 * width * (header.height + bounds.frames * height),
    })
}

fn still(config: &PreprocessorConfig) -> Bounds {
    let PreprocessorConfig { min_pixels, max_pixels, .. } = *config;
    Bounds { factor: config.factor(), min_pixels, max_pixels, frames: 1, group: 1 }
}

fn moving(frames: usize, config: &PreprocessorConfig) -> Bounds {
    let PreprocessorConfig { min_pixels, max_pixels, temporal_patch_size: group, .. } = *config;
    Bounds { factor: config.factor(), min_pixels, max_pixels, frames, group }
}

/// Resizes a picture and cuts it into patches; a still image fills all frames of its patches.
///
/// # Errors
/// As [`smart_resize`]; [`Error::Image`] beyond [`MAX_PATCHES`].
pub fn image_patches(name: &str, picture: &Picture, config: &PreprocessorConfig) -> Result<Patches> {
    resized_patches(name, std::slice::from_ref(picture), still(config), config)
}

/// Resizes a video's frames, all of one size, and cuts them into patches.
///
/// # Errors
/// As [`image_patches`], and [`Error::Image`] if a frame has another size than the first.
pub fn video_patches(name: &str, frames: &[Picture], config: &PreprocessorConfig) -> Result<Patches> {
    resized_patches(name, frames, moving(frames.len(), config), config)
}

/// Resizes a picture to the size that its patches are cut from, if a resize of the result would change nothing more.
///
/// # Errors
/// As [`image_patches`]; the picture is as it was.
pub fn shrink_image(name: &str, picture: &mut Picture, config: &PreprocessorConfig) -> Result<()> {
    shrink(name, std::slice::from_mut(picture), still(config), config)
}

/// As [`shrink_image`], for a video's frames.
///
/// # Errors
/// As [`video_patches`]; the frames are as they were.
pub fn shrink_video(name: &str, frames: &mut [Picture], config: &PreprocessorConfig) -> Result<()> {
    shrink(name, frames, moving(frames.len(), config), config)
}

fn shrink(name: &str, frames: &mut [Picture], bounds: Bounds, config: &PreprocessorConfig) -> Result<()> {
    let (target, resized) = resized_frames(name, frames, bounds, config)?;
    if self::resized(name, target, frames.len(), bounds, config)? == target {
        for (frame, pixels) in frames.iter_mut().zip(resized) {
            *frame = Picture { height: target.0, width: target.1, pixels };
        }
    }
    Ok(())
}

/// The size to resize `frames` frames of `size` to, if their patches are not too large.
fn resized(
    name: &str,
    size: (usize, usize),
    frames: usize,
    bounds: Bounds,
    config: &PreprocessorConfig,
) -> Result<(usize, usize)> {
    let (height, width) = smart_resize(name, size, bounds)?;
    let whole_frames = frames.checked_next_multiple_of(config.temporal_patch_size);
    let factors = [whole_frames.unwrap_or(usize::MAX), height, width, 3, size_of::<f32>()];
    let bytes = factors.iter().fold(1usize, |product, &factor| product.saturating_mul(factor));
    match bytes > MAX_PATCHES {
        true => Err(Error::Image {
            file: name.to_owned(),
            reason: format!(
                "resized to {width} × {height}, as the preprocessor's pixel limits ask for, it takes more than {}",
                pascaline::format_bytes(MAX_PATCHES)
            ),
        }),
        false => Ok((height, width)),
    }
}

fn resized_patches(
    name: &str,
    frames: &[Picture],
    bounds: Bounds,
    config: &PreprocessorConfig,
) -> Result<Patches> {
    let (target, resized) = resized_frames(name, frames, bounds, config)?;
    let frames: Vec<&[u8]> = resized.iter().map(Vec::as_slice).collect();
    Ok(patches(&frames, target, config))
}

/// Rows and columns.
type Size = (usize, usize);

/// The size that frames are resized to, and their pixels in it.
fn resized_frames(
    name: &str,
    frames: &[Picture],
    bounds: Bounds,
    config: &PreprocessorConfig,
) -> Result<(Size, Vec<Vec<u8>>)> {
    let size = frames.first().map_or((0, 0), |frame| (frame.height, frame.width));
    let refuse = |reason: String| Err(Error::Image { file: name.to_owned(), reason });
    let target = self::resized(name, size, frames.len(), bounds, config)?;
    let mut resized = Vec::with_capacity(frames.len());
    for (index, frame) in frames.iter().enumerate() {
        if (frame.height, frame.width) != size {
            return refuse(format!(
                "frame {index} is {} × {}, the first another size",
                frame.width, frame.height
            ));
        }
        let values = size.0.checked_mul(size.1).and_then(|pixels| pixels.checked_mul(3));
        if values != Some(frame.pixels.len()) {
            return refuse(format!(
                "{} values are not those of {} × {} pixels",
                frame.pixels.len(),
                frame.width,
                frame.height
            ));
        }
        resized.push(resize::bicubic(&frame.pixels, size, target));
    }
    Ok((target, resized))
}

/// Cuts resized frames, each [height, width, 3], into patches; the last frame is repeated to fill the last group.
pub fn patches(frames: &[&[u8]], (height, width): (usize, usize), config: &PreprocessorConfig) -> Patches {
    let PreprocessorConfig { patch_size: side, temporal_patch_size: depth, merge_size: merge, .. } = *config;
    let (groups, rows, cols) = (frames.len().div_ceil(depth), height / side, width / side);
    // (value · rescale − mean) / std in one step, as the reference fuses it
    let inverse = (1.0 / config.rescale_factor) as f32;
    let (mean, std) = (config.image_mean.map(|m| m * inverse), config.image_std.map(|s| s * inverse));
    let patch_len = 3 * depth * side * side;
    let mut values = vec![0f32; groups * rows * cols * patch_len];
    values.par_chunks_exact_mut(patch_len).enumerate().for_each(|(index, patch)| {
        // index = ((t · rows/merge + block_row) · cols/merge + block_col) · merge² + row · merge + col
        let (block, within) = (index / (merge * merge), index % (merge * merge));
        let (block, block_col) = (block / (cols / merge), block % (cols / merge));
        let (group, block_row) = (block / (rows / merge), block % (rows / merge));
        let top = (block_row * merge + within / merge) * side;
        let left = (block_col * merge + within % merge) * side;
        for (run, row) in patch.chunks_exact_mut(side).enumerate() {
            // run = (channel · depth + frame) · side + y
            let (channel, frame, y) = (run / (depth * side), run / side % depth, run % side);
            let frame = frames[(group * depth + frame).min(frames.len() - 1)];
            let line = &frame[((top + y) * width + left) * 3..][..side * 3];
            for (value, rgb) in row.iter_mut().zip(line.as_chunks::<3>().0) {
                *value = (f32::from(rgb[channel]) - mean[channel]) / std[channel];
            }
        }
    });
    Patches { grid: [groups, rows, cols], values }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patches of one pixel whose values are the pixels' own, in blocks of `merge` × `merge`.
    fn config(merge: usize) -> PreprocessorConfig {
        PreprocessorConfig {
            min_pixels: 1,
            max_pixels: 1 << 40,
            patch_size: 1,
            temporal_patch_size: 1,
            merge_size: merge,
            rescale_factor: 1.0,
            image_mean: [0.0; 3],
            image_std: [1.0; 3],
        }
    }

    #[test]
    fn patches_of_a_token_are_adjacent() {
        let frame: Vec<u8> = (0..18 * 3).collect();
        let found = patches(&[&frame], (3, 6), &config(3));
        assert_eq!(found.grid, [1, 3, 6]);
        let block = |left: usize| (0..9).map(move |i| (i / 3 * 6 + left + i % 3) * 3);
        let want = block(0).chain(block(3)).flat_map(|at| [at, at + 1, at + 2]);
        assert!(found.values.iter().copied().eq(want.map(|value| value as f32)));
    }

    #[test]
    fn a_shrunk_picture_has_the_same_patches() {
        let config =
            PreprocessorConfig { min_pixels: 36, max_pixels: 400, temporal_patch_size: 2, ..config(3) };
        for (height, width) in [(97, 31), (5, 4), (12, 15), (40, 200)] {
            let pixels = (0..height * width * 3).map(|i| (i * 37 % 251) as u8).collect();
            let picture = Picture { height, width, pixels };
            let frames =
                [picture.clone(), Picture { pixels: vec![9; height * width * 3], ..picture.clone() }];
            let wanted = image_patches("p", &picture, &config).unwrap();
            let wanted_video = video_patches("v", &frames, &config).unwrap();
            let (mut shrunk, mut shrunk_frames) = (picture, frames);
            shrink_image("p", &mut shrunk, &config).unwrap();
            shrink_video("v", &mut shrunk_frames, &config).unwrap();
            assert_eq!([1, shrunk.height, shrunk.width], wanted.grid, "{height} × {width}");
            assert_eq!(image_patches("p", &shrunk, &config).unwrap(), wanted);
            assert_eq!(video_patches("v", &shrunk_frames, &config).unwrap(), wanted_video);
        }
    }

    /// The patches' bytes are those of the values that come of them; resizing a frame takes its rows at the new width, and all
    /// frames resized.
    #[test]
    fn the_memory_of_a_picture_and_a_video_is_planned() {
        let config =
            PreprocessorConfig { min_pixels: 36, temporal_patch_size: 2, patch_size: 2, ..config(3) };
        let header = PictureHeader { height: 40, width: 71, bytes: 5000 };
        let picture = Picture { height: 40, width: 71, pixels: vec![7; 40 * 71 * 3] };
        let plan = image_plan("p", header, &config).unwrap();
        let patches = image_patches("p", &picture, &config).unwrap();
        assert_eq!((plan.grid, plan.bytes), (patches.grid, size_of_val(&patches.values[..])));
        assert_eq!((plan.grid, plan.tokens), ([1, 21, 36], 84));
        assert_eq!(plan.scratch, 5000 + 3 * 72 * (40 + 42));
        let plan = video_plan("v", header, 4, &config).unwrap();
        let patches = video_patches("v", &[(); 4].map(|()| picture.clone()), &config).unwrap();
        assert_eq!((plan.grid, plan.bytes), (patches.grid, size_of_val(&patches.values[..])));
        assert_eq!((plan.grid, plan.tokens), ([2, 21, 36], 168));
        assert_eq!(plan.scratch, 3 * 72 * (40 + 4 * 42));
    }

    #[test]
    fn what_takes_too_much_memory_is_refused() {
        let picture = Picture { height: 2, width: 2, pixels: vec![7; 12] };
        let huge = PreprocessorConfig { min_pixels: 1 << 30, ..config(1) };
        match image_patches("p", &picture, &huge) {
            Err(Error::Image { reason, .. }) => assert!(reason.contains("takes more than"), "{reason}"),
            other => panic!("{:?}", other.map(|patches| patches.grid)),
        }
    }
}
