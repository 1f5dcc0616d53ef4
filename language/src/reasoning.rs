//! Thoughts and answers: what a model writes between `<think>` and `</think>` before it answers.
//!
//! A thought opens in the prompt, where the template of a Thinking checkpoint ends with `<think>`, or with the answer's
//! first characters. Everything after it is the answer. A tag may come in pieces.

use std::mem;

/// The tags of a thought.
pub(super) const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Text that is final, told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Of the thought, without tags and without white space at its ends.
    pub reasoning: String,
    /// Of the answer.
    pub answer: String,
}

/// Where a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Nothing but white space has come.
    Begin,
    /// In the thought, of which nothing but white space has come.
    Opened,
    Thought,
    /// After the thought, and nothing but white space has come since.
    Closed,
    Answer,
}

/// Tells the thought of one answer from the rest while its text comes in pieces.
#[derive(Clone, Debug)]
pub struct ReasoningStream {
    at: At,
    /// Text that may be part of a tag, or white space that may be a thought's end.
    held: String,
}

impl ReasoningStream {
    /// For an answer that begins inside a thought, or may begin with one.
    pub fn new(begins_in_thought: bool) -> Self {
        Self { at: if begins_in_thought { At::Opened } else { At::Begin }, held: String::new() }
    }

    /// Whether the text so far ends inside the thought.
    pub fn is_in_thought(&self) -> bool {
        matches!(self.at, At::Opened | At::Thought)
    }

    /// Appends text, and returns what is final now.
    pub fn push(&mut self, text: &str) -> Told {
        let mut told = Told::default();
        self.held.push_str(text);
        loop {
            match self.at {
                At::Begin => {
                    let begun = self.held.trim_start();
                    if let Some(rest) = begun.strip_prefix(OPEN) {
                        (self.held, self.at) = (rest.to_owned(), At::Opened);
                    } else if OPEN.starts_with(begun) {
                        return told;
                    } else {
                        self.at = At::Answer;
                    }
                }
                At::Opened => {
                    self.held = self.held.trim_start().to_owned();
                    if self.held.is_empty() {
                        return told;
                    }
                    self.at = At::Thought;
                }
                At::Thought => match self.held.split_once(CLOSE) {
                    Some((thought, rest)) => {
                        told.reasoning += thought.trim_end();
                        (self.held, self.at) = (rest.to_owned(), At::Closed);
                    }
                    None => {
                        let is_tag = |at: &usize| CLOSE.starts_with(&self.held[*at..]);
                        let end = self.held.char_indices().map(|(at, _)| at).find(is_tag);
                        let sure = self.held[..end.unwrap_or(self.held.len())].trim_end().len();
                        let rest = self.held.split_off(sure);
                        told.reasoning += &mem::replace(&mut self.held, rest);
                        return told;
                    }
                },
                At::Closed => {
                    self.held = self.held.trim_start().to_owned();
                    if self.held.is_empty() {
                        return told;
                    }
                    self.at = At::Answer;
                }
                At::Answer => {
                    told.answer += &mem::take(&mut self.held);
                    return told;
                }
            }
        }
    }

    /// What was held back; call it after the last text.
    pub fn finish(&mut self) -> Told {
        let rest = mem::take(&mut self.held);
        match self.at {
            At::Opened | At::Thought => Told { reasoning: rest.trim_end().to_owned(), answer: String::new() },
            At::Begin | At::Closed | At::Answer => Told { reasoning: String::new(), answer: rest },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In pieces of any size, the same is told apart.
    #[test]
    fn thoughts_are_told_apart_however_they_are_cut() {
        for (inside, text, reasoning, answer) in [
            (false, "Hi <think> there", "", "Hi <think> there"),
            (false, " \n", "", " \n"),
            (false, "<thin", "", "<thin"),
            (false, "<thin air>", "", "<thin air>"),
            (false, "\n<think>\n a < b \n\n</think>\n\nYes\n", "a < b", "Yes\n"),
            (false, "<think></think>ok", "", "ok"),
            (false, "<think>é</thinkers> </think> é</think>", "é</thinkers>", "é</think>"),
            (true, "because</think>so", "because", "so"),
            (true, "  because </thi", "because </thi", ""),
            (true, "</think>", "", ""),
            (true, "never\nends \n", "never\nends", ""),
        ] {
            let chars: Vec<char> = text.chars().collect();
            for size in 1..=chars.len() {
                let mut stream = ReasoningStream::new(inside);
                let mut all = Told::default();
                let mut add = |told: Told| {
                    all.reasoning += &told.reasoning;
                    all.answer += &told.answer;
                };
                chars.chunks(size).for_each(|piece| add(stream.push(&piece.iter().collect::<String>())));
                add(stream.finish());
                let expected = Told { reasoning: reasoning.into(), answer: answer.into() };
                assert_eq!(all, expected, "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn text_is_told_as_soon_as_it_is_sure() {
        let mut stream = ReasoningStream::new(true);
        assert_eq!(stream.push("I see a").reasoning, "I see a");
        assert!(stream.is_in_thought());
        assert_eq!(stream.push(" cat <").reasoning, " cat");
        assert_eq!(stream.push("/think>Cat").answer, "Cat");
        assert!(!stream.is_in_thought());
    }
}
