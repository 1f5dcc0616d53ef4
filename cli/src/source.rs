//! Where a prompt and its pictures come from: the command line, a file or stdin.

use super::failure::Failure;
use super::files::note_input;
use pascaline::Error;
use qwen3_vl::Visual;
use qwen3_vl::files::open_regular;
use qwen3_vl::video::FrameSampling;
use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use url::Url;

/// The most bytes of a prompt: far more than any model's context.
const MAX_TEXT: u64 = 64 << 20;

/// The most bytes of a picture file.
const MAX_FILE: u64 = 256 << 20;

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

/// A picture file, the picture on stdin for `-`, or that at an http or https address. An animated one is a video.
pub(super) fn image(file: &Path, sampling: &FrameSampling) -> Result<Visual, Failure> {
    let failed = |reason: String| Failure::Failed(reason);
    let text = file.to_str().unwrap_or_default();
    let (name, bytes) = if is_stdin(file) {
        let bytes = read_to_end(io::stdin().lock(), MAX_FILE);
        (
            "stdin".to_owned(),
            bytes.map_err(|error| failed(format!("the image on stdin can't be read: {error}")))?,
        )
    } else if text.starts_with("http://") || text.starts_with("https://") {
        (text.to_owned(), fetch(text).map_err(|reason| failed(format!("{text}: {reason}")))?)
    } else {
        let file = local(file);
        note_input(&file);
        let bytes = open_regular(&file).and_then(|opened| read_to_end(opened, MAX_FILE));
        let name = file.display().to_string();
        let bytes = bytes.map_err(|error| Error::Image { file: name.clone(), reason: error.to_string() })?;
        (name, bytes)
    };
    Ok(Visual::from_bytes(&name, &bytes, sampling)?)
}

/// A video: a folder of pictures, an animated picture, or a file that ffmpeg reads.
pub(super) fn video(file: &Path, sampling: &FrameSampling) -> Result<Visual, Failure> {
    let file = local(file);
    note_input(&file);
    Ok(Visual::video_file(&file, sampling)?)
}

/// The path of a `file://` address, or the path as it is.
fn local(file: &Path) -> PathBuf {
    let url = file.to_str().filter(|text| text.starts_with("file://"));
    url.and_then(|text| Url::parse(text).ok()?.to_file_path().ok()).unwrap_or_else(|| file.to_owned())
}

#[cfg(feature = "serve")]
fn fetch(address: &str) -> Result<Vec<u8>, String> {
    pascaline_server::fetch_picture(address, MAX_FILE as usize)
}

#[cfg(not(feature = "serve"))]
fn fetch(_: &str) -> Result<Vec<u8>, String> {
    Err("this build fetches no pictures, as it has no `serve`".to_owned())
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
        _ if text.starts_with("file://") => local(Path::new(text)),
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
        if !cfg!(windows) {
            assert_eq!(path("file:///tmp/a%20b.png\n"), "/tmp/a b.png");
        }
    }
}
