//! The colours of text on a terminal.

use std::env;

/// The meaning of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Heading,
    Faint,
    Good,
    Bad,
}

/// Whether to use colours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Colours(bool);

impl Colours {
    /// On a capable terminal, unless `NO_COLOR` is set (no-color.org).
    pub fn for_stream(is_terminal: bool) -> Self {
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self(is_terminal && !unwanted && !dumb && understands_escapes())
    }

    pub fn paint(self, style: Style, text: &str) -> String {
        let code = match style {
            Style::Heading => "1",
            Style::Faint => "2",
            Style::Good => "32",
            Style::Bad => "1;31",
            Style::Plain => "",
        };
        if self.0 && !code.is_empty() && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Whether the terminal understands escape sequences.
#[cfg(not(windows))]
fn understands_escapes() -> bool {
    true
}

/// A Windows console understands them once this mode is set, and before Windows 10 not at all.
#[cfg(windows)]
fn understands_escapes() -> bool {
    anstyle_query::windows::enable_ansi_colors().unwrap_or(false)
}
