//! Answers that follow a rule: llguidance computes which tokens may come next.

use super::rule::Rule;
use llguidance::toktrie::{ApproximateTokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use pascaline::{Error, Result};
use qwen3_vl::Processor;
use qwen3_vl::sampling::Constraint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A model's vocabulary, in the form that llguidance needs.
pub(crate) struct Grammars(ParserFactory);

impl Grammars {
    /// # Errors
    /// A sentence, if no grammar can be built on the tokenizer's vocabulary.
    pub fn new(processor: &Processor) -> std::result::Result<Self, String> {
        let vocabulary = processor.config.text.vocab_size as u32;
        let tokenizer = &processor.tokenizer;
        let word = |id| match tokenizer.control(id) {
            Some(spelling) => [&[TokTrie::SPECIAL_TOKEN_MARKER], spelling.as_bytes()].concat(),
            None => tokenizer.token_bytes(id),
        };
        let ends = &processor.generation.eos_token_ids;
        let end = *ends.first().ok_or("the model has no token that ends an answer")?;
        let make = || {
            let words: Vec<Vec<u8>> = (0..vocabulary).map(word).collect();
            let trie = TokTrie::from(&TokRxInfo::new(vocabulary, end), &words).with_eos_tokens(ends);
            let tokens = Arc::new(ApproximateTokEnv::new(trie)) as _;
            let mut factory = ParserFactory::new_simple(&tokens).map_err(|error| error.to_string())?;
            factory.quiet();
            factory.limits_mut().verbose_errors = false;
            Ok(factory)
        };
        // it panics on a vocabulary that it does not accept
        match catch_unwind(AssertUnwindSafe(make)) {
            Ok(Ok(factory)) => Ok(Self(factory)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err("the tokenizer's tokens are none that a grammar can be made of".into()),
        }
    }

    /// The grammar of a rule, for an answer that may begin in a thought.
    ///
    /// # Errors
    /// A sentence about the rule.
    pub fn matcher(&self, rule: &Rule, begins_in_thought: bool) -> std::result::Result<Matcher, String> {
        let mut matcher = Matcher::new(self.0.create_parser(rule.grammar(begins_in_thought)));
        let error =
            matcher.get_error().or_else(|| matcher.compute_mask().err().map(|error| error.to_string()));
        match error {
            Some(error) => Err(sentence(&error)),
            None => Ok(matcher),
        }
    }
}

/// llguidance's error in a sentence. Its caught panics and its internal names would mean nothing to a client.
fn sentence(error: &str) -> String {
    let line = error.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    match line.contains(' ') && !line.starts_with("panic:") {
        true => error.trim().trim_end_matches("<non-verbose/>").trim().to_owned(),
        false => "no grammar can be made of it: nothing fits it, or its numbers are too large".to_owned(),
    }
}

/// A grammar, and the state of an answer in it.
pub(crate) struct Grammar(pub Matcher);

impl Constraint for Grammar {
    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        let allowed = self.0.compute_mask_or_eos().map_err(refused)?;
        for (id, logit) in (0..).zip(logits) {
            if id as usize >= allowed.len() || !allowed.is_allowed(id) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        if self.0.is_stopped() { Ok(()) } else { self.0.consume_token(token).map_err(refused) }
    }
}

fn refused(error: impl ToString) -> Error {
    let (argument, value) = ("schema", "the request's".to_owned());
    Error::Unsupported { op: "grammar", argument, value, reason: sentence(&error.to_string()) }
}

/// What is added to tokens' logits, besides a grammar if there is one.
pub(crate) struct Biased {
    pub bias: Vec<(u32, f32)>,
    pub grammar: Option<Grammar>,
}

impl Constraint for Biased {
    fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
        for &(id, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        self.grammar.as_mut().map_or(Ok(()), |grammar| grammar.mask(logits))
    }

    fn accept(&mut self, token: u32) -> Result<()> {
        self.grammar.as_mut().map_or(Ok(()), |grammar| grammar.accept(token))
    }
}
