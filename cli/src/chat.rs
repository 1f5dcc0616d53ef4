//! `pascaline chat`: a conversation with images.

use super::answer::{Answer, cut, summary};
use super::editor::{Editor, Input};
use super::failure::Failure;
use super::fit;
use super::image_tokens::shrunk;
use super::model::{ModelArgs, Work};
use super::output::Output;
use super::sampling::SamplingArgs;
use super::source::{Text, image, typed_path, video};
use pascaline::{Device, Error, memory};
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::generate::{Step, user_turn};
use qwen3_vl::reasoning::ReasoningStream;
use qwen3_vl::sampling::Sampler;
use qwen3_vl::video::FrameSampling;
use qwen3_vl::{
    LanguageModel, Options, Output as Generated, Prompt, Session, Statistics, StopReason, Visual,
};
use serde::Serialize;
use std::ops::ControlFlow;

/// Holds a conversation. The cache is kept between turns, so nothing is computed twice.
///
/// On a terminal, messages can be edited, the arrow keys recall earlier ones, and pasted text is one message; Ctrl-C ends
/// an answer and keeps the conversation. In a pipe or file each line is a message. /help lists the commands. The exit
/// status is 1 if a turn failed.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// The system message, which says how the model should answer: a text, or @FILE for a file's.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<Text>,

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

const HELP: &str = "\
/image FILE  shows a picture with the next message; may be given more than once
/video FILE  shows a video with the next message
/drop        leaves out the pictures that wait for the next message
/continue    goes on with an answer that was cut
/reset       begins the conversation anew
/help        lists these commands
/quit        ends the conversation, as Ctrl-D does
A space before the / makes it a message.";

/// The kinds of messages.
#[derive(Debug, PartialEq)]
enum Request<'a> {
    Nothing,
    Help,
    Image(&'a str),
    Video(&'a str),
    Drop,
    Continue,
    Reset,
    Quit,
    Unknown(&'a str),
    /// A message to answer.
    Turn(&'a str),
}

impl<'a> Request<'a> {
    fn parse(message: &'a str) -> Self {
        let text = message.trim();
        if text.is_empty() || !message.starts_with('/') {
            return if text.is_empty() { Self::Nothing } else { Self::Turn(text) };
        }
        let (command, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        match (command, argument.trim()) {
            ("/image", file) => Self::Image(file),
            ("/video", file) => Self::Video(file),
            ("/help", "") => Self::Help,
            ("/drop", "") => Self::Drop,
            ("/continue", "") => Self::Continue,
            ("/reset", "") => Self::Reset,
            ("/quit", "") => Self::Quit,
            _ => Self::Unknown(text),
        }
    }
}

#[derive(Serialize)]
struct Json<'a> {
    device: String,
    /// The seed that reproduces the tokens; none if no tokens are drawn.
    seed: Option<u64>,
    turns: &'a [Turn],
}

#[derive(Serialize)]
struct Turn {
    message: String,
    images: usize,
    /// The answer; none if the turn failed.
    text: Option<String>,
    generated_ids: Vec<u32>,
    stop_reason: Option<StopReason>,
    statistics: Option<Statistics>,
    error: Option<String>,
}

/// The conversation so far.
struct Chat<'a> {
    args: &'a Args,
    system: Option<String>,
    model: LanguageModel,
    options: Options,
    session: Session,
    messages: Vec<Message>,
    visuals: Vec<Visual>,
    /// Pictures and videos of earlier turns; those after them wait for the next turn.
    shown: usize,
    turns: Vec<Turn>,
    /// Tokens that the cache has room for from the beginning.
    planned: usize,
    /// The last answer, if it was cut: its prompt, and its tokens.
    cut: Option<(Prompt, Vec<u32>)>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.system == Some(Text::Stdin) {
        return Err(Failure::Usage("stdin holds the messages; --system takes a text or @FILE".to_owned()));
    }
    args.model.check()?;
    let system = args.system.as_ref().map(Text::read).transpose()?;
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
    let (messages, visuals, turns) = (beginning(system.as_deref()), Vec::new(), Vec::new());
    let mut chat = Chat {
        args,
        system,
        model,
        options,
        session,
        messages,
        visuals,
        shown: 0,
        turns,
        planned,
        cut: None,
    };

    let mut editor = Editor::new()?;
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
            request @ (Request::Turn(_) | Request::Continue) => {
                let result = match request {
                    Request::Turn(text) => chat.turn(text, &editor)?,
                    _ => chat.go_on(&editor)?,
                };
                if let Some(report) = &mut report {
                    let device = device.to_string();
                    report.write_partial(&Json { device, seed, turns: &chat.turns })?;
                }
                result
            }
            // a typing error is no failure on a terminal, where the user sees the message
            command => chat.command(&command).or_else(|error| {
                output.complain(&error);
                if editor.is_terminal() { Ok(()) } else { Err(()) }
            }),
        };
        failed += usize::from(result.is_err());
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

fn beginning(system: Option<&str>) -> Vec<Message> {
    system.iter().map(|text| Message::text("system", *text)).collect()
}

impl Chat<'_> {
    /// Runs a command.
    fn command(&mut self, request: &Request) -> Result<(), String> {
        let output = &self.args.output;
        match request {
            Request::Help => output.say(HELP),
            Request::Image("") => return Err("/image needs a file".into()),
            Request::Image(file) => self.show(image(&typed_path(file), &FrameSampling::default()))?,
            Request::Video("") => return Err("/video needs a file".into()),
            Request::Video(file) => self.show(video(&typed_path(file), &FrameSampling::default()))?,
            Request::Drop => {
                output.note(&format!("left out: {}", pictures(self.visuals.len() - self.shown)));
                self.visuals.truncate(self.shown);
            }
            Request::Reset => {
                self.messages = beginning(self.system.as_deref());
                self.visuals.clear();
                self.shown = 0;
                self.cut = None;
                output.note("forgotten");
            }
            Request::Unknown(text) => {
                return Err(format!(
                    "{text} is no command; /help lists them, a space before it makes it a message"
                ));
            }
            Request::Nothing | Request::Quit | Request::Continue | Request::Turn(_) => {}
        }
        Ok(())
    }

    /// Adds a picture or video to the next turn, if it can be used.
    fn show(&mut self, visual: Result<Visual, Failure>) -> Result<(), String> {
        let text = |failure: Failure| failure.sentence().unwrap_or_default().to_owned();
        let visual = [visual.map_err(text)?];
        let processor = &self.model.processor;
        let prompt = processor.prepare(&[user_turn(&visual, "")], &visual);
        let tokens = prompt.map_err(|error| error.to_string())?.ids;
        let tokens = tokens.into_iter().filter(|&id| processor.is_pad(id)).count();
        let [visual] = visual;
        let told = match &visual {
            Visual::Image { name, picture } => {
                let size = shrunk(name, picture, processor).map_err(text)?;
                let to = size.map_or_else(String::new, |(size, _)| format!(" shrunk to {size}"));
                format!("{name}: {} × {} pixels{to}", picture.width, picture.height)
            }
            Visual::Video { name, frames, rate } => {
                format!("{name}: {} frames, {rate:.2} per second", frames.len())
            }
        };
        self.args.output.note(&format!("{told}, {tokens} tokens; shown with the next message"));
        self.visuals.push(visual);
        Ok(())
    }

    /// Frees the cache, which may have grown for a turn that did not fit, so that the next turn has the room.
    fn give_memory_back(&mut self) -> pascaline::Result<()> {
        self.session = self.model.session()?;
        if let Device::Cuda(device) = self.model.device() {
            memory::pool(device)?.trim()?;
        }
        match self.session.reserve(self.planned) {
            Err(Error::OutOfMemory { .. }) => Ok(()), // it grows with the turns, as far as it can
            other => other,
        }
    }

    /// Answers a message. A failed turn is undone: its pictures wait for the next one, and the cache is kept unless memory
    /// ran out.
    ///
    /// # Errors
    /// Errors that end the conversation: a lost device, or closed output. The inner error is already reported.
    fn turn(&mut self, text: &str, editor: &Editor) -> Result<Result<(), ()>, Failure> {
        let output = &self.args.output;
        let images = self.visuals.len() - self.shown;
        self.messages.push(user_turn(&self.visuals[self.shown..], text));
        let before = self.cut.take();
        let mut turn = Turn {
            message: text.to_owned(),
            images,
            text: None,
            generated_ids: Vec::new(),
            stop_reason: None,
            statistics: None,
            error: None,
        };
        let prepared = self.model.processor.prepare(&self.messages, &self.visuals);
        let begins_in_thought =
            prepared.as_ref().is_ok_and(|prompt| self.model.processor.begins_in_thought(&prompt.ids));
        let (mut answer, found) = self.generate(prepared, begins_in_thought, editor);
        let result = match found {
            Ok((prompt, found)) => {
                answer.end()?;
                let cancelled = found.stop_reason == StopReason::Cancelled;
                if cancelled && found.ids.is_empty() {
                    self.messages.pop();
                    self.cut = before;
                    output.note("ended before the answer began; the message is taken back");
                } else {
                    let end = if cancelled { "ended by Ctrl-C; " } else { "" };
                    output.note(&format!("{end}{}", summary(&found.statistics)));
                    self.messages.push(assistant_turn(&found.text, begins_in_thought));
                    self.shown = self.visuals.len();
                    self.remember_cut(prompt, found.ids.clone(), found.stop_reason);
                }
                turn.text = Some(found.text);
                turn.generated_ids = found.ids;
                turn.stop_reason = Some(found.stop_reason);
                turn.statistics = Some(found.statistics);
                Ok(())
            }
            Err(error) if pascaline::cuda::is_lost() => return Err(error.into()),
            Err(error) => {
                answer.abandon();
                self.messages.pop();
                self.cut = before;
                if let Error::OutOfMemory { .. } = error {
                    self.give_memory_back()?;
                }
                let error = self.args.model.explain(&error);
                output.complain(&error);
                if images > 0 {
                    output.note(&format!(
                        "{} still wait for the next message; /drop leaves them out",
                        pictures(images)
                    ));
                }
                turn.error = Some(error);
                Err(())
            }
        };
        self.turns.push(turn);
        Ok(result)
    }

    /// Generates after a prompt, printed as it comes, until Ctrl-C.
    fn generate(
        &mut self,
        prompt: pascaline::Result<Prompt>,
        begins_in_thought: bool,
        editor: &Editor,
    ) -> (Answer, pascaline::Result<(Prompt, Generated)>) {
        let output = &self.args.output;
        let answer = match (output.stdout_is_taken(), output.is_quiet()) {
            (false, _) => Answer::on_stdout(),
            (true, false) => Answer::on_stderr(),
            (true, true) => Answer::nowhere(),
        };
        let mut answer = answer.with_progress(output);
        answer.tell_thoughts(begins_in_thought, self.args.hide_thinking);
        editor.begin_answer();
        let found = prompt.and_then(|prompt| {
            self.args.sampling.say_room(&self.model, &prompt, output)?;
            let sampler = Sampler::new(self.options.sampling.clone(), &prompt.ids)?;
            let receive = |step: Step| match editor.is_interrupted() {
                true => ControlFlow::Break(()),
                false => answer.step(&step),
            };
            let found =
                self.model.generate_with(&mut self.session, &prompt, &self.options, sampler, receive)?;
            Ok((prompt, found))
        });
        (answer, found)
    }

    /// Says that a limit cut the answer, and keeps what `/continue` goes on from.
    fn remember_cut(&mut self, prompt: Prompt, ids: Vec<u32>, reason: StopReason) {
        let goes_on = "/continue goes on";
        if let Some(text) = cut(reason, &self.model, &prompt, ids.len(), goes_on) {
            self.args.output.note(&text);
        }
        let ended = matches!(reason, StopReason::Eos | StopReason::StopString);
        self.cut = (!ended && !ids.is_empty()).then_some((prompt, ids));
    }

    /// Goes on with the last answer, if it was cut; what comes is part of the same message.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    fn go_on(&mut self, editor: &Editor) -> Result<Result<(), ()>, Failure> {
        let Some((prompt, mut ids)) = self.cut.take() else {
            self.args.output.complain("no answer was cut that could go on");
            return Ok(if editor.is_terminal() { Ok(()) } else { Err(()) });
        };
        let begins_in_thought = self.model.processor.begins_in_thought(&prompt.ids);
        let mut so_far = ReasoningStream::new(begins_in_thought);
        so_far.push(&self.model.processor.tokenizer.decode(&ids));
        let (mut answer, found) = self.generate(prompt.continued(&ids), so_far.is_in_thought(), editor);
        let found = match found {
            Ok((_, found)) => found,
            Err(error) if pascaline::cuda::is_lost() => return Err(error.into()),
            Err(error) => {
                answer.abandon();
                if let Error::OutOfMemory { .. } = error {
                    self.give_memory_back()?;
                }
                self.cut = Some((prompt, ids));
                self.args.output.complain(&self.args.model.explain(&error));
                return Ok(Err(()));
            }
        };
        answer.end()?;
        self.args.output.note(&summary(&found.statistics));
        let mut shown = [&*ids, &found.ids].concat();
        if found.stop_reason == StopReason::Eos {
            shown.pop(); // the stop token is no text
        }
        let tokenizer = &self.model.processor.tokenizer;
        let text = match found.stop_reason {
            StopReason::StopString => tokenizer.decode(&ids) + &found.text, // the text before the stop string
            _ => tokenizer.decode(&shown),
        };
        ids.extend(&found.ids);
        self.messages.pop();
        self.messages.push(assistant_turn(&text, begins_in_thought));
        self.turns.push(Turn {
            message: "/continue".to_owned(),
            images: 0,
            text: Some(found.text),
            generated_ids: found.ids,
            stop_reason: Some(found.stop_reason),
            statistics: Some(found.statistics),
            error: None,
        });
        self.remember_cut(prompt, ids, found.stop_reason);
        Ok(Ok(()))
    }
}

/// An answer as a turn: templates decide whether they repeat its thought.
fn assistant_turn(text: &str, begins_in_thought: bool) -> Message {
    let mut stream = ReasoningStream::new(begins_in_thought);
    let (told, rest) = (stream.push(text), stream.finish());
    let mut message = Message::text("assistant", told.answer + &rest.answer);
    let thought = told.reasoning + &rest.reasoning;
    if !thought.is_empty() {
        message.content.insert(0, Part::Reasoning { text: thought });
    }
    message
}

fn pictures(count: usize) -> String {
    if count == 1 { "1 picture".to_owned() } else { format!("{count} pictures") }
}

#[cfg(test)]
mod tests {
    use super::{Request, assistant_turn};
    use qwen3_vl::chat::{Message, Part};

    #[test]
    fn a_thought_is_a_part_of_its_own() {
        assert_eq!(assistant_turn("Hi", false), Message::text("assistant", "Hi"));
        for (text, inside) in [("why</think>\n\nHi", true), ("<think>why</think>Hi", false)] {
            let turn = assistant_turn(text, inside);
            let [Part::Reasoning { text: thought }, Part::Text { text }] = &turn.content[..] else {
                panic!("{turn:?}")
            };
            assert_eq!((&**thought, &**text), ("why", "Hi"));
        }
    }

    #[test]
    fn commands_begin_with_a_slash() {
        for (message, request) in [
            ("  \n", Request::Nothing),
            ("What is this?\n", Request::Turn("What is this?")),
            (" /image is a folder\n", Request::Turn("/image is a folder")),
            ("/image  '~/a b.png' \n", Request::Image("'~/a b.png'")),
            ("/image\n", Request::Image("")),
            ("/continue ", Request::Continue),
            ("/quit", Request::Quit),
            ("/quit now", Request::Unknown("/quit now")),
            ("/images a", Request::Unknown("/images a")),
            ("a\n/quit\nb", Request::Turn("a\n/quit\nb")),
        ] {
            assert_eq!(Request::parse(message), request, "{message}");
        }
    }
}
