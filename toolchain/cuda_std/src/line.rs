//! A line of text in a thread's own memory.

use core::fmt;

/// What ends a text that was cut.
const CUT: &str = "…";

/// Text of up to `N - 1` bytes, into which `core::fmt` writes; [`println!`](crate::println) prints a reference to it.
///
/// A longer text is cut between two characters and ends with `…`, and what wrote it gets an error. A zero ends what is printed.
/// The bytes lie in local memory. `core::fmt` calls by pointer: a kernel that uses it has thousands of instructions more, and
/// needs local memory for the calls.
///
/// ```
/// use core::fmt::Write;
/// let mut line = cuda_std::io::Line::<16>::new();
/// write!(line, "{:?} {}", Some(3), 'ä').unwrap();
/// assert_eq!(line.as_str(), "Some(3) ä");
/// assert!(line.write_str(" and more").is_err());
/// assert_eq!(line.as_str(), "Some(3) ä a…");
/// ```
#[derive(Clone, Copy)]
pub struct Line<const N: usize = 256> {
    /// The text, then zeros.
    bytes: [u8; N],
    len: usize,
    is_cut: bool,
}

impl<const N: usize> Line<N> {
    const LONG_ENOUGH: () = assert!(N > CUT.len(), "a line holds what ends a text that was cut");

    /// Without text.
    #[inline(always)]
    pub const fn new() -> Self {
        let () = Self::LONG_ENOUGH;
        Self { bytes: [0; N], len: 0, is_cut: false }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // SAFETY: `write_str` puts whole characters into the first `len` bytes, and `len` is below `N`.
        unsafe { core::str::from_utf8_unchecked(core::slice::from_raw_parts(self.bytes.as_ptr(), self.len)) }
    }

    /// The text, which a zero ends, for `%s` of the driver.
    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// Ends the text with `…` where it has room.
    fn cut(&mut self) {
        let mut end = N - 1 - CUT.len();
        // the first byte that goes begins a character
        while end > 0 && self.bytes.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
            end -= 1;
        }
        let dots = CUT.bytes().chain(core::iter::repeat(0));
        self.bytes.iter_mut().skip(end).zip(dots).for_each(|(to, byte)| *to = byte);
        (self.len, self.is_cut) = (end + CUT.len(), true);
    }
}

impl<const N: usize> Default for Line<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> fmt::Write for Line<N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_cut {
            return Err(fmt::Error);
        }
        // no panic: this writes the text of panics
        let room = self.bytes.iter_mut().take(N - 1).skip(self.len);
        room.zip(text.bytes()).for_each(|(to, byte)| *to = byte);
        if text.len() > N - 1 - self.len {
            self.cut();
            return Err(fmt::Error);
        }
        self.len += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Line;
    use core::fmt::Write;

    #[test]
    fn texts_are_cut_between_characters() {
        for (text, wanted) in [
            ("1234567", Ok("1234567")),
            ("12345678", Err("1234…")),
            ("123ä567", Err("123…")),
            ("1234ä78", Err("1234…")),
            ("12ä567", Ok("12ä567")),
            ("ääää", Err("ää…")),
            ("🦀🦀", Err("🦀…")),
        ] {
            // at once, and by characters
            let mut whole = Line::<8>::new();
            let result = whole.write_str(text);
            let mut parts = Line::<8>::new();
            let each = text.chars().try_for_each(|c| parts.write_char(c));
            assert_eq!(result.is_ok(), wanted.is_ok(), "{text}");
            assert_eq!(
                (whole.as_str(), parts.as_str(), each),
                (wanted.unwrap_or_else(|e| e), whole.as_str(), result)
            );
            assert!(wanted.is_ok() || whole.write_str(".").is_err());
            assert!(whole.bytes[whole.len..].iter().all(|byte| *byte == 0), "{text}: {:?}", whole.bytes);
        }
    }

    #[test]
    fn a_full_line_takes_no_more() {
        let mut line = Line::<8>::new();
        line.write_str("1234567").unwrap();
        line.write_str("").unwrap();
        assert!(write!(line, "{}", 8).is_err() && write!(line, "{}", 9).is_err());
        assert_eq!(line.as_str(), "1234…");
    }
}
