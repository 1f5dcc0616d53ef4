//! Text ↔ tokens, by the checkpoint's `tokenizer.json`.

use super::chat::{check_length, most_bytes};
use super::control::StandIns;
use super::json::{bad, parse_object, read_bytes};
use super::seam::Config;
use super::tokenizer_parts;
use pascaline::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use tokenizers::{AddedVocabulary, Model, OffsetReferential, OffsetType, PreTokenizer};

/// The most bytes of a `tokenizer.json`; the published one is 11 MB.
pub(crate) const MAX_TOKENIZER: u64 = 32 << 20;

/// A byte-level BPE tokenizer with the model's special tokens.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The most bytes of a text.
    most: usize,
    /// The added tokens; special ones among them are not matched in text.
    ordinary: AddedVocabulary,
    /// How special tokens are spelled.
    controls: Vec<String>,
    /// Tokens that are left out of decoded text.
    special: HashSet<u32>,
    /// The byte that each character of a token's spelling encodes.
    bytes: HashMap<char, u8>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` in `dir` and checks it against the configuration.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it is no byte-level tokenizer, has parts that the published tokenizers lack or ids beyond
    /// the vocabulary, or lacks one of the special tokens.
    pub fn load(dir: &Path, config: &Config) -> Result<Self> {
        let file = dir.join("tokenizer.json");
        let bytes = read_bytes(&file, MAX_TOKENIZER)?;
        tokenizer_parts::check(&file, &parse_object(&file, &bytes)?, config.text.vocab_size)?;
        // by `FromStr`, which is compiled in the tokenizers crate, where `from_bytes` would be compiled in this one
        let inner = caught(|| str::from_utf8(&bytes)?.parse::<tokenizers::Tokenizer>())
            .map_err(|reason| bad(&file, None, format!("not a tokenizer: {reason}")))?;
        let largest = inner.get_vocab(true).into_values().max().unwrap_or(0);
        if largest as usize >= config.text.vocab_size {
            let reason =
                format!("id {largest} is outside the model's vocabulary of {}", config.text.vocab_size);
            return Err(bad(&file, Some("vocab"), reason));
        }
        Self::new(inner, config, |reason| bad(&file, Some("added_tokens"), reason))
    }

    /// With the special tokens of the configuration; `refuse` makes the error if one is missing.
    pub(crate) fn new(
        inner: tokenizers::Tokenizer,
        config: &Config,
        refuse: impl Fn(String) -> Error,
    ) -> Result<Self> {
        let tokens = config.vision.as_ref().map_or_else(Vec::new, |vision| vision.special_tokens());
        if let Some((field, id)) = tokens.into_iter().find(|(_, id)| inner.id_to_token(*id).is_none()) {
            return Err(refuse(format!("{field} {id} is not there")));
        }
        let added = inner.get_added_tokens_decoder();
        let mut ordinary = inner.get_added_vocabulary().clone();
        ordinary.set_encode_special_tokens(true);
        let special = added.values().filter(|token| token.special);
        Ok(Self {
            most: most_bytes(config.text.max_position_embeddings),
            ordinary,
            controls: special.map(|token| token.content.clone()).collect(),
            special: added.iter().filter(|(_, token)| token.special).map(|(&id, _)| id).collect(),
            bytes: byte_characters(),
            inner,
        })
    }

    /// Encodes a text; spellings of special tokens become special tokens.
    ///
    /// # Errors
    /// [`Error::Prompt`], also for more bytes than [`most_bytes`] of the model's context.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        check_length(text.len(), self.most)?;
        let encoding = caught(|| self.inner.encode_fast(text, true));
        encoding.map(|encoding| encoding.get_ids().to_vec()).map_err(|reason| Error::Prompt { reason })
    }

    /// Encodes a text; spellings of special tokens are ordinary text.
    ///
    /// # Errors
    /// [`Error::Prompt`], also for more bytes than [`most_bytes`] of the model's context.
    pub fn encode_ordinary(&self, text: &str) -> Result<Vec<u32>> {
        check_length(text.len(), self.most)?;
        let encoding = caught(|| {
            let mut words = self.ordinary.extract_and_normalize(self.inner.get_normalizer(), text);
            if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
                pre_tokenizer.pre_tokenize(&mut words)?;
            }
            words.tokenize(|word| self.inner.get_model().tokenize(word.get()))?;
            words.into_encoding(None, 0, OffsetType::None)
        });
        encoding.map(|encoding| encoding.get_ids().to_vec()).map_err(|reason| Error::Prompt { reason })
    }

    /// Encodes a rendered template: special tokens are recognised where their spelling has no substitutes, which are
    /// restored after that.
    pub(crate) fn encode_with(&self, text: &str, stand_ins: &StandIns) -> Result<Vec<u32>> {
        check_length(text.len(), self.most)?;
        let found = caught(|| {
            let added = self.inner.get_added_vocabulary();
            Ok(added.extract_and_normalize(self.inner.get_normalizer(), text))
        });
        let found = found.map_err(|reason| Error::Prompt { reason })?;
        let mut ids = Vec::new();
        for (_, (from, to), token) in found.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            match token {
                Some(tokens) => ids.extend(tokens.iter().map(|token| token.id)),
                None => ids.extend(self.encode_ordinary(&stand_ins.restore(&text[from..to]))?),
            }
        }
        Ok(ids)
    }

    /// The spellings of all special tokens.
    pub fn controls(&self) -> &[String] {
        &self.controls
    }

    /// How a token is spelled in the vocabulary; `None` for ids without a token.
    pub fn spelling(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The spelling of a special token; `None` for all others.
    pub fn control(&self, id: u32) -> Option<String> {
        self.special.contains(&id).then(|| self.inner.id_to_token(id)).flatten()
    }

    /// The text of tokens, without special ones; invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of a token; empty for special tokens and ids without a token.
    pub fn token_bytes(&self, id: u32) -> Vec<u8> {
        if self.special.contains(&id) {
            return Vec::new();
        }
        let Some(token) = self.inner.id_to_token(id) else { return Vec::new() };
        // An added token whose spelling is not in byte characters is its own text.
        let bytes: Option<Vec<u8>> = token.chars().map(|c| self.bytes.get(&c).copied()).collect();
        bytes.unwrap_or_else(|| token.into_bytes())
    }
}

/// Calls the tokenizers crate, which panics on some files and texts, and turns a panic into an error. A value under
/// construction is dropped then, and nothing is mutated in place, so no broken state remains.
pub(crate) fn caught<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the tokenizer's parts do not fit each other".into()),
    }
}

/// Byte-level BPE spells each byte as one printable character: bytes that are printable in Latin-1 as themselves, the
/// others, in ascending order, as U+0100 and on. Source: GPT-2's `bytes_to_unicode`.
fn byte_characters() -> HashMap<char, u8> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => (char::from(byte), byte),
            _ => {
                next += 1;
                (char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER), byte)
            }
        })
        .collect()
}
