//! A tool, and the grammar of calls.

use super::lark::{json_rule, literal};
use serde_json::{Value, json};

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub name: String,
    pub description: Option<String>,
    pub parameters: Option<Value>,
    pub strict: bool,
}

/// Which calls an answer has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Calls {
    pub tools: Vec<Tool>,
    pub is_required: bool,
    pub is_one: bool,
}

impl Tool {
    pub fn definition(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = description.as_str().into();
        }
        if let Some(parameters) = &self.parameters {
            function["parameters"] = parameters.clone();
        }
        json!({ "type": "function", "function": function })
    }

    pub fn bytes(&self) -> usize {
        self.definition().to_string().len() * 8
    }
}

impl Calls {
    pub fn bytes(&self) -> usize {
        self.tools.iter().map(Tool::bytes).sum()
    }

    /// As a Lark grammar.
    pub fn lark(&self) -> String {
        let mut rules = String::new();
        let mut bodies = Vec::new();
        for (at, tool) in self.tools.iter().enumerate() {
            let begin = literal(&format!("{{\"name\": {}, \"arguments\": ", literal(&tool.name)));
            // arguments fit their schema where calls are asked for, and where the tool says so
            let arguments = match (&tool.parameters, self.is_required || tool.strict) {
                (Some(parameters), true) => parameters.clone(),
                (None, true) => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
                (_, false) => json!({ "type": "object" }),
            };
            rules += &format!(
                "body{at}: {begin} arguments{at} \"}}\"\narguments{at}: {}\n",
                json_rule(&arguments)
            );
            bodies.push(format!("body{at}"));
        }
        let body = bodies.join(" | ");
        rules += &format!("body: {body}\n");
        let start = match (self.is_required, self.is_one) {
            (true, true) => "start: call",
            (true, false) => "start: call (\"\\n\" call)*",
            (false, true) => "start: opened? TEXT",
            (false, false) => "start: opened* TEXT",
        };
        rules += match self.is_required {
            true => "call: \"<tool_call>\\n\" body \"\\n</tool_call>\"\n",
            false => {
                "opened: before \"\\n\" body \"\\n</tool_call>\"\n\
                 before[suffix=\"<tool_call>\"]: /(?s:.*)/\n\
                 TEXT: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/\n"
            }
        };
        format!("{start}\n{rules}")
    }
}
