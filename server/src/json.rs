//! Request bodies as JSON values. Fields that no route knows are skipped, not built, and every value that is built is
//! charged before it is there: `[[],[],…` takes more than a hundred times its own bytes.

use super::account::{Charge, Full};
use super::error::ApiError;
use super::refused::REFUSED;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// The fields that a route reads, at whatever depth; those of `refused.rs` besides.
const KNOWN: [&str; 113] = [
    "add_generation_prompt",
    "arguments",
    "background",
    "best_of",
    "call_id",
    "choice",
    "content",
    "context",
    "continue_final_message",
    "conversation",
    "data",
    "description",
    "dimensions",
    "disable_parallel_tool_use",
    "documents",
    "echo",
    "encoding_format",
    "format",
    "fps",
    "frequency_penalty",
    "function",
    "function_call",
    "functions",
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "id",
    "ignore_eos",
    "image",
    "image_url",
    "images",
    "include_usage",
    "input",
    "input_schema",
    "instruction",
    "instructions",
    "is_error",
    "json",
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_frames",
    "max_output_tokens",
    "max_pixels",
    "max_tokens",
    "max_tokens_to_sample",
    "media_io_kwargs",
    "media_type",
    "messages",
    "min_p",
    "min_pixels",
    "mm_processor_kwargs",
    "modalities",
    "model",
    "n",
    "name",
    "num_ctx",
    "num_frames",
    "num_predict",
    "options",
    "output",
    "parallel_tool_calls",
    "parameters",
    "parse_special",
    "presence_penalty",
    "previous_response_id",
    "prompt",
    "query",
    "raw",
    "reasoning",
    "reasoning_content",
    "refusal",
    "regex",
    "repetition_penalty",
    "response_format",
    "return_documents",
    "return_progress",
    "role",
    "schema",
    "seed",
    "source",
    "stop",
    "stop_sequences",
    "stream",
    "stream_options",
    "strict",
    "structured_outputs",
    "suffix",
    "summary",
    "system",
    "temperature",
    "template",
    "text",
    "think",
    "thinking",
    "tokens",
    "tool_call_id",
    "tool_calls",
    "tool_choice",
    "tool_name",
    "tool_use_id",
    "tools",
    "top_k",
    "top_logprobs",
    "top_n",
    "top_p",
    "type",
    "url",
    "video",
    "video_url",
];
/// Fields whose values have names of the client's own.
const WHOLE: [&str; 9] = [
    "arguments",
    "format",
    "guided_json",
    "input",
    "input_schema",
    "json",
    "logit_bias",
    "parameters",
    "schema",
];

/// Bytes that a value takes in the list or object that holds it, which may have grown to twice its size.
const VALUE: usize = 2 * size_of::<Value>();
/// Bytes that an object with fields takes besides them.
const OBJECT: usize = 512;

fn is_known(name: &str) -> bool {
    KNOWN.contains(&name) || is_refused(name)
}

fn is_refused(name: &str) -> bool {
    REFUSED.iter().any(|(refused, _)| *refused == name)
}

/// Parses a body. The charge grows by what its values take.
pub(crate) fn parse(body: &[u8], charge: &mut Charge) -> Result<Value, ApiError> {
    let mut full = None;
    let mut json = serde_json::Deserializer::from_slice(body);
    let found = Build { charge, full: &mut full, whole: false }.deserialize(&mut json);
    let found = found.and_then(|value| json.end().map(|()| value));
    match (found, full) {
        (_, Some(full)) => Err(full.into()),
        (Ok(value), None) => Ok(value),
        (Err(error), None) => Err(ApiError::malformed(format!("the body is not JSON: {error}"))),
    }
}

/// Builds a value.
struct Build<'a> {
    charge: &'a mut Charge,
    /// Why there was no more memory, if so.
    full: &'a mut Option<Full>,
    /// Whether fields with unknown names are built too.
    whole: bool,
}

impl Build<'_> {
    fn inner(&mut self, whole: bool) -> Build<'_> {
        Build { charge: self.charge, full: self.full, whole }
    }

    fn pay<E: Error>(&mut self, bytes: usize) -> Result<(), E> {
        self.charge.grow(bytes).map_err(|full| {
            *self.full = Some(full);
            E::custom("there is no memory for it")
        })
    }
}

impl<'de> DeserializeSeed<'de> for Build<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<Value, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Build<'_> {
    type Value = Value;

    fn expecting(&self, text: &mut fmt::Formatter) -> fmt::Result {
        text.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(mut self, text: &str) -> Result<Value, E> {
        self.pay(text.len())?;
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        let whole = self.whole;
        while let Some(value) = list.next_element_seed(self.inner(whole))? {
            // room for four is made at once
            self.pay(if values.is_empty() { 4 * VALUE } else { VALUE })?;
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if !self.whole && !is_known(&name) {
                fields.next_value::<IgnoredAny>()?;
                continue;
            }
            let fixed = if map.is_empty() { OBJECT } else { 0 };
            self.pay(fixed + 2 * (name.len() + size_of::<String>()) + VALUE)?;
            let whole = self.whole || WHOLE.contains(&&*name) || is_refused(&name);
            let value = fields.next_value_seed(self.inner(whole))?;
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}
