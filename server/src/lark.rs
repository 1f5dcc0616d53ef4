//! Parts of grammars in llguidance's form of Lark.

use serde_json::{Map, Value, json};

/// Written between the values of JSON, as models are used to it.
const SEPARATORS: &str = "x-guidance";

/// The schema with the separators that are written.
pub(crate) fn spaced(schema: &Value) -> Value {
    let mut map = match schema {
        Value::Object(map) => map.clone(),
        Value::Bool(false) => return schema.clone(),
        _ => Map::new(),
    };
    let separators = json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " });
    map.insert(SEPARATORS.into(), separators);
    Value::Object(map)
}

/// JSON of a schema as part of a Lark grammar.
pub(crate) fn json_rule(schema: &Value) -> String {
    format!("%json {}", spaced(schema))
}

/// A text as part of a Lark grammar: its strings are JSON's.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string()
}
