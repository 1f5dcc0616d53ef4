//! Masks chosen from scores of blocks.

use super::builders::own_blocks;
use super::mask::{BlockGrid, BlockMask, OP};
use crate::{Error, Result};

/// Which blocks of a row to keep, by the softmax of the row's block scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choose {
    /// The blocks with the highest scores, this many.
    TopK(usize),
    /// The fewest blocks whose shares of the softmax sum to at least this, above 0 and at most 1.
    Mass(f32),
}

impl BlockMask {
    /// A mask from block scores: `scores` [heads, rows, columns], before the softmax. Each row keeps the blocks at its own
    /// position, and the best of the others. Causal: only blocks up to a row's own compete, and within them each query
    /// attends to no key after its position.
    ///
    /// A NaN among the scores counts as the lowest.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for another number of scores, or a mass outside (0, 1].
    pub fn from_scores(
        grid: BlockGrid,
        heads: usize,
        scores: &[f32],
        choose: Choose,
        causal: bool,
    ) -> Result<Self> {
        let (rows, columns) = (grid.rows(), grid.columns());
        let unsupported =
            |argument, value: String, reason: String| Error::Unsupported { op: OP, argument, value, reason };
        if heads.checked_mul(rows).and_then(|rows| rows.checked_mul(columns)) != Some(scores.len()) {
            let reason = format!("[{heads}, {rows}, {columns}] are needed");
            return Err(unsupported("scores", format!("{} numbers", scores.len()), reason));
        }
        if let Choose::Mass(mass) = choose
            && !(mass > 0.0 && mass <= 1.0)
        {
            return Err(unsupported("mass", mass.to_string(), "it must be above 0 and at most 1".into()));
        }
        let mask = Self::from_rule(grid, heads, |head, row| {
            let own = own_blocks(grid, row).unwrap_or(0..0);
            let end = if causal { own.end.min(columns) } else { columns };
            let start = (head * rows + row) * columns;
            best(&scores[start..start + end], own.start..own.end.min(end), choose)
        })?;
        if causal { mask.and_causal() } else { Ok(mask) }
    }
}

/// The columns chosen of a row's scores; those of `own` first.
fn best(scores: &[f32], own: std::ops::Range<usize>, choose: Choose) -> Vec<usize> {
    let score = |column: usize| if scores[column].is_nan() { f32::NEG_INFINITY } else { scores[column] };
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| {
        own.contains(&b).cmp(&own.contains(&a)).then(score(b).total_cmp(&score(a))).then(a.cmp(&b))
    });
    let count = match choose {
        Choose::TopK(count) => count.max(own.len()),
        Choose::Mass(mass) => {
            let max = order.iter().map(|&column| score(column)).fold(f32::MIN, f32::max);
            let weight = |column: usize| f64::from(score(column) - max).exp();
            let wanted = f64::from(mass) * order.iter().map(|&column| weight(column)).sum::<f64>();
            let mut sum = 0.0;
            let enough = order.iter().position(|&column| {
                sum += weight(column);
                sum >= wanted
            });
            enough.map_or(order.len(), |last| (last + 1).max(own.len()))
        }
    };
    order.truncate(count);
    order
}
