//! Reading files of a checkpoint, JSON among them: size limits, and errors that name file and field.

use super::files::read_at_most;
use pascaline::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// The largest dimension or count; products of two stay far from overflow.
pub const MAX_DIMENSION: u64 = 1 << 24;

/// The most bytes of a configuration file.
pub const MAX_CONFIG: u64 = 16 << 20;

pub fn bad(file: &Path, item: Option<&str>, reason: impl Into<String>) -> Error {
    Error::Checkpoint {
        file: file.display().to_string(),
        item: item.map(str::to_owned),
        reason: reason.into(),
    }
}

/// The most bytes of a picture file.
pub const MAX_PICTURE: u64 = 256 << 20;

/// As [`read_at_most`]; a Git LFS pointer is refused.
pub fn read_bytes(file: &Path, limit: u64) -> Result<Vec<u8>> {
    let bytes = read_at_most(file, limit).map_err(|error| bad(file, None, error.to_string()))?;
    refuse_lfs_pointer(file, &bytes)?;
    Ok(bytes)
}

/// Refuses a Git LFS pointer: a clone without Git LFS has such a small text file for each large file.
pub fn refuse_lfs_pointer(file: &Path, beginning: &[u8]) -> Result<()> {
    match beginning.starts_with(b"version https://git-lfs.") {
        true => {
            Err(bad(file, None, "a Git LFS pointer and not the file itself; `git lfs pull` fetches that"))
        }
        false => Ok(()),
    }
}

/// As [`read_bytes`], UTF-8.
pub fn read_text(file: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read_bytes(file, limit)?).map_err(|_| bad(file, None, "not UTF-8"))
}

/// Parses any JSON document. (The parser is generic: a crate that calls it from here does not compile its own.)
pub fn parse(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(bytes)
}

/// The numbers of a list; `None` of anything else.
pub fn numbers(value: &Value) -> Option<Vec<f32>> {
    value.as_array()?.iter().map(|value| Some(value.as_f64()? as f32)).collect()
}

/// As [`parse_object`], at most `limit` bytes of it.
pub fn read_object(file: &Path, limit: u64) -> Result<Map<String, Value>> {
    parse_object(file, &read_bytes(file, limit)?)
}

/// Parses a JSON document whose outermost value is an object. (serde_json limits the depth to 128.)
pub fn parse_object(file: &Path, bytes: &[u8]) -> Result<Map<String, Value>> {
    match parse(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(bad(file, None, "not a JSON object")),
        Err(error) => Err(bad(file, None, format!("not JSON: {error}"))),
    }
}

/// An object inside a file, read field by field. JSON's `null` counts as absent.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    file: &'a Path,
    /// The path of this object in the file, with a trailing dot; empty for the outermost.
    prefix: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub fn new(file: &'a Path, prefix: &'a str, map: &'a Map<String, Value>) -> Self {
        Self { file, prefix, map }
    }

    /// The error for a field.
    pub fn bad(&self, name: &str, reason: impl Into<String>) -> Error {
        bad(self.file, Some(&format!("{}{name}", self.prefix)), reason)
    }

    /// The file that they are in.
    pub fn file(&self) -> &'a Path {
        self.file
    }

    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// An object inside this one; `prefix` is the path of its fields.
    pub fn object(&self, name: &str, prefix: &'a str) -> Result<Option<Self>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Self { file: self.file, prefix, map })),
            Some(other) => Err(self.bad(name, format!("{other} is not an object"))),
        }
    }

    pub fn u64(&self, name: &str) -> Result<Option<u64>> {
        self.optional(name, "a whole number that is not negative", Value::as_u64)
    }

    /// A token id.
    pub fn id(&self, name: &str) -> Result<Option<u32>> {
        self.optional(name, "a token id", |value| value.as_u64().and_then(|id| u32::try_from(id).ok()))
    }

    pub fn f64(&self, name: &str) -> Result<Option<f64>> {
        self.optional(name, "a number", Value::as_f64)
    }

    pub fn bool(&self, name: &str) -> Result<Option<bool>> {
        self.optional(name, "true or false", Value::as_bool)
    }

    pub fn str(&self, name: &str) -> Result<Option<&'a str>> {
        self.optional(name, "a string", Value::as_str)
    }

    /// A list of whole numbers.
    pub fn sizes(&self, name: &str) -> Result<Option<Vec<usize>>> {
        self.optional(name, "a list of whole numbers", |value| {
            value.as_array()?.iter().map(|entry| entry.as_u64()?.try_into().ok()).collect()
        })
    }

    /// A list of numbers.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<f64>>> {
        self.optional(name, "a list of numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect()
        })
    }

    /// The value, or an error if it is missing.
    pub fn required<T>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.bad(name, "missing"))
    }

    fn optional<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => {
                read(value).map(Some).ok_or_else(|| self.bad(name, format!("{value} is not {expected}")))
            }
        }
    }
}
