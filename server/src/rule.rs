//! What an answer must be: the fields that ask for it, and the grammar that llguidance makes of them.

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::lark::{literal, spaced};
use super::tool::Calls;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, ApiError>;

/// The most texts of `guided_choice`.
const MAX_CHOICES: usize = 1000;
/// The most bytes of a grammar, a regular expression or the choices together.
const MAX_BYTES: usize = 64 << 10;
/// What an answer must be. Each has the field that asks for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub param: String,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    /// JSON of this schema.
    Json(Value),
    /// A text that this regular expression matches.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's form of Lark.
    Lark(String),
    /// Calls of tools.
    Calls(Calls),
}

impl Rule {
    /// The rule that a request asks for; at most one may be asked for.
    pub fn read(fields: &Fields) -> Result<Option<Self>> {
        let mut found = Vec::new();
        let mut add = |param: &str, kind: Option<Kind>| {
            found.extend(kind.map(|kind| Self { param: param.to_owned(), kind }));
        };
        let (path, schema) = response_format(fields)?;
        add(path, schema.map(Kind::Json));
        one_of(fields, "guided_", &mut add)?;
        if let Some(structured) = fields.object("structured_outputs")? {
            one_of(&structured, "", &mut add)?;
        }
        add("grammar", lark(fields, "grammar")?);
        match found.len() {
            0 | 1 => Ok(found.pop()),
            _ => Err(ApiError::invalid(
                found[1].param.clone(),
                format!("{} and {} both say what the answer must be", found[0].param, found[1].param),
            )),
        }
    }

    pub fn of_calls(param: &str, calls: Calls) -> Self {
        Self { param: param.to_owned(), kind: Kind::Calls(calls) }
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Json(schema) => schema.to_string().len() * 8,
            Kind::Regex(text) | Kind::Lark(text) => text.len(),
            Kind::Choice(texts) => texts.iter().map(|text| text.len() + 64).sum(),
            Kind::Calls(calls) => calls.bytes(),
        }
    }

    /// The grammar. An answer that begins in a thought is free until that ends.
    pub fn grammar(&self, begins_in_thought: bool) -> TopLevelGrammar {
        const ANSWER: &str = "answer";
        const AFTER_THOUGHT: &str =
            "start: thought SPACE @answer\nthought[suffix=\"</think>\"]: /(?s:.*)/\nSPACE: /\\s*/";
        let answer = match &self.kind {
            Kind::Json(schema) => GrammarWithLexer::from_json_schema(spaced(schema)),
            Kind::Regex(regex) => GrammarWithLexer::from_regex(regex),
            Kind::Choice(texts) => {
                let texts: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                GrammarWithLexer::from_lark(format!("start: {}", texts.join(" | ")))
            }
            Kind::Lark(text) => GrammarWithLexer::from_lark(text.clone()),
            Kind::Calls(calls) => GrammarWithLexer::from_lark(calls.lark()),
        };
        if !begins_in_thought {
            return TopLevelGrammar::from_grammar(answer);
        }
        let answer = GrammarWithLexer { name: Some(ANSWER.to_owned()), ..answer };
        let grammars = vec![GrammarWithLexer::from_lark(AFTER_THOUGHT.to_owned()), answer];
        TopLevelGrammar { grammars, max_tokens: None }
    }
}

/// The schema of `response_format` and its path; `None` for text.
fn response_format(fields: &Fields) -> Result<(&'static str, Option<Value>)> {
    const PATH: &str = "response_format";
    let Some(format) = fields.object(PATH)? else { return Ok((PATH, None)) };
    match format.required("type", format.str("type")?)? {
        "text" => Ok((PATH, None)),
        "json_object" => Ok((PATH, Some(json!({ "type": "object" })))),
        "json_schema" => {
            let outer = format.required("json_schema", format.object("json_schema")?)?;
            let found = outer.required("schema", outer.get("schema"))?;
            Ok(("response_format.json_schema.schema", Some(schema(&outer.path("schema"), found)?)))
        }
        other => Err(ApiError::invalid(
            "response_format.type",
            format!("response_format.type is {other:?}; it may be text, json_object or json_schema"),
        )),
    }
}

pub(crate) fn schema(path: &str, value: &Value) -> Result<Value> {
    match value.is_object() || value.is_boolean() {
        true => Ok(value.clone()),
        false => Err(wrong(path, "a schema", value)),
    }
}

/// vLLM's fields: `guided_json` and its neighbours, or those of `structured_outputs`.
fn one_of(fields: &Fields, prefix: &str, add: &mut impl FnMut(&str, Option<Kind>)) -> Result<()> {
    let name = |name: &str| format!("{prefix}{name}");
    let (json, regex, choice, grammar) = (name("json"), name("regex"), name("choice"), name("grammar"));
    let found = match fields.get(&json) {
        // as text too, as vLLM takes it
        Some(Value::String(text)) => {
            let value = serde_json::from_str(&bounded(&fields.path(&json), text)?);
            let refused =
                |error| ApiError::invalid(fields.path(&json), format!("{}: {error}", fields.path(&json)));
            Some(schema(&fields.path(&json), &value.map_err(refused)?)?)
        }
        Some(value) => Some(schema(&fields.path(&json), value)?),
        None => None,
    };
    add(&fields.path(&json), found.map(Kind::Json));
    let found = fields.str(&regex)?.map(|text| bounded(&fields.path(&regex), text)).transpose()?;
    add(&fields.path(&regex), found.map(Kind::Regex));
    if let Some(list) = fields.list(&choice)? {
        let path = fields.path(&choice);
        if list.is_empty() || list.len() > MAX_CHOICES {
            let message = format!("{path} has {} texts; it may have 1 to {MAX_CHOICES}", list.len());
            return Err(ApiError::invalid(path, message));
        }
        let text = |(at, value): (usize, &Value)| {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| wrong(&format!("{path}[{at}]"), "a string", value))
        };
        let texts = list.iter().enumerate().map(text).collect::<Result<Vec<_>>>()?;
        bounded(&path, &texts.concat())?;
        add(&path, Some(Kind::Choice(texts)));
    }
    add(&fields.path(&grammar), lark(fields, &grammar)?);
    Ok(())
}

/// A grammar in Lark's form. GBNF, which llama.cpp takes under the same name, is refused.
fn lark(fields: &Fields, name: &str) -> Result<Option<Kind>> {
    let Some(text) = fields.str(name)?.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    let path = fields.path(name);
    if text.contains("::=") {
        let message = format!(
            "{path} is in GBNF, and this server takes Lark; or use guided_json, guided_regex or guided_choice"
        );
        return Err(ApiError::unsupported(path, message));
    }
    Ok(Some(Kind::Lark(bounded(&path, text)?)))
}

fn bounded(path: &str, text: &str) -> Result<String> {
    match text.len() <= MAX_BYTES {
        true => Ok(text.to_owned()),
        false => Err(ApiError::invalid(path, format!("{path} has more than {MAX_BYTES} bytes"))),
    }
}
