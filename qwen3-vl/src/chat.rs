//! Messages → prompt text, by the checkpoint's own chat template.

use super::json::{self, MAX_CONFIG, bad};
use super::template::{self, Template, TemplateError};
use super::tokenizer::Tokenizer;
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

/// The most tokens of all images and videos of a prompt; no model has as many positions.
const MAX_PADS: usize = 1 << 24;

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

/// Replaces each placeholder by the pad tokens of its image or video. Each group of a video's frames follows its time
/// stamp.
///
/// # Errors
/// [`Error::Prompt`] if the placeholders do not match the images and videos in number and order.
pub fn expand(prompt: &str, media: &[Media], tokenizer: &Tokenizer) -> Result<String> {
    let Tokenizer { image_pad, video_pad, vision_start, vision_end, .. } = tokenizer;
    let video = format!("{vision_start}{video_pad}{vision_end}");
    let mut expanded = String::with_capacity(prompt.len());
    let mut pads = 0usize;
    let mut rest = prompt;
    for (number, item) in media.iter().enumerate() {
        let placeholder = match item {
            Media::Image { .. } => image_pad.as_str(),
            Media::Video { .. } => video.as_str(),
        };
        let Some((before, after)) = rest.split_once(placeholder) else {
            let reason = format!("it has no placeholder {placeholder} for image or video {}", number + 1);
            return Err(Error::Prompt { reason });
        };
        refuse_pads(before, tokenizer)?;
        expanded.push_str(before);
        match item {
            Media::Image { tokens } => {
                pads = more_pads(pads, *tokens, 1)?;
                expanded.push_str(&image_pad.repeat(*tokens));
            }
            Media::Video { timestamps, tokens } => {
                pads = more_pads(pads, *tokens, timestamps.len())?;
                for time in timestamps {
                    let pads = video_pad.repeat(*tokens);
                    expanded.push_str(&format!("<{time:.1} seconds>{vision_start}{pads}{vision_end}"));
                }
            }
        }
        rest = after;
    }
    refuse_pads(rest, tokenizer)?;
    expanded.push_str(rest);
    Ok(expanded)
}

fn more_pads(pads: usize, tokens: usize, groups: usize) -> Result<usize> {
    let all = tokens.checked_mul(groups).and_then(|more| more.checked_add(pads));
    all.filter(|&pads| pads <= MAX_PADS).ok_or_else(|| Error::Prompt {
        reason: format!("{groups} × {tokens} tokens of images and videos are more than {MAX_PADS}"),
    })
}

fn refuse_pads(text: &str, tokenizer: &Tokenizer) -> Result<()> {
    for pad in [&tokenizer.image_pad, &tokenizer.video_pad] {
        if text.contains(pad.as_str()) {
            return Err(Error::Prompt {
                reason: format!("it has a placeholder {pad} that no image is given for"),
            });
        }
    }
    Ok(())
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
