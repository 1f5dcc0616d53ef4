//! The choice of scales.

/// How the scale of a row (`I8`) or of a block (`Q8_0`, `Q4_0`) is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleChoice {
    /// By the largest magnitude, which becomes the largest quant: nothing is clipped.
    AbsMax,
    /// The scale with the smallest sum of squared errors, among about a hundred scales.
    LeastError,
    /// This share of the magnitudes, above 0 and at most 1, is within the quants' range; larger ones are clipped.
    Percentile(f32),
}
