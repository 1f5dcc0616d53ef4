//! An adaptor that records allocations and frees, so that they can be replayed on another upstream, for tests and
//! benchmarks.

use crate::Result;
use crate::memory::upstream::Upstream;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

/// One operation. Blocks and streams are numbered in the order in which they first appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Entry {
    /// A successful allocation; failed ones are not recorded.
    Allocate { block: u32, bytes: usize, stream: u32 },
    /// A free in the stream's order.
    Free { block: u32, stream: u32 },
}

/// Records the allocations and frees of the upstream inside.
#[derive(Debug)]
pub struct Trace<U, S> {
    inner: U,
    log: Mutex<Recorder<S>>,
}

/// Numbers blocks and streams in the order of their first use.
#[derive(Debug)]
pub(crate) struct Recorder<S> {
    pub entries: Vec<Entry>,
    streams: Vec<S>,
    live: HashMap<u64, u32>,
    blocks: u32,
}

impl<U, S> Trace<U, S> {
    /// Wraps `inner`, with an empty trace.
    pub fn new(inner: U) -> Self {
        Self { inner, log: Mutex::new(Recorder::new()) }
    }

    /// The trace so far.
    pub fn entries(&self) -> Vec<Entry> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).entries.clone()
    }

    /// The upstream inside.
    pub fn inner(&self) -> &U {
        &self.inner
    }
}

impl<S> Recorder<S> {
    pub fn new() -> Self {
        Self { entries: Vec::new(), streams: Vec::new(), live: HashMap::new(), blocks: 0 }
    }
}

impl<S: Clone + PartialEq> Recorder<S> {
    fn stream(&mut self, stream: &S) -> u32 {
        let known = self.streams.iter().position(|known| known == stream);
        known.unwrap_or_else(|| {
            self.streams.push(stream.clone());
            self.streams.len() - 1
        }) as u32
    }

    pub fn allocated(&mut self, address: u64, bytes: usize, stream: &S) {
        let (block, stream) = (self.blocks, self.stream(stream));
        self.blocks += 1;
        self.live.insert(address, block);
        self.entries.push(Entry::Allocate { block, bytes, stream });
    }

    pub fn freed(&mut self, address: u64, stream: &S) {
        let stream = self.stream(stream);
        if let Some(block) = self.live.remove(&address) {
            self.entries.push(Entry::Free { block, stream });
        }
    }
}

impl<S: Clone + PartialEq + Send + Sync, U: Upstream<S>> Upstream<S> for Trace<U, S> {
    fn allocate(&self, bytes: usize, stream: &S) -> Result<u64> {
        let address = self.inner.allocate(bytes, stream)?;
        self.log.lock().unwrap_or_else(PoisonError::into_inner).allocated(address, bytes, stream);
        Ok(address)
    }

    unsafe fn free(&self, address: u64, bytes: usize, stream: &S) -> Result<()> {
        // Locked during the free: the address may be allocated again before the free is recorded.
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller owns the block, which the upstream inside returned.
        unsafe { self.inner.free(address, bytes, stream) }?;
        log.freed(address, stream);
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        self.inner.trim()
    }
}

/// A trace as text, one line per entry: `a BLOCK BYTES STREAM` or `f BLOCK STREAM`. `#` begins a comment.
pub fn to_text(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let _ = match entry {
            Entry::Allocate { block, bytes, stream } => writeln!(text, "a {block} {bytes} {stream}"),
            Entry::Free { block, stream } => writeln!(text, "f {block} {stream}"),
        };
    }
    text
}

/// A line that is not a valid entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not an entry of a memory trace: {text}")]
pub struct TraceError {
    /// The line's number, from 1.
    pub line: usize,
    /// The line's text.
    pub text: String,
}

/// Parses the text of [`to_text`].
///
/// # Errors
/// The first line that can't be parsed, frees a block that is not live, or allocates a block twice.
pub fn parse(text: &str) -> Result<Vec<Entry>, TraceError> {
    let mut entries = Vec::new();
    let mut live = std::collections::HashSet::new();
    for (index, line) in text.lines().enumerate() {
        let words: Vec<_> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        let entry = match words[..] {
            [] => continue,
            ["a", block, bytes, stream] => block.parse().ok().and_then(|block| {
                let (bytes, stream) = (bytes.parse().ok().filter(|&bytes| bytes > 0)?, stream.parse().ok()?);
                live.insert(block).then_some(Entry::Allocate { block, bytes, stream })
            }),
            ["f", block, stream] => block.parse().ok().and_then(|block| {
                let stream = stream.parse().ok()?;
                live.remove(&block).then_some(Entry::Free { block, stream })
            }),
            _ => None,
        };
        entries.push(entry.ok_or_else(|| TraceError { line: index + 1, text: line.to_owned() })?);
    }
    Ok(entries)
}

/// Replays a trace. Stream n of the trace is `streams[n % streams.len()]`. Blocks that the trace leaves live are freed.
///
/// # Errors
/// The first error of the upstream.
pub fn replay<S>(entries: &[Entry], upstream: &(impl Upstream<S> + ?Sized), streams: &[S]) -> Result<()> {
    let mut live = HashMap::new();
    let stream = |number: u32| &streams[number as usize % streams.len()];
    for entry in entries {
        match *entry {
            Entry::Allocate { block, bytes, stream: number } => {
                let address = upstream.allocate(bytes, stream(number))?;
                live.insert(block, (address, bytes, number));
            }
            Entry::Free { block, stream: number } => {
                if let Some((address, bytes, _)) = live.remove(&block) {
                    // SAFETY: allocated above; nothing is queued that uses it, and it has left the list.
                    unsafe { upstream.free(address, bytes, stream(number)) }?;
                }
            }
        }
    }
    let mut left: Vec<_> = live.into_values().collect();
    left.sort_unstable();
    left.iter().try_for_each(|&(address, bytes, number)| {
        // SAFETY: allocated above and not freed since; nothing is queued that uses it.
        unsafe { upstream.free(address, bytes, stream(number)) }
    })
}
