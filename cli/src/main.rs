//! The command line. A subcommand is a variant of `Command` and a file with its arguments and a `run`.

// without a command some of the parts that it shares with others have no user
#![cfg_attr(not(all(feature = "report", feature = "serve", feature = "train")), allow(dead_code))]

mod answer;
#[cfg(feature = "bench")]
mod bench;
#[cfg(feature = "bench")]
mod bench_memory;
#[cfg(feature = "bench")]
mod bench_model;
#[cfg(feature = "bench")]
mod bench_model_args;
#[cfg(feature = "bench")]
mod bench_row;
#[cfg(feature = "bench")]
mod bench_serve;
#[cfg(feature = "bench")]
mod benches;
#[cfg(feature = "bench")]
mod case_args;
#[cfg(feature = "bench")]
mod ceiling;
mod chat;
mod chat_commands;
mod colours;
mod completions;
mod compose;
mod content;
mod conversation;
#[cfg(feature = "profile")]
mod costs;
#[cfg(feature = "bench")]
mod cublas;
mod device;
mod devices;
mod doctor;
mod doctor_memory;
#[cfg(test)]
mod documented;
mod editor;
mod embed;
mod environment;
mod experts;
mod failure;
mod files;
#[cfg(feature = "train")]
mod finetune;
mod fit;
#[cfg(feature = "convert")]
mod float16;
mod generate;
#[cfg(feature = "convert")]
mod gguf_file;
mod history;
mod hub;
mod image_tokens;
mod interrupt;
mod json;
mod measure;
mod model;
mod models;
mod new;
mod output;
mod parts;
mod printable;
#[cfg(feature = "profile")]
mod profile;
#[cfg(feature = "profile")]
mod profile_model;
#[cfg(feature = "profile")]
mod ptx_argument;
#[cfg(feature = "profile")]
mod ptxas;
mod published;
#[cfg(feature = "convert")]
mod quantize;
#[cfg(feature = "convert")]
mod random_model;
#[cfg(feature = "report")]
mod report;
mod rerank;
#[cfg(feature = "profile")]
mod run_ptx;
mod sampling;
mod saved;
mod screen;
#[cfg(feature = "serve")]
mod serve;
mod sizes;
mod source;
mod speed;
mod state;
mod table;
#[cfg(feature = "bench")]
mod tune;
mod types;
#[cfg(feature = "convert")]
mod unfinished;
#[cfg(feature = "bench")]
mod validate;
#[cfg(feature = "bench")]
mod validate_model;
#[cfg(feature = "bench")]
mod validate_train;
#[cfg(feature = "profile")]
mod virtual_gpu;

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
    #[cfg(feature = "bench")]
    Bench(bench::Args),
    /// Check every op against a naive reference in double precision, or a model against its reference's results.
    #[cfg(feature = "bench")]
    Validate(validate::Args),
    /// Time every matmul kernel on a GPU and store the table by which one is chosen.
    #[cfg(feature = "bench")]
    Tune(tune::Args),
    /// Count what the kernels of a case do, and estimate their time on Pascal cards.
    #[cfg(feature = "profile")]
    Profile(profile::Args),
    /// Run a kernel of any PTX file, check it, count what it does and estimate its time on Pascal cards.
    #[cfg(feature = "profile")]
    RunPtx(run_ptx::Args),
    /// Run any CUDA program on the virtual GPU, without a GPU, and report races, accesses out of bounds and costs.
    #[cfg(feature = "profile")]
    #[command(name = "virtual")]
    VirtualGpu(virtual_gpu::Args),
    /// Answer a question about images.
    Generate(generate::Args),
    /// Talk with a model about images and anything else.
    Chat(chat::Args),
    /// Serve a model over OpenAI's HTTP interface, with a web page for chat.
    #[cfg(feature = "serve")]
    Serve(serve::Args),
    /// Write embeddings of texts, pictures and videos, or search among them.
    Embed(embed::Args),
    /// Rank texts, pictures and videos by their relevance to a query.
    Rerank(rerank::Args),
    /// Plan a model's memory: what fits a card, and how fast it would be.
    Fit(fit::Args),
    /// Fetch a model from the Hugging Face hub.
    Pull(hub::Args),
    /// List the models in the hub's cache, or remove some.
    Models(models::Args),
    /// Train adapters, or all weights, on conversations with pictures.
    #[cfg(feature = "train")]
    Finetune(finetune::Args),
    /// Write a checkpoint as GGUF files with quantised matrices.
    #[cfg(feature = "convert")]
    Quantize(quantize::Args),
    /// Write a checkpoint of a published model's size with random weights, to measure with.
    #[cfg(feature = "convert")]
    RandomModel(random_model::Args),
    /// Measure a card once for this project: checks, times next to estimates, a model, temperatures; in one file.
    #[cfg(feature = "report")]
    Report(report::Args),
    /// Report the driver, the devices and the kernels, and which device `auto` takes.
    Doctor(doctor::Args),
    /// Measure which 16-bit float format loses least on the tensors of a file.
    #[cfg(feature = "convert")]
    Float16(float16::Args),
    /// Write a project with a kernel of its own, a test on the virtual GPU and a job for CI.
    New(new::Args),
    /// Print a script for a shell's completion of command lines.
    Completions(completions::Args),
}

fn main() -> ExitCode {
    let is_bare = std::env::args_os().len() == 1;
    let cli = match Cli::try_parse() {
        Err(_) if is_bare => {
            let _ = Cli::command().print_help(); // nowhere to report that stdout is closed
            return ExitCode::SUCCESS;
        }
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
        #[cfg(feature = "bench")]
        Command::Bench(args) => benches::run(&args),
        #[cfg(feature = "bench")]
        Command::Validate(args) => validate::run(&args),
        #[cfg(feature = "bench")]
        Command::Tune(args) => tune::run(&args),
        #[cfg(feature = "profile")]
        Command::Profile(args) => profile::run(&args),
        #[cfg(feature = "profile")]
        Command::RunPtx(args) => run_ptx::run(&args),
        #[cfg(feature = "profile")]
        Command::VirtualGpu(args) => virtual_gpu::run(&args),
        Command::Generate(args) => generate::run(&args),
        Command::Chat(args) => chat::run(&args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args),
        Command::Embed(args) => embed::run(&args),
        Command::Rerank(args) => rerank::run(&args),
        Command::Fit(args) => fit::run(&args),
        Command::Pull(args) => hub::run(&args),
        Command::Models(args) => models::run(&args),
        #[cfg(feature = "train")]
        Command::Finetune(args) => finetune::run(args),
        #[cfg(feature = "convert")]
        Command::Quantize(args) => quantize::run(&args),
        #[cfg(feature = "convert")]
        Command::RandomModel(args) => random_model::run(args),
        #[cfg(feature = "report")]
        Command::Report(args) => report::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "convert")]
        Command::Float16(args) => float16::run(&args),
        Command::New(args) => new::run(&args),
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
