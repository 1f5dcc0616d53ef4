//! The input of `chat`: a line editor on a terminal, otherwise lines of a pipe or file.

use super::failure::Failure;
use super::interrupt;
use rustyline::error::ReadlineError;
use rustyline::{Behavior, Config, DefaultEditor};
use std::io::{self, BufRead, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The prompt on a terminal.
const PROMPT: &str = "> ";

/// An input.
#[derive(Debug, PartialEq)]
pub(super) enum Input {
    /// A message; on a terminal pasted text is one message, whatever its number of lines.
    Message(String),
    /// Ctrl-C while a message was edited.
    Interrupt,
    /// End of input.
    End,
}

/// Where messages come from.
pub(super) enum Editor {
    Terminal {
        editor: Box<DefaultEditor>,
        /// Set by Ctrl-C during an answer.
        interrupted: Arc<AtomicBool>,
    },
    Lines,
}

impl Editor {
    pub fn new() -> Result<Self, Failure> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Lines);
        }
        // Writes to the terminal itself, so that stdout, which may be a file, has only the answers.
        let config = Config::builder().behavior(Behavior::PreferTerm).auto_add_history(true).build();
        let editor = DefaultEditor::with_config(config).map_err(|error| unusable(&error))?;
        // While a line is edited, Ctrl-C is a key and no signal.
        let interrupted = interrupt::flag()?;
        Ok(Self::Terminal { editor: Box::new(editor), interrupted })
    }

    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// Waits for the next message.
    pub fn read(&mut self) -> Result<Input, Failure> {
        match self {
            Self::Terminal { editor, .. } => match editor.readline(PROMPT) {
                Ok(message) => Ok(Input::Message(message)),
                Err(ReadlineError::Interrupted) => Ok(Input::Interrupt),
                Err(ReadlineError::Eof) => Ok(Input::End),
                Err(error) => Err(unusable(&error)),
            },
            Self::Lines => {
                let mut line = String::new();
                let read = io::stdin().lock().read_line(&mut line);
                match read.map_err(|error| Failure::Failed(format!("the input can't be read: {error}")))? {
                    0 => Ok(Input::End),
                    _ => Ok(Input::Message(line)),
                }
            }
        }
    }

    /// From here on Ctrl-C is meant for the answer.
    pub fn begin_answer(&self) {
        if let Self::Terminal { interrupted, .. } = self {
            interrupted.store(false, Ordering::Relaxed);
        }
    }

    /// Whether Ctrl-C was pressed during the answer.
    pub fn is_interrupted(&self) -> bool {
        match self {
            Self::Terminal { interrupted, .. } => interrupted.load(Ordering::Relaxed),
            Self::Lines => false,
        }
    }
}

fn unusable(error: &ReadlineError) -> Failure {
    Failure::Failed(format!("the terminal can't be used: {error}"))
}
