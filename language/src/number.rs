//! The types that weights are read as.

use half::f16;
use half::slice::HalfFloatSliceExt;
use pascaline::Element;

/// f32 or f16.
pub trait Number: Element + Default {
    /// The nearest number; not finite if it is out of range.
    fn from_f32(value: f32) -> Self;

    /// The nearest numbers of as many values from the first on.
    fn narrow(to: &mut [Self], values: &[f32]);

    /// The number whose bytes, the lowest first, this one has in memory.
    fn in_native_order(self) -> Self;

    /// Whether it is a number in range.
    fn is_finite(self) -> bool;

    /// What is wrong with one that is not.
    fn wrong(self) -> String;
}

impl Number for f32 {
    fn from_f32(value: f32) -> Self {
        value
    }

    fn narrow(to: &mut [Self], values: &[f32]) {
        to.copy_from_slice(&values[..to.len()]);
    }

    fn in_native_order(self) -> Self {
        Self::from_le_bytes(self.to_ne_bytes())
    }

    fn is_finite(self) -> bool {
        self.is_finite()
    }

    fn wrong(self) -> String {
        format!("is {self}")
    }
}

impl Number for f16 {
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }

    fn narrow(to: &mut [Self], values: &[f32]) {
        let values = &values[..to.len()];
        to.convert_from_f32_slice(values); // by the processor's instructions, if it has them
    }

    fn in_native_order(self) -> Self {
        Self::from_le_bytes(self.to_ne_bytes())
    }

    fn is_finite(self) -> bool {
        self.is_finite()
    }

    fn wrong(self) -> String {
        "is beyond the range of f16 (±65504) or not finite; use f32".into()
    }
}

/// The index of the first value that is not finite, and what is wrong with it.
pub(crate) fn first_wrong<T: Number>(values: &[T]) -> Option<(usize, String)> {
    let at = values.iter().position(|value| !value.is_finite())?;
    Some((at, values[at].wrong()))
}
