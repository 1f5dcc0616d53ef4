//! The commands of `chat`.

use super::source::typed_path;

/// Each command, what it takes, and what it does.
pub(super) const COMMANDS: [(&str, &str, &str); 11] = [
    ("/image", "FILE", "shows a picture with the next message; may be given more than once"),
    ("/video", "FILE", "shows a video with the next message"),
    ("/drop", "", "leaves out the pictures that wait for the next message"),
    ("/continue", "", "goes on with an answer that was cut"),
    ("/retry", "", "answers the last message again"),
    ("/edit", "", "changes the last message in $VISUAL or $EDITOR, and answers it again"),
    ("/undo", "", "takes the last message and its answer back"),
    ("/save", "[FILE]", "saves the conversation, from now on in FILE"),
    ("/reset", "", "begins the conversation anew"),
    ("/help", "", "lists these commands"),
    ("/quit", "", "ends the conversation, as Ctrl-D does"),
];

/// The list for the user.
pub(super) fn help() -> String {
    let line = |(command, argument, does): &(&str, &str, &str)| {
        let form = format!("{command} {argument}");
        format!("{form:<13} {does}\n")
    };
    let list: String = COMMANDS.iter().map(line).collect();
    list + "A space before the / makes it a message. A \\ at a line's end, or Alt-Enter, begins another line; Tab\n\
            completes commands and paths, and a picture's path alone, such as a dropped one, is its /image."
}

/// The kinds of messages.
#[derive(Debug, PartialEq)]
pub(super) enum Request<'a> {
    Nothing,
    Help,
    Image(&'a str),
    Video(&'a str),
    Save(&'a str),
    Drop,
    Continue,
    Retry,
    Edit,
    Undo,
    Reset,
    Quit,
    Unknown(&'a str),
    /// A message to answer.
    Turn(&'a str),
}

impl<'a> Request<'a> {
    pub fn parse(message: &'a str) -> Self {
        let text = message.trim();
        if text.is_empty() {
            return Self::Nothing;
        }
        if is_dropped(message) {
            return Self::Image(text);
        }
        if !message.starts_with('/') {
            return Self::Turn(text);
        }
        let (command, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match (command, argument.trim()) {
            ("/image", file) => Self::Image(file),
            ("/video", file) => Self::Video(file),
            ("/save", file) => Self::Save(file),
            ("/help", "") => Self::Help,
            ("/drop", "") => Self::Drop,
            ("/continue", "") => Self::Continue,
            ("/retry", "") => Self::Retry,
            ("/edit", "") => Self::Edit,
            ("/undo", "") => Self::Undo,
            ("/reset", "") => Self::Reset,
            ("/quit", "") => Self::Quit,
            _ => Self::Unknown(text),
        }
    }
}

/// Whether a message is the path of a file alone, as a file manager drops it on a terminal.
fn is_dropped(message: &str) -> bool {
    let begins = ["/", "'/", "\"/", "file://"].iter().any(|begin| message.starts_with(begin));
    begins && typed_path(message).is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_begin_with_a_slash() {
        for (message, request) in [
            ("  \n", Request::Nothing),
            ("What is this?\n", Request::Turn("What is this?")),
            (" /image is a folder\n", Request::Turn("/image is a folder")),
            ("/image  '~/a b.png' \n", Request::Image("'~/a b.png'")),
            ("/image\n", Request::Image("")),
            ("/save a.jsonl\n", Request::Save("a.jsonl")),
            ("/continue ", Request::Continue),
            ("/undo", Request::Undo),
            ("/quit", Request::Quit),
            ("/quit now", Request::Unknown("/quit now")),
            ("/images a", Request::Unknown("/images a")),
            ("/none/a.png", Request::Unknown("/none/a.png")),
            ("a\n/quit\nb", Request::Turn("a\n/quit\nb")),
        ] {
            assert_eq!(Request::parse(message), request, "{message}");
        }
    }

    #[test]
    fn every_command_is_known() {
        for (command, ..) in COMMANDS {
            assert!(!matches!(Request::parse(command), Request::Unknown(_) | Request::Turn(_)), "{command}");
            assert!(help().contains(command));
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_dropped_path_is_a_picture() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("a b.png");
        std::fs::write(&file, "").expect("a file");
        let path = file.display().to_string();
        for text in
            [path.replace(' ', "\\ "), format!("'{path}'"), format!("file://{}", path.replace(' ', "%20"))]
        {
            assert_eq!(Request::parse(&format!("{text} \n")), Request::Image(&text));
        }
        assert!(matches!(Request::parse(&format!("'{path}' is what?")), Request::Turn(_)));
    }
}
