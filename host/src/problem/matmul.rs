//! Matrix products.

use super::activate::Epilogue;
use crate::Tensor;
use crate::tensor::Layout;

/// Options of [`ops::matmul_into`](crate::ops::matmul_into): its factors and its kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matmul {
    /// The factor of the product.
    pub alpha: f32,
    /// The factor of the old contents of `c`; with 0, they are not read.
    pub beta: f32,
    /// The family of kernels; for measurements.
    pub variant: Variant,
    /// The number of splits of k (split-K); for measurements. `None`: chosen by the shape.
    pub splits: Option<u32>,
}

impl Default for Matmul {
    /// The plain product: alpha 1, beta 0, kernel and split by the shape.
    fn default() -> Self {
        Self { alpha: 1.0, beta: 0.0, variant: Variant::Auto, splits: None }
    }
}

/// The families of GPU kernels. The CPU has a single implementation and ignores this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Variant {
    /// By shape, layout and device.
    Auto,
    /// The register tiles of this name; operands aligned to 16 bytes. `pascaline tune` lists them.
    Tile(&'static str),
    /// 64 × 64 register tiles for any strides and alignment.
    Strided,
    /// `b` streamed once past up to 8 rows of `a` (1, if `b` is row-major).
    Vector,
    /// Two products, each as [`Auto`](Self::Auto) has it: so many rows of `c`, at least 1, and at least one row after them.
    Rows(u32),
    /// As [`Rows`](Self::Rows), of columns.
    Columns(u32),
}

/// The operands fused with a product: a norm as its prologue, and an epilogue. The caller has checked them.
#[derive(Clone, Copy, Default)]
pub struct Fusion<'a> {
    /// The weight \[k\] and eps of an RMS norm of a's rows. For the GPU's fused linear maps only.
    pub norm: Option<(&'a Tensor, f32)>,
    /// The bias and the residual are c's; the activation is for the GPU's fused linear maps only.
    pub epilogue: Epilogue<'a>,
}

/// A checked product: sizes, strides, and the fewest leading dimensions that describe it.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: MatrixStrides,
    pub b: MatrixStrides,
    /// Distance between the rows of c.
    pub ldc: usize,
    pub c_column: usize,
    /// Outermost first.
    pub batch: Vec<Batch>,
}

/// The distances between a matrix's rows and its columns, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixStrides {
    pub row: usize,
    pub column: usize,
}

/// A leading dimension and its strides in the three tensors; a stride is 0 if all entries use the same matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    pub extent: usize,
    pub a: usize,
    pub b: usize,
    pub c: usize,
}

impl Problem {
    pub fn new(c: &Layout, a: &Layout, b: &Layout) -> Self {
        let (c_dims, rank) = (c.shape.dims(), c.shape.rank());
        let stride = |x: &Layout, d: usize| match (d + x.shape.rank()).checked_sub(rank) {
            Some(at) if x.shape.dims()[at] != 1 => x.strides[at],
            _ => 0,
        };
        let mut batch: Vec<Batch> = Vec::new();
        for (d, &extent) in c_dims[..rank - 2].iter().enumerate() {
            let inner = Batch { extent, a: stride(a, d), b: stride(b, d), c: stride(c, d) };
            if inner.extent == 1 {
                continue;
            }
            match batch.last_mut() {
                Some(outer) if outer.continues_as(&inner) => {
                    *outer = Batch { extent: outer.extent * inner.extent, ..inner };
                }
                _ => batch.push(inner),
            }
        }
        let strides = |x: &Layout| MatrixStrides {
            row: x.strides[x.shape.rank() - 2],
            column: x.strides[x.shape.rank() - 1],
        };
        let mut problem = Self {
            m: c_dims[rank - 2],
            n: c_dims[rank - 1],
            k: a.shape.dims()[a.shape.rank() - 1],
            a: strides(a),
            b: strides(b),
            ldc: c.strides[rank - 2],
            c_column: c.strides[rank - 1],
            batch,
        };
        problem.fold_batch_into_rows();
        problem
    }

    /// Turns entries that share b and are contiguous in a and c into rows of one product.
    fn fold_batch_into_rows(&mut self) {
        while let Some(&inner) = self.batch.last() {
            if self.m == 1 && inner.b == 0 {
                (self.a.row, self.ldc) = (inner.a, inner.c);
            } else if inner.b != 0 || inner.a != self.m * self.a.row || inner.c != self.m * self.ldc {
                break;
            }
            self.m *= inner.extent;
            self.batch.pop();
        }
    }

    pub fn is_empty(&self) -> bool {
        self.m == 0 || self.n == 0 || self.batch.iter().any(|batch| batch.extent == 0)
    }

    /// The offsets into a, b and c of every entry of all leading dimensions but the last `kept`.
    pub fn offsets(&self, kept: usize) -> Vec<[usize; 3]> {
        let mut offsets = vec![[0; 3]];
        for batch in &self.batch[..self.batch.len().saturating_sub(kept)] {
            offsets = offsets
                .iter()
                .flat_map(|&[a, b, c]| {
                    (0..batch.extent).map(move |i| [a + i * batch.a, b + i * batch.b, c + i * batch.c])
                })
                .collect();
        }
        offsets
    }
}

impl Batch {
    fn continues_as(&self, inner: &Self) -> bool {
        self.a == inner.a * inner.extent
            && self.b == inner.b * inner.extent
            && self.c == inner.c * inner.extent
    }
}
