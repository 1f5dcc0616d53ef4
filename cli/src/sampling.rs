//! The options for choosing tokens, of the commands that generate. `qwen3_vl::sampling` chooses them.

use super::output::Output;
use pascaline::Error;
use qwen3_vl::{LanguageModel, Options, Processor, Prompt, Sampling};

/// Tokens that memory is planned for if nothing limits an answer, the most first; a longer one takes what is left.
const UNLIMITED: [usize; 2] = [2048, 512];

#[derive(clap::Args, Clone)]
pub(super) struct SamplingArgs {
    /// The most tokens to generate. If not given, generation_config.json decides, and else only the model's context and the
    /// memory for its cache end an answer before its own end.
    #[arg(long, short = 'n', value_name = "N", value_parser = at_least_one, allow_negative_numbers = true)]
    max_new_tokens: Option<usize>,

    /// Always take the likeliest token. Without this and the options below, generation_config.json decides.
    #[arg(long)]
    greedy: bool,

    /// Divides the logits; 0 is greedy.
    #[arg(
        long,
        value_name = "T",
        conflicts_with = "greedy",
        allow_negative_numbers = true,
        value_parser = checked(|temperature| Sampling { temperature, ..Sampling::GREEDY })
    )]
    temperature: Option<f64>,

    /// Draw only from the K likeliest tokens; 0 for all.
    #[arg(
        long,
        value_name = "K",
        conflicts_with = "greedy",
        allow_negative_numbers = true,
        value_parser = whole
    )]
    top_k: Option<usize>,

    /// Draw only from the fewest likeliest tokens that have this probability together.
    #[arg(
        long,
        value_name = "P",
        conflicts_with = "greedy",
        allow_negative_numbers = true,
        value_parser = checked(|top_p| Sampling { top_p, ..Sampling::GREEDY })
    )]
    top_p: Option<f64>,

    /// Draw only from tokens with at least this share of the likeliest one's probability.
    #[arg(
        long,
        value_name = "P",
        conflicts_with = "greedy",
        allow_negative_numbers = true,
        value_parser = checked(|min_p| Sampling { min_p, ..Sampling::GREEDY })
    )]
    min_p: Option<f64>,

    /// Makes tokens of the prompt and the answer less likely; 1 has no effect.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = checked(|repetition_penalty| Sampling { repetition_penalty, ..Sampling::GREEDY })
    )]
    repetition_penalty: Option<f64>,

    /// Subtracted from the logits of the answer's tokens.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = checked(|presence_penalty| Sampling { presence_penalty, ..Sampling::GREEDY })
    )]
    presence_penalty: Option<f64>,

    /// Subtracted from the logits of the answer's tokens, once for each occurrence.
    #[arg(
        long,
        value_name = "X",
        allow_negative_numbers = true,
        value_parser = checked(|frequency_penalty| Sampling { frequency_penalty, ..Sampling::GREEDY })
    )]
    frequency_penalty: Option<f64>,

    /// Seeds the random numbers. If not given, a random seed is taken and printed.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,

    /// Ends the answer before this text; may be given more than once.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    stop: Vec<String>,

    /// Go on after the checkpoint's stop tokens.
    #[arg(long)]
    ignore_eos: bool,

    /// On a GPU, launch every kernel of every token one by one, without a captured graph; the tokens are the same.
    #[arg(long)]
    no_graph: bool,
}

/// Parses a number that sampling accepts.
fn checked(sampling: fn(f64) -> Sampling) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync {
    move |text| {
        let value = text.parse().map_err(|_| "it must be a number".to_owned())?;
        match sampling(value).check() {
            Err(Error::Unsupported { reason, .. }) => Err(reason),
            Err(error) => Err(error.to_string()),
            Ok(()) => Ok(value),
        }
    }
}

fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "it must be a whole number that is not negative".to_owned())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "it must be a whole number from 1 on".to_owned())
}

impl SamplingArgs {
    /// The most tokens to generate, if something limits them.
    pub fn max_new_tokens(&self, processor: &Processor) -> Option<usize> {
        self.max_new_tokens.or(processor.generation.max_new_tokens)
    }

    /// The tokens to plan memory for, the most first, which the limit cuts.
    pub fn planned_tokens(&self, limit: Option<usize>) -> Vec<usize> {
        limit.or(self.max_new_tokens).map_or_else(|| UNLIMITED.into(), |most| vec![most])
    }

    /// The seed, if given.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// Prints the seed, if it is random.
    pub fn say_seed(&self, options: &Options, output: &Output) {
        if self.seed.is_none() && !options.sampling.is_greedy() {
            output.note(&format!("--seed {}", options.sampling.seed));
        }
    }

    /// Prints that the model's context ends before `--max-new-tokens`.
    pub fn say_room(&self, model: &LanguageModel, prompt: &Prompt, output: &Output) -> pascaline::Result<()> {
        let Some(most) = self.max_new_tokens else { return Ok(()) };
        let room = model.room_after(prompt)?;
        if room < most {
            let context = model.config().text.max_position_embeddings;
            output.note(&format!(
                "--max-new-tokens {most} is cut to {room}: the model's context of {context} has no room for more \
                 after {} prompt tokens",
                prompt.ids.len()
            ));
        }
        Ok(())
    }

    /// The given options, and for the others those of the checkpoint's authors.
    pub fn options(&self, model: &LanguageModel) -> Options {
        let published = &model.processor.generation;
        let usual = match published.do_sample {
            true => Sampling {
                temperature: published.temperature.unwrap_or(1.0),
                top_k: published.top_k.map_or(0, |k| usize::try_from(k).unwrap_or(usize::MAX)),
                top_p: published.top_p.unwrap_or(1.0),
                repetition_penalty: published.repetition_penalty.unwrap_or(1.0),
                ..Sampling::GREEDY
            },
            false => Sampling::GREEDY,
        };
        let filtered = self.top_k.is_some() || self.top_p.is_some() || self.min_p.is_some();
        let temperature = match (self.temperature, self.greedy) {
            (_, true) => 0.0,
            (Some(temperature), _) => temperature,
            (None, _) if filtered && usual.is_greedy() => 1.0,
            (None, _) => usual.temperature,
        };
        let sampling = Sampling {
            temperature,
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(usual.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(usual.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(usual.frequency_penalty),
            // at most ten digits, as it may have to be typed in again
            seed: self.seed.unwrap_or_else(|| rand::random::<u32>().into()),
        };
        Options {
            max_new_tokens: self.max_new_tokens(&model.processor).unwrap_or(usize::MAX),
            sampling,
            stop: self.stop.clone(),
            stop_at_eos: !self.ignore_eos,
            graph: !self.no_graph,
            prompt_lookup: false,
        }
    }
}
