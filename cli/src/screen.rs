//! Output for people: lines of text, and on a terminal colours and a progress bar on stderr.

pub(super) use super::colours::{Colours, Style};
use super::failure::Failure;
use super::printable::{printable, printable_line};
use super::table::{Column, Table};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use terminal_size::{Width, terminal_size_of};

/// The output of a command.
pub(super) struct Screen {
    out: Box<dyn Write>,
    /// Whether it is a terminal.
    pub is_terminal: bool,
    pub colours: Colours,
    /// Columns of the terminal; `None` in a pipe or a file, where lines are not wrapped.
    pub width: Option<usize>,
    bar: ProgressBar,
    quiet: bool,
    /// Titles of columns that did not fit the terminal.
    left_out: BTreeSet<&'static str>,
}

impl Screen {
    /// On stdout; if JSON uses that, on stderr, or nowhere with `--quiet`.
    pub fn new(stdout_is_taken: bool, quiet: bool) -> Self {
        let (out, is_terminal, size): (Box<dyn Write>, _, _) = match (stdout_is_taken, quiet) {
            (true, true) => (Box::new(io::sink()), false, None),
            (true, false) => {
                (Box::new(io::stderr()), io::stderr().is_terminal(), terminal_size_of(io::stderr()))
            }
            (false, _) => {
                (Box::new(io::stdout()), io::stdout().is_terminal(), terminal_size_of(io::stdout()))
            }
        };
        Self {
            out,
            is_terminal,
            colours: Colours::for_stream(is_terminal),
            width: size.map(|(Width(columns), _)| usize::from(columns)),
            bar: ProgressBar::hidden(),
            quiet,
            left_out: BTreeSet::new(),
        }
    }

    /// A table that fits the screen.
    pub fn table(&mut self, columns: Vec<Column>) -> Table {
        let table = Table::new(columns, self.width, self.colours);
        self.left_out.extend(table.left_out());
        table
    }

    /// Prints which columns of the tables so far did not fit.
    pub fn say_what_is_left_out(&mut self) -> Result<(), Failure> {
        let titles: Vec<_> = std::mem::take(&mut self.left_out).into_iter().collect();
        match titles.is_empty() {
            true => Ok(()),
            false => self.faint(&format!("columns left out on this narrow terminal: {}", titles.join(", "))),
        }
    }

    /// Shows a progress bar on stderr until the screen is dropped, if that is a terminal.
    pub fn start(&mut self, steps: usize) {
        if self.quiet {
            return;
        }
        self.bar = ProgressBar::new(steps as u64);
        if let Ok(style) = ProgressStyle::with_template("  {bar:24} {pos}/{len}  {elapsed}  {wide_msg}") {
            self.bar.set_style(style.progress_chars("━━╌"));
        }
    }

    /// As [`start`](Self::start), for work that is counted in parts too small to show their number: [`advance`](Self::advance)
    /// moves the bar.
    pub fn start_smooth(&mut self, parts: usize) {
        self.start(parts);
        if let Ok(style) = ProgressStyle::with_template("  {bar:24} {percent:>3} %  {elapsed}  {wide_msg}") {
            self.bar.set_style(style.progress_chars("━━╌"));
        }
    }

    /// Moves the bar.
    pub fn advance(&self, parts: usize) {
        self.bar.inc(parts as u64);
    }

    /// Starts the next step.
    pub fn doing(&self, what: &str) {
        self.bar.set_message(printable(what).into_owned());
        self.bar.tick();
    }

    /// Ends a step.
    pub fn done(&self) {
        self.bar.inc(1);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints a line.
    pub fn line(&mut self, line: &str) -> Result<(), Failure> {
        let out = &mut self.out;
        // it may quote names of files, and what is in them
        let line = if self.is_terminal { printable_line(line) } else { line.into() };
        self.bar.suspend(|| writeln!(out, "{line}").and_then(|()| out.flush())).map_err(Failure::from)
    }

    /// Prints a wrapped text; lines after the first are indented like it.
    pub fn text(&mut self, text: &str, style: Style) -> Result<(), Failure> {
        let indent = text.len() - text.trim_start().len();
        self.entry(&text[..indent], text.trim_start(), style)
    }

    /// As [`text`](Self::text), for texts that are too long for one line even in a file.
    pub fn long_text(&mut self, text: &str) -> Result<(), Failure> {
        let width = self.width;
        self.width = width.or(Some(LINE_OF_A_FILE));
        let printed = self.text(text, Style::Plain);
        self.width = width;
        printed
    }

    /// Prints a wrapped text after a heading.
    pub fn entry(&mut self, heading: &str, text: &str, style: Style) -> Result<(), Failure> {
        let indent = heading.chars().count();
        let room = self.width.unwrap_or(usize::MAX).saturating_sub(indent).max(LEAST_TEXT);
        for (number, line) in wrapped(text, room).iter().enumerate() {
            let start = if number == 0 { heading.to_owned() } else { " ".repeat(indent) };
            self.line(&format!("{start}{}", self.colours.paint(style, line)))?;
        }
        Ok(())
    }

    /// As [`text`](Self::text), for less important text.
    pub fn faint(&mut self, text: &str) -> Result<(), Failure> {
        self.text(text, Style::Faint)
    }
}

/// The shortest wrapped line in characters, however narrow the terminal.
const LEAST_TEXT: usize = 20;
/// The longest line in characters of long texts in a pipe or file.
const LINE_OF_A_FILE: usize = 120;

/// Wraps a text to lines of up to `room` characters; a longer word gets a line of its own.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut().filter(|_| word.starts_with('%')) {
            Some(number) => *number += &format!(" {word}"), // its percent sign stays with it
            None => words.push(word.to_owned()),
        }
    }
    let length = |text: &str| text.chars().count();
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut().filter(|line| length(line) + 1 + length(&word) <= room) {
            Some(line) => *line += &format!(" {word}"),
            None => lines.push(word),
        }
    }
    lines
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn text_is_wrapped_between_words() {
        assert_eq!(wrapped("a bc def", 4), ["a bc", "def"]);
        assert_eq!(wrapped("a  b", 4), ["a  b"]);
        assert_eq!(wrapped("é longer-word x", 6), ["é", "longer-word", "x"]);
        assert_eq!(wrapped("", 4), [""]);
        assert_eq!(wrapped("a 19 %, b", 5), ["a", "19 %,", "b"]);
        assert_eq!(wrapped("all of it", usize::MAX), ["all of it"]);
    }
}
