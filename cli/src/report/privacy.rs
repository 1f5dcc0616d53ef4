//! Removes what a report must not contain: names of hosts, users and folders. None is written on purpose, but error
//! messages quote paths, and a home folder names its user.

use crate::failure::Failure;
use serde::Serialize;
use serde_json::Value;
use std::env;

/// Names and their replacements.
fn names() -> Vec<(String, &'static str)> {
    let home = env::home_dir();
    let program = env::current_exe().ok().and_then(|file| file.parent().map(ToOwned::to_owned));
    let paths = [
        (env::current_dir().ok(), "‹folder›"),
        (program, "‹program›"),
        (Some(env::temp_dir()), "‹temporary›"),
        (home, "‹home›"),
    ];
    let mut names: Vec<_> = paths
        .into_iter()
        .filter_map(|(path, name)| Some((path?.to_str()?.trim_end_matches(['/', '\\']).to_owned(), name)))
        .filter(|(path, _)| path.len() > 1)
        .collect();
    names.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    names
}

/// The report without these names.
pub(super) fn redacted(report: &impl Serialize) -> Result<Value, Failure> {
    let value = serde_json::to_value(report);
    let mut value =
        value.map_err(|error| Failure::Failed(format!("the report can't be written as JSON: {error}")))?;
    let names = names();
    walk(&mut value, &names);
    Ok(value)
}

/// The text without these names.
pub(super) fn redacted_text(text: &str) -> String {
    without(text, &names())
}

fn walk(value: &mut Value, names: &[(String, &str)]) {
    match value {
        Value::String(text) => *text = without(text, names),
        Value::Array(values) => values.iter_mut().for_each(|value| walk(value, names)),
        Value::Object(fields) => fields.values_mut().for_each(|value| walk(value, names)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn without(text: &str, names: &[(String, &str)]) -> String {
    names.iter().fold(text.to_owned(), |text, (name, instead)| text.replace(name.as_str(), instead))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn folders_are_taken_out_of_every_string() {
        let here = env::current_dir().expect("a folder").display().to_string();
        let temporary = env::temp_dir().join("x").display().to_string();
        let report = json!({"a": [{"message": format!("{here}/file is gone, so is {temporary}")}], "n": 1});
        let text = redacted(&report).expect("JSON").to_string();
        assert!(!text.contains(&here) && text.contains("‹folder›/file is gone"), "{text}");
        assert!(text.contains("‹temporary›"), "{text}");
    }
}
