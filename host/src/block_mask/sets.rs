//! Unions and intersections of masks.

use super::mask::{Assembler, BlockMask, Cell, OP};
use crate::{Error, Result};
use std::cmp::Ordering;

impl BlockMask {
    /// The pairs in either mask. A mask for all heads is combined with each head of the other.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if grids or numbers of heads differ.
    pub fn union(&self, other: &Self) -> Result<Self> {
        self.merge(other, true, |a, b| a | b)
    }

    /// The pairs in both masks; otherwise as [`union`](Self::union).
    ///
    /// # Errors
    /// As [`union`](Self::union).
    pub fn intersection(&self, other: &Self) -> Result<Self> {
        self.merge(other, false, |a, b| a & b)
    }

    fn merge(&self, other: &Self, keep_single: bool, join: impl Fn(u128, u128) -> u128) -> Result<Self> {
        let fits = self.heads == other.heads || self.heads == 1 || other.heads == 1;
        if self.grid != other.grid || !fits {
            let describe = |mask: &Self| format!("{:?} for {} heads", mask.grid, mask.heads);
            return Err(Error::Unsupported {
                op: OP,
                argument: "other",
                value: describe(other),
                reason: format!("it is combined with {}", describe(self)),
            });
        }
        let heads = if self.heads == 1 { other.heads } else { self.heads };
        let mut result = Assembler::new(self.grid, heads);
        let mut joined = vec![0; self.grid.block];
        for head in 0..heads {
            for row in 0..self.grid.rows() {
                let mut left = self.row(head % self.heads, row).peekable();
                let mut right = other.row(head % other.heads, row).peekable();
                loop {
                    let order = match (left.peek(), right.peek()) {
                        (None, None) => break,
                        (Some(_), None) => Ordering::Less,
                        (None, Some(_)) => Ordering::Greater,
                        (Some((a, _)), Some((b, _))) => a.cmp(b),
                    };
                    let a = if order == Ordering::Greater { None } else { left.next() };
                    let b = if order == Ordering::Less { None } else { right.next() };
                    match (a, b) {
                        (Some((column, a)), Some((_, b))) => {
                            joined
                                .iter_mut()
                                .enumerate()
                                .for_each(|(i, bits)| *bits = join(a.row(i), b.row(i)));
                            result.push(column, Cell::Part(&joined));
                        }
                        (Some((column, cell)), None) | (None, Some((column, cell))) if keep_single => {
                            result.push(column, cell);
                        }
                        _ => {}
                    }
                }
                result.end_row()?;
            }
        }
        Ok(result.mask)
    }
}
