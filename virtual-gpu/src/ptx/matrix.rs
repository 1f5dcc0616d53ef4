//! The decoded form of instructions on matrices that a warp holds: `mma` and `ldmatrix`.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Four products of 8 × 4 by 4 × 8, each of eight lanes; A and B by rows or columns.
    M8N8K4 { a_by_columns: bool, b_by_columns: bool },
    /// One product of 16 × 8 by 8 × 8.
    M16N8K8,
}

/// `mma` of f16 matrices: d = a · b + c. Its operands are lists of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mma {
    pub shape: Shape,
    /// f32, else f16 in pairs.
    pub d_single: bool,
    pub c_single: bool,
}

impl Mma {
    /// Registers of a lane for d, a, b, c.
    pub fn registers(self) -> [usize; 4] {
        let (a, b, elements) = match self.shape {
            Shape::M8N8K4 { .. } => (2, 2, 8),
            Shape::M16N8K8 => (2, 1, 4),
        };
        let of = |single: bool| if single { elements } else { elements / 2 };
        [of(self.d_single), a, b, of(self.c_single)]
    }
}

/// `ldmatrix`: d is a list of as many registers as there are matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadMatrix {
    pub matrices: u8,
    pub transposed: bool,
    pub addr_wide: bool,
}
