//! Compares a model with a reference's results on the same checkpoint.

use super::cases::Run;
use super::generate::{Options, user_turn};
use super::media::Patches;
use super::media::VisionOutput;
use super::model::LanguageModel;
use super::options::Matrices;
use pascaline::kv::KvFormat;
use pascaline::quant;
use pascaline::{DType, Result, Tensor};
use serde::Serialize;
use std::ops::ControlFlow;

/// The deviation of a model from the reference in one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// The run.
    pub name: String,
    /// Whether the prompt has the reference's tokens.
    pub prompt_ids_equal: bool,
    /// Whether it has the reference's positions; `None` if the reference has none.
    pub positions_equal: Option<bool>,
    /// The pixel values; `None` if the reference has none.
    pub pixels: Option<Pixels>,
    /// ‖found − reference‖ / ‖reference‖ of each stage, in the order of computation.
    pub stages: Vec<Stage>,
    /// Whether greedy decoding from the picture files gives the reference's tokens.
    pub generated_equal: bool,
    /// The tokens of greedy decoding.
    pub generated_ids: Vec<u32>,
}

/// How preprocessed pixel values differ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pixels {
    /// The share that is equal.
    pub equal: f64,
    /// The largest difference, in steps of an 8-bit value.
    pub most_steps: f64,
}

/// One stage's error.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stage {
    /// `image_embeds`, `deepstack.N`, `hidden.N` or `logits`.
    pub name: String,
    /// Relative, in the Euclidean norm.
    pub error: f64,
}

/// The tolerances.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// The share of pixel values that must be equal.
    pub pixels_equal: f64,
    /// The most steps between pixel values.
    pub pixel_steps: f64,
    /// The largest relative error of a stage.
    pub stage: f64,
}

impl Limits {
    /// For matrices in f32: tight enough to detect tanh instead of erf GELU in the mergers, which changes the embeddings by
    /// 2e-4, and loose enough for another order of summation.
    pub const F32: Self = Self { pixels_equal: 0.995, pixel_steps: 1.0, stage: 2e-5 };
    /// As [`F32`](Self::F32) on a GPU, whose exponentials and reciprocals are approximations of 1e-7 each.
    pub const F32_GPU: Self = Self { stage: 1e-4, ..Self::F32 };
    /// For matrices rounded to f16: 2⁻¹¹ in each weight, amplified by the layers.
    pub const F16: Self = Self { stage: 2e-2, ..Self::F32 };
}

impl Limits {
    /// Adds the tolerance for keys and values in `format` in a model of `layers` layers.
    ///
    /// The relative error of a key or value is that of its format. Attention does not increase it, and the layers' errors add up like
    /// independent ones. Twice that is tolerated, as norms and softmax may amplify it.
    pub fn with_cache(self, format: KvFormat, layers: usize) -> Self {
        Self { stage: self.stage + 2.0 * format.error() * (2.0 * layers as f64).sqrt(), ..self }
    }

    /// Adds the tolerance for the vision tower's matrices in a type of their own, in a tower of `depth` blocks.
    ///
    /// Each of a block's four products has the type's error on normal values (relative root mean square) and, if quantised,
    /// that of 8-bit activations. The rest is as in [`with_cache`](Self::with_cache).
    pub fn with_vision(self, matrices: Matrices, depth: usize) -> Self {
        let lost = match matrices {
            Matrices::Float(DType::F16) => 0.5f64.powi(11),
            Matrices::Float(_) => 0.0,
            Matrices::Quantized(format) => quant::error(format).hypot(5.1e-3),
        };
        Self { stage: self.stage + 2.0 * lost * (4.0 * depth as f64).sqrt(), ..self }
    }

    /// Adds the tolerance for 8-bit queries and keys in a vision tower of `depth` blocks: the error of
    /// [`int8_attention`](pascaline::ops::int8_attention) for normal queries and keys. The rest is as in [`with_cache`](Self::with_cache).
    pub fn with_int8_scores(self, depth: usize) -> Self {
        Self { stage: self.stage + 2.0 * 1.8e-2 * (depth as f64).sqrt(), ..self }
    }
}

impl RunReport {
    /// Whether everything is within the limits. Other tokens than the reference's are tolerated only if weights were
    /// rounded (`exact_ids` false), since nearly equal logits may swap.
    pub fn passed(&self, limits: &Limits, exact_ids: bool) -> bool {
        let pixels = self.pixels.is_none_or(|pixels| {
            pixels.equal >= limits.pixels_equal && pixels.most_steps <= limits.pixel_steps * 1.001
        });
        self.prompt_ids_equal
            && self.positions_equal != Some(false)
            && pixels
            && self.stages.iter().all(|stage| stage.error <= limits.stage)
            && (self.generated_equal || !exact_ids)
    }

    /// The largest error of the stages whose names begin with `stage`.
    pub fn worst(&self, stage: &str) -> Option<f64> {
        self.stages.iter().filter(|s| s.name.starts_with(stage)).map(|s| s.error).reduce(f64::max)
    }
}

/// Compares everything that the reference has a result for. The stages are computed from the reference's pixel values if it
/// has them, the tokens from the picture files.
///
/// # Errors
/// [`Error::Checkpoint`](pascaline::Error::Checkpoint) for a damaged case, [`Error::Image`](pascaline::Error::Image), or a
/// device error.
pub fn check_run(model: &LanguageModel, run: &Run) -> Result<RunReport> {
    let visuals = run.visuals()?;
    let prompt = model.processor.prepare(&[user_turn(&visuals, &run.question)], &visuals)?;
    let ids = run.input_ids()?;
    let grids = run.grids()?;
    let own_pixels: Vec<f32> = prompt.patches.iter().flat_map(|patches| &patches.values).copied().collect();
    let pixel_values = run.pixel_values()?;
    let step = model.processor.pictures.as_ref().map_or(1.0, |pictures| pictures.pixel_step());
    let pixels = pixel_values.as_ref().map(|want| compare_pixels(&own_pixels, want, step));

    let outputs = see(model, &grids, pixel_values.as_deref().unwrap_or(&own_pixels))?;
    let mut stages = Vec::new();
    let mut compare = |name: String, found: &[f32]| -> Result<()> {
        if let Some(want) = run.result(&name)? {
            let error = relative_error(found, &want);
            stages.push(Stage { name, error });
        }
        Ok(())
    };
    if let Some(first) = outputs.first() {
        let joined = |of: &dyn Fn(&VisionOutput) -> &Tensor| -> Result<Vec<f32>> {
            let parts =
                outputs.iter().map(|output| of(output).to_vec::<f32>()).collect::<Result<Vec<_>>>()?;
            Ok(parts.concat())
        };
        compare("image_embeds".into(), &joined(&|output| &output.embeddings)?)?;
        for i in 0..first.deepstack.len() {
            compare(format!("deepstack.{i}"), &joined(&|output| &output.deepstack[i])?)?;
        }
    }
    let mut hidden = Ok(());
    let logits = model.trace(&ids, &outputs, &grids, |index, h| {
        if hidden.is_ok() {
            hidden = h.to_vec::<f32>().and_then(|h| compare(format!("hidden.{index}"), &h));
        }
    })?;
    hidden?;
    let mut logits = logits.to_vec::<f32>()?;
    if let Some(want) = run.result("logits")? {
        logits.drain(..logits.len().saturating_sub(want.len())); // some files have only the last token's
    }
    compare("logits".into(), &logits)?;

    let options = Options { max_new_tokens: run.generated_ids.len(), ..Options::default() };
    let output =
        model.generate_from(&mut model.session()?, &prompt, &options, |_| ControlFlow::Continue(()))?;
    let positions_equal = match run.has("position_ids") {
        true => Some(run.tensors.read_i64("position_ids")? == flat(&prompt.positions.axes)),
        false => None,
    };
    Ok(RunReport {
        name: run.name.clone(),
        prompt_ids_equal: prompt.ids == ids,
        positions_equal,
        pixels,
        stages,
        generated_equal: output.ids == run.generated_ids,
        generated_ids: output.ids,
    })
}

/// The vision tower's outputs for pixel values of several images, one after the other.
fn see(model: &LanguageModel, grids: &[[usize; 3]], pixels: &[f32]) -> Result<Vec<VisionOutput>> {
    let mut rest = pixels;
    let mut outputs = Vec::new();
    for &grid in grids {
        let len = model.config().vision.as_ref().map_or(0, |vision| vision.sizes().patch_len);
        let count = grid.iter().product::<usize>() * len;
        let (values, after) = rest.split_at(count.min(rest.len()));
        outputs.push(model.encode_image(&Patches { grid, values: values.to_vec() })?);
        rest = after;
    }
    Ok(outputs)
}

/// [tokens, axes] → [axes, tokens]
fn flat(axes: &[[u32; 3]]) -> Vec<i64> {
    (0..3).flat_map(|axis| axes.iter().map(move |position| i64::from(position[axis]))).collect()
}

fn compare_pixels(found: &[f32], want: &[f32], step: f64) -> Pixels {
    if found.len() != want.len() {
        return Pixels { equal: 0.0, most_steps: f64::INFINITY };
    }
    let pairs = || found.iter().zip(want);
    Pixels {
        equal: pairs().filter(|(found, want)| found == want).count() as f64 / want.len().max(1) as f64,
        most_steps: pairs()
            .map(|(&found, &want)| f64::from(found - want).abs() / step)
            .fold(0.0, |most, steps| if steps <= most { most } else { steps }), // NaN counts as larger
    }
}

/// ‖found − want‖ / ‖want‖; infinite if the lengths differ.
fn relative_error(found: &[f32], want: &[f32]) -> f64 {
    if found.len() != want.len() {
        return f64::INFINITY;
    }
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(want).map(|(&a, &b)| f64::from(a) - f64::from(b)));
    difference / norm(&mut want.iter().map(|&value| f64::from(value)))
}
