//! `pascaline chat`: a conversation with images.

use super::failure::Failure;
use super::generate::{print, summary};
use super::model::{ModelArgs, SamplingArgs};
use super::screen::{Colours, Style};
use qwen3_vl::Visual;
use qwen3_vl::chat::Message;
use qwen3_vl::generate::user_turn;
use std::io::{self, BufRead, IsTerminal};
use std::ops::ControlFlow;
use std::path::Path;

/// Talks: a line is a turn. What the model has read stays in its cache between turns.
///
/// `/image FILE` shows a picture with the next turn, `/reset` begins anew, `/quit` ends.
#[derive(clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// What the conversation is to be like.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    #[command(flatten)]
    sampling: SamplingArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (model, _) = args.model.load()?;
    let options = args.sampling.options(&model);
    let colours = Colours::for_stream(io::stderr().is_terminal());
    let note = |text: &str| eprintln!("{}", colours.paint(Style::Faint, text));
    let beginning: Vec<_> = args.system.iter().map(|text| Message::text("system", text)).collect();

    let mut session = model.session()?;
    let mut messages = beginning.clone();
    let mut visuals: Vec<Visual> = Vec::new();
    let mut shown = 0; // visuals that earlier turns have
    note("a line is a turn; /image FILE shows a picture with the next one, /reset begins anew, /quit ends");
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| Failure::Failed(format!("the input can't be read: {error}")))?;
        match line.trim() {
            "" => continue,
            "/quit" => break,
            "/reset" => {
                messages.clone_from(&beginning);
                visuals.clear();
                shown = 0;
                note("forgotten");
            }
            command if command.starts_with("/image ") => {
                match Visual::image(Path::new(command[7..].trim())) {
                    Ok(visual) => visuals.push(visual),
                    Err(error) => note(&error.to_string()),
                }
            }
            command if command.starts_with('/') => note(&format!("{command} is no command")),
            text => {
                messages.push(user_turn(&visuals[shown..], text));
                let answer = model.processor.prepare(&messages, &visuals).and_then(|prompt| {
                    model.generate_from(&mut session, &prompt, &options, |piece| match print(piece) {
                        Ok(()) => ControlFlow::Continue(()),
                        Err(_) => ControlFlow::Break(()),
                    })
                });
                match answer {
                    Ok(output) => {
                        print("\n")?;
                        note(&summary(&output.statistics));
                        messages.push(Message::text("assistant", output.text));
                        shown = visuals.len();
                    }
                    // the turn is taken back; only a lost device ends the conversation
                    Err(error) if !pascaline::cuda::is_lost() => {
                        messages.pop();
                        visuals.truncate(shown);
                        session = model.session()?;
                        note(&error.to_string());
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
    Ok(())
}
