//! The losses of a fine-tune: as CSV, and as a picture.

use crate::files::{self, bad};
use image::{ImageFormat, Rgb, RgbImage};
use pascaline::Result;
use qwen3_vl::files::read_at_most;
use std::io::Cursor;
use std::path::Path;

/// The file of the numbers.
pub const TABLE: &str = "losses.csv";
/// The file of the picture.
pub const PICTURE: &str = "losses.png";

/// Its first line.
const HEADING: &str = "step,loss,rate,tokens_per_second,held_out_loss,held_out_right";
/// The most bytes of it that are read.
const MAX_TABLE: u64 = 1 << 30;

/// Sizes in pixels.
const WIDTH: u32 = 800;
const HEIGHT: u32 = 400;
const MARGIN: u32 = 20;

/// A line of the CSV.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The number of the step.
    pub step: u32,
    /// The loss before it.
    pub loss: f64,
    /// The learning rate.
    pub rate: f32,
    /// Tokens a second.
    pub tokens_per_second: f64,
    /// After an evaluation: the loss and the share of right answers of the held-out examples.
    pub evaluation: Option<[f64; 2]>,
}

/// Writes `losses.csv` and `losses.png`: the losses of the steps in blue, those of evaluations in red, from 0 at the bottom to the largest.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file that can't be written.
pub fn write(dir: &Path, points: &[Point]) -> Result<()> {
    files::write(&dir.join(TABLE), table(points).as_bytes())?;
    let (file, mut bytes) = (dir.join(PICTURE), Cursor::new(Vec::new()));
    draw(points).write_to(&mut bytes, ImageFormat::Png).map_err(|error| bad(&file, error))?;
    files::write(&file, bytes.get_ref())
}

/// The lines of the CSV.
pub(crate) fn table(points: &[Point]) -> String {
    let mut csv = format!("{HEADING}\n");
    for Point { step, loss, rate, tokens_per_second, evaluation } in points {
        let [held_out, right] = match evaluation {
            Some(found) => found.map(|x| x.to_string()),
            None => [String::new(), String::new()],
        };
        csv += &format!("{step},{loss},{rate},{tokens_per_second:.1},{held_out},{right}\n");
    }
    csv
}

/// Reads the lines of a CSV that [`table`] has made.
pub(crate) fn read(file: &Path) -> Result<Vec<Point>> {
    let bytes = read_at_most(file, MAX_TABLE).map_err(|error| bad(file, error))?;
    let text = String::from_utf8(bytes).map_err(|error| bad(file, error))?;
    let mut lines = text.lines();
    let is_table = lines.next() == Some(HEADING);
    let points: Option<_> = lines.map(point).collect();
    points.filter(|_| is_table).ok_or_else(|| bad(file, "is no table of losses"))
}

fn point(line: &str) -> Option<Point> {
    let fields: Vec<&str> = line.split(',').collect();
    let &[step, loss, rate, tokens_per_second, held_out, right] = &fields[..] else { return None };
    let evaluation = match (held_out, right) {
        ("", "") => None,
        _ => Some([held_out.parse().ok()?, right.parse().ok()?]),
    };
    let (step, loss, rate) = (step.parse().ok()?, loss.parse().ok()?, rate.parse().ok()?);
    Some(Point { step, loss, rate, tokens_per_second: tokens_per_second.parse().ok()?, evaluation })
}

fn draw(points: &[Point]) -> RgbImage {
    let mut picture = RgbImage::from_pixel(WIDTH, HEIGHT, Rgb([255; 3]));
    let last = points.iter().map(|point| point.step).max().unwrap_or(1).max(1);
    let losses = points.iter().flat_map(|point| [Some(point.loss), point.evaluation.map(|[loss, _]| loss)]);
    let top = losses.flatten().filter(|loss| loss.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    let (width, height) = (f64::from(WIDTH - 2 * MARGIN), f64::from(HEIGHT - 2 * MARGIN));
    let place = |step: u32, loss: f64| {
        let x = f64::from(step) / f64::from(last) * width;
        let y = (1.0 - (loss / top).clamp(0.0, 1.0)) * height;
        [x + f64::from(MARGIN), y + f64::from(MARGIN)]
    };
    for share in 0..=4 {
        let loss = top * f64::from(share) / 4.0;
        line(&mut picture, place(0, loss), place(last, loss), [220; 3]);
    }
    let steps: Vec<_> = points.iter().map(|point| place(point.step, point.loss)).collect();
    let held_out =
        points.iter().filter_map(|point| point.evaluation.map(|[loss, _]| place(point.step, loss)));
    for (places, colour) in [(steps, [40, 80, 200]), (held_out.collect(), [210, 40, 40])] {
        places.windows(2).for_each(|pair| line(&mut picture, pair[0], pair[1], colour));
    }
    picture
}

fn line(picture: &mut RgbImage, from: [f64; 2], to: [f64; 2], colour: [u8; 3]) {
    let length = (from[0] - to[0]).abs().max((from[1] - to[1]).abs()).ceil().max(1.0);
    for i in 0..=length as u32 {
        let share = f64::from(i) / length;
        let [x, y] = [0, 1].map(|axis| (from[axis] + (to[axis] - from[axis]) * share).round() as u32);
        if x < WIDTH && y < HEIGHT {
            picture.put_pixel(x, y, Rgb(colour));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let at = |step, evaluation| Point {
            step,
            loss: 1.0 / 3.0 + f64::from(step),
            rate: 1e-7,
            tokens_per_second: 12.5,
            evaluation,
        };
        let points = [at(1, None), at(2, Some([0.1 + 0.2, 1.0]))];
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &points).unwrap();
        assert_eq!(read(&folder.path().join(TABLE)).unwrap(), points);
        std::fs::write(folder.path().join(TABLE), "step\n1\n").unwrap();
        assert!(read(&folder.path().join(TABLE)).unwrap_err().to_string().contains("no table"));
    }
}
