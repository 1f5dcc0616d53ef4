//! How many tokens of prompts pass in a step beside running answers: as many as keep a step within a multiple of one without prompts.
//!
//! How long a token takes differs by a factor of a hundred between cards and models, and a step without prompts by as much, so the
//! number follows from measured times: it is raised after steps that were shorter than wanted, and lowered after longer ones.

use std::time::Duration;

/// The length of a step with prompts, in steps without. Running answers should take no more than three times as long.
const STRETCH: f64 = 2.5;
/// Lengths within this share of the wanted one change nothing.
const SLACK: f64 = 0.1;
/// By what the number is raised and lowered.
const CHANGE: f64 = 1.25;
/// The weight of the last time in the mean of steps without prompts.
const WEIGHT: f64 = 0.3;
/// The fewest tokens: with fewer the products of a step cost as much.
const LEAST: f64 = 32.0;
/// The number before anything has been measured.
const FIRST: f64 = 64.0;

/// The number and what is known of times.
pub(super) struct Budget {
    tokens: f64,
    most: f64,
    /// Patches times blocks of the vision tower.
    patches: usize,
    /// Seconds of a step without prompts.
    quiet: Option<f64>,
}

impl Budget {
    /// At most so many tokens.
    pub fn new(most: usize) -> Self {
        let most = most as f64;
        Self { tokens: FIRST.min(most), most, patches: 0, quiet: None }
    }

    /// Tokens of prompts for the next step.
    pub fn tokens(&self) -> usize {
        self.tokens as usize
    }

    /// Patches times blocks of the vision tower for the next step. A picture passes one block at least.
    pub fn patches(&self) -> usize {
        self.patches
    }

    /// A step of answers, and of so many patches times blocks, took so long. A picture has few steps, so the number doubles while a step of
    /// twice as many would be short enough, and is cut to what the time says at once.
    pub fn was_seeing(&mut self, patches: usize, time: Duration) {
        let Some(quiet) = self.quiet.filter(|quiet| *quiet > 0.0) else { return };
        let stretch = time.as_secs_f64() / quiet;
        if stretch > STRETCH {
            self.patches = (patches as f64 * (STRETCH - 1.0) / (stretch - 1.0)) as usize;
        } else {
            // the last blocks of a picture may be fewer than there was time for
            let twice = 1.0 + 2.0 * (stretch - 1.0) <= STRETCH;
            self.patches = self.patches.max(if twice { patches.saturating_mul(2) } else { patches });
        }
    }

    /// A step of answers alone took so long.
    pub fn was_quiet(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.quiet = Some(self.quiet.map_or(time, |quiet| quiet + WEIGHT * (time - quiet)));
    }

    /// A step of answers and so many tokens of prompts took so long.
    pub fn was_shared(&mut self, tokens: usize, time: Duration) {
        let Some(quiet) = self.quiet.filter(|quiet| *quiet > 0.0) else { return };
        let stretch = time.as_secs_f64() / quiet;
        let least = LEAST.min(self.most);
        if stretch > STRETCH * (1.0 + SLACK) {
            self.tokens = (self.tokens / CHANGE).max(least);
        } else if stretch < STRETCH * (1.0 - SLACK) && tokens >= self.tokens() {
            self.tokens = (self.tokens * CHANGE).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens and the stretch after many steps on a device of so many seconds for a step and for a token of a prompt.
    fn settled(step: f64, token: f64, most: usize) -> (usize, f64) {
        let mut budget = Budget::new(most);
        let time = |tokens: usize| Duration::from_secs_f64(step + token * tokens as f64);
        for _ in 0..50 {
            budget.was_quiet(time(0));
            budget.was_shared(budget.tokens(), time(budget.tokens()));
        }
        (budget.tokens(), time(budget.tokens()).as_secs_f64() / step)
    }

    #[test]
    fn steps_take_what_they_should_on_every_device() {
        for (step, token) in [(1e-3, 1e-5), (4e-3, 5e-5), (0.1, 1e-3)] {
            let (tokens, stretch) = settled(step, token, 512);
            assert!((1.9..3.0).contains(&stretch), "{step} {token}: {tokens} tokens, {stretch}");
        }
        assert_eq!(settled(1.0, 1e-6, 256).0, 256, "no more than the most");
        assert_eq!(settled(1e-3, 1e-2, 256).0, 32, "no fewer than the least");
        assert_eq!(settled(1e-3, 1e-2, 24).0, 24);
    }

    #[test]
    fn a_picture_passes_as_many_blocks_as_the_answers_can_wait_for() {
        let mut budget = Budget::new(512);
        assert_eq!(budget.patches(), 0);
        budget.was_seeing(100, Duration::from_millis(1));
        assert_eq!(budget.patches(), 0, "nothing is known of steps without");
        budget.was_quiet(Duration::from_millis(10));
        let patches = |budget: &mut Budget, passed: usize| {
            budget.was_seeing(passed, Duration::from_millis(10 + passed as u64 / 10));
            budget.patches()
        };
        assert_eq!([10, 20, 40].map(|passed| patches(&mut budget, passed)), [20, 40, 80]);
        assert_eq!(patches(&mut budget, 100), 100, "twice as many were too many");
        assert_eq!(patches(&mut budget, 1), 100, "the end of a picture");
        assert_eq!(patches(&mut budget, 1000), 150);
    }

    #[test]
    fn a_short_prompt_says_nothing_about_longer_ones() {
        let mut budget = Budget::new(512);
        budget.was_quiet(Duration::from_millis(10));
        (0..20).for_each(|_| budget.was_shared(3, Duration::from_millis(11)));
        assert_eq!(budget.tokens(), 64);
    }
}
