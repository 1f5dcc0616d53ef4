//! Positions of tokens and patches: on three axes, as rotary angles, and as interpolated position embeddings.

use super::config::VisionConfig;
use language::rope::frequencies;

pub use language::media::Positions;
pub use language::rope::{KnownAngles, RopeTables, text_rope};

use pascaline::{Error, Result};
use rayon::prelude::*;

/// The positions of `ids`. A text token counts up on all axes; an image's tokens share their time and have their row
/// and column, all counted from where the image starts; what follows starts after the largest position.
///
/// `grids` holds (groups of frames, rows, columns) in patches of each run of image or video tokens, in order; a
/// token is `merge` × `merge` patches.
///
/// # Errors
/// [`Error::Prompt`] if the tokens and the grids do not fit each other.
pub fn positions(
    ids: &[u32],
    is_pad: impl Fn(u32) -> bool,
    grids: &[[usize; 3]],
    merge: usize,
) -> Result<Positions> {
    // An image takes no more positions than tokens, so none is beyond the number of tokens.
    if u32::try_from(ids.len()).is_err() {
        return Err(Error::Prompt { reason: format!("{} tokens are beyond 32 bits", ids.len()) });
    }
    let mut axes = Vec::with_capacity(ids.len());
    let mut grids = grids.iter();
    let (mut i, mut next) = (0, 0u32);
    while i < ids.len() {
        if !is_pad(ids[i]) {
            axes.push([next; 3]);
            next += 1;
            i += 1;
            continue;
        }
        let mismatch = |what: &str| Error::Prompt { reason: format!("at token {i}: {what}") };
        let Some(&[frames, rows, cols]) = grids.next() else {
            return Err(mismatch("more image tokens than images"));
        };
        let (rows, cols) = (rows / merge, cols / merge);
        let len = frames.checked_mul(rows).and_then(|len| len.checked_mul(cols)).filter(|&len| len > 0);
        let Some(len) = len else {
            return Err(mismatch(&format!("an image of {frames} × {rows} × {cols} tokens")));
        };
        if ids.len() - i < len || !ids[i..i + len].iter().all(|&id| is_pad(id)) {
            return Err(mismatch(&format!("an image of {len} tokens has fewer")));
        }
        for t in 0..frames as u32 {
            for r in 0..rows as u32 {
                axes.extend((0..cols as u32).map(|c| [next + t, next + r, next + c]));
            }
        }
        next += frames.max(rows).max(cols) as u32;
        i += len;
    }
    if grids.next().is_some() {
        return Err(Error::Prompt { reason: "fewer image tokens than images".into() });
    }
    Ok(Positions { axes, rope_delta: i64::from(next) - ids.len() as i64 })
}

/// (row, column) of every patch of one image in merge-block order.
fn block_order(rows: usize, cols: usize, merge: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    let blocks = (0..rows / merge).flat_map(move |r| (0..cols / merge).map(move |c| (r, c)));
    blocks.flat_map(move |(r, c)| {
        (0..merge * merge).map(move |i| (r * merge + i / merge, c * merge + i % merge))
    })
}

/// The vision tower's rotary angles: the row rotates by the first half of the frequencies, the column by the second.
pub fn vision_rope(config: &VisionConfig, grids: &[[usize; 3]]) -> RopeTables {
    let frequencies = frequencies(config.rope_theta, config.head_dim() / 2);
    let lines = grids.iter().flat_map(|[_, rows, cols]| [*rows, *cols]).max().unwrap_or(0);
    let rotations: Vec<_> = (0..lines)
        .flat_map(|line| frequencies.iter().map(move |frequency| (line as f64 * frequency).sin_cos()))
        .map(|(sin, cos)| (cos as f32, sin as f32))
        .collect();
    let patches: usize = grids.iter().map(|grid| grid.iter().product::<usize>()).sum();
    let mut tables = RopeTables::with_capacity(patches * config.head_dim() / 2);
    for &[frames, rows, cols] in grids {
        for _ in 0..frames {
            for along in block_order(rows, cols, config.spatial_merge_size).flat_map(<[usize; 2]>::from) {
                let of_line = &rotations[along * frequencies.len()..][..frequencies.len()];
                tables.cos.extend(of_line.iter().map(|(cos, _)| cos));
                tables.sin.extend(of_line.iter().map(|(_, sin)| sin));
            }
        }
    }
    tables
}

/// The index of the grid line before position `i` of `count` positions spread evenly over `side` lines, from the first to
/// the last, and the weight of the next line.
fn between(i: usize, count: usize, side: usize) -> (usize, f32) {
    if count < 2 {
        return (0, 0.0);
    }
    let scaled = i * (side - 1);
    (scaled / (count - 1), (scaled % (count - 1)) as f32 / (count - 1) as f32)
}

/// Position embeddings of the patches, [patches, hidden], from the learned grid `table` [side², hidden]: bilinear,
/// with the corners of the image on the corners of the grid (align_corners).
pub fn position_embeddings(config: &VisionConfig, table: &[f32], grids: &[[usize; 3]]) -> Vec<f32> {
    let side = config.position_side();
    let hidden = (table.len() / (side * side).max(1)).max(1);
    let line = |row: usize, col: usize| &table[(row * side + col) * hidden..][..hidden];
    let mut output = Vec::new();
    for &[frames, rows, cols] in grids {
        let at = output.len();
        output.resize(at + rows * cols * hidden, 0.0);
        let places: Vec<_> = block_order(rows, cols, config.spatial_merge_size).collect();
        output[at..].par_chunks_exact_mut(hidden).zip(&places).for_each(|(patch, &(row, col))| {
            let ((top, down), (left, right)) = (between(row, rows, side), between(col, cols, side));
            let (bottom, next) = ((top + 1).min(side - 1), (left + 1).min(side - 1));
            let corners = [
                (line(top, left), (1.0 - down) * (1.0 - right)),
                (line(top, next), (1.0 - down) * right),
                (line(bottom, left), down * (1.0 - right)),
                (line(bottom, next), down * right),
            ];
            for (source, weight) in corners {
                patch.iter_mut().zip(source).for_each(|(value, &learned)| *value += weight * learned);
            }
        });
        for _ in 1..frames {
            output.extend_from_within(at..at + rows * cols * hidden);
        }
    }
    output
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAD: u32 = 9;

    #[test]
    fn text_after_an_image_starts_after_its_longer_side() {
        let ids = [1, PAD, PAD, PAD, PAD, PAD, PAD, 2, 3];
        let found = positions(&ids, |id| id == PAD, &[[1, 4, 6]], 2).unwrap();
        let image = [[1, 1, 1], [1, 1, 2], [1, 1, 3], [1, 2, 1], [1, 2, 2], [1, 2, 3]];
        assert_eq!(found.axes[1..7], image);
        assert_eq!(found.axes[7..], [[4; 3], [5; 3]]);
        assert_eq!(found.rope_delta, 6 - 9);
        // at the end, and with more than one frame
        let found = positions(&[1, PAD, PAD], |id| id == PAD, &[[2, 2, 2]], 2).unwrap();
        assert_eq!(found.axes, [[0; 3], [1; 3], [2, 1, 1]]);
    }

    #[test]
    fn frames_have_the_same_embeddings() {
        let tiny = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/qwen3-vl/tiny");
        let config = crate::config::load(&tiny).unwrap();
        let config = crate::config::seeing(&config).unwrap().tower.clone();
        let values = config.position_side().pow(2) * config.hidden_size;
        let table: Vec<f32> = (0..values).map(|i| i as f32).collect();
        let of = |grids: &[[usize; 3]]| position_embeddings(&config, &table, grids);
        let (image, frame) = (of(&[[1, 2, 4]]), of(&[[1, 4, 2]]));
        assert_eq!(image.len(), 8 * config.hidden_size);
        assert_eq!(of(&[[1, 2, 4], [3, 4, 2]]), [&image[..], &frame, &frame, &frame].concat());
    }

    #[test]
    fn tokens_and_images_must_fit() {
        let is_pad = |id| id == PAD;
        for (ids, grids) in [
            (&[PAD, PAD, 1][..], &[][..]),
            (&[PAD, 1, PAD], &[[1, 2, 4]]),
            (&[PAD], &[[1, 2, 4]]),
            (&[1, PAD], &[[1, 2, 4]]),
            (&[PAD], &[[1, 0, 2], [1, 2, 2]]),
            (&[1], &[[1, 2, 2]]),
        ] {
            let found = positions(ids, is_pad, grids, 2);
            assert!(matches!(found, Err(Error::Prompt { .. })), "{ids:?} {grids:?}: {found:?}");
        }
    }

    #[test]
    fn corners_meet_corners() {
        assert_eq!(between(0, 7, 48), (0, 0.0));
        assert_eq!(between(6, 7, 48), (47, 0.0));
        assert_eq!(between(1, 3, 4), (1, 0.5));
        assert_eq!(between(0, 1, 48), (0, 0.0));
        assert_eq!(between(1, 2, 48), (47, 0.0));
    }

    #[test]
    fn patches_of_a_block_are_adjacent() {
        let block = |left: usize| (0..9).map(move |i| (i / 3, left + i % 3));
        assert!(block_order(3, 6, 3).eq(block(0).chain(block(3))));
    }
}
