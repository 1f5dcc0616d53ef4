//! Shapes and strides.

use std::fmt;

/// The extents of a tensor, outermost first. Rank 0 is one element.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// The extents.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// How many extents there are.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements; `None` if it does not fit `usize`.
    pub fn checked_elements(&self) -> Option<usize> {
        // a zero extent makes the rest irrelevant, however large
        if self.0.contains(&0) {
            return Some(0);
        }
        self.0.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent))
    }

    /// The number of elements. Tensors are only made with shapes whose count fits.
    pub fn elements(&self) -> usize {
        self.checked_elements().unwrap_or(usize::MAX)
    }

    /// Seen as a matrix: all extents but the last multiplied, and the last. Rank 0 is 1 × 1.
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.0.split_last() {
            Some((&cols, outer)) => (outer.iter().product(), cols),
            None => (1, 1),
        }
    }

    /// The strides, in elements, of a row-major tensor without gaps.
    pub fn contiguous_strides(&self) -> Vec<usize> {
        let mut strides = vec![1usize; self.rank()];
        for d in (1..self.rank()).rev() {
            strides[d - 1] = strides[d].saturating_mul(self.0[d].max(1));
        }
        strides
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Self {
        Self(dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Self {
        Self(dims.to_vec())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Self {
        Self(dims.to_vec())
    }
}

impl From<&Shape> for Shape {
    fn from(shape: &Shape) -> Self {
        shape.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;

    #[test]
    fn counts_and_strides() {
        let shape = Shape::from([2, 3, 4]);
        assert_eq!(shape.elements(), 24);
        assert_eq!(shape.rows_cols(), (6, 4));
        assert_eq!(shape.contiguous_strides(), [12, 4, 1]);
        assert_eq!(Shape::from([]).elements(), 1);
        assert_eq!(Shape::from([]).rows_cols(), (1, 1));
    }

    #[test]
    fn overflow_is_seen_and_zero_wins_over_it() {
        assert_eq!(Shape::from([usize::MAX, 2]).checked_elements(), None);
        assert_eq!(Shape::from([usize::MAX, 2, 0]).checked_elements(), Some(0));
    }
}
