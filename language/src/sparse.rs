//! Long prompts that read a part of their keys: when, and which keys each block of tokens reads in any case. The others are chosen by
//! [`choose_tiles`](pascaline::ops::choose_tiles) while the prompt runs.

use super::text::ImageRun;
use pascaline::nn::SparsePrompt;
use pascaline::ops::QUERIES_PER_CHOICE;
use pascaline::{Device, Result, Tensor};
use std::fmt;
use std::str::FromStr;

/// The keys of a prompt, from which on a part of them is read: with fewer, attention is a small part of the time.
pub const LEAST_KEYS: usize = 4096;
/// The fewest tokens of a pass that reads a part: a block of queries.
const LEAST_ROWS: usize = QUERIES_PER_CHOICE;
/// Keys before each block that it reads in any case, as neighbours weigh most.
const BAND: usize = 256;

/// The share of each softmax that long prompts read, in millionths.
///
/// ```
/// use language::sparse::SoftmaxShare;
/// let share: SoftmaxShare = "0.95".parse()?;
/// assert_eq!((share.value(), share.to_string()), (0.95, "0.95".to_owned()));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftmaxShare(u32);

impl SoftmaxShare {
    const ONE: f64 = 1e6;

    /// A share above 0 and up to 1, rounded to millionths.
    pub fn new(share: f64) -> Option<Self> {
        let millionths = (share * Self::ONE).round();
        (share.is_finite() && (1.0..=Self::ONE).contains(&millionths)).then_some(Self(millionths as u32))
    }

    /// From 0 to 1.
    pub fn value(self) -> f32 {
        (f64::from(self.0) / Self::ONE) as f32
    }
}

impl FromStr for SoftmaxShare {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let share = text.parse().ok().and_then(Self::new);
        share.ok_or_else(|| format!("a share is a number above 0 and up to 1, as 0.95, not {text:?}"))
    }
}

impl fmt::Display for SoftmaxShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (f64::from(self.0) / Self::ONE).fmt(f)
    }
}

/// For each block of `rows` tokens that follow `past` others, the first of the keys that it reads in any case: those just before it, and those
/// of the picture that its first token is in. Empty where all keys are read. `pictures` are in order.
pub(crate) fn local_keys(past: usize, rows: usize, pictures: &[ImageRun]) -> Vec<u32> {
    if past + rows < LEAST_KEYS || rows < LEAST_ROWS {
        return Vec::new();
    }
    let of_block = |first: usize| {
        let band = first.saturating_sub(BAND);
        let before = pictures.partition_point(|run| run.start <= first);
        let picture = before.checked_sub(1).map(|i| pictures[i]).filter(|run| first < run.start + run.len);
        picture.map_or(band, |run| run.start.min(band)) as u32 // prompts have fewer tokens than u32 counts
    };
    (past..past + rows).step_by(QUERIES_PER_CHOICE).map(of_block).collect()
}

/// What the rows of a pass read, on one device; `None` for all.
pub(crate) fn on_device(
    share: Option<SoftmaxShare>,
    local: &[u32],
    device: &Device,
) -> Result<Option<SparsePrompt>> {
    let Some(share) = share.filter(|_| !local.is_empty()) else { return Ok(None) };
    let local = Tensor::from_slice(local, [local.len()], device)?;
    Ok(Some(SparsePrompt { share: share.value(), local }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_written() {
        for text in ["0.95", "1", "0.5", "0.000001"] {
            assert_eq!(text.parse::<SoftmaxShare>().map(|share| share.to_string()).as_deref(), Ok(text));
        }
        for text in ["0", "-0.5", "1.5", "95%", "nan", "inf", ""] {
            assert!(text.parse::<SoftmaxShare>().is_err_and(|error| error.contains(text)), "{text}");
        }
    }

    #[test]
    fn blocks_read_their_neighbours_and_their_picture() {
        assert!(local_keys(0, LEAST_KEYS - 1, &[]).is_empty());
        assert!(local_keys(LEAST_KEYS, LEAST_ROWS - 1, &[]).is_empty());
        assert_eq!(local_keys(LEAST_KEYS, 130, &[]), [3840, 3904, 3968]);
        let run = |start, len| ImageRun { start, len, output: 0, row: 0 };
        let pictures = [run(10, 20), run(3000, 1100), run(4200, 50)];
        // the first block is in the second picture, the others are in none
        assert_eq!(local_keys(LEAST_KEYS, 130, &pictures), [3000, 3904, 3968]);
        assert_eq!(local_keys(4100, 64, &pictures), [3844]);
        assert_eq!(local_keys(4210, 64, &pictures), [3954], "the band begins before the picture");
    }
}
