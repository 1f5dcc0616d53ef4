//! The tokenizer from metadata: byte-level BPE with the pre-tokenizer that `tokenizer.ggml.pre` names.
//!
//! The published tokenizer normalises texts to Unicode's form C first, which the metadata does not state.

use crate::gguf::Gguf;
use crate::seam::Config;
use crate::tokenizer::Tokenizer;
use crate::tokenizer_parts::{MAX_ADDED, PATTERN};
use pascaline::Result;
use std::collections::HashSet;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

/// The key of the vocabulary.
pub const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const MERGES: &str = "tokenizer.ggml.merges";

/// Kinds of tokens; the format has no others for this kind of tokenizer.
const NORMAL: u64 = 1;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
/// A row of the embedding without a text.
const UNUSED: u64 = 5;

/// The text file's tokenizer.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with file and key.
pub(crate) fn tokenizer(text: &Gguf, config: &Config) -> Result<Tokenizer> {
    let metadata = text.metadata();
    metadata.only("tokenizer.ggml.model", "gpt2")?;
    metadata.only("tokenizer.ggml.pre", "qwen2")?;
    let tokens = metadata.required(TOKENS, metadata.strings(TOKENS)?)?;
    let types = metadata.required(TYPES, metadata.unsigneds(TYPES)?)?;
    let merges = metadata.required(MERGES, metadata.strings(MERGES)?)?;
    if tokens.len() > config.text.vocab_size {
        let reason =
            format!("has {} tokens, the model's vocabulary {}", tokens.len(), config.text.vocab_size);
        return Err(metadata.bad(TOKENS, reason));
    }
    if types.len() != tokens.len() {
        return Err(metadata.bad(TYPES, format!("has {} values for {} tokens", types.len(), tokens.len())));
    }

    let mut seen = HashSet::with_capacity(tokens.len());
    let (mut vocabulary, mut added, mut added_bytes) = (Vec::with_capacity(tokens.len()), Vec::new(), 0);
    for (id, (token, &kind)) in tokens.iter().zip(&types).enumerate() {
        if token.is_empty() || !seen.insert(token) {
            let what = if token.is_empty() { "is empty" } else { "comes twice" };
            return Err(metadata.bad(TOKENS, format!("token {id}, {token:?}, {what}")));
        }
        match kind {
            NORMAL => {}
            UNUSED => continue,
            CONTROL | USER_DEFINED => {
                added_bytes += token.len();
                if token.len() > MAX_ADDED[0] || added_bytes > MAX_ADDED[1] {
                    let [one, all] = MAX_ADDED;
                    let reason = format!(
                        "token {id} has {} bytes; one that is not normal has up to {one}, all together up to {all}",
                        token.len()
                    );
                    return Err(metadata.bad(TOKENS, reason));
                }
                added.push(AddedToken::from(token.as_str(), kind == CONTROL).normalized(false));
            }
            other => {
                return Err(
                    metadata.bad(TYPES, format!("token {id} is of kind {other}, which is not supported"))
                );
            }
        }
        vocabulary.push((token.clone(), id as u32));
    }
    // Each adds a token.
    if merges.len() > vocabulary.len() {
        return Err(metadata.bad(MERGES, format!("{} of a vocabulary of {}", merges.len(), vocabulary.len())));
    }
    let pairs = merges.iter().map(|merge| {
        let pair = merge.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' '));
        let (a, b) = pair.ok_or_else(|| metadata.bad(MERGES, format!("{merge:?} is no pair of tokens")))?;
        Ok((a.to_owned(), b.to_owned()))
    });
    let pairs = pairs.collect::<Result<Vec<_>>>()?;

    let build = || {
        let model =
            BPE::builder().vocab_and_merges(vocabulary.into_iter().collect::<Vocab>(), pairs).build()?;
        let words = Split::new(SplitPattern::Regex(PATTERN.into()), SplitDelimiterBehavior::Isolated, false)?;
        let steps = vec![words.into(), ByteLevel::new(false, true, false).into()];
        let mut inner = tokenizers::Tokenizer::new(model);
        inner.with_normalizer(Some(NFC)).with_pre_tokenizer(Some(Sequence::new(steps)));
        inner.add_tokens(&added);
        Ok(inner)
    };
    let inner = crate::tokenizer::caught(build)
        .map_err(|reason| metadata.bad(MERGES, format!("not a tokenizer: {reason}")))?;
    Tokenizer::new(inner, config, |reason| metadata.bad(TOKENS, reason))
}
