//! Pictures of coloured shapes and their captions: data for trying a fine-tune.

use crate::files::{self, bad};
use image::{ImageFormat, Rgb, RgbImage};
use pascaline::Result;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::json;
use std::io::Cursor;
use std::path::Path;

/// The names and values of the colours.
pub const COLOURS: [(&str, [u8; 3]); 4] =
    [("red", [220, 40, 40]), ("green", [40, 180, 60]), ("blue", [50, 80, 220]), ("yellow", [230, 210, 50])];
/// The names of the shapes.
pub const SHAPES: [&str; 3] = ["circle", "bar", "frame"];
/// The question of every conversation.
pub const QUESTION: &str = "What is it?";
/// The sides of the pictures, in pixels.
const SIDE: u32 = 64;

/// Writes `count` pictures and `pairs.jsonl`, which [`data::read`](crate::data::read) reads, into an existing folder. Place, size and
/// background of the shapes are random; colours and shapes come equally often.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file that can't be written.
pub fn write(dir: &Path, count: usize, seed: u64) -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut lines = String::new();
    for number in 0..count {
        let (colour, rgb) = COLOURS[number % COLOURS.len()];
        let shape = SHAPES[number / COLOURS.len() % SHAPES.len()];
        let name = format!("{number:04}.png");
        let (mut bytes, file) = (Cursor::new(Vec::new()), dir.join(&name));
        draw(&mut rng, shape, rgb)
            .write_to(&mut bytes, ImageFormat::Png)
            .map_err(|error| bad(&file, error))?;
        files::write(&file, bytes.get_ref())?;
        let turn = |from: &str, value: String| json!({"from": from, "value": value});
        let turns =
            [turn("human", format!("<image>\n{QUESTION}")), turn("gpt", format!("a {colour} {shape}"))];
        lines += &json!({"image": name, "conversations": turns}).to_string();
        lines.push('\n');
    }
    files::write(&dir.join("pairs.jsonl"), lines.as_bytes())
}

fn draw(rng: &mut ChaCha8Rng, shape: &str, rgb: [u8; 3]) -> RgbImage {
    let mut between = |least: i64, most: i64| least + (rng.next_u32() % (most - least + 1) as u32) as i64;
    let background = between(0, 60) as u8;
    let radius = between(16, 22);
    let (x, y) = (between(30, 34), between(30, 34));
    let jitter = rgb.map(|value| value.saturating_add_signed(between(-15, 15) as i8));
    RgbImage::from_fn(SIDE, SIDE, |column, row| {
        let (dx, dy) = (i64::from(column) - x, i64::from(row) - y);
        let inside = match shape {
            "circle" => dx * dx + dy * dy <= radius * radius,
            "bar" => dx.abs() <= radius && dy.abs() <= radius / 4,
            _ => (radius - 5..=radius).contains(&dx.abs().max(dy.abs())),
        };
        if inside { Rgb(jitter) } else { Rgb([background; 3]) }
    })
}
