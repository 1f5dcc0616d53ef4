//! Text from kernels: [`print!`](crate::print) and [`println!`](crate::println), where a panic was with the feature `panic-place`, and
//! what it says with `panic-text`.
//!
//! The driver's `vprintf` prints. It keeps what kernels print in a buffer (1 MB at first) and writes it to the host's stdout at the next
//! synchronisation; what does not fit is lost. The text of one call is never mixed with another thread's. Source: CUDA C++
//! Programming Guide, "Formatted Output".
//!
//! `print!` does without `core::fmt`, which calls by pointer. The text becomes a format of C while it is compiled, and wrong uses are
//! errors then. What needs `core::fmt`, such as `{:?}`, is written into a [`Line`] and printed as one.

pub use crate::line::Line;

/// Bytes of a format of C, its end with them.
const MOST: usize = 512;

/// Prints text with up to eight values, given by position: `print!("x[{}] = {:.3}\n", i, x)`.
///
/// Values are numbers, `bool` (0 or 1), pointers and references to a [`Line`](crate::io::Line). Between the braces may stand `:`, a width (filled with zeros if it begins with `0`), for floats
/// a precision, for integers `x`. Floats without a precision have all their digits. `{{` and `}}` are braces.
#[macro_export]
macro_rules! print {
    ($text:literal $(, $value:expr)* $(,)?) => {{
        struct Text;
        impl $crate::io::Text for Text {
            const TEXT: &'static str = $text;
        }
        $crate::io::print::<Text, _>(($($value,)*))
    }};
}

/// As [`print!`](crate::print), and ends the line.
#[macro_export]
macro_rules! println {
    () => { $crate::print!("\n") };
    ($text:literal $(, $value:expr)* $(,)?) => {{
        struct Text;
        impl $crate::io::Text for Text {
            const TEXT: &'static str = ::core::concat!($text, "\n");
        }
        $crate::io::print::<Text, _>(($($value,)*))
    }};
}

/// The text of one use of [`print!`](crate::print).
#[doc(hidden)]
pub trait Text {
    const TEXT: &'static str;
}

/// How C prints a value.
#[doc(hidden)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Signed,
    Unsigned,
    Signed64,
    Unsigned64,
    F32,
    F64,
    Pointer,
    Text,
}

/// A value that kernels print.
pub trait Value: Copy {
    #[doc(hidden)]
    const KIND: Kind;
    /// As C passes it to a function of any number of arguments.
    #[doc(hidden)]
    type C: Copy;
    #[doc(hidden)]
    fn c(self) -> Self::C;
}

macro_rules! values {
    ($($ty:ty: $kind:ident as $c:ty;)*) => {$(
        impl Value for $ty {
            const KIND: Kind = Kind::$kind;
            type C = $c;
            #[inline(always)]
            fn c(self) -> $c {
                self as $c
            }
        }
    )*};
}

values! {
    u8: Unsigned as u32;
    u16: Unsigned as u32;
    u32: Unsigned as u32;
    bool: Unsigned as u32;
    i8: Signed as i32;
    i16: Signed as i32;
    i32: Signed as i32;
    u64: Unsigned64 as u64;
    usize: Unsigned64 as u64;
    i64: Signed64 as i64;
    isize: Signed64 as i64;
    f32: F32 as f64;
    f64: F64 as f64;
}

impl<const N: usize> Value for &Line<N> {
    const KIND: Kind = Kind::Text;
    type C = u64;
    #[inline(always)]
    fn c(self) -> u64 {
        self.as_ptr() as u64
    }
}

impl<T> Value for *const T {
    const KIND: Kind = Kind::Pointer;
    type C = u64;
    #[inline(always)]
    fn c(self) -> u64 {
        self as u64
    }
}

impl<T> Value for *mut T {
    const KIND: Kind = Kind::Pointer;
    type C = u64;
    #[inline(always)]
    fn c(self) -> u64 {
        self as u64
    }
}

/// Up to eight values.
#[doc(hidden)]
pub trait Values: Copy {
    const KINDS: &'static [Kind];
    /// One after the other, each at a multiple of its size.
    type C: Copy;
    fn c(self) -> Self::C;
}

macro_rules! tuples {
    ($($name:ident($($value:ident $index:tt),*);)*) => {$(
        #[doc(hidden)]
        #[derive(Clone, Copy)]
        #[repr(C)]
        pub struct $name<$($value),*>($($value),*);

        impl<$($value: Value),*> Values for ($($value,)*) {
            const KINDS: &'static [Kind] = &[$($value::KIND),*];
            type C = $name<$($value::C),*>;
            #[inline(always)]
            fn c(self) -> Self::C {
                $name($(self.$index.c()),*)
            }
        }
    )*};
}

tuples! {
    Values0();
    Values1(A 0);
    Values2(A 0, B 1);
    Values3(A 0, B 1, C 2);
    Values4(A 0, B 1, C 2, D 3);
    Values5(A 0, B 1, C 2, D 3, E 4);
    Values6(A 0, B 1, C 2, D 3, E 4, F 5);
    Values7(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
    Values8(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
}

/// C's format of one use.
struct Format<T, V>(core::marker::PhantomData<(T, V)>);

impl<T: Text, V: Values> Format<T, V> {
    const FORMAT: [u8; MOST] = format(T::TEXT, V::KINDS);
}

/// The format of C, which ends with a zero. Panics, which is an error of the compiler's, if text and values do not fit.
const fn format(text: &str, kinds: &[Kind]) -> [u8; MOST] {
    let text = text.as_bytes();
    let (mut format, mut to, mut at, mut value) = ([0; MOST], 0, 0, 0);
    while at < text.len() {
        let is_double = at + 1 < text.len() && text[at + 1] == text[at];
        match text[at] {
            b'{' if !is_double => {
                assert!(value < kinds.len(), "the text has more braces than there are values");
                let kind = kinds[value];
                let is_float = matches!(kind, Kind::F32 | Kind::F64);
                value += 1;
                at += 1;
                format[to] = b'%';
                to += 1;
                let (mut has_precision, mut is_hexadecimal) = (false, false);
                if at < text.len() && text[at] == b':' {
                    at += 1;
                    while at < text.len()
                        && (text[at].is_ascii_digit() || text[at] == b'.' || text[at] == b'x')
                    {
                        assert!(!is_hexadecimal, "nothing comes after x");
                        match text[at] {
                            b'x' => is_hexadecimal = true,
                            byte => {
                                has_precision |= byte == b'.';
                                format[to] = byte;
                                to += 1;
                            }
                        }
                        at += 1;
                    }
                }
                assert!(
                    at < text.len() && text[at] == b'}',
                    "{{}}, {{:8}}, {{:08x}} and {{:.3}} are known; values are given by position"
                );
                assert!(is_float || !has_precision, "a precision is for floats");
                let conversion: &[u8] = match kind {
                    Kind::Signed | Kind::Unsigned if is_hexadecimal => b"x",
                    Kind::Signed64 | Kind::Unsigned64 if is_hexadecimal => b"llx",
                    _ if is_hexadecimal => panic!("x is for integers"),
                    Kind::Signed => b"d",
                    Kind::Unsigned => b"u",
                    Kind::Signed64 => b"lld",
                    Kind::Unsigned64 => b"llu",
                    Kind::F32 | Kind::F64 if has_precision => b"f",
                    Kind::F32 => b".9g",
                    Kind::F64 => b".17g",
                    Kind::Pointer => b"p",
                    Kind::Text => b"s",
                };
                let mut i = 0;
                while i < conversion.len() {
                    format[to] = conversion[i];
                    to += 1;
                    i += 1;
                }
            }
            byte => {
                assert!(byte != 0, "a zero ends the text of C");
                assert!(byte != b'}' || is_double, "}} has no {{");
                if byte == b'{' || byte == b'}' {
                    at += 1;
                }
                if byte == b'%' {
                    format[to] = b'%';
                    to += 1;
                }
                format[to] = byte;
                to += 1;
            }
        }
        at += 1;
    }
    assert!(value == kinds.len(), "the text has fewer braces than there are values");
    assert!(to < MOST, "the text is too long");
    format
}

/// What [`print!`](crate::print) calls.
#[cfg(target_arch = "nvptx64")]
#[doc(hidden)]
#[inline(always)]
pub fn print<T: Text, V: Values>(values: V) {
    let values = values.c();
    // SAFETY: the format takes as many values as there are, of their kinds: `format` made it of both.
    unsafe { vprintf(const { &Format::<T, V>::FORMAT }.as_ptr(), (&raw const values).cast()) };
}

/// What [`print!`](crate::print) calls.
#[cfg(not(target_arch = "nvptx64"))]
#[doc(hidden)]
pub fn print<T: Text, V: Values>(_values: V) {
    let _ = const { &Format::<T, V>::FORMAT };
    panic!("`print` can only be called on the GPU")
}

#[cfg(target_arch = "nvptx64")]
unsafe extern "C" {
    /// The driver's: `format` as C has it, and the values one after the other, each at a multiple of its size.
    fn vprintf(format: *const u8, values: *const u8) -> i32;
    /// The driver's: writes the texts to the host's stderr, and ends the grid with `CUDA_ERROR_ASSERT`.
    #[cfg(any(feature = "panic-place", feature = "panic-text"))]
    fn __assertfail(
        text: *const u8,
        file: *const u8,
        line: u32,
        function: *const u8,
        bytes_of_a_character: usize,
    );
}

/// Says what a panic says and where it was; the driver adds block and thread.
#[cfg(all(target_arch = "nvptx64", feature = "panic-text"))]
pub(crate) fn panicked(info: &core::panic::PanicInfo<'_>) {
    use core::fmt::Write;
    let (mut text, mut file) = (Line::<256>::new(), Line::<256>::new());
    // a text that is too long is cut
    let _ = write!(text, "{}", info.message());
    let line = info.location().map_or(0, |place| {
        let _ = file.write_str(place.file());
        place.line()
    });
    // SAFETY: the three texts end with a zero.
    unsafe { __assertfail(text.as_ptr(), file.as_ptr(), line, c"a kernel".as_ptr().cast(), 1) };
}

/// Says where a panic was; the driver adds block and thread. What was wrong needs `core::fmt`: the feature `panic-text`.
#[cfg(all(target_arch = "nvptx64", feature = "panic-place", not(feature = "panic-text")))]
#[inline(always)]
pub(crate) fn panicked(info: &core::panic::PanicInfo<'_>) {
    let mut file = [0; 256];
    let (name, line) = info.location().map_or(("", 0), |place| (place.file(), place.line()));
    for (to, from) in file.iter_mut().take(255).zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the three texts end with a zero.
    unsafe { __assertfail(c"no panic".as_ptr().cast(), file.as_ptr(), line, c"a kernel".as_ptr().cast(), 1) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str, kinds: &[Kind]) -> String {
        let format = format(text, kinds);
        let end = format.iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8(format[..end].to_vec()).unwrap()
    }

    #[test]
    fn formats_are_those_of_c() {
        use Kind::*;
        assert_eq!(text("x[{}] = {:.3}\n", &[Unsigned, F32]), "x[%u] = %.3f\n");
        assert_eq!(text("{}{}{:8}", &[Signed, Signed64, Unsigned64]), "%d%lld%8llu");
        assert_eq!(text("{:08x} {:x} {}", &[Unsigned, Signed64, Pointer]), "%08x %llx %p");
        assert_eq!(text("{} {} 5 % of {{}}", &[F32, F64]), "%.9g %.17g 5 %% of {}");
        assert_eq!(text("{:8}{}", &[Text, Signed]), "%8s%d");
    }

    #[test]
    fn texts_that_do_not_fit_their_values_are_refused() {
        use Kind::*;
        for (wrong, kinds) in [
            ("{}", &[][..]),
            ("", &[Signed][..]),
            ("{:.3}", &[Signed]),
            ("{:x}", &[F32]),
            ("{:x}", &[Text]),
            ("{name}", &[Signed]),
            ("{", &[Signed]),
            ("}", &[]),
            ("{:x8}", &[Signed]),
        ] {
            assert!(std::panic::catch_unwind(|| format(wrong, kinds)).is_err(), "{wrong}");
        }
    }
}
