//! Text of models and files on a terminal.

use std::borrow::Cow;

/// The text with control characters replaced by visible ones, so that it can't move the cursor, rename the window, write
/// to the clipboard or show its letters in another order. Newlines and tabs stay, and marks that leave the order.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    let reorders = |c: char| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let harmless = |c: char| !(c.is_control() || reorders(c)) || matches!(c, '\n' | '\t');
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

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn control_characters_become_visible() {
        assert_eq!(printable("\x1b[2Ja\rb\0\x7f\u{9b}31m"), "␛[2Ja␍b␀␡\u{fffd}31m");
        assert_eq!(printable("a\u{202e}gpj.\u{2066}exe"), "a\u{fffd}gpj.\u{fffd}exe");
        let harmless = "é ☂ 漢字\n\tx \u{2400}";
        assert!(matches!(printable(harmless), std::borrow::Cow::Borrowed(text) if text == harmless));
    }
}
