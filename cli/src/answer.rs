//! An answer as it is generated, printed piece by piece, and its statistics.

use super::printable::printable;
use pascaline::format_bytes as bytes;
use qwen3_vl::Statistics;
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

/// Prints an answer.
pub(super) struct Answer {
    out: Box<dyn Write>,
    is_terminal: bool,
    /// Whether any text was printed.
    begun: bool,
    /// The error of writing, if any.
    failed: Option<io::Error>,
}

impl Answer {
    pub fn on_stdout() -> Self {
        Self::on(Box::new(io::stdout()), io::stdout().is_terminal())
    }

    pub fn on_stderr() -> Self {
        Self::on(Box::new(io::stderr()), io::stderr().is_terminal())
    }

    pub fn nowhere() -> Self {
        Self::on(Box::new(io::sink()), false)
    }

    fn on(out: Box<dyn Write>, is_terminal: bool) -> Self {
        Self { out, is_terminal, begun: false, failed: None }
    }

    /// Prints a piece of text; breaks if nobody reads the output any more.
    pub fn push(&mut self, piece: &str) -> ControlFlow<()> {
        if piece.is_empty() {
            return ControlFlow::Continue(());
        }
        self.begun = true;
        let text = if self.is_terminal { printable(piece) } else { piece.into() };
        match self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Ends the answer's last line.
    ///
    /// # Errors
    /// If a part of the answer could not be written.
    pub fn end(&mut self) -> io::Result<()> {
        if self.failed.is_none() {
            let _ = self.push("\n"); // it keeps its error in `self`
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Ends the line of a failed answer, so that its error starts on a new line.
    pub fn abandon(&mut self) {
        if self.begun {
            let _ = self.end(); // the answer's own error is the one to report
        }
    }
}

/// The statistics as one line.
pub(super) fn summary(statistics: &Statistics) -> String {
    let Statistics { prompt_tokens, prefill_tokens, time_to_first_token, .. } = statistics;
    let cached = match prompt_tokens - prefill_tokens {
        0 => String::new(),
        cached => format!(" ({cached} cached)"),
    };
    let peak = statistics.peak_bytes.map(|peak| format!(", {} in use", bytes(peak))).unwrap_or_default();
    let paused = match statistics.paused_seconds {
        0.0 => String::new(),
        paused => format!(", {paused:.1} s of it held back by heat"),
    };
    let streamed = match statistics.streamed_layers {
        0 => String::new(),
        layers => format!(", {layers} layers from host memory, launched kernel by kernel"),
    };
    let guessed = match statistics.guessed_tokens {
        0 => String::new(),
        guessed => format!(", {} of {guessed} guesses right", statistics.right_guesses),
    };
    format!(
        "{prompt_tokens} prompt tokens{cached}, first token after {time_to_first_token:.2} s, \
         then {} tokens at {:.1} per second{guessed}{streamed}{paused}{peak}",
        statistics.decode_tokens, statistics.decode_tokens_per_second
    )
}
