//! Element types.

use crate::simd::{dot, dot_f16, narrow, widen};
use half::f16;
use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision, for storage. Arithmetic is in f32.
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

    /// `f32`, `f16` or `u32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::U32 => "u32",
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

/// A Rust type that a tensor's elements can have: f32, f16, u32. The trait is sealed, because a type of another size than
/// its [`DTYPE`](Self::DTYPE)'s would access memory outside a tensor.
///
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
/// #[repr(C)]
/// struct Pair([f32; 2]);
/// impl pascaline::Element for Pair {
///     const DTYPE: pascaline::DType = pascaline::DType::F32;
///     fn from_f64(value: f64) -> Self {
///         Self([value as f32; 2])
///     }
///     fn to_f64(self) -> f64 {
///         self.0[0].into()
///     }
/// }
/// ```
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq {
    /// The type as a value.
    const DTYPE: DType;

    /// The nearest element, ties to even; f16 is rounded to f32 first. For u32 the fraction is dropped, and a number out of
    /// range becomes the nearest one in range (NaN: 0).
    fn from_f64(value: f64) -> Self;

    /// The same number, exactly.
    fn to_f64(self) -> f64;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! element {
    ($type:ty, $dtype:ident, $from:expr, $to:expr) => {
        impl sealed::Sealed for $type {}
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            #[inline]
            fn from_f64(value: f64) -> Self {
                $from(value)
            }
            #[inline]
            fn to_f64(self) -> f64 {
                $to(self)
            }
        }
    };
}

element!(f32, F32, |value| value as f32, f64::from);
element!(f16, F16, |value| f16::from_f32(value as f32), f64::from);
element!(u32, U32, |value| value as u32, f64::from);

/// An element type for arithmetic, which is done in f32.
pub trait Float: Element {
    /// The same number, exactly.
    fn to_f32(self) -> f32;
    /// The nearest element, ties to even.
    fn from_f32(value: f32) -> Self;

    /// [`to_f32`](Self::to_f32) of each element, by vector instructions. Both slices have the same length.
    fn read(from: &[Self], to: &mut [f32]);
    /// [`from_f32`](Self::from_f32) of each value, by vector instructions. Both slices have the same length.
    fn write(from: &[f32], to: &mut [Self]);
    /// Σ a·b, by vector instructions. Both slices have the same length.
    fn dot(a: &[f32], b: &[Self]) -> f32;
    /// The elements as f32: the slice itself, or converted into `room`, which has the same length.
    fn values<'a>(from: &'a [Self], room: &'a mut [f32]) -> &'a [f32];
    /// Calls `f` to write the elements as f32: in place, or into `room`, which has the same length and is then converted.
    fn fill(to: &mut [Self], room: &mut [f32], f: impl FnOnce(&mut [f32]));
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
    #[inline(always)]
    fn read(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    #[inline(always)]
    fn write(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
    #[inline(always)]
    fn dot(a: &[f32], b: &[Self]) -> f32 {
        dot(a, b)
    }
    #[inline(always)]
    fn values<'a>(from: &'a [Self], _: &'a mut [f32]) -> &'a [f32] {
        from
    }
    #[inline(always)]
    fn fill(to: &mut [Self], _: &mut [f32], f: impl FnOnce(&mut [f32])) {
        f(to);
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
    #[inline(always)]
    fn read(from: &[Self], to: &mut [f32]) {
        widen(from, to);
    }
    #[inline(always)]
    fn write(from: &[f32], to: &mut [Self]) {
        narrow(from, to);
    }
    #[inline(always)]
    fn dot(a: &[f32], b: &[Self]) -> f32 {
        dot_f16(a, b)
    }
    #[inline(always)]
    fn values<'a>(from: &'a [Self], room: &'a mut [f32]) -> &'a [f32] {
        Self::read(from, room);
        room
    }
    #[inline(always)]
    fn fill(to: &mut [Self], room: &mut [f32], f: impl FnOnce(&mut [f32])) {
        f(room);
        Self::write(room, to);
    }
}
