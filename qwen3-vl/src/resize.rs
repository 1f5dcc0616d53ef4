//! Antialiased bicubic resize of 8-bit images, bit for bit as the reference's.
//!
//! Source: PyTorch's `upsample_bicubic2d_aa` for 8-bit tensors (ATen, `UpSampleKernel.cpp`), which follows Pillow's
//! resampling: cubic convolution with a = −0.5 whose support is stretched by the factor of reduction, along rows
//! first and then along columns, each pass rounded to 8 bits. It differs from Pillow in the weights: 16-bit fixed
//! point, with as many fraction bits as the largest weight allows.

use rayon::prelude::*;

/// The inputs of one output pixel: `weights` of the input pixels from `first` on.
struct Window {
    first: usize,
    weights: Vec<i32>,
}

/// The windows of every output pixel along one axis, and the fraction bits of their weights.
fn windows(input: usize, output: usize) -> (Vec<Window>, u32) {
    let scale = input as f64 / output as f64;
    let stretch = scale.max(1.0);
    let support = 2.0 * stretch;
    let mut largest = 0f64;
    let exact: Vec<(usize, Vec<f64>)> = (0..output)
        .map(|i| {
            let center = scale * (i as f64 + 0.5);
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(input);
            let raw: Vec<f64> =
                (first..end).map(|j| cubic((j as f64 - center + 0.5) * (1.0 / stretch))).collect();
            let sum: f64 = raw.iter().sum();
            let weights: Vec<f64> = raw.iter().map(|w| w / sum).collect();
            largest = weights.iter().copied().fold(largest, f64::max);
            (first, weights)
        })
        .collect();
    let mut bits = 0;
    while bits < 22 && ((0.5 + largest * f64::from(1 << (bits + 1))) as i32) < 1 << 15 {
        bits += 1;
    }
    let fixed = |w: &f64| (w * f64::from(1 << bits)).round() as i32;
    let windows = exact
        .iter()
        .map(|(first, weights)| Window { first: *first, weights: weights.iter().map(fixed).collect() })
        .collect();
    (windows, bits)
}

/// Keys' cubic convolution kernel with a = −0.5.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
    } else {
        0.0
    }
}

/// Resizes `pixels`, [height, width, 3], to [new_height, new_width, 3].
pub fn bicubic(
    pixels: &[u8],
    (height, width): (usize, usize),
    (new_height, new_width): (usize, usize),
) -> Vec<u8> {
    let rows =
        if width == new_width { pixels.to_vec() } else { along_rows(pixels, height, width, new_width) };
    if height == new_height { rows } else { along_columns(&rows, height, new_height, new_width) }
}

/// [height, width, 3] → [height, new_width, 3]
fn along_rows(pixels: &[u8], height: usize, width: usize, new_width: usize) -> Vec<u8> {
    let (windows, bits) = windows(width, new_width);
    let mut output = vec![0; height * new_width * 3];
    output.par_chunks_exact_mut(new_width * 3).zip(pixels.par_chunks_exact(width * 3)).for_each(
        |(to, from)| {
            for (pixel, Window { first, weights }) in to.as_chunks_mut::<3>().0.iter_mut().zip(&windows) {
                let mut sums = [1 << (bits - 1); 3];
                for (rgb, weight) in from[first * 3..].as_chunks::<3>().0.iter().zip(weights) {
                    for (sum, &value) in sums.iter_mut().zip(rgb) {
                        *sum += i32::from(value) * weight;
                    }
                }
                *pixel = sums.map(|sum| (sum >> bits).clamp(0, 255) as u8);
            }
        },
    );
    output
}

/// [height, width, 3] → [new_height, width, 3]
fn along_columns(pixels: &[u8], height: usize, new_height: usize, width: usize) -> Vec<u8> {
    let (windows, bits) = windows(height, new_height);
    let stride = width * 3;
    let mut output = vec![0; new_height * stride];
    output.par_chunks_exact_mut(stride).zip(&windows).for_each(|(to, Window { first, weights })| {
        let mut sums = vec![1 << (bits - 1); stride];
        for (row, weight) in pixels[first * stride..].chunks_exact(stride).zip(weights) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += i32::from(value) * weight;
            }
        }
        for (value, sum) in to.iter_mut().zip(sums) {
            *value = (sum >> bits).clamp(0, 255) as u8;
        }
    });
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_image_stays_flat() {
        for (from, to) in [((7, 5), (32, 64)), ((97, 131), (32, 32)), ((1, 1), (32, 32))] {
            let pixels = vec![200; from.0 * from.1 * 3];
            assert!(bicubic(&pixels, from, to).iter().all(|&value| value == 200), "{from:?} → {to:?}");
        }
    }

    /// By hand: what a pixel of the fifth of a row covers, and the most fraction bits whose weights fit 16 bits.
    #[test]
    fn windows_cover_what_is_reduced() {
        let (fifth, _) = windows(100, 20);
        assert_eq!((fifth[5].first, fifth[5].weights.len()), (18, 20)); // 27.5 ± 10, rounded
        assert_eq!((fifth[0].first, fifth[0].weights.len()), (0, 13));
        assert_eq!((windows(4, 12).1, windows(4, 4).1), (14, 14)); // a weight of 1 does not fit with 15
        assert_eq!(windows(32_768, 32).1, 22); // no more than that, though 24 would fit
    }

    #[test]
    fn the_same_size_changes_nothing() {
        let pixels: Vec<u8> = (0..4 * 5 * 3).map(|i| (i * 37 % 256) as u8).collect();
        assert_eq!(bicubic(&pixels, (4, 5), (4, 5)), pixels);
    }

    #[test]
    fn overshoot_is_clamped() {
        let mut pixels = vec![0; 8 * 3];
        pixels[4 * 3..].fill(255);
        let wide = bicubic(&pixels, (1, 8), (1, 64));
        assert!(wide.contains(&0) && wide.contains(&255));
        assert!(
            wide[..6].iter().all(|&value| value == 0) && wide[wide.len() - 6..].iter().all(|&v| v == 255)
        );
    }
}
