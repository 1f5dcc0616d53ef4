//! Messages → prompt text, by the checkpoint's own chat template.

use super::json::{self, MAX_CONFIG, bad};
use super::template::{self, Template, TemplateError};
use pascaline::{Error, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The most bytes of text for each token of the context. Published tokenizers take some 4 for prose and 3 for code; their pads have 13.
const BYTES_PER_TOKEN: usize = 16;
/// The most bytes of a prompt for any context, and those that any context allows.
const PROMPT_BYTES: [usize; 2] = [1 << 20, 16 << 20];

/// The most bytes of a prompt for a context of so many tokens. The tokenizer takes some hundred times as much memory.
pub fn most_bytes(context: usize) -> usize {
    let [least, most] = PROMPT_BYTES;
    context.saturating_mul(BYTES_PER_TOKEN).clamp(least, most)
}

/// A turn of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The message's parts, in order.
    pub content: Vec<Part>,
}

/// A piece of a turn.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// The next image.
    Image,
    /// The next video.
    Video,
}

impl Message {
    /// A turn with text only.
    pub fn text(role: &str, text: impl Into<String>) -> Self {
        Self { role: role.to_owned(), content: vec![Part::Text { text: text.into() }] }
    }

    /// A user's turn: `images` images, then text.
    pub fn user(images: usize, text: impl Into<String>) -> Self {
        let mut content = vec![Part::Image; images];
        content.push(Part::Text { text: text.into() });
        Self { role: "user".into(), content }
    }
}

/// The form in which templates see a turn: a single text is a string, anything else a list, as templates distinguish the
/// two.
impl From<&Message> for template::Value {
    fn from(message: &Message) -> Self {
        let part = |part: &Part| match part {
            Part::Text { text } => Self::map([("type", "text".into()), ("text", (&**text).into())]),
            Part::Image => Self::map([("type", "image".into())]),
            Part::Video => Self::map([("type", "video".into())]),
        };
        let content = match &message.content[..] {
            [Part::Text { text }] => (&**text).into(),
            parts => Self::list(parts.iter().map(part).collect()),
        };
        Self::map([("role", (&*message.role).into()), ("content", content)])
    }
}

/// The replacement of a placeholder in the rendered prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Media {
    /// An image.
    Image {
        /// Its number of tokens.
        tokens: usize,
    },
    /// A video: each group of frames is announced by its time.
    Video {
        /// When each group is shown, in seconds.
        timestamps: Vec<f64>,
        /// The number of tokens of each group.
        tokens: usize,
    },
}

/// The checkpoint's chat template.
pub struct ChatTemplate {
    template: Template,
    file: PathBuf,
}

impl ChatTemplate {
    /// Reads `chat_template.jinja`, or the template in `chat_template.json` or `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if there is none or it is malformed.
    pub fn load(dir: &Path) -> Result<Self> {
        let (file, source) = source(dir)?;
        Self::parse(file, &source)
    }

    /// Parses a template that was read from `file`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] if it is malformed.
    pub(crate) fn parse(file: PathBuf, source: &str) -> Result<Self> {
        match Template::parse(source) {
            Ok(template) => Ok(Self { template, file }),
            Err(error) => Err(refused(&file, &error)),
        }
    }

    /// The prompt up to where the assistant speaks, with one placeholder per image and video, for a context of so many tokens.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the messages are longer than [`most_bytes`]; [`Error::Checkpoint`] if the template makes more of them,
    /// refuses them, asks for what is not supported, or costs too much time or memory.
    pub fn render(&self, messages: &[Message], context: usize) -> Result<String> {
        let most = most_bytes(context);
        let parts = messages.iter().flat_map(|message| &message.content);
        let bytes = parts.map(|part| if let Part::Text { text } = part { text.len() } else { 0 }).sum();
        check_length(bytes, most)?;
        let messages = template::Value::list(messages.iter().map(template::Value::from).collect());
        let variables = vec![("messages", messages), ("add_generation_prompt", true.into())];
        self.template.render(variables, most).map_err(|error| refused(&self.file, &error))
    }
}

/// Refuses a text that is longer than any prompt for the context.
pub(crate) fn check_length(bytes: usize, most: usize) -> Result<()> {
    match bytes > most {
        true => Err(Error::Prompt {
            reason: format!(
                "its text has {bytes} bytes, and the model's context holds at most {most}; shorten it"
            ),
        }),
        false => Ok(()),
    }
}

fn refused(file: &Path, error: &TemplateError) -> Error {
    bad(file, Some("chat_template"), error.to_string())
}

/// The template's text and the file that it is in.
pub(crate) fn source(dir: &Path) -> Result<(PathBuf, String)> {
    let plain = dir.join("chat_template.jinja");
    if plain.exists() {
        let source = json::read_text(&plain, MAX_CONFIG)?;
        return Ok((plain, source));
    }
    for name in ["chat_template.json", "tokenizer_config.json"] {
        let file = dir.join(name);
        if !file.exists() {
            continue;
        }
        let map = json::read_object(&file, MAX_CONFIG)?;
        let template = match map.get("chat_template") {
            Some(Value::Array(named)) => named
                .iter()
                .find(|entry| entry["name"] == "default")
                .and_then(|entry| entry["template"].as_str()),
            other => other.and_then(Value::as_str),
        };
        if let Some(template) = template {
            let template = template.to_owned();
            return Ok((file, template));
        }
    }
    Err(bad(&plain, None, "missing, and no other file has a chat_template"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str, messages: &[Message]) -> Result<String> {
        let folder =
            std::env::temp_dir().join(format!("pascaline-chat-{}-{}", std::process::id(), template.len()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
        let template = ChatTemplate::load(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        template?.render(messages, 4096)
    }

    /// The features that published templates use: names that are not given, `in` on a part, namespaces, Python's string
    /// methods, blocks that leave no empty line.
    #[test]
    fn published_constructs_are_understood() {
        let template = "{%- if tools %}tools{%- endif %}
{%- set images = namespace(value=0) %}
{%- for message in messages %}
    {%- if message.content is string %}
        {{- message.role + ': ' + message.content.split('</think>')[-1].lstrip('\\n') }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {%- set images.value = images.value + 1 %}
                {%- if add_vision_id %}Picture {{ images.value }}: {% endif -%}
                <image {{ images.value }}>
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '|' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- 'go\\n' }}
{%- endif %}
";
        let messages = [Message::text("system", "<think>x</think>\nshort"), Message::user(2, "a <b>")];
        assert_eq!(rendered(template, &messages).unwrap(), "system: short|<image 1><image 2>a <b>|go\n");
        assert_eq!(rendered("{% if true %}\n  a\n  {% endif %}\nb", &[]).unwrap(), "  a\nb"); // trim, lstrip
    }

    #[test]
    fn templates_that_fail_or_never_end_are_errors() {
        for (template, part) in [
            ("{{ raise_exception('no system turn') }}", "no system turn"),
            (
                "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
                "too many steps",
            ),
            ("{% if %}", "chat_template"),
            ("{{ nothing.at.all }}", "undefined"),
        ] {
            match rendered(template, &[]) {
                Err(error @ Error::Checkpoint { .. }) => assert!(error.to_string().contains(part), "{error}"),
                other => panic!("{template}: {other:?}"),
            }
        }
    }
}
