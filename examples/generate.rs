//! Describes a picture: `cargo run --release --example generate -- CHECKPOINT PICTURE`.

use pascaline::{Device, Result};
use qwen3_vl::{Options, Qwen3Vl, Sampling, Visual};
use std::env;
use std::path::Path;
use std::process::ExitCode;

fn describe(checkpoint: &str, picture: &str) -> Result<()> {
    let device = Device::auto(); // a CUDA device if there is one, else the CPU
    let model = Qwen3Vl::load(checkpoint, &device)?;
    let picture = Visual::image(Path::new(picture))?;
    let options = Options { max_new_tokens: 200, sampling: Sampling::INSTRUCT, ..Options::default() };
    let answer = model.generate(&[picture], "Describe the picture.", &options)?;
    println!("{}", answer.text);
    println!("({:.1} tokens per second on {device})", answer.statistics.decode_tokens_per_second);
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let [_, checkpoint, picture] = &arguments[..] else {
        eprintln!("usage: generate CHECKPOINT PICTURE");
        return ExitCode::from(2);
    };
    match describe(checkpoint, picture) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
