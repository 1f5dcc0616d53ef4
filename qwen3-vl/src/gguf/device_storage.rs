//! The format on the device of each tensor type in files.

use super::GgmlType;
use pascaline::quant::Format;

/// How matrices of a type are stored on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStorage {
    /// As floating-point numbers, in the type chosen for those.
    Plain,
    /// In the same format, bit for bit.
    AsIs(Format),
    /// Converted, as there are no kernels for the type. The target is the nearest format in size whose error is clearly
    /// below the type's own (root mean square on normal values, type and conversion: Q4_1 7.9 % and 1.7 %, Q5_0 4.6 % and
    /// 1.6 %, Q5_1 3.8 % and 1.8 %, Q3_K 21 % and 3 %).
    Converted(Format),
}

impl DeviceStorage {
    /// The storage of a type.
    pub const fn from(ty: GgmlType) -> Self {
        match ty {
            GgmlType::F32 | GgmlType::F16 | GgmlType::BF16 => Self::Plain,
            GgmlType::Q8_0 => Self::AsIs(Format::Q8_0),
            GgmlType::Q4_0 => Self::AsIs(Format::Q4_0),
            GgmlType::Q4_K => Self::AsIs(Format::Q4K),
            GgmlType::Q5_K => Self::AsIs(Format::Q5K),
            GgmlType::Q6_K => Self::AsIs(Format::Q6K),
            GgmlType::IQ4_NL => Self::AsIs(Format::Iq4Nl),
            GgmlType::IQ4_XS => Self::AsIs(Format::Iq4Xs),
            GgmlType::Q4_1 | GgmlType::Q2_K | GgmlType::Q3_K => Self::Converted(Format::Q4K),
            GgmlType::Q5_0 | GgmlType::Q5_1 => Self::Converted(Format::Q6K),
        }
    }

    /// The quantised format, if there is one.
    pub const fn format(self) -> Option<Format> {
        match self {
            Self::Plain => None,
            Self::AsIs(format) | Self::Converted(format) => Some(format),
        }
    }
}
