//! How keys and values are stored, over which the kernels of attention and of `rope_append` are generic.
//!
//! | storage         | a row of d columns                                               | a value       |
//! |-----------------|------------------------------------------------------------------|---------------|
//! | [`floats`]      | d elements, or d codes of a 16-bit float with any exponent bits  | the element   |
//! | a file each     | blocks of 32 columns, as those of weights in the format          | as there      |
//!
//! A format of blocks is a file here and a line in [`for_each_kv_format`](crate::for_each_kv_format). Quants and scales are in separate
//! arrays, as in [`quant::formats`](crate::quant::formats), which encodes on the host, and has the name, the bits and the error.

pub mod floats;
pub mod q8_0;
pub mod stored;

#[cfg(not(target_arch = "nvptx64"))]
pub use stored::HostBlocks;
pub use stored::Stored;

/// The table of formats of blocks: calls a macro with the lines. A line has the variant of the host's `KvFormat`, which is also that of
/// [`Format`](crate::quant::Format) and the type in the file; the file; and the name in kernels.
#[macro_export]
macro_rules! for_each_kv_format {
    ($callback:ident $($before:tt)*) => {
        $callback! {
            $($before)*
            /// 8-bit quants with an f16 scale for every 32 columns of a head: 8.5 bits a value.
            Q8_0 q8_0 "q8_0";
        }
    };
}

/// Calls a macro with a line for each [`Storage`]: the module of its kernels, the type that reads and writes, the types' names in kernels,
/// and the widths of heads that have kernels. Those for up to 128 columns serve all.
macro_rules! for_each_storage {
    ($callback:ident $($before:tt)*) => { $crate::for_each_kv_format! { for_each_storage @ [$callback $($before)*] } };
    (@ [$callback:ident $($before:tt)*] $($(#[$about:meta])* $format:ident $file:ident $name:literal;)*) => {
        $callback! {
            $($before)*
            as_f32: *const f32, "f32", [d64 64 "d64"] [d128 128 "d128"];
            as_f16: *const $crate::device::F16, "f32_f16", [d64 64 "d64"] [d128 128 "d128"];
            as_coded: $crate::kv::floats::Coded, "f32_coded", [d128 128 "d128"];
            $($file: $crate::kv::$file::$format, concat!("f32_", $name), [d128 128 "d128"];)*
        }
    };
}
pub(crate) use for_each_storage;

macro_rules! formats {
    ($($(#[$about:meta])* $format:ident $file:ident $name:literal;)*) => {
        /// How kernels read and write keys and values: an index into the lists of those whose queries are f32.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)] // the names say all there is
        pub enum Storage {
            F32,
            F16,
            Coded,
            $($format,)*
        }

        /// Their number.
        pub const STORAGES: usize = 3 + [$($name),*].len();

        // the host allocates these scales
        #[cfg(not(target_arch = "nvptx64"))]
        const _: () = {
            use crate::quant::Format;
            use crate::quant::formats::Scales;
            $(assert!(matches!(Format::$format.descriptor().scales, Scales::Halves));)*
        };
    };
}
for_each_kv_format!(formats);
