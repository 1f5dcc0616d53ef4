//! Shapes and strides.

use std::fmt;

/// The sizes of a tensor's dimensions, outermost first. Rank 0 is one element.
///
/// Functions that take `impl Into<Shape>` take arrays, slices, vectors and shapes.
///
/// ```
/// use pascaline::Shape;
/// let shape = Shape::from([2, 3, 4]);
/// assert_eq!((shape.rank(), shape.elements()), (3, 24));
/// assert_eq!(shape.contiguous_strides(), [12, 4, 1]);
/// assert_eq!(shape.rows_cols(), (6, 4));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Shape(Vec<usize>);

impl Shape {
    /// The sizes of the dimensions.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The number of elements; `None` if it exceeds `usize`.
    pub fn checked_elements(&self) -> Option<usize> {
        // with a size of 0 there are no elements, however large the others are
        if self.0.contains(&0) {
            return Some(0);
        }
        self.0.iter().try_fold(1usize, |product, &size| product.checked_mul(size))
    }

    /// The number of elements. It fits `usize` for the shape of every tensor.
    pub fn elements(&self) -> usize {
        self.checked_elements().unwrap_or(usize::MAX)
    }

    /// As a matrix: (the product of all dimensions but the last, the last). Rank 0 is 1 × 1.
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.0.split_last() {
            Some((&cols, outer)) => (outer.iter().product(), cols),
            None => (1, 1),
        }
    }

    /// The strides, in elements, of a contiguous tensor: row-major without gaps.
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
