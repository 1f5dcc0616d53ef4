//! Messages → prompt text, by the checkpoint's own chat template.

use super::json::{self, MAX_CONFIG, bad};
use super::message::json_bytes;
pub use super::message::{Message, Part};
use super::template::{self, Template, TemplateError};
use super::tools;
pub use super::tools::calls_text;
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

/// The form in which templates see a turn: no text or a single one is a string, anything else a list, as templates
/// distinguish the two. Thoughts are `reasoning_content`, calls are `tool_calls` in OpenAI's form.
impl From<&Message> for template::Value {
    fn from(message: &Message) -> Self {
        let (mut shown, mut calls, mut reasoning) = (Vec::new(), Vec::new(), None::<String>);
        for part in &message.content {
            match part {
                Part::Text { text } => {
                    shown.push(Self::map([("type", "text".into()), ("text", (&**text).into())]));
                }
                Part::Image => shown.push(Self::map([("type", "image".into())])),
                Part::Video => shown.push(Self::map([("type", "video".into())])),
                Part::Reasoning { text } => reasoning.get_or_insert_default().push_str(text),
                Part::ToolCall { id, name, arguments } => {
                    let function =
                        Self::map([("name", (&**name).into()), ("arguments", Self::from(arguments))]);
                    calls.push(Self::map([
                        ("id", (&**id).into()),
                        ("type", "function".into()),
                        ("function", function),
                    ]));
                }
            }
        }
        let texts = || {
            message
                .content
                .iter()
                .filter_map(|part| if let Part::Text { text } = part { Some(&**text) } else { None })
        };
        let content = match shown.len() {
            0 => "".into(),
            1 if texts().count() == 1 => texts().collect::<String>().into(),
            _ => Self::list(shown),
        };
        let mut entries = vec![("role", (&*message.role).into()), ("content", content)];
        entries.extend(reasoning.map(|text| ("reasoning_content", text.into())));
        if !calls.is_empty() {
            entries.push(("tool_calls", Self::list(calls)));
        }
        Self::map(entries)
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
    /// Whether it has a form for tools, their calls and their results.
    knows_tools: bool,
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
            Ok(template) => Ok(Self { template, file, knows_tools: source.contains("tool_calls") }),
            Err(error) => Err(refused(&file, &error)),
        }
    }

    /// The prompt up to where the assistant speaks, with one placeholder per image and video, for a context of so many tokens.
    ///
    /// # Errors
    /// [`Error::Prompt`] if the messages are longer than [`most_bytes`]; [`Error::Checkpoint`] if the template makes more of them,
    /// refuses them, asks for what is not supported, or costs too much time or memory.
    pub fn render(&self, messages: &[Message], context: usize) -> Result<String> {
        self.render_with(messages, &[], context)
    }

    /// As [`render`](Self::render), with tools in OpenAI's form. For a template that has no form for tools, they are
    /// told of in the system message, in the form of Qwen's published templates.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_with(&self, messages: &[Message], tools: &[Value], context: usize) -> Result<String> {
        let most = most_bytes(context);
        let defined: usize = tools.iter().map(json_bytes).sum();
        check_length(messages.iter().map(Message::bytes).sum::<usize>() + defined, most)?;
        let plain = (!self.knows_tools).then(|| tools::as_text(messages, tools));
        let (messages, tools) = plain.as_deref().map_or((messages, tools), |messages| (messages, &[]));
        let messages = template::Value::list(messages.iter().map(template::Value::from).collect());
        let mut variables = vec![("messages", messages), ("add_generation_prompt", true.into())];
        if !tools.is_empty() {
            variables
                .push(("tools", template::Value::list(tools.iter().map(template::Value::from).collect())));
        }
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
