//! The part of Jinja that chat templates use, for templates that are not trusted.
//!
//! A template comes with a checkpoint, and it is a program. Existing interpreters bound the number of its steps. They do
//! not bound the memory of one step (`s ~ s` doubles a string) or its time (`[0] * 10 ** 9`), and some recurse as deep as a
//! template demands. Here one budget is charged before each step. A step costs `STEP`; every byte of text and every list
//! entry that is created, read, compared or printed costs at least one. The text has a limit of its own, since what is made of it later
//! takes much more than itself. The parser bounds the nesting of expressions, and the
//! constructors of values bound their depth, so recursion is bounded.
//!
//! The features of published templates give Jinja2's results: loops, conditions, assignments, namespaces, macros,
//! slices, Python's methods of strings and dictionaries, and the filters and tests listed in `builtins.rs`. Anything else
//! is an error that names it.

mod builtins;
mod error;
mod eval;
mod lexer;
mod limits;
mod parser;
mod run;
mod value;

pub use error::TemplateError;
pub use value::Value;

use limits::{BUDGET, MAX_DEPTH, MAX_SOURCE};

/// A template that has been read.
#[derive(Debug)]
pub struct Template(Vec<parser::Node>);

impl Template {
    /// Reads a template; lines that hold only a block or a comment leave no trace (`trim_blocks`, `lstrip_blocks`).
    ///
    /// # Errors
    /// [`TemplateError`] if it is malformed, too large or nested too deep.
    pub fn parse(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError { line: 1, reason: format!("it is larger than {MAX_SOURCE} bytes") });
        }
        parser::parse(lexer::pieces(source)?).map(Self)
    }

    /// Renders the template with these variables to a text of at most `most` bytes.
    ///
    /// # Errors
    /// [`TemplateError`] if the template raises one, uses an unsupported feature, costs too much, or makes a longer text.
    pub fn render(&self, variables: Vec<(&str, Value)>, most: usize) -> Result<String, TemplateError> {
        if let Some((name, _)) = variables.iter().find(|(_, value)| value.depth() > MAX_DEPTH) {
            let reason = format!("`{name}` is nested more than {MAX_DEPTH} deep");
            return Err(TemplateError { line: 1, reason });
        }
        eval::render(&self.0, variables, BUDGET, most)
    }
}

#[cfg(test)]
mod tests;
