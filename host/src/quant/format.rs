//! The formats: names and sizes.

pub use kernels_gpu::quant::Format;

/// Every format.
pub const FORMATS: [Format; kernels_gpu::quant::FORMATS] = Format::ALL;

/// The name in case ids, kernels and messages.
pub const fn name(format: Format) -> &'static str {
    format.descriptor().name
}

/// Bits of a quant, not counting scales.
pub const fn bits(format: Format) -> usize {
    format.descriptor().bits
}

/// Values of a block; a row may be divided only between blocks.
pub const fn block_len(format: Format) -> usize {
    format.descriptor().block
}

/// The relative error on normal values (root mean square), at most.
pub const fn error(format: Format) -> f64 {
    format.descriptor().error
}
