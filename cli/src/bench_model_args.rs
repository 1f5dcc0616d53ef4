//! The options of `pascaline bench --model`.

use super::model::LoadArgs;
use clap::ValueEnum;
use std::path::PathBuf;

/// The options of `--model`.
#[derive(clap::Args)]
pub(super) struct ModelBench {
    /// Measure a model instead: a directory, a GGUF file or a name on the hub, as `generate` takes it.
    #[arg(long, value_name = "MODEL", group = "target", conflicts_with_all = ["only", "all", "against", "memory"])]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub load: LoadArgs,

    /// Lengths of prompts to prefill; 0 for none.
    #[arg(
        long,
        short,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "512",
        requires = "model",
        alias = "n-prompt"
    )]
    pub prompt_tokens: Vec<usize>,

    /// How many tokens are in the cache before each test.
    #[arg(
        long,
        short,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "0",
        requires = "model",
        alias = "n-depth"
    )]
    pub depth: Vec<usize>,

    /// Numbers of answers that are generated at a time.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1", requires = "model")]
    pub sequences: Vec<usize>,

    /// Sizes of pictures to encode.
    #[arg(long, value_name = "WIDTHxHEIGHT,…", value_delimiter = ',', value_parser = size, requires = "model")]
    pub picture: Vec<[usize; 2]>,

    /// Repetitions of each test, after one warm-up.
    #[arg(long, short, value_name = "N", default_value = "5", requires = "model", value_parser = clap::value_parser!(u16).range(1..))]
    pub repetitions: u16,

    /// The format of the results.
    #[arg(long, value_name = "FORMAT", default_value = "table", requires = "model")]
    pub format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub(super) enum Format {
    /// Aligned columns.
    Table,
    /// A table in Markdown.
    #[value(alias = "md")]
    Markdown,
    /// Comma-separated values, with the time of each run.
    Csv,
}

fn size(text: &str) -> Result<[usize; 2], String> {
    let sides = text.split_once('x').map(|(width, height)| [width, height].map(str::parse));
    match sides {
        Some([Ok(width), Ok(height)]) if (1..=8192).contains(&width) && (1..=8192).contains(&height) => {
            Ok([width, height])
        }
        _ => Err("it must be WIDTHxHEIGHT in pixels, each from 1 to 8192, such as 1024x768".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_pictures() {
        assert_eq!(size("640x480"), Ok([640, 480]));
        for wrong in ["640", "640x", "x480", "0x480", "640x-1", "640x480x3", "9000x10"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
