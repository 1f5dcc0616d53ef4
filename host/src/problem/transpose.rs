//! Transposes.

use crate::Shape;

/// A shape of at least two dimensions as [batch, rows, cols].
pub fn matrices(shape: &Shape) -> (usize, usize, usize) {
    match shape.dims() {
        [batch @ .., rows, cols] => (batch.iter().product(), *rows, *cols),
        _ => (1, 1, shape.elements()),
    }
}
