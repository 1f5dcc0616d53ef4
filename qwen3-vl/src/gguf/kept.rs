//! In which format a tensor of a file is on the device.

use super::GgmlType;
use pascaline::quant::Format;

/// How the matrices of a type are stored on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// As numbers of their own, in the type chosen for these.
    Plain,
    /// Bit for bit.
    AsIs(Format),
    /// Quantised anew, as there are no kernels for the type. The format is the nearest in size that loses clearly less than the
    /// type itself has lost (root mean square of normal values, type and conversion: Q4_1 7.9 % and 1.7 %, Q5_0 4.6 % and
    /// 1.6 %, Q5_1 3.8 % and 1.8 %, Q3_K 21 % and 3 %).
    Converted(Format),
}

impl Kept {
    /// Of a type.
    pub const fn of(ty: GgmlType) -> Self {
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

    /// The format, unless it is none.
    pub const fn format(self) -> Option<Format> {
        match self {
            Self::Plain => None,
            Self::AsIs(format) | Self::Converted(format) => Some(format),
        }
    }
}
