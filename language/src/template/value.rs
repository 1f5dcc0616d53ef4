//! The values of a template. They are shared and immutable, so a clone is cheap.

use std::sync::Arc;

/// A value in a template.
#[derive(Clone, Debug)]
pub enum Value {
    /// Not given: prints as nothing, counts as false, and has no attributes.
    Undefined,
    /// Python's None.
    None,
    /// Truth.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Text.
    Text(Arc<str>),
    /// A list.
    List(Arc<List>),
    /// A dictionary, in the order of its entries.
    Map(Arc<Map>),
    /// One of the rendering's namespaces, by number.
    #[doc(hidden)]
    Namespace(usize),
    /// A macro of the template, by its number.
    #[doc(hidden)]
    Macro(usize),
    /// `loop`
    #[doc(hidden)]
    Loop(Arc<Loop>),
}

/// The entries of a list.
#[derive(Debug)]
pub struct List {
    pub(super) items: Vec<Value>,
    pub(super) depth: usize,
}

/// The entries of a dictionary.
#[derive(Debug)]
pub struct Map {
    pub(super) entries: Vec<(Arc<str>, Value)>,
    pub(super) depth: usize,
}

/// Where a loop is.
#[derive(Debug)]
pub struct Loop {
    pub(super) items: Arc<List>,
    pub(super) index: usize,
}

impl Value {
    /// A list of these values.
    pub fn list(items: Vec<Value>) -> Self {
        let depth = 1 + items.iter().map(Value::depth).max().unwrap_or(0);
        Self::List(Arc::new(List { items, depth }))
    }

    /// A dictionary of these entries, whose names differ.
    pub fn map<K: Into<Arc<str>>>(entries: impl IntoIterator<Item = (K, Value)>) -> Self {
        let entries: Vec<_> = entries.into_iter().map(|(name, value)| (name.into(), value)).collect();
        let depth = 1 + entries.iter().map(|(_, value)| value.depth()).max().unwrap_or(0);
        Self::Map(Arc::new(Map { entries, depth }))
    }

    /// How deep lists and dictionaries are nested in it.
    pub(super) fn depth(&self) -> usize {
        match self {
            Self::List(list) => list.depth,
            Self::Map(map) => map.depth,
            Self::Loop(at) => at.items.depth,
            _ => 0,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Undefined | Self::None => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => !list.items.is_empty(),
            Self::Map(map) => !map.entries.is_empty(),
            Self::Namespace(_) | Self::Macro(_) | Self::Loop(_) => true,
        }
    }

    /// The kind's name in errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Undefined => "undefined",
            Self::None => "none",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "a whole number",
            Self::Float(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Map(_) => "a dictionary",
            Self::Namespace(_) => "a namespace",
            Self::Macro(_) => "a macro",
            Self::Loop(_) => "a loop",
        }
    }

    /// As a number; booleans are 0 and 1.
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            other => other.int().map(|value| value as f64),
        }
    }

    pub(super) fn int(&self) -> Option<i64> {
        match self {
            Self::Bool(value) => Some(i64::from(*value)),
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }
}

impl Map {
    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.entries.iter().find(|(entry, _)| **entry == *name).map(|(_, value)| value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// Numbers that no `i64` is equal to are floats.
impl From<&serde_json::Value> for Value {
    fn from(value: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        match value {
            Json::Null => Self::None,
            Json::Bool(value) => Self::Bool(*value),
            Json::Number(number) => match number.as_i64() {
                Some(whole) => Self::Int(whole),
                None => Self::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => text.as_str().into(),
            Json::Array(items) => Self::list(items.iter().map(Self::from).collect()),
            Json::Object(map) => Self::map(map.iter().map(|(name, value)| (name.as_str(), value.into()))),
        }
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}
