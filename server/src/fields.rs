//! Fields of a JSON object from an untrusted client. A field of the wrong type is named by its path.

use super::error::ApiError;
use serde_json::{Map, Value};

type Result<T> = std::result::Result<T, ApiError>;

/// An object and its path in the request.
pub(crate) struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The request itself.
    pub fn root(value: &'a Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { path: String::new(), map }),
            other => Err(ApiError::malformed(format!("the body must be an object, and is {}", kind(other)))),
        }
    }

    /// An object at a path.
    pub fn at(path: String, value: &'a Value) -> Result<Self> {
        match value {
            Value::Object(map) => Ok(Self { path, map }),
            other => Err(wrong(&path, "an object", other)),
        }
    }

    /// How many fields there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.map.keys().map(|name| &**name)
    }

    /// The path of a field.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// A field that is present and not null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        name: &str,
        what: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(&self.path(name), what, value))
    }

    pub fn str(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub fn bool(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "true or false", Value::as_bool)
    }

    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        self.typed(name, "a number", Value::as_f64)
    }

    /// A whole number in a range.
    pub fn whole(&self, name: &str, least: usize, most: usize) -> Result<Option<usize>> {
        let what = match most {
            usize::MAX => format!("a whole number from {least} on"),
            _ => format!("a whole number from {least} to {most}"),
        };
        let read = |value: &Value| {
            let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
            number.filter(|number| (least..=most).contains(number))
        };
        self.typed(name, &what, read)
    }

    /// Any whole number of 64 bits.
    pub fn bits(&self, name: &str) -> Result<Option<u64>> {
        self.typed(name, "a whole number of 64 bits", |value| {
            value.as_u64().or_else(|| value.as_i64().map(|number| number as u64))
        })
    }

    pub fn list(&self, name: &str) -> Result<Option<&'a [Value]>> {
        self.typed(name, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        self.get(name).map(|value| Fields::at(self.path(name), value)).transpose()
    }

    /// The value, or an error if it is missing.
    pub fn required<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        let path = || self.path(name);
        value.ok_or_else(|| ApiError::invalid(path(), format!("{} is missing", path())))
    }
}

/// The error for a value of the wrong type.
pub(crate) fn wrong(path: &str, what: &str, found: &Value) -> ApiError {
    ApiError::invalid(path, format!("{path} must be {what}, and is {}", kind(found)))
}

/// A value's kind in words; numbers as they are.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

/// A field's value, which is taken out; null if there is none.
pub(crate) fn take(value: &mut Value, name: &str) -> Value {
    value.get_mut(name).map(Value::take).unwrap_or_default()
}
