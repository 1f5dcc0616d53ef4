//! Pictures of masks.

use super::mask::{BlockGrid, BlockMask, Cell, OP};
use crate::{Error, Result};
use image::{ImageFormat, Rgb, RgbImage};
use std::io::Cursor;

/// Color of a block that is attended to in full. A block without pairs is white; partial blocks are between.
const SEEN: [f64; 3] = [24.0, 72.0, 148.0];
/// The most pixels along a side of a picture.
const MAX_SIDE: usize = 16384;

impl BlockMask {
    /// One head's mask, a line for each row of blocks and a character for each block: `█` attended to in full, `░` in part,
    /// `·` not at all. Empty for a head that does not exist.
    pub fn text(&self, head: usize) -> String {
        if head >= self.heads {
            return String::new();
        }
        let mut text = String::new();
        for row in 0..self.grid.rows() {
            let mut line = vec!['·'; self.grid.columns()];
            for (column, cell) in self.row(head, row) {
                line[column] = if cell == Cell::Full { '█' } else { '░' };
            }
            text.extend(line);
            text.push('\n');
        }
        text
    }

    /// One head's mask as a PNG file, with `pixels` × `pixels` for a block (a power of two, at most the block). A pixel is
    /// the darker, the more of its pairs are in the mask.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a head that does not exist, any other `pixels`, or a picture of more than 16384 pixels to
    /// a side; [`Error::Image`] if it can't be encoded.
    pub fn png(&self, head: usize, pixels: usize) -> Result<Vec<u8>> {
        let BlockGrid { block, q_len, kv_len } = self.grid;
        let unsupported = |argument, value: usize, reason: &str| Error::Unsupported {
            op: OP,
            argument,
            value: value.to_string(),
            reason: reason.into(),
        };
        if head >= self.heads {
            return Err(unsupported("head", head, "the mask has fewer heads"));
        }
        if !pixels.is_power_of_two() || pixels > block {
            return Err(unsupported("pixels", pixels, "it must be a power of two, at most the block"));
        }
        let pairs = block / pixels; // pairs along a pixel's side
        let (width, height) = (kv_len.div_ceil(pairs), q_len.div_ceil(pairs));
        if width.max(height) > MAX_SIDE {
            return Err(unsupported(
                "pixels",
                pixels,
                "the picture would be wider or higher than 16384 pixels",
            ));
        }
        let mut seen = vec![0u32; width * height];
        for i in 0..q_len {
            for (column, bits) in self.seen_by(head, i) {
                for x in column * pixels..width.min((column + 1) * pixels) {
                    let of_pixel = bits >> ((x - column * pixels) * pairs) & super::mask::low_bits(pairs);
                    let inside = super::mask::low_bits(kv_len - x * pairs);
                    seen[i / pairs * width + x] += (of_pixel & inside).count_ones();
                }
            }
        }
        let side = |index: usize, len: usize| pairs.min(len - index * pairs);
        let picture = RgbImage::from_fn(width as u32, height as u32, |x, y| {
            let (x, y) = (x as usize, y as usize);
            let share = f64::from(seen[y * width + x]) / (side(x, kv_len) * side(y, q_len)) as f64;
            Rgb(SEEN.map(|seen| (255.0 + (seen - 255.0) * share).round() as u8))
        });
        let mut file = Cursor::new(Vec::new());
        picture
            .write_to(&mut file, ImageFormat::Png)
            .map_err(|error| Error::Image { file: "of a block mask".into(), reason: error.to_string() })?;
        Ok(file.into_inner())
    }
}
