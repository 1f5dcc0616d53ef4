//! The functions, methods, filters and tests that chat templates use, with Jinja2's and Python's results.
//!
//! * functions: `range`, `namespace`, `raise_exception`
//! * methods of strings: `startswith`, `endswith`, `strip`, `lstrip`, `rstrip`, `removeprefix`, `removesuffix`, `split`,
//!   `splitlines`, `replace`, `upper`, `lower`, `title`, `capitalize`, `find`, `count`, `join`
//! * methods of dictionaries: `get`, `items`, `keys`, `values`
//! * filters: `trim`, `upper`, `lower`, `title`, `capitalize`, `replace`, `length`, `count`, `default`, `d`, `string`,
//!   `int`, `safe`, `join`, `first`, `last`, `list`, `reverse`, `items`, `map(attribute=…)`, `selectattr`, `rejectattr`,
//!   `tojson`
//! * tests: `defined`, `undefined`, `none`, `string`, `number`, `integer`, `float`, `boolean`, `true`, `false`,
//!   `mapping`, `sequence`, `iterable`, `even`, `odd`, `divisibleby`, `in`, `equalto`, `eq`, `ne`

use super::limits::{MAX_DEPTH, STEP};
use super::run::{Result, Run};
use super::value::Value;
use serde_json::json;
use std::fmt::Write;
use std::sync::Arc;

/// The arguments of a call.
pub(super) struct Given {
    pub plain: Vec<Value>,
    pub named: Vec<(Arc<str>, Value)>,
}

impl Given {
    /// Takes a named argument.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.named.iter().position(|(entry, _)| **entry == *name)?;
        Some(self.named.swap_remove(at).1)
    }

    /// At most `N` plain arguments and no named ones.
    fn all<const N: usize>(self, of: &str) -> Result<[Option<Value>; N]> {
        if self.plain.len() > N || !self.named.is_empty() {
            return Err(format!("`{of}` takes at most {N} arguments, none by name"));
        }
        let mut plain = self.plain.into_iter();
        Ok(std::array::from_fn(|_| plain.next()))
    }

    /// A string that must be there.
    fn text(value: Option<Value>, of: &str) -> Result<Arc<str>> {
        match value {
            Some(Value::Text(text)) => Ok(text),
            Some(other) => Err(format!("`{of}` takes a string, not {}", other.kind())),
            None => Err(format!("`{of}` takes a string")),
        }
    }

    fn int(value: Option<Value>, of: &str) -> Result<Option<i64>> {
        match value {
            None => Ok(None),
            Some(value) => match value.int() {
                Some(number) => Ok(Some(number)),
                None => Err(format!("`{of}` takes a whole number, not {}", value.kind())),
            },
        }
    }
}

pub(super) fn function(run: &mut Run, name: &str, mut given: Given) -> Result<Value> {
    match name {
        "range" => {
            let bounds: [Option<Value>; 3] = given.all(name)?;
            let [a, b, step] = bounds.map(|bound| Given::int(bound, "range"));
            let (start, stop) = match (a?, b?) {
                (Some(start), Some(stop)) => (start, stop),
                (Some(stop), None) => (0, stop),
                _ => return Err("`range` takes a whole number".into()),
            };
            let step = step?.unwrap_or(1);
            if step == 0 {
                return Err("`range` has a step of 0".into());
            }
            let count = (i128::from(stop) - i128::from(start)) / i128::from(step)
                + i128::from((i128::from(stop) - i128::from(start)) % i128::from(step) != 0);
            let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
            run.pay(count.saturating_mul(STEP))?;
            let items = (0..count).map(|i| Value::Int(start.saturating_add(step.saturating_mul(i as i64))));
            run.list(items.collect())
        }
        "namespace" => {
            if !given.plain.is_empty() {
                return Err("`namespace` takes arguments by name".into());
            }
            run.namespace(std::mem::take(&mut given.named))
        }
        "raise_exception" => {
            let [message] = given.all(name)?;
            Err(Given::text(message, name)?.to_string())
        }
        _ => Err(format!("`{name}` is undefined, and no function that is supported")),
    }
}

pub(super) fn method(run: &mut Run, value: &Value, name: &str, given: Given) -> Result<Value> {
    match value {
        Value::Text(text) => method_of_text(run, text, name, given),
        Value::Map(map) => {
            run.pay(map.entries.len().saturating_mul(STEP))?;
            match name {
                "get" => {
                    let [key, default] = given.all(name)?;
                    let found = run.find_in(map, &Given::text(key, name)?)?.cloned();
                    Ok(found.or(default).unwrap_or(Value::None))
                }
                "items" | "keys" | "values" => {
                    let [] = given.all(name)?;
                    pairs(run, value, name)
                }
                _ => Err(format!("the method `{name}` of a dictionary is not supported")),
            }
        }
        other => Err(format!("{} has no method `{name}`", other.kind())),
    }
}

/// A dictionary's keys, values or pairs.
fn pairs(run: &mut Run, value: &Value, which: &str) -> Result<Value> {
    let Value::Map(map) = value else { return Err(format!("{} has no `{which}`", value.kind())) };
    let mut entries = Vec::new();
    for (name, value) in &map.entries {
        let name = Value::Text(Arc::clone(name));
        entries.push(match which {
            "keys" => name,
            "values" => value.clone(),
            _ => run.list(vec![name, value.clone()])?,
        });
    }
    run.list(entries)
}

fn method_of_text(run: &mut Run, text: &str, name: &str, given: Given) -> Result<Value> {
    run.pay(text.len())?;
    match name {
        "startswith" | "endswith" => {
            let [part] = given.all(name)?;
            let part = Given::text(part, name)?;
            let found = if name == "startswith" { text.starts_with(&*part) } else { text.ends_with(&*part) };
            Ok(Value::Bool(found))
        }
        "strip" | "lstrip" | "rstrip" => {
            let [set] = given.all(name)?;
            let set = set.map(|set| Given::text(Some(set), name)).transpose()?;
            strip(run, text, set.as_deref(), name)
        }
        "removeprefix" | "removesuffix" => {
            let [part] = given.all(name)?;
            let part = Given::text(part, name)?;
            let rest = match name {
                "removeprefix" => text.strip_prefix(&*part),
                _ => text.strip_suffix(&*part),
            };
            run.text(rest.unwrap_or(text))
        }
        "split" => {
            let [by, most] = given.all(name)?;
            let most = Given::int(most, name)?.and_then(|most| usize::try_from(most).ok());
            let parts: Vec<&str> = match by {
                None | Some(Value::None) => {
                    if most.is_some() {
                        return Err("`split` takes a number only with what to split by".into());
                    }
                    run.pay(text.len().saturating_mul(STEP))?;
                    text.split_whitespace().collect()
                }
                Some(by) => {
                    let by = Given::text(Some(by), name)?;
                    if by.is_empty() {
                        return Err("`split` by nothing".into());
                    }
                    run.pay((text.len() / by.len()).saturating_mul(STEP))?;
                    text.splitn(most.map_or(usize::MAX, |most| most.saturating_add(1)), &*by).collect()
                }
            };
            let parts = parts.into_iter().map(Value::from).collect();
            run.list(parts)
        }
        "splitlines" => {
            let [] = given.all(name)?;
            run.pay(text.len().saturating_mul(STEP))?;
            run.list(text.lines().map(Value::from).collect())
        }
        "replace" => {
            let [from, to, most] = given.all(name)?;
            let (from, to) = (Given::text(from, name)?, Given::text(to, name)?);
            replace(run, text, &from, &to, Given::int(most, name)?)
        }
        "upper" | "lower" | "title" | "capitalize" => {
            let [] = given.all(name)?;
            in_case(run, text, name)
        }
        "find" => {
            let [part] = given.all(name)?;
            let found = text.find(&*Given::text(part, name)?);
            Ok(Value::Int(found.map_or(-1, |at| text[..at].chars().count() as i64)))
        }
        "count" => {
            let [part] = given.all(name)?;
            let part = Given::text(part, name)?;
            // Python counts the gaps between characters, and both ends.
            let count = if part.is_empty() { text.chars().count() + 1 } else { text.matches(&*part).count() };
            Ok(Value::Int(count as i64))
        }
        "join" => {
            let [parts] = given.all(name)?;
            join(run, &parts.unwrap_or(Value::Undefined), text)
        }
        _ => Err(format!("the method `{name}` of a string is not supported")),
    }
}

fn strip(run: &mut Run, text: &str, set: Option<&str>, side: &str) -> Result<Value> {
    run.pay(text.len().saturating_mul(set.map_or(1, str::len)))?;
    let strips = |c: char| set.map_or_else(|| c.is_whitespace(), |set| set.contains(c));
    let text = if side == "rstrip" { text } else { text.trim_start_matches(strips) };
    run.text(if side == "lstrip" { text } else { text.trim_end_matches(strips) })
}

fn replace(run: &mut Run, text: &str, from: &str, to: &str, most: Option<i64>) -> Result<Value> {
    if from.is_empty() {
        return Err("`replace` of nothing".into());
    }
    let most = most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
    let count = text.matches(from).take(most).count();
    run.pay(text.len().saturating_add(count.saturating_mul(to.len())))?;
    Ok(text.replacen(from, to, count).into())
}

fn in_case(run: &mut Run, text: &str, case: &str) -> Result<Value> {
    run.pay(text.len().saturating_mul(4))?; // a character may become up to three
    let mut begins = true;
    let cased: String = match case {
        "upper" => text.to_uppercase(),
        "lower" => text.to_lowercase(),
        _ => text.chars().fold(String::new(), |mut cased, c| {
            match begins {
                true => cased.extend(c.to_uppercase()),
                false => cased.extend(c.to_lowercase()),
            }
            begins = case == "title" && !c.is_alphabetic();
            cased
        }),
    };
    Ok(cased.into())
}

fn join(run: &mut Run, parts: &Value, between: &str) -> Result<Value> {
    let mut text = String::new();
    for (index, part) in run.entries(parts)?.iter().enumerate() {
        if index > 0 {
            run.pay(between.len())?;
            text.push_str(between);
        }
        run.print(part, &mut text)?;
    }
    Ok(text.into())
}

pub(super) fn filter(run: &mut Run, value: Value, name: &str, mut given: Given) -> Result<Value> {
    match name {
        "default" | "d" => {
            let boolean = given.take("boolean");
            let [default, plain] = given.all(name)?;
            let also_false = boolean.or(plain).is_some_and(|also| also.is_true());
            let missing = matches!(value, Value::Undefined) || also_false && !value.is_true();
            return Ok(if missing { default.unwrap_or_else(|| "".into()) } else { value });
        }
        "tojson" => {
            let indent = given.take("indent");
            let ascii = given.take("ensure_ascii").is_some_and(|ascii| ascii.is_true());
            let [] = given.all(name)?;
            if ascii || indent.is_some_and(|indent| !matches!(indent, Value::None)) {
                return Err("`tojson` with an indent or with only ASCII is not supported".into());
            }
            let mut text = String::new();
            to_json(run, &value, &mut text)?;
            return Ok(text.into());
        }
        "selectattr" | "rejectattr" => return select(run, &value, name == "selectattr", given),
        "map" => {
            let Some(attribute) = given.take("attribute") else {
                return Err("`map` is supported with `attribute=` only".into());
            };
            let [] = given.all(name)?;
            let mut items = Vec::new();
            for item in run.entries(&value)? {
                items.push(run.item(&item, &attribute)?);
            }
            return run.list(items);
        }
        _ => {}
    }
    if matches!(value, Value::Undefined) && name != "list" {
        return Err(format!("undefined has no `{name}`"));
    }
    match (name, &value) {
        ("safe", _) => Ok(value),
        ("string", _) => {
            let mut text = String::new();
            run.print(&value, &mut text)?;
            Ok(text.into())
        }
        ("trim", _) => method(run, &value, "strip", given),
        ("upper" | "lower" | "title" | "capitalize" | "replace", Value::Text(_)) => {
            method(run, &value, name, given)
        }
        ("length" | "count", _) => {
            let [] = given.all(name)?;
            let len = match &value {
                Value::List(list) => list.items.len(),
                Value::Map(map) => map.entries.len(),
                Value::Text(text) => {
                    run.pay(text.len())?;
                    text.chars().count()
                }
                other => return Err(format!("{} has no length", other.kind())),
            };
            Ok(Value::Int(len as i64))
        }
        ("int", _) => {
            let [default] = given.all(name)?;
            let number = match &value {
                Value::Float(number) => Some(*number as i64),
                Value::Text(text) => {
                    run.pay(text.len())?;
                    text.trim().parse().ok()
                }
                other => other.int(),
            };
            Ok(number.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
        }
        ("join", _) => {
            let [between] = given.all(name)?;
            let between = between.map(|between| Given::text(Some(between), name)).transpose()?;
            join(run, &value, between.as_deref().unwrap_or(""))
        }
        ("first" | "last" | "list" | "reverse", _) => {
            let [] = given.all(name)?;
            let mut items = run.entries(&value)?;
            match name {
                "first" => Ok(items.into_iter().next().unwrap_or(Value::Undefined)),
                "last" => Ok(items.pop().unwrap_or(Value::Undefined)),
                "list" => run.list(items),
                _ => {
                    items.reverse();
                    match value {
                        Value::Text(_) => {
                            let reversed = run.list(items)?;
                            join(run, &reversed, "")
                        }
                        _ => run.list(items),
                    }
                }
            }
        }
        ("items", _) => {
            let [] = given.all(name)?;
            pairs(run, &value, name)
        }
        ("upper" | "lower" | "title" | "capitalize" | "replace", other) => {
            Err(format!("`{name}` takes a string, not {}", other.kind()))
        }
        _ => Err(format!("the filter `{name}` is not supported")),
    }
}

/// The entries whose attribute is true or passes a test; or the others.
fn select(run: &mut Run, value: &Value, keep: bool, given: Given) -> Result<Value> {
    let mut plain = given.plain.into_iter();
    let (attribute, name) = (plain.next(), plain.next());
    let attribute = Value::Text(Given::text(attribute, "selectattr")?);
    let name = name.map(|name| Given::text(Some(name), "selectattr")).transpose()?;
    let arguments: Vec<Value> = plain.collect();
    let mut kept = Vec::new();
    for item in run.entries(value)? {
        let found = run.item(&item, &attribute)?;
        let passes = match &name {
            None => found.is_true(),
            Some(name) => test(run, &found, name, Given { plain: arguments.clone(), named: Vec::new() })?,
        };
        if passes == keep {
            kept.push(item);
        }
    }
    run.list(kept)
}

/// As in transformers: Python's separators, and no escapes that JSON does not need.
fn to_json(run: &mut Run, value: &Value, out: &mut String) -> Result<()> {
    debug_assert!(value.depth() <= MAX_DEPTH, "recursion ends with the value");
    run.pay(STEP)?;
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(value) => drop(write!(out, "{value}")), // a string takes all that is written
        Value::Int(value) => drop(write!(out, "{value}")),
        Value::Float(value) => drop(write!(out, "{value:?}")),
        Value::Text(text) => {
            run.pay(text.len().saturating_mul(6))?; // an escape has six characters
            out.push_str(&json!(&**text).to_string());
        }
        Value::List(list) => {
            out.push('[');
            for (index, item) in list.items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                to_json(run, item, out)?;
            }
            out.push(']');
        }
        Value::Map(map) => {
            out.push('{');
            for (index, (name, value)) in map.entries.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                to_json(run, &Value::Text(Arc::clone(name)), out)?;
                out.push_str(": ");
                to_json(run, value, out)?;
            }
            out.push('}');
        }
        other => return Err(format!("{} can't be written as JSON", other.kind())),
    }
    Ok(())
}

pub(super) fn test(run: &mut Run, value: &Value, name: &str, given: Given) -> Result<bool> {
    run.pay(STEP)?;
    let [argument] = given.all(name)?;
    if let Some(argument) = argument {
        return match name {
            "in" => run.contains(&argument, value),
            "equalto" | "eq" | "==" => run.equal(value, &argument),
            "ne" | "!=" => run.equal(value, &argument).map(|equal| !equal),
            "divisibleby" => match (value.int(), argument.int()) {
                (Some(a), Some(b)) => {
                    a.checked_rem(b).map(|rest| rest == 0).ok_or_else(|| "division by zero".into())
                }
                _ => Err("`divisibleby` is for whole numbers".into()),
            },
            _ => Err(format!("the test `{name}` is not supported, or takes nothing")),
        };
    }
    let whole = || value.int().ok_or_else(|| format!("`{name}` is for whole numbers, not {}", value.kind()));
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "string" => matches!(value, Value::Text(_)),
        "number" => value.number().is_some(),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "mapping" => matches!(value, Value::Map(_)),
        "sequence" => matches!(value, Value::Text(_) | Value::List(_) | Value::Map(_)),
        "iterable" => matches!(value, Value::Text(_) | Value::List(_) | Value::Map(_) | Value::Undefined),
        "even" => whole()? % 2 == 0,
        "odd" => whole()? % 2 != 0,
        _ => return Err(format!("the test `{name}` is not supported")),
    })
}
