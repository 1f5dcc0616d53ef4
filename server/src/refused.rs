//! Fields of other servers that would change the answer, and that this one does not have: each is refused by its name.

use super::error::ApiError;
use super::fields::Fields;
use serde_json::Value;

/// A field, and the numbers, texts or truth values with which it changes nothing. Null changes nothing either.
pub(crate) const REFUSED: [(&str, &[f64]); 37] = [
    // sampling
    ("adaptive_target", &[-1.0]),
    ("dry_multiplier", &[0.0]),
    ("dynatemp_range", &[0.0]),
    ("epsilon_cutoff", &[0.0]),
    ("eta_cutoff", &[0.0]),
    ("length_penalty", &[1.0]),
    ("mirostat", &[0.0]),
    ("no_repeat_ngram_size", &[0.0]),
    ("penalty_alpha", &[0.0]),
    ("repeat_penalty", &[1.0]),
    ("smoothing_factor", &[0.0]),
    ("tfs_z", &[1.0]),
    ("top_a", &[0.0]),
    ("top_n_sigma", &[-1.0, 0.0]),
    ("typical_p", &[1.0]),
    ("xtc_probability", &[0.0]),
    ("samplers", &[]),
    ("use_beam_search", &[]),
    ("num_beams", &[1.0]),
    // which tokens may come, and where an answer ends
    ("allowed_token_ids", &[]),
    ("bad_words", &[]),
    ("force_words", &[]),
    ("guided_whitespace_pattern", &[]),
    ("json_schema", &[]),
    ("logits_processors", &[]),
    ("min_tokens", &[0.0]),
    ("n_predict", &[-1.0]),
    ("prompt_logprobs", &[0.0]),
    ("stop_token_ids", &[]),
    ("t_max_predict_ms", &[0.0, -1.0]),
    ("truncate_prompt_tokens", &[]),
    // the prompt
    ("audio", &[]),
    ("chat_template", &[]),
    ("chat_template_kwargs", &[]),
    ("documents", &[]),
    ("lora", &[]),
    ("web_search_options", &[]),
];

/// Refuses a request that has one of them.
pub(crate) fn check(fields: &Fields) -> Result<(), ApiError> {
    for (name, idle) in REFUSED {
        let is_idle = |value: &Value| match value {
            Value::Null | Value::Bool(false) => true,
            Value::Number(number) => number.as_f64().is_some_and(|number| idle.contains(&number)),
            Value::Array(items) => items.is_empty(),
            Value::Object(map) => map.is_empty(),
            Value::Bool(true) | Value::String(_) => false,
        };
        if fields.get(name).is_some_and(|value| !is_idle(value)) {
            let hint = match name {
                "repeat_penalty" => "; its name here is repetition_penalty",
                "n_predict" => "; its name here is max_tokens",
                "json_schema" => "; use response_format",
                _ => "",
            };
            return Err(ApiError::unsupported(name, format!("{name} is not supported{hint}")));
        }
    }
    Ok(())
}
