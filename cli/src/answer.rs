//! An answer as it is generated: the progress before it, its text piece by piece, why it was cut, and its statistics.

use super::output::Output;
use super::printable::printable;
use indicatif::{ProgressBar, ProgressStyle};
use pascaline::format_bytes as bytes;
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::generate::Step;
use qwen3_vl::reasoning::{ReasoningStream, Told};
use qwen3_vl::{LanguageModel, Phase, Progress, Prompt, Statistics, StopReason};
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

/// Prints an answer.
pub(super) struct Answer {
    out: Box<dyn Write>,
    is_terminal: bool,
    /// Tells thoughts from the answer, where they are hidden or shown otherwise.
    reasoning: Option<ReasoningStream>,
    hides_thinking: bool,
    /// Whether the last text was a thought.
    in_thought: bool,
    /// Whether any text was printed.
    begun: bool,
    /// The error of writing, if any.
    failed: Option<io::Error>,
    /// The progress of pictures and prompt, on stderr until the answer begins.
    bar: ProgressBar,
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
        let (reasoning, hides_thinking, in_thought) = (None, false, false);
        Self {
            out,
            is_terminal,
            reasoning,
            hides_thinking,
            in_thought,
            begun: false,
            failed: None,
            bar: ProgressBar::hidden(),
        }
    }

    /// With a line of progress on stderr, if that is a terminal.
    pub fn with_progress(mut self, output: &Output) -> Self {
        if io::stderr().is_terminal() && !output.is_quiet() && !output.writes_json() {
            self.bar = ProgressBar::new(0);
            if let Ok(style) = ProgressStyle::with_template("  {msg} {bar:24} {pos}/{len} tokens  {elapsed}")
            {
                self.bar.set_style(style.progress_chars("━━╌"));
            }
        }
        self
    }

    /// Shows the progress, or prints the text; breaks if nobody reads the output any more.
    pub fn step(&mut self, step: &Step) -> ControlFlow<()> {
        let Some(Progress { phase, done, total }) = step.progress else { return self.push(step.text) };
        self.bar.set_message(match phase {
            Phase::Images => "pictures",
            Phase::Prompt => "prompt",
        });
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        ControlFlow::Continue(())
    }

    /// Leaves thoughts out, or dims them on a terminal. Elsewhere they are printed as the model writes them.
    pub fn tell_thoughts(&mut self, begins_in_thought: bool, hide: bool) {
        self.hides_thinking = hide;
        self.reasoning = (hide || self.is_terminal).then(|| ReasoningStream::new(begins_in_thought));
    }

    /// Prints a piece of text; breaks if nobody reads the output any more.
    pub fn push(&mut self, piece: &str) -> ControlFlow<()> {
        let Some(reasoning) = &mut self.reasoning else { return self.print(piece, false) };
        let told = reasoning.push(piece);
        self.print_told(&told)
    }

    fn print_told(&mut self, told: &Told) -> ControlFlow<()> {
        if !told.reasoning.is_empty() && !self.hides_thinking {
            self.in_thought = true;
            self.print(&told.reasoning, true)?;
        }
        if !told.answer.is_empty() && std::mem::take(&mut self.in_thought) {
            self.print("\n\n", false)?;
        }
        self.print(&told.answer, false)
    }

    fn print(&mut self, piece: &str, is_dim: bool) -> ControlFlow<()> {
        if piece.is_empty() {
            return ControlFlow::Continue(());
        }
        self.bar.finish_and_clear();
        self.begun = true;
        let mut text = if self.is_terminal { printable(piece) } else { piece.into() };
        if is_dim {
            text = format!("\x1b[2m{text}\x1b[22m").into();
        }
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
        if let Some(told) = self.reasoning.take().map(|mut reasoning| reasoning.finish()) {
            let _ = self.print_told(&told); // it keeps its error in `self`
        }
        if self.failed.is_none() {
            let _ = self.print("\n", false); // it keeps its error in `self`
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Ends the line of a failed answer, so that its error starts on a new line.
    pub fn abandon(&mut self) {
        self.bar.finish_and_clear();
        if self.begun {
            let _ = self.end(); // the answer's own error is the one to report
        }
    }
}

/// That a limit cut the answer, and the remedy; `None` if it came to its end. `goes_on` says how to go on.
pub(super) fn cut(
    reason: StopReason,
    model: &LanguageModel,
    prompt: &Prompt,
    tokens: usize,
    goes_on: &str,
) -> Option<String> {
    let context = model.config().text.max_position_embeddings;
    match reason {
        StopReason::MaxNewTokens => {
            Some(format!("the answer is cut after {tokens} tokens, the most allowed; {goes_on}"))
        }
        StopReason::ContextFull if prompt.ids.len() + tokens >= context => Some(format!(
            "the answer is cut after {tokens} tokens: prompt and answer fill the model's context of {context}"
        )),
        StopReason::ContextFull => Some(format!(
            "the answer is cut after {tokens} tokens: there is no memory for a longer cache; \
             `--cache q8_0` takes a quarter of it, and a smaller `--dtype` leaves more"
        )),
        StopReason::Eos | StopReason::StopString | StopReason::Cancelled => None,
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
    let experts = match statistics.host_expert_layers {
        0 => String::new(),
        layers => match statistics.expert_hit_rate {
            None => format!(", experts of {layers} layers from host memory"),
            Some(rate) => format!(
                ", experts of {layers} layers from host memory, {:.0} % of them in the cache",
                100.0 * rate
            ),
        },
    };
    let guessed = match statistics.guessed_tokens {
        0 => String::new(),
        guessed => format!(", {} of {guessed} guesses right", statistics.right_guesses),
    };
    format!(
        "{prompt_tokens} prompt tokens{cached}, first token after {time_to_first_token:.2} s, \
         then {} tokens at {:.1} per second{guessed}{streamed}{experts}{paused}{peak}",
        statistics.decode_tokens, statistics.decode_tokens_per_second
    )
}

/// An answer as a turn: templates decide whether they repeat its thought.
pub(super) fn assistant_turn(text: &str, begins_in_thought: bool) -> Message {
    let mut stream = ReasoningStream::new(begins_in_thought);
    let (told, rest) = (stream.push(text), stream.finish());
    let mut message = Message::text("assistant", told.answer + &rest.answer);
    let thought = told.reasoning + &rest.reasoning;
    if !thought.is_empty() {
        message.content.insert(0, Part::Reasoning { text: thought });
    }
    message
}

#[cfg(test)]
mod tests {
    use super::assistant_turn;
    use qwen3_vl::chat::{Message, Part};

    #[test]
    fn a_thought_is_a_part_of_its_own() {
        assert_eq!(assistant_turn("Hi", false), Message::text("assistant", "Hi"));
        for (text, inside) in [("why</think>\n\nHi", true), ("<think>why</think>Hi", false)] {
            let turn = assistant_turn(text, inside);
            let [Part::Reasoning { text: thought }, Part::Text { text }] = &turn.content[..] else {
                panic!("{turn:?}")
            };
            assert_eq!((&**thought, &**text), ("why", "Hi"));
        }
    }
}
