//! The beginning of an answer that a request has as its last message (`continue_final_message`): the answer goes on from it.

use super::error::ApiError;
use super::fields::Fields;
use qwen3_vl::chat::{Message, Part};

type Result<T> = std::result::Result<T, ApiError>;

const NAME: &str = "continue_final_message";
/// A thought's tags.
const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// An answer up to where it was cut.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Unfinished {
    thought: String,
    text: String,
}

impl Unfinished {
    /// Takes the last message, if the request says that the answer goes on from it.
    pub fn take(fields: &Fields, messages: &mut Vec<Message>) -> Result<Option<Self>> {
        let is_wanted = fields.bool(NAME)?.unwrap_or(false);
        let prompts_anew = fields.bool("add_generation_prompt")?;
        match (is_wanted, prompts_anew) {
            (false, Some(false)) => {
                let message =
                    format!("add_generation_prompt = false is for {NAME}; otherwise the assistant answers");
                return Err(ApiError::unsupported("add_generation_prompt", message));
            }
            (true, Some(true)) => {
                let message =
                    format!("{NAME} goes on with the last message, and add_generation_prompt begins another");
                return Err(ApiError::invalid("add_generation_prompt", message));
            }
            (false, _) => return Ok(None),
            (true, _) => {}
        }
        let last = messages.pop_if(|last| last.role == "assistant");
        let Some(last) = last.filter(|_| !messages.is_empty()) else {
            let message = format!("{NAME} asks for a last message that is the assistant's, behind others");
            return Err(ApiError::invalid(NAME, message));
        };
        let mut unfinished = Self::default();
        for part in last.content {
            match part {
                Part::Reasoning { text } => unfinished.thought += &text,
                Part::Text { text } => unfinished.text += &text,
                Part::Image | Part::Video | Part::ToolCall { .. } => {
                    let message =
                        format!("{NAME} goes on with a text, and the last message has more than that");
                    return Err(ApiError::invalid(NAME, message));
                }
            }
        }
        Ok(Some(unfinished))
    }

    pub fn bytes(&self) -> usize {
        self.thought.len() + self.text.len()
    }

    /// As the model wrote it, behind a prompt that opens a thought or does not: each piece, and whether it is a tag.
    pub fn pieces(&self, is_in_thought: bool) -> Vec<(String, bool)> {
        let Self { thought, text } = self;
        let (has_thought, has_text) = (!thought.is_empty(), !text.is_empty());
        let mut pieces = Vec::new();
        if has_thought && !is_in_thought {
            pieces.push((OPEN.to_owned(), true));
        }
        if has_thought {
            // the prompt ends with the line's end
            let before = if is_in_thought { "" } else { "\n" };
            pieces.push((format!("{before}{thought}{}", if has_text { "\n" } else { "" }), false));
        }
        let is_behind = has_text && (has_thought || is_in_thought);
        if is_behind {
            pieces.push((CLOSE.to_owned(), true));
        }
        if has_text {
            pieces.push((format!("{}{text}", if is_behind { "\n\n" } else { "" }), false));
        }
        pieces
    }
}

#[cfg(test)]
mod tests {
    use super::Unfinished;

    #[test]
    fn a_thought_is_closed_if_the_answer_had_begun() {
        let written = |thought: &str, text: &str, is_in_thought| {
            let unfinished = Unfinished { thought: thought.to_owned(), text: text.to_owned() };
            unfinished.pieces(is_in_thought).into_iter().map(|(piece, _)| piece).collect::<String>()
        };
        assert_eq!(written("", "A cat", false), "A cat");
        assert_eq!(written("Hm", "", false), "<think>\nHm");
        assert_eq!(written("Hm", "A cat", false), "<think>\nHm\n</think>\n\nA cat");
        assert_eq!(written("Hm", "", true), "Hm");
        assert_eq!(written("Hm", "A cat", true), "Hm\n</think>\n\nA cat");
        assert_eq!(written("", "A cat", true), "</think>\n\nA cat");
        assert_eq!(written("", "", true), "");
    }
}
