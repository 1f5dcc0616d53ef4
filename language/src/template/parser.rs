//! Tags → statements and expressions.
//!
//! A chain becomes one node: `a + b - c` is one node with two steps, and so is `x.y.z`. So a tree is only as deep as its
//! source is nested, and that is bounded.

use super::error::TemplateError;
use super::lexer::{Kind, Piece, Token};
use super::limits::MAX_NESTING;
use super::value::Value;
use std::sync::Arc;

type Name = Arc<str>;
type Result<T> = std::result::Result<T, TemplateError>;

/// A statement, and its line.
#[derive(Debug)]
pub(super) struct Node {
    pub line: usize,
    pub kind: Statement,
}

#[derive(Debug)]
pub(super) enum Statement {
    Text(Name),
    Print(Expr),
    For {
        targets: Vec<Name>,
        over: Expr,
        only: Option<Expr>,
        body: Vec<Node>,
        otherwise: Vec<Node>,
    },
    If {
        branches: Vec<(Expr, Vec<Node>)>,
        otherwise: Vec<Node>,
    },
    Set {
        target: Target,
        value: Expr,
    },
    SetBlock {
        name: Name,
        body: Vec<Node>,
    },
    Macro {
        name: Name,
        parameters: Vec<(Name, Option<Expr>)>,
        body: Vec<Node>,
    },
    Break,
    Continue,
    /// A block without an effect of its own.
    Inside(Vec<Node>),
}

#[derive(Debug)]
pub(super) enum Target {
    Names(Vec<Name>),
    Attribute(Name, Name),
}

#[derive(Debug)]
pub(super) enum Expr {
    Value(Value),
    Name(Name),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    All(Vec<Expr>),
    Any(Vec<Expr>),
    /// Comparisons of neighbours, as in `a < b < c`.
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// From left to right.
    Chain(Box<Expr>, Vec<(&'static str, Expr)>),
    Postfix(Box<Expr>, Vec<Postfix>),
    If {
        then: Box<Expr>,
        test: Box<Expr>,
        otherwise: Option<Box<Expr>>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

#[derive(Debug)]
pub(super) enum Postfix {
    Attribute(Name),
    Item(Expr),
    Slice([Option<Expr>; 3]),
    Call(Arguments),
    Method(Name, Arguments),
    Filter(Name, Arguments),
    Test { name: Name, arguments: Arguments, negated: bool },
}

#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub plain: Vec<Expr>,
    pub named: Vec<(Name, Expr)>,
}

pub(super) fn parse(pieces: Vec<Piece>) -> Result<Vec<Node>> {
    let mut blocks = Parser { pieces: pieces.into_iter(), nesting: 0, last: 1 };
    let (nodes, end) = blocks.until(&[])?;
    match end {
        None => Ok(nodes),
        Some(tag) => tag.error(format!("`{}` without its beginning", tag.name)),
    }
}

/// The parser: the pieces that are not read yet.
struct Parser {
    pieces: std::vec::IntoIter<Piece>,
    nesting: usize,
    last: usize,
}

/// A block tag: its name and the tokens after it.
struct Tag {
    name: Name,
    tokens: Tokens,
}

impl Tag {
    fn error<T>(&self, reason: impl Into<String>) -> Result<T> {
        self.tokens.error(reason)
    }
}

impl Parser {
    /// The statements up to one of these tags, and that tag; `None` at the end of the template.
    fn until(&mut self, ends: &[&str]) -> Result<(Vec<Node>, Option<Tag>)> {
        let mut nodes = Vec::new();
        while let Some(Piece { line, kind }) = self.pieces.next() {
            self.last = line;
            let tokens = |tokens| Tokens { tokens, at: 0, line, nesting: 0 };
            let kind = match kind {
                Kind::Text(text) => Statement::Text(text.into()),
                Kind::Print(list) => {
                    let mut tokens = tokens(list);
                    let value = tokens.expression()?;
                    tokens.end()?;
                    Statement::Print(value)
                }
                Kind::Block(list) => {
                    let mut tokens = tokens(list);
                    let tag = Tag { name: tokens.name()?, tokens };
                    if ends.contains(&&*tag.name) {
                        return Ok((nodes, Some(tag)));
                    }
                    if tag.name.starts_with("end") || ["else", "elif"].contains(&&*tag.name) {
                        return tag.error(format!("`{}` without its beginning", tag.name));
                    }
                    self.nesting += 1;
                    if self.nesting > MAX_NESTING {
                        return tag.error(format!("blocks are nested more than {MAX_NESTING} deep"));
                    }
                    let statement = self.statement(tag)?;
                    self.nesting -= 1;
                    statement
                }
            };
            nodes.push(Node { line, kind });
        }
        Ok((nodes, None))
    }

    /// As [`until`](Self::until); an error at the end of the template.
    fn body(&mut self, of: &str, ends: &[&str]) -> Result<(Vec<Node>, Tag)> {
        match self.until(ends)? {
            (nodes, Some(tag)) => Ok((nodes, tag)),
            _ => Err(TemplateError { line: self.last, reason: format!("`{of}` without its end") }),
        }
    }

    fn statement(&mut self, tag: Tag) -> Result<Statement> {
        let Tag { name, mut tokens } = tag;
        Ok(match &*name {
            "for" => {
                let targets = tokens.names()?;
                tokens.expect_word("in")?;
                let over = tokens.binary(OR)?; // an `if` after it is the loop's filter
                let only = if tokens.word("if") { Some(tokens.expression()?) } else { None };
                tokens.end()?;
                let (body, end) = self.body("for", &["else", "endfor"])?;
                let otherwise = match &*end.name {
                    "else" => self.body("for", &["endfor"])?.0,
                    _ => Vec::new(),
                };
                Statement::For { targets, over, only, body, otherwise }
            }
            "if" => {
                let (mut branches, mut test) = (Vec::new(), tokens);
                loop {
                    let condition = test.expression()?;
                    test.end()?;
                    let (body, end) = self.body("if", &["elif", "else", "endif"])?;
                    branches.push((condition, body));
                    match &*end.name {
                        "elif" => test = end.tokens,
                        "else" => {
                            break Statement::If { branches, otherwise: self.body("if", &["endif"])?.0 };
                        }
                        _ => break Statement::If { branches, otherwise: Vec::new() },
                    }
                }
            }
            "set" => {
                let names = tokens.names()?;
                let target = match (&names[..], tokens.operator(".")) {
                    ([name], true) => Target::Attribute(Arc::clone(name), tokens.name()?),
                    (_, true) => return tokens.error("only a name has attributes to set"),
                    _ => Target::Names(names),
                };
                if tokens.operator("=") {
                    let value = tokens.expression_or_tuple()?;
                    tokens.end()?;
                    return Ok(Statement::Set { target, value });
                }
                tokens.end()?;
                match target {
                    Target::Names(names) if names.len() == 1 => {
                        let body = self.body("set", &["endset"])?.0;
                        Statement::SetBlock { name: Arc::clone(&names[0]), body }
                    }
                    _ => return tokens.error("a block can be set to one name only"),
                }
            }
            "macro" => {
                let name = tokens.name()?;
                tokens.expect("(")?;
                let mut parameters = Vec::new();
                while !tokens.operator(")") {
                    let parameter = tokens.name()?;
                    let default = if tokens.operator("=") { Some(tokens.expression()?) } else { None };
                    parameters.push((parameter, default));
                    tokens.comma_or(")")?;
                }
                tokens.end()?;
                let body = self.body("macro", &["endmacro"])?.0;
                Statement::Macro { name, parameters, body }
            }
            // transformers marks the assistant's text with it
            "generation" => {
                tokens.end()?;
                Statement::Inside(self.body("generation", &["endgeneration"])?.0)
            }
            "break" | "continue" => {
                tokens.end()?;
                if *name == *"break" { Statement::Break } else { Statement::Continue }
            }
            _ => return tokens.error(format!("`{name}` blocks are not supported")),
        })
    }
}

/// A tag's tokens.
struct Tokens {
    tokens: Vec<Token>,
    at: usize,
    line: usize,
    nesting: usize,
}

/// Binary operators by precedence, the weakest first.
const LEVELS: [&[&str]; 7] =
    [&["or"], &["and"], &["compare"], &["+", "-"], &["~"], &["*", "/", "//", "%"], &["**"]];
const OR: usize = 0;
const AND: usize = 1;
const COMPARE: usize = 2;

impl Tokens {
    fn error<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(TemplateError { line: self.line, reason: reason.into() })
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    fn operator(&mut self, operator: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Op(found)) if *found == operator);
        self.at += usize::from(found);
        found
    }

    fn word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Name(found)) if **found == *word);
        self.at += usize::from(found);
        found
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T> {
        match self.peek() {
            Some(Token::Name(name)) => self.error(format!("{wanted} is expected before `{name}`")),
            Some(Token::Op(operator)) => self.error(format!("{wanted} is expected before `{operator}`")),
            Some(_) => self.error(format!("{wanted} is expected before a literal")),
            None => self.error(format!("{wanted} is expected before the end of the tag")),
        }
    }

    fn expect(&mut self, operator: &str) -> Result<()> {
        if self.operator(operator) { Ok(()) } else { self.unexpected(&format!("`{operator}`")) }
    }

    fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.word(word) { Ok(()) } else { self.unexpected(&format!("`{word}`")) }
    }

    fn end(&self) -> Result<()> {
        if self.at == self.tokens.len() { Ok(()) } else { self.unexpected("the end of the tag") }
    }

    fn name(&mut self) -> Result<Name> {
        match self.peek() {
            Some(Token::Name(name)) => {
                let name = Arc::clone(name);
                self.at += 1;
                Ok(name)
            }
            _ => self.unexpected("a name"),
        }
    }

    /// `a` or `a, b` or `(a, b)`
    fn names(&mut self) -> Result<Vec<Name>> {
        let closed = self.operator("(");
        let mut names = vec![self.name()?];
        while self.operator(",") {
            names.push(self.name()?);
        }
        if closed {
            self.expect(")")?;
        }
        Ok(names)
    }

    /// A comma, or the end of the list, which is not consumed.
    fn comma_or(&mut self, end: &str) -> Result<()> {
        match self.operator(",") || matches!(self.peek(), Some(Token::Op(found)) if *found == end) {
            true => Ok(()),
            false => self.unexpected(&format!("`,` or `{end}`")),
        }
    }

    /// Runs one level deeper.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.error(format!("expressions are nested more than {MAX_NESTING} deep"));
        }
        let result = read(self);
        self.nesting -= 1;
        result
    }

    /// `a`, or `a, b` as a list.
    fn expression_or_tuple(&mut self) -> Result<Expr> {
        let first = self.expression()?;
        if self.at == self.tokens.len() {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.operator(",") {
            items.push(self.expression()?);
        }
        Ok(Expr::List(items))
    }

    /// `a if b else c`
    fn expression(&mut self) -> Result<Expr> {
        self.nested(|this| {
            let then = this.binary(OR)?;
            if !this.word("if") {
                return Ok(then);
            }
            let test = Box::new(this.binary(OR)?);
            let otherwise = if this.word("else") { Some(Box::new(this.expression()?)) } else { None };
            Ok(Expr::If { then: Box::new(then), test, otherwise })
        })
    }

    /// Operands joined by operators of a precedence level or higher.
    fn binary(&mut self, level: usize) -> Result<Expr> {
        let operand = |this: &mut Self| match level + 1 {
            COMPARE => this.negations(),
            next if next < LEVELS.len() => this.binary(next),
            _ => this.unary(true),
        };
        let first = operand(self)?;
        match level {
            OR | AND => {
                let mut operands = vec![first];
                while self.word(LEVELS[level][0]) {
                    operands.push(operand(self)?);
                }
                Ok(match operands.len() {
                    1 => operands.remove(0),
                    _ if level == OR => Expr::Any(operands),
                    _ => Expr::All(operands),
                })
            }
            COMPARE => {
                let mut comparisons = Vec::new();
                while let Some(comparison) = self.comparison() {
                    comparisons.push((comparison, operand(self)?));
                }
                match comparisons.is_empty() {
                    true => Ok(first),
                    false => Ok(Expr::Compare(Box::new(first), comparisons)),
                }
            }
            _ => {
                let mut steps = Vec::new();
                while let Some(operator) = LEVELS[level].iter().find(|operator| self.operator(operator)) {
                    steps.push((*operator, operand(self)?));
                }
                match steps.is_empty() {
                    true => Ok(first),
                    false => Ok(Expr::Chain(Box::new(first), steps)),
                }
            }
        }
    }

    /// Any number of `not` before a comparison.
    fn negations(&mut self) -> Result<Expr> {
        let mut negated = None;
        while self.word("not") {
            negated = Some(!negated.unwrap_or(false));
        }
        let value = self.binary(COMPARE)?;
        Ok(match negated {
            None => value,
            Some(true) => Expr::Not(Box::new(value)),
            Some(false) => Expr::Not(Box::new(Expr::Not(Box::new(value)))),
        })
    }

    fn comparison(&mut self) -> Option<Comparison> {
        if self.word("in") {
            return Some(Comparison::In);
        }
        if matches!(self.tokens.get(self.at..self.at + 2), Some([Token::Name(not), Token::Name(is_in)])
            if **not == *"not" && **is_in == *"in")
        {
            self.at += 2;
            return Some(Comparison::NotIn);
        }
        let operators = [
            ("==", Comparison::Equal),
            ("!=", Comparison::NotEqual),
            ("<=", Comparison::LessOrEqual),
            ("<", Comparison::Less),
            (">=", Comparison::GreaterOrEqual),
            (">", Comparison::Greater),
        ];
        operators.into_iter().find(|(operator, _)| self.operator(operator)).map(|(_, comparison)| comparison)
    }

    fn unary(&mut self, filters: bool) -> Result<Expr> {
        let base = if self.operator("-") {
            Expr::Negative(Box::new(self.nested(|this| this.unary(false))?))
        } else if self.operator("+") {
            self.nested(|this| this.unary(false))?
        } else {
            self.primary()?
        };
        let mut steps = Vec::new();
        loop {
            let step = if self.operator(".") {
                self.attribute()?
            } else if self.operator("[") {
                self.nested(Self::subscript)?
            } else if self.operator("(") {
                Postfix::Call(self.arguments()?)
            } else if filters && self.operator("|") {
                let name = self.name()?;
                let arguments = if self.operator("(") { self.arguments()? } else { Arguments::default() };
                Postfix::Filter(name, arguments)
            } else if filters && self.word("is") {
                self.test()?
            } else {
                break;
            };
            steps.push(step);
        }
        if steps.is_empty() { Ok(base) } else { Ok(Expr::Postfix(Box::new(base), steps)) }
    }

    fn attribute(&mut self) -> Result<Postfix> {
        if let Some(&Token::Int(index)) = self.peek() {
            self.at += 1;
            return Ok(Postfix::Item(Expr::Value(Value::Int(index))));
        }
        let name = self.name()?;
        Ok(match self.operator("(") {
            true => Postfix::Method(name, self.arguments()?),
            false => Postfix::Attribute(name),
        })
    }

    fn subscript(&mut self) -> Result<Postfix> {
        let mut parts = [None, None, None];
        let (mut part, mut is_slice) = (0, false);
        loop {
            if self.operator("]") {
                break;
            }
            if self.operator(":") {
                is_slice = true;
                part += 1;
            } else if parts.get(part).is_some_and(Option::is_none) {
                parts[part] = Some(self.expression()?);
            } else {
                return self.unexpected("`]`");
            }
        }
        match (is_slice, part, parts) {
            (true, 0..=2, parts) => Ok(Postfix::Slice(parts)),
            (false, _, [Some(index), ..]) => Ok(Postfix::Item(index)),
            _ => self.error("an index or a slice is expected in `[]`"),
        }
    }

    /// Up to the closing bracket.
    fn arguments(&mut self) -> Result<Arguments> {
        let mut arguments = Arguments::default();
        while !self.operator(")") {
            match self.tokens.get(self.at..self.at + 2) {
                Some([Token::Name(name), Token::Op("=")]) => {
                    let name = Arc::clone(name);
                    self.at += 2;
                    arguments.named.push((name, self.expression()?));
                }
                _ => arguments.plain.push(self.expression()?),
            }
            self.comma_or(")")?;
        }
        Ok(arguments)
    }

    /// The test after `is`. Its one argument may be without parentheses: `is divisibleby 3`, `is in [1, 2]`.
    fn test(&mut self) -> Result<Postfix> {
        let negated = self.word("not");
        let name = self.name()?;
        let mut arguments = Arguments::default();
        if self.operator("(") {
            arguments = self.arguments()?;
        } else if let Some(Token::Text(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{")) =
            self.peek()
        {
            arguments.plain.push(self.primary()?);
        }
        Ok(Postfix::Test { name, arguments, negated })
    }

    fn primary(&mut self) -> Result<Expr> {
        let Some(token) = self.peek().cloned() else { return self.unexpected("a value") };
        self.at += 1;
        Ok(match token {
            Token::Int(value) => Expr::Value(Value::Int(value)),
            Token::Float(value) => Expr::Value(Value::Float(value)),
            Token::Text(first) => match self.peek() {
                // adjacent strings are joined
                Some(Token::Text(_)) => {
                    let mut text = first.to_string();
                    while let Some(Token::Text(more)) = self.peek() {
                        text.push_str(more);
                        self.at += 1;
                    }
                    Expr::Value(text.into())
                }
                _ => Expr::Value(Value::Text(first)),
            },
            Token::Name(name) => match &*name {
                "true" | "True" => Expr::Value(Value::Bool(true)),
                "false" | "False" => Expr::Value(Value::Bool(false)),
                "none" | "None" => Expr::Value(Value::None),
                "if" | "else" | "in" | "is" | "and" | "or" | "not" => {
                    self.at -= 1;
                    return self.unexpected("a value");
                }
                _ => Expr::Name(name),
            },
            Token::Op("(") => self.nested(|this| {
                let first = this.expression()?;
                if this.operator(")") {
                    return Ok(first);
                }
                let mut items = vec![first];
                while !this.operator(")") {
                    this.expect(",")?;
                    if !matches!(this.peek(), Some(Token::Op(")"))) {
                        items.push(this.expression()?);
                    }
                }
                Ok(Expr::List(items))
            })?,
            Token::Op("[") => self.nested(|this| {
                let mut items = Vec::new();
                while !this.operator("]") {
                    items.push(this.expression()?);
                    this.comma_or("]")?;
                }
                Ok(Expr::List(items))
            })?,
            Token::Op("{") => self.nested(|this| {
                let mut entries = Vec::new();
                while !this.operator("}") {
                    let name = this.expression()?;
                    this.expect(":")?;
                    entries.push((name, this.expression()?));
                    this.comma_or("}")?;
                }
                Ok(Expr::Map(entries))
            })?,
            Token::Op(_) => {
                self.at -= 1;
                return self.unexpected("a value");
            }
        })
    }
}
