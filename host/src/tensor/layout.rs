//! The shape and strides of a view.

use crate::{DType, Error, Result, Shape};

/// The shape of a view, and where its elements are in the storage.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    pub dtype: DType,
    pub shape: Shape,
    /// In elements.
    pub strides: Vec<usize>,
    /// In elements.
    pub offset: usize,
}

impl Layout {
    pub(super) fn contiguous(dtype: DType, shape: Shape) -> Result<Self> {
        let bytes = shape.checked_elements().and_then(|elements| elements.checked_mul(dtype.size()));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            let elements = shape.dims().iter().fold(1u128, |product, &d| product.saturating_mul(d as u128));
            let limit = (isize::MAX as usize / dtype.size()) as u128;
            return Err(Error::TooLarge { op: "tensor", argument: "shape", elements, limit });
        }
        Ok(Self { dtype, strides: shape.contiguous_strides(), shape, offset: 0 })
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.shape.dims().iter().zip(&self.strides).rev() {
            if size != 1 && stride != expected {
                return self.shape.elements() == 0;
            }
            expected *= size.max(1);
        }
        true
    }

    /// One past the largest element index that the view reaches, relative to its offset.
    pub(crate) fn span(&self) -> usize {
        if self.shape.elements() == 0 {
            return 0;
        }
        1 + self
            .shape
            .dims()
            .iter()
            .zip(&self.strides)
            .map(|(&size, &stride)| (size - 1) * stride)
            .sum::<usize>()
    }

    pub(crate) fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<Self> {
        let size = self.shape.dims().get(dim).copied();
        if size.is_none_or(|size| start.checked_add(len).is_none_or(|end| end > size)) {
            return Err(Error::Shape {
                op: "narrow",
                argument: "tensor",
                expected: format!("dimension {dim} to have {start} + {len} entries"),
                found: self.shape.clone(),
            });
        }
        let mut dims = self.shape.dims().to_vec();
        dims[dim] = len;
        let shape = Shape::from(dims);
        // a view without elements begins with the storage, so that its offset is inside
        let offset = if shape.elements() == 0 { 0 } else { self.offset + start * self.strides[dim] };
        Ok(Self { dtype: self.dtype, shape, strides: self.strides.clone(), offset })
    }

    /// With a dimension of size 1 inserted before `dim`.
    pub(super) fn unsqueeze(&self, dim: usize) -> Self {
        let (mut dims, mut strides) = (self.shape.dims().to_vec(), self.strides.clone());
        dims.insert(dim, 1);
        strides.insert(dim, 1);
        Self { dtype: self.dtype, shape: dims.into(), strides, offset: self.offset }
    }

    pub(super) fn swap_dims(&self, a: usize, b: usize) -> Result<Self> {
        let rank = self.shape.rank();
        if a >= rank || b >= rank {
            let expected = format!("dimensions {a} and {b}");
            return Err(Error::Shape {
                op: "swap_dims",
                argument: "tensor",
                expected,
                found: self.shape.clone(),
            });
        }
        let (mut dims, mut strides) = (self.shape.dims().to_vec(), self.strides.clone());
        dims.swap(a, b);
        strides.swap(a, b);
        Ok(Self { dtype: self.dtype, shape: dims.into(), strides, offset: self.offset })
    }

    pub(super) fn reshape(&self, shape: Shape) -> Result<Self> {
        if !self.is_contiguous() {
            return Err(Error::Layout { op: "reshape", argument: "tensor", needed: "contiguous" });
        }
        if shape.checked_elements() != Some(self.shape.elements()) {
            return Err(Error::Shape {
                op: "reshape",
                argument: "tensor",
                expected: format!("as many elements as {shape}"),
                found: self.shape.clone(),
            });
        }
        Ok(Self { dtype: self.dtype, strides: shape.contiguous_strides(), shape, offset: self.offset })
    }
}
