//! Where a prompt and its pictures come from: the command line, a file or stdin.

use super::failure::Failure;
use super::files::note_input;
use qwen3_vl::Visual;
use qwen3_vl::preprocess::{MAX_DECODED, Picture};
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The most bytes of a prompt: far more than any model's context.
const MAX_TEXT: u64 = 64 << 20;

/// A text: given as it is, `-` for stdin, or `@FILE`; `@@` begins a text that begins with `@`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Text {
    Here(String),
    Stdin,
    File(PathBuf),
}

impl FromStr for Text {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.strip_prefix('@') {
            _ if text == "-" => Self::Stdin,
            Some(rest) if rest.starts_with('@') => Self::Here(rest.to_owned()),
            Some(file) => Self::File(expanded(file)),
            None => Self::Here(text.to_owned()),
        })
    }
}

impl Text {
    /// The text; without trailing newlines if from a file or stdin.
    pub fn read(&self) -> Result<String, Failure> {
        let (name, bytes) = match self {
            Self::Here(text) => return Ok(text.clone()),
            Self::Stdin => ("stdin".to_owned(), read_to_end(io::stdin().lock(), MAX_TEXT)),
            Self::File(file) => {
                note_input(file);
                let bytes = File::open(file).and_then(|file| read_to_end(file, MAX_TEXT));
                (file.display().to_string(), bytes)
            }
        };
        let unreadable = |reason: String| Failure::Failed(format!("the prompt in {name}: {reason}"));
        let bytes = bytes.map_err(|error| unreadable(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable("not UTF-8".into()))?;
        Ok(text.trim_end_matches(['\n', '\r']).to_owned())
    }
}

/// Whether a path means stdin.
pub(super) fn is_stdin(file: &Path) -> bool {
    file.as_os_str() == "-"
}

/// A picture file, or the picture on stdin for `-`.
pub(super) fn image(file: &Path) -> Result<Visual, Failure> {
    if !is_stdin(file) {
        note_input(file);
        return Ok(Visual::image(file)?);
    }
    let bytes = read_to_end(io::stdin().lock(), MAX_DECODED)
        .map_err(|error| Failure::Failed(format!("the image on stdin can't be read: {error}")))?;
    let name = "stdin";
    Ok(Visual::Image { name: name.into(), picture: Picture::from_bytes(name, &bytes)? })
}

fn read_to_end(from: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::Error::other(format!("more than {}", pascaline::format_bytes(limit as usize)))),
        false => Ok(bytes),
    }
}

/// Parses a path as people type it outside a shell, or as a file manager drops it on a terminal: in quotes or with escaped
/// spaces, and with `~` for the home folder.
pub(super) fn typed_path(text: &str) -> PathBuf {
    let text = text.trim();
    let quoted = ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    match quoted {
        Some(inside) => expanded(inside),
        None if cfg!(windows) => expanded(text),
        None => {
            let mut escaped = false;
            let kept = text.chars().filter(|&c| {
                escaped = c == '\\' && !escaped;
                !escaped
            });
            expanded(&kept.collect::<String>())
        }
    }
}

/// With the home folder for `~`.
fn expanded(path: &str) -> PathBuf {
    let inside = match path {
        "~" => Some(""),
        _ => path.strip_prefix("~/"),
    };
    match (inside, std::env::home_dir()) {
        (Some(inside), Some(home)) => home.join(inside),
        _ => path.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_says_where_it_is() {
        let text = |text: &str| text.parse::<Text>().unwrap_or(Text::Stdin);
        assert_eq!(text("What?"), Text::Here("What?".into()));
        assert_eq!(text("-"), Text::Stdin);
        assert_eq!(text("-1 + 2?"), Text::Here("-1 + 2?".into()));
        assert_eq!(text("@a b.txt"), Text::File("a b.txt".into()));
        assert_eq!(text("@@home"), Text::Here("@home".into()));
        assert_eq!(text(""), Text::Here(String::new()));
    }

    #[test]
    fn paths_are_read_as_they_are_typed() {
        let path = |text| typed_path(text).display().to_string();
        assert_eq!(path(" a b.png "), "a b.png");
        assert_eq!(path("'a b.png'"), "a b.png");
        assert_eq!(path("\"it's.png\""), "it's.png");
        assert_eq!(path("'"), "'");
        if !cfg!(windows) {
            assert_eq!(path(r"a\ b\\c.png"), r"a b\c.png");
        }
        let home = std::env::home_dir().expect("a home folder");
        assert_eq!(typed_path("~/a.png"), home.join("a.png"));
        assert_eq!(typed_path("'~/a b.png'"), home.join("a b.png"));
        assert_eq!(path("~root/a.png"), "~root/a.png");
    }
}
