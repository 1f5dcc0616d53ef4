//! Element types.

use half::f16;
use std::fmt;

/// What a tensor's elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision, for storage; arithmetic is in f32.
    F16,
    /// Unsigned 32-bit: indices and token ids.
    U32,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 => 2,
        }
    }

    /// As case ids and messages spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::U32 => "u32",
        }
    }

    /// The distance from 1 to the next larger value; zero for integers.
    pub const fn epsilon(self) -> f64 {
        match self {
            Self::F32 => f32::EPSILON as f64,
            Self::F16 => 0.0009765625, // 2⁻¹⁰
            Self::U32 => 0.0,
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that tensors are made of.
pub trait Element: bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq {
    /// Its name in a tensor.
    const DTYPE: DType;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
}
impl Element for f16 {
    const DTYPE: DType = DType::F16;
}
impl Element for u32 {
    const DTYPE: DType = DType::U32;
}

/// An element type that arithmetic is done on, in f32.
pub trait Float: Element {
    /// Exact.
    fn to_f32(self) -> f32;
    /// Nearest, ties to even.
    fn from_f32(value: f32) -> Self;
}

impl Float for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

impl Float for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self::from_f32(value)
    }
}
