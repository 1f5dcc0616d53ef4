//! Text of models and files on a terminal.

use std::borrow::Cow;

/// The text with control characters replaced by visible ones, so that it can't move the cursor, rename the window or write
/// to the clipboard; nor, by marks of direction, show characters in another order than they stand in. Newlines and
/// tabs stay, and marks that leave the order.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    let harmless = |c: char| !(c.is_control() || turns(c)) || matches!(c, '\n' | '\t');
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    let sign = |c: char| match c {
        c if harmless(c) => c,
        '\x7f' => '␡',
        // Unicode has a picture for each control character below the space, in their order.
        c => char::from_u32(0x2400 + u32::from(c)).filter(|_| c < ' ').unwrap_or(char::REPLACEMENT_CHARACTER),
    };
    Cow::Owned(text.chars().map(sign).collect())
}

/// As [`printable`], for a line that has this program's own colours in it.
pub(super) fn printable_line(line: &str) -> Cow<'_, str> {
    if matches!(printable(line), Cow::Borrowed(_)) {
        return Cow::Borrowed(line);
    }
    let (mut shown, mut rest) = (String::new(), line);
    while let Some(at) = rest.find('\x1b') {
        shown += &printable(&rest[..at]);
        let colour = COLOURS.iter().find(|colour| rest[at..].starts_with(**colour));
        let len = colour.map_or(1, |colour| colour.len());
        shown += &colour.map_or_else(|| printable(&rest[at..at + len]), |colour| Cow::Borrowed(colour));
        rest = &rest[at + len..];
    }
    Cow::Owned(shown + &printable(rest))
}

/// The escape sequences of [`Colours`](super::screen::Colours).
const COLOURS: [&str; 5] = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[32m", "\x1b[1;31m"];

/// Marks that change the order of characters or begin lines (Unicode annex 9).
fn turns(c: char) -> bool {
    matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::{printable, printable_line};

    #[test]
    fn control_characters_become_visible() {
        assert_eq!(printable("\x1b[2Ja\rb\0\x7f\u{9b}31m"), "␛[2Ja␍b␀␡\u{fffd}31m");
        assert_eq!(printable("a\u{202e}gpj.\u{2066}exe"), "a\u{fffd}gpj.\u{fffd}exe");
        assert_eq!(printable("a\u{2028}b"), "a\u{fffd}b");
        assert_eq!(printable_line("\x1b[1ma\x1b[2Jb\u{202e}\x1b[0m"), "\x1b[1ma␛[2Jb\u{fffd}\x1b[0m");
        let harmless = "é ☂ 漢字\n\tx \u{2400}";
        assert!(matches!(printable(harmless), std::borrow::Cow::Borrowed(text) if text == harmless));
    }
}
