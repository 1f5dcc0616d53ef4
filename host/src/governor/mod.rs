//! Thermal governor: keeps the GPU at a clock that it can sustain, so that the hardware does not throttle.
//!
//! A GPU that gets too hot halves its clock until it has cooled, then heats up again; a laptop's repeats this as long as it
//! works. [`Governor`] observes temperature, power and throttle reasons. Near the limit it lets work run only a share of the
//! time (the duty), adjusts that in steps with hysteresis, and prefers kernels that need less power. It is a pure state
//! machine over [`Sample`]s: [`nvml`] reads them from a device, and a program uses [`Pacer`], which does both.

#[cfg_attr(not(feature = "nvml"), path = "no_nvml.rs")]
pub mod nvml;
mod pacing;
mod watch;

pub use pacing::{Event, Governor, Sample, TraceError, parse_trace, pause_after};
pub use watch::{Pacer, Sustained};
