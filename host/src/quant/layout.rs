//! A format in memory and in GGUF files: one line of [`LAYOUTS`]. Whatever depends on the format alone asks it; the arithmetic is
//! the kernels' (`kernels_gpu::quant`).

use super::Format;
use super::gguf_blocks::{self, FileBlocks};
use crate::DType;
use kernels_gpu::quant::blocks::{BLOCK, SUPER_BLOCK, ScalesIq4Xs, ScalesQ4K, ScalesQ6K};

/// The layout of a format.
pub(crate) struct Layout {
    format: Format,
    pub name: &'static str,
    /// Bits of a quant, not counting scales.
    pub bits: usize,
    /// The memory of a row is a multiple of this many values.
    pub block: usize,
    pub scales: Scales,
    /// The blocks of a GGUF file; `None` if it has no such format.
    pub file: Option<FileBlocks>,
}

/// The scales of a row.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scales {
    /// One f32.
    Row,
    /// One f16 for each block of 32 values.
    Halves,
    /// This many u32 words for each super-block of 256 values.
    Words(usize),
}

impl Scales {
    /// The type of a row's scales, and their shape for rows of `k` values.
    pub fn of_row(self, k: usize) -> (DType, Vec<usize>) {
        match self {
            Self::Row => (DType::F32, vec![]),
            Self::Halves => (DType::F16, vec![k / BLOCK]),
            Self::Words(words) => (DType::U32, vec![k / SUPER_BLOCK, words]),
        }
    }

    /// The bytes of a row's scales.
    pub fn row_bytes(self, k: usize) -> usize {
        let (dtype, shape) = self.of_row(k);
        shape.iter().product::<usize>() * dtype.size()
    }
}

const WORDS_Q4_K: Scales = Scales::Words(size_of::<ScalesQ4K>() / 4);
const WORDS_Q6_K: Scales = Scales::Words(size_of::<ScalesQ6K>() / 4);
const WORDS_IQ4_XS: Scales = Scales::Words(size_of::<ScalesIq4Xs>() / 4);

/// A line of the table.
const fn line(
    (format, name): (Format, &'static str),
    bits: usize,
    block: usize,
    scales: Scales,
    file: Option<FileBlocks>,
) -> Layout {
    Layout { format, name, bits, block, scales, file }
}

/// Every format, in the order of their numbers.
#[rustfmt::skip] // a table
const LAYOUTS: [Layout; kernels_gpu::quant::FORMATS] = [
    line((Format::I8, "i8"), 8, BLOCK, Scales::Row, None),
    line((Format::Q8_0, "q8_0"), 8, BLOCK, Scales::Halves, Some(gguf_blocks::Q8_0)),
    line((Format::Q4_0, "q4_0"), 4, BLOCK, Scales::Halves, Some(gguf_blocks::Q4_0)),
    line((Format::Q4K, "q4_k"), 4, SUPER_BLOCK, WORDS_Q4_K, Some(gguf_blocks::Q4K)),
    line((Format::Q5K, "q5_k"), 5, SUPER_BLOCK, WORDS_Q4_K, Some(gguf_blocks::Q5K)),
    line((Format::Q6K, "q6_k"), 6, SUPER_BLOCK, WORDS_Q6_K, Some(gguf_blocks::Q6K)),
    line((Format::Iq4Nl, "iq4_nl"), 4, BLOCK, Scales::Halves, Some(gguf_blocks::IQ4_NL)),
    line((Format::Iq4Xs, "iq4_xs"), 4, SUPER_BLOCK, WORDS_IQ4_XS, Some(gguf_blocks::IQ4_XS)),
];

/// Every format.
pub const FORMATS: [Format; kernels_gpu::quant::FORMATS] = {
    let mut formats = [Format::I8; kernels_gpu::quant::FORMATS];
    let mut i = 0;
    while i < formats.len() {
        formats[i] = LAYOUTS[i].format;
        assert!(formats[i] as usize == i, "in the order of their numbers");
        i += 1;
    }
    formats
};

/// The layout of this format.
pub(crate) const fn layout(format: Format) -> &'static Layout {
    const TABLE: &[Layout; LAYOUTS.len()] = &LAYOUTS;
    &TABLE[format as usize]
}

/// Values of a block, which share a scale; a row may be divided only between blocks.
pub const fn block_len(format: Format) -> usize {
    layout(format).block
}

/// Bits of a quant, not counting scales.
pub const fn bits(format: Format) -> usize {
    layout(format).bits
}

/// The name in case ids, kernels and messages.
pub const fn name(format: Format) -> &'static str {
    layout(format).name
}
