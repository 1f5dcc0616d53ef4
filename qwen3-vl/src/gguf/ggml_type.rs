//! The types of tensors, and the bytes of their blocks.

/// How a tensor's values are stored in the file. Names, numbers and blocks are ggml's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, non_camel_case_types)] // the names say all there is
pub enum GgmlType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    BF16,
}

impl GgmlType {
    /// Every supported type.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
    ];

    /// Its number in files, its name, the values per block and the bytes per block.
    const fn row(self) -> (u32, &'static str, usize, usize) {
        match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::Q4_0 => (2, "Q4_0", 32, 18),
            Self::Q4_1 => (3, "Q4_1", 32, 20),
            Self::Q5_0 => (6, "Q5_0", 32, 22),
            Self::Q5_1 => (7, "Q5_1", 32, 24),
            Self::Q8_0 => (8, "Q8_0", 32, 34),
            Self::Q2_K => (10, "Q2_K", 256, 84),
            Self::Q3_K => (11, "Q3_K", 256, 110),
            Self::Q4_K => (12, "Q4_K", 256, 144),
            Self::Q5_K => (13, "Q5_K", 256, 176),
            Self::Q6_K => (14, "Q6_K", 256, 210),
            Self::IQ4_NL => (20, "IQ4_NL", 32, 18),
            Self::IQ4_XS => (23, "IQ4_XS", 256, 136),
            Self::BF16 => (30, "BF16", 1, 2),
        }
    }

    /// The type of this number in a file.
    pub fn of_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.id() == id)
    }

    /// The type of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name() == name)
    }

    /// Its number in files.
    pub const fn id(self) -> u32 {
        self.row().0
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.row().1
    }

    /// The values of a block; a row is whole blocks.
    pub const fn block(self) -> usize {
        self.row().2
    }

    /// The bytes of a block.
    pub const fn block_bytes(self) -> usize {
        self.row().3
    }

    /// Whether values are stored in blocks with scales, and not one by one.
    pub const fn is_quantized(self) -> bool {
        self.block() > 1
    }

    /// The bytes of `values` values, which must be whole blocks.
    pub const fn bytes(self, values: usize) -> usize {
        values / self.block() * self.block_bytes()
    }

    /// The offsets of the f16 scales in a block.
    pub const fn scales(self) -> &'static [usize] {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => &[],
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::IQ4_NL | Self::IQ4_XS => &[0],
            Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K => &[0, 2],
            Self::Q2_K => &[80, 82],
            Self::Q3_K => &[108],
            Self::Q6_K => &[208],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::GgmlType;

    #[test]
    fn numbers_and_names_are_unique_and_blocks_hold_their_scales() {
        for ty in GgmlType::ALL {
            assert_eq!((GgmlType::of_id(ty.id()), GgmlType::of_name(ty.name())), (Some(ty), Some(ty)));
            assert!(ty.scales().iter().all(|at| at + 2 <= ty.block_bytes()), "{ty:?}");
            assert_eq!(ty.is_quantized(), !ty.scales().is_empty(), "{ty:?}");
        }
        assert_eq!(GgmlType::Q6_K.bytes(512), 420);
        assert_eq!(GgmlType::of_id(4), None, "withdrawn from the format");
    }
}
