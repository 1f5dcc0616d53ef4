//! Strided copies.

/// The most dimensions that may remain after [`merge`].
pub const MAX_DIMS: usize = 6;

/// A dimension that can't be merged with its neighbours, and the strides along it, in elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dim {
    pub extent: usize,
    pub y: usize,
    pub x: usize,
}

/// Removes dimensions of size 1 and merges neighbours that are contiguous in both tensors; outermost first.
pub fn merge(extents: &[usize], y_strides: &[usize], x_strides: &[usize]) -> Vec<Dim> {
    let mut dims: Vec<Dim> = Vec::with_capacity(extents.len());
    for ((&extent, &y), &x) in extents.iter().zip(y_strides).zip(x_strides) {
        match dims.last_mut() {
            _ if extent == 1 => {}
            Some(outer) if outer.y == y * extent && outer.x == x * extent => {
                *outer = Dim { extent: outer.extent * extent, y, x };
            }
            _ => dims.push(Dim { extent, y, x }),
        }
    }
    dims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_without_a_gap_are_merged() {
        let dim = |extent, y, x| Dim { extent, y, x };
        assert_eq!(merge(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1]), [dim(24, 1, 1)]);
        assert_eq!(merge(&[2, 3, 4], &[12, 4, 1], &[24, 8, 1]), [dim(6, 4, 8), dim(4, 1, 1)]);
        assert_eq!(merge(&[2, 1, 4], &[4, 99, 1], &[4, 7, 1]), [dim(8, 1, 1)]);
        assert_eq!(merge(&[3, 2], &[2, 1], &[1, 3]), [dim(3, 2, 1), dim(2, 1, 3)]);
        assert_eq!(merge(&[1, 1], &[1, 1], &[5, 1]), []);
    }
}
