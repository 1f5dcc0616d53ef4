//! The results of another implementation: gradients and losses, in a folder with `cases_train.json` and `‹run›.safetensors`.
//!
//! A run has tokens, labels (−100 where there is no target), pixel values and grids of images, the loss, the gradients of some parameters
//! (`grad.‹parameter›`), rows of that of the embedding (`grad.embed`, `grad.embed_rows`), the norms of all of them
//! (`grad_norm.‹parameter›`), and the A of adapters (`lora.‹module›.lora_A.weight`). `cases_train.json` has the losses before each of
//! eight steps of AdamW and after the last one, of all parameters but the vision tower's and of adapters.

use crate::lora::{Lora, LoraOptions, is_of_vision};
use crate::model::{Example, Model};
use crate::optimizer::{Method, Optimizer, Schedule};
use crate::tape::Tape;
use pascaline::{Device, Error, Result, Tensor};
use qwen3_vl::files::read_at_most;
use qwen3_vl::preprocess::Patches;
use qwen3_vl::safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The optimiser of the reference's steps.
/// The most bytes of the list of cases.
const MAX_CASES: u64 = 64 << 20;
const LEARNING_RATE: f32 = 1e-3;
const WEIGHT_DECAY: f32 = 0.01;
/// The adapters of the reference's steps.
const RANK: usize = 4;
const ALPHA: f32 = 8.0;
const TARGETS: [&str; 2] = ["q_proj", "v_proj"];

/// How far results may be from the reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// ‖g − reference‖ / ‖reference‖ of each gradient.
    pub gradient: f64,
    /// |loss − reference|.
    pub loss: f64,
}

impl Limits {
    /// On the CPU, whose norms are added in f64.
    pub const CPU: Self = Self { gradient: 2e-5, loss: 1e-4 };
    /// On a GPU: all in f32, with its approximations of exp and 1/√.
    pub const GPU: Self = Self { gradient: 1e-4, loss: 1e-4 };
}

/// A run of the reference.
pub struct Run {
    /// Its name.
    pub name: String,
    file: PathBuf,
    tensors: SafeTensors,
    adamw_losses: Vec<f64>,
    lora_losses: Vec<f64>,
}

/// A gradient, compared with the reference's.
#[derive(Clone, Debug)]
pub struct Gradient {
    /// The parameter.
    pub name: String,
    /// The error's share of the reference's norm: of the elements where the reference has them, else of the norms.
    pub error: f64,
    /// Whether the elements were compared.
    pub elements: bool,
}

/// Losses, compared with the reference's.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Ours, before each step and after the last.
    pub found: Vec<f64>,
    /// The reference's.
    pub expected: Vec<f64>,
}

impl Losses {
    /// The largest difference; infinite if one is missing or not a number.
    pub fn worst(&self) -> f64 {
        if self.found.len() != self.expected.len() {
            return f64::INFINITY;
        }
        let differences = self.found.iter().zip(&self.expected).map(|(a, b)| (a - b).abs());
        differences.fold(0.0, |worst, x| {
            if x <= worst {
                worst
            } else if x.is_nan() {
                f64::INFINITY
            } else {
                x
            }
        })
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The loss, and the reference's in double precision.
    pub loss: Losses,
    /// The gradient of every parameter.
    pub gradients: Vec<Gradient>,
    /// Parameters of the model that the reference does not have, and the other way round.
    pub unmatched: Vec<String>,
    /// Steps of AdamW over all parameters but the vision tower's.
    pub adamw: Losses,
    /// Steps of AdamW over adapters.
    pub lora: Losses,
}

impl Outcome {
    /// Whether everything is within the limits.
    pub fn passed(&self, limits: &Limits) -> bool {
        let gradients = self.gradients.iter().all(|gradient| gradient.error <= limits.gradient);
        let losses = [&self.loss, &self.adamw, &self.lora].iter().all(|losses| losses.worst() <= limits.loss);
        gradients && !self.gradients.is_empty() && self.unmatched.is_empty() && losses
    }
}

/// Reads the runs of a folder.
///
/// # Errors
/// [`Error::Checkpoint`] with the file and what is wrong.
pub fn load(dir: &Path) -> Result<Vec<Run>> {
    let file = dir.join("cases_train.json");
    let bad = |reason: String| Error::Checkpoint { file: file.display().to_string(), item: None, reason };
    let text = read_at_most(&file, MAX_CASES).map_err(|error| bad(error.to_string()))?;
    let json: Value = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    let runs = json.get("runs").and_then(Value::as_array).ok_or_else(|| bad("has no list `runs`".into()))?;
    let load = |run: &Value| {
        let name = run.get("name").and_then(Value::as_str);
        let name = name.filter(|name| name.chars().all(|c| c.is_alphanumeric() || "_-".contains(c)));
        let name =
            name.ok_or_else(|| bad("a run has no `name` of letters, digits, `_` and `-`".into()))?.to_owned();
        let losses = |key: &str| -> Result<Vec<f64>> {
            let numbers = run.get(key).and_then(Value::as_array);
            let numbers = numbers.and_then(|list| list.iter().map(Value::as_f64).collect());
            numbers.ok_or_else(|| bad(format!("run {name}: `{key}` is missing or not a list of numbers")))
        };
        let (adamw_losses, lora_losses) = (losses("adamw_losses")?, losses("lora_losses")?);
        let tensors = SafeTensors::open(dir.join(format!("{name}.safetensors")))?;
        Ok(Run { file: tensors.path().to_owned(), name, tensors, adamw_losses, lora_losses })
    };
    runs.iter().map(load).collect()
}

impl Run {
    /// The sequence to learn from.
    ///
    /// # Errors
    /// [`Error::Checkpoint`].
    pub fn example(&self) -> Result<Example> {
        let ids = self.tensors.read_i64("input_ids")?.into_iter().map(|id| id as u32).collect();
        let is_answer = self.tensors.read_i64("labels")?.into_iter().map(|label| label >= 0).collect();
        let mut visuals = Vec::new();
        if self.has("pixel_values") {
            let values = self.tensors.read_f32("pixel_values")?;
            let patch = self.tensors.entries()["pixel_values"].shape.get(1).copied().unwrap_or(0);
            let mut rest = &values[..];
            for grid in self.tensors.read_i64("image_grid_thw")?.as_chunks::<3>().0 {
                let grid = grid.map(|size| size.max(0) as usize);
                let count = grid.iter().product::<usize>() * patch;
                let Some((own, others)) = rest.split_at_checked(count) else {
                    return Err(self.bad("pixel_values", "fewer patches than the grids have"));
                };
                visuals.push(Patches { values: own.to_vec(), grid });
                rest = others;
            }
        }
        Ok(Example { ids, is_answer, visuals })
    }

    /// Computes the run with the model in the directory `model`, and compares.
    ///
    /// # Errors
    /// [`Error::Checkpoint`], or a device error.
    pub fn check(&self, model: &Path, device: &Device) -> Result<Outcome> {
        let example = self.example()?;
        let mut trained = Model::load(model, device)?;
        let (loss, gradients, unmatched) = self.check_gradients(&mut trained)?;

        trained.parameters.train(|name| !is_of_vision(name));
        let adamw = Losses {
            found: steps(&mut trained, &example, self.adamw_losses.len())?,
            expected: self.adamw_losses.clone(),
        };

        let mut adapted = Model::load(model, device)?;
        let targets = TARGETS.map(String::from).to_vec();
        let options = LoraOptions { rank: RANK, alpha: ALPHA, targets, vision: false, seed: 0 };
        adapted.lora = Lora::add(&mut adapted.parameters, &options, device)?;
        for (name, adapter) in adapted.lora.adapters() {
            let values = self.tensors.read_f32(&format!("lora.{name}.lora_A.weight"))?;
            let shape = adapted.parameters.get(adapter.a).value().shape().clone();
            adapted.parameters.set(adapter.a, Tensor::from_slice(&values, shape, device)?)?;
        }
        let lora = Losses {
            found: steps(&mut adapted, &example, self.lora_losses.len())?,
            expected: self.lora_losses.clone(),
        };
        Ok(Outcome { loss, gradients, unmatched, adamw, lora })
    }

    /// The loss and the gradients of a model, compared with the reference's, and names for which only one of the two has a gradient.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub fn check_gradients(&self, model: &mut Model) -> Result<(Losses, Vec<Gradient>, Vec<String>)> {
        let found = vec![gradients(model, &self.example()?)?];
        let expected = self.tensors.read_f32("loss")?.into_iter().map(f64::from).collect();
        let (gradients, unmatched) = self.compare(model)?;
        Ok((Losses { found, expected }, gradients, unmatched))
    }

    /// Compares each gradient with the reference's.
    fn compare(&self, model: &Model) -> Result<(Vec<Gradient>, Vec<String>)> {
        let (mut found, mut unmatched) = (Vec::new(), Vec::new());
        for parameter in model.parameters.iter() {
            let name = parameter.name();
            let Some(norm) = self.optional(&format!("grad_norm.{name}"))? else {
                // in a run without images, the vision tower has no gradients
                if parameter.found().is_some() {
                    unmatched.push(name.to_owned());
                }
                continue;
            };
            let gradient = parameter.gradient()?.to_vec::<f32>()?;
            let norm = f64::from(norm.first().copied().unwrap_or(f32::NAN));
            let elements = self.optional(&format!("grad.{name}"))?;
            let mut error = relative((length(&gradient) - norm).abs(), norm);
            if let Some(expected) = &elements {
                error = error.max(distance(&gradient, expected));
            }
            found.push(Gradient { name: name.to_owned(), error, elements: elements.is_some() });
            if name == model.config().embedding() && self.has("grad.embed") {
                let width = model.config().text.hidden_size;
                let rows = self.tensors.read_i64("grad.embed_rows")?;
                let rows: Vec<f32> = rows
                    .iter()
                    .filter_map(|&row| gradient.chunks_exact(width).nth(row as usize))
                    .flatten()
                    .copied()
                    .collect();
                let error = distance(&rows, &self.tensors.read_f32("grad.embed")?);
                found.push(Gradient { name: format!("{name}, rows of the tokens"), error, elements: true });
            }
        }
        let names = self.tensors.entries().keys().filter_map(|key| key.strip_prefix("grad_norm."));
        unmatched.extend(names.filter(|name| model.parameters.find(name).is_none()).map(str::to_owned));
        Ok((found, unmatched))
    }

    fn has(&self, name: &str) -> bool {
        self.tensors.entries().contains_key(name)
    }

    fn optional(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.has(name).then(|| self.tensors.read_f32(name)).transpose()
    }

    fn bad(&self, item: &str, reason: &str) -> Error {
        Error::Checkpoint {
            file: self.file.display().to_string(),
            item: Some(item.into()),
            reason: reason.into(),
        }
    }
}

/// The loss, with its gradients left in the parameters.
fn gradients(model: &mut Model, example: &Example) -> Result<f64> {
    model.parameters.zero_gradients();
    let mut tape = Tape::new();
    let targets = example.targets().max(1);
    let loss = model.loss(&mut tape, std::slice::from_ref(example), 1.0 / targets as f32)?;
    let mean = loss.sum()? / targets as f64;
    tape.backward(&loss.each, &mut model.parameters)?;
    Ok(mean)
}

/// The losses before each of `count` − 1 steps and after the last.
fn steps(model: &mut Model, example: &Example, count: usize) -> Result<Vec<f64>> {
    let mut optimizer = Optimizer::new(Method::default(), Schedule::constant(LEARNING_RATE), WEIGHT_DECAY);
    let mut losses = Vec::with_capacity(count);
    for step in 0..count {
        losses.push(gradients(model, example)?);
        if step + 1 < count {
            optimizer.step(&mut model.parameters)?;
        }
    }
    Ok(losses)
}

fn length(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
}

/// The length of the difference as a share of the expected length; infinite for other sizes.
fn distance(found: &[f32], expected: &[f32]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let squares = found.iter().zip(expected).map(|(&a, &b)| (f64::from(a) - f64::from(b)).powi(2));
    relative(squares.sum::<f64>().sqrt(), length(expected))
}

/// Infinite where it is not a number.
fn relative(error: f64, of: f64) -> f64 {
    let share = if error == 0.0 { 0.0 } else { error / of };
    if share.is_nan() { f64::INFINITY } else { share }
}
