//! Enums by the words of PTX.

/// Enums whose variants PTX spells as words, with the words: the one table of both.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident $word:literal)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($variant),* }

        impl $name {
            /// The variant that a word of PTX names.
            pub fn word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    )*};
}
pub(crate) use words;
