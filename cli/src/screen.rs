//! What people see: lines of output, a progress bar on stderr, colours; the last two only on a terminal.

use super::failure::Failure;
use indicatif::{ProgressBar, ProgressStyle};
use std::env;
use std::io::{self, IsTerminal, Write};

/// How a piece of text is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Heading,
    Faint,
    Good,
    Bad,
}

/// Whether to colour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Colours(bool);

impl Colours {
    /// On a terminal that can, unless `NO_COLOR` is set (no-color.org).
    pub fn for_stream(is_terminal: bool) -> Self {
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self(is_terminal && !unwanted && !dumb)
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

/// The output of a command.
pub(super) struct Screen {
    out: Box<dyn Write>,
    /// Whether people read it.
    pub is_terminal: bool,
    pub colours: Colours,
    bar: ProgressBar,
}

impl Screen {
    /// On stdout, or on stderr where stdout is taken for data.
    pub fn new(stdout_is_taken: bool) -> Self {
        let (out, is_terminal): (Box<dyn Write>, _) = match stdout_is_taken {
            true => (Box::new(io::stderr()), io::stderr().is_terminal()),
            false => (Box::new(io::stdout()), io::stdout().is_terminal()),
        };
        Self { out, is_terminal, colours: Colours::for_stream(is_terminal), bar: ProgressBar::hidden() }
    }

    /// Shows a progress bar on stderr, if that is a terminal, until the screen is dropped.
    pub fn start(&mut self, steps: usize) {
        self.bar = ProgressBar::new(steps as u64);
        if let Ok(style) = ProgressStyle::with_template("  {bar:24} {pos}/{len}  {elapsed}  {wide_msg}") {
            self.bar.set_style(style.progress_chars("━━╌"));
        }
    }

    /// Begins the next step.
    pub fn doing(&self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// Ends a step.
    pub fn done(&self) {
        self.bar.inc(1);
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints a line.
    pub fn line(&mut self, line: &str) -> Result<(), Failure> {
        let out = &mut self.out;
        self.bar.suspend(|| writeln!(out, "{line}").and_then(|()| out.flush())).map_err(Failure::from)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
