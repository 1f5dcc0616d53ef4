//! How many prompt tokens a step computes while answers run: as many as keep the step within a multiple of a step without
//! prompts.
//!
//! The time of a token differs by a factor of a hundred between cards and models, and so does that of a step without
//! prompts. The number therefore follows measured times: it grows after steps that were shorter than the target and shrinks
//! after longer ones.
//!
//! A few prompt tokens run as extra rows of the decode pass, which is captured for powers of two of rows: they fill it up.
//!
//! A burst of requests is different. Each that still waits for its first token leaves a step with fewer answers than it could
//! have, and small parts of prompts take longer than large ones for each token. So while several wait, a step takes as many of their
//! tokens as it may, whatever the running answers would like; on a GPU with many multiprocessors as many as fill it.

use crate::pass::MOST_BY_ROWS;
use std::time::Duration;

/// The target length of a step with prompts, in steps without. Running answers should take no more than three times as
/// long.
const STRETCH: f64 = 2.5;
/// Steps within this share of the target change nothing.
const SLACK: f64 = 0.1;
/// The factor by which the number grows or shrinks.
const CHANGE: f64 = 1.25;
/// The weight of the last time in the moving mean of steps without prompts.
const WEIGHT: f64 = 0.3;
/// The fewest tokens: the matrix products of a step with fewer cost as much.
const LEAST: f64 = 8.0;
/// The number before the first measurement.
const FIRST: f64 = 12.0;
/// After the number shrank, it does not grow for this many steps with prompts: so most steps are not longer than the
/// target.
const REST: u32 = 50;

/// The current numbers, and the measurements that they follow.
pub(super) struct Budget {
    tokens: f64,
    most: f64,
    /// Rows of a step in a burst.
    burst: usize,
    /// Vision work per step, in patches times blocks of the vision tower.
    patches: usize,
    /// Mean seconds of a step without prompts.
    quiet: Option<f64>,
    /// Steps with prompts until the number may grow again.
    rest: u32,
}

impl Budget {
    /// A budget of at most `most` tokens, or of so many that a step has `burst` rows.
    pub fn new(most: usize, burst: usize) -> Self {
        let most = most as f64;
        Self { tokens: FIRST.min(most), most, burst, patches: 0, quiet: None, rest: 0 }
    }

    /// Prompt tokens for the next step, while `answers` answers run and so many requests have no token yet.
    pub fn tokens(&self, answers: usize, waiting: usize) -> usize {
        if waiting > 1 {
            return self.burst.saturating_sub(answers).max(self.most as usize);
        }
        let tokens = self.tokens as usize;
        let rows = (answers + tokens).next_power_of_two();
        if rows <= MOST_BY_ROWS { (rows - answers).min(self.most as usize) } else { tokens }
    }

    /// Vision work for the next step, in patches times blocks. At least one block of a picture runs in any case.
    pub fn patches(&self) -> usize {
        self.patches
    }

    /// Records a step of answers and `patches` patches times blocks. A picture takes few steps, so the number doubles while
    /// a step of twice as many would be short enough, and shrinks at once to what the time allows.
    pub fn record_vision(&mut self, patches: usize, time: Duration) {
        let Some(quiet) = self.quiet.filter(|quiet| *quiet > 0.0) else { return };
        let stretch = time.as_secs_f64() / quiet;
        if stretch > STRETCH {
            self.patches = (patches as f64 * (STRETCH - 1.0) / (stretch - 1.0)) as usize;
        } else {
            // the last step of a picture may have fewer blocks than fit
            let twice = 1.0 + 2.0 * (stretch - 1.0) <= STRETCH;
            self.patches = self.patches.max(if twice { patches.saturating_mul(2) } else { patches });
        }
    }

    /// Records a step of answers alone.
    pub fn record_decode(&mut self, time: Duration) {
        let time = time.as_secs_f64();
        self.quiet = Some(self.quiet.map_or(time, |quiet| quiet + WEIGHT * (time - quiet)));
    }

    /// Records a step of answers and `tokens` prompt tokens.
    pub fn record_shared(&mut self, tokens: usize, time: Duration) {
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

    /// Simulates steps with one answer on a device that needs `step` seconds for a step and `token` for a prompt token.
    /// Returns the tokens of each step, and its length in steps without prompts.
    fn steps(step: f64, token: f64, most: usize) -> Vec<(usize, f64)> {
        let mut budget = Budget::new(most, most);
        let time = |tokens: usize| Duration::from_secs_f64(step + token * tokens as f64);
        (0..400)
            .map(|_| {
                let tokens = budget.tokens(1, 1);
                budget.record_decode(time(0));
                budget.record_shared(tokens, time(tokens));
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
    fn a_picture_passes_as_many_blocks_as_the_answers_can_wait_for() {
        let mut budget = Budget::new(512, 512);
        assert_eq!(budget.patches(), 0);
        budget.record_vision(100, Duration::from_millis(1));
        assert_eq!(budget.patches(), 0, "nothing is known of steps without");
        budget.record_decode(Duration::from_millis(10));
        let patches = |budget: &mut Budget, passed: usize| {
            budget.record_vision(passed, Duration::from_millis(10 + passed as u64 / 10));
            budget.patches()
        };
        assert_eq!([10, 20, 40].map(|passed| patches(&mut budget, passed)), [20, 40, 80]);
        assert_eq!(patches(&mut budget, 100), 100, "twice as many were too many");
        assert_eq!(patches(&mut budget, 1), 100, "the end of a picture");
        assert_eq!(patches(&mut budget, 1000), 150);
    }

    #[test]
    fn a_short_prompt_says_nothing_about_longer_ones() {
        let mut budget = Budget::new(512, 512);
        let before = budget.tokens(1, 1);
        budget.record_decode(Duration::from_millis(10));
        (0..20).for_each(|_| budget.record_shared(3, Duration::from_millis(11)));
        assert_eq!(budget.tokens(1, 1), before);
    }

    #[test]
    fn few_tokens_fill_a_power_of_two_of_rows() {
        let budget = Budget::new(512, 512);
        assert_eq!([1, 4, 15, 40, 60].map(|answers| budget.tokens(answers, 1)), [15, 12, 17, 24, 12]);
    }

    /// Simulates clients who come at once, each with a prompt of 400 tokens and an answer of 64, on a device with these seconds for
    /// a step of so many answers and prompt tokens. Returns the time beside that of all prompts alone and then all answers alone.
    fn burst(clients: usize, time: impl Fn(usize, usize) -> f64) -> f64 {
        let mut budget = Budget::new(512, 512);
        // tokens of the prompt that are left, and of the answer
        let mut requests: Vec<(usize, usize)> = vec![(400, 64); clients];
        let mut total = 0.0;
        while !requests.is_empty() {
            let answers = requests.iter().filter(|request| request.0 == 0).count();
            let mut room = if answers == 0 { 1024 } else { budget.tokens(answers, requests.len() - answers) };
            let mut tokens = 0;
            for (left, answer) in &mut requests {
                if *left == 0 {
                    *answer -= 1;
                    continue;
                }
                let taken = room.min(*left);
                (*left, room, tokens) = (*left - taken, room - taken, tokens + taken);
                *answer -= usize::from(*left == 0 && taken > 0);
            }
            let seconds = time(answers, tokens);
            total += seconds;
            match (answers, tokens) {
                (0, _) => {}
                (_, 0) => budget.record_decode(Duration::from_secs_f64(seconds)),
                _ => budget.record_shared(tokens, Duration::from_secs_f64(seconds)),
            }
            requests.retain(|request| request.1 > 0);
        }
        let alone = (400 * clients).div_ceil(1024) as f64 * time(0, 1024) + 63.0 * time(clients, 0);
        alone / total
    }

    #[test]
    fn a_burst_is_answered_at_most_of_the_rate_of_prompts_and_answers_alone() {
        // a step that reads the weights, and rows that take over when they compute for longer, in tiles of 64 unless they are few. On paper for
        // a Tesla P40, and a GPU whose weights are read fast beside what it computes and which waits for the launches of steps with prompts
        for (weights, prompts, row) in [(9.0e-3, 9.0e-3, 1.6e-4), (2.0e-3, 9.0e-3, 5.0e-5)] {
            let time = |answers: usize, tokens: usize| {
                let rows = answers + tokens;
                let rows = rows.next_multiple_of(if rows > MOST_BY_ROWS { 64 } else { 16 });
                f64::max(if rows > MOST_BY_ROWS { prompts } else { weights }, row * rows as f64)
            };
            for clients in [4, 16, 64] {
                let share = burst(clients, time);
                assert!(share > 0.9, "{clients} clients, {weights} s a step, {row} s a row: {share}");
            }
        }
    }

    #[test]
    fn a_burst_takes_the_most() {
        let budget = Budget::new(512, 512);
        assert_eq!([1, 4, 100].map(|answers| budget.tokens(answers, 2)), [512; 3]);
        assert_eq!([1, 30, 600].map(|answers| Budget::new(512, 1024).tokens(answers, 2)), [1023, 994, 512]);
    }
}
