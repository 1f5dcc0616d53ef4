//! The state of a rendering: its budget, its variables, and operations on values, which are charged to the budget.

use super::limits::{MAX_DEPTH, STEP};
use super::parser::Statement;
use super::value::{Loop, Map, Value};
use std::fmt::Write;
use std::sync::Arc;

/// An error's reason; the statement at fault adds its line.
pub(super) type Result<T> = std::result::Result<T, String>;

pub(super) type Scope = Vec<(Arc<str>, Value)>;

pub(super) struct Run<'t> {
    pub budget: u64,
    /// The most bytes of the text.
    pub most: usize,
    /// The template's variables, and those of enclosing blocks and macros.
    pub scopes: Vec<Scope>,
    /// The first scope that a macro's body can see, apart from the outermost.
    pub visible: usize,
    pub namespaces: Vec<Scope>,
    pub macros: Vec<&'t Statement>,
    pub calls: usize,
    /// The line of the current statement.
    pub line: usize,
}

impl<'t> Run<'t> {
    /// Charges the budget for a step over this many bytes or entries, before the step.
    pub fn pay(&mut self, cost: usize) -> Result<()> {
        match self.budget.checked_sub(cost as u64) {
            Some(left) => {
                self.budget = left;
                Ok(())
            }
            None => {
                self.budget = 0;
                Err("rendering takes too many steps, or makes too much text".into())
            }
        }
    }

    /// Refuses more text than there may be.
    pub fn check_room(&self, out: &str, more: usize) -> Result<()> {
        match out.len().saturating_add(more) > self.most {
            true => Err(format!(
                "it makes more than {} bytes of text, which the model's context can't hold",
                self.most
            )),
            false => Ok(()),
        }
    }

    pub fn plain(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::Namespace(_) | Value::Macro(_) | Value::Loop(_) => {
                Err(format!("{} can't be put into another value", value.kind()))
            }
            value if value.depth() >= MAX_DEPTH => {
                Err(format!("values are nested more than {MAX_DEPTH} deep"))
            }
            _ => Ok(()),
        }
    }

    pub fn list(&mut self, items: Vec<Value>) -> Result<Value> {
        self.pay(items.len().saturating_mul(STEP))?;
        items.iter().try_for_each(|item| self.plain(item))?;
        Ok(Value::list(items))
    }

    pub fn map(&mut self, entries: Scope) -> Result<Value> {
        self.pay(entries.len().saturating_mul(STEP))?;
        entries.iter().try_for_each(|(_, value)| self.plain(value))?;
        Ok(Value::map(entries))
    }

    pub fn text(&mut self, text: impl Into<String>) -> Result<Value> {
        let text = text.into();
        self.pay(text.len())?;
        Ok(text.into())
    }

    pub fn namespace(&mut self, entries: Scope) -> Result<Value> {
        entries.iter().try_for_each(|(_, value)| self.plain(value))?;
        self.pay(STEP)?;
        self.namespaces.push(entries);
        Ok(Value::Namespace(self.namespaces.len() - 1))
    }

    /// The entries that a loop over a value visits.
    pub fn entries(&mut self, value: &Value) -> Result<Vec<Value>> {
        match value {
            Value::Undefined => Ok(Vec::new()),
            Value::List(list) => {
                self.pay(list.items.len().saturating_mul(STEP))?;
                Ok(list.items.clone())
            }
            Value::Map(map) => {
                self.pay(map.entries.len().saturating_mul(STEP))?;
                Ok(map.entries.iter().map(|(name, _)| Value::Text(Arc::clone(name))).collect())
            }
            Value::Text(text) => {
                self.pay(text.len().saturating_mul(STEP))?;
                Ok(text.chars().map(|c| Value::from(&*c.encode_utf8(&mut [0; 4]))).collect())
            }
            other => Err(format!("{} can't be looped over", other.kind())),
        }
    }

    pub fn attribute(&mut self, value: &Value, name: &str) -> Result<Value> {
        match value {
            Value::Undefined => Err(format!("undefined has no attribute `{name}`")),
            Value::Map(map) => self.of_map(map, name),
            Value::Namespace(number) => {
                let cost = search_cost(&self.namespaces[*number], name);
                self.pay(cost)?;
                Ok(find(&self.namespaces[*number], name).cloned().unwrap_or(Value::Undefined))
            }
            Value::Loop(at) => of_loop(at, name),
            _ => Ok(Value::Undefined),
        }
    }

    pub fn of_map(&mut self, map: &Map, name: &str) -> Result<Value> {
        Ok(self.find_in(map, name)?.cloned().unwrap_or(Value::Undefined))
    }

    /// The entry of a dictionary.
    pub fn find_in<'m>(&mut self, map: &'m Map, name: &str) -> Result<Option<&'m Value>> {
        self.pay(search_cost(&map.entries, name))?;
        Ok(map.get(name))
    }

    pub fn item(&mut self, value: &Value, index: &Value) -> Result<Value> {
        let at = |len: usize| {
            let index = index.int()?;
            let from_end = if index < 0 { len as i64 } else { 0 };
            usize::try_from(index.checked_add(from_end)?).ok().filter(|&at| at < len)
        };
        match (value, index) {
            (Value::Undefined, _) => Err("undefined has no entries".into()),
            (Value::Map(map), Value::Text(name)) => self.of_map(map, name),
            (Value::Namespace(_) | Value::Loop(_), Value::Text(name)) => self.attribute(value, name),
            (Value::List(list), _) => {
                Ok(at(list.items.len()).map_or(Value::Undefined, |at| list.items[at].clone()))
            }
            (Value::Text(text), _) => {
                self.pay(text.len())?;
                let found = at(text.chars().count()).and_then(|at| text.chars().nth(at));
                Ok(found.map_or(Value::Undefined, |c| Value::from(&*c.encode_utf8(&mut [0; 4]))))
            }
            _ => Ok(Value::Undefined),
        }
    }

    /// Recursion is bounded, as values are not deeper than [`MAX_DEPTH`].
    pub fn equal(&mut self, left: &Value, right: &Value) -> Result<bool> {
        self.pay(STEP)?;
        Ok(match (left, right) {
            (Value::Undefined, Value::Undefined) | (Value::None, Value::None) => true,
            (Value::Text(a), Value::Text(b)) => {
                self.pay(a.len().min(b.len()))?;
                a == b
            }
            (Value::List(a), Value::List(b)) => {
                if a.items.len() != b.items.len() {
                    return Ok(false);
                }
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !self.equal(a, b)? {
                        return Ok(false);
                    }
                }
                true
            }
            (Value::Map(a), Value::Map(b)) => {
                if a.entries.len() != b.entries.len() {
                    return Ok(false);
                }
                for (name, value) in &a.entries {
                    match self.find_in(b, name)? {
                        Some(other) if self.equal(value, other)? => {}
                        _ => return Ok(false),
                    }
                }
                true
            }
            (Value::Int(a), Value::Int(b)) => a == b,
            _ => matches!((left.number(), right.number()), (Some(a), Some(b)) if a == b),
        })
    }

    pub fn contains(&mut self, whole: &Value, part: &Value) -> Result<bool> {
        match (whole, part) {
            (Value::Text(whole), Value::Text(part)) => {
                self.pay(whole.len())?;
                Ok(whole.contains(&**part))
            }
            (Value::Map(map), Value::Text(name)) => Ok(self.find_in(map, name)?.is_some()),
            (Value::List(list), part) => {
                for item in &list.items {
                    if self.equal(item, part)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            (Value::Undefined | Value::Map(_), _) => Ok(false),
            _ => Err(format!("`in` of {} and {}", part.kind(), whole.kind())),
        }
    }

    /// Appends the result of Python's `str`.
    pub fn print(&mut self, value: &Value, out: &mut String) -> Result<()> {
        match value {
            Value::Text(text) => {
                self.pay(text.len())?;
                out.push_str(text);
                Ok(())
            }
            Value::Undefined => Ok(()),
            other => self.literal(other, out),
        }
    }

    /// Appends the result of Python's `repr`. Recursion is bounded, as values are not deeper than [`MAX_DEPTH`].
    pub fn literal(&mut self, value: &Value, out: &mut String) -> Result<()> {
        self.pay(STEP)?;
        match value {
            Value::Undefined => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(true) => out.push_str("True"),
            Value::Bool(false) => out.push_str("False"),
            Value::Int(value) => drop(write!(out, "{value}")), // a string takes all that is written
            Value::Float(value) => drop(write!(out, "{value:?}")),
            Value::Text(text) => {
                self.pay(text.len().saturating_mul(2))?;
                let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
                out.push(quote);
                for c in text.chars() {
                    match c {
                        '\n' => out.push_str("\\n"),
                        '\t' => out.push_str("\\t"),
                        '\r' => out.push_str("\\r"),
                        c if c == quote || c == '\\' => out.extend(['\\', c]),
                        c => out.push(c),
                    }
                }
                out.push(quote);
            }
            Value::List(list) => {
                out.push('[');
                for (index, item) in list.items.iter().enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    self.literal(item, out)?;
                }
                out.push(']');
            }
            Value::Map(map) => {
                out.push('{');
                for (index, (name, value)) in map.entries.iter().enumerate() {
                    out.push_str(if index > 0 { ", " } else { "" });
                    self.literal(&Value::Text(Arc::clone(name)), out)?;
                    out.push_str(": ");
                    self.literal(value, out)?;
                }
                out.push('}');
            }
            Value::Namespace(_) | Value::Macro(_) | Value::Loop(_) => {
                return Err(format!("{} can't be printed", value.kind()));
            }
        }
        Ok(())
    }
}

fn of_loop(Loop { items, index }: &Loop, name: &str) -> Result<Value> {
    let (items, len) = (&items.items, items.items.len());
    let number = |value: usize| Value::Int(value as i64);
    let neighbour = |at: Option<usize>| at.and_then(|at| items.get(at)).cloned().unwrap_or(Value::Undefined);
    Ok(match name {
        "index" => number(index + 1),
        "index0" => number(*index),
        "revindex" => number(len - index),
        "revindex0" => number(len - index - 1),
        "first" => Value::Bool(*index == 0),
        "last" => Value::Bool(index + 1 == len),
        "length" => number(len),
        "previtem" => neighbour(index.checked_sub(1)),
        "nextitem" => neighbour(Some(index + 1)),
        _ => return Err(format!("`loop.{name}` is not supported")),
    })
}

/// The cost of looking for a name among others: a byte each, and all bytes of those that are as long.
pub(super) fn search_cost(entries: &[(Arc<str>, Value)], name: &str) -> usize {
    let compared = |entry: &str| 1 + if entry.len() == name.len() { name.len() } else { 0 };
    entries.iter().map(|(entry, _)| compared(entry)).sum()
}

pub(super) fn find<'a>(scope: &'a Scope, name: &str) -> Option<&'a Value> {
    scope.iter().find(|(entry, _)| **entry == *name).map(|(_, value)| value)
}
