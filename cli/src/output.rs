//! `--json` and `--quiet`, the same in every subcommand, and remarks on stderr.

use super::failure::Failure;
use super::json::Report;
use super::printable::printable;
use super::screen::{Colours, Screen, Style};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

#[derive(clap::Args, Clone, Debug)]
pub(super) struct Output {
    /// Write the results as JSON to FILE, or to stdout without FILE or with `-`; the text for people then goes to stderr.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,

    /// Replace files that exist.
    #[arg(long)]
    force: bool,

    /// Print only results and errors: no remarks, no progress, and no tables while JSON goes to stdout.
    #[arg(long, short)]
    quiet: bool,

    /// Takes remarks instead of stderr.
    #[arg(skip)]
    log: Option<fn(&str)>,
}

impl Output {
    /// For a part of a command that prints nothing itself.
    pub fn silent() -> Self {
        Self { json: None, force: true, quiet: true, log: None }
    }

    /// The destination of the JSON, checked before the work begins.
    pub fn report(&self) -> Result<Option<Report>, Failure> {
        self.json.as_deref().map(|path| Report::open(path, self.force)).transpose()
    }

    /// The file for the JSON.
    pub fn file(&self) -> Option<&Path> {
        self.json.as_deref().filter(|_| !self.stdout_is_taken())
    }

    /// Whether files that exist may be replaced.
    pub fn may_replace(&self) -> bool {
        self.force
    }

    /// Whether stdout is used for JSON.
    pub fn stdout_is_taken(&self) -> bool {
        self.json.as_deref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Whether there is JSON, in a file or on stdout.
    pub fn writes_json(&self) -> bool {
        self.json.is_some()
    }

    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The destination of tables: stdout; if JSON uses stdout, stderr, or nowhere with `--quiet`.
    pub fn screen(&self) -> Screen {
        Screen::new(self.stdout_is_taken(), self.quiet)
    }

    /// With remarks as lines of a log.
    pub fn logged(&self, log: fn(&str)) -> Self {
        Self { log: Some(log), ..self.clone() }
    }

    /// Prints a remark on stderr.
    pub fn note(&self, text: &str) {
        match self.log {
            _ if self.quiet => {}
            Some(log) => log(text),
            None => self.say(text),
        }
    }

    /// Prints output that the user asked for on stderr.
    pub fn say(&self, text: &str) {
        on_stderr(text, Style::Faint);
    }

    /// Prints an error on stderr.
    pub fn complain(&self, text: &str) {
        on_stderr(text, Style::Bad);
    }
}

/// Prints a line on stderr. If that can't be written it is ignored; `eprintln!` would panic.
pub(super) fn complain(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints a text that may quote a file's contents.
fn on_stderr(text: &str, style: Style) {
    let is_terminal = io::stderr().is_terminal();
    let text = if is_terminal { printable(text) } else { text.into() };
    complain(&Colours::for_stream(is_terminal).paint(style, &text));
}
