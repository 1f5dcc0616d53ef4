//! An answer's text, told apart: thoughts, the answer itself, and calls of tools.

use qwen3_vl::reasoning::ReasoningStream;
use serde_json::Value;
use std::mem;
use std::sync::Arc;

/// The tags of a call, as Qwen's published templates have them.
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    pub id: String,
    pub name: String,
    /// JSON of an object.
    pub arguments: String,
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Delta {
    Reasoning(String),
    Text(String),
    Call(Call),
}

/// Tells one answer's text apart while it comes. A call is known when it is complete: what turns out to be none is text.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    /// `None`: the text is the answer.
    reasoning: Option<ReasoningStream>,
    /// The tools that may be called.
    names: Arc<[String]>,
    /// Text that may be the beginning of a call, a call that is not complete, or white space that may precede one.
    held: String,
    /// Whether `held` begins with a call's tag.
    is_open: bool,
    /// Whether a call has come. White space around calls is no text.
    has_called: bool,
}

impl Reader {
    /// For a prompt without a template: all is text.
    pub fn plain() -> Self {
        Self { reasoning: None, ..Self::new(false, Arc::new([])) }
    }

    pub fn new(begins_in_thought: bool, names: Arc<[String]>) -> Self {
        let reasoning = Some(ReasoningStream::new(begins_in_thought));
        Self { reasoning, names, held: String::new(), is_open: false, has_called: false }
    }

    /// For the rest of an answer that has begun with `text`.
    pub fn after(mut self, text: &str) -> Self {
        if let Some(reasoning) = &mut self.reasoning {
            reasoning.push(text);
        }
        self
    }

    /// Whether the text so far ends inside a thought.
    pub fn is_in_thought(&self) -> bool {
        self.reasoning.as_ref().is_some_and(ReasoningStream::is_in_thought)
    }

    /// Appends text; returns what is certain now.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        let Some(reasoning) = &mut self.reasoning else { return texts(text.to_owned()) };
        let told = reasoning.push(text);
        self.told(told.reasoning, &told.answer)
    }

    /// The last text, and what was held back.
    pub fn finish(&mut self, rest: &str) -> Vec<Delta> {
        let mut found = self.push(rest);
        if let Some(reasoning) = &mut self.reasoning {
            let told = reasoning.finish();
            found.append(&mut self.told(told.reasoning, &told.answer));
        }
        let held = mem::take(&mut self.held);
        // some models leave out the closing tag at the end
        match self.is_open.then(|| self.call(held[OPEN.len()..].trim())) {
            Some(Ok(call)) => found.push(Delta::Call(call)),
            _ if self.has_called && held.trim().is_empty() => {}
            _ => found.append(&mut texts(held)),
        }
        found
    }

    fn told(&mut self, reasoning: String, answer: &str) -> Vec<Delta> {
        let mut found = Vec::new();
        if !reasoning.is_empty() {
            found.push(Delta::Reasoning(reasoning));
        }
        if self.names.is_empty() {
            found.append(&mut texts(answer.to_owned()));
        } else if !answer.is_empty() {
            self.held.push_str(answer);
            while let Some(delta) = self.next() {
                found.extend(Some(delta).filter(|delta| *delta != Delta::Text(String::new())));
            }
        }
        found
    }

    /// The next piece that is certain.
    fn next(&mut self) -> Option<Delta> {
        if !self.is_open {
            if let Some(at) = self.held.find(OPEN) {
                let rest = self.held.split_off(at);
                let before = mem::replace(&mut self.held, rest);
                self.is_open = true;
                return Some(Delta::Text(self.without_margin(before.trim_end())));
            }
            let is_tag = |at: &usize| OPEN.starts_with(&self.held[*at..]);
            let end = self.held.char_indices().map(|(at, _)| at).find(is_tag).unwrap_or(self.held.len());
            let rest = self.held.split_off(self.held[..end].trim_end().len());
            let sure = mem::replace(&mut self.held, rest);
            let sure = self.without_margin(&sure);
            return (!sure.is_empty()).then_some(Delta::Text(sure));
        }
        let mut from = OPEN.len();
        loop {
            let end = from + self.held[from..].find(CLOSE)?;
            let found = self.call(self.held[OPEN.len()..end].trim());
            match found {
                Err(Bad::Unfinished) => from = end + CLOSE.len(), // the tag is in a text of the arguments
                Err(Bad::Malformed) => {
                    let rest = self.held.split_off(end + CLOSE.len());
                    self.is_open = false;
                    return Some(Delta::Text(mem::replace(&mut self.held, rest)));
                }
                Ok(call) => {
                    self.held = self.held.split_off(end + CLOSE.len());
                    (self.is_open, self.has_called) = (false, true);
                    return Some(Delta::Call(call));
                }
            }
        }
    }

    /// Text without the white space that follows a call.
    fn without_margin(&self, text: &str) -> String {
        if self.has_called { text.trim_start() } else { text }.to_owned()
    }

    fn call(&self, text: &str) -> Result<Call, Bad> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| if error.is_eof() { Bad::Unfinished } else { Bad::Malformed })?;
        let name = value["name"].as_str().filter(|name| self.names.iter().any(|known| known == name));
        let name = name.ok_or(Bad::Malformed)?.to_owned();
        let arguments = match value.get("arguments").or_else(|| value.get("parameters")) {
            None | Some(Value::Null) => "{}".to_owned(),
            Some(arguments @ Value::Object(_)) => arguments.to_string(),
            Some(Value::String(text))
                if serde_json::from_str::<Value>(text).is_ok_and(|it| it.is_object()) =>
            {
                text.clone()
            }
            Some(_) => return Err(Bad::Malformed),
        };
        Ok(Call { id: format!("call_{:024x}", rand::random::<u128>() >> 32), name, arguments })
    }
}

/// Why a text is no call.
enum Bad {
    /// It may become one.
    Unfinished,
    Malformed,
}

fn texts(text: String) -> Vec<Delta> {
    if text.is_empty() { Vec::new() } else { vec![Delta::Text(text)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All pieces joined: the text with `[name arguments]` for calls, and the thought.
    fn read(text: &str, size: usize, inside: bool) -> (String, String) {
        let mut reader = Reader::new(inside, Arc::new(["f".to_owned(), "g".to_owned()]));
        let chars: Vec<char> = text.chars().collect();
        let mut deltas: Vec<Delta> =
            chars.chunks(size).flat_map(|piece| reader.push(&piece.iter().collect::<String>())).collect();
        deltas.append(&mut reader.finish(""));
        let (mut answer, mut thought) = (String::new(), String::new());
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => thought += &text,
                Delta::Text(text) => answer += &text,
                Delta::Call(call) => answer += &format!("[{} {}]", call.name, call.arguments),
            }
        }
        (answer, thought)
    }

    #[test]
    fn calls_are_found_however_they_are_cut() {
        let f = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>";
        for (text, expected) in [
            ("Hello \n", "Hello \n".to_owned()),
            (f, "[f {\"x\":1}]".into()),
            (&*format!("Look:\n{f}\n{f}\n"), "Look:[f {\"x\":1}][f {\"x\":1}]".into()),
            (&*format!("{f} then"), "[f {\"x\":1}]then".into()),
            // a tag inside an argument
            (
                "<tool_call>{\"name\":\"g\",\"arguments\":{\"a\":\"</tool_call>\"}}</tool_call>",
                "[g {\"a\":\"</tool_call>\"}]".into(),
            ),
            // no arguments, arguments as text, no closing tag
            ("<tool_call>{\"name\":\"g\"}</tool_call>", "[g {}]".into()),
            ("<tool_call>{\"name\":\"g\",\"arguments\":\"{}\"}</tool_call>", "[g {}]".into()),
            ("<tool_call>{\"name\":\"g\",\"arguments\":{}}\n", "[g {}]".into()),
        ] {
            for size in 1..=text.chars().count() {
                assert_eq!(read(text, size, false).0, expected, "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn what_is_no_call_is_text() {
        for text in [
            "<tool_call",
            "<tool_call>",
            "<tool_call>\n{\"name\": \"f\", \"argu",
            "<tool_call>nonsense</tool_call>",
            "<tool_call>{\"name\":\"h\",\"arguments\":{}}</tool_call>",
            "<tool_call>{\"name\":\"f\",\"arguments\":[]}</tool_call> and on",
            "a </tool_call> b <tool_calls>",
        ] {
            for size in 1..=text.chars().count() {
                assert_eq!(read(text, size, false).0, text, "in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_call_in_a_thought_is_none() {
        let call = "<tool_call>{\"name\":\"g\"}</tool_call>";
        let (answer, thought) = read(&format!("I may {call}\n</think>\n\n{call}"), 3, true);
        assert_eq!((&*answer, thought), ("[g {}]", format!("I may {call}")));
    }

    #[test]
    fn without_tools_and_template_all_is_text() {
        let mut reader = Reader::plain();
        let text = "<think>a</think> <tool_call>{}</tool_call> \n";
        assert_eq!(reader.push(text), [Delta::Text(text.into())]);
        assert_eq!(reader.finish(""), []);
    }
}
