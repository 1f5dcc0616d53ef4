//! Cargo's messages, one JSON object a line: the library that it built, and what the compiler said.

use serde_json::Value;
use std::path::PathBuf;

/// Warnings of which each is shown; the others are counted.
const MOST: usize = 20;

/// The messages of one run of cargo.
pub struct Messages(Vec<Value>);

impl Messages {
    /// Lines that are no JSON are left out.
    pub fn parse(stdout: &str) -> Self {
        Self(stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// The static library.
    pub fn archive(&self) -> Option<PathBuf> {
        let is_built = |message: &&Value| {
            message["reason"] == "compiler-artifact" && message["target"]["kind"][0] == "staticlib"
        };
        self.0.iter().rfind(is_built)?["filenames"][0].as_str().map(PathBuf::from)
    }

    /// The compiler's diagnostics that are about a place in the source, and its errors. Others are about options that
    /// this crate gives it.
    fn diagnostics(&self) -> impl Iterator<Item = &Value> {
        let diagnostics = self.0.iter().filter(|message| message["reason"] == "compiler-message");
        let has_place = |message: &&Value| message["spans"].as_array().is_some_and(|spans| !spans.is_empty());
        diagnostics.map(|message| &message["message"]).filter(move |message| {
            has_place(message) || message["level"].as_str().is_some_and(|level| level.starts_with("error"))
        })
    }

    /// The compiler's text of all of them.
    pub fn rendered(&self) -> String {
        self.diagnostics().filter_map(|message| message["rendered"].as_str()).collect()
    }

    /// A line for each warning: `src/lib.rs:12:9: unused variable: x`.
    pub fn warnings(&self) -> Vec<String> {
        let warnings: Vec<&Value> =
            self.diagnostics().filter(|message| message["level"] == "warning").collect();
        let line = |message: &&Value| {
            let spans = message["spans"].as_array()?;
            let span = spans.iter().find(|span| span["is_primary"] == true).or(spans.first())?;
            let (file, text) = (span["file_name"].as_str()?, message["message"].as_str()?);
            Some(format!("{file}:{}:{}: {text}", span["line_start"], span["column_start"]))
        };
        let mut lines: Vec<String> = warnings.iter().take(MOST).filter_map(line).collect();
        if warnings.len() > MOST {
            lines.push(format!("{} further warnings of the GPU crate", warnings.len() - MOST));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(level: &str, spans: &str) -> String {
        format!(
            "{{\"reason\":\"compiler-message\",\"message\":{{\"level\":\"{level}\",\"message\":\"unused\",\"rendered\":\"{level}!\\n\",\"spans\":[{spans}]}}}}\n"
        )
    }

    #[test]
    fn toolchain_warnings_about_a_place_are_lines() {
        let span = "{\"file_name\":\"a.rs\",\"line_start\":3,\"column_start\":5,\"is_primary\":true}";
        let text = message("warning", span) + &message("warning", "") + "no JSON\n" + &message("error", "");
        let messages = Messages::parse(&text);
        assert_eq!(messages.warnings(), ["a.rs:3:5: unused"]);
        assert_eq!(messages.rendered(), "warning!\nerror!\n");
        assert_eq!(messages.archive(), None);
        let many = Messages::parse(&message("warning", span).repeat(22));
        assert_eq!(many.warnings().len(), 21);
        assert_eq!(many.warnings()[20], "2 further warnings of the GPU crate");
    }
}
