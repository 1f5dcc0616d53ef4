//! Template source → text and tags, with the whitespace rules of Jinja2 under `trim_blocks` and `lstrip_blocks`.

use super::error::TemplateError;
use super::limits::MAX_NAME;
use std::sync::Arc;

/// A part of a template, and the line that it begins on.
#[derive(Debug)]
pub(super) struct Piece {
    pub line: usize,
    pub kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Text(String),
    /// `{{ … }}`
    Print(Vec<Token>),
    /// `{% … %}`
    Block(Vec<Token>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(Arc<str>),
    Text(Arc<str>),
    Int(i64),
    Float(f64),
    /// An operator or a bracket.
    Op(&'static str),
}

/// Longer ones first.
const OPERATORS: [&str; 26] = [
    "==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "|", ".", ",", ":", "(", ")", "[", "]",
    "{", "}", "<", ">", "=", "!",
];

/// The whitespace that a tag removes from the text after it.
#[derive(Clone, Copy)]
enum Trim {
    Nothing,
    /// `%}` removes the newline after it.
    Newline,
    /// `-%}` removes all whitespace.
    All,
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    /// The line of `counted`.
    line: usize,
    counted: usize,
}

pub(super) fn pieces(source: &str) -> Result<Vec<Piece>, TemplateError> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop(); // as Jinja2 does without keep_trailing_newline
    }
    let mut lexer = Lexer { source: &source, at: 0, line: 1, counted: 0 };
    let (mut pieces, mut trim) = (Vec::new(), Trim::Nothing);
    loop {
        let line = lexer.line();
        match (&trim, lexer.rest().strip_prefix('\n')) {
            (Trim::All, _) => lexer.skip_whitespace(),
            (Trim::Newline, Some(_)) => lexer.at += 1,
            _ => {}
        }
        let (begin, rest) = (lexer.at, lexer.rest());
        let tag = rest.match_indices('{').find_map(|(at, _)| {
            let kind = rest.as_bytes().get(at + 1).copied().filter(|kind| b"{%#".contains(kind));
            kind.map(|kind| (at, kind))
        });
        let Some((len, kind)) = tag else {
            push_text(&mut pieces, line, rest);
            return Ok(pieces);
        };
        lexer.at += len + 2;
        let sign = lexer.rest().bytes().next().filter(|sign| b"-+".contains(sign));
        let text = match (sign, kind) {
            (Some(b'-'), _) => rest[..len].trim_end(),
            (None, b'%' | b'#') => without_indentation(&source[..begin], &rest[..len]),
            _ => &rest[..len],
        };
        push_text(&mut pieces, line, text);
        lexer.at += usize::from(sign.is_some());
        let line = lexer.line();
        if kind == b'#' {
            trim = lexer.comment()?;
            continue;
        }
        let (tokens, after) = lexer.tag(if kind == b'{' { "}}" } else { "%}" })?;
        trim = after;
        let kind = if kind == b'{' { Kind::Print(tokens) } else { Kind::Block(tokens) };
        pieces.push(Piece { line, kind });
    }
}

fn push_text(pieces: &mut Vec<Piece>, line: usize, text: &str) {
    if !text.is_empty() {
        pieces.push(Piece { line, kind: Kind::Text(text.to_owned()) });
    }
}

/// The text before a block or a comment, without the indentation of its line.
fn without_indentation<'a>(before: &str, text: &'a str) -> &'a str {
    let line = text.rfind('\n').map_or(0, |at| at + 1);
    let begins_line = line > 0 || before.is_empty() || before.ends_with('\n');
    match begins_line && text[line..].trim().is_empty() {
        true => &text[..line],
        false => text,
    }
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn line(&mut self) -> usize {
        let from = std::mem::replace(&mut self.counted, self.at);
        self.line += self.source[from..self.at].matches('\n').count();
        self.line
    }

    fn error<T>(&mut self, reason: impl Into<String>) -> Result<T, TemplateError> {
        Err(TemplateError { line: self.line(), reason: reason.into() })
    }

    fn skip_whitespace(&mut self) {
        self.at = self.source.len() - self.rest().trim_start().len();
    }

    fn comment(&mut self) -> Result<Trim, TemplateError> {
        match self.rest().find("#}") {
            Some(end) => {
                let all = self.rest()[..end].ends_with('-');
                self.at += end + 2;
                Ok(if all { Trim::All } else { Trim::Newline })
            }
            None => self.error("a comment without an end"),
        }
    }

    /// The tokens up to the end of the tag, which is consumed.
    fn tag(&mut self, end: &str) -> Result<(Vec<Token>, Trim), TemplateError> {
        let (mut tokens, mut open) = (Vec::new(), 0usize);
        let usual = if end == "%}" { Trim::Newline } else { Trim::Nothing };
        loop {
            self.skip_whitespace();
            let rest = self.rest();
            // A brace that closes a dictionary does not end the tag.
            if open == 0 {
                for (sign, trim) in [("-", Trim::All), ("+", Trim::Nothing), ("", usual)] {
                    if rest.strip_prefix(sign).is_some_and(|rest| rest.starts_with(end)) {
                        self.at += sign.len() + end.len();
                        return Ok((tokens, trim));
                    }
                }
            }
            let Some(first) = rest.chars().next() else { return self.error("a tag without an end") };
            let token = match first {
                '"' | '\'' => self.text(first)?,
                '0'..='9' => self.number()?,
                c if c.is_alphabetic() || c == '_' => {
                    let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                    if len > MAX_NAME {
                        return self.error(format!("a name has {len} bytes, at most {MAX_NAME} are allowed"));
                    }
                    self.at += len;
                    Token::Name(rest[..len].into())
                }
                _ => match OPERATORS.iter().find(|operator| rest.starts_with(**operator)) {
                    Some(operator) => {
                        self.at += operator.len();
                        Token::Op(operator)
                    }
                    None => return self.error(format!("`{first}` is not expected")),
                },
            };
            match &token {
                Token::Op("(" | "[" | "{") => open += 1,
                Token::Op(")" | "]" | "}") => open = open.saturating_sub(1),
                _ => {}
            }
            tokens.push(token);
        }
    }

    /// A string in quotes, with Python's escapes.
    fn text(&mut self, quote: char) -> Result<Token, TemplateError> {
        self.at += 1;
        let mut text = String::new();
        let mut chars = self.rest().char_indices();
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.at += at + 1;
                return Ok(Token::Text(text.into()));
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let digits = match chars.next() {
                Some((_, 'n')) => "\n",
                Some((_, 't')) => "\t",
                Some((_, 'r')) => "\r",
                Some((_, '\n')) => "",
                Some((at, c @ ('\\' | '\'' | '"'))) => &self.rest()[at..at + c.len_utf8()],
                Some((at, c @ ('x' | 'u' | 'U'))) => {
                    let len = [2, 4, 8][usize::from(c == 'u') + 2 * usize::from(c == 'U')];
                    let code = self.rest().get(at + 1..at + 1 + len);
                    let code = code.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                    let Some(c) = code.and_then(char::from_u32) else {
                        return self.error(format!("\\{c} needs {len} digits of a character's number"));
                    };
                    text.push(c);
                    chars.by_ref().take(len).for_each(drop);
                    ""
                }
                // Python keeps the backslash of an unknown escape.
                Some((_, c)) => {
                    text.push('\\');
                    text.push(c);
                    ""
                }
                None => break,
            };
            text.push_str(digits);
        }
        self.error("a string without an end")
    }

    fn number(&mut self) -> Result<Token, TemplateError> {
        let rest = self.rest();
        let digits =
            |text: &str| text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '_').len();
        let mut len = digits(rest);
        let fraction = rest[len..].strip_prefix('.').map_or(0, digits);
        let is_float = fraction > 0;
        if is_float {
            len += 1 + fraction;
        }
        let text = rest[..len].replace('_', "");
        self.at += len;
        let token = match is_float {
            true => text.parse().ok().map(Token::Float),
            false => text.parse().ok().map(Token::Int),
        };
        match token {
            Some(token) => Ok(token),
            None => self.error(format!("the number {text} is too large")),
        }
    }
}
