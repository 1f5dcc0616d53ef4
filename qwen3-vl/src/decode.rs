//! Decode: the pass of one token after the prompt. On a GPU it is captured once and replayed.

use super::model::Qwen3Vl;
use super::sampling::{self, Sampler};
use super::text::{Images, TextModel};
use pascaline::cuda::Graph;
use pascaline::nn::{KvCache, Rope};
use pascaline::{DType, Device, Result, Tensor, ops};

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
    device: &'a Device,
    /// The next token's position, the same on all axes, and that of the first angle.
    next: u32,
    first: u32,
    /// [ANGLES_AHEAD, head_dim / 2]: cosines and sines.
    angles: [Tensor; 2],
    /// [3] u32: the token, how many are in the cache before it, and its angle.
    step: Tensor,
    captured: Option<(Graph, Logits)>,
    capture: bool,
}

impl<'a> Decoder<'a> {
    /// For tokens from position `next` on, all of which fit 32 bits with [`ANGLES_AHEAD`] more; with `capture`, by a graph, if no layer's weights have to be copied meanwhile.
    pub fn new(model: &'a Qwen3Vl, next: u32, capture: bool) -> Result<Self> {
        let (text, device) = (&model.text, model.device());
        let angles = text.angles(&positions(next))?;
        let step = Tensor::zeros([3], DType::U32, device)?;
        let capture = capture && text.streamed_layers() == 0;
        Ok(Self { text, device, next, first: next, angles, step, captured: None, capture })
    }

    /// Appends a token to the cache and chooses the next.
    pub fn next(&mut self, cache: &mut KvCache, id: u32, sampler: &mut Sampler) -> Result<u32> {
        self.feed(cache.len(), id)?;
        if let Some((graph, logits)) = &self.captured {
            cache.advance(1)?;
            graph.launch()?;
            return logits.choose(sampler);
        }
        let Device::Cuda(device) = self.device else { return self.pass(cache, sampler)?.choose(sampler) };
        if !self.capture {
            return self.pass(cache, sampler)?.choose(sampler);
        }
        let (graph, logits) = Graph::capture(device, || self.pass(cache, sampler))?;
        graph.launch()?;
        let next = logits.choose(sampler);
        self.captured = Some((graph, logits));
        next
    }

    /// How many launches the captured pass has; `None` if there is none.
    pub fn launches(&self) -> Option<usize> {
        self.captured.as_ref().map(|(graph, _)| graph.nodes())
    }

    /// Writes what differs from token to token.
    fn feed(&mut self, past: usize, id: u32) -> Result<()> {
        if self.next - self.first == ANGLES_AHEAD {
            self.first = self.next;
            let angles = self.text.angles(&positions(self.next))?;
            for (to, from) in self.angles.iter_mut().zip(&angles) {
                ops::copy_into(to.view_mut()?, from)?;
            }
        }
        self.step.view_mut()?.write(&[id, past as u32, self.next - self.first])?;
        self.next += 1;
        Ok(())
    }

    /// The pass itself: launches only, whose arguments are the same for every token.
    fn pass(&self, cache: &mut KvCache, sampler: &Sampler) -> Result<Logits> {
        let ([cos, sin], ids) = (self.angles.clone(), self.step.narrow(0, 0, 1)?);
        let rope = Rope { cos, sin, at: self.step.narrow(0, 1, 2)? };
        let hidden = self.text.forward(&ids, &rope, Images::default(), cache.caches(), &mut |_, _| {})?;
        Logits::of(self.text.logits(&hidden)?, sampler)
    }
}

/// A token's positions on the three axes, and those of the tokens after it.
fn positions(first: u32) -> Vec<[u32; 3]> {
    (0..ANGLES_AHEAD).map(|ahead| [first + ahead; 3]).collect()
}
