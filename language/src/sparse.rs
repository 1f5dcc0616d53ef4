//! Long prompts that read a part of their keys: when, and which keys each block of tokens reads in any case. The others are chosen by
//! [`choose_tiles`](pascaline::ops::choose_tiles) while the prompt runs.

pub use super::softmax_share::SoftmaxShare;
use super::text::ImageRun;
use pascaline::nn::SparsePrompt;
use pascaline::ops::QUERIES_PER_CHOICE;
use pascaline::{Device, Result, Tensor};

/// The keys of a prompt, from which on a part of them is read: with fewer, attention is a small part of the time.
pub const LEAST_KEYS: usize = 4096;
/// The fewest tokens of a pass that reads a part: a block of queries.
const LEAST_ROWS: usize = QUERIES_PER_CHOICE;
/// Keys before each block that it reads in any case, as neighbours weigh most.
const BAND: usize = 256;

/// For each block of `rows` tokens that follow `past` others, the first of the keys that it reads in any case: those just before it, and those
/// of the picture that its first token is in. Empty where all keys are read, as without a share. `pictures` are in order.
pub(crate) fn local_keys(
    share: Option<SoftmaxShare>,
    past: usize,
    rows: usize,
    pictures: &[ImageRun],
) -> Vec<u32> {
    if share.is_none() || past + rows < LEAST_KEYS || rows < LEAST_ROWS {
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
    fn blocks_read_their_neighbours_and_their_picture() {
        let share = SoftmaxShare::new(0.5);
        assert!(local_keys(None, LEAST_KEYS, 130, &[]).is_empty());
        assert!(local_keys(share, 0, LEAST_KEYS - 1, &[]).is_empty());
        assert!(local_keys(share, LEAST_KEYS, LEAST_ROWS - 1, &[]).is_empty());
        assert_eq!(local_keys(share, LEAST_KEYS, 130, &[]), [3840, 3904, 3968]);
        let run = |start, len| ImageRun { start, len, output: 0, row: 0 };
        let pictures = [run(10, 20), run(3000, 1100), run(4200, 50)];
        // the first block is in the second picture, the others are in none
        assert_eq!(local_keys(share, LEAST_KEYS, 130, &pictures), [3000, 3904, 3968]);
        assert_eq!(local_keys(share, 4100, 64, &pictures), [3844]);
        assert_eq!(local_keys(share, 4210, 64, &pictures), [3954], "the band begins before the picture");
    }
}
