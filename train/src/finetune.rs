//! A fine-tune: passes over examples in a seeded order, steps, evaluations, and a stored state from which a run continues bit for bit.

use crate::curve::{self, Point};
use crate::files::{bad, put_tensors};
use crate::model::{Example, Model};
use crate::optimizer::{Optimizer, Step};
use crate::state::StateFolder;
use crate::tape::Tape;
use pascaline::ops::{ATTENTION_BACKWARD_BYTES, CROSS_ENTROPY_BYTES};
use pascaline::{Result, Tensor};
use qwen3_vl::config::{Config, VisionConfig};
use qwen3_vl::safetensors::SafeTensors;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde_json::{Value, json};
use std::ops::ControlFlow;

/// The files of a state.
const PARAMETERS: &str = "parameters.safetensors";
const MOMENTS: &str = "moments.safetensors";

/// How to go through the examples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Passes over the examples.
    pub epochs: u32,
    /// Examples of a step.
    pub batch: usize,
    /// The most tokens of one pass through the model: the examples of a step are packed into as few such sequences as their order allows.
    pub tokens: usize,
    /// The share of the examples that is kept for evaluation.
    pub held_out: f64,
    /// Seeds the order of the examples, and the choice of those held out.
    pub seed: u64,
}

impl Plan {
    /// The number of steps for so many training examples.
    pub fn steps(&self, examples: usize) -> u32 {
        (examples.div_ceil(self.batch.max(1)) as u32).saturating_mul(self.epochs)
    }

    /// The indices of the training examples and of those held out, of so many.
    pub fn split(&self, examples: usize) -> (Vec<usize>, Vec<usize>) {
        let mut order = shuffled(examples, self.seed);
        let held_out = (examples as f64 * self.held_out.clamp(0.0, 1.0)).round() as usize;
        let rest = order.split_off(held_out.min(examples.saturating_sub(1)));
        (rest, order)
    }
}

/// The result of a step, or of an evaluation after a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A step was made.
    Step {
        /// Its number.
        number: u32,
        /// The mean loss of the tokens before it.
        loss: f64,
        /// Tokens that went through the model.
        tokens: usize,
        /// Its learning rate, and the norm of the gradients.
        step: Step,
    },
    /// The held-out examples were evaluated.
    Evaluation {
        /// After so many steps.
        number: u32,
        /// The mean loss of their tokens.
        loss: f64,
        /// The share of them whose whole answer is right.
        right: f64,
    },
}

/// How a fine-tune ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All passes are done.
    Done,
    /// It was stopped after a step.
    Stopped,
}

/// A model that is being fine-tuned.
pub struct FineTune<'a> {
    /// The model.
    pub model: &'a mut Model,
    /// Its optimiser.
    pub optimizer: Optimizer,
    /// The plan that it follows.
    pub plan: Plan,
}

impl FineTune<'_> {
    /// Continues from the step that the optimiser has reached, until all passes are done or `on_event` breaks.
    ///
    /// # Errors
    /// As [`Model::loss`] and [`Optimizer::step`].
    pub fn run(
        &mut self,
        examples: &[Example],
        mut on_event: impl FnMut(&mut Self, Event) -> Result<ControlFlow<()>>,
    ) -> Result<End> {
        let (learned, held_out) = self.plan.split(examples.len());
        let per_epoch = self.plan.steps(learned.len()) / self.plan.epochs.max(1);
        let batch = self.plan.batch.max(1);
        while self.optimizer.steps() < per_epoch * self.plan.epochs {
            let (epoch, at) = (self.optimizer.steps() / per_epoch, self.optimizer.steps() % per_epoch);
            let order = shuffled(learned.len(), self.plan.seed.wrapping_add(1 + u64::from(epoch)));
            let chosen = order.iter().skip(at as usize * batch).take(batch).map(|&i| &examples[learned[i]]);
            let (loss, tokens) = self.accumulate(&chosen.collect::<Vec<_>>())?;
            let step = self.optimizer.step(&mut self.model.parameters)?;
            let number = self.optimizer.steps();
            let mut flow = on_event(self, Event::Step { number, loss, tokens, step })?;
            if number.is_multiple_of(per_epoch) && !held_out.is_empty() {
                let (loss, right) = self.evaluate(held_out.iter().map(|&i| &examples[i]))?;
                let stopped = on_event(self, Event::Evaluation { number, loss, right })?;
                flow = if stopped.is_break() { stopped } else { flow };
            }
            if flow.is_break() {
                return Ok(End::Stopped);
            }
        }
        Ok(End::Done)
    }

    /// Accumulates the gradients of the mean loss of these examples' targets. Returns the loss and the number of all tokens.
    fn accumulate(&mut self, examples: &[&Example]) -> Result<(f64, usize)> {
        let targets: usize = examples.iter().map(|example| example.targets()).sum();
        let (mut sum, mut tokens) = (0.0, 0);
        for pack in packs(examples, self.plan.tokens) {
            let mut tape = Tape::new();
            let loss = self.model.loss(&mut tape, &pack, 1.0 / targets.max(1) as f32)?;
            tokens += pack.iter().map(|example| example.ids.len()).sum::<usize>();
            tape.backward(&loss.each, &mut self.model.parameters)?;
            sum += loss.sum()?; // last, as it waits for the device
        }
        Ok((sum / targets.max(1) as f64, tokens))
    }

    /// The mean loss of tokens, and the share of examples whose whole answer is right.
    fn evaluate<'e>(&self, examples: impl Iterator<Item = &'e Example>) -> Result<(f64, f64)> {
        let (mut sum, mut targets, mut right, mut count) = (0.0, 0, 0, 0);
        for example in examples {
            sum += self.model.loss(&mut Tape::silent(), std::slice::from_ref(example), 1.0)?.sum()?;
            targets += example.targets();
            right += usize::from(self.model.predicts(example)?.into_iter().all(|right| right));
            count += 1;
        }
        Ok((sum / f64::from(targets.max(1) as u32), right as f64 / f64::from(count.max(1) as u32)))
    }

    /// Stores the trained parameters, the moments, the number of steps and the losses so far.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file, or a device error.
    pub fn save(&self, state: &StateFolder, points: &[Point]) -> Result<()> {
        let trained = self.model.parameters.iter().filter(|parameter| parameter.is_trained());
        let trained: Vec<_> =
            trained.map(|parameter| (parameter.name().to_owned(), parameter.value())).collect();
        let moments = self.optimizer.moments(&self.model.parameters)?;
        let moments: Vec<_> = moments.iter().map(|(name, moment)| (name.clone(), moment)).collect();
        let shape = |_: &str, tensor: &Tensor| tensor.dims().to_vec();
        let table = curve::table(points);
        state.save(
            self.optimizer.steps(),
            self.run_id(),
            &[
                (PARAMETERS, &|to| put_tensors(to, &trained, shape)),
                (MOMENTS, &|to| put_tensors(to, &moments, shape)),
                (curve::TABLE, &|to| to.write_all(table.as_bytes())),
            ],
        )
    }

    /// Continues from the state that [`save`](Self::save) has stored, and returns the losses up to there; `None` if no state was ever
    /// completed, so that the run is at its beginning.
    ///
    /// # Errors
    /// [`Error::Checkpoint`](pascaline::Error::Checkpoint) with the file and what is wrong, such as that it belongs to a run with other options.
    pub fn resume(&mut self, state: &StateFolder) -> Result<Option<Vec<Point>>> {
        let Some(stored) = state.load()? else { return Ok(None) };
        if stored.run != self.run_id() {
            return Err(bad(
                &state.manifest_file(),
                "belongs to a run with other options; use the same options, or start in another folder",
            ));
        }
        let parameters = SafeTensors::open(stored.folder.join(PARAMETERS))?;
        let points = curve::read(&stored.folder.join(curve::TABLE))?;
        let device = self.model.device().clone();
        let mut numbers = Vec::new();
        for (number, parameter) in self.model.parameters.iter().enumerate() {
            if parameter.is_trained() {
                let values = parameters.read_f32(parameter.name())?;
                numbers.push((number, Tensor::from_slice(&values, parameter.value().shape(), &device)?));
            }
        }
        for (number, value) in numbers {
            self.model.parameters.set(number, value)?;
        }
        let moments = SafeTensors::open(stored.folder.join(MOMENTS))?;
        self.optimizer.resume(stored.steps, &self.model.parameters, |name, like| {
            if !moments.entries().contains_key(name) {
                return Ok(None);
            }
            Tensor::from_slice(&moments.read_f32(name)?, like.shape(), &device).map(Some)
        })?;
        Ok(Some(points))
    }

    /// The options that must be the same for a run to be resumed.
    fn run_id(&self) -> Value {
        let Plan { epochs, batch, tokens, held_out, seed } = self.plan;
        let trained = self.model.parameters.iter().filter(|parameter| parameter.is_trained());
        let trained: Vec<_> =
            trained.map(|parameter| json!([parameter.name(), parameter.value().dims()])).collect();
        let mut run = json!({
            // numbers with fractions as text, which JSON gives back as it was
            "epochs": epochs, "batch": batch, "tokens": tokens, "held_out": held_out.to_string(), "seed": seed,
            "trained": trained, "scale": self.model.lora.scale().to_string(), "optimizer": self.optimizer.describe(),
        });
        if !self.model.quantize_aware.is_empty() {
            run["quantize_aware"] = json!(self.model.quantize_aware.describe());
        }
        run
    }
}

/// Examples in order, packed into sequences of at most `tokens` tokens, or of one example.
fn packs(examples: &[&Example], tokens: usize) -> Vec<Vec<Example>> {
    let mut packs: Vec<Vec<Example>> = Vec::new();
    let mut filled = usize::MAX;
    for &example in examples {
        match packs.last_mut().filter(|_| filled.saturating_add(example.ids.len()) <= tokens) {
            Some(pack) => {
                pack.push(example.clone());
                filled += example.ids.len();
            }
            None => {
                packs.push(vec![example.clone()]);
                filled = example.ids.len();
            }
        }
    }
    packs
}

/// The numbers below `count` in the order of a seed (Fisher & Yates).
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut order: Vec<usize> = (0..count).collect();
    for i in (1..count).rev() {
        order.swap(i, (rng.next_u64() % (i as u64 + 1)) as usize);
    }
    order
}

/// An upper bound of the bytes that a fine-tune takes on its device, estimated from sizes before anything is loaded.
///
/// It counts `weights` bytes of weights, two gradients of the trained parameters (before and after one is added), `moments` bytes, what the
/// tape keeps of the longest pass, the largest matrix in f32, and the logits of a chunk of rows or, if they are more, attention's scores.
/// `vision`: whether any of the vision tower is trained; if not, the tape keeps nothing of it.
pub fn memory(
    config: &Config,
    weights: usize,
    [trained, moments]: [usize; 2],
    tokens: usize,
    patches: usize,
    [vision, checkpoint_layers]: [bool; 2],
) -> usize {
    const F32: usize = 4;
    let text = &config.text;
    let seeing = qwen3_vl::config::seeing(config);
    let tower = |of: fn(&VisionConfig) -> usize| seeing.map_or(0, |seeing| of(&seeing.tower));
    let width = tower(|tower| tower.hidden_size);
    // the cross-entropy: logits of a chunk, and the products with them
    let logits = 3 * CROSS_ENTROPY_BYTES.min(F32 * tokens * text.vocab_size);
    let heads = (text.num_attention_heads + 2 * text.num_key_value_heads) * text.head_dim;
    // x, two norms, the attended rows, two sums; projections, normed and rotated; gate, up and their product
    let text_row = 7 * text.hidden_size + 3 * heads + 3 * text.intermediate_size;
    let vision_row = 16 * width + 2 * tower(|tower| tower.intermediate_size);
    let kept = |layers: usize, row: usize, x: usize| match checkpoint_layers {
        true => layers * x + row,
        false => layers * row,
    };
    let tape = tokens * kept(text.num_hidden_layers, text_row, 2 * text.hidden_size)
        + if vision { patches * kept(tower(|tower| tower.depth), vision_row, 2 * width) } else { 0 };
    // the scores of attention's gradients, which are all of a chunk where they are few, and dk and dv of parts of its queries
    let rows = if vision { tokens.max(patches) } else { tokens }.next_multiple_of(64);
    let scores = ATTENTION_BACKWARD_BYTES.min(F32 * text.num_attention_heads * rows * rows);
    let attention =
        scores + F32 * tokens * (8 * text.num_key_value_heads + 2 * text.num_attention_heads) * text.head_dim;
    // a layer's gradients are needed in addition to what is kept
    let gradients = tokens * text_row + patches * vision_row;
    let matrix = text.hidden_size * text.intermediate_size.max(text.num_attention_heads * text.head_dim);
    // the cross-entropy comes before attention's gradients
    weights + moments + F32 * (2 * trained + tape + gradients + matrix) + logits.max(attention)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Frozen;
    use crate::optimizer::Method;
    use pascaline::quant::Format;
    use qwen3_vl::seam::is_of_layers;
    use std::path::Path;

    /// Adapters over the published 2B model in Q4_0, with a picture of 512 × 512 pixels and 512 tokens of text.
    #[test]
    fn a_quantized_2b_model_is_planned_for_8_gb() {
        let config = r#"{"model_type": "qwen3_vl", "tie_word_embeddings": true, "image_token_id": 1, "video_token_id": 2,
            "vision_start_token_id": 3, "vision_end_token_id": 4,
            "text_config": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 5000000.0,
            "rope_scaling": {"mrope_section": [24, 20, 20]}},
            "vision_config": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16,
            "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304, "out_hidden_size": 2048,
            "deepstack_visual_indexes": [5, 11, 17]}}"#;
        let config = qwen3_vl::config::parse(Path::new("config.json"), config.as_bytes()).unwrap();
        let storage = Frozen::Quantized(Format::Q4_0);
        let shapes = config.tensors();
        let weights = shapes.iter().map(|(name, shape)| storage.bytes(name, shape).unwrap()).sum();
        let of_layers = shapes.iter().filter(|(name, shape)| is_of_layers(name) && shape.len() == 2);
        let trained = of_layers.map(|(_, shape)| 16 * shape.iter().sum::<usize>()).sum();
        let moments = Method::default().bytes(trained);
        let planned = |checkpoint_layers| {
            memory(&config, weights, [trained, moments], 512 + 256, 1024, [false, checkpoint_layers])
        };
        assert!((3_000_000_000..4_500_000_000).contains(&planned(true)), "{}", planned(true));
        assert!((6_000_000_000..8_000_000_000).contains(&planned(false)), "{}", planned(false));
    }

    #[test]
    fn orders_are_permutations_and_differ_by_seed() {
        let order = shuffled(100, 1);
        let mut sorted = order.clone();
        sorted.sort();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
        assert!(order != shuffled(100, 2) && order == shuffled(100, 1));
    }

    #[test]
    fn what_is_held_out_is_not_learned() {
        let plan = Plan { epochs: 2, batch: 8, tokens: 100, held_out: 0.2, seed: 3 };
        let (learned, held_out) = plan.split(50);
        assert_eq!((learned.len(), held_out.len(), plan.steps(learned.len())), (40, 10, 10));
        assert!(learned.iter().all(|i| !held_out.contains(i)));
        assert_eq!(Plan { held_out: 1.0, ..plan }.split(3).0.len(), 1, "one is always learned");
    }

    #[test]
    fn packs_keep_the_order_and_the_limit() {
        let of = |len: usize| Example { ids: vec![0; len], is_answer: vec![true; len], visuals: Vec::new() };
        let (a, b, c, d) = (of(5), of(4), of(2), of(30));
        let lens: Vec<Vec<usize>> = packs(&[&a, &b, &c, &d], 10)
            .iter()
            .map(|pack| pack.iter().map(|example| example.ids.len()).collect())
            .collect();
        assert_eq!(lens, [vec![5, 4], vec![2], vec![30]]);
    }
}
