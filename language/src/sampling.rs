//! Logits → the next token.

use pascaline::{Error, Result};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// How the next token is chosen. The steps run in this order: repetition penalty, presence and frequency penalties,
/// a [`Constraint`] if there is one, temperature, top-k, top-p, min-p, then a draw.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the largest logit (greedy), and the fields from `top_k` to `min_p` have no effect.
    pub temperature: f64,
    /// The number of likeliest tokens to draw from; 0 for all.
    pub top_k: usize,
    /// Draws from the fewest likeliest tokens whose probabilities sum up to this; 1 for all.
    pub top_p: f64,
    /// Excludes tokens whose probability is less than this share of the likeliest token's; 0 for none.
    pub min_p: f64,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the output; 1 for none.
    pub repetition_penalty: f64,
    /// Subtracted from logits of tokens in the output; 0 for none.
    pub presence_penalty: f64,
    /// Subtracted from logits of tokens in the output, once for each occurrence; 0 for none.
    pub frequency_penalty: f64,
    /// Seeds the generator (ChaCha with 8 rounds): the same seed and logits give the same tokens, in every version
    /// and on every machine.
    pub seed: u64,
}

impl Sampling {
    /// Greedy: always the largest logit.
    pub const GREEDY: Self = Self {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        seed: 0,
    };

    /// The published settings of the Instruct models: temperature 0.7, top-k 20, top-p 0.8, presence penalty 1.5.
    pub const INSTRUCT: Self =
        Self { temperature: 0.7, top_k: 20, top_p: 0.8, presence_penalty: 1.5, ..Self::GREEDY };

    /// Whether no random numbers are drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether every option is in its range.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with the first option that is out of range.
    pub fn check(&self) -> Result<()> {
        let refuse = |argument: &'static str, value: f64, reason: &str| {
            let (value, reason) = (value.to_string(), reason.to_owned());
            Err(Error::Unsupported { op: "sampling", argument, value, reason })
        };
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return refuse("temperature", self.temperature, "it must be finite and not negative");
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return refuse("top_p", self.top_p, "it must be above 0 and at most 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min_p", self.min_p, "it must be between 0 and 1");
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return refuse("repetition_penalty", self.repetition_penalty, "it must be finite and above 0");
        }
        if !self.presence_penalty.is_finite() {
            return refuse("presence_penalty", self.presence_penalty, "it must be finite");
        }
        if !self.frequency_penalty.is_finite() {
            return refuse("frequency_penalty", self.frequency_penalty, "it must be finite");
        }
        Ok(())
    }
}

/// Checks the largest logit and returns its index as the token.
///
/// # Errors
/// As [`Sampler::next`].
pub(super) fn checked(id: u32, largest: f32) -> Result<u32> {
    let (what, index) = ("the logits", id as usize);
    match largest {
        f32::NEG_INFINITY => Err(Error::NotFinite { what, value: "−∞ everywhere".into(), index: 0 }),
        value if !value.is_finite() => Err(Error::NotFinite { what, value: value.to_string(), index }),
        _ => Ok(id),
    }
}

/// A rule for which tokens may come next, for instance a grammar.
pub trait Constraint: Send {
    /// Sets the logits of tokens that may not come next to −∞. At least one token must be left.
    ///
    /// # Errors
    /// An error of the rule; it ends the answer.
    fn mask(&mut self, logits: &mut [f32]) -> Result<()>;

    /// Advances the rule by the chosen token.
    ///
    /// # Errors
    /// As [`mask`](Self::mask).
    fn accept(&mut self, token: u32) -> Result<()>;
}

/// Natural logarithms of the model's own probabilities: without penalties, constraint and temperature.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The likeliest tokens, the likeliest first, the lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// The probabilities of a token before sampling.
struct Distribution {
    logits: Vec<f32>,
    /// The logarithm of the sum of all tokens' exponentials.
    normalizer: f64,
}

impl Distribution {
    fn new(logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - f64::from(max)).exp()).sum();
        Self { logits: logits.to_vec(), normalizer: f64::from(max) + sum.ln() }
    }

    fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - self.normalizer) as f32
    }

    /// With the `count` likeliest tokens.
    fn report(&self, chosen: u32, count: usize) -> Logprobs {
        let mut top: Vec<(u32, f32)> = (0..).zip(self.logits.iter().copied()).collect();
        if 0 < count && count < top.len() {
            top.select_nth_unstable_by(count - 1, likelier);
        }
        top.truncate(count);
        top.sort_unstable_by(likelier);
        let top = top.into_iter().map(|(id, logit)| (id, self.logprob(logit))).collect();
        Logprobs { chosen: self.logprob(self.logits[chosen as usize]), top }
    }
}

/// The number of tokens that are sorted at first; more are sorted if needed.
const FIRST_SORTED: usize = 256;

/// Orders by probability, the likeliest first, and the lower id first among equals.
fn likelier(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Chooses the tokens of one output, one after another.
pub struct Sampler {
    options: Sampling,
    rng: ChaCha8Rng,
    prompt: BTreeSet<u32>,
    /// How often each token was chosen.
    output: BTreeMap<u32, u32>,
    constraint: Option<Box<dyn Constraint>>,
    /// How many of the likeliest tokens are reported with each choice.
    report: Option<usize>,
    logprobs: Option<Logprobs>,
}

impl Sampler {
    /// # Errors
    /// [`Error::Unsupported`] for an option out of range.
    pub fn new(options: Sampling, prompt: &[u32]) -> Result<Self> {
        options.check()?;
        let rng = ChaCha8Rng::seed_from_u64(options.seed);
        let (prompt, output) = (prompt.iter().copied().collect(), BTreeMap::new());
        Ok(Self { options, rng, prompt, output, constraint: None, report: None, logprobs: None })
    }

    /// Restricts the tokens to those that `constraint` allows.
    pub fn constrained(mut self, constraint: Option<Box<dyn Constraint>>) -> Self {
        self.constraint = constraint;
        self
    }

    /// Reports the probabilities of each choice, and of the `top` likeliest tokens; `None`: reports nothing.
    pub fn reporting(mut self, top: Option<usize>) -> Self {
        self.report = top;
        self
    }

    /// The report of the last choice; the second call returns `None`.
    pub fn take_logprobs(&mut self) -> Option<Logprobs> {
        self.logprobs.take()
    }

    /// Whether the token is always the first of the largest logits, and no other logit is needed.
    pub fn takes_the_largest(&self) -> bool {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.options;
        let unchanged = (repetition_penalty, presence_penalty, frequency_penalty) == (1.0, 0.0, 0.0);
        self.options.is_greedy() && unchanged && self.constraint.is_none() && self.report.is_none()
    }

    /// The next token. `logits` has one value per token of the vocabulary and is changed.
    ///
    /// # Errors
    /// [`Error::NotFinite`] if the logit of a token that may come is NaN or +∞, or all are −∞; or an error of the constraint.
    pub fn next(&mut self, logits: &mut [f32]) -> Result<u32> {
        let finite = |logits: &[f32]| match logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
            Some(index) => {
                let value = logits[index].to_string();
                Err(Error::NotFinite { what: "the logits", value, index })
            }
            None => Ok(()),
        };
        if self.report.is_some() {
            finite(logits)?;
        }
        let reported = self.report.map(|count| (Distribution::new(logits), count));
        self.penalize(logits);
        if let Some(constraint) = &mut self.constraint {
            constraint.mask(logits)?;
        }
        finite(logits)?; // of tokens that may come
        let best = logits.iter().enumerate().fold(None, |best: Option<(usize, f32)>, (index, &logit)| {
            // on ties, the first
            if best.is_none_or(|(_, largest)| logit > largest) { Some((index, logit)) } else { best }
        });
        let (best, max) = best.unwrap_or((0, f32::NEG_INFINITY));
        let best = checked(best as u32, max)?;
        let token = if self.options.is_greedy() { best } else { self.draw(logits, max) };
        *self.output.entry(token).or_default() += 1;
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        self.logprobs = reported.map(|(distribution, count)| distribution.report(token, count));
        Ok(token)
    }

    fn penalize(&self, logits: &mut [f32]) {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.options;
        if repetition_penalty != 1.0 {
            let chosen = self.output.keys().filter(|id| !self.prompt.contains(id));
            for &id in self.prompt.iter().chain(chosen) {
                if let Some(logit) = logits.get_mut(id as usize) {
                    let factor = if *logit > 0.0 { 1.0 / repetition_penalty } else { repetition_penalty };
                    *logit = (f64::from(*logit) * factor) as f32;
                }
            }
        }
        if (presence_penalty, frequency_penalty) != (0.0, 0.0) {
            for (&id, &count) in &self.output {
                if let Some(logit) = logits.get_mut(id as usize) {
                    *logit -= (presence_penalty + frequency_penalty * f64::from(count)) as f32;
                }
            }
        }
    }

    fn draw(&mut self, logits: &[f32], max: f32) -> u32 {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.options;
        let mut candidates: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        if 0 < top_k && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, likelier);
            candidates.truncate(top_k);
        }
        let weight = |logit: f32| ((f64::from(logit) - f64::from(max)) / temperature).exp();
        // 53 random bits: a uniform number in [0, 1)
        let uniform = (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let all: f64 = candidates.iter().map(|&(_, logit)| weight(logit)).sum();
        let enough = if top_p < 1.0 { top_p * all } else { f64::INFINITY };
        let mut least = 0.0;
        // Sorted only as far as needed: sorting the whole vocabulary takes ten times as long.
        let (mut weights, mut sum) = (Vec::new(), 0.0);
        'kept: while weights.len() < candidates.len() {
            let (from, to) = (weights.len(), (8 * weights.len()).max(FIRST_SORTED).min(candidates.len()));
            if to < candidates.len() {
                candidates[from..].select_nth_unstable_by(to - from - 1, likelier);
            }
            candidates[from..to].sort_unstable_by(likelier);
            for &(_, logit) in &candidates[from..to] {
                let weight = weight(logit);
                if weight < least || sum >= enough {
                    break 'kept;
                }
                if weights.is_empty() {
                    least = min_p * weight;
                }
                weights.push(weight);
                sum += weight;
            }
            if min_p == 0.0 && top_p >= 1.0 && sum > uniform * all {
                sum = all; // all tokens count, and the drawn one is among the sorted ones
                break;
            }
        }
        let mut left = uniform * sum;
        let drawn = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        candidates[drawn.unwrap_or(0)].0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(options: Sampling) -> Sampler {
        Sampler::new(options, &[]).unwrap()
    }

    /// Which tokens come up in many draws, each from the same logits.
    fn drawn(options: &Sampling, logits: &[f32]) -> BTreeSet<u32> {
        let draw = |seed| sampler(Sampling { seed, ..options.clone() }).next(&mut logits.to_vec()).unwrap();
        (0..500).map(draw).collect()
    }

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 1.9, -3.0];
    const RANDOM: Sampling = Sampling { temperature: 1.0, ..Sampling::GREEDY };

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(sampler(Sampling::GREEDY).next(&mut [1.0, 3.0, 3.0, f32::NEG_INFINITY]), Ok(1));
    }

    #[test]
    fn the_largest_is_enough_where_nothing_else_is_asked() {
        assert!(Sampling::GREEDY.is_greedy() && !RANDOM.is_greedy());
        assert!(sampler(Sampling::GREEDY).takes_the_largest());
        for options in [
            RANDOM,
            Sampling { repetition_penalty: 1.1, ..Sampling::GREEDY },
            Sampling { presence_penalty: 0.5, ..Sampling::GREEDY },
            Sampling { frequency_penalty: 0.5, ..Sampling::GREEDY },
        ] {
            assert!(!sampler(options.clone()).takes_the_largest(), "{options:?}");
        }
        assert!(!sampler(Sampling::GREEDY).reporting(Some(0)).takes_the_largest());
    }

    #[test]
    fn draws_depend_on_differences_alone() {
        let logits = [0.0, 2.0, 1.0, 1.75, -3.0];
        let (mut near, mut far) = (sampler(RANDOM), sampler(RANDOM));
        for _ in 0..100 {
            let drawn = near.next(&mut logits.to_vec());
            assert_eq!(far.next(&mut logits.map(|logit| logit + 4096.0)), drawn);
        }
    }

    #[test]
    fn equals_are_kept_together_and_none_may_be_left_out() {
        assert_eq!(drawn(&Sampling { min_p: 1.0, ..RANDOM }, &[1.0, 2.0, 2.0]), BTreeSet::from([1, 2]));
        let all = drawn(&Sampling { min_p: 1e-9, ..RANDOM }, &[0.0, 0.5, 1.0]);
        assert_eq!(all, BTreeSet::from([0, 1, 2]));
        // one more than are sorted at first
        let flat = drawn(&RANDOM, &[0.0; FIRST_SORTED + 1]);
        assert!(flat.len() > 100 && flat.iter().all(|&id| id as usize <= FIRST_SORTED));
    }

    #[test]
    fn minus_infinity_everywhere_is_said() {
        let found = sampler(Sampling::GREEDY).next(&mut [f32::NEG_INFINITY; 3]).unwrap_err();
        assert!(matches!(found, Error::NotFinite { ref value, .. } if value == "−∞ everywhere"), "{found}");
    }

    #[test]
    fn a_broken_result_is_no_token() {
        for options in [Sampling::GREEDY, RANDOM] {
            for (logits, index) in
                [([0.0, f32::NAN], 1), ([f32::INFINITY, 0.0], 0), ([f32::NEG_INFINITY, f32::NEG_INFINITY], 0)]
            {
                let found = sampler(options.clone()).next(&mut logits.clone());
                assert!(matches!(found, Err(Error::NotFinite { index: at, .. }) if at == index), "{found:?}");
            }
            assert!(sampler(options).next(&mut []).is_err());
        }
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(matches!(checked(3, value), Err(Error::NotFinite { .. })), "{value}");
        }
        assert_eq!(checked(3, -1e30), Ok(3));
    }

    #[test]
    fn filters_keep_what_they_should() {
        assert_eq!(drawn(&RANDOM, &LOGITS), BTreeSet::from([0, 1, 2, 3, 4]));
        assert_eq!(drawn(&Sampling { top_k: 2, ..RANDOM }, &LOGITS), BTreeSet::from([1, 3]));
        // e² + e^1.9 of e² + e^1.9 + e + 1 + e⁻³ are 0.79
        assert_eq!(drawn(&Sampling { top_p: 0.78, ..RANDOM }, &LOGITS), BTreeSet::from([1, 3]));
        assert_eq!(drawn(&Sampling { top_p: 0.8, ..RANDOM }, &LOGITS), BTreeSet::from([1, 2, 3]));
        assert_eq!(drawn(&Sampling { min_p: 0.36, ..RANDOM }, &LOGITS), BTreeSet::from([1, 2, 3]));
        assert_eq!(drawn(&Sampling { min_p: 1.0, ..RANDOM }, &LOGITS), BTreeSet::from([1]));
        assert_eq!(drawn(&Sampling { temperature: 0.01, ..RANDOM }, &LOGITS), BTreeSet::from([1]));
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.0, 3f32.ln()]; // 1 : 3
        let mut sampler = sampler(RANDOM);
        let ones = (0..20_000).filter(|_| sampler.next(&mut logits.to_vec()) == Ok(1)).count();
        assert!((14_600..15_400).contains(&ones), "{ones} of 20000"); // 15000 ± 6.5 standard deviations
    }

    #[test]
    fn a_seed_fixes_the_draws_for_ever() {
        let mut sampler = sampler(Sampling { seed: 7, ..RANDOM });
        let drawn: Vec<_> = (0..12).map(|_| sampler.next(&mut LOGITS.to_vec()).unwrap()).collect();
        assert_eq!(drawn, [1, 1, 3, 3, 3, 1, 1, 2, 1, 0, 1, 1]);
    }

    #[test]
    fn penalties_push_tokens_down() {
        let penalized = Sampling { repetition_penalty: 2.0, ..Sampling::GREEDY };
        let mut repeated = Sampler::new(penalized, &[0]).unwrap();
        assert_eq!(repeated.next(&mut [3.0, 2.0, 0.5]), Ok(1)); // 1.5, 2, 0.5
        assert_eq!(repeated.next(&mut [3.0, 2.0, 0.5]), Ok(0)); // 1.5, 1, 0.5
        assert_eq!(repeated.next(&mut [-1.0, -2.0, -1.5]), Ok(2)); // −2, −4, −1.5
        let mut present = sampler(Sampling { presence_penalty: 1.0, ..Sampling::GREEDY });
        assert_eq!(present.next(&mut [3.0, 2.5]), Ok(0));
        assert_eq!(present.next(&mut [3.0, 2.5]), Ok(1));
        assert_eq!(present.next(&mut [3.0, 2.5]), Ok(0)); // once, not per repetition
    }

    #[test]
    fn options_out_of_range_are_refused() {
        for options in [
            Sampling { temperature: -1.0, ..RANDOM },
            Sampling { temperature: f64::NAN, ..RANDOM },
            Sampling { top_p: 0.0, ..RANDOM },
            Sampling { min_p: 1.5, ..RANDOM },
            Sampling { repetition_penalty: 0.0, ..RANDOM },
            Sampling { presence_penalty: f64::INFINITY, ..RANDOM },
            Sampling { frequency_penalty: f64::NAN, ..RANDOM },
        ] {
            assert!(matches!(Sampler::new(options, &[]), Err(Error::Unsupported { op: "sampling", .. })));
        }
    }

    #[test]
    fn the_frequency_penalty_counts_repetitions() {
        let options = Sampling { frequency_penalty: 0.5, presence_penalty: 0.25, ..Sampling::GREEDY };
        let mut repeated = sampler(options);
        assert!(!repeated.takes_the_largest());
        let chosen: Vec<_> = (0..6).map(|_| repeated.next(&mut [3.0, 2.0, 1.9]).unwrap()).collect();
        // 3, then 2.25 and 1.75 of the first; 2 of the second, then 1.25; 1.9 of the third
        assert_eq!(chosen, [0, 0, 1, 2, 0, 0]);
    }

    /// Reference: each step by its definition, in double precision and over all tokens.
    mod naive {
        use super::Sampling;

        /// Logits after penalties for tokens of the prompt and of the output.
        pub fn penalized(options: &Sampling, logits: &[f32], prompt: &[u32], output: &[u32]) -> Vec<f64> {
            let one = |(id, &logit): (u32, &f32)| {
                let (mut logit, count) =
                    (f64::from(logit), output.iter().filter(|&&chosen| chosen == id).count());
                if prompt.contains(&id) || count > 0 {
                    let penalty = options.repetition_penalty;
                    logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
                }
                if count > 0 {
                    logit -= options.presence_penalty + count as f64 * options.frequency_penalty;
                }
                logit
            };
            (0..).zip(logits).map(one).collect()
        }

        /// Each token's probability.
        pub fn probabilities(options: &Sampling, logits: &[f64]) -> Vec<f64> {
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            let k = if options.top_k == 0 { logits.len() } else { options.top_k };
            let kept: Vec<usize> = order.into_iter().take(k).collect();
            let weight = |&id: &usize| (logits[id] / options.temperature).exp();
            let sum: f64 = kept.iter().map(weight).sum();
            let (mut all, mut reached) = (vec![0.0; logits.len()], 0.0);
            for id in &kept {
                if reached < options.top_p && weight(id) >= options.min_p * weight(&kept[0]) {
                    all[*id] = weight(id) / sum;
                }
                reached += weight(id) / sum;
            }
            let sum: f64 = all.iter().sum();
            all.into_iter().map(|p| p / sum).collect()
        }
    }

    #[test]
    fn draws_are_those_of_the_definitions() {
        const DRAWS: usize = 4000;
        let logits = [1.5f32, 0.2, -0.4, 2.0, 1.9, -2.5, 0.9, 0.0];
        let (prompt, output) = ([3, 5], [3, 3, 0, 6]);
        let base = Sampling { temperature: 0.8, ..Sampling::GREEDY };
        for options in [
            base.clone(),
            Sampling { top_k: 3, ..base.clone() },
            Sampling { top_p: 0.7, ..base.clone() },
            Sampling { min_p: 0.3, ..base.clone() },
            Sampling { repetition_penalty: 1.7, ..base.clone() },
            Sampling { presence_penalty: 0.9, frequency_penalty: 0.4, ..base.clone() },
            Sampling {
                top_k: 6,
                top_p: 0.9,
                min_p: 0.05,
                repetition_penalty: 0.8,
                frequency_penalty: -0.3,
                ..base
            },
        ] {
            let expected =
                naive::probabilities(&options, &naive::penalized(&options, &logits, &prompt, &output));
            let mut counts = [0; 8];
            for seed in 0..DRAWS as u64 {
                let mut sampler = Sampler::new(Sampling { seed, ..options.clone() }, &prompt).unwrap();
                for id in output {
                    *sampler.output.entry(id).or_default() += 1;
                }
                counts[sampler.next(&mut logits.clone()).unwrap() as usize] += 1;
            }
            for (id, (count, p)) in counts.iter().zip(&expected).enumerate() {
                let deviation = (DRAWS as f64 * p * (1.0 - p)).sqrt();
                let off = f64::from(*count) - DRAWS as f64 * p;
                assert!(off.abs() <= 4.5 * deviation, "{options:?}: token {id} came {count} times, p = {p}");
            }
        }
    }

    /// Only the likeliest tokens of a large vocabulary are sorted; the draw is that of all in order.
    #[test]
    fn a_draw_from_many_is_that_of_all_in_order() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let logits: Vec<f32> = (0..5000).map(|_| (rng.next_u32() % 4096) as f32 / 500.0).collect();
        let base = Sampling { temperature: 1.3, ..Sampling::GREEDY };
        for options in [
            base.clone(),
            Sampling { top_k: 700, ..base.clone() },
            Sampling { top_p: 0.8, ..base.clone() },
            Sampling { top_p: 0.999, min_p: 0.01, ..base.clone() },
            Sampling { min_p: 0.1, ..base },
        ] {
            let wide: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
            let probabilities = naive::probabilities(&options, &wide);
            let mut order: Vec<usize> = (0..logits.len()).collect();
            order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
            for seed in 0..200 {
                let uniform = (ChaCha8Rng::seed_from_u64(seed).next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                let mut sum = 0.0;
                let expected = order.iter().find(|&&id| {
                    sum += probabilities[id];
                    sum > uniform
                });
                let mut sampler = Sampler::new(Sampling { seed, ..options.clone() }, &[]).unwrap();
                let found = sampler.next(&mut logits.clone()).unwrap() as usize;
                assert_eq!(Some(&found), expected, "{options:?}, seed {seed}");
            }
        }
    }

    #[test]
    fn reports_are_logarithms_of_probabilities() {
        let options = Sampling { presence_penalty: 100.0, ..Sampling::GREEDY };
        let mut reporting = sampler(options).reporting(Some(3));
        for chosen in [1, 3] {
            assert_eq!(reporting.next(&mut LOGITS.to_vec()), Ok(chosen));
            let found = reporting.take_logprobs().unwrap();
            assert_eq!(reporting.take_logprobs(), None);
            let sum: f64 = LOGITS.iter().map(|&logit| f64::from(logit).exp()).sum();
            let logprob = |id: usize| (f64::from(LOGITS[id]).exp() / sum).ln();
            // penalties are not part of it
            assert!((f64::from(found.chosen) - logprob(chosen as usize)).abs() < 1e-6);
            assert_eq!(found.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 3, 2]);
            for (id, found) in found.top {
                assert!((f64::from(found) - logprob(id as usize)).abs() < 1e-6);
            }
        }
        let mut all = sampler(RANDOM).reporting(Some(100));
        all.next(&mut LOGITS.to_vec()).unwrap();
        let top = all.take_logprobs().unwrap().top;
        assert!((top.iter().map(|(_, p)| f64::from(*p).exp()).sum::<f64>() - 1.0).abs() < 1e-6);
        let mut none = sampler(RANDOM).reporting(Some(0));
        none.next(&mut LOGITS.to_vec()).unwrap();
        assert_eq!(none.take_logprobs().unwrap().top, []);
    }

    /// Only odd tokens, and each once.
    struct OddOnce(BTreeSet<u32>);

    impl Constraint for OddOnce {
        fn mask(&mut self, logits: &mut [f32]) -> Result<()> {
            for (id, logit) in (0..).zip(logits) {
                if id % 2 == 0 || self.0.contains(&id) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            Ok(())
        }

        fn accept(&mut self, token: u32) -> Result<()> {
            assert!(self.0.insert(token));
            Ok(())
        }
    }

    #[test]
    fn a_constraint_decides() {
        for options in [Sampling::GREEDY, RANDOM] {
            let mut found = BTreeSet::new();
            let mut constrained =
                sampler(options).constrained(Some(Box::new(OddOnce(BTreeSet::new())))).reporting(Some(1));
            assert!(!constrained.takes_the_largest());
            for _ in 0..2 {
                found.insert(constrained.next(&mut LOGITS.to_vec()).unwrap());
                // the report is the model's own opinion
                assert_eq!(constrained.take_logprobs().unwrap().top[0].0, 1);
            }
            assert_eq!(found, BTreeSet::from([1, 3]));
            assert!(matches!(constrained.next(&mut LOGITS.to_vec()), Err(Error::NotFinite { .. })));
        }
    }
}
