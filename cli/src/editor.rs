//! The input of `chat`: a line editor on a terminal, otherwise lines of a pipe or file.

use super::chat_commands::COMMANDS;
use super::failure::Failure;
use super::history::{History, KEPT};
use super::interrupt;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::{History as _, MemHistory};
use rustyline::validate::Validator;
use rustyline::{
    Behavior, Cmd, CompletionType, ConditionalEventHandler, Config, Context, Event, EventContext,
    EventHandler, Helper, KeyCode, KeyEvent, Modifiers, RepeatCount,
};
use std::io::{self, BufRead, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The prompt on a terminal.
const PROMPT: &str = "> ";
/// How often work on a thread of its own is asked whether it is done.
const ASKS: Duration = Duration::from_millis(5);

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
        editor: Box<rustyline::Editor<Completion, MemHistory>>,
        /// The file of typed messages, if they are kept.
        history: Option<History>,
        /// Set by Ctrl-C during an answer.
        interrupted: Arc<AtomicBool>,
    },
    Lines,
}

impl Editor {
    /// Also returns why typed messages are not kept, if they should be.
    pub fn new(keeps_history: bool) -> Result<(Self, Option<io::Error>), Failure> {
        if !io::stdin().is_terminal() {
            return Ok((Self::Lines, None));
        }
        // Writes to the terminal itself, so that stdout, which may be a file, has only the answers.
        let config = Config::builder().behavior(Behavior::PreferTerm).auto_add_history(true);
        let config = config.completion_type(CompletionType::List).max_history_size(KEPT);
        let config = config.map_err(|error| unusable(&error))?.build();
        let (history, messages, error) = match keeps_history.then(History::open).transpose() {
            Ok(opened) => {
                let (history, messages) = opened.unzip();
                (history, messages.unwrap_or_default(), None)
            }
            Err(error) => (None, Vec::new(), Some(error)),
        };
        let mut earlier = MemHistory::with_config(&config);
        for message in messages {
            earlier.add_owned(message).map_err(|error| unusable(&error))?;
        }
        let editor = rustyline::Editor::with_history(config, earlier);
        let mut editor = editor.map_err(|error| unusable(&error))?;
        editor.set_helper(Some(Completion(FilenameCompleter::new())));
        // Enter as Unix and Windows name it
        for (code, modifiers) in [(KeyCode::Enter, Modifiers::NONE), (KeyCode::Char('M'), Modifiers::CTRL)] {
            let enter = EventHandler::Conditional(Box::new(LineEnd));
            editor.bind_sequence(KeyEvent(code, modifiers), enter);
            editor.bind_sequence(
                KeyEvent(code, modifiers | Modifiers::ALT),
                EventHandler::Simple(Cmd::Newline),
            );
        }
        // While a line is edited, Ctrl-C is a key and no signal.
        let interrupted = interrupt::flag()?;
        Ok((Self::Terminal { editor: Box::new(editor), history, interrupted }, error))
    }

    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal { .. })
    }

    /// Waits for the next message.
    pub fn read(&mut self) -> Result<Input, Failure> {
        match self {
            Self::Terminal { editor, history, .. } => match editor.readline(PROMPT) {
                Ok(message) => {
                    let message = continued(&message);
                    if let Some(history) = history.as_ref().filter(|_| !message.trim().is_empty()) {
                        let added = history.add(&message);
                        added.map_err(|error| {
                            Failure::Failed(format!(
                                "the input history can't be kept: {error}; --no-save does without"
                            ))
                        })?;
                    }
                    Ok(Input::Message(message))
                }
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

    /// Does work that nothing ends, on a thread that Ctrl-C leaves behind: then there is no result.
    pub fn unless_interrupted<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<Option<T>> {
        self.begin_answer();
        let thread = thread::Builder::new().spawn(work)?;
        while !thread.is_finished() {
            if self.is_interrupted() {
                return Ok(None);
            }
            thread::sleep(ASKS);
        }
        thread.join().map(Some).map_err(|_| io::Error::other("a bug ended it"))
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

/// Enter: behind a backslash it begins another line instead. [`continued`] takes the backslash away when the message is whole.
struct LineEnd;

/// U+2060, word joiner, has no width. It tells the end of a continued line from a backslash before a pasted end of line.
const JOINER: char = '\u{2060}';

/// A message without the backslashes that continued its lines.
fn continued(message: &str) -> String {
    message.replace(&format!("\\{JOINER}\n"), "\n")
}

impl ConditionalEventHandler for LineEnd {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        let is_open = context.pos() == context.line().len() && context.line().ends_with('\\');
        is_open.then(|| Cmd::Insert(1, format!("{JOINER}\n")))
    }
}

/// Tab: commands, and paths behind those that take one.
pub(super) struct Completion(FilenameCompleter);

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = line.get(..at).unwrap_or_default();
        let takes_path = |(command, argument, _): &&(&str, &str, &str)| {
            !argument.is_empty() && typed.strip_prefix(command).is_some_and(|rest| rest.starts_with(' '))
        };
        if COMMANDS.iter().any(|command| takes_path(&command)) {
            return self.0.complete_path(line, at);
        }
        let found = COMMANDS.iter().filter(|(command, ..)| !typed.is_empty() && command.starts_with(typed));
        let pair = |(command, argument, _): &(&str, &str, &str)| Pair {
            display: (*command).to_owned(),
            replacement: format!("{command}{}", if argument.is_empty() { "" } else { " " }),
        };
        Ok((0, found.map(pair).collect()))
    }
}

impl Hinter for Completion {
    type Hint = String;
}
impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}
