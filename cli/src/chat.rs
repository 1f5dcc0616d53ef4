//! `pascaline chat`: a conversation with images.

use super::chat_commands::{Request, help};
use super::conversation::{Conversation, Setting, Turn, sentence};
use super::editor::{Editor, Input};
use super::failure::Failure;
use super::fit;
use super::model::{ModelArgs, Work};
use super::output::Output;
use super::sampling::SamplingArgs;
use super::saved;
use super::source::{Text, typed_path};
use qwen3_vl::Options;
use serde::Serialize;
use std::path::PathBuf;

/// Holds a conversation. The cache is kept between turns, so nothing is computed twice.
///
/// On a terminal, messages can be edited, the arrow keys recall earlier ones, and pasted text is one message; Ctrl-C ends
/// an answer and keeps the conversation, which is saved after each answer. In a pipe or file each line is a message. /help
/// lists the commands. The exit status is 1 if a turn failed.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// The system message, which says how the model should answer: a text, or @FILE for a file's.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<Text>,

    /// Go on with a conversation that was saved in FILE, or with the last one. It is saved there from now on.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    resume: Option<Option<PathBuf>>,

    /// Save neither the conversation, but for /save, nor the messages that the arrow keys recall.
    #[arg(long)]
    no_save: bool,

    #[command(flatten)]
    sampling: SamplingArgs,

    /// Guess tokens from what followed the last ones where these occurred before, and check several in one pass: faster
    /// where an answer repeats parts of its prompt or of itself.
    #[arg(long)]
    prompt_lookup: bool,

    /// Leave out what the model thinks before it answers. Otherwise a terminal shows it dimmed, and a pipe gets it as the
    /// model writes it, up to `</think>`.
    #[arg(long)]
    hide_thinking: bool,

    #[command(flatten)]
    output: Output,
}

#[derive(Serialize)]
struct Json<'a> {
    device: String,
    /// The seed that reproduces the tokens; none if no tokens are drawn.
    seed: Option<u64>,
    turns: &'a [Turn],
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.system == Some(Text::Stdin) {
        return Err(Failure::Usage("stdin holds the messages; --system takes a text or @FILE".to_owned()));
    }
    args.model.check()?;
    let system = args.system.as_ref().map(Text::read).transpose()?;
    let resumed = match &args.resume {
        None => None,
        Some(file) => {
            let file = file.clone().map_or_else(saved::last_file, Ok)?;
            Some((saved::read(&file)?, file))
        }
    };
    let output = &args.output;
    let mut report = output.report()?;
    let device = args.model.device(output)?;
    let opened = args.model.open(&device, output)?;
    let works = fit::conversations(&opened.config, opened.image_tokens.max);
    let work = Work { most: works.first().copied(), exactly: &|_| Ok(works.clone()) };
    let loaded = args.model.load(&opened, &device, &work, output)?;
    let model = loaded.model;
    let planned = loaded.work.map_or(0, |work| work.context);
    let options = Options { prompt_lookup: args.prompt_lookup, ..args.sampling.options(&model) };
    args.sampling.say_seed(&options, output);
    let seed = (!options.sampling.is_greedy()).then_some(options.sampling.seed);
    let mut session = model.session().map_err(|error| args.model.failure(error))?;
    // the context that was planned, at once: a cache that grows would have both sizes of a layer for a moment, and leave gaps
    session.reserve(planned).map_err(|error| args.model.failure(error))?;
    let (mut editor, unkept) = Editor::new(!args.no_save)?;
    let setting = Setting {
        model: &args.model,
        sampling: &args.sampling,
        output,
        system: system.as_deref(),
        hides_thinking: args.hide_thinking,
        is_kept: editor.is_terminal() && !args.no_save,
        planned,
    };
    let mut chat = Conversation::new(setting, model, options, session);
    if let Some((saved, file)) = resumed {
        chat.resume(saved, file);
    }
    if let Some(error) = unkept {
        output.note(&format!("messages are not kept for the arrow keys of later conversations: {error}"));
    }
    if editor.is_terminal() {
        output.note("Ctrl-C ends an answer, Ctrl-D the conversation; /help lists the commands");
    }
    let (mut failed, mut leaving) = (0, false);
    loop {
        let message = match editor.read()? {
            Input::End => break,
            Input::Interrupt if leaving => break,
            Input::Interrupt => {
                output.note("Ctrl-C once more, or Ctrl-D, ends the conversation");
                leaving = true;
                continue;
            }
            Input::Message(message) => message,
        };
        leaving = false;
        let result = match Request::parse(&message) {
            Request::Nothing => Ok(()),
            Request::Quit => break,
            request @ (Request::Turn(_) | Request::Continue | Request::Retry | Request::Edit) => {
                let result = match request {
                    Request::Turn(text) => chat.turn(text, &editor)?,
                    Request::Retry => chat.retry(&editor)?,
                    Request::Edit => chat.edit(&editor)?,
                    _ => chat.go_on(&editor)?,
                };
                chat.keep();
                if let Some(report) = &mut report {
                    let device = device.to_string();
                    report.write_partial(&Json { device, seed, turns: &chat.turns })?;
                }
                result
            }
            // a typing error is no failure on a terminal, where the user sees the message
            request => command(&mut chat, &request, output, &editor).or_else(|error| {
                output.complain(&error);
                if editor.is_terminal() { Ok(()) } else { Err(()) }
            }),
        };
        failed += usize::from(result.is_err());
    }
    if let Some(file) = chat.kept_in() {
        output.note(&format!("saved in {}; --resume goes on with it", file.display()));
    }
    if let Some(report) = report {
        report.write(&Json { device: device.to_string(), seed, turns: &chat.turns })?;
    }
    match failed {
        0 => Ok(()),
        _ if editor.is_terminal() => Err(Failure::Wrong), // the errors are printed already
        1 => Err(Failure::Failed("a turn or command failed".into())),
        _ => Err(Failure::Failed(format!("{failed} turns or commands failed"))),
    }
}

/// Runs a command that needs no answer.
fn command(
    chat: &mut Conversation,
    request: &Request,
    output: &Output,
    editor: &Editor,
) -> Result<(), String> {
    match request {
        Request::Help => output.say(&help()),
        Request::Image(file) => chat.show(file, false, editor)?,
        Request::Video(file) => chat.show(file, true, editor)?,
        Request::Drop => chat.leave_out(),
        Request::Reset => chat.reset(),
        Request::Undo => chat.undo()?,
        Request::Save(file) => {
            let file = (!file.is_empty()).then(|| typed_path(file));
            let file = chat.save(file).map_err(sentence)?;
            output.note(&format!("saved in {}", file.display()));
        }
        Request::Unknown(text) => {
            return Err(format!(
                "{text} is no command; /help lists them, a space before it makes it a message"
            ));
        }
        Request::Nothing
        | Request::Quit
        | Request::Continue
        | Request::Retry
        | Request::Edit
        | Request::Turn(_) => {}
    }
    Ok(())
}
