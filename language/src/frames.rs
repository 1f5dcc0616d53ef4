//! How many frames of a video are seen, and what reading it may take.

use super::picture::MAX_DECODED;
use pascaline::{Error, Result, format_bytes};

/// How many frames of a video are seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrameSampling {
    /// Frames per second.
    pub rate: f64,
    /// The most frames of a video; above 0.
    pub most: usize,
}

impl Default for FrameSampling {
    /// Two frames per second, as the published processors, and at most 64.
    fn default() -> Self {
        Self { rate: 2.0, most: 64 }
    }
}

/// What reading a video may take.
#[derive(Clone, Copy)]
pub(super) struct Bounds<'a> {
    /// Bytes of its frames as RGB. An animated picture takes three times a frame besides.
    pub bytes: usize,
    /// Asked often while it is read; `false` ends it.
    pub goes_on: &'a (dyn Fn() -> bool + Sync),
    /// Whether the file is a stranger's: no playlist, which names other files, is read.
    pub is_strange: bool,
}

impl Bounds<'_> {
    /// Those of the user's own file.
    pub const OWN: Self = Self { bytes: MAX_DECODED as usize, goes_on: &|| true, is_strange: false };

    /// Takes the bytes of a frame off.
    pub fn take(&mut self, name: &str, bytes: usize) -> Result<()> {
        let most = self.bytes;
        self.bytes = most.checked_sub(bytes).ok_or_else(|| {
            let most = format_bytes(most.max(bytes));
            wrong(name, format!("its frames take more than {most}; fewer or smaller frames take less"))
        })?;
        self.check(name)
    }

    pub fn check(&self, name: &str) -> Result<()> {
        if (self.goes_on)() { Ok(()) } else { Err(wrong(name, "nobody waits for it")) }
    }
}

impl FrameSampling {
    /// The number of frames of so many seconds, and their rate.
    pub(super) fn of(&self, seconds: f64) -> (usize, f64) {
        let wanted = (seconds * self.rate).round().max(1.0);
        let most = self.most.max(1);
        if wanted <= most as f64 { (wanted as usize, self.rate) } else { (most, most as f64 / seconds) }
    }

    pub(super) fn check(&self, name: &str) -> Result<()> {
        match self.rate > 0.0 && self.rate.is_finite() && self.most > 0 {
            true => Ok(()),
            false => Err(wrong(name, format!("{} frames at {} per second", self.most, self.rate))),
        }
    }
}

pub(super) fn wrong(name: &str, reason: impl Into<String>) -> Error {
    Error::Image { file: name.to_owned(), reason: reason.into() }
}
