//! Adaptors: upstreams that wrap an upstream.

mod limit;
mod statistics;
mod trace;

pub use limit::Limit;
pub use statistics::{Counted, Traffic};
pub(super) use trace::Recorder;
pub use trace::{Entry, Trace, TraceError, parse, replay, to_text};
