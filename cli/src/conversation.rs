//! A conversation of `chat`: its turns, what is taken back or answered again, and where it is saved.

use super::answer::{Answer, assistant_turn, cut, summary};
use super::compose::compose;
use super::editor::Editor;
use super::failure::Failure;
use super::image_tokens::shrunk;
use super::model::ModelArgs;
use super::output::Output;
use super::sampling::SamplingArgs;
use super::saved::{self, Place, Saved};
use super::source::{is_stdin, typed_path};
use pascaline::{Device, Error, memory};
use qwen3_vl::chat::{Message, Part};
use qwen3_vl::generate::{Step, user_turn};
use qwen3_vl::media::PixelLimits;
use qwen3_vl::reasoning::ReasoningStream;
use qwen3_vl::sampling::Sampler;
use qwen3_vl::{
    LanguageModel, Options, Output as Generated, Prompt, Session, Statistics, StopReason, Visual,
};
use serde::Serialize;
use std::ops::ControlFlow;
use std::path::PathBuf;

/// A turn, as it is reported.
#[derive(Serialize)]
pub(super) struct Turn {
    message: String,
    images: usize,
    /// The seed of its tokens; none if no tokens are drawn.
    seed: Option<u64>,
    /// The answer; none if the turn failed.
    text: Option<String>,
    generated_ids: Vec<u32>,
    stop_reason: Option<StopReason>,
    statistics: Option<Statistics>,
    error: Option<String>,
}

/// The options of a conversation.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub model: &'a ModelArgs,
    pub sampling: &'a SamplingArgs,
    pub output: &'a Output,
    pub system: Option<&'a str>,
    pub hides_thinking: bool,
    /// Whether it is saved after each answer.
    pub is_kept: bool,
    /// Tokens that the cache has room for from the beginning.
    pub planned: usize,
}

/// The conversation so far.
pub(super) struct Conversation<'a> {
    setting: Setting<'a>,
    model: LanguageModel,
    options: Options,
    session: Session,
    messages: Vec<Message>,
    visuals: Vec<Visual>,
    /// Where each of them is.
    places: Vec<Place>,
    /// Pictures and videos of earlier turns; those after them wait for the next turn.
    shown: usize,
    /// How often the last message was answered again. Each answer has a seed of its own.
    retries: u64,
    /// Where the conversation is saved, if it was.
    file: Option<PathBuf>,
    /// Whether it is saved after each answer.
    is_kept: bool,
    pub turns: Vec<Turn>,
    /// The last answer, if it was cut: its prompt, and its tokens.
    cut: Option<(Prompt, Vec<u32>)>,
}

fn beginning(system: Option<&str>) -> Vec<Message> {
    system.iter().map(|text| Message::text("system", *text)).collect()
}

impl<'a> Conversation<'a> {
    /// A new conversation.
    pub fn new(setting: Setting<'a>, model: LanguageModel, options: Options, session: Session) -> Self {
        Self {
            messages: beginning(setting.system),
            is_kept: setting.is_kept,
            setting,
            model,
            options,
            session,
            visuals: Vec::new(),
            places: Vec::new(),
            shown: 0,
            retries: 0,
            file: None,
            turns: Vec::new(),
            cut: None,
        }
    }

    /// Goes on with a saved conversation. A system message of the command line takes the place of its own.
    pub fn resume(&mut self, saved: Saved, file: PathBuf) {
        let is_system = |message: &Message| message.role == "system";
        let replaces = self.setting.system.is_some();
        self.messages.extend(saved.messages.into_iter().filter(|message| !(replaces && is_system(message))));
        let count = self.messages.iter().filter(|message| message.role == "user").count();
        let from = file.display();
        self.setting.output.note(&format!("resumed: {count} messages and their answers, from {from}"));
        self.shown = saved.visuals.len();
        (self.visuals, self.places, self.file) = (saved.visuals, saved.places, Some(file));
        if let Ok(pictures) = self.model.processor.seeing() {
            for visual in &mut self.visuals {
                let _ = pictures.shrink(visual); // what can't be prepared is an error of the next message
            }
        }
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        self.messages = beginning(self.setting.system);
        self.visuals.clear();
        self.places.clear();
        (self.shown, self.retries, self.cut, self.file) = (0, 0, None, None);
        self.setting.output.note("forgotten");
    }

    /// Leaves out the pictures that wait.
    pub fn leave_out(&mut self) {
        self.setting.output.note(&format!("left out: {}", pictures(self.visuals.len() - self.shown)));
        self.visuals.truncate(self.shown);
        self.places.truncate(self.shown);
    }

    /// Takes the last message, its pictures and its answer back.
    pub fn undo(&mut self) -> Result<(), String> {
        let back = self.take_back().ok_or("there is no message to take back")?;
        self.visuals.truncate(self.shown);
        self.places.truncate(self.shown);
        self.wait_again(back.waiting);
        self.retries = 0;
        self.keep();
        self.setting.output.note("the last message and its answer are taken back");
        Ok(())
    }

    /// Adds a picture or video to the next turn, if it can be used.
    pub fn show(&mut self, file: &str, is_video: bool, editor: &Editor) -> Result<(), String> {
        let path = typed_path(file);
        if file.is_empty() || is_stdin(&path) {
            return Err(format!("{} needs a file", if is_video { "/video" } else { "/image" }));
        }
        let place = Place::of(&path, is_video).map_err(|reason| format!("{file}: {reason}"))?;
        let processor = &self.model.processor;
        let pictures = processor.seeing().map_err(|error| error.to_string())?.within(PixelLimits::default());
        let opened = editor.unless_interrupted(move || {
            let mut visual = saved::open(&path, is_video)?;
            let size = visual.size();
            pictures.shrink(&mut visual)?; // once, and not for each message
            Ok((visual, size))
        });
        let opened = opened.map_err(|error| error.to_string())?;
        let (visual, (height, width)) =
            opened.ok_or_else(|| format!("{file}: left out by Ctrl-C"))?.map_err(sentence)?;
        let visual = [visual];
        let prompt = processor.prepare(&[user_turn(&visual, "")], &visual);
        let tokens = prompt.map_err(|error| error.to_string())?.ids;
        let tokens = tokens.into_iter().filter(|&id| processor.is_pad(id)).count();
        let [visual] = visual;
        let told = match &visual {
            Visual::Image { name, .. } => {
                let size = shrunk(name, (height, width), processor).map_err(sentence)?;
                let to = size.map_or_else(String::new, |(size, _)| format!(" shrunk to {size}"));
                format!("{name}: {width} × {height} pixels{to}")
            }
            Visual::Video { name, frames, rate } => {
                format!("{name}: {} frames, {rate:.2} per second", frames.len())
            }
        };
        self.setting.output.note(&format!("{told}, {tokens} tokens; shown with the next message"));
        self.visuals.push(visual);
        self.places.push(place);
        Ok(())
    }

    /// Frees the cache, which may have grown for a turn that did not fit, so that the next turn has the room.
    fn give_memory_back(&mut self) -> pascaline::Result<()> {
        self.session = self.model.session()?;
        if let Device::Cuda(device) = self.model.device() {
            memory::pool(device)?.trim()?;
        }
        match self.session.reserve(self.setting.planned) {
            Err(Error::OutOfMemory { .. }) => Ok(()), // it grows with the turns, as far as it can
            other => other,
        }
    }

    /// Answers a message. A failed turn is undone: its pictures wait for the next one, and the cache is kept unless memory
    /// ran out.
    ///
    /// # Errors
    /// Errors that end the conversation: a lost device, or closed output. The inner error is already reported.
    pub fn turn(&mut self, text: &str, editor: &Editor) -> Result<Result<(), ()>, Failure> {
        self.retries = 0;
        self.ask(text, false, editor)
    }

    /// As [`turn`](Self::turn), for a message that may have been answered before.
    fn ask(&mut self, text: &str, is_again: bool, editor: &Editor) -> Result<Result<(), ()>, Failure> {
        let output = self.setting.output;
        let images = self.visuals.len() - self.shown;
        self.messages.push(user_turn(&self.visuals[self.shown..], text));
        let before = self.cut.take();
        let mut turn = Turn {
            message: text.to_owned(),
            images,
            seed: self.seed(),
            text: None,
            generated_ids: Vec::new(),
            stop_reason: None,
            statistics: None,
            error: None,
        };
        editor.begin_answer(); // from here on Ctrl-C counts, while pictures are prepared too
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
                    let left =
                        if is_again { "the earlier answer stays" } else { "the message is taken back" };
                    output.note(&format!("ended before the answer began; {left}"));
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
                let error = self.setting.model.explain(&error);
                output.complain(&error);
                if images > 0 && !is_again {
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
        let output = self.setting.output;
        let answer = match (output.stdout_is_taken(), output.is_quiet()) {
            (false, _) => Answer::on_stdout(),
            (true, false) => Answer::on_stderr(),
            (true, true) => Answer::nowhere(),
        };
        let mut answer = answer.with_progress(output);
        answer.tell_thoughts(begins_in_thought, self.setting.hides_thinking);
        let found = prompt.and_then(|prompt| {
            self.setting.sampling.say_room(&self.model, &prompt, output)?;
            let mut sampling = self.options.sampling.clone();
            sampling.seed = sampling.seed.wrapping_add(self.retries);
            let sampler = Sampler::new(sampling, &prompt.ids)?;
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
            self.setting.output.note(&text);
        }
        let ended = matches!(reason, StopReason::Eos | StopReason::StopString);
        self.cut = (!ended && !ids.is_empty()).then_some((prompt, ids));
    }

    /// Goes on with the last answer, if it was cut; what comes is part of the same message.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn go_on(&mut self, editor: &Editor) -> Result<Result<(), ()>, Failure> {
        let Some((prompt, mut ids)) = self.cut.take() else {
            self.setting.output.complain("no answer was cut that could go on");
            return Ok(if editor.is_terminal() { Ok(()) } else { Err(()) });
        };
        editor.begin_answer();
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
                self.setting.output.complain(&self.setting.model.explain(&error));
                return Ok(Err(()));
            }
        };
        answer.end()?;
        self.setting.output.note(&summary(&found.statistics));
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
            seed: self.seed(),
            text: Some(found.text),
            generated_ids: found.ids,
            stop_reason: Some(found.stop_reason),
            statistics: Some(found.statistics),
            error: None,
        });
        self.remember_cut(prompt, ids, found.stop_reason);
        Ok(Ok(()))
    }

    /// The seed of the next answer, if tokens are drawn.
    fn seed(&self) -> Option<u64> {
        let sampling = &self.options.sampling;
        (!sampling.is_greedy()).then(|| sampling.seed.wrapping_add(self.retries))
    }

    /// Takes the last message and its answer out of the conversation. The message's pictures wait again, alone. The cache is
    /// kept: the next pass begins where the prompts differ.
    fn take_back(&mut self) -> Option<TakenBack> {
        let [.., question, _] = &self.messages[..] else { return None };
        if question.role != "user" {
            return None;
        }
        let is_shown = |part: &&Part| matches!(part, Part::Image | Part::Video);
        let shown = question.content.iter().filter(is_shown).count();
        let (answer, question) = (self.messages.pop()?, self.messages.pop()?);
        let waiting = (self.visuals.split_off(self.shown), self.places.split_off(self.shown));
        self.shown -= shown;
        Some(TakenBack { question, answer, cut: self.cut.take(), waiting })
    }

    /// Pictures wait behind those that wait already.
    fn wait_again(&mut self, (visuals, places): (Vec<Visual>, Vec<Place>)) {
        self.visuals.extend(visuals);
        self.places.extend(places);
    }

    /// Answers the last message again.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn retry(&mut self, editor: &Editor) -> Result<Result<(), ()>, Failure> {
        if self.options.sampling.is_greedy() {
            self.setting
                .output
                .note("answers are greedy, so this one will be the same; --temperature varies them");
        }
        self.ask_again(editor, |chat, text| {
            chat.retries += 1;
            Ok(text)
        })
    }

    /// Answers the last message again as the user's editor leaves it.
    ///
    /// # Errors
    /// As [`turn`](Self::turn).
    pub fn edit(&mut self, editor: &Editor) -> Result<Result<(), ()>, Failure> {
        self.ask_again(editor, |chat, text| {
            if !editor.is_terminal() {
                return Err("/edit needs a terminal".into());
            }
            let edited = compose(&text, || editor.begin_answer())?;
            if edited.trim().is_empty() || edited == text {
                return Err("the message is as it was".into());
            }
            chat.retries = 0;
            Ok(edited)
        })
    }

    /// Answers the text that `change` makes of the last message in its place. If there is no answer, the earlier one stays.
    fn ask_again(
        &mut self,
        editor: &Editor,
        change: impl FnOnce(&mut Self, String) -> Result<String, String>,
    ) -> Result<Result<(), ()>, Failure> {
        let Some(back) = self.take_back() else {
            self.setting.output.complain("there is no message to answer again");
            return Ok(if editor.is_terminal() { Ok(()) } else { Err(()) });
        };
        let (length, retries) = (self.messages.len(), self.retries);
        let text = back.question.content.iter().filter_map(|part| match part {
            Part::Text { text } => Some(&**text),
            _ => None,
        });
        let result = match change(self, text.collect()) {
            Ok(text) => self.ask(&text, true, editor)?,
            Err(reason) => {
                self.setting.output.complain(&reason);
                if editor.is_terminal() { Ok(()) } else { Err(()) }
            }
        };
        if self.messages.len() == length {
            self.shown = self.visuals.len();
            self.messages.extend([back.question, back.answer]);
            (self.cut, self.retries) = (back.cut, retries);
        }
        self.wait_again(back.waiting);
        Ok(result)
    }

    /// Saves the conversation in this file, or in its own, and says where.
    pub fn save(&mut self, file: Option<PathBuf>) -> Result<PathBuf, Failure> {
        if !self.messages.iter().any(|message| message.role == "assistant") {
            return Err(Failure::Failed("there is no answer to save yet".to_owned()));
        }
        let is_own = file.is_none() || file == self.file;
        let file = file.or_else(|| self.file.clone()).map_or_else(saved::new_file, Ok)?;
        let force = (is_own && self.file.is_some()) || self.setting.output.may_replace();
        saved::write(&file, &self.messages, &self.places[..self.shown], force)?;
        self.file = Some(file.clone());
        Ok(file)
    }

    /// Where it is saved after each answer, if it is.
    pub fn kept_in(&self) -> Option<&PathBuf> {
        self.file.as_ref().filter(|_| self.is_kept)
    }

    /// Saves the conversation after an answer, if it is to be. A failure is said once.
    pub fn keep(&mut self) {
        let has_answer = self.messages.iter().any(|message| message.role == "assistant");
        if self.is_kept
            && has_answer
            && let Err(failure) = self.save(None)
        {
            self.is_kept = false;
            self.setting.output.complain(&format!("the conversation is not saved: {}", sentence(failure)));
        }
    }
}

/// A message that was taken out of the conversation, and its answer.
struct TakenBack {
    question: Message,
    answer: Message,
    cut: Option<(Prompt, Vec<u32>)>,
    /// The pictures that were waiting for the next message.
    waiting: (Vec<Visual>, Vec<Place>),
}

pub(super) fn sentence(failure: Failure) -> String {
    failure.sentence().unwrap_or_default().to_owned()
}

fn pictures(count: usize) -> String {
    if count == 1 { "1 picture".to_owned() } else { format!("{count} pictures") }
}
