//! Estimates how fast a model would answer on a card, from sizes and data-sheet rates. This helps to choose a type before
//! anything is downloaded; `bench` and `generate` measure.
//!
//! Decoding reads every weight once for each token, so it is bound by memory; prompts and pictures are products with many
//! rows, bound by arithmetic. The shares of the peak rates are those that the kernels reach on an H200 and in the virtual
//! GPU's cost model; no Pascal card has confirmed them.

use super::fit::Choice;
use super::footprint::Footprint;
use super::options::{ExpertPlacement, Storage};
use super::published::matrix;
use super::seam::{Config, ExpertPart, VISION, VisionPlace, VisionScores};
use super::workload::Workload;
use pascaline::nn::ExpertStream;
use pascaline::{DType, Result};

/// The peak rates of a card.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Floating-point operations per second in f32, a multiply-add counted as two.
    pub flops: f64,
    /// Bytes of device memory per second.
    pub memory: f64,
    /// Bytes per second from host memory.
    pub host: f64,
}

/// The estimated time of an answer.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Estimate {
    /// Seconds to the first token, the picture included.
    pub first_token: f64,
    /// Tokens per second after the first.
    pub tokens_per_second: f64,
}

/// Reached share of peak memory bandwidth while weights are read.
const MEMORY_SHARE: f64 = 0.75;
/// Reached share of peak multiply-adds in floating-point products.
const FLOAT_SHARE: f64 = 0.7;
/// Reached share of peak dp4a rate (four multiply-adds each) in quantised products.
const QUANT_SHARE: f64 = 0.5;
/// Reached share of peak multiply-adds in attention.
const ATTENTION_SHARE: f64 = 0.6;
/// Bytes per second that the CPU reads weights at: two channels of DDR4, of which products reach about half. Not measured on such a machine.
const CPU_MEMORY: f64 = 20e9;
/// Floating-point operations per second of the CPU's products with few rows: four cores. Not measured on such a machine.
const CPU_FLOPS: f64 = 50e9;
/// Seconds per kernel in a replayed graph.
const SECONDS_PER_KERNEL: f64 = 2.5e-6;

/// The estimate for given load options; `storage` as for [`Planned`](super::footprint::Planned).
///
/// # Errors
/// As [`Planned`](super::footprint::Planned).
pub fn estimate(
    config: &Config,
    choice: &Choice,
    storage: &dyn Fn(&str) -> Storage,
    work: &Workload,
    peaks: &Peaks,
) -> Result<Estimate> {
    let text = &config.text;
    let vision = config.vision.as_ref().map(|vision| vision.sizes());
    let (mut per_token, mut prompt, mut picture, mut tower) = (0.0, 0.0, 0.0, 0.0);
    // of experts that a token does not pass; streamed layers are copied with them
    let mut others = 0.0;
    let mut experts = Experts::default();
    let seconds = |storage: Storage, elements: f64, rows: usize| {
        let share = match storage {
            Storage::Float(_) => FLOAT_SHARE,
            Storage::Stored(_) | Storage::Quantized(_) => 4.0 * QUANT_SHARE,
        };
        2.0 * elements * rows as f64 / (share * peaks.flops)
    };
    for (name, shape) in config.tensors() {
        let [rows, width] = matrix(&shape);
        if shape.len() < 2 || name.contains("pos_embed") {
            continue; // vectors, and a table in host memory
        }
        let used = match (&text.experts, ExpertPart::of(&name)) {
            (Some(experts), Some(_)) => experts.per_token as f64 / experts.count as f64,
            _ => 1.0,
        };
        let (of, elements) = (storage(&name), (rows * width) as f64 * used);
        let bytes = of.bytes([rows, width])? as f64 * used;
        if let Some(vision) = vision.filter(|_| name.starts_with(VISION)) {
            // mergers read four patches per row
            let rows =
                if name.contains("merger") { work.patches / vision.merge_len().max(1) } else { work.patches };
            picture += seconds(of, elements, rows);
            tower += bytes;
            continue;
        }
        let is_table = name == config.embedding() && !config.tie_word_embeddings;
        per_token += if is_table { 0.0 } else { bytes };
        others += bytes / used - bytes;
        if used < 1.0 {
            experts.used += bytes;
            experts.all += bytes / used;
            experts.flops += 2.0 * elements;
            experts.seconds += seconds(of, elements, work.prompt);
        }
        let is_vocabulary = rows == text.vocab_size;
        prompt += if is_vocabulary { 0.0 } else { seconds(of, elements, work.prompt) };
    }
    let attention = |pairs: f64, width: usize, layers: usize| {
        4.0 * pairs * width as f64 * layers as f64 / (ATTENTION_SHARE * peaks.flops)
    };
    let layers = text.num_hidden_layers;
    let width = text.num_attention_heads * text.head_dim;
    prompt += attention((work.prompt as f64).powi(2) / 2.0, width, layers);
    let scores = if choice.options.vision_scores == VisionScores::Int8 { 0.25 } else { 1.0 }; // dp4a: four multiply-adds each
    picture += vision.map_or(0.0, |vision| {
        (scores + 1.0) / 2.0 * attention((work.patches as f64).powi(2), vision.hidden_size, vision.depth)
    });
    if choice.options.vision == VisionPlace::Streamed && work.patches > 0 {
        picture = picture.max(tower / peaks.host);
    }

    let Footprint { cache, launches, .. } = choice.footprint;
    let resident = choice.options.gpu_layers.unwrap_or(layers).min(layers);
    let vocabulary = (text.vocab_size * text.hidden_size * DType::F16.size()) as f64;
    let in_layers = (per_token - vocabulary.min(per_token)).max(0.0) + others;
    let streamed = in_layers * (layers - resident) as f64 / layers.max(1) as f64;
    let passes = work.prompt.div_ceil(choice.options.tokens_per_pass.max(1)) as f64;
    let from_memory = (per_token + cache as f64) / (MEMORY_SHARE * peaks.memory);
    let mut token = from_memory.max(streamed / peaks.host) + SECONDS_PER_KERNEL * launches as f64;
    let placement = choice.options.experts;
    if placement != ExpertPlacement::Gpu && experts.used > 0.0 {
        // as if all experts were chosen equally often; the most used are on the GPU, so fewer are away
        let count = text.experts.as_ref().map_or(1, |experts| experts.count.max(1));
        let away = count.saturating_sub(choice.options.cached_experts) as f64 / count as f64;
        let Experts { used, all, flops, seconds } = experts;
        token -= away * used / (MEMORY_SHARE * peaks.memory);
        token += away * if placement.cpu_rows() > 0 { cpu_seconds(used, flops) } else { used / peaks.host };
        let rows = work.prompt.min(choice.options.tokens_per_pass);
        prompt = match rows <= placement.cpu_rows() {
            true => prompt - away * seconds + away * cpu_seconds(all, flops * work.prompt as f64),
            false => prompt.max(passes * away * all / peaks.host),
        };
    }
    Ok(Estimate {
        first_token: picture + prompt.max(passes * streamed / peaks.host) + token,
        tokens_per_second: 1.0 / token,
    })
}

/// Sums over the experts of all layers.
#[derive(Default)]
struct Experts {
    /// Bytes that a token reads.
    used: f64,
    /// Bytes.
    all: f64,
    /// Operations of a token.
    flops: f64,
    /// Of the prompt, on the GPU.
    seconds: f64,
}

/// The CPU's time for products that read so many bytes.
fn cpu_seconds(bytes: f64, flops: f64) -> f64 {
    (bytes / CPU_MEMORY).max(flops / CPU_FLOPS)
}

/// The most tokens of a pass that the CPU passes through a layer's experts sooner than a GPU of these rates, whose kernels read the few
/// experts of up to [`ExpertStream::READ_ROWS`] tokens over the bus, and have all of them copied for more.
///
/// # Errors
/// As [`Planned`](super::footprint::Planned).
pub fn expert_rows(config: &Config, storage: &dyn Fn(&str) -> Storage, peaks: &Peaks) -> Result<usize> {
    let Some(experts) = &config.text.experts else { return Ok(0) };
    let (mut all, mut flops, mut matrices) = (0.0, 0.0, 0);
    for (name, shape) in config.tensors().into_iter().filter(|(name, _)| ExpertPart::of(name).is_some()) {
        let [rows, width] = matrix(&shape);
        all += storage(&name).bytes([rows, width])? as f64;
        flops += 2.0 * (rows * width * experts.per_token) as f64 / experts.count as f64;
        matrices += 1;
    }
    let layers = f64::from(matrices.max(1)) / ExpertPart::ALL.len() as f64;
    let (all, flops) = (all / layers, flops / layers);
    let others = 1.0 - experts.per_token as f64 / experts.count as f64;
    let is_sooner = |rows: usize| {
        let read = all * (1.0 - others.powf(rows as f64));
        let over_the_bus = if rows <= ExpertStream::READ_ROWS { read } else { all };
        cpu_seconds(read, flops * rows as f64) < over_the_bus / peaks.host
    };
    Ok((1..=MOST_CPU_ROWS).take_while(|&rows| is_sooner(rows)).last().unwrap_or(0))
}

/// No pass of more tokens is the CPU's by [`expert_rows`].
const MOST_CPU_ROWS: usize = 256;

/// The most tokens of a picture, unless a device has room and speed for more.
pub const IMAGE_TOKENS: usize = 1280;
/// No picture has more tokens unless they are asked for.
const MOST_IMAGE_TOKENS: usize = 10_240;
/// Seconds that a picture may take to its first token where it has more than [`IMAGE_TOKENS`].
const IMAGE_SECONDS: f64 = 2.0;

/// The most tokens of a picture, for a device with these rates and this many bytes of memory: [`IMAGE_TOKENS`], doubled
/// while the picture and its part of the prompt take at most two seconds, and twice the weights in f16 and the picture's states
/// fit.
pub fn image_tokens(config: &Config, peaks: &Peaks, memory: usize) -> usize {
    let text = &config.text;
    let Some(vision) = config.vision.as_ref() else { return IMAGE_TOKENS };
    let sizes = vision.sizes();
    let elements = |tensors: &mut dyn Iterator<Item = Vec<usize>>| -> f64 {
        tensors.map(|shape| shape.iter().map(|&side| side as f64).product::<f64>()).sum()
    };
    let tower = elements(&mut vision.tensors().into_values());
    let all = elements(&mut config.tensors().into_values());
    let tables = if config.tie_word_embeddings { 1.0 } else { 2.0 };
    let decoder = all - tower - tables * (text.vocab_size * text.hidden_size) as f64;
    let fits = |tokens: usize| {
        let (tokens, patches) = (tokens as f64, (tokens * sizes.merge_len()) as f64);
        let products = 2.0 * (decoder * tokens + tower * patches) / (FLOAT_SHARE * peaks.flops);
        let pairs = patches * patches * (sizes.hidden_size * sizes.depth) as f64
            + tokens * tokens / 2.0
                * (text.num_attention_heads * text.head_dim * text.num_hidden_layers) as f64;
        let attention = 4.0 * pairs / (ATTENTION_SHARE * peaks.flops);
        let states = 4.0
            * (16.0 * patches * sizes.hidden_size as f64
                + 16.0 * tokens * text.hidden_size as f64
                + 2.0 * tokens * (text.num_key_value_heads * text.head_dim * text.num_hidden_layers) as f64);
        products + attention <= IMAGE_SECONDS && 4.0 * all + states <= memory as f64
    };
    let mut tokens = IMAGE_TOKENS;
    while tokens < MOST_IMAGE_TOKENS && fits(2 * tokens) {
        tokens *= 2;
    }
    tokens
}
