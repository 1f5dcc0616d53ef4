//! Errors of commands, and their exit status.

use pascaline::Error;
use std::io;
use std::process::ExitCode;

/// Why a command stopped.
#[derive(Debug)]
pub(super) enum Failure {
    /// A usage error: exit status 2.
    Usage(String),
    /// Something failed: exit status 1.
    Failed(String),
    /// A new process may succeed: exit status 75, `EX_TEMPFAIL` of sysexits.h.
    Again(String),
    /// Results are wrong; the report already says so: exit status 1.
    Wrong,
    /// The reader of the output has closed it: no error.
    OutputClosed,
}

impl Failure {
    /// The message for stderr.
    pub fn sentence(&self) -> Option<&str> {
        match self {
            Self::Usage(sentence) | Self::Failed(sentence) | Self::Again(sentence) => Some(sentence),
            Self::Wrong | Self::OutputClosed => None,
        }
    }

    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Usage(_) => ExitCode::from(2),
            Self::Again(_) => ExitCode::from(75),
            Self::Failed(_) | Self::Wrong => ExitCode::FAILURE,
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

/// A loader's error for a library, without the path that it begins with.
pub(super) fn loader_error<'a>(path: &str, error: &'a str) -> &'a str {
    error.strip_prefix(path).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(error)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::UnknownDevice { .. } => Self::Usage(error.to_string()),
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Errors of writing the output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            // Wine's code for it: the pipe is not connected
            _ if cfg!(windows) && error.raw_os_error() == Some(233) => Self::OutputClosed,
            _ => Self::Failed(format!("the output can't be written: {error}")),
        }
    }
}
