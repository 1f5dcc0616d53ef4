//! The error of a template.

/// Why a template can't be parsed or rendered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct TemplateError {
    /// Of the template, from 1 on.
    pub line: usize,
    /// The error.
    pub reason: String,
}
