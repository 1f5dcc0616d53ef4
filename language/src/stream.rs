//! Streaming detokeniser: tokens → text, never splitting a character, up to a stop string.

use super::tokenizer::Tokenizer;

/// Decodes a stream of tokens. Its pieces joined equal [`Tokenizer::decode`] of all tokens, up to the first stop string.
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    stops: Vec<String>,
    /// Bytes that do not form a whole character yet.
    bytes: Vec<u8>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl<'a> TextStream<'a> {
    /// A stream that ends before any of `stops`; empty ones never match.
    pub fn new(tokenizer: &'a Tokenizer, stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { tokenizer, stops, bytes: Vec::new(), held: String::new(), stopped: false }
    }

    /// Appends a token and returns the text that is final now.
    pub fn push(&mut self, id: u32) -> String {
        if self.stopped {
            return String::new();
        }
        self.bytes.extend(self.tokenizer.token_bytes(id));
        let text = take_characters(&mut self.bytes);
        self.release(&text)
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the text that was held back; call it after the last token.
    pub fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let text = String::from_utf8_lossy(&std::mem::take(&mut self.bytes)).into_owned();
        let mut released = self.release(&text);
        released.push_str(&std::mem::take(&mut self.held));
        released
    }

    fn release(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let is_beginning = |tail: &str| self.stops.iter().any(|stop| stop.starts_with(tail));
        let keep = self.held.char_indices().map(|(at, _)| at).find(|&at| is_beginning(&self.held[at..]));
        let rest = self.held.split_off(keep.unwrap_or(self.held.len()));
        std::mem::replace(&mut self.held, rest)
    }
}

/// Removes the whole characters, and U+FFFD for bytes that can't become one; leaves the beginning of a character.
fn take_characters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        let at_end = taken + chunk.invalid().len() == bytes.len();
        let unfinished = std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
        if at_end && unfinished {
            break;
        }
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
            taken += chunk.invalid().len();
        }
    }
    bytes.drain(..taken);
    text
}

#[cfg(test)]
mod tests {
    use super::take_characters;
    use proptest::prelude::*;

    #[test]
    fn characters_are_not_split() {
        let mut bytes = "a€".as_bytes()[..3].to_vec();
        assert_eq!(take_characters(&mut bytes), "a");
        bytes.push("€".as_bytes()[2]);
        assert_eq!(take_characters(&mut bytes), "€");
        assert!(bytes.is_empty());
    }

    proptest! {
        /// However bytes come in, the text is that of all of them.
        #[test]
        fn pieces_make_the_whole(
            text in prop::collection::vec(prop_oneof![any::<u8>(), 0xc2..0xf5u8, 0x80..0xc0u8], 0..40),
            size in 1..5usize,
        ) {
            let mut found = String::new();
            let mut pending = Vec::new();
            for piece in text.chunks(size) {
                pending.extend_from_slice(piece);
                found += &take_characters(&mut pending);
            }
            found += &String::from_utf8_lossy(&pending);
            prop_assert_eq!(found, String::from_utf8_lossy(&text));
        }
    }
}
