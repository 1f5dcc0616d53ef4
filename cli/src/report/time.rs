//! The time that a report may take, and Ctrl-C, which ends it early.

use crate::failure::Failure;
use crate::interrupt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// When the parts of a report end.
pub(super) struct TimeLimit {
    begun: Instant,
    allowed: Duration,
    interrupted: Arc<AtomicBool>,
}

/// Of the whole time, what no part goes beyond.
const LAST: f64 = 0.98;

/// A part's time.
pub(super) struct Part<'a> {
    limit: &'a TimeLimit,
    /// Since the beginning of all.
    end: Duration,
}

impl Part<'_> {
    /// Whether its time is over, or Ctrl-C was pressed.
    pub fn is_over(&self) -> bool {
        self.limit.interrupted() || self.limit.begun.elapsed() >= self.end
    }

    /// The same for a part that has done this much: the first of its work is done however late it begins.
    pub fn is_over_after(&self, done: usize) -> bool {
        if done == 0 { self.limit.interrupted() } else { self.is_over() }
    }
}

impl TimeLimit {
    /// Begins now. From now on the first Ctrl-C ends every part, and the second one the program.
    pub fn begin(minutes: f64) -> Result<Self, Failure> {
        let interrupted = interrupt::flag()?;
        Ok(Self { begun: Instant::now(), allowed: Duration::from_secs_f64(60.0 * minutes), interrupted })
    }

    /// A part that begins now and ends when this share of the whole time is over. One that begins late, because one case of the
    /// part before took long, has a twentieth of the whole time at least.
    pub fn until(&self, share: f64) -> Part<'_> {
        let least = (self.begun.elapsed() + self.allowed.mul_f64(0.05)).min(self.allowed.mul_f64(LAST));
        Part { limit: self, end: self.allowed.mul_f64(share).max(least) }
    }

    pub fn interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub fn taken(&self) -> Duration {
        self.begun.elapsed()
    }

    pub fn allowed(&self) -> Duration {
        self.allowed
    }
}
