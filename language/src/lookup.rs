//! Prompt lookup: where the last tokens occurred before, in the prompt or the answer, the tokens that followed them are the
//! guess for the next ones. One pass then checks all of them.
//!
//! Source: Saxena 2023, "Prompt Lookup Decoding"; the check by one pass is Leviathan et al. 2023, "Fast Inference from
//! Transformers via Speculative Decoding".

use std::collections::HashMap;

/// Length of the sequence that has to occur again. With fewer tokens more guesses are wrong.
const MATCHED: usize = 3;
/// The share of right guesses before there is any: too small for a check, so that a text without repetitions costs nothing.
const AT_FIRST: f64 = 0.4;
/// The weight of the newest guess in the moving share of right guesses.
const NEWEST: f64 = 0.07;
/// A check must promise so many times the tokens that its time is worth: the share is highest after luck.
const MARGIN: f64 = 1.1;
/// The initial estimate of the time of a pass that checks guesses, in passes of one token.
const CHECK_COST: f64 = 1.7;

/// The tokens so far, the guesses that follow from them, and whether checking these is worth its time.
pub(super) struct Lookup {
    ids: Vec<u32>,
    /// For each sequence of tokens, the index of the token after its last occurrence.
    followed: HashMap<[u32; MATCHED], usize>,
    /// The share of right guesses, as a moving mean. It counts every guess of the next token, checked or not.
    right: f64,
    /// Seconds of a pass of one token, and of one that checks guesses.
    seconds: [Option<f64>; 2],
}

impl Lookup {
    /// Starts with these tokens.
    pub fn new(prompt: &[u32]) -> Self {
        let ids = Vec::with_capacity(2 * prompt.len());
        let mut lookup = Self { ids, followed: HashMap::new(), right: AT_FIRST, seconds: [None; 2] };
        prompt.iter().for_each(|&id| lookup.append(id));
        lookup
    }

    /// Appends the next token of the answer.
    pub fn push(&mut self, id: u32) {
        if let Some(place) = self.place() {
            let hit = f64::from(u8::from(self.ids[place] == id));
            self.right += NEWEST * (hit - self.right);
        }
        self.append(id);
    }

    fn append(&mut self, id: u32) {
        if let Some(last) = self.ids.last_chunk() {
            self.followed.insert(*last, self.ids.len());
        }
        self.ids.push(id);
    }

    /// The index of the token after the previous occurrence of the last tokens.
    fn place(&self) -> Option<usize> {
        self.followed.get(self.ids.last_chunk::<MATCHED>()?).copied()
    }

    /// The next `count` tokens, if there is a guess that is worth checking together with the last token.
    pub fn guess(&self, count: usize) -> Option<Vec<u32>> {
        let place = self.place()?;
        let tokens: f64 = (0..=count as i32).map(|i| self.right.powi(i)).sum();
        if tokens <= MARGIN * self.check_cost() {
            return None;
        }
        // the guess may run up to the last token; it is then continued periodically
        Some(self.ids[place..].iter().copied().cycle().take(count).collect())
    }

    /// A pass that checks guesses, in passes of one token.
    fn check_cost(&self) -> f64 {
        match self.seconds {
            [Some(one), Some(check)] if one > 0.0 => check / one,
            _ => CHECK_COST,
        }
    }

    /// Records the time of a pass.
    pub fn took(&mut self, checked: bool, seconds: f64) {
        let mean = &mut self.seconds[usize::from(checked)];
        *mean = Some(mean.map_or(seconds, |mean| mean + 0.2 * (seconds - mean)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After as many right guesses as this share tells.
    fn known(prompt: &[u32], right: f64) -> Lookup {
        Lookup { right, ..Lookup::new(prompt) }
    }

    #[test]
    fn what_followed_is_guessed() {
        let mut lookup = known(&[1, 2, 3, 4, 5, 6, 1, 2], 0.9);
        assert_eq!(lookup.guess(3), None, "[6, 1, 2] is new");
        lookup.push(3);
        assert_eq!(lookup.guess(3), Some(vec![4, 5, 6]));
        assert_eq!(lookup.guess(8), Some(vec![4, 5, 6, 1, 2, 3, 4, 5]), "and again");
        assert_eq!(known(&[], 0.9).guess(3), None);
        assert_eq!(known(&[7, 7, 7], 0.9).guess(2), None);
        assert_eq!(known(&[7, 7, 7, 7], 0.9).guess(2), Some(vec![7, 7]));
    }

    #[test]
    fn a_few_right_guesses_are_needed_first() {
        let mut lookup = Lookup::new(&[7; 4]);
        let needed = (0..20).take_while(|_| {
            let waits = lookup.guess(7).is_none();
            lookup.push(7);
            waits
        });
        assert_eq!(needed.count(), 2);
    }

    #[test]
    fn the_latest_occurrence_counts() {
        let lookup = known(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 0.8);
        assert_eq!(lookup.guess(1), None, "1.8 expected, 1.7 times the margin needed");
        assert_eq!(lookup.guess(2), Some(vec![5, 1]));
    }

    #[test]
    fn wrong_guesses_end_and_right_ones_bring_them_back() {
        let mut lookup = Lookup::new(&[1, 2, 3, 4]);
        for other in 0..20 {
            [1, 2, 3].into_iter().for_each(|id| lookup.push(id));
            lookup.push(100 + other);
        }
        [1, 2, 3].into_iter().for_each(|id| lookup.push(id));
        assert_eq!(lookup.guess(7), None);
        for _ in 0..40 {
            lookup.push(9);
        }
        assert_eq!(lookup.guess(7), Some(vec![9; 7]));
    }

    #[test]
    fn the_newest_guess_and_pass_weigh_as_they_should() {
        let near =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        let mut lookup = Lookup::new(&[7; 4]);
        lookup.push(7);
        near(lookup.right, 0.442);
        lookup.push(8);
        near(lookup.right, 0.41106);
        near(lookup.check_cost(), CHECK_COST);
        lookup.took(false, 0.0);
        lookup.took(true, 1.0);
        near(lookup.check_cost(), CHECK_COST);
        lookup.took(false, 10.0);
        near(lookup.check_cost(), 0.5);
        lookup.took(true, 6.0);
        near(lookup.check_cost(), 1.0);
    }

    #[test]
    fn a_check_that_takes_too_long_is_left_out() {
        let mut lookup = known(&[5; 10], 0.5);
        assert!(lookup.guess(7).is_some());
        lookup.took(false, 1.0);
        lookup.took(true, 7.0);
        assert!(lookup.guess(7).is_none(), "half of the guesses are right: two tokens for eight");
        for _ in 0..60 {
            lookup.push(5);
        }
        assert!(lookup.guess(7).is_some(), "all are: eight tokens for 7.0, which is more than its margin");
    }
}
