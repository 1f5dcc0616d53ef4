//! Evaluates statements and expressions to text. Each step is charged to the budget before it runs.

use super::builtins::{self, Given};
use super::error::TemplateError;
use super::limits::{MAX_CALLS, MAX_REASON, STEP};
use super::parser::{Arguments, Comparison, Expr, Node, Postfix, Statement, Target};
use super::run::{Result, Run, Scope, find, search_cost};
use super::value::{List, Loop, Value};
use std::cmp::Ordering;
use std::sync::Arc;

/// How a block ended.
#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
}

pub(super) fn render(
    template: &[Node],
    variables: Vec<(&str, Value)>,
    budget: u64,
    most: usize,
) -> std::result::Result<String, TemplateError> {
    let variables = variables.into_iter().map(|(name, value)| (name.into(), value)).collect();
    let mut run = Run {
        budget,
        most,
        scopes: vec![variables],
        visible: 1,
        namespaces: Vec::new(),
        macros: Vec::new(),
        calls: 0,
        line: 1,
    };
    let mut text = String::new();
    match run.block(template, &mut text) {
        Ok(_) => Ok(text),
        Err(mut reason) => {
            reason.truncate(reason.floor_char_boundary(MAX_REASON));
            Err(TemplateError { line: run.line, reason })
        }
    }
}

impl<'t> Run<'t> {
    fn block(&mut self, nodes: &'t [Node], out: &mut String) -> Result<Flow> {
        for node in nodes {
            self.line = node.line;
            self.pay(STEP)?;
            match self.statement(&node.kind, out)? {
                Flow::On => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::On)
    }

    fn statement(&mut self, statement: &'t Statement, out: &mut String) -> Result<Flow> {
        match statement {
            Statement::Text(text) => {
                self.check_room(out, text.len())?;
                self.pay(text.len())?;
                out.push_str(text);
            }
            Statement::Print(value) => {
                let value = self.value(value)?;
                if let Value::Text(text) = &value {
                    self.check_room(out, text.len())?;
                }
                self.print(&value, out)?;
                self.check_room(out, 0)?;
            }
            Statement::For { targets, over, only, body, otherwise } => {
                let over = self.value(over)?;
                return self.repeat(targets, &over, only.as_ref(), body, otherwise, out);
            }
            Statement::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.value(test)?.is_true() {
                        return self.block(body, out);
                    }
                }
                return self.block(otherwise, out);
            }
            Statement::Set { target: Target::Names(names), value } => {
                let value = self.value(value)?;
                for (name, value) in self.unpack(names, value)? {
                    self.set(name, value)?;
                }
            }
            Statement::Set { target: Target::Attribute(name, attribute), value } => {
                let value = self.value(value)?;
                let Value::Namespace(number) = self.lookup(name)? else {
                    return Err(format!("`{name}` is no namespace, so it has no attributes to set"));
                };
                self.plain(&value)?;
                let cost = search_cost(&self.namespaces[number], attribute);
                self.pay(cost)?;
                put(&mut self.namespaces[number], attribute, value);
            }
            Statement::SetBlock { name, body } => {
                let mut text = String::new();
                self.scopes.push(Scope::new());
                let flow = self.block(body, &mut text);
                self.scopes.pop();
                flow?;
                self.set(name, text.into())?;
            }
            Statement::Macro { name, .. } => {
                self.macros.push(statement);
                self.set(name, Value::Macro(self.macros.len() - 1))?;
            }
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
            Statement::Inside(body) => return self.block(body, out),
        }
        Ok(Flow::On)
    }

    fn repeat(
        &mut self,
        targets: &'t [Arc<str>],
        over: &Value,
        only: Option<&'t Expr>,
        body: &'t [Node],
        otherwise: &'t [Node],
        out: &mut String,
    ) -> Result<Flow> {
        let mut items = self.entries(over)?;
        if let Some(only) = only {
            let mut kept = Vec::new();
            for item in items {
                self.pay(STEP)?;
                let scope = self.unpack(targets, item.clone())?;
                let scope = scope.into_iter().map(|(name, value)| (Arc::clone(name), value)).collect();
                self.scopes.push(scope);
                let keep = self.value(only).map(|keep| keep.is_true());
                self.scopes.pop();
                if keep? {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.block(otherwise, out);
        }
        let items = Arc::new(List { items, depth: over.depth().max(1) });
        for index in 0..items.items.len() {
            self.pay(STEP)?;
            let scope = self.unpack(targets, items.items[index].clone())?;
            let mut scope: Scope = scope.into_iter().map(|(name, value)| (Arc::clone(name), value)).collect();
            scope.push(("loop".into(), Value::Loop(Arc::new(Loop { items: Arc::clone(&items), index }))));
            self.scopes.push(scope);
            let flow = self.block(body, out);
            self.scopes.pop();
            if flow? == Flow::Break {
                break;
            }
        }
        Ok(Flow::On)
    }

    /// Pairs each name with a value.
    fn unpack<'n>(&mut self, names: &'n [Arc<str>], value: Value) -> Result<Vec<(&'n Arc<str>, Value)>> {
        if let [name] = names {
            return Ok(vec![(name, value)]);
        }
        let values = self.entries(&value)?;
        match values.len() == names.len() {
            true => Ok(names.iter().zip(values).collect()),
            false => Err(format!("{} names for {} values", names.len(), values.len())),
        }
    }

    fn set(&mut self, name: &Arc<str>, value: Value) -> Result<()> {
        let cost = self.scopes.last().map_or(0, |scope| search_cost(scope, name));
        self.pay(cost)?;
        if let Some(scope) = self.scopes.last_mut() {
            put(scope, name, value);
        }
        Ok(())
    }

    fn lookup(&mut self, name: &str) -> Result<Value> {
        let inner = self.scopes.get(self.visible..).unwrap_or_default().iter().rev();
        let scopes: Vec<&Scope> = inner.chain(self.scopes.first()).collect();
        let cost = scopes.iter().map(|scope| 1 + search_cost(scope, name)).sum();
        let found = scopes.into_iter().find_map(|scope| find(scope, name)).cloned();
        self.pay(cost)?;
        Ok(found.unwrap_or(Value::Undefined))
    }

    pub fn value(&mut self, expr: &'t Expr) -> Result<Value> {
        self.pay(STEP)?;
        Ok(match expr {
            Expr::Value(value) => value.clone(),
            Expr::Name(name) => self.lookup(name)?,
            Expr::List(items) => {
                let items = items.iter().map(|item| self.value(item)).collect::<Result<_>>()?;
                self.list(items)?
            }
            Expr::Map(entries) => {
                let mut map = Scope::new();
                for (name, value) in entries {
                    let (name, value) = (self.value(name)?, self.value(value)?);
                    let Value::Text(name) = name else {
                        return Err(format!("a dictionary's name is {}, not a string", name.kind()));
                    };
                    self.pay(search_cost(&map, &name))?;
                    put(&mut map, &name, value);
                }
                self.map(map)?
            }
            Expr::Not(value) => Value::Bool(!self.value(value)?.is_true()),
            Expr::Negative(value) => match self.value(value)? {
                Value::Float(value) => Value::Float(-value),
                other => match other.int().and_then(i64::checked_neg) {
                    Some(value) => Value::Int(value),
                    None => return Err(format!("{} has no negative", other.kind())),
                },
            },
            Expr::All(values) => self.first_where(values, |value| !value.is_true())?,
            Expr::Any(values) => self.first_where(values, Value::is_true)?,
            Expr::Compare(first, comparisons) => {
                let mut left = self.value(first)?;
                for (comparison, right) in comparisons {
                    let right = self.value(right)?;
                    if !self.holds(&left, *comparison, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            Expr::Chain(first, steps) => {
                let mut left = self.value(first)?;
                for (operator, right) in steps {
                    let right = self.value(right)?;
                    self.pay(STEP)?;
                    left = self.arithmetic(left, operator, right)?;
                }
                left
            }
            Expr::Postfix(base, steps) => {
                let mut value = match (&**base, steps.first()) {
                    // a function's name, unless the template assigns to it
                    (Expr::Name(name), Some(Postfix::Call(arguments))) => {
                        let value = self.lookup(name)?;
                        let arguments = self.given(arguments)?;
                        match value {
                            Value::Undefined => builtins::function(self, name, arguments)?,
                            value => self.call(&value, arguments)?,
                        }
                    }
                    (base, Some(step)) => {
                        let value = self.value(base)?;
                        self.step(value, step)?
                    }
                    (base, None) => self.value(base)?,
                };
                for step in steps.iter().skip(1) {
                    self.pay(STEP)?;
                    value = self.step(value, step)?;
                }
                value
            }
            Expr::If { then, test, otherwise } => match (self.value(test)?.is_true(), otherwise) {
                (true, _) => self.value(then)?,
                (false, Some(otherwise)) => self.value(otherwise)?,
                (false, None) => Value::Undefined,
            },
        })
    }

    /// The first value that ends the search, or else the last one.
    fn first_where(&mut self, values: &'t [Expr], ends: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::Undefined;
        for value in values {
            last = self.value(value)?;
            if ends(&last) {
                break;
            }
        }
        Ok(last)
    }

    fn step(&mut self, value: Value, step: &'t Postfix) -> Result<Value> {
        match step {
            Postfix::Attribute(name) => self.attribute(&value, name),
            Postfix::Item(index) => {
                let index = self.value(index)?;
                self.item(&value, &index)
            }
            Postfix::Slice(parts) => {
                let mut bounds = [None; 3];
                for (bound, part) in bounds.iter_mut().zip(parts) {
                    let Some(part) = part else { continue };
                    match self.value(part)? {
                        Value::None => {}
                        other => match other.int() {
                            Some(number) => *bound = Some(number),
                            None => return Err(format!("a slice's bound is {}", other.kind())),
                        },
                    }
                }
                self.slice(&value, bounds)
            }
            Postfix::Call(arguments) => {
                let arguments = self.given(arguments)?;
                self.call(&value, arguments)
            }
            Postfix::Method(name, arguments) => {
                let arguments = self.given(arguments)?;
                builtins::method(self, &value, name, arguments)
            }
            Postfix::Filter(name, arguments) => {
                let arguments = self.given(arguments)?;
                builtins::filter(self, value, name, arguments)
            }
            Postfix::Test { name, arguments, negated } => {
                let arguments = self.given(arguments)?;
                Ok(Value::Bool(builtins::test(self, &value, name, arguments)? != *negated))
            }
        }
    }

    fn given(&mut self, arguments: &'t Arguments) -> Result<Given> {
        let plain = arguments.plain.iter().map(|value| self.value(value)).collect::<Result<_>>()?;
        let named = arguments.named.iter().map(|(name, value)| Ok((Arc::clone(name), self.value(value)?)));
        Ok(Given { plain, named: named.collect::<Result<_>>()? })
    }

    fn call(&mut self, value: &Value, mut given: Given) -> Result<Value> {
        let Value::Macro(number) = *value else { return Err(format!("{} can't be called", value.kind())) };
        let Statement::Macro { name, parameters, body } = self.macros[number] else {
            return Err("it is no macro".into());
        };
        if self.calls == MAX_CALLS {
            return Err(format!("macros call each other more than {MAX_CALLS} deep"));
        }
        self.pay(parameters.len().saturating_mul(STEP.saturating_add(given.named.len())))?;
        let mut scope = Scope::new();
        let mut plain = std::mem::take(&mut given.plain).into_iter();
        for (parameter, default) in parameters {
            let value = match (plain.next().or_else(|| given.take(parameter)), default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.value(default)?,
                (None, None) => Value::Undefined,
            };
            scope.push((Arc::clone(parameter), value));
        }
        if plain.next().is_some() || !given.named.is_empty() {
            return Err(format!("macro `{name}` has {} parameters and is given others", parameters.len()));
        }
        let visible = std::mem::replace(&mut self.visible, self.scopes.len());
        let line = self.line;
        self.scopes.push(scope);
        self.calls += 1;
        let mut text = String::new();
        let flow = self.block(body, &mut text);
        flow?; // an error ends the rendering, so the state needs no restoring
        self.calls -= 1;
        self.scopes.pop();
        (self.visible, self.line) = (visible, line);
        Ok(text.into())
    }

    /// Refuses what lists, dictionaries and namespaces do not hold: a namespace could hold itself.
    /// Python's `[start:stop:step]`.
    fn slice(&mut self, value: &Value, [start, stop, step]: [Option<i64>; 3]) -> Result<Value> {
        let items = match value {
            Value::List(_) | Value::Text(_) => self.entries(value)?,
            other => return Err(format!("{} has no slices", other.kind())),
        };
        let (len, step) = (items.len() as i64, step.unwrap_or(1));
        if step == 0 {
            return Err("a slice's step is 0".into());
        }
        // Clamped to the ends, as the direction requires.
        let (least, most) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let bound = |bound: Option<i64>, usual: i64| match bound {
            None => usual,
            Some(bound) if bound < 0 => bound.saturating_add(len).clamp(least, most),
            Some(bound) => bound.clamp(least, most),
        };
        let (first, last) = if step > 0 { (least, most) } else { (most, least) };
        let (mut at, stop) = (bound(start, first), bound(stop, last));
        let mut taken = Vec::new();
        while (step > 0 && at < stop) || (step < 0 && at > stop) {
            self.pay(STEP)?;
            taken.push(items[at as usize].clone());
            at = at.saturating_add(step);
        }
        match value {
            Value::Text(_) => {
                let mut text = String::new();
                taken.iter().try_for_each(|c| self.print(c, &mut text))?;
                Ok(text.into())
            }
            _ => self.list(taken),
        }
    }

    fn arithmetic(&mut self, left: Value, operator: &str, right: Value) -> Result<Value> {
        let misfit = || format!("`{operator}` of {} and {}", left.kind(), right.kind());
        match (operator, &left, &right) {
            ("~", ..) => {
                let mut text = String::new();
                self.print(&left, &mut text)?;
                self.print(&right, &mut text)?;
                return Ok(text.into());
            }
            ("+", Value::Text(a), Value::Text(b)) => {
                self.pay(a.len().saturating_add(b.len()))?;
                return Ok([&**a, b].concat().into());
            }
            ("+", Value::List(a), Value::List(b)) => {
                self.pay(a.items.len().saturating_add(b.items.len()).saturating_mul(STEP))?;
                return Ok(Value::list([&a.items[..], &b.items].concat()));
            }
            ("*", Value::Text(text), count) | ("*", count, Value::Text(text)) => {
                let count = usize::try_from(count.int().ok_or_else(misfit)?).unwrap_or(0);
                self.pay(text.len().saturating_mul(count))?;
                return Ok(text.repeat(count).into());
            }
            ("*", Value::List(list), count) | ("*", count, Value::List(list)) => {
                let count = usize::try_from(count.int().ok_or_else(misfit)?).unwrap_or(0);
                self.pay(list.items.len().saturating_mul(count).saturating_mul(STEP))?;
                let items = std::iter::repeat_n(&list.items, count).flatten().cloned();
                return Ok(Value::list(items.collect()));
            }
            _ => {}
        }
        let too_large = || format!("`{operator}` gives a number that is too large");
        if let (Some(a), Some(b)) = (left.int(), right.int()) {
            let zero = || "division by zero".to_owned();
            let floored = |a: i64, b: i64| -> Result<i64> {
                let quotient = a.checked_div(b).ok_or_else(too_large)?;
                let below = a.wrapping_rem(b) != 0 && (a < 0) != (b < 0);
                Ok(quotient - i64::from(below))
            };
            let whole = match operator {
                "+" => a.checked_add(b),
                "-" => a.checked_sub(b),
                "*" => a.checked_mul(b),
                "//" | "%" | "/" if b == 0 => return Err(zero()),
                "//" => Some(floored(a, b)?),
                "%" => floored(a, b)?.checked_mul(b).and_then(|part| a.checked_sub(part)),
                "/" => return Ok(Value::Float(a as f64 / b as f64)),
                _ => match u32::try_from(b) {
                    Ok(b) => a.checked_pow(b),
                    Err(_) => return Ok(Value::Float((a as f64).powf(b as f64))),
                },
            };
            return whole.map(Value::Int).ok_or_else(too_large);
        }
        let (Some(a), Some(b)) = (left.number(), right.number()) else { return Err(misfit()) };
        Ok(Value::Float(match operator {
            "+" => a + b,
            "-" => a - b,
            "*" => a * b,
            _ if b == 0.0 && operator != "**" => return Err("division by zero".into()),
            "/" => a / b,
            "//" => (a / b).floor(),
            "%" => a - (a / b).floor() * b,
            _ => a.powf(b),
        }))
    }

    fn holds(&mut self, left: &Value, comparison: Comparison, right: &Value) -> Result<bool> {
        self.pay(STEP)?;
        Ok(match comparison {
            Comparison::Equal => self.equal(left, right)?,
            Comparison::NotEqual => !self.equal(left, right)?,
            Comparison::In => self.contains(right, left)?,
            Comparison::NotIn => !self.contains(right, left)?,
            _ => {
                let order = match (left, right) {
                    (Value::Text(a), Value::Text(b)) => {
                        self.pay(a.len().min(b.len()))?;
                        Some(a.cmp(b))
                    }
                    _ => match (left.number(), right.number()) {
                        (Some(a), Some(b)) => a.partial_cmp(&b),
                        _ => return Err(format!("{} and {} have no order", left.kind(), right.kind())),
                    },
                };
                match comparison {
                    Comparison::Less => order == Some(Ordering::Less),
                    Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
                    Comparison::Greater => order == Some(Ordering::Greater),
                    _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
                }
            }
        })
    }
}

fn put(scope: &mut Scope, name: &Arc<str>, value: Value) {
    match scope.iter_mut().find(|(entry, _)| entry == name) {
        Some((_, old)) => *old = value,
        None => scope.push((Arc::clone(name), value)),
    }
}
