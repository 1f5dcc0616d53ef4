//! Tools that a request offers, and which calls it asks for.
//!
//! A call is written as Qwen's published templates have it: `<tool_call>`, a line of JSON, `</tool_call>`. Who asks for
//! calls (`tool_choice`), for valid arguments (`strict`) or for one call at most gets a grammar; otherwise the model
//! is free, and `calls.rs` finds what it calls.

use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::rule::{Rule, schema};
use super::tool::{Calls, Tool};
use serde_json::Value;

type Result<T> = std::result::Result<T, ApiError>;

/// The most tools of a request, and the most bytes of a tool's name, as OpenAI has them.
const MAX_TOOLS: usize = 128;
pub(crate) const MAX_NAME: usize = 64;
/// The most values of the parameters of all tools.
const MAX_VALUES: usize = 20_000;
/// The most lists and objects in one another of a tool's parameters, or of a call's arguments: templates take 32.
const MAX_DEPTH: usize = 24;

/// The tools of a request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    tools: Vec<Tool>,
    /// The answer's rule, if there is one.
    pub rule: Option<Rule>,
}

impl Tools {
    /// `tools`, `tool_choice` and `parallel_tool_calls`.
    pub fn read(fields: &Fields) -> Result<Self> {
        for name in ["functions", "function_call"] {
            let is_idle = |value: &Value| value.as_array().is_some_and(Vec::is_empty) || value == "none";
            if fields.get(name).is_some_and(|value| !is_idle(value)) {
                let message =
                    format!("{name} is OpenAI's old form and is not supported; use tools and tool_choice");
                return Err(ApiError::unsupported(name, message));
            }
        }
        let list = fields.list("tools")?.unwrap_or_default();
        if list.len() > MAX_TOOLS {
            let message = format!("{} tools; a request may have {MAX_TOOLS}", list.len());
            return Err(ApiError::invalid("tools", message));
        }
        let mut tools: Vec<Tool> = Vec::with_capacity(list.len());
        for (at, value) in list.iter().enumerate() {
            let tool = tool(&Fields::at(format!("tools[{at}]"), value)?)?;
            if tools.iter().any(|other| other.name == tool.name) {
                let path = format!("tools[{at}].function.name");
                let message = format!("{path} is {:?}, which another tool has", tool.name);
                return Err(ApiError::invalid(path, message));
            }
            tools.push(tool);
        }
        if tools.iter().filter_map(|tool| tool.parameters.as_ref()).map(values).sum::<usize>() > MAX_VALUES {
            let message = format!("the parameters of all tools together have more than {MAX_VALUES} values");
            return Err(ApiError::invalid("tools", message));
        }
        let is_one = !fields.bool("parallel_tool_calls")?.unwrap_or(true);
        let any = !tools.is_empty();
        let calls = |tools: Vec<Tool>, is_required, is_one| Calls { tools, is_required, is_one };
        let is_strict = tools.iter().any(|tool| tool.strict);
        let rule = match choice(fields)? {
            Choice::None => return Ok(Self::default()),
            Choice::Auto if !any => return Ok(Self::default()),
            Choice::Auto => {
                (is_one || is_strict).then(|| Rule::of_calls("tools", calls(tools.clone(), false, is_one)))
            }
            Choice::Required if !any => {
                return Err(ApiError::invalid(
                    "tool_choice",
                    "tool_choice is required, and there are no tools",
                ));
            }
            Choice::Required => Some(Rule::of_calls("tools", calls(tools.clone(), true, is_one))),
            Choice::Named(path, name) => {
                let named = tools.iter().find(|tool| tool.name == name).cloned();
                let named = named.ok_or_else(|| {
                    ApiError::invalid(path.clone(), format!("{path} is {name:?}, which is none of the tools"))
                })?;
                Some(Rule::of_calls("tools", calls(vec![named], true, true)))
            }
        };
        Ok(Self { tools, rule })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().map(|tool| &*tool.name)
    }

    /// As templates get them.
    pub fn definitions(&self) -> Vec<Value> {
        self.tools.iter().map(Tool::definition).collect()
    }

    /// Bytes of memory that they take.
    pub fn bytes(&self) -> usize {
        let rule = self.rule.as_ref().map_or(0, Rule::bytes);
        self.tools.iter().map(Tool::bytes).sum::<usize>() + rule
    }
}

enum Choice {
    None,
    Auto,
    Required,
    /// The path of the name, and the name.
    Named(String, String),
}

fn choice(fields: &Fields) -> Result<Choice> {
    const NAME: &str = "tool_choice";
    match fields.get(NAME) {
        None => Ok(Choice::Auto),
        Some(Value::String(text)) => match &**text {
            "none" => Ok(Choice::None),
            "auto" => Ok(Choice::Auto),
            "required" | "any" => Ok(Choice::Required),
            other => Err(ApiError::invalid(
                NAME,
                format!("tool_choice is {other:?}; it may be auto, none, required or a function"),
            )),
        },
        Some(value @ Value::Object(_)) => {
            let choice = Fields::at(NAME.into(), value)?;
            match choice.required("type", choice.str("type")?)? {
                "function" => {}
                other => {
                    let message = format!("tool_choice.type is {other:?}; it may be function");
                    return Err(ApiError::invalid("tool_choice.type", message));
                }
            }
            let function = choice.required("function", choice.object("function")?)?;
            let name = function.required("name", function.str("name")?)?;
            Ok(Choice::Named(function.path("name"), name.to_owned()))
        }
        Some(other) => Err(wrong(NAME, "auto, none, required or a function", other)),
    }
}

fn tool(fields: &Fields) -> Result<Tool> {
    match fields.required("type", fields.str("type")?)? {
        "function" => {}
        other => {
            let path = fields.path("type");
            return Err(ApiError::invalid(path.clone(), format!("{path} is {other:?}; it may be function")));
        }
    }
    let function = fields.required("function", fields.object("function")?)?;
    let path = function.path("parameters");
    let parameters = function.get("parameters").map(|value| schema(&path, value)).transpose()?;
    if let Some(parameters) = &parameters {
        check_depth(&path, parameters)?;
    }
    Ok(Tool {
        name: name(&function)?.to_owned(),
        description: function.str("description")?.map(str::to_owned),
        parameters,
        strict: function.bool("strict")?.unwrap_or(false),
    })
}

/// The name of a function.
pub(crate) fn name<'a>(function: &Fields<'a>) -> Result<&'a str> {
    let name = function.required("name", function.str("name")?)?;
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    match (1..=MAX_NAME).contains(&name.len()) && name.chars().all(is_usual) {
        true => Ok(name),
        false => {
            let path = function.path("name");
            let message =
                format!("{path} may have 1 to {MAX_NAME} letters, digits, underscores, dots and hyphens");
            Err(ApiError::invalid(path, message))
        }
    }
}

/// How many values a value has in it, itself included.
pub(crate) fn values(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        Value::Object(map) => 1 + map.values().map(values).sum::<usize>(),
        _ => 1,
    }
}

/// Refuses values that templates can't take.
pub(crate) fn check_depth(path: &str, value: &Value) -> Result<()> {
    fn depth(value: &Value) -> usize {
        match value {
            Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
            Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
            _ => 0,
        }
    }
    match depth(value) <= MAX_DEPTH {
        true => Ok(()),
        false => Err(ApiError::invalid(
            path,
            format!("{path} has more than {MAX_DEPTH} lists and objects in one another"),
        )),
    }
}
