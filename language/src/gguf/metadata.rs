//! The keys of a file and their values.

use crate::json::{MAX_DIMENSION, bad};
use pascaline::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A value of any of the format's types.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned, of 8 to 64 bits.
    Unsigned(u64),
    /// Signed, of 8 to 64 bits.
    Signed(i64),
    /// Of 32 or 64 bits.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// Text.
    String(String),
    /// A list of values of one type.
    Array(Array),
}

/// A list; in memory it is about as large as in the file.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned numbers.
    Unsigned(Vec<u64>),
    /// Signed numbers.
    Signed(Vec<i64>),
    /// Floating-point numbers.
    Float(Vec<f64>),
    /// Booleans.
    Bool(Vec<bool>),
    /// Texts.
    String(Vec<String>),
    /// Lists of lists.
    Array(Vec<Array>),
}

impl Value {
    /// Its name in errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "a whole number",
            Self::Float(_) => "a floating-point number",
            Self::Bool(_) => "a boolean",
            Self::String(_) => "a string",
            Self::Array(array) => match array {
                Array::Unsigned(_) | Array::Signed(_) => "a list of whole numbers",
                Array::Float(_) => "a list of floating-point numbers",
                Array::Bool(_) => "a list of booleans",
                Array::String(_) => "a list of strings",
                Array::Array(_) => "a list of lists",
            },
        }
    }
}

/// A file's keys, with typed access.
#[derive(Clone, Debug)]
pub struct Metadata {
    file: PathBuf,
    values: BTreeMap<String, Value>,
}

impl Metadata {
    pub(super) fn new(file: &Path, values: BTreeMap<String, Value>) -> Self {
        Self { file: file.to_owned(), values }
    }

    /// The file that they are in.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// All keys, in alphabetical order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// A key's value, of any type.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// The error for a key.
    pub fn bad(&self, key: &str, reason: impl Into<String>) -> Error {
        bad(&self.file, Some(key), reason)
    }

    /// The value, or an error if it is missing.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it is not.
    pub fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.bad(key, "missing"))
    }

    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        let wrong = || self.bad(key, format!("is {}, expected {expected}", value.kind()));
        read(value).map(Some).ok_or_else(wrong)
    }

    /// A whole number that is not negative, stored in any width.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with file and key for a value of another type.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        self.read(key, "a whole number that is not negative", |value| match *value {
            Value::Unsigned(number) => Some(number),
            Value::Signed(number) => number.try_into().ok(),
            _ => None,
        })
    }

    /// As [`unsigned`](Self::unsigned), of a token id.
    ///
    /// # Errors
    /// As [`unsigned`](Self::unsigned).
    pub fn id(&self, key: &str) -> Result<Option<u32>> {
        let id = |id| u32::try_from(id).map_err(|_| self.bad(key, format!("{id} is no token id")));
        self.unsigned(key)?.map(id).transpose()
    }

    /// A floating-point number.
    ///
    /// # Errors
    /// As [`unsigned`](Self::unsigned).
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.read(key, "a floating-point number", |value| match *value {
            Value::Float(number) => Some(number),
            _ => None,
        })
    }

    /// A boolean.
    ///
    /// # Errors
    /// As [`unsigned`](Self::unsigned).
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.read(key, "a boolean", |value| match *value {
            Value::Bool(truth) => Some(truth),
            _ => None,
        })
    }

    /// A text.
    ///
    /// # Errors
    /// As [`unsigned`](Self::unsigned).
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.read(key, "a string", |value| match value {
            Value::String(text) => Some(text.as_str()),
            _ => None,
        })
    }

    /// A list of texts.
    ///
    /// # Errors
    /// As [`unsigned`](Self::unsigned).
    pub fn strings(&self, key: &str) -> Result<Option<&[String]>> {
        self.read(key, "a list of strings", |value| match value {
            Value::Array(Array::String(texts)) => Some(texts.as_slice()),
            _ => None,
        })
    }

    /// A list of whole numbers, none negative.
    ///
    /// # Errors
    /// As [`unsigned`](Self::unsigned).
    pub fn unsigneds(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.read(key, "a list of whole numbers, none negative", |value| match value {
            Value::Array(Array::Unsigned(numbers)) => Some(numbers.clone()),
            Value::Array(Array::Signed(numbers)) => {
                numbers.iter().map(|&number| number.try_into().ok()).collect()
            }
            _ => None,
        })
    }

    /// A list of floating-point numbers.
    ///
    /// # Errors
    /// As [`unsigned`](Self::unsigned).
    pub fn floats(&self, key: &str) -> Result<Option<&[f64]>> {
        self.read(key, "a list of floating-point numbers", |value| match value {
            Value::Array(Array::Float(numbers)) => Some(numbers.as_slice()),
            _ => None,
        })
    }

    /// A list of booleans.
    ///
    /// # Errors
    /// As [`unsigned`](Self::unsigned).
    pub fn bools(&self, key: &str) -> Result<Option<&[bool]>> {
        self.read(key, "a list of booleans", |value| match value {
            Value::Array(Array::Bool(truths)) => Some(truths.as_slice()),
            _ => None,
        })
    }
}

impl Metadata {
    /// A positive dimension or count.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the file and the key.
    pub fn dimension(&self, key: &str) -> Result<usize> {
        let value = self.required(key, self.unsigned(key)?)?;
        match value {
            1..=MAX_DIMENSION => Ok(value as usize),
            _ => Err(self.bad(key, format!("{value} is not between 1 and {MAX_DIMENSION}"))),
        }
    }

    /// As [`dimension`](Self::dimension); `default` if the key is missing.
    ///
    /// # Errors
    /// As [`dimension`](Self::dimension).
    pub fn dimension_or(&self, key: &str, default: usize) -> Result<usize> {
        if self.get(key).is_some() { self.dimension(key) } else { Ok(default) }
    }

    /// A positive number.
    ///
    /// # Errors
    /// As [`dimension`](Self::dimension).
    pub fn positive(&self, key: &str) -> Result<f64> {
        let value = self.required(key, self.float(key)?)?;
        match value > 0.0 && value.is_finite() {
            true => Ok(value),
            false => Err(self.bad(key, format!("{value} is not a positive number"))),
        }
    }

    /// Refuses a text that has another value.
    ///
    /// # Errors
    /// As [`dimension`](Self::dimension).
    pub fn only(&self, key: &str, supported: &str) -> Result<()> {
        match self.required(key, self.str(key)?)? {
            found if found == supported => Ok(()),
            found => Err(self.bad(key, format!("\"{found}\" is not supported, only \"{supported}\""))),
        }
    }
}
