//! The table of formats.

/// The table of formats with kernels: calls a macro with the lines. A line has the variant of [`Format`], the file, the name in kernels
/// and on command lines, and the type in GGUF files if there is one.
#[macro_export]
macro_rules! for_each_format {
    ($callback:ident) => {
        $callback! {
            I8 i8 "i8";
            Q8_0 q8_0 "q8_0" Q8_0;
            Q4_0 q4_0 "q4_0" Q4_0;
            Q4K q4_k "q4_k" Q4_K;
            Q5K q5_k "q5_k" Q5_K;
            Q6K q6_k "q6_k" Q6_K;
            Iq4Nl iq4_nl "iq4_nl" IQ4_NL;
            Iq4Xs iq4_xs "iq4_xs" IQ4_XS;
            Mxfp4 mxfp4 "mxfp4" MXFP4;
            Q3K q3_k "q3_k" Q3_K;
            Q2K q2_k "q2_k" Q2_K;
        }
    };
}

macro_rules! formats {
    ($($format:ident $file:ident $name:literal $($ggml:ident)?;)*) => {
        /// A format of weights that kernels read. Its number is an index into the lists of kernels. The formats' files describe them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // the names say all there is
        pub enum Format {
            $($format,)*
        }

        /// The number of formats.
        pub const FORMATS: usize = [$($name),*].len();

        #[cfg(not(target_arch = "nvptx64"))]
        impl Format {
            /// Every format, in the order of their numbers.
            pub const ALL: [Self; FORMATS] = [$(Self::$format),*];
        }
    };
}

crate::for_each_format!(formats);
