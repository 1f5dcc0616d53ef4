//! How many tokens of prompts pass in a step beside running answers: as many as keep a step within a multiple of one without prompts.
//!
//! How long a token takes differs by a factor of a hundred between cards and models, and a step without prompts by as much, so the
//! number follows from measured times: it is raised after steps that were shorter than wanted, and lowered after longer ones.
//!
//! Few tokens pass row by row beside the answers, in a captured pass of a power of two of rows: they fill it.

use super::pass::MOST_BY_ROWS;
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
const LEAST: f64 = 8.0;
/// The number before anything has been measured.
const FIRST: f64 = 12.0;
/// Steps with prompts after the number was lowered in which it is not raised, so that most steps are not longer than wanted.
const REST: u32 = 50;

/// The number and what is known of times.
pub(super) struct Budget {
    tokens: f64,
    most: f64,
    /// Seconds of a step without prompts.
    quiet: Option<f64>,
    /// Steps with prompts until the number may be raised.
    rest: u32,
}

impl Budget {
    /// At most so many tokens.
    pub fn new(most: usize) -> Self {
        let most = most as f64;
        Self { tokens: FIRST.min(most), most, quiet: None, rest: 0 }
    }

    /// Tokens of prompts for the next step, beside so many answers.
    pub fn tokens(&self, answers: usize) -> usize {
        let tokens = self.tokens as usize;
        let rows = (answers + tokens).next_power_of_two();
        if rows <= MOST_BY_ROWS { (rows - answers).min(self.most as usize) } else { tokens }
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
        self.rest = self.rest.saturating_sub(1);
        if stretch > STRETCH * (1.0 + SLACK) {
            self.tokens = (self.tokens / CHANGE).max(least);
            self.rest = REST;
        } else if stretch < STRETCH * (1.0 - SLACK) && tokens >= self.tokens as usize && self.rest == 0 {
            self.tokens = (self.tokens * CHANGE).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps beside one answer on a device of so many seconds for a step and for a token of a prompt: the tokens of each, and its
    /// stretch.
    fn steps(step: f64, token: f64, most: usize) -> Vec<(usize, f64)> {
        let mut budget = Budget::new(most);
        let time = |tokens: usize| Duration::from_secs_f64(step + token * tokens as f64);
        (0..400)
            .map(|_| {
                let tokens = budget.tokens(1);
                budget.was_quiet(time(0));
                budget.was_shared(tokens, time(tokens));
                (tokens, time(tokens).as_secs_f64() / step)
            })
            .collect()
    }

    #[test]
    fn most_steps_take_what_they_should_on_every_device() {
        for (step, token) in [(1e-3, 1e-5), (1e-3, 1e-4), (4e-3, 5e-5), (0.1, 1e-3)] {
            let mut stretches: Vec<f64> = steps(step, token, 512)[100..].iter().map(|step| step.1).collect();
            stretches.sort_by(f64::total_cmp);
            let median = stretches[stretches.len() / 2];
            assert!((1.9..3.0).contains(&median), "{step} {token}: {median}");
        }
        let settled = |step, token, most| steps(step, token, most)[399].0;
        assert_eq!(settled(1.0, 1e-6, 256), 256, "no more than the most");
        assert_eq!(settled(1e-3, 1e-2, 256), 15, "a pass of 16 rows beside one answer");
        assert_eq!(settled(1e-3, 1e-2, 6), 6);
    }

    #[test]
    fn a_short_prompt_says_nothing_about_longer_ones() {
        let mut budget = Budget::new(512);
        let before = budget.tokens(1);
        budget.was_quiet(Duration::from_millis(10));
        (0..20).for_each(|_| budget.was_shared(3, Duration::from_millis(11)));
        assert_eq!(budget.tokens(1), before);
    }

    #[test]
    fn few_tokens_fill_a_power_of_two_of_rows() {
        let budget = Budget::new(512);
        assert_eq!([1, 4, 15, 40, 60].map(|answers| budget.tokens(answers)), [15, 12, 17, 24, 12]);
    }
}
