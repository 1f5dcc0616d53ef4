//! Embeddings and relevance, as Qwen3-VL-Embedding and Qwen3-VL-Reranker define them.
//!
//! An embedding is the normalised hidden state of the prompt's last token, divided by its length: the instruction is the system turn,
//! pictures, videos and text are the user's. A document's relevance to a query is the probability of "yes" against "no" as the next
//! token after a fixed question about both.

use super::chat::{Message, Part};
use super::media::{PixelLimits, Visual};
use super::model::{LanguageModel, Session};
use super::processor::Prompt;
use super::text::Images;
use pascaline::{Error, Result};
use std::ops::ControlFlow;

/// The instruction of an embedding, unless one is given.
pub const INSTRUCTION: &str = "Represent the user's input.";
/// The instruction of a ranking, unless one is given.
pub const RANKING_INSTRUCTION: &str =
    "Given a search query, retrieve relevant candidates that answer the query.";
/// The pixels that pictures are resized to by the published models.
pub const PIXELS: PixelLimits = PixelLimits { min: Some(4096), max: Some(1_843_200), most: None };
/// Stands for an input without text, pictures and videos.
const NOTHING: &str = "NULL";
const JUDGE: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
                     Note that the answer can only be \"yes\" or \"no\".";

/// A text with pictures and videos before it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    /// The text; may be empty.
    pub text: String,
    /// The pictures and videos.
    pub visuals: Vec<Visual>,
}

impl Content {
    /// A text alone.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), visuals: Vec::new() }
    }

    fn parts(&self) -> impl Iterator<Item = Part> {
        parts(self.visuals.iter().map(Visual::part), &self.text)
    }
}

/// Placeholders and text; [`NOTHING`] if there is neither.
fn parts(visuals: impl Iterator<Item = Part>, text: &str) -> impl Iterator<Item = Part> {
    let mut parts: Vec<Part> = visuals.collect();
    let text = if parts.is_empty() && text.is_empty() { NOTHING } else { text };
    if !text.is_empty() {
        parts.push(Part::Text { text: text.to_owned() });
    }
    parts.into_iter()
}

/// An embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding {
    /// Of length 1.
    pub vector: Vec<f32>,
    /// Tokens of the prompt.
    pub tokens: usize,
}

/// A document's relevance to a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Relevance {
    /// From 0 to 1.
    pub score: f64,
    /// Tokens of the prompt.
    pub tokens: usize,
}

/// The conversation whose last token's state is the embedding of a text with these placeholders before it.
pub fn embedding_messages(
    visuals: impl Iterator<Item = Part>,
    text: &str,
    instruction: Option<&str>,
) -> [Message; 2] {
    let mut instruction = instruction.unwrap_or(INSTRUCTION).trim().to_owned();
    if instruction.chars().next_back().is_some_and(|last| !is_punctuation(last)) {
        instruction.push('.');
    }
    let content = parts(visuals, text).collect();
    [Message::text("system", &instruction), Message { role: "user".to_owned(), content }]
}

/// The conversation that asks whether a document answers a query.
pub fn ranking_messages(
    query: impl Iterator<Item = Part>,
    document: impl Iterator<Item = Part>,
    instruction: Option<&str>,
) -> [Message; 2] {
    let text = |text: String| Part::Text { text };
    let instruction = instruction.unwrap_or(RANKING_INSTRUCTION);
    let mut content = vec![text(format!("<Instruct>: {instruction}")), text("<Query>:".to_owned())];
    content.extend(query);
    content.push(text("\n<Document>:".to_owned()));
    content.extend(document);
    [Message::text("system", JUDGE), Message { role: "user".to_owned(), content }]
}

/// The first `dimensions` of a vector, of length 1 again: the published models are trained so that a beginning is an embedding.
///
/// # Errors
/// [`Error::Unsupported`] for no dimensions, or more than the vector has.
pub fn shortened(vector: &[f32], dimensions: usize) -> Result<Vec<f32>> {
    let beginning = vector.get(..dimensions).filter(|part| !part.is_empty());
    let beginning = beginning.ok_or_else(|| Error::Unsupported {
        op: "embed",
        argument: "dimensions",
        value: dimensions.to_string(),
        reason: format!("the model's embeddings have {}, and may be shortened to one at least", vector.len()),
    })?;
    Ok(normalized(beginning))
}

/// The scalar product of two embeddings, from -1 to 1: how near their meanings are.
///
/// # Errors
/// [`Error::Unsupported`] if they have different lengths.
pub fn similarity(a: &[f32], b: &[f32]) -> Result<f64> {
    if a.len() != b.len() {
        return Err(Error::Unsupported {
            op: "similarity",
            argument: "b",
            value: format!("an embedding of {} numbers", b.len()),
            reason: format!("the other has {}; both must be of one model, and shortened alike", a.len()),
        });
    }
    Ok(a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum())
}

fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    vector.iter().map(|&value| (f64::from(value) / length.max(f64::MIN_POSITIVE)) as f32).collect()
}

impl LanguageModel {
    /// The embedding of a text with pictures and videos.
    ///
    /// # Errors
    /// As [`Processor::prepare`](super::Processor::prepare), and device errors.
    pub fn embed(&self, content: &Content, instruction: Option<&str>) -> Result<Embedding> {
        let visuals = content.visuals.iter().map(Visual::part);
        let messages = embedding_messages(visuals, &content.text, instruction);
        let prompt = self.processor.prepare(&messages, &content.visuals)?;
        self.embed_prompt(&prompt)
    }

    /// The embedding of a prompt: its last token's hidden state after the final norm, divided by its length.
    ///
    /// # Errors
    /// As [`embed`](Self::embed).
    pub fn embed_prompt(&self, prompt: &Prompt) -> Result<Embedding> {
        let capacity = self.capacity(prompt, 0)?;
        let outputs = prompt.patches.iter().map(|patches| self.encode_image(patches));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let runs = self.prompt_runs(prompt)?;
        let mut cache = self.network.text.cache()?;
        cache.reserve(capacity)?;
        let images = Images { outputs: &outputs, runs: &runs };
        let (axes, go_on) = (&prompt.positions.axes, &mut |_| ControlFlow::Continue(()));
        let passed =
            self.network.hidden_of_prompt(&mut cache, &prompt.ids, axes, images, &mut |_| {}, go_on)?;
        let hidden = passed.ok_or_else(|| Error::Prompt { reason: "it was ended".into() })?;
        let vector =
            hidden.first().map_or_else(|| Ok(Vec::new()), |hidden| hidden.contiguous()?.to_vec::<f32>())?;
        self.network.text.settle()?;
        Ok(Embedding { vector: normalized(&vector), tokens: prompt.ids.len() })
    }

    /// A document's relevance to a query. `session` keeps what the prompts of one query share.
    ///
    /// # Errors
    /// As [`Processor::prepare`](super::Processor::prepare); [`Error::Checkpoint`] if the vocabulary has no "yes" or "no"; device
    /// errors.
    pub fn relevance(
        &self,
        session: &mut Session,
        query: &Content,
        document: &Content,
        instruction: Option<&str>,
    ) -> Result<Relevance> {
        let messages = ranking_messages(query.parts(), document.parts(), instruction);
        let visuals: Vec<Visual> = query.visuals.iter().chain(&document.visuals).cloned().collect();
        let prompt = self.processor.prepare(&messages, &visuals)?;
        self.relevance_of_prompt(session, &prompt)
    }

    /// The probability of "yes" against "no" after a prompt of [`ranking_messages`].
    ///
    /// # Errors
    /// As [`relevance`](Self::relevance).
    pub fn relevance_of_prompt(&self, session: &mut Session, prompt: &Prompt) -> Result<Relevance> {
        let [yes, no] = ["yes", "no"].map(|word| self.processor.tokenizer.encode_ordinary(word));
        let ([yes], [no]) = (&yes?[..], &no?[..]) else {
            return Err(Error::Prompt {
                reason: "the vocabulary has no token \"yes\" or no token \"no\"".into(),
            });
        };
        let passed = self.prefill(session, prompt, 0, &mut |_| ControlFlow::Continue(()))?;
        let passed = passed.ok_or_else(|| Error::Prompt { reason: "it was ended".into() })?;
        let logits = passed.logits.to_vec::<f32>()?;
        let logit = |id: u32| logits.get(id as usize).map_or(f64::NAN, |&logit| f64::from(logit));
        let score = 1.0 / (1.0 + (logit(*no) - logit(*yes)).exp());
        Ok(Relevance { score, tokens: prompt.ids.len() })
    }
}

/// Whether a character is of Unicode's punctuation: all of ASCII's and of the blocks that texts end in.
fn is_punctuation(last: char) -> bool {
    match last {
        '$' | '+' | '<' | '=' | '>' | '^' | '`' | '|' | '~' => false, // symbols
        '\u{ff04}' | '\u{ff0b}' | '\u{2044}' | '\u{2052}' => false,
        '¡' | '§' | '«' | '¶' | '·' | '»' | '¿' | '։' | '،' | '؛' | '؟' | '।' | '॥' => true,
        '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}' => true,
        '\u{3001}'..='\u{3003}' | '\u{3008}'..='\u{3011}' | '\u{3014}'..='\u{301f}' => true,
        '\u{ff01}'..='\u{ff0f}' | '：' | '；' | '？' | '＠' | '［'..='］' | '＿' | '｛' | '｝' => {
            true
        }
        other => other.is_ascii_punctuation(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_end_in_punctuation() {
        let system = |instruction: &str| {
            let [system, _] = embedding_messages(std::iter::empty(), "x", Some(instruction));
            system.content
        };
        let text = |text: &str| vec![Part::Text { text: text.to_owned() }];
        assert_eq!(system(" Find it "), text("Find it."));
        assert_eq!(system("Find it!"), text("Find it!"));
        assert_eq!(system("找到它。"), text("找到它。"));
        assert_eq!(system("1 + 1 ="), text("1 + 1 =."));
    }

    #[test]
    fn near_meanings_have_a_large_product() {
        let (a, b) = (normalized(&[3.0, 4.0]), normalized(&[4.0, 3.0]));
        assert!((similarity(&a, &b).unwrap() - 0.96).abs() < 1e-7);
        assert!(similarity(&a, &b[..1]).is_err());
    }

    #[test]
    fn a_beginning_is_a_vector_of_length_one() {
        let vector = normalized(&[3.0, 4.0, 12.0]);
        let short = shortened(&vector, 2).unwrap();
        let differences = short.iter().zip([0.6, 0.8]).map(|(a, b): (&f32, f32)| (a - b).abs());
        assert!(
            short.len() == 2 && differences.fold(0.0, f32::max) <= f32::EPSILON,
            "rounded twice: {short:?}"
        );
        assert_eq!(shortened(&vector, 3).unwrap(), vector);
        assert!(shortened(&vector, 0).is_err() && shortened(&vector, 4).is_err());
    }
}
