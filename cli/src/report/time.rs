//! The time that a report may take, and Ctrl-C, which ends it early.

use crate::failure::Failure;
use crate::interrupt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The time limits of a report's parts.
pub(super) struct TimeLimit {
    begun: Instant,
    allowed: Duration,
    interrupted: Arc<AtomicBool>,
}

/// The latest end of each part, as a share of the whole time. Time that a part leaves goes to the next one.
pub(super) const VALIDATE: f64 = 0.35;
pub(super) const MODEL_FILES: f64 = 0.48;
pub(super) const MODEL: f64 = 0.58;
/// A fast card is done with the parts above early, and times the more cases.
pub(super) const BENCH: f64 = 0.86;
pub(super) const ESTIMATES: f64 = 0.98;
/// The end of the whole time, which no part exceeds.
const LAST: f64 = 0.98;

/// A part's time.
pub(super) struct Part<'a> {
    limit: &'a TimeLimit,
    /// Time since the start of the report.
    end: Duration,
}

impl Part<'_> {
    /// Whether its time is up, or Ctrl-C was pressed.
    pub fn is_over(&self) -> bool {
        self.limit.interrupted() || self.limit.begun.elapsed() >= self.end
    }

    /// The same for a part that has done this much: the first of its work is done however late it begins.
    pub fn is_over_after(&self, done: usize) -> bool {
        if done == 0 { self.limit.interrupted() } else { self.is_over() }
    }
}

impl TimeLimit {
    /// Starts the clock. From now on the first Ctrl-C ends every part, and the second one the program.
    pub fn begin(minutes: f64) -> Result<Self, Failure> {
        let interrupted = interrupt::flag()?;
        Ok(Self { begun: Instant::now(), allowed: Duration::from_secs_f64(60.0 * minutes), interrupted })
    }

    /// A part that starts now and ends after this share of the whole time. If the part before took too long, it still gets
    /// at least a twentieth of the whole time.
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
