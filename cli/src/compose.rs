//! A message in the user's own editor.

use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;
use std::{env, fs, thread};

/// The most bytes of a message.
const MAX_TEXT: u64 = 64 << 20;
/// How often it is looked whether the editor has ended.
const LOOK: Duration = Duration::from_millis(20);

/// The text as `$VISUAL`, `$EDITOR` or vi (on Windows, Notepad) leaves it. `meanwhile` is called while the editor runs.
///
/// # Errors
/// A sentence.
pub(super) fn compose(text: &str, meanwhile: impl Fn()) -> Result<String, String> {
    let given = ["VISUAL", "EDITOR"].into_iter().filter_map(|name| env::var(name).ok());
    let given = given.into_iter().find(|command| !command.trim().is_empty());
    let command = given.unwrap_or_else(|| if cfg!(windows) { "notepad" } else { "vi" }.to_owned());
    let failed = |error: io::Error| format!("{command}: {error}");
    // it is readable by its owner alone
    let mut file = tempfile::Builder::new().prefix("message-").suffix(".md").tempfile().map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)?;
    let path = file.into_temp_path(); // editors may put another file in its place
    let words = words(&command);
    let (program, arguments) = words.split_first().ok_or("no editor is named")?;
    let mut child = Command::new(program).args(arguments).arg(&path).spawn().map_err(failed)?;
    let status = loop {
        meanwhile();
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None => thread::sleep(LOOK),
        }
    };
    meanwhile();
    if !status.success() {
        return Err(format!("{command} ended with {status}; nothing is changed"));
    }
    let size = fs::metadata(&path).map_err(failed)?.len();
    if size > MAX_TEXT {
        return Err(format!("{command} has left {size} bytes; a message may have {MAX_TEXT}"));
    }
    let text = fs::read_to_string(&path).map_err(failed)?;
    Ok(text.trim_end_matches(['\n', '\r']).to_owned())
}

/// The words of a command, in quotes or with escaped spaces. No shell sees it.
fn words(command: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            ('"' | '\'', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) if !cfg!(windows) => word.get_or_insert_default().extend(chars.next()),
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn a_command_has_words_and_no_shell() {
        for (command, expected) in [
            ("vi", &["vi"][..]),
            (" code  --wait ", &["code", "--wait"]),
            ("'/opt/my editor/ed' -x \"a 'b'\"", &["/opt/my editor/ed", "-x", "a 'b'"]),
            ("ed ''", &["ed", ""]),
            ("ed $(touch x); rm `y` | z", &["ed", "$(touch", "x);", "rm", "`y`", "|", "z"]),
            ("", &[]),
        ] {
            assert_eq!(words(command), expected, "{command}");
        }
        if !cfg!(windows) {
            assert_eq!(words(r"my\ ed '\a'"), ["my ed", r"\a"]);
        }
    }
}
