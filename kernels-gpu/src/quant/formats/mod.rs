//! The storage formats of weights: a file each, and a line each in one of the two tables below.
//!
//! A format's file has how kernels read it ([`Weights`](super::weights::Weights)) and write it (`encode`), and for the host how a row
//! is encoded, how blocks stand in files, AVX2 and AVX-512, and the error. A type of files without kernels has only how its blocks are decoded and,
//! if it can be written, encoded. Everything else asks: kernels by the lists that [`for_each_format!`](crate::for_each_format) makes,
//! the host by [`Descriptor`] and [`GgmlType`].

mod format;
pub mod i8;
pub mod iq4_nl;
pub mod iq4_xs;
pub mod levels16;
pub mod mxfp4;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_k;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(not(target_arch = "nvptx64"))]
mod host;
#[cfg(not(target_arch = "nvptx64"))]
mod q4_1;
#[cfg(not(target_arch = "nvptx64"))]
mod q5_0;
#[cfg(not(target_arch = "nvptx64"))]
mod q5_1;

pub use format::{FORMATS, Format};
#[cfg(not(target_arch = "nvptx64"))]
pub use host::{Descriptor, DeviceStorage, FileType, Halves, Scales};

use super::encode::Encode;
use cuda_std::{KernelInfo, KernelSpec};

/// The table of types of files that have no kernels: a line has the variant of [`GgmlType`] and the file.
#[cfg(not(target_arch = "nvptx64"))]
macro_rules! for_each_other_type {
    ($callback:ident $($before:tt)*) => {
        $callback! {
            $($before)*
            Q4_1 q4_1;
            Q5_0 q5_0;
            Q5_1 q5_1;
        }
    };
}

macro_rules! formats {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// The kernels that quantise, by format. grid: [`Encode`] says.
        pub const ENCODE: [KernelSpec<Encode>; FORMATS] = [$($file::encode),*];

        /// The same.
        pub const KERNELS: &[KernelInfo] = &[$($file::encode.info()),*];

        #[cfg(not(target_arch = "nvptx64"))]
        impl Format {
            /// The description of the format.
            pub const fn descriptor(self) -> &'static Descriptor {
                const TABLE: &[Descriptor; FORMATS] = &[$(Descriptor::new::<$file::$format>($name)),*];
                &TABLE[self as usize]
            }
        }
    };
}

crate::for_each_format!(formats);

#[cfg(not(target_arch = "nvptx64"))]
mod types {
    use super::*;
    use crate::quant::formats::host::{BF16, F16, F32, FileType, file_type};

    macro_rules! types {
        ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
            for_each_other_type! { types $([$file $format $($ggml)?])* }
        };
        ($([$file:ident $format:ident $($ggml:ident)?])* $($other:ident $other_file:ident;)*) => {
            /// How a tensor's values are stored in a GGUF file. Names, numbers and blocks are ggml's.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
            #[allow(missing_docs, non_camel_case_types)] // the names say all there is
            pub enum GgmlType {
                F32,
                F16,
                BF16,
                $($($ggml,)?)*
                $($other,)*
            }

            const LIST: &[&str] = &["F32", "F16", "BF16", $($(stringify!($ggml),)?)* $(stringify!($other),)*];

            impl GgmlType {
                /// Every supported type.
                pub const ALL: [Self; LIST.len()] =
                    [Self::F32, Self::F16, Self::BF16, $($(Self::$ggml,)?)* $(Self::$other,)*];

                /// The description of the type.
                pub const fn descriptor(self) -> &'static FileType {
                    match self {
                        Self::F32 => &F32,
                        Self::F16 => &F16,
                        Self::BF16 => &BF16,
                        $($(Self::$ggml => const { &file_type::<$file::$format>() },)?)*
                        $(Self::$other => &$other_file::TYPE,)*
                    }
                }
            }
        };
    }

    crate::for_each_format!(types);

    impl GgmlType {
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
            self.descriptor().id
        }

        /// Its name.
        pub const fn name(self) -> &'static str {
            self.descriptor().name
        }

        /// The values of a block; a row is whole blocks.
        pub const fn block(self) -> usize {
            self.descriptor().block
        }

        /// The bytes of a block.
        pub const fn block_bytes(self) -> usize {
            self.descriptor().bytes
        }

        /// Whether values are stored in blocks with scales, and not one by one.
        pub const fn is_quantized(self) -> bool {
            self.block() > 1
        }

        /// The bytes of `values` values, which must be whole blocks.
        pub const fn bytes(self, values: usize) -> usize {
            values / self.block() * self.block_bytes()
        }
    }

    impl DeviceStorage {
        /// The storage of a type.
        pub const fn from(ty: GgmlType) -> Self {
            ty.descriptor().storage
        }

        /// The quantised format, if there is one.
        pub const fn format(self) -> Option<Format> {
            match self {
                Self::Plain => None,
                Self::AsIs(format) | Self::Converted(format) => Some(format),
            }
        }
    }
}
#[cfg(not(target_arch = "nvptx64"))]
pub use types::GgmlType;
