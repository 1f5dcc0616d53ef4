//! Decode: the pass of one token after the prompt, or of several with guessed tokens. On GPUs it is captured once and
//! replayed.

use super::lookup::Lookup;
use super::network::{Network, peaks};
use super::relay::Relay;
use super::sampling::{self, Sampler};
use super::text::{Images, Stage, TextModel};
use pascaline::cuda::trace;
use pascaline::nn::{KvCache, Rope};
use pascaline::{DType, Device, Result, Tensor, memory, ops};
use std::time::Instant;

/// Positions whose rotary angles are computed at a time.
pub(super) const ANGLES_AHEAD: u32 = 256;
/// Tokens of a pass that checks guesses: the most that attention takes if a captured pass reads the cache's length on the
/// device.
pub(super) const CHECKED: usize = ops::MAX_CACHED_QUERIES;

/// The outputs of a pass, from which the next tokens are chosen.
pub(super) struct Logits {
    /// [rows, vocab]
    all: Tensor,
    /// Index and value of each row's largest logit, [rows] each; present if the sampler needs no more, so that the logits
    /// are not copied to the host.
    best: Option<[Tensor; 2]>,
}

impl Logits {
    pub fn new(all: Tensor, sampler: &Sampler) -> Result<Self> {
        if !sampler.takes_the_largest() {
            return Ok(Self { all, best: None });
        }
        let ids = ops::argmax(&all)?;
        let values = match all.dims()[0] {
            // copying one number is faster than all logits
            1 => ops::embedding(&all.reshape([all.shape().elements(), 1])?, &ids)?.reshape([1])?,
            _ => ops::max(&all)?,
        };
        Ok(Self { all, best: Some([ids, values]) })
    }

    /// The token after the first row.
    pub fn choose(&self, sampler: &mut Sampler) -> Result<u32> {
        self.rows()?.choose(0, sampler)
    }

    /// The values that all rows' tokens are chosen from, copied to the host.
    fn rows(&self) -> Result<Rows> {
        Ok(match &self.best {
            Some([ids, values]) => Rows::Largest(ids.to_vec()?, values.to_vec()?),
            None => Rows::All(self.all.to_vec()?, self.all.dims()[1]),
        })
    }
}

/// The outputs of a pass in host memory.
enum Rows {
    /// Each row's largest logit: index and value.
    Largest(Vec<u32>, Vec<f32>),
    /// [rows, vocab], and vocab.
    All(Vec<f32>, usize),
}

impl Rows {
    /// The token after a row. May be called once for each row, as the sampler's state advances.
    fn choose(&mut self, row: usize, sampler: &mut Sampler) -> Result<u32> {
        match self {
            Self::Largest(ids, values) => sampling::checked(ids[row], values[row]),
            Self::All(logits, vocab) => sampler.next(&mut logits[row * *vocab..][..*vocab]),
        }
    }
}

/// RowPasses of a fixed number of tokens, and their inputs in device memory.
struct RowPasses {
    rows: usize,
    /// For each stage, [rows + 2] u32: the tokens, the cache's length before them, and the index of the first one's angle.
    steps: Vec<Tensor>,
    captured: Option<Relay<Logits>>,
}

impl RowPasses {
    fn new(rows: usize, text: &TextModel) -> Result<Self> {
        let step = |stage: &Stage| Tensor::zeros([rows + 2], DType::U32, &stage.device);
        let steps = text.stages().iter().map(step).collect::<Result<_>>()?;
        Ok(Self { rows, steps, captured: None })
    }
}

/// A pass whose tokens after the first were guessed.
struct Checked {
    guess: Vec<u32>,
    /// Guesses known to be right so far.
    right: usize,
    /// Tokens in the cache before the pass.
    past: usize,
    rows: Rows,
}

/// Counts of guesses.
#[derive(Clone, Copy, Default)]
pub(super) struct Guesses {
    pub checked: usize,
    pub right: usize,
}

/// Computes one token after another, or with a [`Lookup`] several at once where the next tokens can be guessed.
pub(super) struct Decoder<'a> {
    text: &'a TextModel,
    /// The next token's position, the same on all axes, and the position of the first angle.
    next: u32,
    first: u32,
    /// For each stage, [ANGLES_AHEAD, head_dim / 2]: cosines and sines.
    angles: Vec<[Tensor; 2]>,
    one: RowPasses,
    several: Option<(RowPasses, Lookup)>,
    checked: Option<Checked>,
    guesses: Guesses,
    capture: bool,
}

impl<'a> Decoder<'a> {
    /// For tokens from position `next` on; all positions and [`ANGLES_AHEAD`] more must fit 32 bits. With `capture`, passes
    /// are graphs, unless weights are in host memory.
    pub fn new(model: &'a Network, next: u32, capture: bool, lookup: Option<Lookup>) -> Result<Self> {
        let text = &model.text;
        let angles = text.angles(&positions(next))?;
        let one = RowPasses::new(1, text)?;
        let several = lookup.map(|lookup| Ok((RowPasses::new(CHECKED, text)?, lookup))).transpose()?;
        let capture = capture && text.is_capturable();
        let (checked, guesses) = (None, Guesses::default());
        Ok(Self { text, next, first: next, angles, one, several, checked, guesses, capture })
    }

    /// Appends a token to the cache and chooses the next. With a lookup, the cache may hold wrong guesses after it.
    pub fn next(&mut self, cache: &mut KvCache, id: u32, sampler: &mut Sampler) -> Result<u32> {
        if let Some((_, lookup)) = &mut self.several {
            lookup.push(id);
        }
        if let Some(mut checked) = self.checked.take() {
            if checked.guess.get(checked.right) == Some(&id) {
                checked.right += 1;
                self.guesses.right += 1;
                self.next += 1;
                let next = checked.rows.choose(checked.right, sampler);
                self.checked = Some(checked);
                return next;
            }
            cache.truncate(checked.past + 1 + checked.right);
        }
        let past = cache.len();
        let room = cache.capacity() - past >= CHECKED;
        let guess = self.several.as_ref().filter(|_| room).and_then(|(_, lookup)| lookup.guess(CHECKED - 1));
        let begin = Instant::now();
        let ids = [&[id], guess.as_deref().unwrap_or_default()].concat();
        self.extend_angles(ids.len())?;
        let passes = match (&mut self.several, &guess) {
            (Some((several, _)), Some(_)) => several,
            _ => &mut self.one,
        };
        let numbers = [ids.as_slice(), &[past as u32, self.next - self.first]].concat();
        for step in &mut passes.steps {
            step.view_mut()?.write(&numbers)?;
        }
        self.next += 1;
        let is_first = passes.captured.is_none();
        let mut rows = pass(self.text, &self.angles, passes, self.capture, cache, sampler)?;
        let next = rows.choose(0, sampler);
        if let Some((_, lookup)) = &mut self.several
            && !(is_first && self.capture)
        {
            lookup.took(guess.is_some(), begin.elapsed().as_secs_f64());
        }
        if let Some(guess) = guess {
            self.guesses.checked += guess.len();
            self.checked = Some(Checked { guess, right: 0, past, rows });
        }
        next
    }

    /// Computes, or captures and replays, a pass of one token, and one that checks guesses if the cache has room. For plans: gives the
    /// launches of a token, and the most bytes in use on each device, graphs not counted.
    pub fn rehearse(mut self, cache: &mut KvCache, sampler: &Sampler) -> Result<(usize, Vec<usize>)> {
        let live = |text: &TextModel| peaks(text.stages().iter().map(|stage| &stage.device));
        let before = live(self.text)?;
        let (passed, launches) =
            trace(|| pass(self.text, &self.angles, &mut self.one, self.capture, cache, sampler).map(drop));
        passed?;
        if let Some((several, _)) = &mut self.several
            && cache.capacity() - cache.len() >= CHECKED
        {
            pass(self.text, &self.angles, several, self.capture, cache, sampler)?;
        }
        Ok((launches.len(), if self.capture { before } else { live(self.text)? }))
    }

    /// Drops the captured passes: the cache is about to move. The next passes are captured anew.
    pub fn forget(&mut self) {
        self.one.captured = None;
        if let Some((several, _)) = &mut self.several {
            several.captured = None;
        }
    }

    /// Kernel launches in the captured pass of one token; `None` if there is none.
    pub fn launches(&self) -> Option<usize> {
        self.one.captured.as_ref().map(Relay::nodes)
    }

    /// Counts of guesses so far.
    pub fn guesses(&self) -> Guesses {
        self.guesses
    }

    /// Computes the angles of the next `tokens` tokens, unless the table has them.
    fn extend_angles(&mut self, tokens: usize) -> Result<()> {
        if (self.next - self.first) as usize + tokens > ANGLES_AHEAD as usize {
            self.first = self.next;
            let angles = self.text.angles(&positions(self.next))?;
            for (to, from) in self.angles.iter_mut().flatten().zip(angles.iter().flatten()) {
                ops::copy_into(to.view_mut()?, from)?;
            }
        }
        Ok(())
    }
}

/// The positions on the three axes for [`ANGLES_AHEAD`] tokens from `first` on.
fn positions(first: u32) -> Vec<[u32; 3]> {
    (0..ANGLES_AHEAD).map(|ahead| [first + ahead; 3]).collect()
}

/// Waits until the pools know what is free, so that how much memory a graph takes does not depend on the devices' speed.
fn settle_pools(text: &TextModel) -> Result<()> {
    text.stages().iter().try_for_each(|stage| match &stage.device {
        Device::Cuda(device) => memory::settle(device),
        Device::Cpu => Ok(()),
    })
}

/// Runs a pass: by its graphs, which are captured first if there are none, or launch by launch.
fn pass(
    text: &TextModel,
    angles: &[[Tensor; 2]],
    passes: &mut RowPasses,
    capture: bool,
    cache: &mut KvCache,
    sampler: &Sampler,
) -> Result<Rows> {
    let RowPasses { rows, steps, captured } = passes;
    let ids = steps[0].narrow(0, 0, *rows)?;
    let rope = |stage: usize| {
        let [cos, sin] = angles[stage].clone();
        Ok(Rope { cos, sin, at: steps[stage].narrow(0, *rows, 2)? })
    };
    let whole = |cache: &mut KvCache| {
        let ropes = (0..steps.len()).map(rope).collect::<Result<Vec<_>>>()?;
        let logits = text.pass_of_few(|| {
            text.logits(&text.forward(&ids, &ropes, Images::default(), cache.caches(), &mut |_, _| Ok(()))?)
        });
        Logits::new(logits?, sampler)
    };
    if !capture {
        let logits = whole(cache)?;
        text.settle()?;
        return logits.rows();
    }
    let captured = match captured {
        Some(captured) => {
            cache.advance(*rows)?;
            captured
        }
        none => {
            settle_pools(text)?;
            // launches only, whose arguments are the same for every pass of so many tokens
            let relay = if text.pipeline_depth() == 1 {
                Relay::capture_at_once(text, || whole(cache))?
            } else {
                let stage = |stage: usize, input: Option<&Tensor>| {
                    let hidden = match input {
                        Some(hidden) => hidden.clone(),
                        None => text.embed(&ids, Images::default())?,
                    };
                    let mut caches = cache.caches_of(text.stages()[stage].range.clone());
                    text.run(stage, hidden, &rope(stage)?, Images::default(), &mut caches, &mut |_, _| Ok(()))
                };
                let end = |hidden: &Tensor| Logits::new(text.logits_at_home(hidden)?, sampler);
                Relay::capture(text, *rows, stage, end)?
            };
            none.insert(relay)
        }
    };
    let logits = captured.launch(text)?;
    text.settle()?;
    logits.rows()
}
