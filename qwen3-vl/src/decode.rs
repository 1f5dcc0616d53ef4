//! Decode: the pass of one token after the prompt. On GPUs it is captured once and replayed.

use super::model::Qwen3Vl;
use super::relay::Relay;
use super::sampling::{self, Sampler};
use super::text::{Images, Stage, TextModel};
use pascaline::nn::{KvCache, Rope};
use pascaline::{DType, Result, Tensor, ops};

/// Positions whose rotary angles are made at a time.
pub(super) const ANGLES_AHEAD: u32 = 256;

/// The outputs of a pass, from which the next token is chosen.
pub(super) struct Logits {
    /// [1, vocab]
    all: Tensor,
    /// Where the largest is, and what: `[1]` and [1, 1]. Only for choices that need no more: the others stay where they are.
    best: Option<(Tensor, Tensor)>,
}

impl Logits {
    pub fn of(all: Tensor, sampler: &Sampler) -> Result<Self> {
        if !sampler.takes_the_largest() {
            return Ok(Self { all, best: None });
        }
        let id = ops::argmax(&all)?;
        let column = all.reshape([all.shape().elements(), 1])?;
        let value = ops::embedding(&column, &id)?;
        Ok(Self { all, best: Some((id, value)) })
    }

    /// The next token.
    pub fn choose(&self, sampler: &mut Sampler) -> Result<u32> {
        match &self.best {
            Some((id, value)) => sampling::checked(id.to_vec()?[0], value.to_vec()?[0]),
            None => sampler.next(&mut self.all.to_vec()?),
        }
    }
}

/// Passes one token after another.
pub(super) struct Decoder<'a> {
    text: &'a TextModel,
    /// The next token's position, the same on all axes, and that of the first angle.
    next: u32,
    first: u32,
    /// Of each stage, [ANGLES_AHEAD, head_dim / 2]: cosines and sines.
    angles: Vec<[Tensor; 2]>,
    /// Of each stage, [3] u32: the token, how many are in the cache before it, and its angle.
    steps: Vec<Tensor>,
    captured: Option<Relay<Logits>>,
    capture: bool,
}

impl<'a> Decoder<'a> {
    /// For tokens from position `next` on, all of which fit 32 bits with [`ANGLES_AHEAD`] more; with `capture`, by graphs, if no layer's weights have to be copied meanwhile.
    pub fn new(model: &'a Qwen3Vl, next: u32, capture: bool) -> Result<Self> {
        let text = &model.text;
        let angles = text.angles(&positions(next))?;
        let step = |stage: &Stage| Tensor::zeros([3], DType::U32, &stage.device);
        let steps = text.stages().iter().map(step).collect::<Result<_>>()?;
        let capture = capture && text.device().is_cuda() && text.streamed_layers() == 0;
        Ok(Self { text, next, first: next, angles, steps, captured: None, capture })
    }

    /// Appends a token to the cache and chooses the next.
    pub fn next(&mut self, cache: &mut KvCache, id: u32, sampler: &mut Sampler) -> Result<u32> {
        self.feed(cache.len(), id)?;
        if !self.capture {
            let logits = self.pass(cache, sampler)?;
            self.text.settle()?;
            return logits.choose(sampler);
        }
        if self.captured.is_some() {
            cache.advance(1)?;
        }
        let captured = match &mut self.captured {
            Some(captured) => captured,
            none => none.insert(Self::captured(self.text, &self.angles, &self.steps, cache, sampler)?),
        };
        let logits = captured.launch(self.text)?;
        self.text.settle()?;
        logits.choose(sampler)
    }

    /// How many launches the captured pass has; `None` if there is none.
    pub fn launches(&self) -> Option<usize> {
        self.captured.as_ref().map(Relay::nodes)
    }

    /// Writes what differs from token to token.
    fn feed(&mut self, past: usize, id: u32) -> Result<()> {
        if self.next - self.first == ANGLES_AHEAD {
            self.first = self.next;
            let angles = self.text.angles(&positions(self.next))?;
            for (to, from) in self.angles.iter_mut().flatten().zip(angles.iter().flatten()) {
                ops::copy_into(to.view_mut()?, from)?;
            }
        }
        for step in &mut self.steps {
            step.view_mut()?.write(&[id, past as u32, self.next - self.first])?;
        }
        self.next += 1;
        Ok(())
    }

    /// The pass itself.
    fn pass(&self, cache: &mut KvCache, sampler: &Sampler) -> Result<Logits> {
        let text = self.text;
        let mut hidden = text.embed(&self.steps[0].narrow(0, 0, 1)?, Images::default())?;
        for stage in 0..text.stages().len() {
            if stage > 0 {
                hidden = text.pass_on(stage - 1, &hidden)?;
            }
            hidden = stage_of(text, &self.angles, &self.steps, cache, stage, hidden)?;
        }
        Logits::of(text.logits(&hidden)?, sampler)
    }

    /// The pass, captured: launches only, whose arguments are the same for every token.
    fn captured(
        text: &TextModel,
        angles: &[[Tensor; 2]],
        steps: &[Tensor],
        cache: &mut KvCache,
        sampler: &Sampler,
    ) -> Result<Relay<Logits>> {
        let stage = |stage: usize, input: Option<&Tensor>| {
            let hidden = match input {
                Some(hidden) => hidden.clone(),
                None => text.embed(&steps[0].narrow(0, 0, 1)?, Images::default())?,
            };
            stage_of(text, angles, steps, cache, stage, hidden)
        };
        Relay::capture(text, 1, stage, |hidden| Logits::of(text.logits_at_home(hidden)?, sampler))
    }
}

/// The part of a token's pass on one device.
fn stage_of(
    text: &TextModel,
    angles: &[[Tensor; 2]],
    steps: &[Tensor],
    cache: &mut KvCache,
    stage: usize,
    hidden: Tensor,
) -> Result<Tensor> {
    let [cos, sin] = angles[stage].clone();
    let rope = Rope { cos, sin, at: steps[stage].narrow(0, 1, 2)? };
    let mut caches = cache.caches_of(text.stages()[stage].range.clone());
    text.run(stage, hidden, &rope, Images::default(), &mut caches, &mut |_, _| {})
}

/// A token's positions on the three axes, and those of the tokens after it.
fn positions(first: u32) -> Vec<[u32; 3]> {
    (0..ANGLES_AHEAD).map(|ahead| [first + ahead; 3]).collect()
}
