//! Writes down what goes through, so that it can be done again: on another upstream, for a test or a benchmark.

use crate::Result;
use crate::memory::Upstream;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

/// One operation. Blocks and streams are numbered in the order in which they first appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Entry {
    /// Succeeded; refused allocations are not written down.
    Allocate { block: u32, bytes: usize, stream: u32 },
    /// After the stream's work.
    Free { block: u32, stream: u32 },
}

/// Writes down the allocations and frees of the upstream inside.
#[derive(Debug)]
pub struct Trace<U, S> {
    inner: U,
    log: Mutex<Recorder<S>>,
}

/// Numbers blocks and streams as they come.
#[derive(Debug)]
pub(in crate::memory) struct Recorder<S> {
    pub entries: Vec<Entry>,
    streams: Vec<S>,
    live: HashMap<u64, u32>,
    blocks: u32,
}

impl<U, S> Trace<U, S> {
    /// An empty trace around `inner`.
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

    fn free(&self, address: u64, bytes: usize, stream: &S) -> Result<()> {
        // Held over the free: the address may be given out again before it is written down.
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        self.inner.free(address, bytes, stream)?;
        log.freed(address, stream);
        Ok(())
    }

    fn trim(&self) -> Result<()> {
        self.inner.trim()
    }
}

/// A trace as text: a line `a BLOCK BYTES STREAM` or `f BLOCK STREAM` for each entry; `#` begins a comment.
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

/// A line that is no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is no entry of a memory trace: {text}")]
pub struct TraceError {
    /// From 1.
    pub line: usize,
    /// The line's text.
    pub text: String,
}

/// Reads what [`to_text`] writes.
///
/// # Errors
/// The first line that can't be read, or frees what is not live, or allocates a block twice.
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

/// Does it again. Stream n of the trace is `streams[n % streams.len()]`. What the trace leaves live is freed.
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
                    upstream.free(address, bytes, stream(number))?;
                }
            }
        }
    }
    let mut left: Vec<_> = live.into_values().collect();
    left.sort_unstable();
    left.iter().try_for_each(|&(address, bytes, number)| upstream.free(address, bytes, stream(number)))
}
