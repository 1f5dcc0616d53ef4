//! The command line. A subcommand is a variant of `Command` and a file with its arguments and a `run`.

mod answer;
mod bench;
mod bench_memory;
mod bench_model;
mod bench_row;
mod bench_serve;
mod case_args;
mod ceiling;
mod chat;
mod completions;
mod costs;
mod cublas;
mod device;
mod devices;
mod doctor;
mod doctor_memory;
mod editor;
mod environment;
mod failure;
mod files;
mod finetune;
mod fit;
mod float16;
mod generate;
mod gguf_file;
mod hub;
mod interrupt;
mod json;
mod measure;
mod model;
mod output;
mod printable;
mod profile;
mod profile_model;
mod ptx_argument;
mod ptxas;
mod published;
mod quantize;
mod random_model;
mod random_values;
mod report;
mod run_ptx;
mod sampling;
mod screen;
mod serve;
mod source;
mod speed;
mod table;
mod tune;
mod validate;
mod validate_model;
mod validate_train;

use clap::{CommandFactory, Parser, Subcommand};
use output::complain;
use printable::printable;
use screen::{Colours, Style};
use std::io::{self, IsTerminal};
use std::process::ExitCode;

/// Qwen3-VL and its kernels on NVIDIA Pascal GPUs, with the GPU code in Rust.
///
/// Exit status: 0 for success, 1 if something failed or a result is wrong, 2 if the command line is wrong, 75 if a server
/// has lost its GPU and should be started again.
#[derive(Parser)]
#[command(name = "pascaline", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check and time every op, in GFLOP/s or GB/s and as a share of what the device can do.
    Bench(bench::Args),
    /// Check every op against a naive reference in double precision, or a model against its reference's results.
    Validate(validate::Args),
    /// Time every matmul kernel on a GPU and store the table by which one is chosen.
    Tune(tune::Args),
    /// Count what the kernels of a case do, and estimate their time on Pascal cards.
    Profile(profile::Args),
    /// Run a kernel of any PTX file, check it, count what it does and estimate its time on Pascal cards.
    RunPtx(run_ptx::Args),
    /// Answer a question about images.
    Generate(generate::Args),
    /// Talk with a model about images and anything else.
    Chat(chat::Args),
    /// Serve a model over OpenAI's HTTP interface, with a web page for chat.
    Serve(serve::Args),
    /// Plan a model's memory: what fits a card, and how fast it would be.
    Fit(fit::Args),
    /// Fetch a model from the Hugging Face hub.
    Pull(hub::Args),
    /// Train adapters, or all weights, on conversations with pictures.
    Finetune(finetune::Args),
    /// Write a checkpoint as GGUF files with quantised matrices.
    Quantize(quantize::Args),
    /// Write a checkpoint of a published model's size with random weights, to measure with.
    RandomModel(random_model::Args),
    /// Measure a card once for this project: checks, times next to estimates, a model, temperatures; in one file.
    Report(report::Args),
    /// Report the driver, the devices and the kernels, and which device `auto` takes.
    Doctor(doctor::Args),
    /// Measure which 16-bit float format loses least on the tensors of a file.
    Float16(float16::Args),
    /// Print a script for a shell's completion of command lines.
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(help_or_error) => {
            let _ = help_or_error.print(); // nowhere to report that stdout or stderr is closed
            return ExitCode::from(help_or_error.exit_code() as u8);
        }
    };
    pascaline::cuda::on_slow_compilation(|| {
        complain(
            "The driver compiles the kernels for this GPU. It keeps them, so that the next start is faster.",
        );
    });
    let result = match cli.command {
        Command::Bench(args) => bench::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::RunPtx(args) => run_ptx::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Fit(args) => fit::run(&args),
        Command::Pull(args) => hub::run(&args),
        Command::Finetune(args) => finetune::run(args),
        Command::Quantize(args) => quantize::run(&args),
        Command::RandomModel(args) => random_model::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Float16(args) => float16::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(sentence) = failure.sentence() {
                let is_terminal = io::stderr().is_terminal();
                // it may quote a file's contents
                let sentence = if is_terminal { printable(sentence) } else { sentence.into() };
                let colours = Colours::for_stream(is_terminal);
                complain(&format!("{} {sentence}", colours.paint(Style::Bad, "error:")));
            }
            failure.exit_code()
        }
    }
}
